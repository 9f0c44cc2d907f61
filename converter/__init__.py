"""paritygate.converter."""
