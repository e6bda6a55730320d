"""Printed plots: they hold what the rows say, in the page's own specifications."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import synthetic

from bench.analyse import causes, cell_table, scaling_curves
from bench.present import charts, placing_table, print_plots
from bench.present.plots import kinds, vega_plot
from bench.present.plots.vega_plot import Plot
from bench.records import files, numbers, store
from bench.records.paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.analyse.cell_table import Tables
    from bench.present.print_plots import Figures

PLAN = synthetic.Plan(
    devices=(1, 2, 4),
    batches=("strong", "weak"),
    traced=True,
    launches=2,
    endings={("pmap", 0): ("unsupported", "no"), ("nnx_jit", 4): ("oom", "no memory")},
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    directory = synthetic.write(tmp_path_factory.mktemp("reports"), PLAN)
    return cell_table.build(store.load(directory))


@pytest.fixture(scope="module")
def drawn(found: Tables) -> Figures:
    return print_plots.draw(found, machine="2 CPU cores")


@pytest.fixture
def specs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The specifications of what is drawn meanwhile, which is not rendered."""
    kept: list[dict[str, Any]] = []

    def compose(slug: str, spec: dict[str, Any], title: str, subtitle: str) -> Plot:
        kept.append({**spec, "title": {"text": title, "subtitle": subtitle}})
        return Plot(slug, f"<svg>{slug}</svg>")

    monkeypatch.setattr(print_plots, "compose", compose)
    return kept


def panels(spec: dict[str, Any]) -> int:
    """How many panels a drawn figure has; those of a heatmap count by their fields."""
    if "hconcat" in spec:
        return len(spec["hconcat"])
    field = spec["facet"]["field"]
    return 1 if field == "panel" else rows(spec)[field].nunique()


def subject(found: Tables) -> kinds.Subject:
    """The only subject of a run."""
    return kinds.Subject(found, found.comparisons, panels=12)


def rows(spec: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame(spec["data"]["values"])


def spec_of(kind: Any, found: Tables) -> Any:
    """What the first plan of a kind draws."""
    return next(kind(subject(found))).spec()


def test_ratios_have_every_cell_and_interval(found: Tables) -> None:
    spec = spec_of(kinds.ratios, found)
    shown = rows(spec).set_index(["place", "name"])
    cells = found.cells[found.cells["ratio"].notna()]
    assert len(shown) == len(cells)
    for cell in cells.to_dict("records"):
        row = shown.loc[(f"{cell['mesh']}, batch {cell['batch']}", cell["implementation"])]
        assert row["ratio"] == cell["ratio"]
        if row["isBaseline"]:
            assert cell["implementation"] == cell["baseline"]
            assert row["ratio"] == 1
        else:
            ends = ["verdict_low", "ratio_low", "ratio_high", "verdict_high"]
            assert all(row[key] == cell[key] for key in ends)
            assert list(row[ends]) == sorted(row[ends])
    for block in found.comparisons:
        assert block.floor is not None
        (row,) = shown[shown["isBaseline"]].xs(block.place).to_dict("records")
        assert row["floor"] == block.floor_width


@pytest.mark.parametrize(
    ("others", "wide"),
    [((1.6, 1.7, 1.9), False), ((1.1, 1.2, 2.6), True), ((0.3,), True), ((12.0, 1.0), True)],
)
def test_every_ratio_is_on_its_axis_which_is_logarithmic_from_twice_on(
    tmp_path: Path, others: Sequence[float], wide: bool
) -> None:
    ratios = {synthetic.BASELINE: 1.0, **{f"file_{i}": ratio for i, ratio in enumerate(others)}}
    plan = synthetic.Plan(devices=(1,), ratios=ratios)
    found = cell_table.build(store.load(synthetic.write(tmp_path, plan)))
    spec = spec_of(kinds.ratios, found)
    scale = spec["spec"]["layer"][0]["encoding"]["x"]["scale"]
    assert (scale.get("type") == "log") == wide
    drawn = vega_plot.compose("ratios", spec, "", "").svg
    (points,) = re.findall(r"mark-symbol role-mark.*?</g>", drawn)
    assert points.count("<path") == len(ratios)
    assert not re.findall("[\u25ba\u25c4]<", drawn)


def test_a_mark_without_an_interval_has_no_line_and_no_arrow(tmp_path: Path) -> None:
    plan = synthetic.Plan(devices=(1,), alone=frozenset({"pmap"}))
    found = cell_table.build(store.load(synthetic.write(tmp_path, plan)))
    spec = spec_of(kinds.ratios, found)
    assert rows(spec).set_index("name").loc["pmap", "paired"] == False  # noqa: E712 (of NumPy)
    drawn = vega_plot.compose("ratios", spec, "", "").svg
    assert not re.findall("[\u25ba\u25c4]<", drawn)


def test_intervals_that_go_on_beyond_the_axis_end_in_arrows(tmp_path: Path) -> None:
    plan = synthetic.Plan(devices=(1,), rounds=3)  # too few to exclude anything
    found = cell_table.build(store.load(synthetic.write(tmp_path, plan)))
    spec = spec_of(kinds.ratios, found)
    assert rows(spec)["paired"].all()
    drawn = vega_plot.compose("ratios", spec, "", "").svg
    others = len(synthetic.RATIOS) - 1
    assert [drawn.count(arrow + "<") for arrow in "\u25c4\u25ba"] == [others, others]


def test_an_axis_of_attempts_has_whole_numbers() -> None:
    attempts = [{"number": number, "record": 1.0, "kept": False} for number in range(3)]
    spec = vega_plot.spec_of("record", {"rows": attempts, "width": 600})
    drawn = vega_plot.compose("record", spec, "", "").svg
    labels = re.findall(r">(\d)</text>", drawn.partition("attempt")[0])
    assert labels == ["0", "1", "2"]


def test_scaling_shows_times_efficiency_and_guides(found: Tables) -> None:
    (curve, *_) = scaling_curves.find(found.cells)
    time, share = spec_of(kinds.scaling, found)["hconcat"]
    shown = rows(time).set_index(["name", "x"])
    for point in curve.points.to_dict("records"):
        row = shown.loc[(point["implementation"], point["devices"])]
        assert tuple(row[["value", "low", "high"]]) == (
            point["step_s"], point["step_q1_s"], point["step_q3_s"],
        )  # fmt: skip
    assert set(rows(share)["value"].dropna()) == set(curve.points["efficiency"].dropna())
    ideal = pd.DataFrame(time["layer"][1]["data"]["values"])[["x", "value"]].to_numpy()
    assert np.array_equal(ideal, curve.ideal)
    low, high = time["layer"][3]["encoding"]["y"]["scale"]["domain"]
    assert low < curve.points["step_q1_s"].min() < curve.points["step_q3_s"].max() < high


def test_heatmap_has_every_ratio_and_status(found: Tables) -> None:
    spec = spec_of(kinds.heatmap, found)
    shown = rows(spec).set_index(["panel", "mesh", "line"]).sort_index()
    oom = shown.loc[("nnx_jit", "data=4")]
    assert set(oom["label"]) == {"oom"}
    assert oom["share"].isna().all(), "no colour"
    assert "pmap" not in spec["facet"]["sort"], "never ran"
    others = found.cells[found.cells["implementation"] != "jit_spmd"]
    for cell in others[others["ratio"].notna()].to_dict("records"):
        row = shown.loc[(cell["implementation"], cell["mesh"], cell["batch"])]
        assert float(row["label"]) == pytest.approx(cell["ratio"], abs=6e-3)
        assert charts.FARTHEST_RATIO ** row["share"] == pytest.approx(cell["ratio"])


def test_breakdown_stacks_the_parts_of_traces(found: Tables) -> None:
    shown = rows(spec_of(kinds.breakdown, found))
    totals = shown.groupby(["place", "name"])["seconds"].sum()
    for block in found.comparisons:
        for cell in block.ranked:
            spent = causes.parts(found.traces[cell["cell"]])
            total = totals[(block.place, cell["implementation"])]
            assert total == pytest.approx(spent["total"])
            assert total == pytest.approx(sum(spent[part] for part in charts.PARTS))
    assert set(shown["what"]) == {title for title, *_ in charts.PARTS.values()}


MATRICES = {
    "usual": np.eye(3),
    "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "tritanopia": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
"""How linear RGB is seen: Machado, Oliveira and Fernandes (IEEE TVCG 15 (2009), 1291)."""


def lab(colour: str, sight: Any) -> np.ndarray:
    """CIE L*a*b* of a colour as it is seen."""
    rgb = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.asarray(sight) @ linear, 0, 1)
    xyz = np.array([[0.4125, 0.3576, 0.1804], [0.2127, 0.7152, 0.0722], [0.0193, 0.1192, 0.9503]])
    x, y, z = np.cbrt(np.maximum(xyz @ seen / [0.9505, 1, 1.0888], 1e-4))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("sight", MATRICES)
def test_parts_are_told_apart_by_every_kind_of_sight(sight: str) -> None:
    used = [
        c if c.startswith("#") else vega_plot.colours()["line"] for _, c, _ in charts.PARTS.values()
    ]
    for one, other in itertools.combinations(used, 2):
        apart = np.linalg.norm(lab(one, MATRICES[sight]) - lab(other, MATRICES[sight]))
        assert apart > 14, (one, other)


@pytest.fixture(params=[0, 1], ids=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> dict[str, str]:
    """The colours of a theme by name."""
    style = vega_plot._STYLE.read_text("utf-8")
    every = re.findall(r"--(\w+): light-dark\((#\w+), (#\w+)\)", style)
    return {name: pair[request.param] for name, *pair in every}


def contrast(one: str, other: str) -> float:
    """WCAG's contrast of two colours."""
    luminance = [((lab(colour, np.eye(3))[0] + 16) / 116) ** 3 for colour in (one, other)]
    low, high = sorted(luminance)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("sight", MATRICES)
def test_what_to_use_and_what_to_avoid_are_told_apart_by_every_kind_of_sight(
    sight: str, scheme: dict[str, str]
) -> None:
    use, avoid, text = (lab(scheme[name], MATRICES[sight]) for name in ("accent", "warn", "ink"))
    assert np.linalg.norm(use - avoid) > 60
    assert min(np.linalg.norm(use - text), np.linalg.norm(avoid - text)) > 25
    assert min(contrast(scheme[name], scheme["paper"]) for name in ("accent", "warn")) > 4.5


@pytest.mark.parametrize("sight", MATRICES)
def test_the_matrix_has_one_ramp_by_lightness_for_every_kind_of_sight(
    sight: str, scheme: dict[str, str]
) -> None:
    ramp = [scheme[f"behind{shade}"] for shade in range(len(placing_table.SHADES) + 1)]
    lightness = [lab(colour, MATRICES[sight])[0] for colour in (scheme["paper"], *ramp)]
    steps = np.diff(lightness)
    steps *= np.sign(steps[0])
    assert steps[0] > 2
    assert min(steps[1:]) > 5, "each shade is farther from the paper than the one before"
    assert contrast(scheme["ink"], scheme["behind4"]) > 4.5, "the number in the field is legible"


def test_roofline_has_cells_and_measured_roofs(found: Tables) -> None:
    shown = rows(spec_of(kinds.roofline, found))
    cells = found.cells[found.cells["intensity"] > 0]
    assert sorted(shown["device_flops"]) == sorted(cells["device_flops"])
    for block in found.comparisons:
        assert block.ceilings is not None
        own = shown[shown["place"].str.split().str[0].astype(int) == block.block.mesh.size]
        assert set(own["matmul"]) == {block.ceilings["matmul_flops"]}
        assert set(own["bandwidth"]) == {block.ceilings["memory_bytes"]}


def test_rooflines_need_ceilings(tmp_path: Path) -> None:
    directory = synthetic.write(tmp_path, synthetic.Plan(devices=(1,), rounds=6))
    synthetic.rewrite(directory, "blocks", lambda row: row.update(ceilings=None))
    bare = cell_table.build(store.load(directory))
    assert not list(kinds.roofline(subject(bare)))


def test_looks_are_unique() -> None:
    names = [f"arm_{number}" for number in range(64)]
    assert len(set(charts.looks_of(names).values())) == 64
    assert len(charts.looks_of([*names, "one more"])) == 65


def test_an_implementation_looks_the_same_in_every_run() -> None:
    shipped = [path.stem for path in ROOT.glob("implementations/**/[!_]*.py")]
    looks = charts.looks_of(shipped)
    alone = {name: look for own in shipped for name, look in charts.looks_of([own]).items()}
    assert len(looks.items() - alone.items()) < len(shipped) / 10, "where two names draw one look"
    assert len(set(looks.values())) == len(shipped) > 30
    assert len({look.colour for look in looks.values()}) == charts.COLOURS


def test_what_people_bring_differs_in_colour() -> None:
    names = ["jit_spmd", "pmap", "a", "b", "old_step", "new_step"]
    looks = charts.looks_of(names)
    assert list(looks) == sorted(names)
    assert len({look.colour for look in looks.values()}) == len(names)
    assert looks["jit_spmd"] == charts.looks_of(["jit_spmd"])["jit_spmd"]


def test_a_name_has_one_look_whatever_is_shown() -> None:
    every = ["a", "b", "c"]
    few, all_ = charts.looks(["c"], every), charts.looks(every, every)
    for key in ("names", "colours", "shapes", "dashed"):
        assert few[key] == all_[key][2:]


def test_figures_say_what_they_show(drawn: Figures) -> None:
    for chart in drawn.charts:
        assert "mlp-base, fp32" in chart.plot.svg
        assert "baseline jit_spmd" in chart.plot.svg
        assert "2 CPU cores" in chart.plot.svg
        assert "var(" not in chart.plot.svg, "every colour is one of paper"
        assert chart.plot.png.startswith(b"\x89PNG")


def test_every_kind_is_drawn_once_a_subject(drawn: Figures) -> None:
    (found,) = drawn.subjects.values()
    kinds = [chart.kind for chart in found]
    assert set(kinds) == {"ratios", "scaling", "breakdown", "heatmap", "roofline"}
    assert len({chart.plot.slug for chart in found}) == len(found)


def test_the_same_rows_give_the_same_plots(found: Tables, drawn: Figures) -> None:
    again = print_plots.draw(found, machine="2 CPU cores")
    for one, other in zip(drawn.charts, again.charts, strict=True):
        assert (one.plot.svg, one.plot.png) == (other.plot.svg, other.plot.png), one.plot.slug


def test_plots_are_drawn_when_they_are_needed(
    found: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(
        vega_plot.vl_convert, "vegalite_to_svg", lambda s, **_: asked.append(s) or s
    )
    one, *_ = print_plots.draw(found).charts
    assert not asked
    assert one.plot.svg == one.plot.svg == asked.pop()
    assert not asked


def test_a_plot_is_written_for_screens_and_papers(drawn: Figures, tmp_path: Path) -> None:
    plot, other = drawn.charts[0].plot, drawn.charts[1].plot
    paper = tmp_path / f"{plot.slug}.pdf"
    plot.write(tmp_path)
    first = paper.read_bytes()
    assert first.startswith(b"%PDF-")
    assert (tmp_path / f"{plot.slug}.svg").read_text("utf-8") == plot.svg
    paper.write_bytes(first + b"kept")
    plot.write(tmp_path)
    assert paper.read_bytes() == first + b"kept", "an equal plot keeps its PDF"
    dataclasses.replace(other, slug=plot.slug).write(tmp_path)
    assert paper.read_bytes().startswith(b"%PDF-")
    assert not paper.read_bytes().endswith(b"kept")


def test_a_subject_with_a_long_name_has_plots_with_names_of_their_own(tmp_path: Path) -> None:
    slugs = [f"ratios-{letter * 235}-base-fp32{end}" for letter in "wü" for end in ("", "-b8")]
    plots = [vega_plot.compose(slug, {}, "title", "subtitle") for slug in slugs]
    for plot in plots:
        files.write(tmp_path / f"{plot.slug}.svg", plot.spec)
    assert len({plot.slug for plot in plots}) == len(slugs)


PICTURES = """
from bench.present.plots import vega_plot
{first}
text = '<text y="9" font-family="{{}}">g</text>'
svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="99" height="20">{{text}}</svg>'
known, unknown = (
    vega_plot.vl_convert.svg_to_png(svg.format(name)) for name in ("DejaVu Sans Mono", "none")
)
print(known == unknown)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="fontconfig names the fonts of Linux alone")
@pytest.mark.parametrize(
    ("first", "same"), [("", "False"), ("vega_plot.load_bundled_fonts()", "True")]
)
def test_only_bundled_fonts_are_used(tmp_path: Path, first: str, same: str) -> None:
    config = tmp_path / "fonts.conf"
    config.write_text(f"<fontconfig><dir>{mpl.get_data_path()}</dir></fontconfig>")
    environment = {**os.environ, "FONTCONFIG_FILE": str(config), "PYTHONPATH": str(ROOT)}
    program = PICTURES.format(first=first) + "import os; print(os.environ['FONTCONFIG_FILE'])"
    out = subprocess.check_output([sys.executable, "-c", program], text=True, env=environment)
    assert out.split() == [same, str(config)]


def test_the_bundled_font_has_every_character_of_plots() -> None:
    def picture(character: str) -> bytes:
        text = f'<text y="20" font-family="Liberation Sans">{character}</text>'
        svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="30" height="30">{text}</svg>'
        return bytes(vega_plot.vl_convert.svg_to_png(svg))

    vega_plot.load_bundled_fonts()
    written = json.dumps(charts.SPECS, ensure_ascii=False)
    special = {one for one in written if not one.isascii()}
    special |= {numbers.MISSING, numbers.TIMES, numbers.MINUS, numbers.INFINITY, numbers.NARROW}
    special |= {"\N{MIDDLE DOT}", "\N{MICRO SIGN}", "\N{BROKEN BAR}"}
    assert len(special) > 8
    assert not {one for one in special if picture(one) == picture("\ue000")}


def test_what_has_no_value_is_left_out_of_a_specification() -> None:
    curve = vega_plot.spec_of("curve", {"rows": [], "legend": None})
    assert "title" not in curve
    assert curve["layer"][3]["encoding"]["color"]["legend"] is None
    assert not [text for text in json.dumps(curve).split('"') if text.startswith("$")]


def test_one_bound_holds_for_all_plots_of_a_run(
    found: Tables, specs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(print_plots, "PANELS", 5)
    few = print_plots.draw(found)
    assert sum(map(panels, specs)) <= 5
    assert [chart.kind for chart in few.charts] == ["ratios", "scaling"]
    assert few.charts[0].caption.endswith(" The plot shows 3 of 5 blocks.")
    (text,) = few.left_out.values()
    assert text == (
        "Not drawn, because a report has room for 5 panels: scaling, where the step time goes, "
        "mesh by batch and roofline. Run nox -s report -- RUN --all-plots to draw everything."
    )
    assert not print_plots.draw(found, every=True).left_out


def test_a_plot_without_room_is_not_drawn(
    found: Tables, specs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ratios(_: Any) -> Any:
        for title, later in (("without room", True), ("usual", False)):
            spec = {"facet": {"field": "panel"}}
            yield kinds.Plan(3, partial(dict, spec), "a note", title=title, slug=title, later=later)

    monkeypatch.setattr(print_plots, "PANELS", 5)
    monkeypatch.setattr(kinds, "ratios", ratios)
    assert print_plots.draw(found).charts[0].plot.slug == "usual"
    titles = [spec["title"]["text"] for spec in specs]
    assert "usual" in titles
    assert "without room" not in titles
    assert print_plots.draw(found, every=True)
    assert "without room" in [spec["title"]["text"] for spec in specs]


def test_subjects_share_the_room(
    tmp_path: Path, specs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(print_plots, "PANELS", 11)
    plan = dataclasses.replace(PLAN, workloads=("linear-base", "mlp-base"), traced=False)
    built = cell_table.build(store.load(synthetic.write(tmp_path, plan)))
    both = print_plots.draw(built)
    assert {name: [c.kind for c in charts] for name, charts in both.subjects.items()} == {
        "linear-base, fp32": ["ratios", "scaling"],
        "mlp-base, fp32": ["ratios", "scaling"],
    }
    assert both.left_out.keys() == both.subjects.keys()
    assert sum(map(panels, specs)) <= 11


def test_evenly_spaced_samples_have_both_ends() -> None:
    assert kinds.sample([1, 2, 3], 3) == [1, 2, 3]
    assert kinds.sample(list(range(101)), 5) == [0, 25, 50, 75, 100]
    assert kinds.sample([1, 2, 3], 1) == [1]


def test_hostile_names_do_not_break_plots(tmp_path: Path) -> None:
    plan = synthetic.Plan(devices=(1, 2), ratios={"jit_spmd": 1.0, 'a<b>--&"c$x^{$': 1.1})
    for chart in print_plots.draw(
        cell_table.build(store.load(synthetic.write(tmp_path, plan)))
    ).charts:
        assert "<b>" not in chart.plot.svg
