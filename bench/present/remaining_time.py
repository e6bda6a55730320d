"""The time that is left of a run, corrected by the actual durations of its launches."""

import time

from bench.records.arms import TWINS
from bench.records.messages import STAGE_OF, PhaseEvent, Stages
from bench.records.numbers import clock


class Remaining:
    """The remaining time of a run: estimates, scaled by the pace of its launches so far.

    `seconds` is the estimate for all planned launches, and `budget_s` the limit for all measuring.
    With `more`, launches beyond the planned ones may follow until intervals are narrow enough.
    """

    def __init__(
        self, seconds: float, budget_s: float | None = None, *, more: bool = False
    ) -> None:
        self._left = seconds
        """Estimate for the launches that have not begun."""
        self._budget_s = budget_s
        self._more = more
        self._started = time.monotonic()
        self._stages: Stages = {}
        """Estimate for the current launch; empty between launches."""
        self._stage = ""
        self._done = 0.0
        """Share of the stage that was done at `self._heard`."""
        self._entered = self._heard = self._started
        self._estimated = self._took = 0.0
        """Seconds of completed launches."""

    def begin(self, stages: Stages) -> None:
        """Record the start of a launch with this estimate."""
        self._stages = stages
        self._enter(next(iter(stages)))
        self._left = max(self._left - sum(stages.values()), 0.0)

    def _enter(self, stage: str) -> None:
        self._stage, self._done = stage, 0.0
        self._entered = self._heard = time.monotonic()

    def phase(self, event: PhaseEvent) -> None:
        """Record how far the launch is."""
        stage = STAGE_OF.get(event["phase"], "after")
        if stage != self._stage:
            self._enter(stage)
        if event["of"]:
            # The twin is compiled after all other arms.
            self._done = event["done"] / (event["of"] + (TWINS if stage == "arms" else 0))
            self._heard = time.monotonic()

    def end(self, took: float) -> None:
        """Record the end of the launch and its duration in seconds."""
        self._estimated += sum(self._stages.values())
        self._took += took
        self._stages = {}

    def seconds(self, now: float) -> float:
        """Return the seconds left at a time.monotonic time; 0 if the estimate is exceeded."""
        pace = self._took / self._estimated if self._estimated else 1.0
        return pace * self._left + self._left_of_launch(now, pace)

    def _left_of_launch(self, now: float, pace: float) -> float:
        """Return the seconds left of the launch, corrected by the pace of its current stage."""
        if not self._stages:
            return 0.0
        names = list(self._stages)
        later = sum(self._stages[name] for name in names[names.index(self._stage) + 1 :])
        own = pace * self._stages[self._stage]
        # The more of the stage is done, the more its own pace counts: it took `done` of the whole.
        whole = (1 - self._done) * own + (self._heard - self._entered)
        left = (1 - self._done) * whole - (now - self._heard)
        return pace * later + max(left, 0.0)

    def words(self, now: float) -> str:
        """Return the time left in words, such as `about 7 min left`."""
        if self._budget_s is not None:
            return f"at most {clock(max(self._budget_s - (now - self._started), 0.0))} left"
        left = self.seconds(now)
        if round(left) == 0:
            return "over the estimate" if self._stages else "ending"
        return f"{'at least' if self._more else 'about'} {clock(left)} left"
