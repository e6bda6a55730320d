"""Runs whose processes a launcher has started: mpirun, srun, Kubernetes, torchrun, or a person.

All processes run the same command. Rank 0 leads: it plans, proves, times, stores and reports. The
others follow: each starts the workers that rank 0 asks for on its own host, and forwards their
output. The workers of a launch find one another through jax.distributed.

Leader and followers exchange JSON over connections of multiprocessing.connection, authenticated by
a shared token; nothing is pickled.
"""
