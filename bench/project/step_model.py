"""Cost model of a step: from the work of one device in it and the device's capabilities.

The model divides a step into

- *compute*: its FLOPs over the FLOP/s that it reaches, a calibrated share of those of the best
  matrix products;
- *memory*: the optimizer's update, which reads and writes parameters and optimizer state once, over
  the memory bandwidth: the least that a step moves. The calibrated share covers activations;
- *communication that can be hidden*: collectives of gradients and parameters along the axes that
  shard the batch; no later operation needs their results at once;
- *communication that is waited for*: all other collectives, such as those of activations along
  `model`, which the next product needs, or from stage to stage along `pipe`.

docs/design/predictions.md has the reasons. Sources: https://jax-ml.github.io/scaling-book/, part 1,
"All About Rooflines" (a step takes at least the longest of these times and at most their sum), and
part 5, "How to Parallelize a Transformer for Training" (which collectives are critical).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.project.collective_costs import Limit, cost
from bench.project.compiled_programs import Program
from bench.project.machines import Machine
from bench.records.cells import FULL
from bench.records.mesh import BATCH_AXES
from bench.records.step_programs import Communication

HIDEABLE = {
    "all-reduce": (*BATCH_AXES, "context"),  # over which gradients are summed
    "reduce-scatter": ("data", "fsdp"),
    "all-gather": ("data", "fsdp"),  # along which parameters are gathered
}
"""Axes along which collectives can be hidden, by kind; all others are waited for."""

COMBINED_BYTES = 30 * 2**20
"""Size up to which XLA combines independent collectives of one kind: the default of
xla_gpu_all_reduce_combine_threshold_bytes and of its counterparts for all-gathers and
reduce-scatters (https://github.com/openxla/xla/blob/main/xla/debug_options_flags.cc). Assumed for
TPUs as well, whose thresholds are not published."""

FORWARD = {"": 1 / 3, "dots": 1 / 3, FULL: 1 / 4}
"""Share of a step's products that precede the first gradient, by rematerialization: forward 2 FLOPs
per parameter and token, backward 4 (the scaling book, part 4), recomputation 2 more."""


@dataclass(frozen=True)
class Calibration:
    """The efficiency with which steps use a machine; `bench.project.calibration` fits it."""

    share: float
    """FLOP/s of a step's products, relative to those of the best products."""
    exposed: float
    """Share of the hideable communication time that is exposed, 0 to 1."""
    overhead_s: float
    """Fixed cost of every step."""
    spread: float | None
    """Half the width of the 95 % interval of log step time; None if unknown."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """`share` of each implementation that was measured; all others have the common one."""


@dataclass(frozen=True)
class Collective:
    """All of a step's collectives of one kind along the same axes."""

    kind: str
    axes: tuple[str, ...]
    """Empty if the groups follow no axes; the collective then counts as one over the whole mesh."""
    members: int
    count: float
    """Number after the machine's compiler has combined them."""
    payload_bytes: int
    seconds: float
    """Total seconds, one after the other."""
    separate_s: float
    """The same for the program's own, uncombined collectives."""
    limit: Limit
    hideable: bool
    after_forward: bool
    """Whether it depends on the backward pass: it moves gradients or updated parameters."""

    @property
    def name(self) -> str:
        """`all-reduce over data`."""
        return f"{self.kind} over {', '.join(self.axes) or 'other groups'}"


@dataclass(frozen=True)
class Work:
    """The parts of a step on an ideal machine, in seconds; `work` creates it."""

    program: Program
    machine: Machine
    collectives: tuple[Collective, ...]
    products_s: float
    """All FLOPs at the rate of the best matrix products."""
    memory_s: float
    """The update: one read and one write of the state."""
    hideable_s: float
    """Collectives that compute can hide."""
    after_forward_s: float
    """The part of `hideable_s` that follows the forward pass."""
    waited_s: float
    """Collectives that compute cannot hide."""

    @property
    def longest_axis_s(self) -> float:
        """Collectives of the mesh axis whose collectives take longest, with those along no axis."""
        axes = {axis for one in self.collectives for axis in one.axes} or {""}
        return max(
            sum(one.seconds for one in self.collectives if axis in one.axes or not one.axes)
            for axis in axes
        )

    def compute_s(self, calibration: Calibration) -> float:
        """Return the seconds of the FLOPs at the calibrated rate."""
        name = self.program.cell.implementation
        return self.products_s / calibration.shares.get(name, calibration.share)

    def overlapped_s(self, compute: float) -> float:
        """Return the seconds of compute and hideable communication, with all of the latter hidden.

        With compute C, of which the share F is the forward pass, hideable communication O, and its
        part R that follows the forward pass: max(C, O, F C + R).
        """
        forward = FORWARD[self.program.cell.block.options.remat] * compute
        return max(compute, self.hideable_s, forward + self.after_forward_s)

    def step_s(self, calibration: Calibration) -> float:
        """Return the seconds of the whole step.

        With T = `overlapped_s`, e = `exposed`, C compute, O hideable communication, and memory,
        waited-for communication and overhead M, X and H: T + e (C + O - T) + M + X + H.
        """
        compute = self.compute_s(calibration)
        overlapped = self.overlapped_s(compute)
        exposed = calibration.exposed * (compute + self.hideable_s - overlapped)
        return overlapped + exposed + self.memory_s + self.waited_s + calibration.overhead_s


@dataclass(frozen=True)
class Prediction:
    """The predicted time of a step on a chip with a hardware sheet, and its parts."""

    work: Work
    calibration: Calibration
    low_s: float
    """Lower end of the 95 % interval: the calibration's spread, or everything hidden."""
    best_s: float
    high_s: float
    """Upper end: the spread, or nothing hidden; infinite if the spread is unknown."""
    binds: str
    """The longest part: `compute`, `memory`, `overhead`, or a collective's name."""
    limit: str
    """Limit of a collective that binds: `latency`, `inside` or `between` domains; else empty."""

    @property
    def program(self) -> Program:
        """The program whose time is predicted."""
        return self.work.program

    @property
    def hidden_s(self) -> float:
        """Communication that compute hides."""
        compute = self.work.compute_s(self.calibration)
        hideable = compute + self.work.hideable_s - self.work.overlapped_s(compute)
        return (1 - self.calibration.exposed) * hideable

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization."""
        chips, peak = self.program.mesh.size, self.work.machine.peak
        return self.program.model_flops / (self.best_s * chips * peak)

    @property
    def fits(self) -> bool:
        """Whether a device has enough memory for the program."""
        return self.program.memory_bytes <= self.work.machine.memory_bytes

    def row(self) -> dict[str, Any]:
        """Return the prediction's columns in plan.csv and predictions.csv."""
        program, work = self.program, self.work
        return {
            "read": program.read,
            "step_s": self.best_s, "step_low_s": self.low_s, "step_high_s": self.high_s,
            "unit": program.unit, "units_per_s": program.units / self.best_s, "mfu": self.mfu,
            "binds": self.binds, "limit": self.limit,
            "compute_s": work.compute_s(self.calibration), "memory_s": work.memory_s,
            "communication_s": sum(one.seconds for one in work.collectives),
            "hidden_s": self.hidden_s, "overhead_s": self.calibration.overhead_s,
            "memory_bytes": program.memory_bytes, "capacity_bytes": work.machine.memory_bytes,
            "fits": self.fits, "flops": program.flops, "state_bytes": program.state_bytes,
            "collectives": [asdict(one) for one in work.collectives],
        }  # fmt: skip


def work(program: Program, machine: Machine) -> Work:
    """Divide a program's step into its parts, on a machine with the program's mesh.

    Raises HardwareError if the machine has no links for a collective, or has no figures for them.
    """
    collectives = tuple(_collectives(program, machine))
    hideable = [one for one in collectives if one.hideable]
    return Work(
        program,
        machine,
        collectives,
        products_s=program.flops / machine.flops,
        memory_s=2 * program.state_bytes / machine.memory_bandwidth,
        hideable_s=sum(one.seconds for one in hideable),
        after_forward_s=sum(one.seconds for one in hideable if one.after_forward),
        waited_s=sum(one.seconds for one in collectives if not one.hideable),
    )


def predict(work: Work, calibration: Calibration) -> Prediction:
    """Predict the time of a step.

    The point estimate is `Work.step_s`. The interval covers the calibration's spread around it and
    the unknown overlap: it includes the step that hides everything it can, and the one that hides
    nothing and combines no collectives. Its lower end is at least the longest of ideal matrix
    products, memory, and the communication of one mesh axis: different axes may have separate
    links, and products that are split into pieces can hide even communication that is waited for.
    """
    compute, best = work.compute_s(calibration), work.step_s(calibration)
    rest = work.waited_s + calibration.overhead_s
    bound = max(work.products_s, work.memory_s, work.longest_axis_s)
    separate = sum(one.separate_s for one in work.collectives if one.hideable)
    nothing_hidden = compute + work.memory_s + separate + rest
    all_hidden = work.overlapped_s(compute) + work.memory_s + rest
    spread = math.inf if calibration.spread is None else calibration.spread
    low = min(best, max(bound, min(best * math.exp(-spread), all_hidden)))
    high = max(best * math.exp(spread), nothing_hidden)
    binds, limit = _binds(work, compute, calibration.overhead_s)
    return Prediction(work, calibration, low, best, high, binds, limit)


def _collectives(program: Program, machine: Machine) -> Iterator[Collective]:
    every = tuple(name for name, size in program.mesh.axes if size > 1)
    for row in program.communication:
        kind, axes, payload = row["kind"], tuple(row["axes"]), row["payload_bytes"]
        route = machine.route(axes or every)
        hideable = bool(axes) and set(axes).issubset(HIDEABLE.get(kind, ()))
        count = row["count"]
        separate = cost(kind, payload / count, route)
        # Collectives that can be hidden are independent of one another, so can be combined.
        combined = _fewest(row) if hideable and machine.combines else count
        one = separate if combined == count else cost(kind, payload / combined, route)
        yield Collective(
            kind=kind,
            axes=axes,
            members=row["members"],
            count=combined,
            payload_bytes=payload,
            seconds=combined * one.seconds,
            separate_s=count * separate.seconds,
            limit=one.limit,
            hideable=hideable,
            after_forward=kind != "all-gather" or row.get("returned", False),
        )


def _fewest(row: Communication) -> float:
    """Return the number of collectives after combining; those of different loop passes stay apart.

    XLA compares the bytes of the result, which for a reduce-scatter is one device's shard.
    """
    parts = row["members"] if row["kind"] == "reduce-scatter" else 1
    least = math.ceil(row["payload_bytes"] / parts / COMBINED_BYTES)
    return min(row["count"], max(least, row.get("times", 1)))


def _binds(work: Work, compute: float, overhead: float) -> tuple[str, str]:
    """Return the longest part of a step, and the limit of the longest collective if it is one.

    Hideable communication counts as longer than compute if the step would be longer than its
    compute even with all of it hidden.
    """
    hideable = work.overlapped_s(compute)
    parts = {"compute": compute, "memory": work.memory_s, "overhead": overhead}
    longest = max(parts, key=lambda name: parts[name])
    if max(hideable, work.waited_s) <= parts[longest]:
        return longest, ""
    group = [one for one in work.collectives if one.hideable == (hideable >= work.waited_s)]
    collective = max(group, key=lambda one: one.seconds)
    return collective.name, collective.limit
