"""Presets, which presets.toml defines, their blocks' batches, and classes of implementations."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bench.records.mesh import MeshShape
from bench.records.messages import ImplementationEntry
from bench.records.statuses import MARGIN

EXACT, OTHERS = "exact", ("approximate", "foreign")
CLASSES = EXACT, *OTHERS
"""Classes of implementations. OTHERS are also keys of their entries in a catalogue."""

REGRESS, UPGRADE = "regress", "upgrade"
"""The default presets of a gate: with a revision, and with another version."""

CPU_DEVICES = 8
"""Largest default mesh without an accelerator, where devices are virtual."""
MOST_CPU_DEVICES = 2048
"""The most virtual devices of a process: XLA:CPU takes others for those of another process."""

PROFILE_STEPS = 5

SILENCE_S = 600.0
"""A worker that reports nothing for this long is assumed to hang. It does not report while it
compiles."""


@dataclass(frozen=True)
class Preset:
    """Defaults for everything that the options of a run leave open."""

    workloads: Sequence[str]
    """If empty, every workload at its default size."""
    batch_factors: Sequence[int]
    """Batches, as multiples of the workload's default batch."""
    precisions: Sequence[str]
    scaling: str
    launches: int
    rounds: int
    seconds: float
    past_cores: bool
    """Whether default meshes of virtual devices may have more devices than there are cores."""
    meshes: Sequence[str] = ()
    """Those that fit the devices are measured; if empty, meshes of `data`."""
    only_ends: bool = False
    """Whether default meshes are only one device and all devices, without those in between."""
    microbatches: int = 1
    implementations: Sequence[str] = (EXACT,)
    margin: float = MARGIN
    """Margin of a gate; other runs use what their rounds can resolve on this machine."""
    parts: Sequence[Preset] = ()
    """Presets whose blocks make up this preset."""


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _presets() -> dict[str, Preset]:
    found: dict[str, Preset] = {}
    for name, own in _TABLE["presets"].items():
        like = found.get(own.pop("like", ""))
        make: Callable[..., Preset] = partial(replace, like) if like else Preset
        parts = [make(**part) for part in own.pop("parts", ())]
        found[name] = make(**own, parts=parts)
    return found


PRESET_TABLE = _presets()
PRESETS = tuple(name for name in PRESET_TABLE if name not in (REGRESS, UPGRADE))
"""Presets that can be named; the first is the default."""


def default_batch(workload: str) -> int:
    """Return the global batch at strong scaling of a workload and size, such as `mlp-base`."""
    return int(_TABLE["batches"].get(workload, 64))


def default_batches(workload: str, preset: Preset, meshes: Sequence[MeshShape]) -> list[int]:
    """Return the preset's batches, rounded up so that every mesh can divide them."""
    batch = default_batch(workload)
    shards = math.lcm(*(mesh.batch_shards for mesh in meshes))
    return [math.ceil(batch * factor / shards) * shards for factor in preset.batch_factors]


def placed(
    batches: Sequence[int], meshes: Sequence[MeshShape], scaling: str
) -> list[tuple[int, MeshShape]]:
    """Return the global batch and mesh of each block; a block of both scalings occurs twice."""
    pairs = []
    for batch in batches:
        if scaling in ("strong", "both"):
            pairs += [(batch, mesh) for mesh in meshes]
        if scaling in ("weak", "both"):
            pairs += [(batch * mesh.batch_shards, mesh) for mesh in meshes]
    return pairs


def is_exact(entry: ImplementationEntry) -> bool:
    """Whether a run measures this implementation unless its options name others.

    Foreign ones need packages and processes that few runs want; approximate ones are other steps.
    """
    return not entry.keys() & set(OTHERS)


def expanded(names: Iterable[str], entries: Mapping[str, ImplementationEntry]) -> list[str]:
    """Replace the names of classes by those of their implementations."""
    classes = {kind: [own for own, entry in entries.items() if kind in entry] for kind in OTHERS}
    classes[EXACT] = [own for own, entry in entries.items() if is_exact(entry)]
    return [own for name in names for own in classes.get(name, [name])]


def why_not_isolated(entry: ImplementationEntry) -> str:
    """Say why an implementation cannot be isolated in a process of its own; empty if it can."""
    if "foreign" in entry:
        return "always runs in processes of its own"
    return "is approximate; such a step runs in the worker" if "approximate" in entry else ""
