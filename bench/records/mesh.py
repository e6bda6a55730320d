"""The written form of a device mesh, `data=4,model=2`."""

import math
from dataclasses import dataclass
from typing import Self

from bench.records.printable import closest

BATCH_AXES = ("data", "fsdp", "expert")
"""Axes that split the global batch."""

AXES = ("pipe", *BATCH_AXES, "context", "model")
"""All axes, from the one that communicates least to the one that needs the fastest links."""


@dataclass(frozen=True)
class MeshShape:
    """Named axes and their sizes, outermost first: `(("data", 4), ("model", 2))`."""

    axes: tuple[tuple[str, int], ...]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `data=4,model=2`; ValueError if an axis is unknown or repeated, or a size wrong."""
        axes: list[tuple[str, int]] = []
        for part in text.split(","):
            name, _, size = part.strip().partition("=")
            if name not in AXES:
                raise ValueError(
                    f"mesh {text!r}: unknown axis {name!r}; {closest(name, AXES)}; "
                    "write NAME=SIZE[,NAME=SIZE...]"
                )
            if name in dict(axes):
                raise ValueError(f"mesh {text!r}: axis {name!r} is named twice")
            if not size.isascii() or not size.isdigit() or int(size) < 1:
                raise ValueError(
                    f"mesh {text!r}: axis {name!r} needs a positive integer size, not {size!r}"
                )
            axes.append((name, int(size)))
        return cls(tuple(axes))

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)

    @property
    def size(self) -> int:
        """Number of devices in the mesh."""
        return math.prod(size for _, size in self.axes)

    def axis(self, name: str) -> int:
        """Size of the named axis; 1 where the mesh lacks it."""
        return dict(self.axes).get(name, 1)

    @property
    def batch_shards(self) -> int:
        """Number of shards of the global batch, over BATCH_AXES."""
        return math.prod(self.axis(name) for name in BATCH_AXES)
