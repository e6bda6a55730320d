"""Cells and blocks: the units that a run measures, and their names.

A *cell* is one implementation in one *block*; a block is one workload at one size, one mesh,
one global batch and one set of options. Implementations are compared within a block only.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypedDict

from bench.records.mesh import MeshShape

PRECISIONS = ("fp32", "bf16", "fp16")
"""Precisions that can be selected. The gate also builds every problem in `fp64`."""

FULL = "full"
REMAT = (FULL, "dots")
"""Policies of rematerialization; bench.contract.rematerialization describes each. Cell names write
the first one as `remat`, because it was once the only one."""


@dataclass(frozen=True)
class StepOptions:
    """Options that change how a step is computed, but not which update it makes."""

    precision: str = "fp32"
    """Precision of the forward and backward pass; parameters and update are float32. An
    implementation that reduces gradients itself does so in float32; the compiler may reduce them in
    the precision of the pass. The report shows the dtypes. The loss is not scaled, which fp16 may
    need: see bench.contract."""
    microbatches: int = 1
    """Number of microbatches whose gradients one update accumulates."""
    remat: str = ""
    """Policy, one of REMAT, by which the backward pass recomputes activations; empty for none."""
    scan_layers: bool = False
    """Whether equal layers are stacked and run in one loop, which compiles a single layer."""
    clip_norm: float | None = None
    """Maximum global norm of the gradients, in addition to the workload's own optimizer."""
    variant: str = ""
    """Name of a variant (see bench.records.variants); empty for the usual environment."""
    processes: int = 1
    """Number of processes that share the mesh, each with the same number of devices."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the output of `str`: `bf16,microbatches=4,remat,clip=1,variant=NAME,processes=2`.

        Raises ValueError if a part is unknown.
        """
        precision, *others = text.split(",")
        values: dict[str, Any] = {}
        for part in others:
            name, _, value = part.partition("=")
            if name in ("microbatches", "processes") and value.isascii() and value.isdigit():
                values[name] = int(value)
            elif part == "remat":
                values["remat"] = FULL
            elif name == "remat" and value in REMAT and value != FULL:
                values["remat"] = value
            elif part == "scan_layers":
                values["scan_layers"] = True
            elif name == "clip" and re.fullmatch(r"[\d.]+(e[-+]?\d+)?", value):
                values["clip_norm"] = float(value)
            elif name == "variant" and value:
                values["variant"] = value
            else:
                raise ValueError(
                    f"options {text!r}: {part!r} is unknown; write PRECISION[,microbatches=N]"
                    "[,remat|remat=dots][,scan_layers][,clip=NORM][,variant=NAME][,processes=N]"
                )
        return cls(precision, **values)

    def __str__(self) -> str:
        parts = {
            f"microbatches={self.microbatches}": self.microbatches > 1,
            "remat" if self.remat == FULL else f"remat={self.remat}": self.remat,
            "scan_layers": self.scan_layers,
            f"clip={self.clip_norm or 0:.15g}": self.clip_norm is not None,
            f"variant={self.variant}": self.variant,
            f"processes={self.processes}": self.processes > 1,
        }
        return ",".join([self.precision, *(part for part, given in parts.items() if given)])


class BlockText(TypedDict):
    """A block as JSON, with its mesh and options as text."""

    workload: str
    size: str
    mesh: str
    batch: int
    options: str


@dataclass(frozen=True)
class Block:
    """One comparison: its cells differ only by implementation."""

    workload: str
    """File name in bench/contract/workloads/, without `.py`."""
    size: str
    """A key of the workload's SIZES."""
    mesh: MeshShape
    batch: int
    """Global batch: samples per step over all devices."""
    options: StepOptions

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Read the block of a row, job or request; other fields are ignored."""
        mesh, options = MeshShape.parse(row["mesh"]), StepOptions.parse(row["options"])
        return cls(row["workload"], row["size"], mesh, int(row["batch"]), options)

    @property
    def fields(self) -> BlockText:
        """The block as JSON; the inverse of `of`."""
        return {
            "workload": self.workload,
            "size": self.size,
            "mesh": str(self.mesh),
            "batch": self.batch,
            "options": str(self.options),
        }

    @cached_property
    def name(self) -> str:
        """The block's name, with all options: `gpt2-nano/data=2/b16/fp32,remat`."""
        return f"{self.workload}-{self.size}/{self.mesh}/b{self.batch}/{self.options}"

    @cached_property
    def subject(self) -> str:
        """Workload and options: `gpt2-nano, fp32`. Blocks of a subject differ by mesh and batch."""
        return subject_of(f"{self.workload}-{self.size}", str(self.options))

    @property
    def place(self) -> str:
        """Mesh and batch: `data=2, batch 16`."""
        return f"{self.mesh}, batch {self.batch}"


def subject_of(workload: str, options: str) -> str:
    """Return the subject of blocks, given `gpt2-nano` and the options as in a block's name."""
    return f"{workload}, {options.replace(',', ', ')}"


@dataclass(frozen=True)
class Cell:
    """One implementation in one block."""

    block: Block
    implementation: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Read the cell of a row or request."""
        return cls(Block.of(row), row["implementation"])

    @property
    def name(self) -> str:
        """The cell's name: `gpt2-nano/data=2/b16/fp32/jit_spmd`."""
        return f"{self.block.name}/{self.implementation}"


def base_of(name: str) -> str:
    """Name the arm or cell of an implementation's base revision in a gate."""
    return f"{name}@base"
