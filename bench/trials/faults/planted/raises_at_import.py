"""Raises when it is imported."""

raise RuntimeError("planted")
