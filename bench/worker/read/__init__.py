"""Readers of compiled programs."""
