"""Trials of Lockstep itself: how often it is right (selftest), and what it survives (faults)."""
