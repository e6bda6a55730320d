"""Ways to write the train step: one file each, found by its name."""
