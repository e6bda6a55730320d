"""Causes of one step being slower than another, from stored traces. Imports no jax."""
