"""The plan of a run: the blocks and implementations that its options select from a catalogue."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from bench.plan import presets
from bench.plan.option_values import BadInput, collected, why_missing
from bench.plan.options import READERS, Options, flag
from bench.plan.presets import PRESETS, Preset, default_batches, expanded, placed, why_not_isolated
from bench.plan.variant_files import chosen
from bench.records.arms import ABLATIONS
from bench.records.cells import Block, Cell, StepOptions
from bench.records.mesh import MeshShape
from bench.records.messages import Catalogue, FilePaths, WorkerSettings
from bench.records.printable import closest
from bench.records.variants import Variant, is_requirement

T = TypeVar("T")

REFERENCE = "python_loop"
"""The only implementation that bench names: the default baseline."""


@dataclass(frozen=True)
class Plan:
    """The blocks of a run and the settings of their measurement."""

    preset: str
    blocks: tuple[Block, ...]
    implementations: tuple[str, ...]
    variants: tuple[Variant, ...]
    """Other environments in which every block, or each of its implementations, is also measured."""
    baseline: str
    scaling: str
    launches: int
    """Number of fresh processes in which each block is measured."""
    worker: WorkerSettings
    """Settings of every worker; the engine adds folders and the files of a base revision."""
    margin: float
    """Relative difference of step times that is negligible."""
    budget_s: float | None
    """Limit on the wall time of all measuring; None where every block gets its planned launches."""
    target_ci: float | None
    """Target half-width of the 95 % intervals; None where measuring ends with a verdict."""
    timeout_s: float | None
    """Time limit of one worker process."""
    silence_s: float
    """The longest time that a worker process may show no progress."""
    margin_reason: str = ""
    """Why the margin was chosen; empty if an option sets it."""
    approximate: tuple[str, ...] = ()
    allow_undecided: int = 0
    """Comparisons of a gate that may stay undecided."""
    passes: int = 0
    """Launches of a resumed run, if it gets more than were planned."""
    process_spread: dict[str, dict[str, float]] | None = None
    """`sd` and `freedom` of the ProcessSpread measured by earlier runs here; None without any."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell, block by block."""
        return tuple(Cell(block, name) for block in self.blocks for name in self.implementations)

    @property
    def modes(self) -> list[str]:
        """Modes in which every implementation's state is saved."""
        return [*self.worker["phases"].get("checkpoint", {}).get("modes", [])]

    def baseline_of(self, arms: Sequence[str]) -> str:
        """Return the planned baseline if these arms include it; else the first exact one."""
        if self.baseline in arms:
            return self.baseline
        return min(arms, key=lambda arm: arm in self.approximate)

    @property
    def config(self) -> dict[str, object]:
        """The resolved options, as the manifest stores them."""
        phases = self.worker["phases"]
        apart = {*FilePaths.__annotations__, "base_files", "phases"}  # paths reveal folders
        kept = ("scaling", "baseline", "launches", "margin", "margin_reason", "process_spread")
        return {
            "workloads": _unique(f"{block.workload}-{block.size}" for block in self.blocks),
            "implementations": list(self.implementations),
            "meshes": _unique(str(block.mesh) for block in self.blocks),
            "batch_sizes": _unique(block.batch for block in self.blocks),
            "options": _unique(str(block.options) for block in self.blocks),
            "variants": {variant.name: str(variant) for variant in self.variants},
            **{name: getattr(self, name) for name in kept},
            **{name: value for name, value in self.worker.items() if name not in apart},
            "budget": self.budget_s,
            "target_ci": self.target_ci,
            "checkpoints": self.modes,
            "profile_steps": phases.get("trace", {}).get("steps", 0),
            "train_steps": phases.get("train", {}).get("steps", 0),
            "timeout": self.timeout_s,
            "silence": self.silence_s,
        }


def make_plan(options: Options, catalogue: Catalogue, faults: Sequence[str] = ()) -> Plan:
    """Resolve options, as typed, against a catalogue of implementations, workloads and devices.

    Raises BadInput if anything is wrong. It lists every fault, also those in `faults`, which were
    found earlier.
    """
    planner = _Planner(options, catalogue, list(faults))
    plan = planner.plan()
    if planner.faults:
        raise BadInput(planner.faults)
    return plan


@dataclass
class _Planner:
    """Reads the options one by one, collecting faults instead of stopping at the first."""

    options: Options
    catalogue: Catalogue
    faults: list[str]

    def __post_init__(self) -> None:
        self.entries = {entry["name"]: entry for entry in self.catalogue["implementations"]}
        self.approximate = {n for n, entry in self.entries.items() if "approximate" in entry}
        self.virtual = self.catalogue["platform"] == "cpu"
        """Whether devices are virtual CPU devices, as many as a mesh needs."""

    def read(self, name: str) -> Any:
        """Return an option's value, or list of values; what cannot be parsed is a fault."""
        given, read, called = getattr(self.options, name), READERS[name], flag(name)
        if not isinstance(given, tuple):
            return None if given is None else collected(self.faults, read, given, called)
        values = (collected(self.faults, read, text, called) for text in _unique(given))
        return [value for value in values if value is not None]

    def fault(self, name: str, text: str) -> None:
        self.faults.append(f"{flag(name)}: {text}")

    def plan(self) -> Plan:
        name = self.read("preset") or self.default_preset()
        preset = presets.PRESET_TABLE[name]
        implementations = self.implementations(preset)
        baseline = self.baseline(implementations)
        scaling = self.read("scaling") or preset.scaling
        variants = self.variants()
        parts = preset.parts or (preset,)
        blocks = _unique(block for part in parts for block in self.blocks(part, scaling, variants))
        self.faults = _unique(self.faults)  # each part may have found the same
        if not blocks and not self.faults:
            self.fault("preset", f"no mesh of {name} fits; devices: {self.device_limit()}")
        self.check_divisions(blocks)
        return Plan(
            preset=name,
            blocks=tuple(blocks),
            implementations=tuple(implementations),
            variants=tuple(variants),
            baseline=baseline,
            approximate=tuple(name for name in implementations if name in self.approximate),
            scaling=scaling,
            launches=self.read("launches") or preset.launches,
            worker={
                "rounds": self.read("rounds") or preset.rounds,
                "seconds": self.read("seconds") or preset.seconds,
                "inputs": self.inputs(),
                "ablations": [*ABLATIONS] if self.options.ablate else [],
                "phases": self.phases(),
                "implementation_paths": self.catalogue["implementation_paths"],
                "workload_paths": self.catalogue["workload_paths"],
                "base_files": {},
                "isolated": self.isolated(implementations),
            },
            margin=self.read("margin") or preset.margin,
            budget_s=self.read("budget"),
            target_ci=self.read("target_ci"),
            allow_undecided=self.read("allow_undecided") or 0,
            timeout_s=self.read("timeout"),
            silence_s=self.read("silence") or presets.SILENCE_S,
        )

    def blocks(self, preset: Preset, scaling: str, variants: Sequence[Variant]) -> Iterator[Block]:
        """Cross the workloads, meshes, batches and step options of a preset without parts."""
        meshes, batches = self.meshes(preset), self.read("batch_sizes")
        step_options = self.step_options(preset, variants)
        for workload, size in self.workloads(preset) if meshes or self.options.meshes else ():
            global_batches = batches or default_batches(f"{workload}-{size}", preset, meshes)
            for options in step_options:
                for batch, mesh in placed(global_batches, meshes, scaling):
                    spread = replace(options, processes=min(options.processes, mesh.size))
                    yield Block(workload, size, mesh, batch, spread)

    def variants(self) -> list[Variant]:
        gate = self.options.base_revision is not None
        variants, faults = chosen(self.read("variant"), self.catalogue["platform"], gate=gate)
        for fault in faults:
            self.fault("variant", fault)
        return variants

    def step_options(self, preset: Preset, variants: Sequence[Variant]) -> list[StepOptions]:
        available = self.catalogue["processes"]
        processes = self.read("processes") or [available]
        for count in processes:
            if count > available > 1:
                self.fault("processes", f"{count} requested, but the run has {available}")
        return [
            StepOptions(precision, count, remat, scan, self.read("clip_norm"), variant, spread)
            for precision in self.read("precision") or preset.precisions
            for count in self.read("microbatches") or [preset.microbatches]
            for remat in _unique(self.read("remat")) or [""]
            for scan in (word == "yes" for word in self.read("scan_layers") or ["no"])
            for variant in ("", *(one.name for one in variants if one.variables and not one.raced))
            for spread in processes
        ]

    def inputs(self) -> list[str]:
        for option in ("input", "ablate") if self.options.base_revision is not None else ():
            if getattr(self.options, option):
                self.fault(option, "a gate compares only whole steps on a resident batch")
        return self._needing_package("input")

    def phases(self) -> dict[str, dict[str, Any]]:
        phases: dict[str, dict[str, Any]] = {}
        if self.options.profile:
            phases["trace"] = {"steps": self.read("profile_steps") or presets.PROFILE_STEPS}
        elif self.options.profile_steps is not None:
            self.fault("profile_steps", "has no effect without --profile")
        if modes := self._needing_package("checkpoint"):
            phases["checkpoint"] = {"modes": modes}
        folder = self.options.checkpoint_dir
        if folder is not None and not self.options.checkpoint:
            self.fault("checkpoint_dir", "has no effect without --checkpoint")
        elif folder is not None and not (folder and Path(folder).is_dir()):
            self.fault("checkpoint_dir", f"there is no folder {folder!r}")
        if steps := self.read("train_steps"):
            phases["train"] = {"steps": steps}
        return phases

    def _needing_package(self, option: str) -> list[str]:
        if getattr(self.options, option) and (missing := why_missing(option, self.catalogue)):
            self.faults.append(missing)
        return [*self.read(option)]

    def default_preset(self) -> str:
        base = self.options.base_revision
        if base is None:
            return PRESETS[0]
        return presets.UPGRADE if is_requirement(base) else presets.REGRESS

    def unknown(self, kind: str, name: str, known: Iterable[str]) -> None:
        """Report a name that is not known; paths have an option of their own."""
        hint = f"name a file by --{kind}-path" if name.endswith(".py") else closest(name, known)
        self.fault(f"{kind}s", f"unknown {name!r}; {hint}")

    def implementations(self, preset: Preset) -> list[str]:
        entries = self.entries
        named = expanded(self.options.implementations, entries)
        outside = [name_of(path) for path in self.options.implementation_path]
        if outside and not named:
            # A file that is named only by its path is compared with the baseline.
            named = [name for name in (self.options.baseline or REFERENCE,) if name in entries]
        chosen = _unique([*named, *outside])
        for name in chosen:
            if name in entries:
                if error := entries[name]["error"]:
                    self.faults.append(f"implementation {name} ({entries[name]['path']}): {error}")
            elif name not in outside:  # a fault of the path itself is reported already
                self.unknown("implementation", name, [*entries, *presets.CLASSES])
        chosen = chosen or _unique(expanded(preset.implementations, entries))
        return [name for name in chosen if name in entries]

    def baseline(self, implementations: Sequence[str]) -> str:
        exact = [n for n in implementations if n not in self.approximate] or implementations
        preferred = (*self.options.implementations, REFERENCE, *exact)
        default = next((name for name in preferred if name in exact), "")
        name = self.options.baseline
        if name in implementations and name not in exact:
            self.fault("baseline", f"{name} is approximate; ratios are taken against an exact step")
        if name is None or not implementations:
            return default
        return next(iter(self.selected("baseline", [name], implementations)), default)

    def isolated(self, implementations: Sequence[str]) -> list[str]:
        for name in self.entries.keys() & {*self.options.isolate}:
            if why := why_not_isolated(self.entries[name]):
                self.fault("isolate", f"{name} {why}")
        return self.selected("isolate", self.options.isolate, implementations)

    def selected(
        self, option: str, names: Iterable[str], implementations: Sequence[str]
    ) -> list[str]:
        """Return those names that are selected implementations; the others are faults."""
        outside = [name_of(path) for path in self.options.implementation_path]
        for name in names:
            if name not in implementations and name not in outside:  # a path's fault is known
                hint = closest(name, implementations)
                self.fault(option, f"{name!r} is not among the selected implementations; {hint}")
        return [name for name in _unique(names) if name in implementations]

    def workloads(self, preset: Preset) -> list[tuple[str, str]]:
        entries = {entry["name"]: entry for entry in self.catalogue["workloads"]}
        known = {name: (name, entry["default"]) for name, entry in entries.items()}
        known |= {f"{n}-{size}": (n, size) for n in entries for size in entries[n]["sizes"]}
        outside = [name_of(path) for path in self.options.workload_path]
        names: Sequence[str] = self.options.workloads
        if not outside:  # a file given only by its path is the only one to measure
            names = names or preset.workloads or tuple(entries)
        chosen = _unique([*names, *outside])
        for text in chosen:
            if text not in known and text not in outside:  # a path's fault is known
                self.unknown("workload", text, known)
        found = _unique(known[text] for text in chosen if text in known)
        for name in _unique(name for name, _ in found):
            if error := entries[name]["error"]:
                self.faults.append(f"workload {name} ({entries[name]['path']}): {error}")
            elif "yes" in self.options.scan_layers and not entries[name].get("scans"):
                self.fault("scan_layers", f"{name} has no stack of equal layers to loop over")
        return found

    def device_limit(self) -> int:
        """Return the largest number of devices that a mesh may have."""
        count = presets.CPU_DEVICES if self.virtual else self.catalogue["device_count"]
        limit: int = self.read("devices") or count
        if limit > count and not self.virtual:
            self.fault("devices", f"{limit} requested, only {count} available")
        return limit

    def meshes(self, preset: Preset) -> list[MeshShape]:
        limit = self.device_limit()
        if preset.meshes and not self.options.meshes:
            return [mesh for mesh in map(MeshShape.parse, preset.meshes) if mesh.size <= limit]
        if not self.options.meshes:
            if self.virtual and not preset.past_cores and self.options.devices is None:
                limit = min(limit, max(2, self.catalogue["usable_cores"]))
            powers = [2**power for power in range(1 if preset.only_ends else limit.bit_length())]
            return [MeshShape((("data", size),)) for size in _unique([*powers, limit])]
        meshes: list[MeshShape] = self.read("meshes")
        for mesh in meshes:
            if mesh.size > limit:
                more = self.virtual and mesh.size <= presets.MOST_CPU_DEVICES
                remedy = f"; --devices {mesh.size} allows it" if more else ""
                self.fault("meshes", f"{mesh} needs {mesh.size} devices, there are {limit}{remedy}")
        return meshes

    def check_divisions(self, blocks: Iterable[Block]) -> None:
        for batch, mesh in _unique((block.batch, block.mesh) for block in blocks):
            shards = mesh.batch_shards
            if batch % shards:
                below = batch // shards * shards
                near = " and ".join(str(n) for n in (below, below + shards) if n)
                what = f"{batch} cannot be split over the {shards} batch shards of {mesh}"
                self.fault("batch_sizes", f"{what}; {near} can")
        for block in blocks:
            shard, count = block.batch // block.mesh.batch_shards, block.options.microbatches
            if shard % count:
                what = f"the batch of {shard} per shard is not divisible by {count}"
                self.fault("microbatches", f"{what}, in {block.name}")
        for count, mesh in _unique((block.options.processes, block.mesh) for block in blocks):
            if mesh.size % count:
                what = f"{count} cannot share the {mesh.size} devices of {mesh} equally"
                self.fault("processes", what)
            elif self.virtual and mesh.size // count > (most := presets.MOST_CPU_DEVICES):
                self.fault("meshes", f"{mesh} has more than {most:,} virtual devices in a process")


def name_of(path: str) -> str:
    """Return the implementation's or workload's name for a path: the file name without `.py`."""
    return path.replace("\\", "/").rpartition("/")[2].removesuffix(".py")


def _unique(values: Iterable[T]) -> list[T]:
    return list(dict.fromkeys(values))
