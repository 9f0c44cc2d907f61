"""PMML read twice: `scoring` answers row by row as the standard says, `emission` writes ONNX.

`elements` reads the XML safely, `declarations` reads what fields are; everything that computes is written twice.
"""
