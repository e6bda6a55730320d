"""A run whose processes a launcher has started: mpirun, srun, Kubernetes, torchrun, or a person.

Every process runs the same command. That of rank 0 leads: it plans, proves, times, stores and
reports. The others follow: they start the worker that it asks for on their own host, and pass on
what that says. The workers of a launch then find one another by jax.distributed. Imports no jax.

Leader and followers send each other JSON over connections of the standard library's
multiprocessing, authenticated by a token that they have in common; nothing is pickled.
"""
