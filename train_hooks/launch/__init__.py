"""Where fit runs: framework contracts, schedulers, and the launcher over both."""
