"""The largest batch that fits on a device, for each cell: predicted, then proven."""
