"""Sessions of Lockstep. `nox -s bench -- ARGS` passes ARGS to `python -m bench run`.

Dependencies come from pyproject.toml, and their versions from requirements.lock. Environments are
kept between calls, and created by uv if it is installed. `nox --no-venv -s SESSION` installs
nothing and uses the packages of the running Python.

For accelerators, or to view traces, name extras of pyproject.toml (cuda, tpu, profile):
`LOCKSTEP_EXTRAS=cuda,profile nox -s bench`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import nox

nox.needs_version = ">=2024.10.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["tests", "lint"]
nox.options.error_on_missing_interpreters = True

# Tests and workers start many processes. Without bytecode caches beside the sources, each of them
# would compile pandas and jax again, which takes seconds.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

PROJECT = nox.project.load_toml("pyproject.toml")
LOCK = "requirements.lock"

SEVERAL_CORES = ("--numprocesses", "3", "--dist")
"""Options for tests, for two cores: tests that wait for processes of their own leave room for a
third process, but a fourth would slow down tests that compute by more than it gains."""


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
    """Return the session's Python; without an environment, the one that runs nox."""
    return sys.executable if session.venv_backend == "none" else "python"


COMMANDS = {
    "bench": "Prove, time and compare implementations; writes a report (posargs: options).",
    "report": "Build a stored run's report again (posargs: its name).",
    "publish": "Make a folder of a stored run that can be committed (posargs: its name).",
    "gallery": "Index the published runs in reports/README.md and reports/index.html.",
    "compare": "Compare two stored runs, cell by cell (posargs: their names).",
    "project": "Predict a run's steps on other hardware (posargs: its name, --hardware, --chips).",
    "plan": "Rank mesh shapes by predicted step time (posargs: a workload, --hardware, --chips).",
    "inspect": "Show where a cell's arrays lie, and bytes per device (posargs: the cell's name).",
    "doctor": "Say what is here, what can be measured, and what to install or set (--json).",
    "explain": "Explain why one traced cell is slower than another (posargs: the cells' names).",
    "maxbatch": "Find the largest batch that fits for the cells of a run (posargs: its name, ...).",
    "tensorboard": "Show the traces that `bench -- --profile` recorded (posargs: --port, --keep).",
    "selftest": "Measure Lockstep's own false alarms and detection (posargs: options).",
    "faults": "Inject faults into real runs, and show what is left (posargs: names, --list).",
    "regress": "Gate a change (posargs: the revision to compare with, then options of bench).",
    "upgrade": "Did another jax make steps slower? (posargs: --from jax==VERSION, ...).",
    "referee": "Decide whether changed steps are faster (posargs: INCUMBENT.py CHALLENGER.py ...).",
}
"""Sessions that run the command of `python -m bench` of the same name, and their summaries."""

COMMAND_NAMES = {"bench": "run"}
"""Sessions whose command has another name."""

COMMAND_EXTRAS = {"tensorboard": ("profile",), "selftest": ("selftest",)}
"""Extras of pyproject.toml that commands need."""

DECIDING = ("regress", "referee", "upgrade")
"""Commands whose exit code is their finding, which nox passes on."""


def command_session(name: str, summary: str) -> None:
    """Define the session of a command."""

    def run_command(session: nox.Session) -> None:
        install(session, extras=COMMAND_EXTRAS.get(name, ()))
        words = ("-m", "bench", COMMAND_NAMES.get(name, name), *session.posargs)
        if name not in DECIDING:
            session.run(python(session), *words)
            return
        path = python(session) if session.venv_backend == "none" else Path(session.bin, "python")
        # session.run would treat all failures alike.
        code = subprocess.run([path, *words], check=False).returncode  # noqa: S603 (our own command)
        if code:
            raise SystemExit(code)

    run_command.__doc__ = summary
    nox.session(name=name)(run_command)


for name, summary in COMMANDS.items():
    command_session(name, summary)


def run_tests(session: nox.Session, *words: str, **more: Any) -> None:
    """Run the project's own tests, with further arguments of pytest and of `session.run`."""
    install(session, "tests")
    session.run(python(session), "-m", "pytest", *words, *session.posargs, **more)


@nox.session
def tests(session: nox.Session) -> None:
    """Run the project's own tests, in a browser too if there is Chromium (posargs: pytest's).

    Chromium is either the system's (on Debian: apt-get install chromium) or the one installed by
    `playwright install chromium`.
    """
    # A file's tests share what its fixtures compile, and no file takes long enough to be divided.
    run_tests(session, *SEVERAL_CORES, "loadfile")


@nox.session
def conformance(session: nox.Session) -> None:
    """Run the slow tests: every implementation on all it supports, and more (posargs: pytest's)."""
    run_tests(session, "-m", "slow", "--slow", *SEVERAL_CORES, "worksteal")
    if session.posargs:
        return
    # See tests/conftest.py: with jaxlib 0.10, all others are compiled without fusion emitters.
    words = ("-k", "[vae", "--slow", *SEVERAL_CORES, "worksteal")
    run_tests(session, *words, env={"LOCKSTEP_EMITTERS": "1"})


@nox.session
def package(session: nox.Session) -> None:
    """Build the sdist and its wheel, install the wheel, and run a race from an empty folder."""
    if session.venv_backend == "none":
        session.error("installs Lockstep, and so needs an environment of its own")
    install(session)
    session.install("build")
    with tempfile.TemporaryDirectory() as folder:
        session.run("python", "-m", "build", "--outdir", folder)
        (wheel,) = Path(folder).glob("*.whl")
        session.install("--no-deps", "--force-reinstall", str(wheel))
        with session.chdir(folder):
            run = ("--workloads", "linear", "--meshes", "data=1", "--rounds", "4", "--launches")
            names = ("--implementations", "python_loop", "jit_spmd")
            session.run("lockstep", "run", *run, "1", *names, "--run", "tiny", external=False)
            for page in ("report.html", "report.md", "cells.csv"):
                if not Path("reports", "tiny", page).is_file():
                    session.error(f"the installed package writes no {page}")
            session.run("lockstep", "plan", "mlp-tiny", "--hardware", "h100-sxm", "--chips", "2")


@nox.session
def cluster(session: nox.Session) -> None:
    """Test Open MPI, Slurm and two hosts, where available (posargs: pytest's).

    On Debian: apt-get install openmpi-bin slurmctld slurmd slurm-client iproute2
    """
    # Each test waits for whole runs.
    timeout = ("-o", "faulthandler_timeout=1200")
    run_tests(session, "tests/measure", "-m", "cluster", "--cluster", "-rs", *timeout)


@nox.session
def browser(session: nox.Session) -> None:
    """Run only the tests that open reports in headless Chromium (posargs: pytest's)."""
    run_tests(session, "tests/present", "-m", "browser", "--browser")


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting and types."""
    install(session, "lint")
    session.run(python(session), "-m", "ruff", "check", ".")
    session.run(python(session), "-m", "ruff", "format", "--check", ".")
    session.run(python(session), "-m", "mypy")


@nox.session
def pictures(session: nox.Session) -> None:
    """Regenerate the pictures of README.md from a published run (needs Chromium)."""
    session.run(sys.executable, "docs/make_pictures.py", external=True)


@nox.session
def screenshots(session: nox.Session) -> None:
    """Screenshot reports into .cache/screenshots/: wide, narrow, dark, printed, colour-blind."""
    install(session, "tests")
    session.run(python(session), "docs/make_screenshots.py", *session.posargs)


@nox.session
def lock(session: nox.Session) -> None:
    """Resolve the dependencies into requirements.lock again (posargs: for instance --upgrade)."""
    if session.venv_backend != "none":
        session.install("uv")
    # One file for all supported Pythons, without the index's address, which differs by site.
    session.run(
        *("uv", "pip", "compile", "pyproject.toml", "--output-file", LOCK, "--quiet"),
        *("--universal", "--python-version", "3.11", "--fork-strategy", "requires-python"),
        *("--all-extras", "--group", "lint", "--group", "tests"),
        *("--no-emit-index-url", "--no-emit-find-links", "--no-header", "--no-annotate"),
        *session.posargs,
        external=session.venv_backend == "none",
    )
    if "://" in Path(LOCK).read_text(encoding="utf-8"):
        session.error(f"{LOCK} names an address; it must be usable everywhere")
