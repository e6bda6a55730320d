"""Background load on every core: `python -m bench.trials.selftest.background_load PATTERN`.

One burner a usable core, an ordinary process that is not pinned and has normal priority, as a
neighbour's would be. A burner ends when its standard input does, so none outlives whoever started
it, however that one ends.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.measure.environment import child_environment
from bench.records.host import usable_cores

PATTERNS = {
    "quiet": "nothing",
    "bursty": "each core by itself: bursts of 20 to 300 ms, and pauses; busy 40 % of the time",
    "ramping": "all cores: busy from 0 to 90 % of the time, rising over 20 s, again and again",
    "stepping": "0, 1, 2 ... busy cores for some seconds each, in random order",
}
"""What there is, and what it does."""

_BURST_S = (0.02, 0.3)
_PAUSE_FACTOR = 1.5
"""Pauses are this much longer than bursts, for a mean duty of 1 / (1 + this)."""
_RAMP_S = 20.0
_RAMP_TOP = 0.9
_RAMP_STEPS = 200
_LEVEL_S = (2.0, 6.0)

_SLICE_S = 0.02
"""A burner with a duty between 0 and 1 divides slices of this length into work and rest."""
_READY = b"ready\n"


class LoadError(Exception):
    """A burner did not start."""


@dataclass(frozen=True)
class Segment:
    """A stretch of one burner's time."""

    seconds: float
    duty: float
    """Part of the time that it wants a core: 0 to 1."""


def segments(pattern: str, burner: int, burners: int, seed: int) -> Iterator[Segment]:
    """What one burner of several does from the start of the load on, without end.

    Args:
      pattern: one of `PATTERNS`.
      burner: from 0 to burners - 1.
      burners: how many there are.
      seed: the same seed gives the same load.

    Raises:
      ValueError: there is no such pattern.
    """
    match pattern:
        case "quiet":
            while True:
                yield Segment(1.0, 0.0)
        case "bursty":
            chance = random.Random(f"{seed}/{burner}")
            while True:
                yield Segment(_PAUSE_FACTOR * chance.uniform(*_BURST_S), 0.0)
                yield Segment(chance.uniform(*_BURST_S), 1.0)
        case "ramping":
            while True:
                for step in range(_RAMP_STEPS):
                    yield Segment(_RAMP_S / _RAMP_STEPS, _RAMP_TOP * step / (_RAMP_STEPS - 1))
        case "stepping":
            # All burners draw the same numbers: they must agree on how many of them are busy.
            chance = random.Random(f"{seed}")
            level = 0
            while True:
                yield Segment(chance.uniform(*_LEVEL_S), 1.0 if burner < level else 0.0)
                level = chance.choice([other for other in range(burners + 1) if other != level])
        case _:
            raise ValueError(f"no load pattern {pattern!r}; there are: {', '.join(PATTERNS)}")


@contextlib.contextmanager
def load(pattern: str, seed: int = 0) -> Iterator[tuple[int, ...]]:
    """Load the usable cores of this machine while the context lasts.

    It is there when the context begins, and gone when it ends.

    Yields:
      The process ids of the burners; none for `quiet`.

    Raises:
      LoadError: a burner did not start.
      ValueError: there is no such pattern.
    """
    next(segments(pattern, 0, 1, seed))  # complains of an unknown pattern
    burners = 0 if pattern == "quiet" else usable_cores()
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(_burning(pattern, burner, burners, seed, started))
            for burner in range(burners)
        ]
        for process in processes:
            if process.stdout is None or process.stdout.readline() != _READY:
                raise LoadError(f"a process for the {pattern} load did not start")
        yield tuple(process.pid for process in processes)


@contextlib.contextmanager
def _burning(
    pattern: str, burner: int, burners: int, seed: int, started: float
) -> Iterator[subprocess.Popen[bytes]]:
    command = [
        sys.executable,
        "-m",
        "bench.trials.selftest.background_load",
        pattern,
        "--seed",
        str(seed),
    ]
    told = ["--burner", str(burner), "--burners", str(burners), "--started", repr(started)]
    process = subprocess.Popen(  # noqa: S603 (our own command)
        [*command, *told],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
        start_new_session=True,  # an interruption at the terminal is not for it: it ends with us
    )
    # The pipes are closed as well: that alone would end it.
    with process:
        try:
            yield process
        finally:
            process.kill()


def _burn(pattern: str, burner: int, burners: int, seed: int, started: float) -> None:
    """Be one burner, until the standard input ends."""
    sys.stdout.buffer.write(_READY)
    sys.stdout.flush()
    end = started
    for segment in segments(pattern, burner, burners, seed):
        begin, end = end, end + segment.seconds
        # Segments that passed while the process started are left out, so burners stay in step.
        while (now := time.monotonic()) < end:
            # Slices are counted from the segment's start, whenever this one was noticed.
            slice_begin = begin + (now - begin) // _SLICE_S * _SLICE_S
            slice_end = min(slice_begin + _SLICE_S, end)
            busy_until = slice_begin + segment.duty * (slice_end - slice_begin)
            while time.monotonic() < busy_until:
                pass
            if _input_ended(slice_end - time.monotonic()):
                return


def _input_ended(wait_s: float) -> bool:
    """Whether the standard input has ended; waits for that as long as it is told."""
    return bool(select.select([sys.stdin], [], [], max(0.0, wait_s))[0])


def main(arguments: Sequence[str] | None = None) -> None:
    """Load the machine until the standard input ends, or an interruption (Ctrl-C)."""
    listed = "\n".join(f"  {name:9} {does}" for name, does in PATTERNS.items())
    parser = argparse.ArgumentParser(
        prog="python -m bench.trials.selftest.background_load",
        description=f"{main.__doc__}\n\npatterns:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("pattern", choices=PATTERNS, metavar="PATTERN")
    parser.add_argument("--seed", type=int, default=0, help="the same seed gives the same load")
    # What `load` tells the processes that it starts.
    parser.add_argument("--burner", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--burners", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    told = parser.parse_args(arguments)
    if told.burner is not None:
        _burn(told.pattern, told.burner, told.burners, told.seed, told.started)
        return
    with contextlib.suppress(KeyboardInterrupt), load(told.pattern, told.seed):
        sys.stdin.read()


if __name__ == "__main__":
    main()
