"""Traced steps: their breakdown, and the causes of one being slower than another.

Operations of two programs are matched by what they compute, never by name: by category and phase,
source line, and the sizes of their results in any layout.
"""

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from bench.analyse.comparisons import Comparison
from bench.records.trace_rows import PARTS, OpTime, TraceRow

_COMPUTING = ("matmul", "elementwise", "layout", "unknown")
"""Categories of the operations that a step's `compute` consists of."""


class Key(NamedTuple):
    """The properties by which operations of two programs are matched."""

    category: str
    """One of bench.records.trace_rows.Category, or `dispatch`, `idle`, `wait` (in collectives)."""
    phase: str = ""
    source: str = ""
    sizes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Side:
    """One program's part of a cause."""

    seconds: float = 0.0
    """Per traced step."""
    ops: tuple[str, ...] = ()
    transposes: bool = False
    """Whether any of them changes an array's layout."""


@dataclass(frozen=True)
class Cause:
    """One activity on which two steps spend different times."""

    key: Key
    a: Side
    b: Side

    @property
    def difference(self) -> float:
        """Seconds by which a step of A exceeds one of B in this activity."""
        return self.a.seconds - self.b.seconds


@dataclass(frozen=True)
class Attribution:
    """Attribution of the time difference between a step of cell A and one of cell B."""

    a: str
    b: str
    timed: float
    """Ratio A / B of their latencies, which include a wait after every step, as traced steps do."""
    traced_a: float
    """Seconds per step, as traced."""
    traced_b: float
    causes: list[Cause]
    """All causes, largest difference first; they add up to the difference."""
    untraced: float
    """Ratio A / B of the steps that were timed just before the traced ones, without a profiler."""

    @property
    def names(self) -> tuple[str, str]:
        """The implementations of A and B, or their cells if these are of different blocks."""
        (block, _, a), (other, _, b) = (cell.rpartition("/") for cell in (self.a, self.b))
        return (a, b) if block == other else (self.a, self.b)

    @property
    def whole(self) -> float:
        """The difference to explain: that of untraced steps, scaled to seconds of traced ones."""
        return (self.untraced - 1) * self.traced_b

    @property
    def explained(self) -> float:
        """Sum of all causes but idle time over the difference of untraced steps; 0 without one."""
        named = (cause.difference for cause in self.causes if cause.key.category != "idle")
        return sum(named) / self.whole if self.whole else 0.0


def attribute(a: TraceRow, b: TraceRow, timed: float) -> Attribution:
    """Divide the difference of two traced steps among all activities that they spend time on.

    `timed` is the ratio of their cells' latencies.
    """
    spent = sides(a), sides(b)
    causes = [
        Cause(key, *(side.get(key, Side()) for side in spent)) for key in {**spent[0], **spent[1]}
    ]
    causes.sort(key=lambda cause: -abs(cause.difference))
    untraced = statistics.median(a["untraced_ns"]) / statistics.median(b["untraced_ns"])
    traced = parts(a)["total"], parts(b)["total"]
    return Attribution(a["cell"], b["cell"], timed, *traced, causes, untraced)


def sides(row: TraceRow) -> dict[Key, Side]:
    """Return what a step spends time on, as means over devices and counted steps."""
    groups: defaultdict[Key, list[tuple[OpTime, float]]] = defaultdict(list)
    for op in row["ops"]:
        if op["category"] == "collective":
            kind = re.sub(r"-(start|done)$", "", op["opcode"])
            groups[Key("collective", sizes=(kind,))].append((op, op["move_ns"]))
            groups[Key("wait")].append((op, op["wait_ns"]))
        else:
            groups[_key(op)].append((op, op["compute_ns"]))
    found = {
        key: Side(
            seconds=sum(nanoseconds for _, nanoseconds in ops) / 1e9,
            ops=tuple(op["op"] for op, _ in ops),
            transposes=any(op["transposes"] for op, _ in ops),
        )
        for key, ops in groups.items()
    }
    control = sum(side.seconds for key, side in found.items() if key.category == "control")
    mean = parts(row)
    found[Key("dispatch")] = Side(mean["dispatch"])
    found[Key("idle")] = Side(mean["idle"] - control)
    return found


def _key(op: OpTime) -> Key:
    if op["category"] == "control":
        return Key("control", sizes=(op["opcode"],))
    return Key(op["category"], op["phase"], op["source"], tuple(sorted(map(_size, op["shapes"]))))


def _size(shape: str) -> str:
    """Return `f32[1,1024,256]` as `f32[256,1024]`: equal values may be laid out in any order."""
    dtype, _, dimensions = shape.rstrip("]").partition("[")
    ordered = sorted((size for size in dimensions.split(",") if size not in {"", "1"}), key=int)
    return f"{dtype}[{','.join(ordered)}]"


def parts(row: TraceRow) -> dict[str, float]:
    """Return seconds per step, as means over devices and counted steps.

    The keys are those of StepParts, without `_ns`, and the categories of computing operations.
    """
    counted: list[Any] = [step for step in row["steps"] if step["step"] in row["counted"]]
    whole = {part: statistics.fmean(step[f"{part}_ns"] for step in counted) for part in PARTS}
    computing = {
        category: sum(op["compute_ns"] for op in row["ops"] if op["category"] == category)
        for category in _COMPUTING
    }
    return {part: nanoseconds / 1e9 for part, nanoseconds in (whole | computing).items()}


def pair_of(
    cell: Mapping[Any, Any], other: Mapping[Any, Any], traces: Mapping[str, TraceRow]
) -> Attribution | None:
    """Attribute a ranked cell's difference from another; None if untraced, or without one."""
    if other is cell or not {cell["cell"], other["cell"]} <= traces.keys():
        return None
    timed = cell["latency_s"] / other["latency_s"]
    return None if timed == 1 else attribute(traces[cell["cell"]], traces[other["cell"]], timed)


def from_baseline(
    block: Comparison, traces: Mapping[str, TraceRow]
) -> Iterator[tuple[Mapping[Any, Any], Attribution]]:
    """Yield ranked cells with their difference from the baseline, where `pair_of` finds one."""
    ranked = {cell["implementation"]: cell for cell in block.ranked}
    if baseline := ranked.get(block.baseline):
        for cell in block.ranked:
            if found := pair_of(cell, baseline, traces):
                yield cell, found
