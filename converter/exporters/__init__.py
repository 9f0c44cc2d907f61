"""paritygate.converter.exporters."""
