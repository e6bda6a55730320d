"""Unsupported cells of a plan, found by a child process before anything is measured."""

import json
import sys
from collections.abc import Mapping

from bench.measure.environment import worker_environment
from bench.measure.processes.ask import ask
from bench.plan.matrix import Plan
from bench.plan.option_values import BadInput
from bench.records.messages import Catalogue, SupportAnswer, SupportRequest

COMMAND = (sys.executable, "-m", "bench.worker.answer.supported")
TIMEOUT_S = 120.0

Reasons = Mapping[str, Mapping[str, str]]
"""Known reasons, by block and implementation, why it cannot run there; empty if it can."""


def find_unsupported(plan: Plan, catalogue: Catalogue) -> Reasons:
    """Query every implementation of a plan; the result is empty if launchers start the processes.

    Raises:
      BadInput: a file's why_unsupported returns neither None nor a reason.
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
    answer = ask(COMMAND, json.dumps(request), environment, TIMEOUT_S)
    lines = answer.out.splitlines()
    if answer.code != 0 or not lines:  # the workers will report what is wrong
        return {}
    found: SupportAnswer = json.loads(lines[-1])
    if found["faults"]:
        raise BadInput(found["faults"])
    return found["unsupported"]
