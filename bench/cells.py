"""What is measured, and what it is called. Imports no jax.

A *cell* is one implementation in one *block*; a block is one workload at one size, one mesh,
one global batch and one set of options. Implementations are compared within a block only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.mesh import MeshShape

PRECISIONS = ("fp32", "bf16")
"""What the matrix offers. The gate also builds every problem in `fp64`."""

STATUSES = ("ok", "wrong", "unsupported", "oom", "timeout", "crashed")
"""How a cell ends. Only an `ok` cell has a time; every other one has a reason."""


@dataclass(frozen=True)
class Block:
    """One comparison: everything in it differs by implementation alone."""

    workload: str
    """File name in bench/workloads/, without `.py`."""
    size: str
    """A key of the workload's SIZES."""
    mesh: MeshShape
    batch: int
    """Global batch: samples a step over all devices."""
    precision: str
    """Precision of the forward and backward pass; parameters and update are float32."""

    @property
    def name(self) -> str:
        """`gpt2-nano/data=2/b16/fp32`."""
        return f"{self.workload}-{self.size}/{self.mesh}/b{self.batch}/{self.precision}"


@dataclass(frozen=True)
class Cell:
    """One implementation in one block."""

    block: Block
    implementation: str

    @property
    def name(self) -> str:
        """`gpt2-nano/data=2/b16/fp32/jit_spmd`."""
        return f"{self.block.name}/{self.implementation}"


def decisive(statuses: Sequence[str]) -> int:
    """Which launch's row speaks for a cell, given the statuses of all its launches.

    One proof of wrongness outweighs any number of times; otherwise the first that is ok counts, and
    of failures the first.
    """
    for status in ("wrong", "ok"):
        if status in statuses:
            return list(statuses).index(status)
    return 0
