"""What saving and restoring a cell's state takes: seconds, bytes and bandwidth."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench.analyse.comparisons import Comparison
    from bench.records.rows import Checkpoint


@dataclass(frozen=True)
class Spread:
    """Repetitions in seconds; NaN where there are none."""

    median: float = math.nan
    least: float = math.nan
    most: float = math.nan

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """Summarize repetitions."""
        return cls(median(seconds), min(seconds), max(seconds)) if seconds else cls()


@dataclass(frozen=True)
class Operation:
    """Saving a cell's state in one mode, or restoring it onto one mesh."""

    cell: str
    implementation: str
    reason: str
    """Why there are no figures; empty if there are."""
    file_system: str
    state_bytes: float
    stored_bytes: float
    what: str = ""
    """`save, async`; `restore on data=2`; empty where there are no figures."""
    repetitions: int = 0
    total: Spread = Spread()
    """Until the checkpoint is complete, or the state is there."""
    blocking: Spread = Spread()
    """Of a save, until training may go on."""
    step_before: Spread = Spread()
    """Of an asynchronous save, a step before it."""
    step_during: Spread = Spread()
    """Of an asynchronous save, a step while it went on."""
    device_bytes: float = math.nan
    """Of a restored state, the most that a device holds."""
    seen_bytes: float = math.nan
    """The most that a device was seen to hold of one array meanwhile; its largest shard at most."""

    @property
    def bandwidth(self) -> float:
        """Bytes of the state a second, until it is complete."""
        return self.state_bytes / self.total.median if self.total.median else math.nan


def find(blocks: Sequence[Comparison], stored: Mapping[str, Checkpoint]) -> list[Operation]:
    """List every save and restore of the cells that have a time, or why there is none."""
    return [
        operation
        for block in blocks
        for cell in block.ranked
        if cell["cell"] in stored
        for operation in _operations(cell, stored[cell["cell"]])
    ]


def _operations(cell: Mapping[Any, Any], checkpoint: Checkpoint) -> Iterator[Operation]:
    common = Operation(
        cell=cell["cell"],
        implementation=cell["implementation"],
        reason=checkpoint["reason"],
        file_system=checkpoint["file_system"],
        state_bytes=float(checkpoint["state_bytes"]),
        stored_bytes=float(checkpoint["stored_bytes"]),
    )
    if checkpoint["reason"]:
        yield common
    for mode, save in checkpoint["saves"].items():
        yield replace(
            common,
            what=f"save, {mode}",
            repetitions=len(save["total_s"]),
            total=Spread.of(save["total_s"]),
            blocking=Spread.of(save["blocking_s"]),
            step_before=Spread.of([ns / 1e9 for ns in save["steps_before_ns"]]),
            step_during=Spread.of([ns / 1e9 for ns in save["steps_during_ns"]]),
        )
    for restore in checkpoint["restores"]:
        yield replace(
            common,
            what=f"restore on {restore['mesh']}",
            repetitions=len(restore["seconds"]),
            total=Spread.of(restore["seconds"]),
            device_bytes=restore["device_bytes"],
            seen_bytes=restore["seen_bytes"],
        )


def frame(operations: Sequence[Operation]) -> pd.DataFrame:
    """Return a row each: seconds and bytes."""
    return pd.DataFrame([_row(one) for one in operations])


def _row(one: Operation) -> dict[str, Any]:
    seconds = {}
    for name in ("total", "blocking", "step_during"):
        spread: Spread = getattr(one, name)
        seconds[f"{name}_s"] = spread.median
        seconds[f"{name}_least_s"], seconds[f"{name}_most_s"] = spread.least, spread.most
    return {
        "cell": one.cell,
        "implementation": one.implementation,
        "what": one.what,
        "reason": one.reason,
        "repetitions": one.repetitions,
        **seconds,
        "step_before_s": one.step_before.median,
        "state_bytes": one.state_bytes,
        "stored_bytes": one.stored_bytes,
        "bytes_a_second": one.bandwidth,
        "device_bytes": one.device_bytes,
        "seen_bytes": one.seen_bytes,
        "file_system": one.file_system,
    }
