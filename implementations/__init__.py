"""Implementations of the train step: one file each, found by its name."""
