"""Lockstep: proves that train-step implementations agree, then times them fairly."""

__version__ = "0.1.0"
