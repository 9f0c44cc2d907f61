"""Decision trees as ai.onnx.ml: what XGBoost and LightGBM have in common, and the readers of their files."""
