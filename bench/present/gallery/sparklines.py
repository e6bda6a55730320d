"""The ratios of a cell over several runs as a line, in text or as SVG."""

import numpy as np
from markupsafe import Markup

from bench.analyse.cell_history import History
from bench.present.columns import Figure
from bench.records import numbers

LEAST = 0.04
"""Range of log ratios that a sparkline spans at least, so that noise does not look large."""

WIDTH, HEIGHT = 120, 26
"""Size of a sparkline in pixels."""

BARS = "▁▂▃▄▅▆▇█"
"""Values of a sparkline as text."""


def sparkline(history: History, *, markdown: bool) -> Figure | None:
    """Draw a line through the ratios, with their intervals, and dots at changes and at the end."""
    rated = [ratio for _, ratio in history.rated]
    if len(rated) < 2:  # noqa: PLR2004 (one point is not a line)
        return None
    ends = np.log([(r.value, r.low or r.value, r.high or r.value) for r in rated])
    middle = (ends.min() + ends.max()) / 2
    shares = 0.5 + (ends - middle) / max(np.ptp(ends), LEAST)
    if markdown:
        places = (shares[:, 0] * len(BARS)).astype(int).clip(max=len(BARS) - 1)
        return Figure("".join(BARS[place] for place in places))
    step, heights = WIDTH / (len(rated) - 1), HEIGHT * (1 - shares)
    points = [(round(step * place, 1), *own) for place, own in enumerate(heights.round(1).tolist())]
    marked = {*(change.place for change in history.changes), len(rated) - 1}
    dots = "".join(
        f'<circle cx="{x}" cy="{y}" r="3"/>' for x, y, *_ in (points[at] for at in sorted(marked))
    )
    bars = "".join(f"M{x} {low}V{high}" for x, _, low, high in points)
    line = "L".join(f"{x} {y}" for x, y, *_ in points)
    said = f"{numbers.ratio(rated[0].value)} to {numbers.ratio(rated[-1].value)}"
    drawn = Markup(  # noqa: S704 (only numbers)
        f'<svg class="spark" viewBox="-4 -4 {WIDTH + 8} {HEIGHT + 8}" role="img" '
        f'aria-label="{said}"><path class="ends" d="{bars}"/><path d="M{line}"/>{dots}</svg>'
    )
    return Figure(drawn)
