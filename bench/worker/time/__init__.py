"""The clock and what surrounds a timed turn."""
