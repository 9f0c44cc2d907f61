"""paritygate.train_hooks.launch."""
