"""paritygate.mesh."""
