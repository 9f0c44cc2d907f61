"""paritygate.converter.checkpoints."""
