"""Sessions of Lockstep. `nox -s bench -- ARGS` hands ARGS to `python -m bench run`.

Dependencies come from pyproject.toml, their versions from requirements.lock. Environments are
kept between calls, and made by uv where it is installed. `nox --no-venv -s SESSION` installs
nothing and uses the packages of the running Python.

For accelerators, or to view traces, name extras of pyproject.toml (cuda, tpu, profile):
`LOCKSTEP_EXTRAS=cuda,profile nox -s bench`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["tests", "lint"]
nox.options.error_on_missing_interpreters = True

# Tests, workers and launches are many fresh processes: without compiled modules beside the sources,
# each would compile pandas and jax again, for seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

PROJECT = nox.project.load_toml("pyproject.toml")
LOCK = "requirements.lock"

SEVERAL_CORES = ("--numprocesses", "auto", "--maxprocesses", "4", "--dist", "worksteal")
"""Of the tests, many of which wait for processes of their own."""


def install(session: nox.Session, *groups: str, extras: tuple[str, ...] = ()) -> None:
    """Install the project's dependencies, with dependency groups and extras, as locked."""
    if session.venv_backend == "none":
        return
    named = os.environ.get("LOCKSTEP_EXTRAS", "").replace(",", " ").split()
    known = PROJECT["project"]["optional-dependencies"]
    unknown = sorted(set(named) - set(known))
    if unknown:
        session.error(
            f"LOCKSTEP_EXTRAS: unknown {', '.join(unknown)}; there are {', '.join(known)}"
        )
    requirements = [
        *PROJECT["project"]["dependencies"],
        *nox.project.dependency_groups(PROJECT, *groups),
        *(requirement for extra in {*extras, *named} for requirement in known[extra]),
    ]
    session.install("--constraint", LOCK, *requirements)


def python(session: nox.Session) -> str:
    """The session's Python; without an environment, the one that runs nox."""
    return sys.executable if session.venv_backend == "none" else "python"


@nox.session
def bench(session: nox.Session) -> None:
    """Prove, time and compare implementations; the report is in reports/ (posargs: options)."""
    install(session)
    session.run(python(session), "-m", "bench", "run", *session.posargs)


@nox.session
def regress(session: nox.Session) -> None:
    """Gate a change (posargs: the revision to compare with, then options of bench)."""
    install(session)
    path = python(session) if session.venv_backend == "none" else Path(session.bin, "python")
    # Not by session.run: to nox every failure is the same, and the exit code says what was found.
    command = [path, "-m", "bench", "regress", *session.posargs]
    code = subprocess.run(command, check=False).returncode  # noqa: S603 (our own command)
    if code:
        raise SystemExit(code)


@nox.session
def report(session: nox.Session) -> None:
    """Build a stored run's report again (posargs: its name)."""
    install(session)
    session.run(python(session), "-m", "bench", "report", *session.posargs)


@nox.session
def publish(session: nox.Session) -> None:
    """Make a folder of a stored run that can be committed (posargs: its name)."""
    install(session)
    session.run(python(session), "-m", "bench", "publish", *session.posargs)


@nox.session
def gallery(session: nox.Session) -> None:
    """Index the published runs in reports/README.md and reports/index.html."""
    install(session)
    session.run(python(session), "-m", "bench", "gallery", *session.posargs)


@nox.session
def compare(session: nox.Session) -> None:
    """Compare two stored runs, cell by cell (posargs: their names)."""
    install(session)
    session.run(python(session), "-m", "bench", "compare", *session.posargs)


@nox.session
def project(session: nox.Session) -> None:
    """Predict a run's steps on other hardware (posargs: its name, --hardware, --chips)."""
    install(session)
    session.run(python(session), "-m", "bench", "project", *session.posargs)


@nox.session
def plan(session: nox.Session) -> None:
    """Rank mesh shapes by predicted step time (posargs: a workload, --hardware, --chips)."""
    install(session)
    session.run(python(session), "-m", "bench", "plan", *session.posargs)


@nox.session
def inspect(session: nox.Session) -> None:
    """Show where a cell's arrays lie, and their bytes a device (posargs: the cell's name)."""
    install(session)
    session.run(python(session), "-m", "bench", "inspect", *session.posargs)


@nox.session
def explain(session: nox.Session) -> None:
    """Say why one traced cell is slower than another (posargs: the cells' names)."""
    install(session)
    session.run(python(session), "-m", "bench", "explain", *session.posargs)


@nox.session
def maxbatch(session: nox.Session) -> None:
    """Find the largest batch that fits, of a stored run's cells (posargs: its name, options)."""
    install(session)
    session.run(python(session), "-m", "bench", "maxbatch", *session.posargs)


@nox.session
def tensorboard(session: nox.Session) -> None:
    """Show the traces that `bench -- --profile` recorded (posargs: --port, --keep)."""
    install(session, extras=("profile",))
    session.run(python(session), "-m", "bench", "tensorboard", *session.posargs)


@nox.session
def selftest(session: nox.Session) -> None:
    """Measure Lockstep's own false alarms and detection, beside other tools' (posargs: options)."""
    install(session, extras=("selftest",))
    session.run(python(session), "-m", "bench", "selftest", *session.posargs)


@nox.session
def faults(session: nox.Session) -> None:
    """Inject faults into real runs: what does each leave behind? (posargs: names, --list)."""
    install(session)
    session.run(python(session), "-m", "bench", "faults", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the project's own tests (posargs: options of pytest, such as `-n 0 --pdb`)."""
    install(session, "tests")
    session.run(python(session), "-m", "pytest", *SEVERAL_CORES, *session.posargs)


@nox.session
def conformance(session: nox.Session) -> None:
    """Run the slow tests: every implementation on all it is for, and more (posargs: of pytest)."""
    install(session, "tests")
    words = ("-m", "slow", "--slow", *SEVERAL_CORES)
    session.run(python(session), "-m", "pytest", *words, *session.posargs)


@nox.session
def cluster(session: nox.Session) -> None:
    """Try Open MPI, Slurm, variables and two hosts, as far as they are there (posargs: of pytest).

    On Debian: apt-get install openmpi-bin slurmctld slurmd slurm-client iproute2
    """
    install(session, "tests")
    # Each waits for whole runs.
    words = ("tests/test_launchers.py", "--cluster", "-rs", "-o", "faulthandler_timeout=1200")
    session.run(python(session), "-m", "pytest", *words, *session.posargs)


@nox.session
def browser(session: nox.Session) -> None:
    """Open reports in headless Chromium, and try every control (posargs: of pytest).

    Chromium is the system's (on Debian: apt-get install chromium), or one that
    `playwright install chromium` brought.
    """
    install(session, "tests", "browser")
    words = ("tests/test_browser.py", "--browser")
    session.run(python(session), "-m", "pytest", *words, *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting and types."""
    install(session, "lint")
    session.run(python(session), "-m", "ruff", "check", ".")
    session.run(python(session), "-m", "ruff", "format", "--check", ".")
    session.run(python(session), "-m", "mypy")


@nox.session
def lock(session: nox.Session) -> None:
    """Resolve the dependencies anew into requirements.lock (posargs: for instance --upgrade)."""
    if session.venv_backend != "none":
        session.install("uv")
    # One file for every supported Python; without the index's address, which differs by site.
    session.run(
        *("uv", "pip", "compile", "pyproject.toml", "--output-file", LOCK, "--quiet"),
        *("--universal", "--python-version", "3.11", "--fork-strategy", "requires-python"),
        *("--all-extras", "--group", "lint", "--group", "tests", "--group", "browser"),
        *("--no-emit-index-url", "--no-emit-find-links", "--no-header", "--no-annotate"),
        *session.posargs,
        external=session.venv_backend == "none",
    )
    if "://" in Path(LOCK).read_text(encoding="utf-8"):
        session.error(f"{LOCK} names an address; it must be usable everywhere")
