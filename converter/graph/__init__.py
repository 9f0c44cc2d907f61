"""paritygate.converter.graph."""
