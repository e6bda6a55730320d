"""Background load on every core, in several patterns.

Each usable core gets a burner, an ordinary process without affinity and with normal priority, like
the processes of another user. A burner ends when its standard input closes, so that none outlives
the process that started it.
"""

import contextlib
import random
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from bench.measure.environment import child_environment
from bench.measure.processes.guarded import ChildError
from bench.records.host import usable_cores

PATTERNS = {
    "quiet": "no load",
    "bursty": "each core by itself: bursts of 20 to 300 ms, and pauses; busy 40 % of the time",
    "ramping": "all cores: busy for 0 to 90 % of the time, rising over 20 s, again and again",
    "stepping": "0, 1, 2 ... busy cores for some seconds each, in random order",
}
"""Names and descriptions of the patterns."""

_BURST_S = (0.02, 0.3)
_PAUSE_FACTOR = 1.5
"""Mean pause over mean burst; the mean duty is 1 / (1 + this)."""
_RAMP_S = 20.0
_RAMP_TOP = 0.9
_RAMP_STEPS = 200
_LEVEL_S = (2.0, 6.0)

_SLICE_S = 0.02
"""A burner with a duty between 0 and 1 divides slices of this length into work and rest."""


class Segment(NamedTuple):
    """A period of one burner's schedule."""

    seconds: float
    duty: float
    """Share of the period in which it wants a core, 0 to 1."""


def segments(pattern: str, burner: int, burners: int, seed: int) -> Iterator[Segment]:
    """Yield the endless schedule of one burner of several, by its number from 0; see `PATTERNS`.

    Equal seeds give equal loads. A quiet pattern has no burners.
    """
    match pattern:
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
            # All burners draw the same numbers and thus agree on how many of them are busy.
            chance = random.Random(f"{seed}")
            level = 0
            while True:
                yield Segment(chance.uniform(*_LEVEL_S), 1.0 if burner < level else 0.0)
                level = chance.choice([other for other in range(burners + 1) if other != level])


@contextlib.contextmanager
def load(pattern: str, seed: int = 0) -> Iterator[tuple[int, ...]]:
    """Load all usable cores within the context, whose value is the burners' process ids.

    ChildError if a burner did not start.
    """
    burners = 0 if pattern == "quiet" else usable_cores()
    started = time.monotonic()
    code = "from bench.trials.selftest.background_load import burn; burn"
    with contextlib.ExitStack() as stack:
        processes = []
        for burner in range(burners):
            process = subprocess.Popen(  # noqa: S603 (our own command)
                [sys.executable, "-c", code + repr((pattern, seed, burner, burners, started))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=child_environment(),
                start_new_session=True,  # Ctrl-C goes only to this process, which ends the burner
            )
            # Leaving the context also closes the pipes, which alone would end the burner.
            processes.append(stack.enter_context(process))
            # After Ctrl-C, Popen waits no longer than a quarter of a second.
            stack.callback(process.wait)
            stack.callback(process.kill)
        for process in processes:
            if process.stdout is None or not process.stdout.readline():
                raise ChildError(f"a process for the {pattern} load did not start")
        yield tuple(process.pid for process in processes)


def burn(pattern: str, seed: int, burner: int, burners: int, started: float) -> None:
    """Run one burner until its standard input closes."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    end = started
    for segment in segments(pattern, burner, burners, seed):
        begin, end = end, end + segment.seconds
        # Segments that ended before the process was ready are skipped, so burners stay in step.
        while (now := time.monotonic()) < end:
            slice_begin = begin + (now - begin) // _SLICE_S * _SLICE_S
            slice_end = min(slice_begin + _SLICE_S, end)
            busy_until = slice_begin + segment.duty * (slice_end - slice_begin)
            while time.monotonic() < busy_until:
                pass
            rest_s = max(0.0, slice_end - time.monotonic())
            if select.select([sys.stdin], [], [], rest_s)[0]:
                return
