"""Roofline plots: compiled steps below the measured roofs of the devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from bench.present.charts import CHARTS
from bench.present.plots import style
from bench.present.plots.plot_plan import Plan, Subject
from bench.present.plots.style import MUTED, Mark
from bench.records import numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pandas as pd
    from matplotlib.axes import Axes

    from bench.present.plots.style import Plot
    from bench.records.rows import Ceilings

_CHART = CHARTS["roofline"]


def plan(subject: Subject) -> Iterator[Plan]:
    """Yield a plot with a panel for each number of devices whose roofs were measured."""
    # The first block of each number of devices has its say.
    ceilings = {
        comparison.block.mesh.size: comparison.ceilings
        for comparison in reversed(subject.blocks)
        if comparison.ceilings is not None
    }
    cells = subject.cells
    known = cells[
        (cells["status"] == "ok") & (cells["intensity"] > 0) & (cells["device_flops"] > 0)
    ]
    devices, rest = subject.some(sorted(ceilings.keys() & set(known["devices"])), "meshes")
    if devices:
        shown = known[known["devices"].isin(devices)]
        slug = f"roofline-{subject.slug}"
        yield Plan(
            _CHART.title,
            _CHART.note + rest,
            len(devices),
            lambda: draw(slug, shown, ceilings, subject.implementations),
        )


def draw(
    slug: str,
    cells: pd.DataFrame,
    ceilings: Mapping[int, Ceilings],
    implementations: Sequence[str],
) -> Plot:
    """Draw a panel for each number of devices and a mark for each cell, below the roofs.

    Args:
      slug: file name.
      cells: rows of the tidy table with `intensity` (compiled FLOPs per byte accessed) and
        `device_flops` (compiled FLOP/s of a device), of one subject.
      ceilings: `matmul_flops` and `memory_bytes` of a device, per second, by number of devices;
        one for each in `cells`.
      implementations: all of the run, in order.
    """
    groups = list(cells.groupby("devices"))
    roofs = ceilings.values()
    ridges = np.array([roof["matmul_flops"] / roof["memory_bytes"] for roof in roofs])
    with style.styled(slug):
        handles = [
            style.handle(n, implementations) for n in sorted(cells["implementation"].unique())
        ]
        handles.append(style.guide("measured roofs of a device", "solid"))
        figure, panels = style.panels(
            len(groups), 2.5, _CHART.x, columns=min(3, max(2, len(groups))), shared="xy",
            handles=handles,
        )  # fmt: skip
        first = panels[0]
        intensities = [*cells["intensity"], *(2 * ridges), *(ridges / 4)]
        style.log_axis(first, "x", intensities, style.short_si(""))
        low, high = first.get_xlim()
        tops = [max(roof["matmul_flops"], low * roof["memory_bytes"]) for roof in roofs]
        style.log_axis(
            first, "y", [*cells["device_flops"], max(tops) * 1.8], style.short_si("FLOP/s")
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
        figure.supylabel(_CHART.y, color=MUTED)
        return style.render(figure, slug, _CHART.title)


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
        f"memory, {numbers.si(memory, 'B/s')}", (0.02, 0.98), xycoords="axes fraction", ha="left",
        va="top", fontsize=6.5, color=MUTED,
    )  # fmt: skip
