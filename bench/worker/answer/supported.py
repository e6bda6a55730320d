"""Prints as JSON why implementations cannot run cells, without computing anything.

Only `why_unsupported` is called. Cells that it cannot decide here are left to a worker.
"""

from typing import Any, cast

from bench.records.cells import Block
from bench.records.messages import SupportAnswer, SupportRequest
from bench.worker.event_stream import answer_requests
from bench.worker.file_loader import implementation_files, load, workload_files
from bench.worker.problems import load_workload, make_mesh, make_problem
from bench.worker.prove.failures import WrongStepError, failure, why_unsupported


def answer(request: SupportRequest) -> SupportAnswer:
    """Ask every implementation about every block."""
    files = implementation_files(request["implementation_paths"])
    found = SupportAnswer(unsupported={}, faults=[])
    for text in request["blocks"]:
        block = Block.of(text)
        try:
            mesh = make_mesh(block.mesh)
        except ValueError:  # its worker may have more devices
            continue
        try:
            workload = load_workload(block, request["workload_paths"])
            problem = make_problem(workload, block, block.options.precision)
        except Exception as error:  # noqa: BLE001 - a user's file may raise anything
            status, reason = failure(error)
            if status != "oom":  # its worker may have more memory
                path = workload_files(request["workload_paths"])[block.workload]
                found["faults"].append(f"workload {block.workload} ({path}): {reason}")
            continue
        own = found["unsupported"][block.name] = {}
        for name in request["implementations"]:
            try:
                own[name] = why_unsupported(cast("Any", load(files[name])), problem, mesh)
            except WrongStepError as error:
                found["faults"].append(f"implementation {name} ({files[name]}): {error}")
            except BaseException:  # noqa: BLE001, S112 - a user's file may raise anything
                continue
    found["faults"] = list(dict.fromkeys(found["faults"]))
    return found


if __name__ == "__main__":
    answer_requests(answer)
