"""Cells and blocks: what a run measures, and how it is named.

A *cell* is one implementation in one *block*; a block is one workload at one size, one mesh,
one global batch and one set of options. Implementations are compared within a block only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from bench.records.mesh import MeshShape

PRECISIONS = ("fp32", "bf16", "fp16")
"""What the matrix offers. The gate also builds every problem in `fp64`."""


@dataclass(frozen=True)
class StepOptions:
    """What a step may be asked to do in another way, without becoming another step."""

    precision: str = "fp32"
    """Of the forward and backward pass; parameters and update are float32. Gradients are reduced in
    float32 where an implementation does it; the compiler may do it in the pass's own precision, and
    the report shows the dtypes. The loss is not scaled, which fp16 may need: see bench.contract."""
    microbatches: int = 1
    """Parts that the batch is computed in, one after the other, for one update."""
    remat: bool = False
    """Whether the backward pass computes activations again instead of keeping them."""
    clip_norm: float | None = None
    """Largest global norm of the gradients, beside what the workload's optimizer does."""
    variant: str = ""
    """Name of the environment of its worker; empty if usual: see bench.records.variants."""
    processes: int = 1
    """Processes that the mesh is spread over, with equally many of its devices each."""

    @classmethod
    def parse(cls, text: str) -> StepOptions:
        """Read what `str` writes: `bf16,microbatches=4,remat,clip=1,variant=NAME,processes=2`.

        Raises:
          ValueError: a part is none of these.
        """
        precision, *others = text.split(",")
        found: dict[str, Any] = {}
        for part in others:
            name, _, value = part.partition("=")
            if name in ("microbatches", "processes") and value.isascii() and value.isdigit():
                found[name] = int(value)
            elif part == "remat":
                found["remat"] = True
            elif name == "clip" and re.fullmatch(r"[\d.]+(e[-+]?\d+)?", value):
                found["clip_norm"] = float(value)
            elif name == "variant" and value:
                found["variant"] = value
            else:
                raise ValueError(
                    f"options {text!r}: {part!r} is unknown; write PRECISION[,microbatches=N]"
                    "[,remat][,clip=NORM][,variant=NAME][,processes=N]"
                )
        return cls(precision, **found)

    def __str__(self) -> str:
        parts = [self.precision]
        if self.microbatches > 1:
            parts.append(f"microbatches={self.microbatches}")
        if self.remat:
            parts.append("remat")
        if self.clip_norm is not None:
            parts.append(f"clip={self.clip_norm:.15g}")
        if self.variant:
            parts.append(f"variant={self.variant}")
        if self.processes > 1:
            parts.append(f"processes={self.processes}")
        return ",".join(parts)


class BlockText(TypedDict):
    """A block as JSON, with its mesh and options as they are written."""

    workload: str
    size: str
    mesh: str
    batch: int
    options: str


@dataclass(frozen=True)
class Block:
    """One comparison: everything in it differs by implementation alone."""

    workload: str
    """File name in bench/contract/workloads/, without `.py`."""
    size: str
    """A key of the workload's SIZES."""
    mesh: MeshShape
    batch: int
    """Global batch: samples a step over all devices."""
    options: StepOptions

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Block:
        """Read the block that a row, a job or a request is about: whatever else it has."""
        return cls(
            row["workload"],
            row["size"],
            MeshShape.parse(row["mesh"]),
            int(row["batch"]),
            StepOptions.parse(row["options"]),
        )

    @property
    def fields(self) -> BlockText:
        """The block as JSON: the inverse of `of`."""
        return {
            "workload": self.workload,
            "size": self.size,
            "mesh": str(self.mesh),
            "batch": self.batch,
            "options": str(self.options),
        }

    @property
    def name(self) -> str:
        """`gpt2-nano/data=2/b16/fp32`, with what else is asked of the step: `fp32,remat`."""
        return f"{self.workload}-{self.size}/{self.mesh}/b{self.batch}/{self.options}"

    @property
    def subject(self) -> str:
        """`gpt2-nano, fp32`: blocks of one subject differ by mesh and batch alone."""
        return f"{self.workload}-{self.size}, {self.options}"

    @property
    def place(self) -> str:
        """`data=2, batch 16`: what tells blocks of one subject apart."""
        return f"{self.mesh}, batch {self.batch}"


@dataclass(frozen=True)
class Cell:
    """One implementation in one block."""

    block: Block
    implementation: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Cell:
        """Read the cell that a row or a request is about."""
        return cls(Block.of(row), row["implementation"])

    @property
    def name(self) -> str:
        """`gpt2-nano/data=2/b16/fp32/jit_spmd`."""
        return f"{self.block.name}/{self.implementation}"


def base_of(name: str) -> str:
    """Name the arm, or the cell, of an implementation's base revision in a gate."""
    return f"{name}@base"
