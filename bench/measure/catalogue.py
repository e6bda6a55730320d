"""Devices, files, support and shardings, as reported by child processes that import jax."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from bench.measure.environment import child_environment, worker_environment
from bench.measure.processes.guarded import ChildError, ask
from bench.plan.matrix import Plan, make_plan
from bench.plan.option_values import BadInput
from bench.plan.options import Options
from bench.plan.presets import CLASSES
from bench.records.arms import TWIN
from bench.records.cells import StepOptions
from bench.records.mesh import MeshShape
from bench.records.messages import (
    Catalogue,
    FilePaths,
    Inspection,
    SupportAnswer,
    SupportRequest,
    cell_request,
)
from bench.records.paths import ROOT, module_command

COMMAND = module_command("bench.worker.answer.available")
TIMEOUT_S = 300.0
"""Time limit that allows for the first initialization of an accelerator."""

SUPPORT_COMMAND = (*module_command("bench.worker.answer.cell_requests"), "support")
SUPPORT_TIMEOUT_S = 120.0

LAYOUT_TIMEOUT_S = 600.0

Reasons = Mapping[str, Mapping[str, str]]
"""Known reasons, by block and implementation, why it cannot run there; empty if it can."""


def file_faults(implementation_paths: Sequence[str], workload_paths: Sequence[str]) -> list[str]:
    """Find the faults of files named by these options, without importing them."""
    found = {
        "--implementation-path": path_faults("implementations", implementation_paths),
        "--workload-path": path_faults("bench/contract/workloads", workload_paths),
    }
    return [f"{option}: {fault}" for option, faults in found.items() for fault in faults]


def path_faults(folder: str, paths: Sequence[str]) -> list[str]:
    """Find the faults of files given in addition to those of a built-in folder."""
    taken = {
        path.stem: f"the built-in {path.relative_to(ROOT)}, which is selected by its name"
        for path in (ROOT / folder).rglob("*.py")
    }
    taken[TWIN] = "the copy of the baseline"
    if folder == "implementations":
        taken |= dict.fromkeys(CLASSES, "a class of implementations")
    faults = []
    for text in paths:
        path = Path(text)
        if not path.is_file():
            no_file = f"there is no file {text or repr(text)}"
            faults.append(f"{text} is a folder" if text and path.is_dir() else no_file)
        elif path.suffix != ".py" or not path.stem.isidentifier():
            faults.append(f"{text} is not named like a Python module, NAME.py")
        elif path.stem in taken:
            same = f"has the same name as {taken[path.stem]}"
            faults.append(f"{text} {same}; rename it, or leave it out")
        else:
            taken[path.stem] = text
    return faults


def read_catalogue(
    implementation_paths: Sequence[str] = (), workload_paths: Sequence[str] = ()
) -> Catalogue:
    """Ask a child process for devices, versions, implementations and workloads.

    If importing a file ends the process (os._exit, a crash, an endless loop), that becomes the
    file's error, and another process lists the rest. Raises ChildError if a process ends without an
    answer and no file is to blame.
    """
    paths = FilePaths(
        # A link is not followed: a file is selected by the name that was given.
        implementation_paths=[str(Path(path).absolute()) for path in implementation_paths],
        workload_paths=[str(Path(path).absolute()) for path in workload_paths],
    )
    fatal: dict[str, str] = {}
    while True:
        request = json.dumps({**paths, "fatal": fatal})
        answer = ask(COMMAND, request, child_environment(), TIMEOUT_S)
        last = _last(answer.out)
        if answer.code == 0 and isinstance(last, dict):
            return cast("Catalogue", last)
        if not isinstance(last, str) or last in fatal:
            raise ChildError(
                "cannot list what can run here: `python -m bench.worker.answer.available` "
                f"{answer.ending}. Its last lines:\n{answer.quoted_lines()}"
            )
        fatal[last] = f"the process that imported it {answer.blame}"


def find_unsupported(plan: Plan, catalogue: Catalogue) -> Reasons:
    """Ask every implementation of a plan which of its blocks it cannot run, and why.

    Other versions and variants of them, each a process, are left to the workers, as are all if
    launchers start the processes or the child fails. Raises BadInput if an answer is faulty.
    """
    if catalogue["processes"] > 1:
        return {}
    request = SupportRequest(
        blocks=[block.fields for block in plan.blocks],
        implementations=[name for name in plan.implementations if "@" not in name],
        implementation_paths=plan.worker["implementation_paths"],
        workload_paths=plan.worker["workload_paths"],
    )
    devices = max((block.mesh.size for block in plan.blocks), default=1)
    environment = worker_environment(catalogue["platform"], devices)
    answer = ask(SUPPORT_COMMAND, json.dumps(request), environment, SUPPORT_TIMEOUT_S)
    found: SupportAnswer | None = _last(answer.out) if answer.code == 0 else None
    if found and found["faults"]:
        raise BadInput(found["faults"])
    return found["unsupported"] if found else {}


def read_layout(
    name: str, implementation_paths: Sequence[str] = (), workload_paths: Sequence[str] = ()
) -> Inspection:
    """Build a cell in a child process and read the sharding of its arrays.

    The cell is named like `gpt2-nano/data=2,model=2/b16/fp32/NAME`; the paths are of files
    outside implementations/ and bench/contract/workloads/. Raises BadInput if no cell with this
    name can be measured here, and ChildError if the child process cannot build it.
    """
    if faults := file_faults(implementation_paths, workload_paths):
        raise BadInput(faults)
    options = _options(name, implementation_paths, workload_paths)
    catalogue = read_catalogue(implementation_paths, workload_paths)
    try:
        plan = make_plan(options, catalogue)
    except BadInput as error:  # it names options of a run, which nobody has typed
        said = (re.sub(r"^--\S+: ", f"{name!r}: ", fault) for fault in error.faults)
        raise BadInput([*said]) from error
    cell = next(c for c in plan.cells if c.implementation == options.implementations[0])
    environment = worker_environment(catalogue["platform"], cell.block.mesh.size)
    request = json.dumps(cell_request(cell, catalogue))
    command = (*module_command("bench.worker.answer.cell_requests"), "inspect")
    answer = ask(command, request, environment, LAYOUT_TIMEOUT_S)
    if answer.code is None:
        raise ChildError(f"{cell.name} was not built within {LAYOUT_TIMEOUT_S:.0f} s")
    if answer.code:
        raise ChildError(f"{cell.name} cannot be built. Its last lines:\n{answer.quoted_lines()}")
    return cast("Inspection", json.loads(answer.out))


def _options(name: str, implementations: Sequence[str], workloads: Sequence[str]) -> Options:
    """Make the options of a run of this cell, in one process and no variant: both shard alike."""
    try:
        workload, mesh, batch, text, implementation = name.split("/")
    except ValueError:
        example = "gpt2-nano/data=2/b16/fp32/python_loop"
        raise BadInput([f"{name!r} is not a cell; cells are named like {example}"]) from None
    devices = None
    with contextlib.suppress(ValueError):  # a mesh that cannot be read is a fault of the plan
        devices = str(MeshShape.parse(mesh).size)
    try:
        step = StepOptions.parse(text)
    except ValueError as error:
        raise BadInput([str(error)]) from error
    if implementation in CLASSES:
        raise BadInput([f"{name!r} names a class of implementations: name one of them"])
    if devices and step.processes > int(devices):
        raise BadInput([f"{name!r}: {step.processes} processes need as many devices"])
    return Options(
        workloads=(workload,),
        implementations=(implementation,),
        meshes=(mesh,),
        devices=devices,
        batch_sizes=(batch.removeprefix("b"),),
        precision=(step.precision,),
        microbatches=(str(step.microbatches),),
        scan_layers=("yes",) if step.scan_layers else (),
        remat=(step.remat,) if step.remat else (),
        clip_norm=None if step.clip_norm is None else str(step.clip_norm),
        scaling="strong",
        implementation_path=tuple(implementations),
        workload_path=tuple(workloads),
    )


def _last(text: str) -> Any:
    """Parse the last line that is JSON, which is the answer; None if there is none."""
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            return json.loads(line)
    return None
