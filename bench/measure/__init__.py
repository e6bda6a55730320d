"""Execution of a plan: worker processes, launches and rounds, and the storage of their rows."""
