"""Paths of the code and of its output folders, and the name of its command line."""

import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout, or site-packages: `bench` and `implementations` are imported from here."""

CHECKOUT = (ROOT / "noxfile.py").is_file()
"""Whether this is a checkout rather than an installed package."""

PROGRAM = "python -m bench" if CHECKOUT else "lockstep"
"""The command line's name, as typed."""


def as_typed(command: str) -> str:
    """Return the beginning of a command's line as the user types it: within nox, for a session."""
    if "NOX_CURRENT_SESSION" in os.environ:
        return f"nox -s {'bench' if command == 'run' else command} --"
    return f"{PROGRAM} {command}"


SAFE_PATH = () if os.pathsep in str(ROOT) else ("-P",)
"""Options of Python with which a process imports Lockstep, and not the user's `bench.py`. A folder
whose name has a colon cannot be on PYTHONPATH: its Lockstep is found in the working directory."""


def module_command(module: str, python: str = sys.executable) -> tuple[str, ...]:
    """Return the command of a process that runs a module of Lockstep."""
    return (python, *SAFE_PATH, "-m", module)


REPORTS = Path("reports")
"""Folder of stored runs, in the working directory."""

PROFILES = Path("profiles")
"""Folder of recorded traces, in the working directory."""


def adapt_commands(text: str) -> str:
    """Return text in which an installed package's `nox -s bench -- ARGS` is `lockstep run ARGS`."""
    if CHECKOUT:
        return text
    return re.sub(r"\bnox -s (\w+)(?: --)?", r"lockstep \1", text.replace("-s bench", "-s run"))
