"""Command lines that reproduce a run, or measure one of its blocks again."""

import shlex
from collections.abc import Collection, Sequence
from itertools import pairwise
from pathlib import PurePath
from typing import Any

from bench.analyse.comparisons import Comparison
from bench.records.paths import PROGRAM, adapt_commands
from bench.records.rows import Manifest, is_race
from bench.records.variants import is_requirement

_REPEATED = ("implementation-path", "workload-path", "variant")
"""Options that are repeated, with one value each time."""

LIBRARY = "lockstep.compare(...)"
"""The call that made a run of functions, in a user's own program."""


def of_run(manifest: Manifest) -> str:
    """Return the command line that made the run, without its name, which the run has taken."""
    return LIBRARY if is_race(manifest) else of_words(manifest["argv"])


def of_words(words: Sequence[str]) -> str:
    """Return a command line of these words, without `--run NAME`."""
    both = pairwise(("", *words))
    named = [word for before, word in both if "--run" not in (before, word.partition("=")[0])]
    return f"{PROGRAM} {shlex.join(named)}"


def of_cells(comparison: Comparison, manifest: Manifest, names: Collection[str]) -> str:
    """Return the command that measures these implementations again, in their block.

    A run measures every file that it is given, so the command has only their own. The files have
    the names that the manifest gives them, which may lack their folders.
    """
    block, config = comparison.block, manifest["config"]
    if is_race(manifest):
        return LIBRARY
    asked, typed = block.options, config["options"]
    own_files = typed.get("implementation_path", ())
    variants = [
        text
        for text in typed.get("variant", ())
        for name, _, change in [text.partition("=")]
        if name == asked.variant or name.startswith("@") or is_requirement(change)
    ]
    options: dict[str, Sequence[Any]] = {
        "workloads": [f"{block.workload}-{block.size}"],
        "meshes": [block.mesh],
        "devices": [typed["devices"]] if "devices" in typed else [],
        "batch-sizes": [block.batch],
        "scaling": ["strong"],
        "precision": [asked.precision],
        "microbatches": [asked.microbatches] if asked.microbatches > 1 else [],
        "remat": [asked.remat] if asked.remat else [],
        "scan-layers": ["yes"] if asked.scan_layers else [],
        "clip-norm": [] if asked.clip_norm is None else [f"{asked.clip_norm:g}"],
        "processes": [asked.processes] if asked.processes > 1 else [],
        "variant": variants,
        "implementation-path": [path for path in own_files if PurePath(path).stem in names],
        "workload-path": typed.get("workload_path", ()),
        **{n: [f"{config[n]:g}"] for n in ("launches", "rounds", "seconds") if n in config},
        "margin": [f"{100 * config['margin']:g}"] if "margin" in config else [],
        "profile-steps": [typed["profile_steps"]] if "profile_steps" in typed else [],
        "input": config.get("inputs") or [],
        "checkpoint": config.get("checkpoints") or [],
        "train-steps": [config["train_steps"]] if config.get("train_steps") else [],
        "baseline": [comparison.baseline] if comparison.baseline else [],
        "implementations": list(names),
        "isolate": [name for name in names if name in config.get("isolated", ())],
    }
    flags = {"--profile": "profile_steps", "--ablate": "ablations"}
    words = [flag for flag, name in flags.items() if config.get(name)]
    for name, values in options.items():
        groups = [[value] for value in values] if name in _REPEATED else [values]
        words += [word for own in groups if own for word in (f"--{name}", *map(str, own))]
    return adapt_commands(f"nox -s bench -- {shlex.join(words)}")
