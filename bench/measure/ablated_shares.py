"""Ablated arms whose shares of the step are not known well enough yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.records.arms import ABLATIONS, own_arms

if TYPE_CHECKING:
    from bench.analyse.process_spread import ProcessSpread
    from bench.analyse.sample_rounds import Rounds

SHARE_MARGIN = 0.02
"""An ablated arm leaves the rounds when the 95 % interval of its share of the step is this narrow:
half its width, in units of the step. It takes no part in the error rate of the block."""


def share_widths(rounds: Rounds, process: ProcessSpread) -> dict[str, float]:
    """Return half the width of each ablated arm's interval, in multiples of SHARE_MARGIN."""
    from bench.analyse.ratio_intervals import ratios  # noqa: PLC0415 (needs scipy)

    found = ratios(rounds, own_arms(rounds.arms, ABLATIONS), process)
    return {arm: ratio.value * ratio.half_width() / SHARE_MARGIN for arm, ratio in found.items()}
