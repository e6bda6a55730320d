"""What saving and restoring a cell's state takes: seconds, bytes and bandwidth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any

import pandas as pd

if TYPE_CHECKING:
    from bench.analyse.cell_table import Comparison
    from bench.records.rows import Checkpoint

NAN = float("nan")


@dataclass(frozen=True)
class Spread:
    """Of repetitions, in seconds."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Spread:
        """NaN where there are none."""
        if not seconds:
            return cls(NAN, NAN, NAN)
        return cls(median(seconds), min(seconds), max(seconds))


@dataclass(frozen=True)
class Operation:
    """Saving a cell's state in one mode, or restoring it onto one mesh."""

    cell: str
    implementation: str
    what: str
    """`save, async`; `restore on data=2`; empty where there are no figures."""
    reason: str
    """Why there are none; empty if there are."""
    repetitions: int
    total: Spread
    """Until the checkpoint is complete, or the state is there."""
    blocking: Spread
    """Of a save, until training may go on."""
    state_bytes: float
    stored_bytes: float
    step_before: Spread
    step_during: Spread
    """Of a step while an asynchronous save went on."""
    device_bytes: float
    """Of a restored state, the most that a device holds."""
    seen_bytes: float
    """The most that a device was seen to hold of one array meanwhile; its largest shard at most."""
    file_system: str

    @property
    def bandwidth(self) -> float:
        """Bytes of the state a second, until it is complete."""
        return self.state_bytes / self.total.median


def find(blocks: Sequence[Comparison], stored: Mapping[str, Checkpoint]) -> list[Operation]:
    """Every save and restore of the cells that have a time, or why there is none."""
    return [
        operation
        for block in blocks
        for cell in block.ranked
        if cell["cell"] in stored
        for operation in _of_cell(cell, stored[cell["cell"]])
    ]


def _of_cell(cell: Mapping[Any, Any], one: Checkpoint) -> Iterator[Operation]:
    nothing = Spread.of(())
    common: dict[str, Any] = {
        "cell": cell["cell"],
        "implementation": cell["implementation"],
        "reason": one["reason"],
        "state_bytes": float(one["state_bytes"]),
        "stored_bytes": float(one["stored_bytes"]),
        "file_system": one["file_system"],
    }
    unmeasured: dict[str, Any] = {
        "blocking": nothing,
        "step_before": nothing,
        "step_during": nothing,
        "device_bytes": NAN,
        "seen_bytes": NAN,
    }
    if one["reason"]:
        yield Operation(**common, **unmeasured, what="", repetitions=0, total=nothing)
    for mode, save in one["saves"].items():
        saved = {
            "blocking": Spread.of(save["blocking_s"]),
            "step_before": Spread.of([ns / 1e9 for ns in save["steps_before_ns"]]),
            "step_during": Spread.of([ns / 1e9 for ns in save["steps_during_ns"]]),
        }
        yield Operation(
            **common, **{**unmeasured, **saved}, what=f"save, {mode}",
            repetitions=len(save["total_s"]), total=Spread.of(save["total_s"]),
        )  # fmt: skip
    for restore in one["restores"]:
        held = {"device_bytes": restore["device_bytes"], "seen_bytes": restore["seen_bytes"]}
        yield Operation(
            **common, **{**unmeasured, **held}, what=f"restore on {restore['mesh']}",
            repetitions=len(restore["seconds"]), total=Spread.of(restore["seconds"]),
        )  # fmt: skip


def frame(found: Sequence[Operation]) -> pd.DataFrame:
    """A row each, for checkpoints.csv: seconds and bytes."""
    return pd.DataFrame([_row(one) for one in found])


def _row(one: Operation) -> dict[str, Any]:
    spreads = {"total": one.total, "blocking": one.blocking, "step_during": one.step_during}
    return {
        "cell": one.cell,
        "implementation": one.implementation,
        "what": one.what,
        "reason": one.reason,
        "repetitions": one.repetitions,
        **{
            f"{name}{end}_s": value
            for name, spread in spreads.items()
            for end, value in (
                ("", spread.median), ("_least", spread.least), ("_most", spread.most),
            )
        },
        "step_before_s": one.step_before.median,
        "state_bytes": one.state_bytes,
        "stored_bytes": one.stored_bytes,
        "bytes_a_second": one.bandwidth if one.total.median else NAN,
        "device_bytes": one.device_bytes,
        "seen_bytes": one.seen_bytes,
        "file_system": one.file_system,
    }  # fmt: skip
