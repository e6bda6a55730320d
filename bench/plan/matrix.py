"""Presets and options -> the blocks and implementations of a run, or every fault at once.

Imports no jax: what exists comes from the catalogue.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from bench.plan.options import Options
from bench.plan.presets import (
    CPU_DEVICES,
    DEFAULT_BATCHES,
    FALLBACK_BATCH,
    PRESET_TABLE,
    PRESETS,
    PROFILE_STEPS,
    REGRESS,
    SILENCE_S,
    Preset,
)
from bench.records.arms import CHECKPOINT_MODES, INPUT_WAYS
from bench.records.cells import PRECISIONS, Block, Cell, StepOptions
from bench.records.mesh import AXES, MeshShape
from bench.records.messages import Catalogue, WorkerSettings, WorkloadEntry
from bench.records.optional_packages import why_missing
from bench.records.spelling import closest
from bench.records.statuses import MARGIN
from bench.records.variants import Variant

T = TypeVar("T")

REFERENCE = "python_loop"
"""The one implementation that bench names: the default baseline."""

SCALINGS = ("strong", "weak", "both")


class BadInput(Exception):  # noqa: N818 (it is the user's error, not the program's)
    """What was asked for cannot be run. The text lists every fault."""

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(faults))


def collected(faults: list[str], read: Callable[[str], T], text: str) -> T | None:
    """What an option says; None if it has faults, which join those of other options.

    Args:
      faults: gets those of this option.
      read: reads it, or raises BadInput.
      text: as typed.
    """
    try:
        return read(text)
    except BadInput as error:
        faults += error.faults
        return None


def share(option: str, percent: str) -> float:
    """A percentage, as typed, as a share.

    Raises:
      BadInput: it is not a number above 0 and below 100.
    """
    try:
        found = float(percent) / 100
    except ValueError:
        found = math.nan
    if not 0 < found < 1:
        raise BadInput([f"{option}: {percent!r} is not a number of percent above 0 and below 100"])
    return found


@dataclass(frozen=True)
class Plan:
    """Everything a run measures, and how."""

    preset: str
    blocks: tuple[Block, ...]
    implementations: tuple[str, ...]
    variants: tuple[Variant, ...]
    """Other environments that every block is measured in as well."""
    baseline: str
    scaling: str
    launches: int
    """Fresh processes a block is measured in."""
    worker: WorkerSettings
    """What every worker is told; the engine adds folders and the files of a base revision."""
    margin: float
    """Share of a step time that is too small a difference to matter."""
    budget_s: float | None
    """Wall time of all measuring; None where every block gets its planned launches."""
    target_ci: float | None
    """Half-width of a 95 % interval that is narrow enough; None where deciding is enough."""
    timeout_s: float | None
    """Most time of one worker process."""
    silence_s: float
    """Most time in which it shows no progress."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell, block by block."""
        return tuple(Cell(block, name) for block in self.blocks for name in self.implementations)

    @property
    def extras(self) -> tuple[str, ...]:
        """Options that need packages of bench.records.optional_packages."""
        options = {"input": self.worker["inputs"], "checkpoint": self.modes}
        return tuple(option for option, values in options.items() if values)

    @property
    def modes(self) -> list[str]:
        """Ways in which the state of every implementation is saved."""
        modes: list[str] = self._phase("checkpoint").get("modes", [])
        return modes

    def _phase(self, name: str) -> dict[str, Any]:
        return self.worker["phases"].get(name, {})

    @property
    def config(self) -> dict[str, object]:
        """The resolved options, as the manifest stores them."""
        return {
            "workloads": _unique(f"{block.workload}-{block.size}" for block in self.blocks),
            "implementations": list(self.implementations),
            "meshes": _unique(str(block.mesh) for block in self.blocks),
            "batch_sizes": _unique(block.batch for block in self.blocks),
            "options": _unique(str(block.options) for block in self.blocks),
            "variants": {variant.name: str(variant) for variant in self.variants},
            "scaling": self.scaling,
            "baseline": self.baseline,
            "launches": self.launches,
            "rounds": self.worker["rounds"],
            "seconds": self.worker["seconds"],
            "margin": self.margin,
            "budget": self.budget_s,
            "target_ci": self.target_ci,
            "inputs": self.worker["inputs"],
            "checkpoints": self.modes,
            "profile_steps": self._phase("trace").get("steps", 0),
            "train_steps": self._phase("train").get("steps", 0),
            "timeout": self.timeout_s,
            "silence": self.silence_s,
        }


def make_plan(options: Options, catalogue: Catalogue, faults: Sequence[str] = ()) -> Plan:
    """Resolve what was asked for against what exists.

    Args:
      options: as typed.
      catalogue: what exists.
      faults: found earlier (about paths), to be reported together with those found here.

    Raises:
      BadInput: anything is wrong; names all of it.
    """
    reader = _Reader(options, catalogue, list(faults))
    plan = reader.plan()
    if reader.faults:
        raise BadInput(reader.faults)
    return plan


class _Reader:
    """Reads one option after the other, and notes faults instead of stopping at the first."""

    def __init__(self, options: Options, catalogue: Catalogue, faults: list[str]) -> None:
        self.options = options
        self.catalogue = catalogue
        self.faults = faults

    def plan(self) -> Plan:
        name = REGRESS if self.options.base_revision else PRESETS[0]
        if self.options.preset is not None:
            name = self._choice("--preset", self.options.preset, PRESETS)
        preset = PRESET_TABLE[name]
        implementations = self._implementations()
        baseline = self._baseline(implementations)
        workloads = self._workloads(preset)
        meshes = self._meshes(preset)
        scaling = self._choice("--scaling", self.options.scaling or preset.scaling, SCALINGS)
        batches = [self._whole("--batch-sizes", text) for text in _unique(self.options.batch_sizes)]
        variants = self._variants()
        asked = self._step_options(preset, variants)
        blocks: dict[Block, None] = {}
        for workload, size in workloads:
            chosen = batches or self._default_batches(f"{workload}-{size}", preset, meshes)
            for options in asked:
                for batch, mesh in _batches(chosen, meshes, scaling):
                    spread = replace(options, processes=min(options.processes, mesh.size))
                    blocks[Block(workload, size, mesh, batch, spread)] = None
        self._check_batches(blocks)
        self._check_processes(blocks)
        return Plan(
            preset=name,
            blocks=tuple(blocks),
            implementations=tuple(implementations),
            variants=tuple(variants),
            baseline=baseline,
            scaling=scaling,
            launches=self._whole("--launches", self.options.launches, preset.launches),
            worker={
                "rounds": self._whole("--rounds", self.options.rounds, preset.rounds),
                "seconds": self._positive("--seconds", self.options.seconds, "seconds")
                or preset.seconds,
                "inputs": self._inputs(),
                "phases": self._phases(),
                "implementation_paths": _absolute(self.options.implementation_path),
                "workload_paths": _absolute(self.options.workload_path),
                "base_files": {},
            },
            margin=self._share("--margin", self.options.margin) or MARGIN,
            budget_s=self._positive("--budget", self.options.budget, "seconds"),
            target_ci=self._share("--target-ci", self.options.target_ci),
            timeout_s=self._positive("--timeout", self.options.timeout, "seconds"),
            silence_s=self._positive("--silence", self.options.silence, "seconds") or SILENCE_S,
        )

    def _variants(self) -> list[Variant]:
        found: dict[str, Variant] = {}
        for text in self.options.variant:
            try:
                variant = Variant.parse(text)
            except ValueError as error:
                self.faults.append(f"--variant: {error}")
                continue
            if variant.name in found:
                self.faults.append(f"--variant: there are two of the name {variant.name!r}")
            found[variant.name] = variant
        return list(found.values())

    def _step_options(self, preset: Preset, variants: Sequence[Variant]) -> list[StepOptions]:
        precisions = [
            self._choice("--precision", text, PRECISIONS)
            for text in self.options.precision or preset.precisions
        ]
        counts = [
            self._whole("--microbatches", text) for text in self.options.microbatches or ("1",)
        ]
        given = self.catalogue["processes"]
        processes = [
            self._whole("--processes", text) for text in self.options.processes or (str(given),)
        ]
        if given > 1:
            self.faults += [
                f"--processes: the run has {given} processes, not {count}"
                for count in processes
                if count > given
            ]
        clip_norm = self._positive("--clip-norm", self.options.clip_norm, "gradient norm")
        return [
            StepOptions(precision, count, self.options.remat, clip_norm, variant, spread)
            for precision in _unique(precisions)
            for count in _unique(counts)
            for variant in ("", *(variant.name for variant in variants))
            for spread in _unique(processes)
        ]

    def _choice(self, option: str, text: str, known: Sequence[str]) -> str:
        if text in known:
            return text
        self.faults.append(f"{option}: unknown {text!r}; {closest(text, known)}")
        return known[0]

    def _whole(self, option: str, text: str | None, default: int = 1) -> int:
        if text is None:
            return default
        if text.isascii() and text.isdigit() and int(text) > 0:
            return int(text)
        self.faults.append(f"{option}: {text!r} is not a positive whole number")
        return default

    def _positive(self, option: str, text: str | None, unit: str) -> float | None:
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if value > 0 and math.isfinite(value):
            return value
        self.faults.append(f"{option}: {text!r} is not a positive number of {unit}")
        return None

    def _share(self, option: str, text: str | None) -> float | None:
        return None if text is None else collected(self.faults, partial(share, option), text)

    def _phases(self) -> dict[str, dict[str, Any]]:
        """The phases after the rounds that are wanted, with their settings."""
        steps, modes = self._profile_steps(), self._checkpoints()
        phases: dict[str, dict[str, Any]] = {}
        if steps:
            phases["trace"] = {"steps": steps}
        if modes:
            phases["checkpoint"] = {"modes": modes}
        if self.options.train_steps is not None:
            phases["train"] = {"steps": self._whole("--train-steps", self.options.train_steps)}
        return phases

    def _inputs(self) -> list[str]:
        asked = self.options.input
        if asked:
            self._installed("input")
        if asked and self.options.base_revision is not None:
            self.faults.append("--input: a gate compares steps on a resident batch alone")
        return _unique(self._choice("--input", text, tuple(INPUT_WAYS)) for text in asked)

    def _checkpoints(self) -> list[str]:
        asked, folder = self.options.checkpoint, self.options.checkpoint_dir
        if asked:
            self._installed("checkpoint")
        if folder is not None and not asked:
            self.faults.append("--checkpoint-dir: has an effect with --checkpoint only")
        elif folder is not None and not Path(folder).is_dir():
            self.faults.append(f"--checkpoint-dir: there is no folder {folder}")
        return _unique(
            self._choice("--checkpoint", text, tuple(CHECKPOINT_MODES)) for text in asked
        )

    def _installed(self, option: str) -> None:
        missing = why_missing(option, self.catalogue)
        if missing:
            self.faults.append(missing)

    def _profile_steps(self) -> int:
        steps = self._whole("--profile-steps", self.options.profile_steps, PROFILE_STEPS)
        if self.options.profile:
            return steps
        if self.options.profile_steps is not None:
            self.faults.append("--profile-steps: has an effect with --profile only")
        return 0

    def _importable(self, entry: WorkloadEntry) -> None:
        """A workload has to be: its sizes say what there is to measure.

        An implementation that cannot be imported ends its own cells, like one that cannot be built.
        """
        if entry["error"]:
            self.faults.append(
                f"workload {entry['name']} ({entry['path']}) cannot be imported: {entry['error']}"
            )

    def _implementations(self) -> list[str]:
        entries = {entry["name"]: entry for entry in self.catalogue["implementations"]}
        outside = [name_of(path) for path in self.options.implementation_path]
        chosen = []
        for name in _unique([*self.options.implementations, *outside] or entries):
            if name in entries:
                chosen.append(name)
            elif name not in outside:  # a fault of the path itself is reported already
                self.faults.append(f"--implementations: unknown {name!r}; {closest(name, entries)}")
        if not self.options.implementations and outside:
            # A file named by its path is compared with everything there is.
            chosen = _unique([*entries, *chosen])
        # The order of the catalogue, so that a plan does not depend on how it was typed.
        return [name for name in entries if name in chosen]

    def _baseline(self, implementations: Sequence[str]) -> str:
        default = REFERENCE if REFERENCE in implementations else next(iter(implementations), "")
        name = self.options.baseline
        if name is None or not implementations:
            return default
        if name not in implementations:
            self.faults.append(
                f"--baseline: {name!r} is not among the selected implementations; "
                f"{closest(name, implementations)}"
            )
            return default
        return name

    def _workloads(self, preset: Preset) -> list[tuple[str, str]]:
        entries = {entry["name"]: entry for entry in self.catalogue["workloads"]}
        outside = [name_of(path) for path in self.options.workload_path]
        asked = self.options.workloads or preset.workloads or tuple(entries)
        chosen = []
        for text in _unique([*asked, *outside]):
            found = self._workload(text, entries, outside)
            if found is not None:
                chosen.append(found)
        return _unique(chosen)

    def _workload(
        self, text: str, entries: dict[str, WorkloadEntry], outside: Sequence[str]
    ) -> tuple[str, str] | None:
        if text in entries:
            self._importable(entries[text])
            return text, entries[text]["default"]
        for name, entry in entries.items():
            if text.startswith(f"{name}-"):
                size = text.removeprefix(f"{name}-")
                self._importable(entry)
                if size in entry["sizes"] or entry["error"]:
                    return name, size
                self.faults.append(
                    f"--workloads: {name} has no size {size!r}; {closest(size, entry['sizes'])}"
                )
                return None
        if text not in outside:
            known = [
                word
                for name, entry in entries.items()
                for word in (name, *(f"{name}-{size}" for size in entry["sizes"]))
            ]
            self.faults.append(f"--workloads: unknown {text!r}; {closest(text, known)}")
        return None

    def _limit(self) -> int:
        """Devices that the largest mesh may have."""
        virtual = self.catalogue["platform"] == "cpu"
        count = CPU_DEVICES if virtual else self.catalogue["device_count"]
        limit = self._whole("--devices", self.options.devices, count)
        if limit > count and not virtual:
            self.faults.append(f"--devices: there are {count}, not {limit}")
        return limit

    def _meshes(self, preset: Preset) -> list[MeshShape]:
        limit = self._limit()
        if not self.options.meshes:
            virtual = self.catalogue["platform"] == "cpu"
            if virtual and not preset.past_cores and self.options.devices is None:
                limit = min(limit, max(2, self.catalogue["usable_cores"]))
            sizes = [2**power for power in range(limit.bit_length())]
            return [MeshShape((("data", size),)) for size in _unique([*sizes, limit])]
        meshes = []
        for text in self.options.meshes:
            try:
                mesh = MeshShape.parse(text)
            except ValueError as error:
                self.faults.append(f"--meshes: {error}{_axis_hint(text)}")
                continue
            if mesh.size > limit:
                remedy = (
                    f"; --devices {mesh.size} allows it"
                    if self.catalogue["platform"] == "cpu"
                    else ""
                )
                self.faults.append(
                    f"--meshes: {mesh} needs {mesh.size} devices, there are {limit}{remedy}"
                )
            meshes.append(mesh)
        return _unique(meshes)

    def _default_batches(
        self, workload: str, preset: Preset, meshes: Sequence[MeshShape]
    ) -> list[int]:
        """The preset's batches, rounded up to what every mesh can split."""
        batch = DEFAULT_BATCHES.get(workload, FALLBACK_BATCH)
        shards = math.lcm(*(mesh.batch_shards for mesh in meshes))
        return [math.ceil(batch * factor / shards) * shards for factor in preset.batch_factors]

    def _check_batches(self, blocks: Iterable[Block]) -> None:
        pairs = _unique((block.batch, block.mesh) for block in blocks)
        for batch, mesh in pairs:
            shards = mesh.batch_shards
            if batch % shards:
                below = batch // shards * shards
                near = [n for n in (below, below + shards) if n]
                self.faults.append(
                    f"--batch-sizes: {batch} cannot be split over the {shards} batch shards of "
                    f"{mesh}; near ones that can: {', '.join(map(str, near))}"
                )
        for block in blocks:
            shard, count = block.batch // block.mesh.batch_shards, block.options.microbatches
            if shard % count:
                fault = f"--microbatches: {count} do not divide a device's batch of {shard}"
                self.faults.append(f"{fault}, in {block.name}")

    def _check_processes(self, blocks: Iterable[Block]) -> None:
        spread = _unique((block.options.processes, block.mesh) for block in blocks)
        self.faults += [
            f"--processes: {count} cannot share the {mesh.size} devices of {mesh} equally"
            for count, mesh in spread
            if mesh.size % count
        ]


def name_of(path: str) -> str:
    """The name of a file given by its path: the file name without `.py`."""
    return path.replace("\\", "/").rpartition("/")[2].removesuffix(".py")


def _batches(
    batches: Sequence[int], meshes: Sequence[MeshShape], scaling: str
) -> list[tuple[int, MeshShape]]:
    """Global batch and mesh of each block; one that both scalings want occurs twice."""
    pairs = []
    for batch in batches:
        if scaling in ("strong", "both"):
            pairs += [(batch, mesh) for mesh in meshes]
        if scaling in ("weak", "both"):
            pairs += [(batch * mesh.batch_shards, mesh) for mesh in meshes]
    return pairs


def _axis_hint(text: str) -> str:
    """Where an axis is misspelt, the axis that was likely meant."""
    for part in text.split(","):
        name = part.partition("=")[0].strip()
        near = difflib.get_close_matches(name, AXES, n=1, cutoff=0.5)
        if name not in AXES and near:
            return f" (did you mean {near[0]}?)"
    return ""


def _absolute(paths: Iterable[str]) -> list[str]:
    return [str(Path(path).resolve()) for path in paths]


def _unique(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))
