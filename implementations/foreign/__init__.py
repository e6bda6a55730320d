"""Implementations in other frameworks, each in processes of its own: see docs/foreign.md."""
