"""Results of a proof, as cells store them."""

from typing import NotRequired, TypedDict


class ProofCheck(TypedDict):
    """The comparison of one trajectory of the gate with the reference."""

    name: str
    """`fp64 sgd`, `fp64 optimizer`, `timed sgd` or `as timed`: see bench/worker/prove/gate.py."""
    loss_error: float
    """Largest relative error of a step's loss."""
    loss_tolerance: float
    update_error: float
    """Largest update error of a parameter, relative to the size of the whole update."""
    update_tolerance: float
    replica_drift: NotRequired[float]
    """Largest difference between replicas by rounding, relative to the loss or the update."""
