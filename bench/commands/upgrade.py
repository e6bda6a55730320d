"""`python -m bench upgrade --from jax==0.10.2`: did another jax version make steps slower?"""

import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial

import typer

from bench.commands import run
from bench.commands.exits import FAILED, OptionParser, refuse, termination_as_interrupt
from bench.measure.processes.guard import Guard
from bench.records.host import installed
from bench.records.paths import CHECKOUT, as_typed
from bench.records.variants import is_requirement

SETTINGS = run.SETTINGS

_INSIDE = "LOCKSTEP_UPGRADED"  # a variable of processes that run in the environment of --to


def upgrade(context: typer.Context) -> None:
    """Compare the steps here with the same ones under another jax. See `upgrade --help`."""
    from bench.measure.version_environments import SHOWN, make_environment

    run.answer_help(context)
    parser = OptionParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--from", dest="base")
    parser.add_argument("--to")
    parser.add_argument("--bisect", action="store_true")
    parsed, words = parser.parse_known_args(context.args)
    for name, text in (("from", parsed.base), ("to", parsed.to)):
        if text and not is_requirement(text):
            refuse(f"--{name}: {text!r} is not a version, such as jax==0.10.2")
    if not parsed.base:
        refuse(f"name the version to compare with: {as_typed('upgrade')} --from jax==0.10.2")
    if not parsed.bisect and (not parsed.to or _INSIDE in os.environ):
        words.insert(0, f"--base-revision={parsed.base}")
        raise typer.Exit(run.run_pytest(words, "regress_plugin"))
    asked, _, first = parsed.base.partition("==")
    package = asked.partition("[")[0]  # without extras
    if parsed.bisect and not first:
        refuse(f"--bisect: {parsed.base!r} has to be one version, such as jax==0.10.2")
    if parsed.bisect and parsed.to and package not in SHOWN:
        refuse(f"--bisect with --to: {package} is none of {', '.join(SHOWN)}")
    chosen = {word.partition("=")[0] for word in words if parsed.bisect}
    if wrong := sorted(chosen & {"--allow-undecided", "--dry-run", "--run"}):
        refuse(f"--bisect makes several runs, which must all decide; omit {' and '.join(wrong)}")
    here = make_environment(parsed.to) if parsed.to else None
    if here:
        words = ["--to", parsed.to, *words]
        os.environ[_INSIDE] = "yes"
    gate = partial(_compare, str(here.python) if here else sys.executable, words)
    if not parsed.bisect:
        raise typer.Exit(gate(parsed.base))
    present = here.versions if here else installed([package])
    last = present.get(package) or refuse(f"{package} is not installed; name a version with --to")
    code, answer = bisect([f"{asked}=={one}" for one in _releases(package, first, last)], gate)
    typer.echo(answer)
    raise typer.Exit(code)


def _releases(package: str, first: str, last: str) -> list[str]:
    from bench.measure.version_environments import releases_between

    order = [[*map(int, re.findall(r"\d+", version)[:3])] for version in (first, last)]
    if order != sorted(order):  # without the numbers of pre-releases
        refuse(f"--bisect: {package}=={first} is newer than {last}, which is compared with it")
    typer.echo(f"listing {package}'s releases since {first}, which may take a minute", err=True)
    return [first, *releases_between(package, first, last), last]


def _compare(python: str, words: Sequence[str], base: str) -> int:
    """Compare with a version in a process of this Python; returns the exit code of `regress`."""
    # A checkout may be found only in the working directory; elsewhere, `bench.py` is the user's.
    flags = ("-m",) if CHECKOUT else ("-P", "-m")
    command = [python, *flags, "bench", "upgrade", "--from", base, *words]
    with termination_as_interrupt(), Guard(command) as child:
        try:
            child.code()
        except KeyboardInterrupt:  # only this process has got it; the other builds its report
            os.kill(child.pid, signal.SIGINT)
        code = child.code()
    return FAILED if code is None or code < 0 else code  # negative: a signal has killed it


def bisect(versions: Sequence[str], gate: Callable[[str], int]) -> tuple[int, str]:
    """Find the version after which the steps became slower; return exit code and result in words.

    The versions are in order, the oldest first. `gate` compares the last of them with another, and
    returns the exit code of `regress`.
    """
    low, high = 0, len(versions) - 1
    while high > low:
        # The oldest comes first: if it is no faster, there is nothing to find.
        middle = (low + high) // 2 if low else 0
        code = gate(base := versions[middle])
        if code not in (0, 1):
            return code, f"the comparison with {base} was inconclusive: exit code {code}"
        low, high = (middle + 1, high) if code else (low, middle)
    if not low:
        return 0, f"not slower than with {versions[0]}"
    return 1, f"slower since {versions[low]}: {versions[-1]} is slower than {versions[low - 1]}"
