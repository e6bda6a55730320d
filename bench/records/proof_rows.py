"""Results of a proof, as cells store them."""

from typing import NotRequired, TypedDict

SGD = "fp64 sgd"
OWN = "fp64 optimizer"
TIMED_SGD = "timed sgd"
AS_TIMED = "as timed"
"""Names of the gate's trajectories: see bench/worker/prove/gate.py."""


class ProofCheck(TypedDict):
    """The comparison of one trajectory of the gate with the reference."""

    name: str
    """One of the names above."""
    loss_error: float
    """Largest relative error of a step's loss."""
    loss_tolerance: float
    update_error: float
    """Largest update error of a parameter, relative to the size of the whole update."""
    update_tolerance: float
    state_error: NotRequired[float]
    """Largest error of a leaf of the model state, relative to its change; infinite where integers
    or keys differ. Absent if the model has no state beside its parameters."""
    state_tolerance: NotRequired[float]
    replica_drift: NotRequired[float]
    """Largest difference between replicas by rounding, relative to the loss or the update."""
