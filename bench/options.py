"""The command line of a run: one table, read by pytest and by `python -m bench run --help`.

Values stay as the text that was typed: bench.matrix reads them, so that all faults are found
together and reported in one message. Imports no jax.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypedDict

PRESETS = ("quick", "standard", "full")

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


@dataclass(frozen=True)
class Options:
    """What was asked for, unchecked. None and empty tuples mean: take the preset's."""

    preset: str | None = None
    workloads: tuple[str, ...] = ()
    implementations: tuple[str, ...] = ()
    meshes: tuple[str, ...] = ()
    batch_sizes: tuple[str, ...] = ()
    precision: tuple[str, ...] = ()
    devices: str | None = None
    scaling: str | None = None
    launches: str | None = None
    rounds: str | None = None
    seconds: str | None = None
    margin: str | None = None
    budget: str | None = None
    target_ci: str | None = None
    baseline: str | None = None
    profile: bool = False
    profile_steps: str | None = None
    timeout: str | None = None
    implementation_path: tuple[str, ...] = ()
    workload_path: tuple[str, ...] = ()
    run: str | None = None
    resume: str | None = None
    dry_run: bool = False

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
        "(default: data=1,2,4 ... up to the devices)",
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
        "help": "of the forward and backward pass: fp32, bf16",
    },
    "devices": {
        "metavar": "N",
        "help": "most devices a mesh may have (default: all; on CPU, where devices are virtual, 8)",
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
    "profile": {"action": "store_true", "help": "also record a profiler trace of every cell"},
    "profile_steps": {"metavar": "N", "help": "steps of a trace (default: 5)"},
    "timeout": {
        "metavar": "SECONDS",
        "help": "most time a worker process may take for a block (default: no limit; "
        "one that shows no progress for 600 s is ended in any case)",
    },
    "implementation_path": {
        "metavar": "FILE",
        "action": "append",
        "help": "also run this file, which need not be in implementations/; repeatable",
    },
    "workload_path": {
        "metavar": "FILE",
        "action": "append",
        "help": "also run this workload, which need not be in bench/workloads/; repeatable",
    },
    "run": {"metavar": "NAME", "help": "name of the run's folder in reports/"},
    "resume": {
        "metavar": "RUN",
        "help": "continue a run with the options it was started with; "
        "blocks that are stored are not measured again",
    },
    "dry_run": {"action": "store_true", "help": "show what would be measured, and how long"},
}


def add_options(add: Callable[..., Any]) -> None:
    """Declare every option by `add`, which takes what argparse's add_argument takes."""
    for name, argument in _OPTIONS.items():
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
    for name, argument in _OPTIONS.items():
        value = getattr(namespace, f"lockstep_{name}")
        if "nargs" in argument:
            value = tuple(word for text in value for word in text.split())
        elif isinstance(value, list):
            value = tuple(value)
        values[name] = value
    return Options(**values)


def help_text() -> str:
    """The page of `python -m bench run --help`."""
    parser = argparse.ArgumentParser(
        prog="python -m bench run",
        description="Prove and time every implementation in every block, then write a report.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser.add_argument)
    return parser.format_help()
