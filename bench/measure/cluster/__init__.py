"""Runs whose processes are started by hand or by mpirun, srun, Kubernetes or torchrun.

Rank 0 leads the run; the others start workers at its request: see docs/design/processes.md.
"""
