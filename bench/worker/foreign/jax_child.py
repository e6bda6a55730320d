"""`python -m bench.worker.foreign.jax_child FILE`: a JAX implementation as a foreign arm.

By the protocol of docs/foreign-contract.md, FILE runs under another Python's jax, or isolated from
other arms. Like a worker, it imports the workload, so that it needs no outline and carries model
state.
"""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import optax
from jax.sharding import Mesh

from bench.contract import Implementation, Problem, Workload
from bench.contract.foreign import serve
from bench.records.cells import Block
from bench.records.step_programs import StepProgram, packed
from bench.worker.file_loader import load
from bench.worker.foreign.foreign_module import STATE, named, restored, without_state
from bench.worker.problems import make_mesh, make_problem
from bench.worker.prove.carried_state import model_state_of
from bench.worker.prove.failures import why_unsupported
from bench.worker.prove.trajectory import build_step, check_placed, state_and_loss
from bench.worker.read.programs import FirstCall, program_figures
from bench.worker.read.step_program import operations
from bench.worker.time.clock import done_at, wait_for

PACKAGES = ["jax", "jaxlib", "flax", "optax"]


class JaxStep:
    """A step of the contract, served by bench.contract.foreign; `asked.params` are by path."""

    def __init__(self, implementation: Implementation, asked: Any) -> None:
        problem, mesh = problem_and_mesh(asked)
        # Only shapes are needed; drawing the parameters would take a second.
        drawn = {**jax.eval_shape(problem.draw), STATE: problem.draw_state()}
        start = restored(drawn, asked.params)
        problem = replace(problem, start=without_state(start), start_state=start[STATE])
        wanted = asked.timed and asked.figures
        self.about = {"figures": figures(implementation, problem, mesh)} if wanted else {}
        built = build_step(implementation, problem, mesh)
        self.problem, self.built, self.state = problem, built, built.state
        self.loss: Any = None
        self.batch = jax.tree.structure(problem.batch(0))

    def place(self, arrays: list[np.ndarray]) -> Any:
        """Place a batch's leaves."""
        placed = self.built.place(jax.tree.unflatten(self.batch, arrays))
        check_placed(arrays, placed)
        return placed

    def step(self, batch: Any) -> Any:
        """Dispatch a step without waiting for it."""
        self.state, self.loss = state_and_loss(self.built.step(self.state, batch))
        return self.loss

    def wait_for_loss(self) -> None:
        """Wait for the last loss, as the worker does after each step of a latency span."""
        wait_for(self.loss)

    def wait(self) -> int:
        """Wait for the loss and the state; return when they were ready."""
        return done_at(self.state, self.loss)

    def params(self) -> dict[str, np.ndarray]:
        """Return the parameters and the model state by path, on the host."""
        model_state = model_state_of(self.problem, self.built, self.state)
        return named(self.built.params(self.state)) | named({STATE: model_state})


def figures(implementation: Implementation, problem: Problem, mesh: Mesh) -> dict[str, Any]:
    """Compile a separate step, and return the figures of its programs, for a cell's row."""
    built = build_step(implementation, problem, mesh)
    first_call = FirstCall(built.step)
    jax.block_until_ready(first_call(built.state, built.place(problem.batch(0))))
    found = program_figures(first_call.programs, mesh, built.branch_share)
    if found:
        listed = packed(operations(first_call.programs))
        found["program"] = StepProgram(fingerprint="", dispatch="", host_calls=0, operations=listed)
    return {"compile": first_call.compile, **found}


def problem_and_mesh(asked: Any) -> tuple[Problem, Mesh]:
    """Rebuild the problem, in float64 or under plain SGD if the request says so, and the mesh."""
    block = Block.of(asked.cell)
    exact = asked.compute == "float64"
    jax.config.update("jax_enable_x64", exact)
    little = not asked.timed and jax.default_backend() == "cpu"  # as in the worker
    jax.config.update("jax_disable_most_optimizations", little)
    workload = cast("Workload", load(Path(asked.cell["workload_file"])))
    problem = make_problem(workload, block, "fp64" if exact else block.options.precision)
    rule = getattr(asked, "optimizer", {})
    if rule.get("name") == "sgd" and "clip_norm" not in rule:
        problem = replace(problem, optimizer=optax.sgd(rule["learning_rate"]))
    return problem, make_mesh(block.mesh)


def adapted(path: Path) -> Any:
    """Load the implementation as a module of the child's protocol."""
    implementation = cast("Implementation", load(path))
    return SimpleNamespace(
        why_unsupported=lambda asked: (
            why_unsupported(implementation, *problem_and_mesh(asked)) or None
        ),
        build=partial(JaxStep, implementation),
    )


if __name__ == "__main__":
    serve(partial(adapted, Path(sys.argv[1]).resolve()), PACKAGES)
