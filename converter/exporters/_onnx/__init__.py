"""The parts of the exporter for ONNX files; `paritygate.converter.exporters.onnx_file` puts them together."""
