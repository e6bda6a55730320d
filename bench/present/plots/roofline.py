"""What compiled steps compute, against what the devices can."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bench.present.plots import style
from bench.present.plots.style import MUTED, Grid, Mark
from bench.records import numbers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd
    from matplotlib.axes import Axes

    from bench.present.plots.style import Plot
    from bench.records.rows import Ceilings


def draw(
    slug: str,
    cells: pd.DataFrame,
    ceilings: Mapping[int, Ceilings],
    implementations: Sequence[str],
) -> Plot:
    """Draw a panel a number of devices, a mark a cell, below the roofs that were measured.

    Args:
      slug: file name.
      cells: rows of the tidy table with `intensity` (compiled FLOPs a byte accessed) and
        `device_flops` (compiled FLOP/s of a device), of one subject.
      ceilings: `matmul_flops` and `memory_bytes` of a device, a second, by number of devices;
        one for each in `cells`.
      implementations: all of the run's, in order.
    """
    names = sorted(cells["implementation"].unique())
    groups = list(cells.groupby("devices"))
    columns = min(3, max(2, len(groups)))
    grid = Grid(columns=columns, height=2.2, left=0.85, top=0.28, shared="xy")
    ridges = [roof["matmul_flops"] / roof["memory_bytes"] for roof in ceilings.values()]
    x = [*cells["intensity"], *(2 * ridge for ridge in ridges), *(ridge / 4 for ridge in ridges)]
    with style.styled(slug):
        handles = [style.handle(name, implementations) for name in names]
        handles.append(style.guide("measured roofs of a device", "solid"))
        figure, panels = grid.figure(len(groups), handles)
        style.log_axis(panels[0], "x", x, style.short_si(""))
        low, high = panels[0].get_xlim()
        roofs = [value for roof in ceilings.values() for value in (roof["matmul_flops"],
                 low * roof["memory_bytes"])]  # fmt: skip
        style.log_axis(
            panels[0], "y", [*cells["device_flops"], max(roofs) * 1.3], style.short_si("FLOP/s")
        )
        for axes, (devices, rows) in zip(panels, groups, strict=True):
            _draw_roofs(axes, ceilings[int(str(devices))], np.array([low, high]))
            style.marks(
                axes,
                [
                    Mark(row["intensity"], row["device_flops"], look.colour, look.marker)
                    for row in rows.to_dict("records")
                    for look in [style.look(row["implementation"], implementations)]
                ],
                size=5,
            )
            axes.set_title(numbers.count(int(str(devices)), "device"))
        grid.label(figure, "intensity: compiled FLOPs a byte accessed", handles)
        return style.render(figure, slug)


def _draw_roofs(axes: Axes, roof: Ceilings, ends: np.ndarray) -> None:
    flops, memory = roof["matmul_flops"], roof["memory_bytes"]
    x = np.sort([*ends, np.clip(flops / memory, *ends)])
    axes.plot(x, np.minimum(flops, x * memory), color=MUTED, linewidth=1.1, zorder=1.5)
    axes.annotate(
        f"matrix products, {numbers.si(flops, 'FLOP/s')}", (1, flops), xytext=(-3, 3),
        xycoords=("axes fraction", "data"), textcoords="offset points", ha="right", va="bottom",
        fontsize=6.5, color=MUTED,
    )  # fmt: skip
    axes.annotate(
        f"memory, {numbers.si(memory, 'B/s')}", (0.98, 0.03), xycoords="axes fraction", ha="right",
        va="bottom", fontsize=6.5, color=MUTED,
    )  # fmt: skip
