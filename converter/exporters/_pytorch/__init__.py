"""The parts of the PyTorch exporter; `paritygate.converter.exporters.pytorch` puts them together."""
