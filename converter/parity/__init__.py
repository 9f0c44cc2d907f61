"""paritygate.converter.parity."""
