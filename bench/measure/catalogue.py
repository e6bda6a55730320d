"""What there is to run, and on what. A child process looks, so that this one never imports jax."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from bench.measure.environment import child_environment
from bench.measure.processes.ask import ChildError, ask
from bench.records.arms import TWIN
from bench.records.messages import Catalogue, CatalogueRequest
from bench.records.paths import ROOT
from bench.records.printable import readable

COMMAND = (sys.executable, "-m", "bench.worker.answer.available")
TIMEOUT_S = 300.0
"""Long enough for an accelerator's first start."""

_FOLDERS = {
    "--implementation-path": "implementations",
    "--workload-path": "bench/contract/workloads",
}


def path_faults(option: str, paths: Sequence[str]) -> list[str]:
    """What is wrong with files named on the command line, found before anything is imported.

    Args:
      option: `--implementation-path` or `--workload-path`.
      paths: as typed.
    """
    built_in = {path.stem: path for path in (ROOT / _FOLDERS[option]).glob("*.py")}
    faults = []
    seen: dict[str, str] = {}
    for text in paths:
        path = Path(text)
        if not path.is_file():
            near = sorted(other.name for other in path.parent.glob("*.py"))[:5]
            beside = f"; beside it: {', '.join(near)}" if near else ""
            faults.append(f"{option}: there is no file {text}{beside}")
        elif path.suffix != ".py" or not path.stem.isidentifier():
            faults.append(f"{option}: {text} is not named like a Python module, NAME.py")
        elif path.stem == TWIN:
            faults.append(f"{option}: {TWIN} is the name of the baseline's copy; rename {text}")
        elif path.stem in seen:
            faults.append(f"{option}: {text} and {seen[path.stem]} have the same name; rename one")
        elif path.stem in built_in and not path.samefile(built_in[path.stem]):
            folder = _FOLDERS[option]
            faults.append(f"{option}: {text} has the name of {folder}/{path.name}; rename it")
        elif path.stem in built_in:
            faults.append(f"{option}: {text} is there already; select it by its name, {path.stem}")
        seen.setdefault(path.stem, text)
    return faults


def file_faults(implementation_paths: Sequence[str], workload_paths: Sequence[str]) -> list[str]:
    """What is wrong with files of both kinds; see `path_faults`."""
    return [
        *path_faults("--implementation-path", implementation_paths),
        *path_faults("--workload-path", workload_paths),
    ]


def read_catalogue(
    implementation_paths: Sequence[str] = (), workload_paths: Sequence[str] = ()
) -> Catalogue:
    """Ask a child process for devices, versions, implementations and workloads.

    A file that ends the process which imports it (os._exit, a crash, a loop without end) has that
    as its error, and another process is asked about the rest.

    Raises:
      ChildError: it ended without an answer, and no file is to blame.
    """
    request: CatalogueRequest = {
        "implementation_paths": [str(Path(path).resolve()) for path in implementation_paths],
        "workload_paths": [str(Path(path).resolve()) for path in workload_paths],
        "fatal": {},
    }
    while True:
        answer = ask(COMMAND, json.dumps(request), child_environment(), TIMEOUT_S)
        said = _read(answer.out)
        if answer.code == 0 and said and isinstance(said[-1], dict):
            return cast(
                "Catalogue",
                {
                    **said[-1],
                    "implementation_paths": request["implementation_paths"],
                    "workload_paths": request["workload_paths"],
                },
            )
        file = said[-1] if said else None
        if not isinstance(file, str) or file in request["fatal"]:
            raise ChildError(
                "cannot find out what there is to run: `python -m bench.worker.answer.available` "
                f"{answer.ending}. Its last lines:\n{answer.quoted_lines()}"
            )
        last = "".join(f"; its last line: {line}" for line in answer.last_lines(1))
        request["fatal"][file] = readable(f"the process that imported it {answer.ending}{last}")


def _read(text: str) -> list[Any]:
    """The lines that are JSON: the files that were imported, then the catalogue."""
    found = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found
