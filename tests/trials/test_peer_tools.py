from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from bench.measure.environment import child_environment
from bench.measure.processes.guarded import Answer, ChildError
from bench.plan.option_values import BadInput
from bench.trials.selftest import peer_tools as peers
from bench.trials.selftest import planted_kernel as kernels
from bench.trials.selftest.peer_tools import (
    PEERS,
    compare_to_slower,
    has_regressed,
    run_tool,
    spinning,
    u_test_slower,
    welch_slower,
)
from bench.trials.selftest.planted_kernel import SEED, Kernel, build

NAMES = sorted(PEERS)


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Kernel:
    if reason := kernels.why_unavailable():
        pytest.skip(reason)
    return build(tmp_path_factory.mktemp("kernel"))


def expected(iterations: int, seed: float = SEED) -> float:
    for _ in range(iterations):
        seed = seed * (1 - 2**-20) + 2**-20
    return seed


@pytest.mark.parametrize("iterations", [0, 1, 2, 1000])
def test_spin_computes_what_python_does(kernel: Kernel, iterations: int) -> None:
    assert kernel.spin(iterations) == expected(iterations)
    assert kernel.spin(iterations, 0.25) == expected(iterations, 0.25)


def test_what_spin_computes_depends_on_its_length(kernel: Kernel) -> None:
    assert len({kernel.spin(n) for n in (1, 2, 3, 1_000_000, 1_000_001)}) == 5


def test_the_program_spins_as_often_as_told(kernel: Kernel) -> None:
    done = subprocess.run([kernel.executable, "150"], capture_output=True, check=True)
    assert float(done.stdout) == expected(150)


def test_iterations_are_found_by_timing(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kernel, "seconds_for", lambda _, n: 2e-9 * n)
    assert kernel.iterations_for(1e-3) == 500_000
    assert kernel.iterations_for(1e-12) == 1


def test_a_call_takes_time(kernel: Kernel) -> None:
    assert kernel.seconds_for(1000) > 0


def test_a_program_for_python_calls_the_kernel(kernel: Kernel) -> None:
    names: dict[str, Callable[[], float]] = {}
    exec(spinning(kernel, 50).setup, names)
    assert names["call"]() == expected(50)


def test_a_missing_compiler_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BadInput, match=r"no C\+\+ compiler.*apt install g\+\+"):
        build(tmp_path)
    assert not kernels.has_header("cstdint")
    monkeypatch.setenv("CXX", "c++-of-mine -g")
    with pytest.raises(BadInput, match=r"CXX names c\+\+-of-mine -g, which is not on the path"):
        build(tmp_path)


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho it broke >&2\nexit 1\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(BadInput, match=r"libplanted\.so cannot be compiled:\n  it broke"):
        build(tmp_path)


def test_headers_are_found(kernel: Kernel) -> None:
    assert kernels.has_header("cstdint")
    assert not kernels.has_header("no/such/header.h")


def test_every_tool_says_whether_it_can_be_used() -> None:
    assert len(NAMES) >= 4
    for peer in PEERS.values():
        assert peer.why_unavailable() is None or "install" in peer.why_unavailable()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_tool_sees_a_program_that_takes_three_times_as_long(
    name: str, kernel: Kernel, tmp_path: Path
) -> None:
    peer = PEERS[name]
    if reason := peer.why_unavailable():
        pytest.skip(reason)
    base = kernel.iterations_for(1e-3)
    # On a loaded machine a short trial may stay undecided, but it must never name the wrong one.
    for budget_s in (0.2, 1.0, 5.0):
        found = peer.trial(spinning(kernel, base), spinning(kernel, 3 * base), budget_s, tmp_path)
        assert found.slower is not False
        assert found.measured_s > 0
        if found.slower:
            break
    assert found.slower is True
    assert list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["google_benchmark", "hyperfine"])
def test_a_tool_that_is_absent_says_how_to_get_it(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert "install" in PEERS[name].why_unavailable()


@pytest.mark.parametrize("name", ["pyperf", "pytest_benchmark"])
def test_a_package_that_is_absent_says_how_to_get_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert "pip install py" in PEERS[name].why_unavailable()


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


def test_the_verdict_of_hyperfine() -> None:
    base = [1.00, 1.02, 1.01, 1.03, 0.99, 1.00]
    assert welch_slower(base, [time + 0.1 for time in base]) is True
    assert welch_slower(base, [time - 0.1 for time in base]) is False
    assert welch_slower(base, [time + 0.001 for time in base]) is None


def test_the_verdict_of_google_benchmark() -> None:
    base = [1005.0, 1006.1, 1004.2, 1007.3, 1005.4, 1006.5, 1004.6, 1005.7, 1006.8]
    assert u_test_slower(base, [time + 17 for time in base]) is True
    assert u_test_slower(base, [time - 17 for time in base]) is False
    assert u_test_slower(base, [time + 0.1 for time in base]) is None
    # U is 18 of 81, p is 0.052; U is 13, p is 0.017.
    assert u_test_slower([1, 2, 3, 4, 5, 6, 7, 8, 9.5], [4.5, *range(5, 13)]) is None
    assert u_test_slower([1, 2, 3, 4, 5, 6, 7, 8, 9], [4.5, *range(6, 14)]) is True


def test_a_tool_that_fails_is_quoted(tmp_path: Path) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    with pytest.raises(ChildError, match=r"ended with exit code 3; its last lines:\nout\nerr$"):
        run_tool([sys.executable, "-c", code], tmp_path, 1)
    done = run_tool([sys.executable, "-c", code], tmp_path, 1, codes=(0, 3))
    assert (done.code, done.out, done.tail) == (3, "out\n", ["err"])
    with pytest.raises(ChildError, match="no-such-tool cannot be started"):
        run_tool([str(tmp_path / "no-such-tool")], tmp_path, 1)


def test_a_tool_runs_where_and_as_it_is_told(tmp_path: Path) -> None:
    code = "import os; print(os.getcwd(), os.environ['TOLD'])"
    done = run_tool([sys.executable, "-c", code], tmp_path, 1, {"TOLD": "so"})
    assert done.out == f"{tmp_path} so\n"


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
    monkeypatch.setattr(peers, "_START_S", 1.0)
    monkeypatch.setattr(peers, "_SLOWDOWN", 0.0)
    with pytest.raises(ChildError, match="did not end within 1 s"):
        run_tool([sys.executable, "-c", TOOL], tmp_path, 1)
    assert child_of_tool(tmp_path) is None


def test_a_tool_ends_with_its_children_if_the_self_test_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from bench.trials.selftest.peer_tools import run_tool;"
        "run_tool([sys.executable, '-c', sys.argv[1]], Path(sys.argv[2]), 100)"
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
