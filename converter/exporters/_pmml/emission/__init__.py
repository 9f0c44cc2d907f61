"""Writes PMML as ONNX: columns of doubles, NaN where a value is missing, trees as ai.onnx.ml ensembles."""
