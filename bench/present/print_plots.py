"""Which plots a report has, and what is said of them: as many as can be drawn in a few seconds."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np

from bench.analyse import loss_curves, scaling_curves
from bench.analyse.causes import traced_differences
from bench.present import run_tables, sentences
from bench.present.plots import (
    breakdown,
    distribution,
    heatmap,
    losses,
    memory,
    ratios,
    roofline,
    throughput,
    timeline,
)
from bench.present.plots import scaling as scaling_plot
from bench.records import numbers

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pandas as pd

    from bench.analyse.cell_table import Tables
    from bench.analyse.comparisons import Comparison
    from bench.analyse.scaling_curves import Scaling
    from bench.present.columns import Table
    from bench.present.plots.style import Plot
    from bench.records.rows import Ceilings

Kind = Literal[
    "ratios", "scaling", "breakdown", "heatmap", "throughput", "roofline", "memory",
    "losses", "distribution", "host",
]  # fmt: skip

PANELS = 36
"""Most panels of a report's plots together: one takes about 80 ms to draw as SVG and PNG."""

LINES = 120
"""Most lines of a plot over its panels: more could not be read on a page."""

FEWEST, MOST = 3, 5
"""Panels of a plot, if there are as many to be had: fewer, the more subjects share PANELS."""

SIDE = 6
"""Most batches, and most meshes, of a heatmap."""

POINTS = 8
"""Most points along a curve of throughput."""

_FIELDS_A_PANEL = 25
"""Numbers in fields that take as long to draw as a panel."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Chart:
    """A plot, and what it says without seeing it."""

    kind: Kind
    title: str
    label: str
    """Its alternative text."""
    caption: str
    """How to read it, and what of it is left out."""
    plot: Plot
    table: Table | None = None
    """The numbers behind it; None where the report's other tables hold them."""


@dataclass(frozen=True)
class Figures:
    """Every plot of a report."""

    subjects: Mapping[str, list[Chart]]
    """By `Comparison.subject`, in the order of the report."""
    left_out: Mapping[str, str]
    """What of a subject is not drawn at all; only where there is such."""
    host: Chart | None
    """What the host did over the run; None where nothing was timed."""

    @property
    def charts(self) -> list[Chart]:
        """All of them."""
        each = [chart for charts in self.subjects.values() for chart in charts]
        return [*each, *([self.host] if self.host else [])]


@dataclass(frozen=True)
class _Planned:
    """A plot that may be drawn."""

    kind: Kind
    title: str
    caption: str
    panels: int
    draw: Callable[[], Plot]
    table: Callable[[], Table | None] = lambda: None


def draw(found: Tables, *, every: bool = False) -> Figures:
    """Draw the plots of a run, the most telling of every subject first, up to PANELS or all."""
    implementations = names(found)
    curves = scaling_curves.find(found.cells)
    blocks: dict[str, list[Comparison]] = {}
    for block in found.comparisons:
        blocks.setdefault(block.subject, []).append(block)
    panels = math.inf if every else PANELS
    most = int(min(MOST, max(FEWEST, panels // (2 * max(1, len(blocks))))))
    planned = {
        name: _planned(own, [c for c in curves if c.subject == name], found, implementations, most)
        for name, own in blocks.items()
    }
    host = None
    if not found.timeline.empty:
        host = _chart("", _host(found.timeline))
    room = panels - (3 if host else 0)
    chosen: dict[str, list[Chart]] = {name: [] for name in planned}
    missing: dict[str, list[_Planned]] = {}
    for rank in zip_longest(*planned.values()):
        for name, plan in zip(planned, rank, strict=True):
            if plan is None:
                continue
            if plan.panels > room:
                missing.setdefault(name, []).append(plan)
                continue
            room -= plan.panels
            chosen[name].append(_chart(name, plan))
    return Figures(chosen, {name: _left_out(plans) for name, plans in missing.items()}, host)


def names(found: Tables) -> list[str]:
    """Implementations with a time, in the order that fixes their colours and marks."""
    cells = found.cells
    return (
        [] if cells.empty else sorted(cells.loc[cells["status"] == "ok", "implementation"].unique())
    )


def anchor(block: Comparison) -> str:
    """A subject's name in addresses and file names."""
    return re.sub(r"[^\w-]", "-", block.subject.replace(", ", "-"))


def sample(items: Sequence[Item], most: int) -> list[Item]:
    """At most so many, evenly spaced, with the first and the last."""
    if len(items) <= most:
        return list(items)
    places = np.linspace(0, len(items) - 1, max(1, most)).round().astype(int)
    return [items[place] for place in places]


def _chart(subject: str, plan: _Planned) -> Chart:
    title = f"{plan.title}, {subject}" if subject else plan.title
    return Chart(plan.kind, plan.title, title, plan.caption, plan.draw(), plan.table())


def _left_out(plans: Sequence[_Planned]) -> str:
    counts = Counter(plan.kind for plan in plans)
    parts = [
        numbers.count(count, "scaling curve") if kind == "scaling" else plan.title.lower()
        for kind, count in counts.items()
        for plan in [next(plan for plan in plans if plan.kind == kind)]
    ]
    return (
        f"Not drawn, as a report has room for {PANELS} panels: {sentences.listing(parts)}. "
        "nox -s report -- RUN --all-plots draws them too."
    )


def _planned(
    blocks: list[Comparison],
    curves: list[Scaling],
    found: Tables,
    implementations: list[str],
    most: int,
) -> list[_Planned]:
    """All plots of a subject, of so many panels, those first that are to be drawn first."""
    cells = found.cells[found.cells["block"].isin([block.name for block in blocks])]
    slug = anchor(blocks[0])
    # One of each kind before all the others.
    first = [*{curve.kind: curve for curve in reversed(curves)}.values()][::-1]
    others = [curve for curve in curves if not any(curve is one for one in first)]
    return [
        *_ratios(slug, blocks, cells, implementations, most),
        *(_scaling(curve, implementations) for curve in first),
        *_breakdown(slug, blocks, found, most),
        *_heatmap(slug, cells, most),
        *_throughput(slug, cells, implementations, most),
        *_roofline(slug, blocks, cells, implementations, most),
        *_memory(slug, curves, implementations, most),
        *_losses(slug, blocks, found, implementations, most),
        *_distribution(slug, blocks, implementations, most),
        *(_scaling(curve, implementations) for curve in others),
    ]


def _some(items: Sequence[Item], most: int, what: str) -> tuple[list[Item], str]:
    """Those that are drawn, and a sentence if these are not all."""
    chosen = sample(items, most)
    if len(chosen) == len(items):
        return chosen, ""
    return chosen, f" Of {len(items)} {what}, {len(chosen)} are drawn."


def _panels(blocks: Sequence[Comparison], most: int) -> int:
    """How many blocks can be drawn in one plot with a line an arm."""
    return max(1, min(most, LINES // max(len(block.arms) for block in blocks)))


def _ratios(
    slug: str, blocks: list[Comparison], cells: pd.DataFrame, implementations: list[str], most: int
) -> Iterator[_Planned]:
    compared = [block for block in blocks if _has_ratios(block)]
    if not compared:
        return
    drawn, rest = _some(compared, _panels(compared, most), "blocks")
    yield _Planned(
        "ratios",
        "Step time over the baseline's",
        "Lines are 95 % intervals of the ratio, the shaded band is the noise floor, the dashed "
        "lines are the margin. A hollow mark was measured apart and has no interval. A ratio over "
        f"{ratios.CLIP:g} is written at the edge.{rest}",
        len(drawn),
        lambda: ratios.draw(f"ratios-{slug}", drawn, cells, implementations),
    )


def _scaling(curve: Scaling, implementations: list[str]) -> _Planned:
    bound = ""
    if len(scaling_plot.communication_bound(curve)):
        bound = (
            " The dotted line is what the least communication of any implementation would take at "
            "the rate measured for all-reduces alone."
        )
    return _Planned(
        "scaling",
        curve.title,
        "Points are medians, bars quartiles. Efficiency is against the same implementation on the "
        "smallest mesh; one without a time there has no efficiency. The ideal starts from the "
        f"fastest there.{bound}",
        2,
        lambda: scaling_plot.draw(curve, implementations),
        lambda: run_tables.scaling(curve),
    )


def _breakdown(slug: str, blocks: list[Comparison], found: Tables, most: int) -> Iterator[_Planned]:
    traced = [
        breakdown.Panel(
            f"{block.block.mesh}\nbatch {block.block.batch}",
            {
                cell["implementation"]: traced_differences.parts(found.traces[cell["cell"]])
                for cell in block.ranked
                if cell["cell"] in found.traces
            },
        )
        for block in blocks
    ]
    traced = [panel for panel in traced if panel.bars]
    if not traced:
        return
    drawn, rest = _some(traced, min(most, LINES // max(len(p.bars) for p in traced) or 1), "blocks")
    yield _Planned(
        "breakdown",
        "Where a step's time goes",
        "From traces, in which every step is waited for: means over devices and over the traced "
        f"steps of median length.{rest}",
        len(drawn),
        lambda: breakdown.draw(f"breakdown-{slug}", drawn),
    )


def _heatmap(slug: str, cells: pd.DataFrame, most: int) -> Iterator[_Planned]:
    meshes = list(cells.sort_values(["devices", "mesh"], kind="stable")["mesh"].unique())
    batches = sorted(cells["batch"].unique())
    others = cells[(cells["implementation"] != cells["baseline"]) & cells["ratio"].notna()]
    typical = others.groupby("implementation")["ratio"].median().sort_values(kind="stable")
    if len(meshes) < 2 or len(batches) < 2 or typical.empty:  # noqa: PLR2004
        return
    some_batches, rest = _some(batches, SIDE, "batches")
    some_meshes, more = _some(meshes, SIDE, "meshes")
    fields = cells[cells["mesh"].isin(some_meshes) & cells["batch"].isin(some_batches)]
    each = fields["implementation"].value_counts()
    room = max(1, most * _FIELDS_A_PANEL // int(each.max()))
    shown, others_left = _some([n for n in typical.index if n in each], room, "implementations")
    fields = fields[fields["implementation"].isin(shown)]
    yield _Planned(
        "heatmap",
        "Ratio to the baseline by mesh and batch",
        "Blue fields are faster than the baseline of their block, orange ones slower; hatched ones "
        f"have no time, for the reason named.{rest}{more}{others_left}",
        1 + len(fields) // _FIELDS_A_PANEL,
        lambda: heatmap.draw(f"heatmap-{slug}", fields, shown),
    )


def _throughput(
    slug: str, cells: pd.DataFrame, implementations: list[str], most: int
) -> Iterator[_Planned]:
    ok = cells[cells["status"] == "ok"]
    several = ok.groupby(["devices", "mesh"])["batch"].nunique()
    meshes = [str(mesh) for mesh in several[several > 1].index.get_level_values("mesh")]
    if not meshes:
        return
    drawn, rest = _some(meshes, most, "meshes")
    shown = ok[ok["mesh"].isin(drawn)]
    batches, more = _some(sorted(shown["batch"].unique()), POINTS, "batches")
    shown = shown[shown["batch"].isin(batches)]
    yield _Planned(
        "throughput",
        "Throughput against the batch",
        f"Points are medians, bars quartiles; both axes are logarithmic.{rest}{more}",
        len(drawn),
        lambda: throughput.draw(f"throughput-{slug}", shown, implementations),
    )


def _roofline(
    slug: str, blocks: list[Comparison], cells: pd.DataFrame, implementations: list[str], most: int
) -> Iterator[_Planned]:
    ceilings: dict[int, Ceilings] = {}
    for block in blocks:
        if block.ceilings is not None:
            ceilings.setdefault(block.block.mesh.size, block.ceilings)
    known = cells[
        (cells["status"] == "ok") & (cells["intensity"] > 0) & (cells["device_flops"] > 0)
    ]
    devices, rest = _some(sorted(ceilings.keys() & set(known["devices"])), most, "meshes")
    if not devices:
        return
    shown = known[known["devices"].isin(devices)]
    yield _Planned(
        "roofline",
        "Roofline",
        "What a compiled step computes, by XLA's own count, against the bytes it accesses; the "
        "lines are what one device did of matrix products alone and of memory alone, measured "
        f"with as many devices busy.{rest}",
        len(devices),
        lambda: roofline.draw(f"roofline-{slug}", shown, ceilings, implementations),
    )


def _memory(
    slug: str, curves: list[Scaling], implementations: list[str], most: int
) -> Iterator[_Planned]:
    known = [curve for curve in curves if curve.points["memory_bytes"].notna().any()]
    if not known:
        return
    drawn, rest = _some(known, most, "scaling curves")
    yield _Planned(
        "memory",
        "Memory of a device",
        "Lines are what the compiler planned, hollow marks the most that was measured in use."
        f"{rest}",
        len(drawn),
        lambda: memory.draw(f"memory-{slug}", drawn, implementations),
    )


def _losses(
    slug: str, blocks: list[Comparison], found: Tables, implementations: list[str], most: int
) -> Iterator[_Planned]:
    own = {block.name for block in blocks}
    trained = [one for one in loss_curves.find(found) if one.block.name in own and one.curves]
    if not trained:
        return
    drawn, rest = _some(trained, max(1, most // 2), "blocks")
    yield _Planned(
        "losses",
        "Loss curves",
        "Every implementation from the same parameters on the same data, over the reference: the "
        "whole batch on one device. On the right, how far its loss has been from the reference's, "
        f"at the bottom not at all ({losses.EQUAL}); grey lines are the reference itself in other "
        f"arithmetic: what rounding does.{rest}",
        2 * len(drawn),
        lambda: losses.draw(f"losses-{slug}", drawn, implementations),
    )


def _distribution(
    slug: str, blocks: list[Comparison], implementations: list[str], most: int
) -> Iterator[_Planned]:
    timed = [block for block in blocks if block.ranked and block.baseline in block.arms]
    if not timed:
        return
    drawn, rest = _some(timed, _panels(timed, most), "blocks")
    yield _Planned(
        "distribution",
        "Step times of all rounds",
        "Each round's step time over the baseline's median: the density above, samples below, the "
        "median as a bar. What a round's turns share, a slower host for instance, widens all of "
        "them and cancels in the ratio. Hollow marks lie beyond the edge; of many samples, evenly "
        f"spaced quantiles are drawn.{rest}",
        len(drawn),
        lambda: distribution.draw(
            f"distribution-{slug}", [_samples(block) for block in drawn], implementations
        ),
    )


def _samples(block: Comparison) -> distribution.Panel:
    middle = float(np.nanmedian(block.rounds.seconds(block.baseline, "throughput")))
    times = {arm: block.rounds.seconds(arm, "throughput") / middle for arm in block.arms}
    return distribution.Panel(
        f"{block.block.mesh}\nbatch {block.block.batch}",
        {arm: every[np.isfinite(every)] for arm, every in times.items()},
    )


def _host(rounds: pd.DataFrame) -> _Planned:
    return _Planned(
        "host",
        "The host over time",
        "Above: step times of the baselines, each against its block's median; what moves them "
        "moves all implementations of the round alike. Below: the share of the cores' time that "
        "other processes and other guests had.",
        3,
        lambda: timeline.draw("host", rounds),
    )


def _has_ratios(block: Comparison) -> bool:
    return any(
        not math.isnan(cell["ratio"])
        for cell in block.ranked
        if cell["implementation"] != block.baseline
    )
