"""Command lines: the one that made a run, and the one that measures a block of it again."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bench.cells import StepOptions

if TYPE_CHECKING:
    from bench.report.tables import Comparison
    from bench.rows import Manifest


def of_run(manifest: Manifest) -> str:
    """The command line that made the run."""
    return shlex.join(["python", "-m", "bench", *manifest["argv"]])


def of_block(block: Comparison, manifest: Manifest) -> str:
    """What measures a block again; `--implementations` and their names are to be appended.

    A cell is measured beside its baseline, because its ratio is one to it. Files of the user's own
    are named as they were when the run was started.
    """
    asked = StepOptions.parse(block.options)
    config = manifest["config"]
    typed = config.get("options", {})
    words = [
        *("--workloads", f"{block.workload}-{block.size}"),
        *("--meshes", block.mesh),
        *("--batch-sizes", str(block.batch), "--scaling", "strong"),
        *("--precision", asked.precision),
    ]
    if asked.microbatches > 1:
        words += ["--microbatches", str(asked.microbatches)]
    if asked.remat:
        words.append("--remat")
    if asked.clip_norm is not None:
        words += ["--clip-norm", f"{asked.clip_norm:g}"]
    if asked.processes > 1:
        words += ["--processes", str(asked.processes)]
    if asked.variant:
        words += _each("variant", (v for v in typed.get("variant", ())
                                   if v.startswith(f"{asked.variant}=")))  # fmt: skip
    for name in ("implementation_path", "workload_path"):
        words += _each(name.replace("_", "-"), typed.get(name, ()))
    for name in ("launches", "rounds", "seconds"):
        if name in config:
            words += [f"--{name}", f"{config[name]:g}"]
    if config.get("profile_steps"):
        words.append("--profile")
    if block.baseline:
        words += ["--baseline", block.baseline]
    return f"nox -s bench -- {shlex.join(words)}"


def _each(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (f"--{option}", value)]
