"""Plots show the planted values, look the same every time, and are bounded in number."""

from __future__ import annotations

import dataclasses
import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import synthetic
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.colors import to_hex
from matplotlib.path import Path as Line

from bench.analyse import cell_table, scaling_curves
from bench.analyse.causes import traced_differences
from bench.present import print_plots
from bench.present.plots import breakdown, heatmap, plot_plan, ratios, roofline, style
from bench.present.plots import scaling as scaling_plot
from bench.records import numbers, store

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

    from bench.analyse.cell_table import Tables
    from bench.present.print_plots import Figures

NAMES = ["a", "b"]
PLAN = synthetic.Plan(
    devices=(1, 2, 4),
    batches=("strong", "weak"),
    ratios={"jit_spmd": 1.0, "fast": 0.95, "slow": 1.3, "far": 2.5},
    launches=2,
    traced=True,
    endings={("slow", 4): ("oom", "too large")},
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    """Of a run with every kind of plot."""
    directory = synthetic.write(tmp_path_factory.mktemp("reports"), PLAN)
    return cell_table.build(store.load(directory))


@pytest.fixture(scope="module")
def drawn(found: Tables) -> Figures:
    """All its plots."""
    return print_plots.draw(found)


@pytest.fixture
def outlined(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures that would have been rendered: which there are takes no rendering to see."""
    seen: list[Figure] = []

    def render(figure: Figure, slug: str, title: str) -> style.Plot:
        assert title
        seen.append(figure)
        return style.Plot(slug, "", b"")

    monkeypatch.setattr(style, "render", render)
    return seen


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures that were rendered, with their artists."""
    seen: list[Figure] = []
    real = style.render

    def render(figure: Figure, slug: str, title: str) -> style.Plot:
        seen.append(figure)
        return real(figure, slug, title)

    monkeypatch.setattr(style, "render", render)
    return seen


def marks(axes: Any) -> set[tuple[float, float]]:
    """Where marks are."""
    return {
        (round(float(x), 6), round(float(y), 6))
        for one in axes.collections
        if isinstance(one, PathCollection)
        for x, y in np.asarray(one.get_offsets())
    }


def heights(axes: Any) -> set[float]:
    """Where marks are on the vertical axis: sideways, curves are a little apart."""
    return {y for _, y in marks(axes)}


def texts(plot: style.Plot) -> set[str]:
    """All text of an SVG: glyphs are outlines, but what they say is beside them."""
    return set(re.findall(r"<!-- (.*?) -->", plot.svg))


def cells(**columns: Any) -> pd.DataFrame:
    """Rows of the tidy table: two implementations on two meshes with two batches."""
    rows = pd.DataFrame(
        [
            {"implementation": name, "workload": "w", "size": "s", "options": "fp32",
             "mesh": f"data={devices}", "devices": devices, "processes": 1, "batch": batch,
             "status": "ok", "step_s": 0.1, "step_q1_s": 0.08, "step_q3_s": 0.125,
             "units_per_s": batch * 10.0, "unit": "samples", "oversubscribed": devices > 1,
             "baseline": "a", "ratio": 1.0 if name == "a" else 1.25, "block": "x", "cell": name,
             "memory_bytes": np.nan, "high_water_bytes": np.nan, "communication_s": np.nan}
            for name in NAMES for devices in (1, 2) for batch in (8, 16)
        ]
    )  # fmt: skip
    return rows.assign(**columns)


def curve(**columns: Any) -> scaling_curves.Scaling:
    """The first strong scaling curve of these."""
    return scaling_curves.find(cells(**columns))[0]


def test_scaling_shows_times_and_efficiency(kept: list[Figure]) -> None:
    plot = scaling_plot.draw(curve(step_s=[0.4, 1, 0.2, 1, 0.8, 1, 0.5, 1]), NAMES)
    time, share = kept[0].axes
    assert heights(time) == {0.4, 0.2, 0.8, 0.5}
    assert heights(share) == {1.0, 0.8}
    assert {"a", "b", "ideal", scaling_plot.OVERSUBSCRIBED, "0 %"} <= texts(plot)
    assert scaling_plot.BOUND not in texts(plot)


def test_communication_bounds_scaling_where_it_is_known_twice(kept: list[Figure]) -> None:
    known = [0.01, 9, 0.02, 9, 0.03, 9, np.nan, 9]  # of a and b, by devices and batch
    plot = scaling_plot.draw(curve(communication_s=known), NAMES)
    line = kept[0].axes[0].lines[-1]
    assert np.array_equal(line.get_xydata(), [[1, 0.01], [2, 0.02]]), "the least on each mesh"
    assert scaling_plot.BOUND in texts(plot)
    once = curve(communication_s=[np.nan, 9, 0.02, 9, np.nan, 9, 0.04, 9])
    assert len(once.communication_bound) == 0
    assert scaling_plot.BOUND not in texts(scaling_plot.draw(once, NAMES))


def test_a_line_breaks_where_there_is_no_time() -> None:
    look = style.look("a", NAMES)
    y = np.array([1.0, 2.0, np.nan, 3.0])
    with style.styled("x"):
        _, (axes,) = style.panels(1, 1, "")
        scaling_plot.draw_curves(
            axes, [scaling_plot.Curve(look, np.array([1.0, 2, 4, 8]), y, y, y)]
        )
        lines, _ = [one for one in axes.collections if isinstance(one, LineCollection)]
    (path,) = lines.get_paths()
    drawn = path.cleaned(remove_nans=True)
    assert drawn.codes.tolist() == [Line.MOVETO, Line.LINETO, Line.MOVETO, Line.STOP]
    assert drawn.vertices[2, 1] == 3.0


def test_forest_shows_ratios_and_intervals(found: Tables, kept: list[Figure]) -> None:
    (block, *_) = found.comparisons
    plot = ratios.draw("f", [block], found.cells, sorted(found.cells["implementation"].unique()))
    own = {cell["implementation"]: cell for cell in block.ranked}
    (axes,) = kept[0].axes
    lines = [label.get_text() for label in axes.get_yticklabels()]
    assert lines == ["far", "slow", "jit_spmd", "fast"], "the fastest above"
    assert (round(own["fast"]["ratio"], 6), 3.0) in marks(axes)
    ends = [bar[:, 0] for bar in axes.collections[-2].get_segments()]
    assert any(np.allclose(e, [own["fast"]["ratio_low"], own["fast"]["ratio_high"]]) for e in ends)
    beyond = numbers.ratio(own["far"]["ratio"])
    assert any(text.startswith(beyond) for text in texts(plot)), "at the edge, as a number"


def test_heatmap_prints_every_ratio_and_status(kept: list[Figure]) -> None:
    table = cells(ratio=[1.0] * 4 + [0.5, 1.25, np.nan, 2.0])
    table.loc[6, "status"] = "oom"
    plot = heatmap.draw("h", table[table["implementation"] == "b"], ["b"])
    assert {"0.50", "1.25", "2.00", "oom", "data=1", "data=2", "8", "16", "b"} <= texts(plot)
    timed, others = [c for c in kept[0].axes[0].collections if isinstance(c, PolyCollection)]
    assert len(timed.get_paths()) == 3
    assert (len(others.get_paths()), others.get_hatch()) == (1, "////")


def test_heatmap_colours_diverge_around_one() -> None:
    assert to_hex(heatmap.colour(0.01)) == style.PALETTE[0]
    assert to_hex(heatmap.colour(99)) == style.PALETTE[1]
    middle = np.array(heatmap.colour(1.0))
    assert middle.min() > 0.95
    blue, orange = heatmap.colour(1 / 1.2), heatmap.colour(1.2)
    assert blue[2] > blue[0]
    assert orange[0] > orange[2]


def test_breakdown_stacks_the_parts_of_traces(found: Tables, kept: list[Figure]) -> None:
    block = found.comparisons[0]
    bars = {
        cell["implementation"]: traced_differences.parts(found.traces[cell["cell"]])
        for cell in block.ranked
    }
    whole = synthetic.base_seconds(PLAN, next(PLAN.blocks()))
    expected = {"dispatch": 0.1, "matmul": 0.7, "elementwise": 0.4, "idle": 0.1}
    for part, share in expected.items():
        assert bars["slow"][part] == pytest.approx(share * whole, rel=1e-6)
    assert bars["slow"].keys() - expected.keys() == {"layout", "unknown", "wait", "move"}
    plot = breakdown.draw("b", [breakdown.Panel("here", bars)])
    (axes,) = kept[0].axes
    order = [label.get_text() for label in axes.get_yticklabels()]
    assert order == ["fast", "jit_spmd", "slow", "far"], "by length"
    boxes = [c.get_paths()[2].get_extents() for c in axes.collections]
    assert boxes[0].x0 == 0
    assert all(left.x1 == pytest.approx(right.x0) for left, right in pairwise(boxes))
    assert [box.width for box in boxes] == pytest.approx([s * whole for s in expected.values()])
    assert {"dispatch", "matrix products", "elementwise", "idle", "here"} <= texts(plot)
    assert not {"layout", "unknown", "waiting", "moving data"} & texts(plot), "nobody has any"


def test_parts_are_told_apart_without_colour() -> None:
    looks = [(colour, hatch) for _, colour, hatch in breakdown.PARTS.values()]
    assert len(set(looks)) == len(looks)
    assert len({hatch for _, hatch in looks}) > 4


def test_roofline_shows_cells_below_measured_roofs(kept: list[Figure]) -> None:
    table = cells(intensity=4.0, device_flops=2e9)
    table.loc[0, "device_flops"] = 3e9
    ceilings = {devices: {"matmul_flops": 8e9 / devices, "memory_bytes": 1e9} for devices in (1, 2)}
    plot = roofline.draw("r", table, ceilings, NAMES)
    one, two = kept[0].axes
    assert marks(one) == {(4.0, 2e9), (4.0, 3e9)}
    assert marks(two) == {(4.0, 2e9)}
    for axes, peak in ((one, 8e9), (two, 4e9)):
        ((_, low), (x, ridge), (_, flat)) = axes.lines[0].get_xydata()
        assert (x, ridge, flat) == (peak / 1e9, peak, peak)
        assert low == pytest.approx(1e9 * axes.get_xlim()[0])
    shown = {text.replace("\N{NARROW NO-BREAK SPACE}", " ") for text in texts(plot)}
    assert {"1 device", "2 devices", "memory, 1.00 GB/s", "matrix products, 8.00 GFLOP/s"} <= shown


def test_rooflines_need_ceilings(found: Tables, outlined: list[Figure]) -> None:
    unknown = [
        block if block.block.mesh.size < 4 else dataclasses.replace(block, ceilings=None)
        for block in found.comparisons
    ]
    again = print_plots.draw(dataclasses.replace(found, comparisons=unknown))
    place = next(n for n, chart in enumerate(again.charts) if chart.kind == "roofline")
    panels = [axes.get_title(loc="left") for axes in outlined[place].axes]
    assert panels == ["1 device", "2 devices"]
    none = [dataclasses.replace(block, ceilings=None) for block in found.comparisons]
    drawn = print_plots.draw(dataclasses.replace(found, comparisons=none))
    assert not [chart for chart in drawn.charts if chart.kind == "roofline"]


def test_looks_are_unique() -> None:
    many = [str(number) for number in range(24)]
    looks = [style.look(name, many) for name in many]
    assert len({(one.colour, one.marker) for one in looks}) == len(many)
    assert looks[0].colour == looks[8].colour
    assert looks[0].dashes != looks[8].dashes


def test_glyphs_are_in_the_file(drawn: Figures) -> None:
    for chart in drawn.charts:
        assert "<text" not in chart.plot.svg, chart.plot.slug
        assert chart.plot.png.startswith(b"\x89PNG")


def test_every_kind_is_drawn_once_a_subject(drawn: Figures) -> None:
    (charts,) = drawn.subjects.values()
    assert [chart.kind for chart in charts] == [
        "ratios", "scaling", "scaling", "breakdown", "heatmap", "roofline",
    ]  # fmt: skip
    assert not drawn.left_out
    slugs = [chart.plot.slug for chart in drawn.charts]
    assert len(slugs) == len(set(slugs))
    assert all("mlp-base, fp32" in chart.label for chart in charts)


def test_the_same_rows_give_the_same_plots(found: Tables, drawn: Figures) -> None:
    again = print_plots.draw(found)
    assert [chart.plot for chart in again.charts] == [chart.plot for chart in drawn.charts]


def test_one_bound_holds_for_all_plots_of_a_run(
    found: Tables, outlined: list[Figure], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(print_plots, "PANELS", 5)
    few = print_plots.draw(found)
    assert sum(len(figure.axes) for figure in outlined) <= 5
    assert [chart.kind for chart in few.charts] == ["ratios", "scaling"]
    assert few.charts[0].caption.endswith(" The plot shows 3 of 5 blocks.")
    (text,) = few.left_out.values()
    assert text == (
        "Not drawn, because a report has room for 5 panels: scaling, where the step time goes, "
        "mesh by batch and roofline. Run nox -s report -- RUN --all-plots to draw everything."
    )
    assert not print_plots.draw(found, every=True).left_out


def test_subjects_share_the_room(
    tmp_path: Path, outlined: list[Figure], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(print_plots, "PANELS", 11)
    plan = dataclasses.replace(PLAN, workloads=("linear-base", "mlp-base"), traced=False)
    built = cell_table.build(store.load(synthetic.write(tmp_path, plan)))
    both = print_plots.draw(built)
    assert {name: [c.kind for c in charts] for name, charts in both.subjects.items()} == {
        "linear-base, fp32": ["ratios", "scaling", "heatmap"],
        "mlp-base, fp32": ["ratios", "scaling"],
    }
    assert both.left_out.keys() == both.subjects.keys()
    assert sum(len(figure.axes) for figure in outlined) <= 11


def test_evenly_spaced_samples_have_both_ends() -> None:
    assert plot_plan.sample([1, 2, 3], 3) == [1, 2, 3]
    assert plot_plan.sample(list(range(101)), 5) == [0, 25, 50, 75, 100]
    assert plot_plan.sample([1, 2, 3], 1) == [1]


def test_hostile_names_do_not_break_plots(tmp_path: Path) -> None:
    plan = synthetic.Plan(devices=(1, 2), ratios={"jit_spmd": 1.0, 'a<b>--&"c$x^{$': 1.1})
    for chart in print_plots.draw(
        cell_table.build(store.load(synthetic.write(tmp_path, plan)))
    ).charts:
        assert "<b>" not in chart.plot.svg
