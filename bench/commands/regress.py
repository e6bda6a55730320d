"""The end of a gate: the summary for a pull request, the closing lines, and the exit code.

Loaded by `python -m bench regress` beside bench.commands.pytest_front, which does everything else.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from bench.commands.exits import INTERRUPTED
from bench.commands.pytest_front import FRONT, Front
from bench.plan.options import add_regress_options
from bench.records import store

_BAD_INPUT = int(pytest.ExitCode.USAGE_ERROR)

_CUT_SHORT = {
    2: "interrupted",
    3: "Lockstep itself failed",
    _BAD_INPUT: "something changed under it",
}
"""Pytest's exit codes after which something is missing."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare what a regress run takes beside the options of a run."""
    group = parser.getgroup("lockstep-regress", "Lockstep: gating a change")
    add_regress_options(group.addoption)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, Any, Any]:
    """After everything else: what was stored is judged."""
    result = yield
    front = session.config.stash[FRONT]
    session.exitstatus = _exit_code(int(session.exitstatus), front)
    return result


def _exit_code(pytests: int, front: Front) -> int:
    directory = front.engine.directory
    if directory is not None and (directory / store.LAUNCHES).is_file():
        # Drawing libraries come with the report's numbers: see bench.commands.pytest_front.
        from bench.analyse import gate_outcome as outcomes  # noqa: PLC0415
        from bench.present import gate_comment  # noqa: PLC0415

        outcome = outcomes.judge(store.load(directory), _CUT_SHORT.get(pytests, ""))
        summary = gate_comment.write(outcome, directory)
        gate_comment.show(outcome, front.console)
        front.console.print(f"summary: {summary.as_posix()}", soft_wrap=True)
        if not outcome.ended:
            return outcome.code
    # Pytest's own code for interruption says here that too much is undecided.
    changed = {2: INTERRUPTED, 5: _BAD_INPUT}
    return changed.get(pytests, pytests)
