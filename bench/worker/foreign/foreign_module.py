"""A foreign implementation's file as a module of the contract whose step runs in other processes.

The worker never imports the file, and so loads neither its framework nor that framework's threads.
Its constant FOREIGN, a literal, says how to start its processes. They receive the parameters by
path, and JAX's processes the model state too.
"""

import ast
import contextlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypedDict, cast, get_origin

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import bench.contract.foreign
from bench.contract import Batch, Params, Problem, TrainStep
from bench.contract.logical_axes import path_of
from bench.contract.model_state import ModelState
from bench.records.messages import JAX_CHILD
from bench.records.paths import module_command
from bench.records.row_parts import ForeignArms
from bench.records.rows import CellRow, CompileTimes
from bench.worker.foreign.children import Children
from bench.worker.foreign.foreign_arm import ForeignArm, the_same
from bench.worker.prove.carried_state import of_words, words
from bench.worker.prove.exact_arithmetic import is_proving
from bench.worker.prove.failures import UnsupportedError
from bench.worker.prove.relative_errors import check_alike

STATE = "model state"
"""The key of the model state among the parameters of a child; no parameter has this key."""


class Traits(TypedDict, total=False):
    """The keys of FOREIGN."""

    packages: list[str]
    """Packages whose versions the report shows."""
    per_device: bool
    """Whether each device has its own process; otherwise one process has all devices."""
    float64: bool
    """False if the framework lacks float64; the step is then proved only in the timed dtypes."""
    isolated: bool
    """Whether this is a JAX step that the run's options isolate in its own process."""
    command: list[str]
    """Command line of each process, run in the worker's folder; by default, the Python helper's."""
    variables: dict[str, str]
    """Environment variables of a variant; flags are added to the worker's."""


_WANTED = {list: "a list of text", dict: "a dict", bool: "True or False"}


def traits_of(path: Path) -> Traits | None:
    """Read a file's FOREIGN without importing it; None if it has none, ValueError if faulty."""
    try:
        text = path.read_bytes()
        nodes = ast.parse(text).body if b"FOREIGN" in text else []
    except (OSError, SyntaxError, ValueError):  # importing the file will report it
        return None
    for node in nodes:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FOREIGN":
            return _checked(node.value)
        if isinstance(node, ast.AnnAssign) and node.value and ast.unparse(node.target) == "FOREIGN":
            return _checked(node.value)
    return None


def _checked(value: ast.expr) -> Traits:
    kinds: dict[str, Any] = Traits.__annotations__
    found, says = None, f"FOREIGN is {ast.unparse(value)}"
    with contextlib.suppress(ValueError, TypeError):  # it is not a literal
        found = ast.literal_eval(value)
    if not isinstance(found, dict) or found.keys() - kinds:
        raise ValueError(f"{says}; it must be a literal dict with keys among {', '.join(kinds)}")
    for key, own in found.items():
        kind: Any = get_origin(kinds[key]) or bool
        if not isinstance(own, kind) or (kind is list and {type(each) for each in own} - {str}):
            raise ValueError(f"{says}; its {key} must be {_WANTED[kind]}")
    if not found.get("command", True):
        raise ValueError(f"{says}; its command must not be empty")
    return Traits(**found)


@cache
def foreign_module(path: Path, *, isolated: bool) -> "ForeignModule | None":
    """Return the module of a foreign or isolated file, else None; for errors see `traits_of`."""
    if isolated:
        command = [*module_command(JAX_CHILD), str(path)]
        return ForeignModule(path, Traits(command=command, isolated=True))
    if (traits := traits_of(path)) is None:
        return None
    return ForeignModule(path, traits, ast.get_docstring(ast.parse(path.read_bytes())))


@dataclass(frozen=True, kw_only=True)
class ForeignStep(TrainStep):
    """A step whose state is in other processes; here, the state is the number of steps taken."""

    module: "ForeignModule"
    children: Children
    spans: list[int]
    """Nanoseconds of each step so far that was a request of its own."""
    versions: dict[str, str]
    figures: CellRow
    """Figures of the compiled programs, from a JAX arm's child; empty for other frameworks."""
    model_state: Callable[[Any], ModelState]

    def arm(self, name: str, state: int, batch: Any) -> ForeignArm:
        """Make an arm for the rounds, which keeps the processes: the next build starts others."""
        self.module.spare = None
        arm = ForeignArm(name, self.step, state, batch, children=self.children)
        arm.train_step = replace(
            self, params=arm.uncounted(self.params), model_state=arm.uncounted(self.model_state)
        )
        return arm

    def compile_times(self) -> CompileTimes:
        """Count what the first step took beyond the fastest as compile time, whatever its cause."""
        extra_s = (self.spans[0] - min(self.spans)) / 1e9
        return CompileTimes(trace_s=0.0, lower_s=0.0, compile_s=extra_s, cache_hits=0)

    def described(self, arm: ForeignArm) -> ForeignArms:
        """Describe how this arm differs from the worker's own, for the cell's row."""
        return ForeignArms(
            versions=self.versions,
            processes=len(self.children),
            threads=self.children.threads,
            float64=self.module.FOREIGN.get("float64", True),
            asking_ns=arm.asking_ns,
            isolated=self.module.FOREIGN.get("isolated", False),
        )


class ForeignModule(ModuleType):
    """A foreign file, as a module of the contract."""

    def __init__(self, path: Path, traits: Traits, doc: str | None = None) -> None:
        super().__init__(path.stem, doc)
        self.__file__ = str(path)
        self.FOREIGN = traits
        self.known_figures = False
        """Whether the compiled programs' figures are stored, so that a build need not read them."""
        self.spare: Children | None = None
        """Processes that no arm has taken over: building a step there replaces the previous one."""

    def children(self, mesh: Mesh) -> Children:
        """Return spare processes for this mesh, starting them if there are none that fit it."""
        processes = mesh.size if self.FOREIGN.get("per_device") else 1
        threads = mesh.size // processes
        if self.spare and (len(self.spare), self.spare.threads) != (processes, threads):
            self.close()
        if self.spare is None or self.spare.closed:
            helper = [sys.executable, bench.contract.foreign.__file__, str(self.__file__)]
            helper += self.FOREIGN.get("packages", [])
            command = self.FOREIGN.get("command", helper)
            self.spare = Children(command, processes, threads, self.FOREIGN.get("variables", {}))
        return self.spare

    def close(self) -> None:
        """End the spare processes."""
        if self.spare:
            self.spare.close()

    def why_unsupported(self, problem: Problem, mesh: Mesh) -> str | None:
        """Return the reason that the processes give; None if they support the problem."""
        if mesh.is_multi_process:
            return "its processes are started by one worker, but the mesh belongs to several"
        if "model" not in problem.outline and JAX_CHILD not in self.FOREIGN.get("command", ()):
            return "the workload has no outline for other frameworks"
        try:
            # Processes that were started for another mesh can answer as well.
            asked = self.spare if self.spare and not self.spare.closed else self.children(mesh)
            answers = asked.ask("why_unsupported", problem=_described(problem, mesh))
        except UnsupportedError as error:
            return str(error)
        return cast("str | None", the_same([own["reason"] for own in answers], "the reason"))

    def build(self, problem: Problem, mesh: Mesh) -> ForeignStep:
        """Build the step in the spare processes."""
        start = {**problem.draw(), STATE: problem.draw_state()}
        children = self.children(mesh)
        described = {**_described(problem, mesh), "figures": not self.known_figures}
        answers = children.ask("build", named(start), problem=described)
        spans: list[int] = []

        def place(batch: Batch) -> int:
            arrays = {str(number): leaf for number, leaf in enumerate(jax.tree.leaves(batch))}
            children.ask("place", arrays)
            return 0

        def step(state: int, _batch: int) -> tuple[int, jax.Array]:
            answers = children.ask("run", steps=1, wait_each=False)
            spans.append(max(answer["ns"] for answer in answers))
            return state + 1, jnp.asarray(the_same([a["loss"] for a in answers], "the loss"))

        return ForeignStep(
            state=0,
            place=place,
            step=step,
            params=lambda _: without_state(_as_tree(start, children.params())),
            model_state=lambda _: _as_tree(start, children.params())[STATE],
            children=children,
            module=self,
            spans=spans,
            versions=answers[0]["versions"],
            figures=answers[0].get("figures", {}),
        )


def without_state(tree: Params) -> Params:
    """Return only the parameters."""
    return {name: own for name, own in tree.items() if name != STATE}


def named(tree: Any) -> dict[str, np.ndarray]:
    """Copy a tree's arrays to the host, by path; PRNG keys as their words."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {path_of(path): np.asarray(words(leaf)) for path, leaf in leaves}


def restored(tree: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Return a tree with the arrays of `named` in place of its own."""
    return jax.tree_util.tree_map_with_path(
        lambda path, own: of_words(jnp.asarray(arrays[path_of(path)]), own), tree
    )


def _described(problem: Problem, mesh: Mesh) -> dict[str, Any]:
    """Describe a problem to a child, as JSON."""
    return {
        **problem.outline,
        "batch_size": problem.batch_size,
        "microbatches": problem.microbatches,
        "mesh": dict(mesh.shape),
        "platform": mesh.devices.flat[0].platform,
        "timed": not is_proving.get(),
    }


def _as_tree(start: Params, processes: list[dict[str, np.ndarray]]) -> Params:
    """Arrange the first process's arrays like `start`; WrongStepError if any process's differ."""
    wanted, (first, *others) = named(start), processes
    for own in processes:
        check_alike(own, wanted)
    for name, array in first.items():
        the_same([True, *(own[name].tobytes() == array.tobytes() for own in others)], name)
    return restored(start, first)
