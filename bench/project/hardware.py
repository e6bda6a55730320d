"""Sheets of hardware: memory and links of a chip, each figure with its public source.

A sheet is a file of hardware/, named as people name the chip. A figure has a value, the address of
its source and what that says, in short; what no source tells is absent. An assumed figure is of
something else than this very chip, as the latencies of a library's cost model are. Bandwidths are
of one chip in one direction, in bytes a second. Peak FLOP/s are not in the sheets: they are looked
up in bench/peaks.toml, by the name that jax has for the device.

Chips of a *domain* all reach one another at the same speed (NVLink through NVSwitch). Those of a
*torus* are linked to their neighbours (a TPU's slice). The *network* is between domains or slices.
"""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from bench.analyse import peaks
from bench.records.spelling import closest

SHEETS = Path(__file__).with_name("hardware")

T = TypeVar("T")


class UnknownHardwareError(ValueError):
    """There is no such sheet; the message names those that there are."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Figure(_Part, Generic[T]):
    """One figure of a sheet, and where it is from."""

    value: T
    source: Annotated[str, Field(pattern="^https://")]
    says: Annotated[str, Field(min_length=1)]
    """What stands there, in its own unit."""
    assumed: bool = False
    """Whether it is of something else than this chip."""


class Memory(_Part):
    """A chip's main memory."""

    bytes: Figure[PositiveFloat]
    bandwidth: Figure[PositiveFloat]


class Domain(_Part):
    """Chips that all reach one another at the same speed."""

    chips: Figure[PositiveInt]
    bandwidth: Figure[PositiveFloat]
    latency_s: Figure[NonNegativeFloat]
    """Of one step of a collective."""


class Wraps(_Part):
    """When the ends of a slice's axis are linked: one of two rules."""

    axis_is: PositiveInt | None = None
    """The axis has this length."""
    every_axis_a_multiple_of: PositiveInt | None = None
    """Every axis of the slice is a multiple of this."""

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if (self.axis_is is None) == (self.every_axis_a_multiple_of is None):
            raise ValueError("give one of axis_is and every_axis_a_multiple_of")
        return self

    def of(self, shape: Sequence[int]) -> tuple[bool, ...]:
        """Whether each axis of a slice has its ends linked."""
        if self.every_axis_a_multiple_of is not None:
            cubes = all(size % self.every_axis_a_multiple_of == 0 for size in shape)
            return (cubes,) * len(shape)
        return tuple(size == self.axis_is for size in shape)


class Torus(_Part):
    """Chips that are linked to their neighbours along each axis of a slice."""

    shapes: Figure[tuple[tuple[PositiveInt, ...], ...]]
    """Slices that there are, by their lengths; the smallest first."""
    wraps: Figure[Wraps]
    link_bandwidth: Figure[PositiveFloat]
    """Of one of a chip's links; it has two an axis."""
    hop_latency_s: Figure[NonNegativeFloat]
    """From a chip to its neighbour."""

    def shape_of(self, chips: int) -> tuple[int, ...] | None:
        """The slice of so many chips, if there is one."""
        return next((s for s in self.shapes.value if math.prod(s) == chips), None)


class Network(_Part):
    """What links domains or slices."""

    bandwidth: Figure[PositiveFloat]
    """Of one chip's share of its host."""
    latency_s: Figure[NonNegativeFloat]
    """Of one step of a collective."""


class Hardware(_Part):
    """A chip and its links. A chip without links can only be alone."""

    name: str
    device_kind: str
    """What jax calls the device."""
    memory: Memory
    domain: Domain | None = None
    torus: Torus | None = None
    network: Network | None = None
    overhead_s: Figure[NonNegativeFloat] | None = None
    """What every collective takes beside its steps."""

    @model_validator(mode="after")
    def _links_that_fit(self) -> Self:
        if self.domain is not None and self.torus is not None:
            raise ValueError("chips are in a domain or in a torus, not in both")
        if self.network is not None and self.domain is None and self.torus is None:
            raise ValueError("a network needs a domain or a torus that it links")
        return self

    def peak(self, precision: str) -> peaks.Peak | None:
        """Published FLOP/s of a chip; None where bench/peaks.toml has none."""
        return peaks.peak(self.device_kind, precision)


def known() -> list[str]:
    """Names of the hardware that has a sheet."""
    return sorted(path.stem for path in SHEETS.glob("*.toml"))


@functools.cache
def hardware(name: str) -> Hardware:
    """The sheet of a chip.

    Raises:
      UnknownHardwareError: there is none; the message names those that there are.
      ValueError: the sheet is not right; the message names each field and what is wrong.
    """
    names = known()
    if name not in names:
        raise UnknownHardwareError(f"unknown hardware {name!r}; {closest(name, names)}")
    return read(SHEETS / f"{name}.toml")


def read(path: Path) -> Hardware:
    """A sheet from a file, checked.

    Raises:
      ValueError: it is not right; the message names the file, each field and what is wrong.
    """
    try:
        content: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return Hardware(**{**content, "name": path.stem})
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path.name}: {error}") from None
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, fault['loc'])) or 'the sheet'}: {fault['msg']}"
            for fault in error.errors()
        ]
        raise ValueError(f"{path.name}: {'; '.join(faults)}") from None
