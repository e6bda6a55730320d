"""A block's problem: its workload, with what else is asked of the step."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import optax

from bench.cells import Block
from bench.clipping import clip_by_global_norm
from bench.contract import Problem, Workload
from bench.worker.discover import load, workload_files


def load_workload(block: Block, paths: list[str]) -> Workload:
    """The module of a block's workload, from bench/workloads/ or from outside."""
    return cast("Workload", load(workload_files(paths)[block.workload]))


def make_problem(workload: Workload, block: Block, precision: str) -> Problem:
    """The block's problem at a precision, which need not be the block's own."""
    options = block.options
    config = workload.SIZES[block.size]()
    problem = workload.problem(config, block.batch, precision, options.remat)
    if options.clip_norm is not None:
        clipped = optax.chain(clip_by_global_norm(options.clip_norm), problem.optimizer)
        problem = replace(problem, optimizer=clipped)
    return replace(problem, microbatches=options.microbatches)
