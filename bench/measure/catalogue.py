"""What is available and supported, according to child processes that import jax and all files."""

import contextlib
import difflib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from bench.measure.environment import child_environment, worker_environment
from bench.measure.processes.guarded import ChildError, ask
from bench.plan.matrix import Plan
from bench.plan.option_values import BadInput
from bench.records.arms import TWIN
from bench.records.messages import Catalogue, CatalogueRequest, SupportAnswer, SupportRequest
from bench.records.paths import ROOT

COMMAND = (sys.executable, "-m", "bench.worker.answer.available")
TIMEOUT_S = 300.0
"""Time limit that allows for the first initialization of an accelerator."""

SUPPORT_COMMAND = (sys.executable, "-m", "bench.worker.answer.asked_cells", "support")
SUPPORT_TIMEOUT_S = 120.0

Reasons = Mapping[str, Mapping[str, str]]
"""Known reasons, by block and implementation, why it cannot run there; empty if it can."""


def file_faults(implementation_paths: Sequence[str], workload_paths: Sequence[str]) -> list[str]:
    """Find the faults of files named by these options, without importing them."""
    implementations = path_faults("implementations", implementation_paths)
    workloads = path_faults("bench/contract/workloads", workload_paths)
    return [
        *(f"--implementation-path: {fault}" for fault in implementations),
        *(f"--workload-path: {fault}" for fault in workloads),
    ]


def path_faults(folder: str, paths: Sequence[str]) -> list[str]:
    """Find the faults of files that are to be used beside those of a folder."""
    built_in = {path.stem: path for path in (ROOT / folder).rglob("*.py")}
    faults = []
    seen: dict[str, str] = {}
    for text in paths:
        path = Path(text)
        name, other = path.stem, built_in.get(path.stem)
        if not path.is_file():
            names = (file.name for file in path.parent.glob("*.py") if file.is_file())
            near = difflib.get_close_matches(path.name, names, n=5, cutoff=0.0)
            beside = f"; beside it: {', '.join(near)}" if near else ""
            what = f"there is no file {text or repr(text)}"
            what = f"{text} is a folder" if text and path.is_dir() else what
            faults.append(f"{what}{beside}")
        elif path.suffix != ".py" or not name.isidentifier():
            faults.append(f"{text} is not named like a Python module, NAME.py")
        elif name == TWIN:
            faults.append(f"{TWIN} is the name of the baseline's copy; rename {text}")
        elif name in seen:
            faults.append(f"{text} and {seen[name]} have the same name; rename one")
        elif other is not None and not path.samefile(other):
            faults.append(f"{text} has the name of {folder}/{path.name}; rename it")
        elif other is not None:
            faults.append(f"{text} is a built-in file; select it by its name, {name}")
        seen.setdefault(name, text)
    return faults


def read_catalogue(
    implementation_paths: Sequence[str] = (), workload_paths: Sequence[str] = ()
) -> Catalogue:
    """Ask a child process for devices, versions, implementations and workloads.

    If importing a file ends the process (os._exit, a crash, an endless loop), that becomes the
    file's error, and another process lists the rest.

    Raises:
      ChildError: the process ended without an answer, and no file is to blame.
    """
    request: CatalogueRequest = {
        "implementation_paths": [str(Path(path).resolve()) for path in implementation_paths],
        "workload_paths": [str(Path(path).resolve()) for path in workload_paths],
        "fatal": {},
    }
    while True:
        answer = ask(COMMAND, json.dumps(request), child_environment(), TIMEOUT_S)
        values = _read(answer.out)
        if answer.code == 0 and values and isinstance(values[-1], dict):
            paths = {name: request[name] for name in ("implementation_paths", "workload_paths")}
            return cast("Catalogue", {**values[-1], **paths})
        file = values[-1] if values else None
        if not isinstance(file, str) or file in request["fatal"]:
            raise ChildError(
                "cannot list what can run here: `python -m bench.worker.answer.available` "
                f"{answer.ending}. Its last lines:\n{answer.quoted_lines()}"
            )
        request["fatal"][file] = f"the process that imported it {answer.blame}"


def find_unsupported(plan: Plan, catalogue: Catalogue) -> Reasons:
    """Query every implementation of a plan; the result is empty if launchers start the processes.

    Raises BadInput if a file's why_unsupported returns neither None nor a reason.
    """
    if catalogue["processes"] > 1:
        return {}
    request = SupportRequest(
        blocks=[block.fields for block in plan.blocks],
        implementations=list(plan.implementations),
        implementation_paths=plan.worker["implementation_paths"],
        workload_paths=plan.worker["workload_paths"],
    )
    devices = max((block.mesh.size for block in plan.blocks), default=1)
    environment = worker_environment(catalogue["platform"], devices)
    answer = ask(SUPPORT_COMMAND, json.dumps(request), environment, SUPPORT_TIMEOUT_S)
    if answer.code != 0 or not (values := _read(answer.out)):  # the workers will say what is wrong
        return {}
    found: SupportAnswer = values[-1]
    if found["faults"]:
        raise BadInput(found["faults"])
    return found["unsupported"]


def _read(text: str) -> list[Any]:
    """Parse the lines that are JSON; the last one is the answer."""
    values = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            values.append(json.loads(line))
    return values
