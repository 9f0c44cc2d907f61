"""paritygate: a trained model reaches production only with proof that its ONNX computes the same."""

__version__ = "0.1.0"
