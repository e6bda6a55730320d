"""How long a step takes: what one device does in it, over what the device can do. Imports no jax.

A step is taken apart into

- *compute*: its FLOPs over the FLOP/s that it reaches, which are a calibrated share of the best
  matrix products';
- *memory*: the update, which reads and writes parameters and optimizer state once, over the
  bandwidth of memory. It is the least that a step moves. XLA's count of bytes accessed is of the
  program that was compiled for CPU, where other operations are fused, small arrays stay in caches,
  and a loop's body counts once: it says little of other hardware, and is told, but not used. What
  activations cost is in the share above;
- *communication that can be hidden*: along axes that divide the batch it is of gradients and
  parameters, for which nothing that follows has to wait at once;
- *communication that is waited for*: all else, as of activations along `model`, of which the next
  product is made, or from stage to stage along `pipe`.

A pipeline's bubble is in compute: idle ticks of its program compute as well, on what nobody uses,
and are in its FLOPs.

Sources: the scaling book, https://jax-ml.github.io/scaling-book/, part 1, "All About Rooflines" (a
step takes at least the longest of these times and at most their sum), and part 5, "How to
Parallelize a Transformer for Training" (which collectives are on the critical path).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from bench.project.collective_costs import Limit, cost
from bench.project.compiled_programs import Program
from bench.project.machines import Machine
from bench.records.rows import Communication

BATCH_AXES = frozenset({"data", "fsdp"})
"""Axes along which the batch is divided."""

COMBINED_BYTES = 30 * 2**20
"""Up to which XLA makes one collective of several of a kind that do not wait for one another: the
default of xla_gpu_all_reduce_combine_threshold_bytes, and of those of all-gathers and
reduce-scatters (https://github.com/openxla/xla/blob/main/xla/debug_options_flags.cc). Assumed of
TPUs, whose thresholds are not published."""

FORWARD = {False: 1 / 3, True: 1 / 4}
"""Share of a step's products before the first gradient, without and with rematerialization: forward
2 FLOPs a parameter and token, backward 4 (the scaling book, part 4), recomputed 2 more."""


@dataclass(frozen=True)
class Calibration:
    """How steps use what a machine has at best; bench.project.calibration fits it."""

    share: float
    """FLOP/s of a step's products over those of the best products."""
    exposed: float
    """Share of the time which communication could be hidden, in which it is not: 0 to 1."""
    overhead_s: float
    """What every step takes beside."""
    spread: float | None
    """Half the width of the 95 % interval of log step time; None where it cannot be told."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """As `share`, of implementations that were measured."""

    def share_of(self, implementation: str) -> float:
        """An implementation's own share, or that of all where it was not measured."""
        return self.shares.get(implementation, self.share)


IDEAL = Calibration(share=1.0, exposed=0.0, overhead_s=0.0, spread=0.0)
"""Everything at its best."""


@dataclass(frozen=True)
class Collective:
    """All of a step's collectives of one kind along the same axes."""

    kind: str
    axes: tuple[str, ...]
    """Empty where its groups are of another form; it is then taken to go over the whole mesh."""
    members: int
    count: int
    """As the machine's compiler combines them."""
    payload_bytes: int
    """Of all of them."""
    seconds: float
    """Of all of them, one after the other."""
    separate_s: float
    """The same as the program has them, not combined."""
    algorithm: str
    limit: Limit
    hideable: bool
    after_forward: bool
    """Whether it cannot begin before the backward pass: it is of gradients, or of what they have
    updated."""

    @property
    def name(self) -> str:
        """`all-reduce over data`."""
        return f"{self.kind} over {', '.join(self.axes) or 'other groups'}"


@dataclass(frozen=True)
class Prediction:
    """How long a step takes, and why. Seconds are of a step."""

    program: Program
    machine: str
    low_s: float
    """End of the 95 % interval: the calibration's spread, and at least all that could be hidden."""
    best_s: float
    high_s: float
    """As `low_s`, and nothing hidden; infinite where the calibration knows no spread."""
    compute_s: float
    memory_s: float
    overhead_s: float
    collectives: tuple[Collective, ...]
    hidden_s: float
    """Of communication, behind compute."""
    binds: str
    """What takes longest: `compute`, `memory`, `overhead`, or a collective's name."""
    limit: str
    """Of a collective that binds: `latency`, `inside` or `between` domains; else empty."""
    mfu: float | None
    """None where no peak is published."""
    memory_bytes: float
    capacity_bytes: float | None

    @property
    def fits(self) -> bool | None:
        """Whether the program's memory is that of a device; None where it is unknown."""
        if self.capacity_bytes is None:
            return None
        return self.memory_bytes <= self.capacity_bytes

    @property
    def communication_s(self) -> float:
        """All collectives, one after the other."""
        return sum(one.seconds for one in self.collectives)

    @property
    def units_per_s(self) -> float:
        """Samples or tokens."""
        return self.program.units / self.best_s


@dataclass(frozen=True)
class Work:
    """What a step takes of a machine at its best, part by part. Seconds are of a step."""

    program: Program
    machine: Machine
    products_s: float
    """All FLOPs at the rate of the best matrix products."""
    memory_s: float
    collectives: tuple[Collective, ...]
    hideable_s: float
    """Of collectives, those that can be hidden behind compute."""
    separate_s: float
    """The same, not combined."""
    after_forward_s: float
    """Of these, those that cannot begin before the backward pass."""
    waited_s: float
    """Of the other collectives."""

    @property
    def longest_axis_s(self) -> float:
        """Of all collectives of one mesh axis: the one that communicates longest."""
        axes = {axis for one in self.collectives for axis in one.axes} or {""}
        return max(
            sum(one.seconds for one in self.collectives if axis in one.axes or not one.axes)
            for axis in axes
        )

    def compute_s(self, calibration: Calibration) -> float:
        """The FLOPs at the calibrated rate."""
        return self.products_s / calibration.share_of(self.program.implementation)

    def overlapped_s(self, compute: float) -> float:
        """Compute, and communication that can be hidden, with all of it hidden.

        With compute C, of which F is the forward pass, hideable communication O, and R of it that
        comes after the forward pass: max(C, O, F C + R).
        """
        forward = FORWARD[self.program.options.remat] * compute
        return max(compute, self.hideable_s, forward + self.after_forward_s)

    def step_s(self, calibration: Calibration) -> float:
        """The whole step.

        With T the time of `overlapped_s`, `exposed` e, and memory, communication that is waited for
        and overhead as M, X and H: T + e (C + O - T) + M + X + H.
        """
        compute = self.compute_s(calibration)
        overlapped = self.overlapped_s(compute)
        exposed = calibration.exposed * (compute + self.hideable_s - overlapped)
        return overlapped + exposed + self.memory_s + self.waited_s + calibration.overhead_s


def work(program: Program, machine: Machine) -> Work:
    """What a program's step takes of a machine that has its mesh.

    Raises:
      PlacementError: the machine has no links for a collective.
      MachineError: nothing is known of them.
    """
    collectives = tuple(_collectives(program, machine))
    hideable = [one for one in collectives if one.hideable]
    return Work(
        program=program,
        machine=machine,
        products_s=program.flops / machine.flops,
        memory_s=2 * program.state_bytes / machine.memory_bandwidth,
        collectives=collectives,
        hideable_s=sum(one.seconds for one in hideable),
        separate_s=sum(one.separate_s for one in hideable),
        after_forward_s=sum(one.seconds for one in hideable if one.after_forward),
        waited_s=sum(one.seconds for one in collectives if not one.hideable),
    )


def predict(found: Work, calibration: Calibration) -> Prediction:
    """How long a step takes.

    The best guess is `Work.step_s`. The interval has the calibration's spread around it, and what
    is not known of overlap besides: it begins no later than the step of which all is hidden that
    can be, and ends no sooner than the one of which nothing is, with no collectives combined. It
    begins no sooner than the longest of products at their best, memory, and the communication of
    one mesh axis: axes may have links of their own, and even what is waited for can be hidden by
    products that are cut into pieces.
    """
    program, machine = found.program, found.machine
    compute, best = found.compute_s(calibration), found.step_s(calibration)
    overlapped = found.overlapped_s(compute)
    overhead = calibration.overhead_s
    rest = found.waited_s + overhead
    bound = max(found.products_s, found.memory_s, found.longest_axis_s)
    nothing_hidden = compute + found.memory_s + found.separate_s + rest
    spread = math.inf if calibration.spread is None else calibration.spread
    all_hidden = overlapped + found.memory_s + rest
    binds, limit = _binds(found, compute, overhead)
    return Prediction(
        program=program,
        machine=machine.name,
        low_s=min(best, max(bound, min(best * math.exp(-spread), all_hidden))),
        best_s=best,
        high_s=max(best * math.exp(spread), nothing_hidden),
        compute_s=compute,
        memory_s=found.memory_s,
        overhead_s=overhead,
        collectives=found.collectives,
        hidden_s=(1 - calibration.exposed) * (compute + found.hideable_s - overlapped),
        binds=binds,
        limit=limit,
        mfu=program.model_flops / (best * program.mesh.size * machine.peak)
        if machine.peak
        else None,
        memory_bytes=program.memory_bytes,
        capacity_bytes=machine.memory_bytes,
    )


def _collectives(program: Program, machine: Machine) -> Iterator[Collective]:
    every = [name for name, size in program.mesh.axes if size > 1]
    for row in program.communication:
        kind, axes, payload = row["kind"], tuple(row["axes"]), row["payload_bytes"]
        route = machine.route(axes or every)
        hideable = (
            bool(axes)
            and BATCH_AXES.issuperset(axes)
            and kind in ("all-reduce", "reduce-scatter", "all-gather")
        )
        count = row["count"]
        separate = cost(kind, payload / count, route)
        # What can be hidden is not waited for by others of its kind: it can be combined as well.
        combine = hideable and machine.combines
        combined = _fewest(row) if combine else count
        one = separate if combined == count else cost(kind, payload / combined, route)
        yield Collective(
            kind=kind,
            axes=axes,
            members=row["members"],
            count=combined,
            payload_bytes=payload,
            seconds=combined * one.seconds,
            separate_s=count * separate.seconds,
            algorithm=one.algorithm,
            limit=one.limit,
            hideable=hideable,
            after_forward=kind != "all-gather" or row.get("returned", False),
        )


def _fewest(row: Communication) -> int:
    """How many collectives XLA leaves of these; those of different passes of a loop stay apart.

    It counts the bytes of what comes out, which of a reduce-scatter is a device's part.
    """
    parts = row["members"] if row["kind"] == "reduce-scatter" else 1
    least = math.ceil(row["payload_bytes"] / parts / COMBINED_BYTES)
    return min(row["count"], max(least, row.get("times", 1)))


def _binds(found: Work, compute: float, overhead: float) -> tuple[str, str]:
    """What takes longest: a part, or the longest collective of those that are hidden or waited for.

    Communication that can be hidden takes longer than compute where hiding all of it would not make
    the step as short as compute.
    """
    overlapped = found.overlapped_s(compute)
    parts = {
        "compute": compute,
        "memory": found.memory_s,
        "overhead": overhead,
        "hideable": overlapped if overlapped > compute else 0.0,
        "waited for": found.waited_s,
    }
    longest = max(parts, key=lambda name: parts[name])
    if longest not in ("hideable", "waited for"):
        return longest, ""
    group = [one for one in found.collectives if one.hideable == (longest == "hideable")]
    collective = max(group, key=lambda one: one.seconds)
    return collective.name, collective.limit
