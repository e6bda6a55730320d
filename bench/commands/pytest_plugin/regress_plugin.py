"""The end of a gate: its summary for a pull request, its closing lines and its exit code.

`python -m bench regress` loads this plugin beside run_plugin.py, which does everything else.
"""

from collections.abc import Generator
from typing import Any

import pytest

from bench.commands.exits import BAD_INPUT, INTERRUPTED
from bench.commands.pytest_plugin.run_plugin import FRONT, Front
from bench.plan.options import add_options
from bench.records import files

_CUT_SHORT = {
    2: "interrupted",
    3: "Lockstep itself failed",
    BAD_INPUT: "something changed under it",
}
"""pytest's exit codes that mean that measurements are missing."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options of a gate in addition to those of a run."""
    group = parser.getgroup("lockstep-regress", "Lockstep: gating a change")
    add_options(group.addoption, gate=True)


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None, Any, Any]:
    """Judge the stored results, after everything else has finished."""
    result = yield
    front = session.config.stash[FRONT]
    session.exitstatus = _exit_code(int(session.exitstatus), front)
    return result


def _exit_code(pytest_code: int, front: Front) -> int:
    if front.stored is not None:
        # Libraries of the report's numbers take seconds to load: see run_plugin.py.
        from bench.analyse import outcomes
        from bench.present import gate_comment

        run, tables = front.stored
        outcome = outcomes.judge(run, tables, _CUT_SHORT.get(pytest_code, ""))
        summary = run.directory / gate_comment.FILE
        files.write(summary, gate_comment.markdown(outcome))
        gate_comment.show(outcome, front.console)
        front.console.print(f"summary: {summary.as_posix()}", soft_wrap=True)
        if not outcome.ended:
            return outcome.code
    # pytest's own code for an interruption has another meaning here: too much is undecided.
    return {2: INTERRUPTED, 5: BAD_INPUT}.get(pytest_code, pytest_code)
