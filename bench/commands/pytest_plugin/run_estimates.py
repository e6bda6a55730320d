"""How long the selected launches will take, and what a dry run shows of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import Console

from bench.measure.engine import Engine
from bench.plan.estimate import block_seconds, read_history
from bench.plan.matrix import Plan
from bench.records.cells import Block
from bench.records.numbers import clock, count
from bench.records.paths import REPORTS


class RunEstimates:
    """Estimated times of launches that are not stored yet."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._history = read_history(REPORTS, engine.catalogue["platform"])

    def launch_seconds(self, block: Block, arms: int, launch: int) -> float:
        """Estimate one launch of a block with this many arms, at least some of them supported."""
        return block_seconds(block, arms, self._engine.plan, self._history, launch)

    def nothing_runs(self, block: Block, arms: Sequence[str]) -> bool:
        """Tell whether it is known that none of these arms can run the block."""
        return all(map(self._engine.unsupported.get(block.name, {}).get, arms))

    def why_none(self, block: Block, arms: Sequence[str]) -> str:
        """Say why nothing of a block will be measured."""
        return "unsupported" if self.nothing_runs(block, arms) else "stored already"

    def missing(self, selected: Mapping[Block, Sequence[str]]) -> dict[Block, list[float]]:
        """Estimate the launches of every block that are not stored yet."""
        return {
            block: [
                self.launch_seconds(block, len(arms), launch)
                for launch in range(self._engine.schedule.missing_launches(block, arms))
                if not self.nothing_runs(block, arms)
            ]
            for block, arms in selected.items()
        }


def print_plan(
    console: Console,
    plan: Plan,
    selected: Mapping[Block, Sequence[str]],
    missing: Mapping[Block, Sequence[float]],
    why_none: Callable[[Block, Sequence[str]], str],
) -> None:
    """Print what would be measured and how long it would take.

    Args:
      console: to print to.
      plan: of the run.
      selected: arms of each block.
      missing: estimated seconds of each block's launches that are not stored yet.
      why_none: why nothing of a block will be measured.
    """
    alike = len({tuple(arms) for arms in selected.values()}) == 1
    lines: list[tuple[str, str]] = []
    for block, arms in selected.items():
        seconds = sum(missing[block])
        note = f"about {clock(seconds)}" if seconds else why_none(block, arms)
        lines.append((f"{block.name}  {note}", ""))
        if not alike:
            lines.append((f"  {', '.join(arms)}", "dim"))
    if alike:
        lines.append((f"each with: {', '.join(next(iter(selected.values())))}", ""))
    if plan.worker["inputs"]:
        lines.append((f"and each with input {', '.join(plan.worker['inputs'])}", ""))
    if plan.modes:
        lines.append((f"then checkpoints of each: {', '.join(plan.modes)}", ""))
    if plan.margin_reason:
        lines.append((f"differences that do not matter: {plan.margin_reason}", ""))
    total = sum(map(sum, missing.values()))
    launches, time = f"{count(plan.launches, 'launch', 'launches')} of", f"about {clock(total)}"
    if plan.budget_s is not None:
        launches, time = "launches as the budget allows, of", clock(max(total, plan.budget_s))
    training = ""
    if "train" in plan.worker["phases"]:
        steps = count(plan.worker["phases"]["train"]["steps"], "step")
        training = f"; training every cell for {steps} comes on top"
    cells = sum(map(len, selected.values()))
    summary = (
        f"blocks: {len(selected)}, cells: {cells}, {launches} up to {plan.worker['rounds']} "
        f"rounds, baseline {plan.baseline}: {time}{training}"
    )
    for line, style in (*lines, (summary, "")):
        console.print(line, style=style, soft_wrap=True)
