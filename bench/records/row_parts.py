"""Stored parts of turns and cells: devices after a turn, proofs, arms in processes of their own."""

from typing import NotRequired, TypedDict

SGD = "fp64 sgd"
OWN = "fp64 optimizer"
TIMED_SGD = "timed sgd"
AS_TIMED = "as timed"
"""Names of the gate's trajectories: see bench/worker/prove/gate.py."""

STATISTICAL = "statistical"
"""Name of the proof of an approximate step: see bench/worker/prove/statistical_proof.py."""


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
    batch: NotRequired[int]
    """Global batch of the steps, if it is smaller than the block's because float64 did not fit."""
    parts: NotRequired[int]
    """Parts of the batch that the reference computed one after another, its parameters perhaps
    sharded; absent if it computed the whole batch at once on one device."""


class StatisticalCheck(TypedDict):
    """The comparison of an approximate step's training with the reference's."""

    name: str
    """STATISTICAL, or AS_TIMED for the single run of the step that is timed."""
    loss_error: float
    """The larger end of the interval below, by its absolute value."""
    loss_tolerance: float
    low: float
    high: float
    """90 % interval of the mean shortfall, in units of the decrease in loss that the reference
    achieves; negative where the step trains better."""
    seeds: int
    steps: int


Check = ProofCheck | StatisticalCheck


class Energy(TypedDict):
    """Energy of the devices from just before a turn until just after it."""

    joules: float
    """Energy of all boards or packages in use, each as a whole."""
    seconds: float


class BoardState(TypedDict):
    """The state of an NVIDIA board, or of several together; None where one reports nothing."""

    clock_mhz: float | None
    """Clock of the multiprocessors; the lowest of several boards."""
    temperature_c: float | None
    """The highest of several boards."""
    power_w: float | None
    """Power of all boards, as NVML averages it."""
    throttled: str | None
    """Limits that hold down the clock of any board, such as `heat; power`; empty if none does."""


class ForeignArms(TypedDict):
    """Differences between an arm in its own processes and arms in the worker."""

    versions: dict[str, str]
    """Versions of Python and of the packages that the file names, in the arm's processes."""
    processes: int
    threads: int
    float64: NotRequired[bool]
    """False if it was not proved in float64, because its framework lacks that."""
    isolated: NotRequired[bool]
    """Whether it has its own processes because the run's options isolate it."""
    asking_ns: int
    """Round trip of an empty request, which a span's time does not include."""


class Isolation(TypedDict):
    """The second measurement of a suspicious winner: see bench.measure.suspicious_times."""

    why: str
    beside: str
    """The arm beside which it was measured; empty if it was alone."""
    ratio: float
    """Its step time over that of the other arm, both in the worker; without one, seconds."""
    isolated_ratio: float | None
    """The same in processes of their own; None if there are no such times."""
    reason: str
    """Why there are none; empty if there are."""
