"""Estimated durations of the selected launches, for a dry run and for the display of progress."""

import math
from collections.abc import Mapping, Sequence

from rich.console import Console

from bench.measure.engine import Engine
from bench.plan.estimate import AROUND_S, launch_seconds, read_history
from bench.plan.presets import default_batch
from bench.present.progress import Progress, Remaining
from bench.records.cells import Block
from bench.records.numbers import clock, count
from bench.records.paths import REPORTS


class RunEstimates:
    """Estimated durations of launches that are not stored yet."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._history = read_history(engine.catalogue, REPORTS)

    def launch(self, block: Block, arms: Sequence[str], launch: int) -> float:
        """Estimate one launch of a block with these arms; those that cannot run it take no time."""
        running = self.running(block, arms)
        foreign = self.engine.schedule.apart
        apart = sum(arm.removesuffix("@base") in foreign for arm in running)
        plan, history = self.engine.plan, self._history
        return launch_seconds(block, len(running), plan, history, launch, apart)

    def why_unsupported(self, block: Block, arm: str) -> str | None:
        """Say why an arm cannot run the block, as far as is known; `NAME@base` as NAME does."""
        return self.engine.unsupported.get(block.name, {}).get(arm.partition("@")[0])

    def running(self, block: Block, arms: Sequence[str]) -> list[str]:
        """Return the arms that can run the block, as far as is known."""
        return [arm for arm in arms if not self.why_unsupported(block, arm)]

    def missing(self, selected: Mapping[Block, Sequence[str]]) -> dict[Block, list[float]]:
        """Estimate the launches of every block that are not stored yet."""
        return {
            block: [
                self.launch(block, arms, launch)
                for launch in self.engine.schedule.missing_launches(block, arms)
                if self.running(block, arms)
            ]
            for block, arms in selected.items()
        }

    def progress(self, console: Console, selected: Mapping[Block, Sequence[str]]) -> Progress:
        """Return a display of the progress of the launches that are not stored yet."""
        left = [s for seconds in self.missing(selected).values() for s in seconds]
        more = self.engine.plan.target_ci is not None
        remaining = Remaining(sum(left), self.engine.schedule.budget_left_s, more=more)
        return Progress(console, len(left), remaining, self.launch)


def print_plan(
    console: Console, selected: Mapping[Block, Sequence[str]], estimates: RunEstimates
) -> None:
    """Print what would be measured of the selected arms, and how long it would take."""
    plan, left_s = estimates.engine.plan, estimates.engine.schedule.budget_left_s
    missing = estimates.missing(selected)
    running = {block: estimates.running(block, arms) for block, arms in selected.items()}
    alike = len({tuple(arms) for arms in running.values()}) == 1
    lines: list[tuple[str, str]] = []
    for block, arms in running.items():
        nothing = "stored already" if arms else "unsupported"
        seconds = sum(missing[block])
        lines.append((f"{block.name}  {f'about {clock(seconds)}' if seconds else nothing}", ""))
        if arms and not alike:
            lines.append((f"  {', '.join(arms)}", "dim"))
    if alike and any(running.values()):
        lines.append((f"each with: {', '.join(next(iter(running.values())))}", ""))
    shards = math.lcm(*(block.mesh.batch_shards for block in plan.blocks))
    for name, batch in sorted({(f"{b.workload}-{b.size}", b.batch) for b in selected}):
        usual = default_batch(name)
        if usual % shards and batch == math.ceil(usual / shards) * shards:
            why = f"some mesh does not divide the usual {usual}"
            lines.append((f"{name}: the batch is {batch}, because {why}", ""))
    if plan.margin_reason:
        lines.append((f"differences that do not matter: {plan.margin_reason}", ""))
    total = sum(map(sum, missing.values())) + AROUND_S
    least = "at least " * (plan.target_ci is not None)
    launches = f"{least}{count(plan.launches, 'launch', 'launches')} of"
    time = f"{least or 'about '}{clock(total)}"
    if left_s is not None:
        launches = "launches as the budget allows, of"
        time = clock(max(total, left_s))
    training = ""
    if "train" in plan.worker["phases"]:
        steps = count(plan.worker["phases"]["train"]["steps"], "step")
        training = f"; training every cell for {steps} comes on top"
    cells = sum(map(len, running.values()))
    baselines = ", ".join(sorted({plan.baseline_of(arms) for arms in running.values() if arms}))
    unsupported = sum(map(len, selected.values())) - cells
    without = f" and {unsupported} unsupported" * (unsupported > 0)
    summary = (
        f"blocks: {len(selected)}, cells: {cells}{without}, {launches} up to "
        f"{plan.worker['rounds']} rounds, baseline {baselines or plan.baseline}: {time}{training}"
    )
    for line, style in (*lines, (summary, "")):
        console.print(line, style=style, soft_wrap=True)
