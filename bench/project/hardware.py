"""Hardware sheets: the memory and links of a chip, each figure with its public source.

A sheet is a TOML file in hardware/, named after the chip. Each figure has a value, the address of
its source, and a short quotation. A figure that no source gives is absent. An *assumed* figure
describes something other than this very chip, such as the latencies in a library's cost model.
Bandwidths are those of one chip in one direction, in bytes per second. Peak FLOP/s are not in the
sheets but in peaks.toml (`bench.analyse.peaks`), under the name that jax gives the device.

All chips of a *domain* reach one another at the same speed (NVLink through NVSwitch). Chips of a
*torus* are linked to their neighbours (a TPU slice). The *network* links domains or slices.
"""

import functools
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Generic, Self, TypeVar

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

from bench.records.printable import closest

SHEETS = Path(__file__).with_name("hardware")
NAMES = sorted(path.stem for path in SHEETS.glob("*.toml"))
"""Names of all hardware sheets."""

T = TypeVar("T")
Source = Annotated[str, Field(pattern="^https://")]
Quotation = Annotated[str, Field(min_length=1)]


class HardwareError(ValueError):
    """Chips cannot form a mesh, or a required figure is unknown; the message says why."""


class Part(BaseModel):
    """A table of a TOML file: immutable, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Figure(Part, Generic[T]):
    """One figure with its source."""

    value: T
    source: Source
    says: Quotation
    """A quotation from the source, in its own unit."""
    assumed: bool = False
    """Whether the figure describes something other than this chip."""


class Memory(Part):
    """A chip's main memory."""

    bytes: Figure[PositiveFloat]
    bandwidth: Figure[PositiveFloat]


class Network(Part):
    """The links between domains or slices."""

    bandwidth: Figure[PositiveFloat]
    """One chip's share of its host's bandwidth."""
    latency_s: Figure[NonNegativeFloat]
    """Latency of one step of a collective."""


class Domain(Network):
    """Chips that all reach one another at the same speed."""

    chips: Figure[PositiveInt]


class Wraps(Part):
    """The rule that decides whether the axes of a slice wrap around."""

    multiples_of: PositiveInt
    """An axis whose length is a multiple of this wraps around."""
    all_or_none: bool = False
    """Whether no axis wraps around unless all do."""

    def of(self, shape: Sequence[int]) -> tuple[bool, ...]:
        """Return for each axis of a slice whether it wraps around."""
        wraps = tuple(size % self.multiples_of == 0 for size in shape)
        return (all(wraps),) * len(shape) if self.all_or_none else wraps


class Torus(Part):
    """Chips that are linked to their neighbours along each axis of a slice."""

    shapes: Figure[tuple[tuple[PositiveInt, ...], ...]]
    """The available slices, smallest first."""
    wraps: Figure[Wraps]
    link_bandwidth: Figure[PositiveFloat]
    """Bandwidth of one link; a chip has two links per axis."""
    hop_latency_s: Figure[NonNegativeFloat]
    """Latency from a chip to its neighbour."""


class Hardware(Part):
    """A chip and its links; a chip without links can only run alone."""

    name: str
    device_kind: str
    """jax's name of the device, under which peaks.toml has its FLOP/s."""
    memory: Memory
    achievable: Figure[PositiveFloat]
    """Share of the peak that the best matrix products reach."""
    domain: Domain | None = None
    torus: Torus | None = None
    network: Network | None = None
    overhead_s: Figure[NonNegativeFloat] | None = None
    """Fixed cost of every collective."""

    @model_validator(mode="after")
    def _links_that_fit(self) -> Self:
        if self.domain is not None and self.torus is not None:
            raise ValueError("chips are in a domain or in a torus, not in both")
        if self.network is not None and self.domain is None and self.torus is None:
            raise ValueError("a network needs a domain or a torus that it links")
        return self


@functools.cache
def hardware(name: str) -> Hardware:
    """Return the sheet of a chip; raises ValueError if there is none, or if it is invalid."""
    if name not in NAMES:
        raise ValueError(f"unknown hardware {name!r}; {closest(name, NAMES)}")
    return read(SHEETS / f"{name}.toml")


def read(path: Path) -> Hardware:
    """Read a sheet; raises ValueError with the file and each faulty field if it is invalid."""
    try:
        return Hardware(**{**tomllib.loads(path.read_text("utf-8")), "name": path.stem})
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, fault['loc'])) or 'the sheet'}: {fault['msg']}"
            for fault in error.errors()
        ]
        raise ValueError(f"{path.name}: {'; '.join(faults)}") from None
    except ValueError as error:  # it is not UTF-8, or not TOML
        raise ValueError(f"{path.name}: {error}") from None
