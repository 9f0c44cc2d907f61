"""paritygate.converter.environments."""
