"""What a proof found, as cells store it."""

from typing import NotRequired, TypedDict


class ProofCheck(TypedDict):
    """One trajectory of the gate, compared with the right one."""

    name: str
    """`fp64 sgd`, `fp64 optimizer`, `timed sgd` or `as timed`: see bench/worker/prove/gate.py."""
    loss_error: float
    """Largest relative difference of a step's loss."""
    loss_tolerance: float
    update_error: float
    """Worst parameter's difference of updates, relative to the size of the whole update."""
    update_tolerance: float
    replica_drift: NotRequired[float]
    """Largest difference between replicas by rounding, relative to the loss or the update."""
