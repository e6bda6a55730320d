"""The fixture `race`, with which a test asserts that one step is not slower than another.

pytest finds it where Lockstep is installed; in a checkout, `-p lockstep.pytest_plugin` loads it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from lockstep.stored_results import Results

Undecided = Literal["xfail", "fail", "skip"]
MARKER = "lockstep"
BY = 0.05
RAISED = pytest.StashKey[bool]()
"""Whether a test has raised an exception, such as that of a failed assertion, or of a skip."""


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(undecided='xfail', **options): what the fixture `race` does where nothing is "
        "sure (xfail, fail or skip), and options of lockstep.compare, such as seconds=30",
    )


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Note whether a test has raised an exception."""
    if call.excinfo is not None:
        item.stash[RAISED] = True


@pytest.fixture
def race(request: pytest.FixtureRequest) -> Iterator[Callable[..., Race]]:
    """Yield `race(new_step, old_step, state, batch, **options)`; see `Race`.

    The options are those of lockstep.compare. The assertion runs the race; a test that forgets it
    fails.
    """
    marker = request.node.get_closest_marker(MARKER)
    if marker and marker.args:
        pytest.fail(f"the marker {MARKER} takes only keywords, such as seconds=30", pytrace=False)
    given = dict(marker.kwargs) if marker else {}
    undecided = given.pop("undecided", "xfail")
    races: list[Race] = []

    def start(new_step: Any, old_step: Any, state: Any, batch: Any, **options: Any) -> Race:
        steps = {"new": new_step, "old": old_step}
        races.append(Race(steps, state, batch, given | options, undecided))
        return races[-1]

    yield start
    if not request.node.stash.get(RAISED, False) and not all(one.asserted for one in races):
        pytest.fail("a race was not run: call its assert_not_slower()", pytrace=False)


@dataclass
class Race:
    """Two steps, the old one being the reference and the baseline."""

    steps: dict[str, Any]
    state: Any
    batch: Any
    options: dict[str, Any]
    undecided: Undecided
    results: Results | None = None
    """The results, available after an assertion."""
    asserted: bool = False

    def assert_not_slower(self, by: float = BY, undecided: Undecided | None = None) -> None:
        """Pass if the new step surely takes at most 1 + `by` times as long as the old one.

        Fail if the new step is wrong, or surely takes longer. Rounds continue until either is sure,
        or until `rounds` are spent. The probability of a wrong outcome is at most 1 %.

        Args:
          by: allowed relative difference of step times, such as 0.05.
          undecided: what to do if neither is sure, overriding the marker: `xfail`, `fail` or
            `skip`.

        Raises:
          ValueError: `by` is not a finite share, or is negative, or `undecided` is none of these
            words.
        """
        __tracebackhide__ = True
        self.asserted = True
        outcome = undecided or self.undecided
        act: dict[str, Callable[[str], Any]] = {
            "xfail": pytest.xfail, "fail": pytest.fail, "skip": pytest.skip,
        }  # fmt: skip
        if outcome not in act:
            raise ValueError(f"undecided={outcome!r}: choose from {', '.join(act)}")
        if not isinstance(by, Real) or not 0 <= by < math.inf:
            raise ValueError(f"by={by!r}: it has to be a finite share that is not negative")
        import lockstep  # noqa: PLC0415 (jax, which other tests may not need)
        from bench.records.numbers import ratio  # noqa: PLC0415

        limit = 1 + by
        settings = {"baseline": "old", "decide_at": limit, **self.options}
        self.results = lockstep.compare(self.steps, self.state, self.batch, **settings)
        new = self.results.verdicts.set_index("implementation").loc["new"]
        if new["status"] != "ok":
            how = "is wrong" if new["status"] == "wrong" else f"ended as {new['status']}"
            pytest.fail(f"the new step {how}: {new['reason']}", pytrace=False)
        low, high = new["verdict_low"], new["verdict_high"]
        sure = "too few rounds for an interval"
        if high < math.inf:
            sure = f"surely {ratio(low)} to {ratio(high)} times the old step's time"
        sure += f"; at most {limit:g} is allowed"
        if low > limit:
            pytest.fail(f"the new step is slower: {sure}\n{self.results}", pytrace=False)
        if not high <= limit:
            act[outcome](f"undecided: {sure}; more rounds= and seconds= decide more")
