"""Command lines that reproduce a run, or measure one of its blocks again."""

import shlex
from collections.abc import Sequence
from typing import Any

from bench.analyse.comparisons import Comparison
from bench.records.paths import PROGRAM, adapt_commands
from bench.records.rows import Manifest, is_race
from bench.records.variants import is_requirement

_NUMBERS = ("launches", "rounds", "seconds")
_REPEATED = ("implementation-path", "workload-path", "variant")
"""Options that are repeated, with one value each time."""

LIBRARY = "lockstep.compare(...)"
"""The call that made a run of functions, in a user's own program."""


def of_run(manifest: Manifest) -> str:
    """Return the command line that made the run."""
    if is_race(manifest):
        return LIBRARY
    return f"{PROGRAM} {shlex.join(manifest['argv'])}"


def of_block(comparison: Comparison, manifest: Manifest) -> str:
    """Return the command that measures a block again, without `--implementations`, which goes last.

    A cell needs its baseline beside it, because its ratio refers to that. The user's own files have
    the paths that the run was started with.
    """
    block, config = comparison.block, manifest["config"]
    if is_race(manifest):
        return LIBRARY
    asked, typed = block.options, config["options"]
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
        "implementation-path": typed.get("implementation_path", ()),
        "workload-path": typed.get("workload_path", ()),
        **{name: [f"{config[name]:g}"] for name in _NUMBERS if name in config},
        "margin": [f"{100 * config['margin']:g}"] if "margin" in config else [],
        "input": config.get("inputs") or [],
        "checkpoint": config.get("checkpoints") or [],
        "train-steps": [config["train_steps"]] if config.get("train_steps") else [],
        "baseline": [comparison.baseline] if comparison.baseline else [],
    }
    flags = {"--profile": "profile_steps", "--ablate": "ablations"}
    words = [flag for flag, name in flags.items() if config.get(name)]
    for name, values in options.items():
        groups = [[value] for value in values] if name in _REPEATED else [values]
        words += [word for own in groups if own for word in (f"--{name}", *map(str, own))]
    return adapt_commands(f"nox -s bench -- {shlex.join(words)}")
