"""The options of a run: each is declared once, with its help text and a reader of its value.

Values remain text as typed, which a resumed run reads again. bench.plan.matrix parses them, so that
all faults of a command line are reported in one message.
"""

import argparse
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from bench.plan.option_values import choice, positive, remat_policy, share, whole
from bench.plan.presets import PRESETS
from bench.records.arms import CHECKPOINT_MODES, INPUT_WAYS
from bench.records.cells import FULL, PRECISIONS
from bench.records.mesh import MeshShape
from bench.records.variants import Variant

SCALINGS = ("strong", "weak", "both")


def _option(
    metavar: str,
    help_: str,
    read: Callable[[str], object] = str,
    action: str = "store",
    **more: object,
) -> Any:
    """Declare an option.

    Args:
      metavar: placeholder of the value in the help.
      help_: text of the help.
      read: parses a value, or raises ValueError.
      action: as in argparse: `store`, `store_true`, `append` (repeatable) or `extend` (several
        values at once).
      more: `gate=True` for an option of `regress` alone.
    """
    default = {"store": None, "store_true": False}.get(action, ())
    settings = {"action": action, "help": help_}
    if action != "store_true":
        settings["metavar"] = metavar
    if action == "extend":
        settings["nargs"] = "+"
    return field(default=default, metadata={"read": read, "settings": settings, **more})


def _meanings(words: dict[str, str]) -> str:
    return "; ".join(f"{word}: {meaning}" for word, meaning in words.items())


@dataclass(frozen=True)
class Options:
    """The options as typed. None and empty tuples mean the preset's value."""

    preset: str | None = _option(
        "NAME",
        f"how much to measure: {', '.join(PRESETS)} (default: {PRESETS[0]})",
        choice(PRESETS),
    )
    workloads: tuple[str, ...] = _option(
        "NAME[-SIZE]", "workloads, at their default size unless one is named", action="extend"
    )
    implementations: tuple[str, ...] = _option(
        "NAME",
        "files of implementations/, without .py, the baseline first (default: all; with "
        "--implementation-path, the baseline alone)",
        action="extend",
    )
    meshes: tuple[str, ...] = _option(
        "MESH",
        "meshes, for instance data=1 data=4,model=2 (default: data=1,2,4 ... up to the number of "
        "devices; on CPU, quick has none with more devices than cores)",
        MeshShape.parse,
        "extend",
    )
    batch_sizes: tuple[str, ...] = _option(
        "N",
        "samples per step: over all devices at strong scaling, "
        "for each batch shard at weak scaling",
        whole,
        "extend",
    )
    precision: tuple[str, ...] = _option(
        "NAME",
        f"precision of the forward and backward pass: {', '.join(PRECISIONS)}; "
        "the loss is not scaled under fp16",
        choice(PRECISIONS),
        "extend",
    )
    microbatches: tuple[str, ...] = _option(
        "N",
        "number of parts that a batch is computed in, one after the other, for one update "
        "(default: 1); a pipeline needs at least as many as it has stages",
        whole,
        "extend",
    )
    remat: tuple[str, ...] = _option(
        "POLICY",
        "compute activations again in the backward pass instead of keeping them: none (default), "
        "dots (all but products with weights), full or nothing (all within a block of layers)",
        remat_policy,
        "extend",
    )
    scan_layers: tuple[str, ...] = _option(
        "no|yes",
        "run equal layers in one loop over stacked parameters (default: no), where a workload can",
        choice(("no", "yes")),
        "extend",
    )
    clip_norm: str | None = _option(
        "NORM",
        "clip gradients to this global norm, in addition to what the workload's optimizer does",
        positive("gradient norm"),
    )
    variant: tuple[str, ...] = _option(
        "NAME=CHANGE|@FILE",
        "measure everything also in workers with other variables, for instance "
        '"lhs=XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true", or beside them with other '
        'versions: "old=jax==0.10.2", a requirements file or a wheel; @cpu, @gpu or @tpu races '
        "a list of XLA's flags, @FILE.toml your own, and @NAME=CHANGE one; repeatable",
        Variant.parse,
        "append",
    )
    devices: str | None = _option(
        "N",
        "the most devices that a mesh may have "
        "(default: all; on CPU, where devices are virtual, 8)",
        whole,
    )
    processes: tuple[str, ...] = _option(
        "N",
        "number of processes that a mesh is spread over, at most one per device (default: 1); "
        "on CPU they communicate by gloo, each on cores of its own",
        whole,
        "extend",
    )
    distributed: str | None = _option(
        "HOW",
        "a launcher has started this command in every process of the run: `auto` (Slurm, Open MPI, "
        "Kubernetes, or the variables MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK), `env` (the "
        "variables alone), or the TOML file of a DistributedConfig",
    )
    scaling: str | None = _option(
        "KIND",
        "strong (the same batch on every mesh), weak (the batch grows with the mesh) or both",
        choice(SCALINGS),
    )
    launches: str | None = _option(
        "N",
        "number of fresh processes per block; their spread widens the intervals, and an arm that "
        "two of them have settled is skipped in the rest",
        whole,
    )
    rounds: str | None = _option(
        "N",
        "average turns per implementation and launch; after 16, 32, 64 ... rounds, settled arms "
        "yield their turns to the others",
        whole,
    )
    seconds: str | None = _option(
        "S", "planned duration of those rounds, in seconds", positive("seconds")
    )
    margin: str | None = _option(
        "PERCENT",
        "difference of step times that is too small to matter (default: what the preset can "
        "resolve on this machine; 2 in a gate)",
        share,
    )
    budget: str | None = _option(
        "SECONDS",
        "time for all measuring: after one launch of every block, further launches go where the "
        "interval of an undecided comparison is widest, in place of --launches for all",
        positive("seconds"),
    )
    target_ci: str | None = _option(
        "PERCENT",
        "measure until every 95 %% interval is this narrow (half its width) or the budget is "
        "spent, instead of until every comparison is decided",
        share,
    )
    baseline: str | None = _option(
        "NAME",
        "implementation that ratios are taken against "
        "(default: the first of --implementations; without that option, python_loop)",
    )
    input: tuple[str, ...] = _option(
        "WAY",
        "also run every implementation with a batch of a Grain pipeline in each step, beside its "
        f"usual arm, which trains on one resident batch: {_meanings(INPUT_WAYS)}",
        choice(tuple(INPUT_WAYS)),
        "extend",
    )
    ablate: bool = _option(
        "",
        "also time every step without its update, its forward pass alone, and the step with local "
        "operations in place of its collectives: the time that a part's absence saves is its share",
        action="store_true",
    )
    checkpoint: tuple[str, ...] = _option(
        "MODE",
        "after its rounds, also save every implementation's state with Orbax, and restore it on "
        f"its own mesh and on another: {_meanings(CHECKPOINT_MODES)}",
        choice(tuple(CHECKPOINT_MODES)),
        "extend",
    )
    checkpoint_dir: str | None = _option(
        "DIR",
        "folder of the checkpoint's files while they are needed, the same for all hosts "
        "(default: the run's folder)",
    )
    profile: bool = _option("", "also record a profiler trace of every cell", action="store_true")
    profile_steps: str | None = _option("N", "steps of a trace (default: 5)", whole)
    train_steps: str | None = _option(
        "N",
        "also train every cell for N steps on the same data, beside the whole batch on one device, "
        "and compare their loss curves",
        whole,
    )
    cold: bool = _option(
        "",
        "repeat proofs and compilations even if an earlier run did them with the same files and "
        "environment",
        action="store_true",
    )
    timeout: str | None = _option(
        "SECONDS",
        "the longest that a worker process may take for a block (default: no limit)",
        positive("seconds"),
    )
    silence: str | None = _option(
        "SECONDS",
        "end a worker process that reports no progress for this long (default: 600); compilation "
        "reports none",
        positive("seconds"),
    )
    isolate: tuple[str, ...] = _option(
        "NAME",
        "implementations that run in processes of their own, where their files can reach neither "
        "the clock nor the other arms",
        action="extend",
    )
    implementation_path: tuple[str, ...] = _option(
        "FILE",
        "run this file, which need not be in implementations/, beside --implementations or else "
        "the baseline; repeatable",
        action="append",
    )
    workload_path: tuple[str, ...] = _option(
        "FILE",
        "run this workload, which need not be in bench/contract/workloads/, beside those of "
        "--workloads; repeatable",
        action="append",
    )
    run: str | None = _option("NAME", "name of the run's folder in reports/")
    resume: str | None = _option(
        "RUN",
        "continue a run with the options that it was started with; "
        "blocks that are stored are not measured again",
    )
    dry_run: bool = _option(
        "", "show what would be measured, and how long it would take", action="store_true"
    )
    base_revision: str | None = _option("REV", argparse.SUPPRESS, gate=True)
    allow_undecided: str | None = _option(
        "N", "number of comparisons that may stay undecided (default: 0)", gate=True
    )

    def to_json(self) -> dict[str, Any]:
        """Return the options for the manifest, without those that are left to the preset."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value not in (None, (), False) and name not in ("run", "resume")
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        """Read the output of `to_json`; older runs store `remat` as true."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in stored.items()
        }
        if values.get("remat") is True:
            values["remat"] = (FULL,)
        return cls(**values)


READERS = {one.name: one.metadata["read"] for one in fields(Options)}
"""Readers of the values by option name; each raises ValueError."""


def flag(name: str) -> str:
    """Return an option as it is typed: `--batch-sizes`."""
    return f"--{name.replace('_', '-')}"


def add_options(
    add: Callable[..., Any], *, gate: bool = False, without: Collection[str] = ()
) -> None:
    """Declare the options of a run, or, if `gate`, those of a regress run alone.

    `add` has the signature of argparse's add_argument; `without` names options to leave out.
    """
    for option in fields(Options):
        if option.metadata.get("gate", False) != gate or option.name in without:
            continue
        settings = option.metadata["settings"]
        if settings["action"] in ("extend", "append"):
            settings = {**settings, "default": []}
        # pytest and its plugins have destinations of their own: a prefix keeps these apart.
        add(flag(option.name), dest=f"lockstep_{option.name}", **settings)


def read_options(namespace: argparse.Namespace) -> Options:
    """Collect the options from parsed arguments; quoted strings with several values are split."""
    values: dict[str, Any] = {}
    for option in fields(Options):
        value: Any = getattr(namespace, f"lockstep_{option.name}", option.default)
        if option.metadata["settings"]["action"] == "extend":
            value = [word for text in value for word in text.split()]
        values[option.name] = tuple(value) if isinstance(value, list) else value
    return Options(**values)
