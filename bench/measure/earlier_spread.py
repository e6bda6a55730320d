"""The spread of ratios between processes on this machine, estimated from its stored runs."""

from pathlib import Path

from bench.plan.margins import runs_here
from bench.records.messages import Catalogue


def earlier_spread(catalogue: Catalogue, reports: Path) -> dict[str, float] | None:
    """Return `sd` and `freedom` of a ProcessSpread; None if no run has several launches."""
    found = [
        run
        for run in runs_here(catalogue, reports)
        if len({launch.head["blocks"][0]["launch"] for launch in run.launches}) > 1
    ]
    if not found:
        return None
    # Imported here because they load slowly, and most machines have no such runs.
    from bench.analyse import process_spread  # noqa: PLC0415
    from bench.analyse.sample_rounds import Rounds  # noqa: PLC0415

    blocks = (Rounds.of(own) for run in found for _, own in run.samples.groupby("block"))
    spread = process_spread.shown(blocks)
    return {"sd": spread.sd, "freedom": spread.freedom}
