"""What is trained: one file a workload, found by its name."""
