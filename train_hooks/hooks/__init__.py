"""paritygate.train_hooks.hooks."""
