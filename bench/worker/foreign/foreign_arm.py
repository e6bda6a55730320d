"""A foreign implementation as an arm of the rounds, whose children time their own spans."""

import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.records.numbers import percent
from bench.worker.foreign.children import Children
from bench.worker.prove.failures import WrongStepError
from bench.worker.time.clock import Arm

ASKED, MOST_ASKING_NS = 40, 250_000
"""Number of empty requests that measure the round trip of a request, and the most of it that counts
for each process: a process that answers only them late would shorten all of its spans."""

LIE_SHARE = 0.25
SPANS = 48
FEWEST_SPANS = 12
"""A child lies if the spans that it reports are shorter than by the worker's clock by more than
LIE_SHARE plus two round trips of an empty request sent right after. Of the last SPANS spans, only
long ones count, and at least FEWEST_SPANS are needed; a span is long if LIE_SHARE of it exceeds
four round trips, because lying about a shorter one gains little."""

OFTEN, UNEXPLAINED = 0.75, 0.1
"""On a busy host the worker often wakes up late, after spans and empty requests alike, but not
always. So it is a lie only if the share OFTEN of the long spans is too short, and if the time that
threads waited for a core leaves more than the share UNEXPLAINED of all spans unexplained."""

TRUSTED_SHARE = 0.02
"""Share of a span by which a child's clock may differ from the worker's, in addition to a round
trip: a thread that has slept as long as a span wakes up later than between empty requests."""

IDLE_SHARE, SPARE_CORES, EXCESS_S = 0.05, 0.5, 0.25
"""Mean share of a core that a child's threads may use while other arms are timed, and cores beyond
one per thread in its own turns, for a thread that launches work. Both allow EXCESS_S CPU seconds
more, because OpenMP's threads spin for some milliseconds after their work. A child that used more
than fits into the spans that it reports lies, however busy the host."""


class Loss(float):
    """A loss on the host, with the interface of a loss on the devices."""

    def is_deleted(self) -> bool:
        """Whether the buffer was donated: never."""
        return False


def the_same(answers: list[Any], what: str) -> Any:
    """Return the answer of all processes; WrongStepError if they differ."""
    for rank, answer in enumerate(answers):
        if repr(answer) != repr(answers[0]):  # NaN is the same as NaN
            raise WrongStepError(
                f"replicas drift: {what} is not the same in process 0 and process {rank}"
            )
    return answers[0]


@dataclass
class ForeignArm(Arm):
    """An arm that runs in its own processes.

    A span's time is that of the slowest child, scaled so that a turn's spans add up to their sum in
    the child where it is largest. That sum is kept between the time by the worker's clock and this
    time minus TRUSTED_SHARE and a round trip per span. Single spans are not held to that clock: if
    the worker wakes up late for one answer, it counts part of the next span to this one.
    """

    children: Children = field(kw_only=True)
    asking_ns: int = 0
    """Median round trip of an empty request, as far as it counts."""
    _spans: deque[tuple[int, int, int, int]] = field(default_factory=lambda: deque(maxlen=SPANS))
    """Nanoseconds of each recent span: by the worker's clock, the part of it that the slowest child
    does not report, its part of the time that threads waited for a core in the turn, and the round
    trip of the empty request right after."""
    _told_ns: int = 0
    """Nanoseconds of all spans as the children report them, and of the requests for them."""
    _busy: np.ndarray = field(default_factory=lambda: np.zeros(2))
    """Seconds within spans, and the children's CPU seconds in them."""
    _idle: np.ndarray = field(default_factory=lambda: np.zeros(2))
    """Seconds between spans of the rounds, and the children's CPU seconds in them."""
    _last: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.children.find_counted()
        median = statistics.median(self._asked([(0, False)])[0][0] for _ in range(ASKED))
        self.asking_ns = min(int(median), MOST_ASKING_NS * len(self.children))

    def begin_rounds(self) -> None:
        """Count idle time from now on: threads that are busy while arms compile disturb none."""
        self._idle, self._last = np.zeros(2), None

    def _asked(self, spans: Sequence[tuple[int, bool]]) -> list[tuple[int, list[dict[str, Any]]]]:
        """Request spans; return for each the nanoseconds by the worker's clock, and the answers."""
        requests = [{"ask": "run", "steps": n, "wait_each": waits} for n, waits in spans]
        before, asked = time.perf_counter_ns(), []
        for at, answers in self.children.exchange([requests] * len(self.children)):
            asked.append((at - before, answers))
            before = at
        return asked

    def run(self, steps: int, *, wait_each: bool = False) -> int:
        """Run steps in the children, which wait for their devices; return nanoseconds."""
        return self.run_spans([(steps, wait_each)])[0]

    def run_spans(self, spans: Sequence[tuple[int, bool]]) -> list[int]:
        """Run spans as in the worker: the children begin each as soon as the previous one ends.

        A child that slept between its spans would be slower in the first steps of each.
        """
        self._note(self._idle)
        taken = [span for span in spans if span[0]]
        waited = -self.children.waited_ns()
        asked = self._asked(taken)
        waited += self.children.waited_ns()
        ((empty, _),) = self._asked([(0, False)])
        self._note(self._busy)
        of_each = [[int(answer["ns"]) for answer in answers] for _, answers in asked]
        reported, longest = [*map(max, of_each)], max(map(sum, zip(*of_each, strict=True)))
        most = sum(took for took, _ in asked)
        self._told_ns += longest + self.asking_ns * (len(asked) + 1)
        for (steps, _), (took, answers), own in zip(taken, asked, reported, strict=True):
            self._spans.append((took, took - own, waited * took // most, empty))
            self.steps += steps
            loss: Any = Loss(the_same([answer["loss"] for answer in answers], "the loss"))
            self.losses.append((self.steps, loss))
        # Processes may take turns at being the slowest, so each is held to the clock by itself.
        if longest > (1 + TRUSTED_SHARE) * most:
            raise WrongStepError(
                f"its process reports spans of {longest / 1e6:.3g} ms together, longer than the "
                f"{most / 1e6:.3g} ms that passed by the worker's clock"
            )
        whole = min(max(longest, (1 - TRUSTED_SHARE) * most - self.asking_ns * len(asked)), most)
        shares = reported if sum(reported) else [steps for steps, _ in taken]
        times = iter([round(share * whole / sum(shares)) for share in shares])
        return [next(times) if steps else 0 for steps, _ in spans]

    def uncounted(self, read: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Let the children's CPU time count neither as busy nor as idle while a state is read."""

        def reading(state: Any) -> Any:
            self._note(self._idle)
            found = read(state)
            self._note(np.zeros(2))
            return found

        return reading

    def _note(self, total: np.ndarray) -> None:
        """Add the seconds since the last call, and the children's CPU seconds, to a total."""
        now = np.array([time.monotonic(), self.children.cpu_s()])
        if self._last is not None:
            total += now - self._last
        self._last = now

    def children_cpu_s(self) -> float:
        """CPU seconds that the children have used so far."""
        return self.children.cpu_s()

    def _reports_false_times(self) -> bool:
        asking = statistics.median([empty for *_, empty in self._spans] or [0])
        long = [span for span in self._spans if LIE_SHARE * span[0] > 4 * asking]
        if len(long) < FEWEST_SPANS:
            return False
        took, missing, waited, empty = np.array(long).T
        unexplained = (missing - waited - 2 * empty).sum() / took.sum()
        took, missing, empty = (np.quantile(each, 1 - OFTEN) for each in (took, missing, empty))
        return bool(missing > 2 * empty + LIE_SHARE * took and unexplained > UNEXPLAINED)

    def why_untrusted(self) -> str:
        """Describe how the processes broke the rules of the rounds; empty if they did not."""
        (busy_s, busy_cpu_s), (idle_s, idle_cpu_s) = self._busy, self._idle
        share = len(self.children) * self.children.threads
        cores, told_s = share + SPARE_CORES, self._told_ns / 1e9
        too_short = "its process reports spans that are shorter than the worker's clock shows, "
        if self._reports_false_times():
            return f"{too_short}even without the {self.asking_ns / 1e3:.0f} us that a request costs"
        if idle_cpu_s > IDLE_SHARE * idle_s + EXCESS_S:
            used = percent(idle_cpu_s / idle_s)
            return f"its threads used {used} of a core while other arms were timed"
        if busy_cpu_s > cores * busy_s + EXCESS_S:
            used = f"it used {busy_cpu_s / busy_s:.1f} cores"
            return f"{used}, but its share is {share}: one for each device"
        if busy_cpu_s > cores * told_s + EXCESS_S:
            return f"{too_short}{told_s:.2g} s for {busy_cpu_s:.2g} s of CPU time"
        return ""
