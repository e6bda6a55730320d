"""Runs whose processes are started by hand or by mpirun, srun, Kubernetes or torchrun.

All processes run the same command. Rank 0, the leader, plans, proves, times, stores and reports.
The others are followers: each starts the workers that the leader requests on its host, and forwards
their output. The workers of a launch connect through jax.distributed.

Leader and followers exchange JSON over connections of multiprocessing.connection, authenticated by
a shared token; nothing is pickled.
"""
