"""An upgrade, with a uv and a worker that behave as told; and how a bisection goes."""

from __future__ import annotations

import re
import signal
import sys
import time

import psutil
import pytest
from fronts import FRONT, Front

from bench.commands.upgrade import bisect
from bench.records.paths import ROOT

PLAN = ("--workloads", "mlp", "--meshes", "data=2", "--launches", "1", "-k", "pmap")
SMALL = (*PLAN, "--run", "r")


@pytest.fixture
def front(tmp_path) -> Front:
    uv = tmp_path / "path" / "uv"
    uv.parent.mkdir()
    uv.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/tests/fakes/uv.py "$@"\n')
    uv.chmod(0o755)
    (tmp_path / "run").mkdir()
    front = Front(tmp_path / "run")
    front.environment |= {
        "PATH": f"{uv.parent}:/usr/bin:/bin",
        "FAKE_UV_LOG": str(tmp_path / "uv.log"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    return front


@pytest.mark.slow
def test_a_step_is_compared_with_itself_under_another_jax(front: Front) -> None:
    front.told(equal=True, times={"pmap": 1.5})
    done = front("upgrade", "--from", "jax==0.11.0", *SMALL)
    assert done.code == 1, done
    assert "Regression: slower in 1 of 1 comparison with jax==0.11.0" in done.out
    (job, *_) = front.jobs
    assert job["implementations"] == ["pmap", "pmap@base"]
    assert "pmap" in job["isolated"], "the base has a process of its own in any case"
    summary = (front.folder / "reports/r/regress.md").read_text()
    assert "all in processes of their own" in summary
    assert ", jax 0.11.0, flax 0.12.8`." in summary
    assert "    python -m bench upgrade --from jax==0.11.0" in summary


@pytest.mark.slow
def test_the_comparison_of_two_other_versions_says_how_to_repeat_it(front: Front) -> None:
    front.told(equal=True)
    python = f'#!/bin/sh\n[ "$2" = bench ] && shift 2\nexec {sys.executable} {FRONT} "$@"\n'
    front.environment["FAKE_UV_PYTHON"] = python
    words = ("upgrade", "--from", "jax==0.11.0", "--to", "jax==0.12.0", *PLAN)
    done = front(*words, "--run", "r")
    assert done.code == 0, done
    assert "No regression in 1 comparison with jax==0.11.0" in done.out
    summary = (front.folder / "reports/r/regress.md").read_text()
    assert f"    python -m bench {' '.join(words)}\n" in summary


@pytest.mark.parametrize("more", [(), ("--bisect",)])
def test_a_comparison_is_interrupted_like_any_run(front: Front, more: tuple[str, ...]) -> None:
    front.environment["FAKE_UV_PYTHON"] = """#!/bin/sh
    trap 'echo its report; exit 130' INT
    sleep 1  # until it is waited for
    echo "$@"
    while :; do sleep 0.05; done
    """
    versions = ("--from", "jax==0.11.0", "--to", "jax==0.12.0")
    with front.start("upgrade", *versions, *more, *PLAN) as command:
        assert command.stdout
        told = command.stdout.readline()
        command.send_signal(signal.SIGINT)
        rest = command.stdout.read()
    assert {"--from jax==0.11.0", "--to jax==0.12.0"} <= set(re.findall(r"--\w+ jax\S*", told))
    assert "--bisect" not in told
    assert rest.startswith("its report\n")
    assert command.returncode == 130


def test_a_comparison_that_is_killed_has_failed(front: Front) -> None:
    front.environment["FAKE_UV_PYTHON"] = "#!/bin/sh\nkill -9 $$\n"
    done = front("upgrade", "--from", "jax==0.11.0", "--to", "jax==0.12.0", *PLAN)
    assert done.code == 3, done


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ((), "name the version to compare with"),
        (("--from", "main"), "--from: 'main' is not a version"),
        (("--from=main", "--to=jax==0.12"), "--from: 'main' is not a version"),
        (("--from",), "--from: expected one argument"),
        (("--from", "jax==0.4.1"), "uv cannot install jax==0.4.1 with"),
        (("--from", "jax>=0.11", "--bisect"), "has to be one version"),
        (("--from=jax==0.11.0", "--bisect"), "must all decide; omit --run"),
        (
            ("--from=jax==0.11.0", "--bisect", "--dry-run", "--allow-undecided=1"),
            "omit --allow-undecided and --dry-run and --run",
        ),
        (
            ("--from=numpy==2.1", "--to=jax==0.11.0", "--bisect"),
            "--bisect with --to: numpy is none of jax, jaxlib, flax, optax",
        ),
    ],
)
def test_what_is_no_version_or_cannot_be_had_is_bad_input(
    front: Front, words: tuple[str, ...], error: str
) -> None:
    done = front("upgrade", *words, *SMALL)
    assert done.code == 4, done
    assert error in " ".join(done.err.split())


def test_a_bisection_refuses_to_begin_with_a_newer_version(front: Front) -> None:
    done = front("upgrade", "--from=jax==0.12.0", "--to=jax==0.11.0", "--bisect", *PLAN)
    assert done.code == 4, done
    said = " ".join(done.err.split())
    assert "jax==0.12.0 is newer than 0.11.0, which is compared with it" in said


VERSIONS = ["jax==1", "jax==2", "jax==3", "jax==4", "jax==5"]


@pytest.mark.parametrize(
    ("slower_than", "told"),
    [
        (0, "not slower than with jax==1"),
        (1, "slower since jax==2: jax==5 is slower than jax==1"),
        (3, "slower since jax==4: jax==5 is slower than jax==3"),
        (4, "slower since jax==5: jax==5 is slower than jax==4"),
    ],
)
def test_a_bisection_finds_the_release(slower_than: int, told: str) -> None:
    asked: list[str] = []

    def gate(base: str) -> int:
        asked.append(base)
        return int(VERSIONS.index(base) < slower_than)

    assert bisect(VERSIONS, gate) == (int(slower_than > 0), told)
    assert len(asked) == len(set(asked)) <= 3


def test_a_bisection_ends_where_nothing_is_decided() -> None:
    code, told = bisect(VERSIONS, lambda base: 2 if base == "jax==3" else 1)
    assert (code, told) == (2, "the comparison with jax==3 was inconclusive: exit code 2")


def test_a_comparison_ends_with_the_command_that_started_it(front: Front, tmp_path) -> None:
    """The comparison makes an environment, for which uv lists Pythons, and never ends here."""
    uv, told = tmp_path / "path/uv", tmp_path / "told"
    hang = (
        f'[ "$1" = python ] && {{ echo $$ > {told}.part; mv {told}.part {told}; exec sleep 300; }}'
    )
    uv.write_text(uv.read_text().replace("\n", f"\n{hang}\n", 1))
    with front.start("upgrade", "--from", "jax==0.10.0", "--bisect", *PLAN) as command:
        until = time.monotonic() + 60
        while not told.exists() and time.monotonic() < until:
            time.sleep(0.02)
        process = int(told.read_text())
        assert psutil.pid_exists(process)
        command.terminate()
        while psutil.pid_exists(process) and time.monotonic() < until:
            time.sleep(0.02)
        assert not psutil.pid_exists(process)
