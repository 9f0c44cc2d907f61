"""paritygate.serving."""
