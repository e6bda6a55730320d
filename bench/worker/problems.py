"""A block's problem: its workload, with the block's options of the step."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import optax

from bench.contract import Problem, Workload
from bench.contract.clipping import clip_by_global_norm
from bench.records.cells import Block, StepOptions
from bench.worker.file_loader import load, workload_files


def load_workload(block: Block, paths: list[str]) -> Workload:
    """Import a block's workload, from bench/contract/workloads/ or from outside."""
    return cast("Workload", load(workload_files(paths)[block.workload]))


def make_problem(workload: Workload, block: Block, precision: str) -> Problem:
    """Make the block's problem at a precision, which need not be the block's own."""
    config = workload.SIZES[block.size]()
    problem = workload.problem(config, block.batch, precision, block.options.remat)
    return with_options(problem, block.options)


def with_options(problem: Problem, options: StepOptions) -> Problem:
    """Apply the options of the step that work the same way for every workload."""
    if options.clip_norm is not None:
        clipped = optax.chain(clip_by_global_norm(options.clip_norm), problem.optimizer)
        problem = replace(problem, optimizer=clipped)
    return replace(problem, microbatches=options.microbatches)
