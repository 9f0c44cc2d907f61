"""paritygate.mesh.dialects."""
