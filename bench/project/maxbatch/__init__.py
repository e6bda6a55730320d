"""The largest batch of each cell that fits on a device: predicted, then proved by running it."""
