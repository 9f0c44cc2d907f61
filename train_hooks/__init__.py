"""paritygate.train_hooks."""
