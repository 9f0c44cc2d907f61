"""paritygate.converter.runtime."""
