"""Lockstep: proves that train-step implementations agree, then times them fairly."""
