"""The command line of a run: one table, read by pytest and by `python -m bench run --help`.

Values stay as the text that was typed: bench.plan.matrix reads them, so that all faults are found
together and reported in one message. Imports no jax.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

from bench.plan.presets import PRESETS
from bench.records.arms import CHECKPOINT_MODES, INPUT_WAYS
from bench.records.cells import PRECISIONS

EXAMPLES = """\
examples:
  python -m bench run
  python -m bench run --workloads mlp gpt2-nano --meshes data=1 data=2
  python -m bench run --implementations python_loop NAME --scaling both --rounds 32
  python -m bench run --implementation-path ../mine.py -k "mine or python_loop"
  python -m bench run --preset standard --dry-run
  python -m bench run --resume NAME

Options of pytest and pytest-benchmark work too: -k EXPR (names as shown by --collect-only,
with `=`: -k "data=2 and python_loop"), -x, --collect-only, --benchmark-autosave,
--benchmark-compare.

exit codes:
  0  every cell is ok, or unsupported by its implementation
  1  a cell is wrong, ran out of memory, timed out or crashed
  2  interrupted; what was measured is stored: continue with --resume
  3  Lockstep itself failed (a full disk, say)
  4  bad input; nothing was run
  5  nothing selected
"""


REGRESS_TEXT = """\
Measure the working tree and an earlier revision of it side by side: each implementation and its
base take turns in the same processes, so that the host's noise hits both alike. The base is a
temporary git worktree; its implementations come with their own helper modules (bench/contract/placement.py,
or your own package in your repository). The workload, the proof and the clock are the working
tree's for both, and what a file sets for its whole process (jax.config, environment variables)
holds for both. A file given by --implementation-path is looked up in the repository that it lies
in, and compared alone unless --implementations names others.

A regression is a verdict of `slower`. The chance of any wrong verdict in the whole run is at most
1 %, however many comparisons there are and however often their samples are looked at; a difference
that is surely within the margin is none."""

REGRESS_EXAMPLES = """\
examples:
  python -m bench regress main
  python -m bench regress HEAD~1 --workloads mlp --meshes data=2 -k "jit_spmd"
  python -m bench regress origin/main --implementation-path steps/mine.py --budget 600

By default: quick's workloads and meshes, 3 launches of up to 64 rounds. Every option of
`python -m bench run` works, except --resume. -k and the like select implementations of the working
tree; their bases come along. Beside the report, the run's folder holds regress.md, a summary for a
pull request.

exit codes:
  0    no regression
  1    an implementation is slower than its base
  2    more than N comparisons are undecided (--allow-undecided N)
  3    broken: an implementation that is right at the base is not now; or Lockstep itself failed
  4    bad input: an unknown revision, no git repository, nothing to compare; nothing was run
  130  interrupted; what was measured is stored
"""


@dataclass(frozen=True)
class Options:
    """What was asked for, unchecked. None and empty tuples mean: take the preset's."""

    preset: str | None = None
    workloads: tuple[str, ...] = ()
    implementations: tuple[str, ...] = ()
    meshes: tuple[str, ...] = ()
    batch_sizes: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    microbatches: tuple[str, ...] = ()
    remat: bool = False
    clip_norm: str | None = None
    variant: tuple[str, ...] = ()
    devices: str | None = None
    processes: tuple[str, ...] = ()
    distributed: str | None = None
    scaling: str | None = None
    launches: str | None = None
    rounds: str | None = None
    seconds: str | None = None
    margin: str | None = None
    budget: str | None = None
    target_ci: str | None = None
    baseline: str | None = None
    input: tuple[str, ...] = ()
    checkpoint: tuple[str, ...] = ()
    checkpoint_dir: str | None = None
    profile: bool = False
    profile_steps: str | None = None
    train_steps: str | None = None
    timeout: str | None = None
    silence: str | None = None
    implementation_path: tuple[str, ...] = ()
    workload_path: tuple[str, ...] = ()
    run: str | None = None
    resume: str | None = None
    dry_run: bool = False
    base_revision: str | None = None
    """Of `python -m bench regress` alone, as is `allow_undecided`."""
    allow_undecided: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As stored in the manifest: what was typed, without what it leaves to the preset."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value not in (None, (), False) and name not in ("run", "resume")
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Options:
        """Read what `to_json` wrote."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in stored.items()
        }
        return cls(**values)


class _Argument(TypedDict, total=False):
    metavar: str
    nargs: str
    action: str
    help: str


_OPTIONS: dict[str, _Argument] = {
    "preset": {
        "metavar": "NAME",
        "help": f"how much to measure: {', '.join(PRESETS)} (default: {PRESETS[0]})",
    },
    "workloads": {
        "metavar": "NAME[-SIZE]",
        "nargs": "+",
        "help": "workloads, at their default size unless one is named",
    },
    "implementations": {
        "metavar": "NAME",
        "nargs": "+",
        "help": "files of implementations/, without .py (default: all)",
    },
    "meshes": {
        "metavar": "MESH",
        "nargs": "+",
        "help": "meshes, for instance data=1 data=4,model=2 "
        "(default: data=1,2,4 ... up to the devices; on CPU, quick has none with more than cores)",
    },
    "batch_sizes": {
        "metavar": "N",
        "nargs": "+",
        "help": "samples a step: over all devices at strong scaling, "
        "for each batch shard at weak scaling",
    },
    "precision": {
        "metavar": "NAME",
        "nargs": "+",
        "help": f"of the forward and backward pass: {', '.join(PRECISIONS)}; "
        "under fp16 the loss is not scaled",
    },
    "microbatches": {
        "metavar": "N",
        "nargs": "+",
        "help": "parts that a batch is computed in, one after the other, for one update "
        "(default: 1); a pipeline needs as many as it has stages",
    },
    "remat": {
        "action": "store_true",
        "help": "compute activations again in the backward pass instead of keeping them",
    },
    "clip_norm": {
        "metavar": "NORM",
        "help": "clip gradients to this global norm, beside what the workload's optimizer does",
    },
    "variant": {
        "metavar": "NAME=VARIABLE=VALUE",
        "action": "append",
        "help": "measure everything also in workers with this environment, for instance "
        '"lhs=XLA_FLAGS=--xla_gpu_enable_latency_hiding_scheduler=true"; repeatable',
    },
    "devices": {
        "metavar": "N",
        "help": "most devices a mesh may have (default: all; on CPU, where devices are virtual, 8)",
    },
    "processes": {
        "metavar": "N",
        "nargs": "+",
        "help": "processes that a mesh is spread over, at most one a device (default: 1); "
        "on CPU they communicate by gloo, each on cores of its own",
    },
    "distributed": {
        "metavar": "HOW",
        "help": "a launcher has started this command in every process of the run: `auto` (Slurm, "
        "Open MPI, Kubernetes, or the variables MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK), `env` "
        "(the variables alone), or the TOML file of a DistributedConfig",
    },
    "scaling": {
        "metavar": "KIND",
        "help": "strong (same batch on every mesh), weak (batch grows with the mesh) or both",
    },
    "launches": {
        "metavar": "N",
        "help": "fresh processes a block is measured in; their spread is part of the intervals",
    },
    "rounds": {
        "metavar": "N",
        "help": "most turns of every implementation in a launch; "
        "fewer where 16, 32, 64 ... decide every comparison",
    },
    "seconds": {"metavar": "S", "help": "measuring time of so many rounds, in seconds"},
    "margin": {
        "metavar": "PERCENT",
        "help": "difference of step times that is too small to matter (default: 2)",
    },
    "budget": {
        "metavar": "SECONDS",
        "help": "time for all measuring: after one launch of every block, further ones go where "
        "the interval of an undecided comparison is widest, in place of --launches for all",
    },
    "target_ci": {
        "metavar": "PERCENT",
        "help": "measure until every 95 %% interval is this narrow (half of its width), "
        "or the budget is spent, instead of until every comparison is decided",
    },
    "baseline": {
        "metavar": "NAME",
        "help": "implementation that ratios are taken against "
        "(default: python_loop, else the first selected)",
    },
    "input": {
        "metavar": "WAY",
        "nargs": "+",
        "help": "also run every implementation with a batch of a Grain pipeline in each step, "
        "beside its usual arm, which trains on one resident batch: "
        + "; ".join(f"{way}: {meaning}" for way, meaning in INPUT_WAYS.items()),
    },
    "checkpoint": {
        "metavar": "MODE",
        "nargs": "+",
        "help": "after its rounds, also save every implementation's state with Orbax, and restore "
        "it on its own mesh and on another: "
        + "; ".join(f"{mode}: {meaning}" for mode, meaning in CHECKPOINT_MODES.items()),
    },
    "checkpoint_dir": {
        "metavar": "DIR",
        "help": "where the files lie meanwhile; of several hosts, the same for all "
        "(default: the run's folder)",
    },
    "profile": {"action": "store_true", "help": "also record a profiler trace of every cell"},
    "profile_steps": {"metavar": "N", "help": "steps of a trace (default: 5)"},
    "train_steps": {
        "metavar": "N",
        "help": "also train every cell for N steps on the same data, beside the whole batch on one "
        "device, and compare their loss curves",
    },
    "timeout": {
        "metavar": "SECONDS",
        "help": "most time a worker process may take for a block (default: no limit)",
    },
    "silence": {
        "metavar": "SECONDS",
        "help": "a worker process that shows no progress for so long is taken to hang and ended; "
        "one that compiles shows none (default: 600)",
    },
    "implementation_path": {
        "metavar": "FILE",
        "action": "append",
        "help": "also run this file, which need not be in implementations/; repeatable",
    },
    "workload_path": {
        "metavar": "FILE",
        "action": "append",
        "help": "also run this workload, which need not be in bench/contract/workloads/; repeatable",
    },
    "run": {"metavar": "NAME", "help": "name of the run's folder in reports/"},
    "resume": {
        "metavar": "RUN",
        "help": "continue a run with the options it was started with; "
        "blocks that are stored are not measured again",
    },
    "dry_run": {"action": "store_true", "help": "show what would be measured, and how long"},
}

_REGRESS: dict[str, _Argument] = {
    "allow_undecided": {
        "metavar": "N",
        "help": "so many comparisons may stay undecided (default: 0)",
    },
    "base_revision": {"metavar": "REV", "help": argparse.SUPPRESS},
}
"""What a regress run takes beside the options of a run. Its command gives the revision."""


def add_options(add: Callable[..., Any]) -> None:
    """Declare every option of a run by `add`, which takes what argparse's add_argument takes."""
    _declare(_OPTIONS, add)


def add_regress_options(add: Callable[..., Any]) -> None:
    """Declare what a regress run takes beside these."""
    _declare(_REGRESS, add)


def _declare(options: dict[str, _Argument], add: Callable[..., Any]) -> None:
    for name, argument in options.items():
        settings: dict[str, Any] = dict(argument)
        if "nargs" in settings:
            settings["action"] = "extend"
        if settings.get("action") in ("extend", "append"):
            settings["default"] = []
        # pytest and its plugins have destinations of their own: a prefix keeps these apart.
        add(f"--{name.replace('_', '-')}", dest=f"lockstep_{name}", **settings)


def read_options(namespace: argparse.Namespace) -> Options:
    """What was typed. Values of several words in one quoted string are taken apart."""
    values: dict[str, Any] = {}
    for name, argument in (_OPTIONS | _REGRESS).items():
        value: Any = getattr(namespace, f"lockstep_{name}", None)
        if "nargs" in argument:
            value = tuple(word for text in value for word in text.split())
        elif isinstance(value, list):
            value = tuple(value)
        values[name] = value
    return Options(**values)


def help_text() -> str:
    """The page of `python -m bench run --help`."""
    text = "Prove and time every implementation in every block, then write a report."
    return _parser("run", text, EXAMPLES, _OPTIONS).format_help()


def regress_help_text() -> str:
    """The page of `python -m bench regress --help`."""
    options = {name: argument for name, argument in _OPTIONS.items() if name != "resume"}
    parser = _parser("regress", REGRESS_TEXT, REGRESS_EXAMPLES, options | _REGRESS)
    parser.add_argument("BASE_REV", help="what to compare with: a branch, tag or commit; first")
    return parser.format_help()


def _parser(
    command: str, description: str, epilog: str, options: dict[str, _Argument]
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m bench {command}",
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _declare(options, parser.add_argument)
    return parser
