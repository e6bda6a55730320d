"""Implementations and workloads that go wrong, each in one way. Runs are given them by their path.

None is found by name: they are no part of what there is to measure.
"""
