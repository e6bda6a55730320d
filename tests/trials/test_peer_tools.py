from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.measure.environment import child_environment
from bench.measure.processes.guarded import Answer, ChildError
from bench.trials.selftest import peer_tools as peers
from bench.trials.selftest.peer_tools import (
    PEERS,
    Pair,
    compare_to_slower,
    has_regressed,
    run_python,
    why_unavailable,
)

NAMES = sorted(PEERS)


def adding(numbers: int) -> str:
    """A program whose duration is proportional to its numbers, of which a million take some ms."""
    return f"def call():\n    return sum(range({numbers}))\n"


def test_every_tool_says_whether_it_can_be_used() -> None:
    assert len(NAMES) >= 2
    for name in NAMES:
        reason = why_unavailable(name)
        assert reason is None or "install" in reason


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_tool_sees_a_program_that_takes_three_times_as_long(name: str, tmp_path: Path) -> None:
    if reason := why_unavailable(name):
        pytest.skip(reason)
    pair = Pair(adding(100_000), adding(300_000), 1e-3, child_environment())
    # On a loaded machine a short trial may stay undecided, but it must never name the wrong one.
    for budget_s in (0.2, 1.0, 5.0):
        slower, measured_s = PEERS[name](pair, budget_s, tmp_path)
        assert slower is not False
        assert measured_s > 0
        if slower:
            break
    assert slower is True
    assert list(tmp_path.iterdir())


@pytest.mark.parametrize("name", NAMES)
def test_a_package_that_is_absent_says_how_to_get_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "pip install py" in str(why_unavailable(name))


def ended(code: int, stderr: str) -> Answer:
    return Answer("1 passed in 0.78s\n", stderr.splitlines(), code)


def test_the_verdict_of_pytest_benchmark() -> None:
    regressed = (
        "Comparing against benchmarks from: Linux-CPython-3.12-64bit/0001_base.json\n"
        "Performance has regressed:\n"
        "\ttest_spin (0001_base) - Field 'min' has failed PercentageRegressionCheck: "
        "200.211901721 > 2.000000000\n"
    )
    assert has_regressed(ended(1, regressed))
    assert not has_regressed(ended(0, regressed.splitlines()[0]))
    with pytest.raises(ChildError, match=r"exit code 1; its last lines:\n1 passed .*\nno library"):
        has_regressed(ended(1, "no library"))


def test_the_verdict_of_pyperf() -> None:
    line = "Mean +- std dev: [base] 1.00 ms +- 0.02 ms -> [other] 1.05 ms +- 0.01 ms: {}\n"
    assert compare_to_slower(line.format("1.05x slower")) is True
    assert compare_to_slower(line.format("1.05x faster")) is False
    assert compare_to_slower("Benchmark hidden because not significant (1): timeit\n") is None
    with pytest.raises(ChildError, match="no verdict:\nnothing"):
        compare_to_slower("nothing")


def test_a_tool_that_fails_is_quoted() -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    with pytest.raises(ChildError, match=r"ended with exit code 3; its last lines:\nout\nerr$"):
        run_python(["-c", code], child_environment())
    done = run_python(["-c", code], child_environment(), codes=(0, 3))
    assert (done.code, done.out, done.tail) == (3, "out\n", ["err"])


def test_a_tool_runs_where_and_as_it_is_told(tmp_path: Path) -> None:
    code = "import os; print(os.getcwd(), os.environ['TOLD'], input())"
    told = {**child_environment(), "TOLD": "so"}
    done = run_python(["-c", code], told, question="why?", cwd=tmp_path)
    assert done.out == f"{tmp_path} so why?\n"


def test_a_tool_may_be_silent_while_it_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tool, and Lockstep's own worker, prints its results at the end."""
    limits: list[float] = []
    monkeypatch.setattr(
        peers, "ask", lambda *told, **_: (limits.append(told[3]), Answer("", [], 0))[1]
    )
    for seconds in (1.0, 3600.0):
        run_python([], {}, seconds)
    assert limits[1] > limits[0] + 3600 > 3600


# The child holds the output open, as it would its parent's.
TOOL = (
    "import pathlib, subprocess; child = subprocess.Popen(['sleep', '60'], start_new_session=True);"
    "pathlib.Path('draft').write_text(str(child.pid)); pathlib.Path('draft').rename('pid');"
    "child.wait()"
)


def child_of_tool(folder: Path) -> psutil.Process | None:
    """Return the process that the tool started; None if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess):
        child = psutil.Process(int((folder / "pid").read_text()))
        return None if child.status() == psutil.STATUS_ZOMBIE else child
    return None


def test_a_tool_that_hangs_is_ended_with_its_children(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(peers, "LIMIT_S", 1.0)
    with pytest.raises(ChildError, match="a process took too long"):
        run_python(["-c", TOOL], child_environment(), cwd=tmp_path)
    assert child_of_tool(tmp_path) is None


def test_a_tool_ends_with_its_children_if_the_self_test_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys;"
        "from bench.trials.selftest.peer_tools import run_python;"
        "run_python(['-c', sys.argv[1]], os.environ, cwd=sys.argv[2])"
    )
    words = [sys.executable, "-c", code, TOOL, str(tmp_path)]
    with subprocess.Popen(words, env=child_environment()) as front:
        while not (tmp_path / "pid").exists():
            assert front.poll() is None
            time.sleep(0.02)
        child = child_of_tool(tmp_path)
        assert child is not None
        front.kill()
    psutil.wait_procs([child], timeout=60)
    assert child_of_tool(tmp_path) is None
