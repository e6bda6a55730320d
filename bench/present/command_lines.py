"""Command lines that made a run, or that measure one of its blocks again."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from bench.records.cells import StepOptions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bench.analyse.comparisons import Comparison
    from bench.records.rows import Manifest


def of_run(manifest: Manifest) -> str:
    """The command line that made the run."""
    return shlex.join(["python", "-m", "bench", *manifest["argv"]])


def of_block(comparison: Comparison, manifest: Manifest) -> str:
    """The command line that measures a block again, but for `--implementations` at its end.

    A cell needs its baseline beside it, because its ratio refers to that. The user's own files have
    the names under which the run was started.
    """
    block, config = comparison.block, manifest["config"]
    words = [
        *("--workloads", f"{block.workload}-{block.size}"),
        *("--meshes", str(block.mesh)),
        *("--batch-sizes", str(block.batch), "--scaling", "strong"),
        *_step(block.options, config.get("options", {})),
    ]
    for name in ("launches", "rounds", "seconds"):
        if name in config:
            words += [f"--{name}", f"{config[name]:g}"]
    if "margin" in config:
        words += ["--margin", f"{100 * config['margin']:g}"]
    for name in ("input", "checkpoint"):
        if config.get(f"{name}s"):
            words += [f"--{name}", *config[f"{name}s"]]
    if config.get("train_steps"):
        words += ["--train-steps", str(config["train_steps"])]
    if config.get("profile_steps"):
        words.append("--profile")
    if comparison.baseline:
        words += ["--baseline", comparison.baseline]
    return f"nox -s bench -- {shlex.join(words)}"


def _step(asked: StepOptions, typed: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """The options of a step, and of its files; `typed` holds options as the run was given them."""
    yield from ("--precision", asked.precision)
    if asked.microbatches > 1:
        yield from ("--microbatches", str(asked.microbatches))
    if asked.remat:
        yield "--remat"
    if asked.clip_norm is not None:
        yield from ("--clip-norm", f"{asked.clip_norm:g}")
    if asked.processes > 1:
        yield from ("--processes", str(asked.processes))
    for definition in typed.get("variant", ()):
        if asked.variant and definition.startswith(f"{asked.variant}="):
            yield from ("--variant", definition)
    for name in ("implementation_path", "workload_path"):
        for path in typed.get(name, ()):
            yield from (f"--{name.replace('_', '-')}", path)
