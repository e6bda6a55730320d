"""Profiler traces: recorded, parsed, and attributed to operations."""
