"""Interim analyses (looks) of a block's samples, which end the rounds of settled arms."""

from collections import Counter
from collections.abc import Mapping, Sequence

from bench.analyse.verdicts import Claim
from bench.measure.schedule import Schedule
from bench.records.arms import TWIN, is_ablated
from bench.records.cells import Block
from bench.records.messages import LookEvent
from bench.records.rows import Look, SampleRow

EXTENSION = 0.5
"""Extra turns granted where they probably decide, as a share of a launch's planned turns."""


class LaunchLooks:
    """The interim analyses (looks) of a block's samples during one launch."""

    def __init__(self, schedule: Schedule, block: Block) -> None:
        from bench.analyse.alpha_spending import AlphaSpending  # noqa: PLC0415 (needs scipy)

        self._schedule, self._block, self._state = schedule, block, schedule.blocks[block.name]
        self._spending = AlphaSpending(self._state.looks)
        self._last = len(self._state.launches) + 1 >= schedule.plan.launches
        self._attempts: set[str] = set()
        self._progress = 1.0
        self._settled: set[str] = set()
        self._opponents: Mapping[str, str] = {}

    def arms_to_continue(self, event: LookEvent) -> list[str]:
        """List the arms that need more rounds, and the arms they are compared with.

        Beside ablated arms, all need the planned turns. After these, only arms that EXTENSION would
        probably settle need more; none does if another launch is planned, because this one has no
        more error to spend.
        """
        rows, self._progress = event["rows"], event["progress"]
        self._state.programs |= event.get("programs", {})
        self._attempts |= {row["attempt"] for row in rows}
        arms = list(dict.fromkeys(row["arm"] for row in rows))
        late = self._progress >= 1
        # If a worker died after a look, its successor takes none, and the alpha spent is lost.
        claims = self._look(rows) if len(self._attempts) == 1 else {}
        if (late and not self._last) or not claims:
            return [] if late or (self._schedule.sharing and not self._opponents) else arms
        if not late and any(map(is_ablated, arms)):
            return arms
        # Rounds cannot compare an arm that is measured alone.
        needed = {arm for arm in arms if arm in claims and claims[arm].ratio.paired}
        needed -= self._settled
        if late:
            left = (1 + EXTENSION) / self._progress
            undecided = {arm: claims[arm] for arm in needed if claims[arm].to_decide > 0}
            needed = self._decidable(undecided, len(rows) * (left - 1))
        beside = {TWIN, *(self._opponents[arm] for arm in needed)}
        return [arm for arm in arms if arm in needed | beside] if needed else []

    def _decidable(self, undecided: Mapping[str, Claim], turns: float) -> set[str]:
        """Return the arms that `turns` more turns, shared with their opponents, probably decide."""
        lack = {arm: (one.to_decide - 1) * one.ratio.rounds for arm, one in undecided.items()}
        found: list[str] = []
        for arm in sorted(lack, key=lambda arm: lack[arm]):
            together = {*found, arm, TWIN, *(self._opponents[one] for one in (*found, arm))}
            if lack[arm] > turns / len(together):
                break
            found.append(arm)
        return set(found)

    def finish(self, rows: Sequence[SampleRow], launch: int) -> tuple[list[Look], dict[str, Claim]]:
        """Add the finished launch's samples to the block, and return its looks and the claims."""
        claims = self._look(rows) if rows else {}
        state, earlier = self._state, len(self._state.looks)
        state.launches.add(launch)
        state.samples += rows
        state.looks = self._spending.looks
        return state.looks[earlier:], claims

    def _look(self, rows: Sequence[SampleRow]) -> dict[str, Claim]:
        schedule, samples = self._schedule, [*self._state.samples, *rows]
        turns = Counter((row["attempt"], row["round"]) for row in samples)
        rounds = sum(count > 1 for count in turns.values())  # a lone arm makes no comparison
        done = self._progress if self._last else min(self._progress, 1.0)
        progress = (len(self._state.launches) + done) / schedule.plan.launches
        self._opponents = schedule.opponents(self._block, samples)
        alpha = self._spending.look(rounds, progress, schedule.family(self._opponents))
        if not self._opponents:
            return {}
        looks = self._spending.looks
        claims, settled = schedule.compared(self._block, samples, self._opponents, looks)
        if alpha:
            self._settled = settled  # an arm that is undecided again comes back
            decided = sorted(arm for arm, one in claims.items() if one.verdict.decided)
            self._spending.looks[-1] |= {"settled": sorted(self._settled), "decided": decided}
        return claims
