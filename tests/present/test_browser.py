"""The report in headless Chromium: every control works, nothing is fetched, hostile text is inert.

Asserts no times: how fast the page is, `nox -s selftest` measures.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import pandas as pd
import pytest
import synthetic

from bench.analyse import cell_table
from bench.analyse.causes import attribute
from bench.analyse.same_programs import differences
from bench.present import (
    charts,
    columns,
    program_sentences,
    rendering,
)
from bench.present import page as pages
from bench.present.columns import formatted
from bench.records import largest_batches as rows
from bench.records import numbers, store
from bench.records.paths import ROOT
from bench.records.step_programs import Operation, expanded, packed
from bench.trials.selftest.first_paint import chromium, flags
from tests.slow import slow

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Page

    from bench.analyse.cell_table import Tables
    from bench.analyse.comparisons import Comparison
    from bench.records.trace_rows import DrawnStep

pytestmark = pytest.mark.browser

IMAGE = "<img src=x onerror=alert(1)>"
HOSTILE = f"</script><script>alert(1)</script>{IMAGE}<!-- \u2028 =cmd()"

PLAN = synthetic.Plan(
    workloads=("linear-base", "mlp-base"),
    batches=("strong", "weak"),
    ratios={**synthetic.RATIOS, IMAGE: 1.4},
    usable_cores=4,
    launches=2,
    alone=frozenset({"nnx_jit"}),
    traced=True,
    trained=60,
    drifts={"shard_map_psum": 1e-5},
    inputs={"loaded": 1.2, "prefetched": 1.01},
    checkpoints=True,
    endings={
        ("python_loop", 4): ("wrong", "gradients 4 times too large"),
        ("pmap", 0): ("unsupported", "jax.pmap is not there"),
        ("nnx_jit_cached", 8): ("timeout", "no sign of life for 60 s"),
        ("nnx_jit", 8): ("oom", HOSTILE),
    },
)

FEW = ("jit_spmd", "python_loop", "nnx_jit", "pmap", "shard_map_psum", IMAGE)
SMALL = replace(
    PLAN,
    workloads=("mlp-base",),
    devices=(2, 8),
    ratios={name: PLAN.ratios[name] for name in FEW},
)
"""A fifth of the cells, but of every kind."""

CELL = "mlp-base/data=2/b64/fp32/nnx_jit_cached"
PAIR = ("linear-base/data=4/b64/fp32/jit_spmd", "linear-base/data=4/b64/fp32/nnx_jit_cached")

LARGEST = rows.MaxBatchRow(
    implementation="tensor_parallel_spmd_activations",
    workload="mlp-base",
    mesh="data=8",
    options="fp32",
    limit_bytes=2**30,
    limit_is="the memory available on the device",
    batch=4096,
    predicted_bytes=2**30 - 1,
    next_batch=4352,
    next_bytes=2**30 + 2**20,
    compilations=9,
    status="ok",
    reason="",
    peak_bytes=2**29,
    refuted=[],
)


def variant(plan: synthetic.Plan) -> synthetic.Plan:
    """A few blocks of a run once more, in another environment."""
    return replace(plan, devices=(2,), batches=("strong",), variants={"slow": 1.5})


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("reports"), PLAN)


def write_run(folder: Path, plan: synthetic.Plan) -> Path:
    """Store a run that has everything, with its page."""
    directory = synthetic.write(folder, plan)
    synthetic.measure(directory, variant(plan))

    def launch(row: dict[str, Any]) -> None:
        row["energy"] = {"counted": ["CPU package"], "period_s": 0.001, "reason": ""}

    synthetic.rewrite(
        directory, "samples", lambda row: row.update(energy={"joules": 200.0, "seconds": 2.0})
    )
    synthetic.rewrite(directory, "blocks", launch)
    rows.write(directory, [LARGEST])
    write_page(directory)
    return directory


@pytest.fixture(scope="module")
def found(directory: Path) -> Tables:
    return cell_table.build(store.load(directory))


def write_page(directory: Path) -> str:
    """Write the page of a stored run, without what is printed, and return its address."""
    run = store.load(directory)
    html = pages.html(cell_table.build(run), run.manifest)
    path = directory / "report.html"
    path.write_text(html, encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only of this session

    with sync_playwright() as driver:
        # Without a path, the browser that Playwright itself has installed.
        browser = driver.chromium.launch(executable_path=chromium(), args=flags())
        yield browser
        browser.close()


class Opened:
    """A page, and what went wrong on it."""

    def __init__(self, page: Page, address: str) -> None:
        self.page = page
        self.faults: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self._said(message.type, message.text))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("dialog", lambda dialog: self.faults.append(f"dialog {dialog.message}"))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(address)
        self.settle()

    def _said(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"}:
            self.faults.append(text)

    def settle(self) -> None:
        """Wait until everything is drawn."""
        self.page.locator("body[data-drawn=all]").wait_for()

    def marks(self, group: str) -> int:
        """Drawn shapes of a group of charts."""
        return self.page.locator(f"#{group} .chart svg path, #{group} .chart svg text").count()

    def text(self, group: str) -> str:
        return self.page.locator(f"#{group} .drawn").inner_text()


@pytest.fixture(scope="module")
def blank(browser: Browser) -> Iterator[Page]:
    """A page without a report, only for functions of the page's script."""
    page = browser.new_page()
    yield page
    page.close()


@contextmanager
def opening(browser: Browser, directory: Path) -> Iterator[Any]:
    """A function that opens the run's page, and a check of all that it opened."""
    made: list[Opened] = []

    def open_at(fragment: str = "", **options: object) -> Opened:
        settings = {"viewport": {"width": 1300, "height": 900}, **options}
        page = browser.new_page(**settings)  # type: ignore[arg-type]
        made.append(Opened(page, (directory / "report.html").as_uri() + fragment))
        return made[-1]

    yield open_at
    for opened in made:
        opened.page.close()
        assert opened.faults == []
        others = [url for url in opened.requests if not url.startswith(("file:", "blob:"))]
        assert others == []


@pytest.fixture
def open_page(browser: Browser, directory: Path) -> Iterator[Any]:
    with opening(browser, directory) as open_at:
        yield open_at


@pytest.fixture(scope="module")
def whole(browser: Browser, directory: Path) -> Iterator[Opened]:
    """The page as it opens. Tests may unfold what is folded, and choose nothing."""
    with opening(browser, directory) as open_at:
        yield open_at()


@pytest.fixture(scope="module")
def mlp(browser: Browser, directory: Path) -> Iterator[Page]:
    """The page with charts of the MLP, a cell and the arrays of another; likewise."""
    chosen = {"subject": "mlp-base, fp32", "cell": CELL, "arrays": PAIR[0]}
    with opening(browser, directory) as open_at:
        yield open_at("#ratios?" + urlencode(chosen)).page


def test_every_chart_is_drawn_and_nothing_is_fetched(whole: Opened) -> None:
    for group in ("ratios", "scaling", "batches", "breakdown", "roofline", "losses"):
        assert whole.marks(group) > 10, group
    assert whole.page.locator("#one .chart svg").count() == 1
    assert len([url for url in whole.requests if not url.startswith("blob:")]) == 1


def test_hostile_text_is_inert(open_page) -> None:
    opened = open_page("#cells")
    assert opened.page.locator("img").count() == 0
    assert opened.page.locator("script").count() == 3
    assert IMAGE in opened.page.locator("#all").inner_text()
    opened.page.get_by_label("Search in: All cells").fill("out of memory")
    assert "</script><script>alert(1)" in opened.page.locator("#all").inner_text()
    assert HOSTILE[:40] in opened.page.locator("#endings").inner_text()
    assert IMAGE in opened.page.locator("#ratios svg").first.text_content()


@pytest.mark.slow
def test_controls_choose_what_charts_show(open_page) -> None:
    opened = open_page()
    page = opened.page
    assert "data=8, batch 64" in opened.text("ratios")
    page.locator("#mesh").select_option("data=2")
    opened.settle()
    assert "data=8" not in opened.text("ratios")
    assert "data=2, batch 128" in opened.text("ratios")
    page.locator("#batch").select_option("64")
    opened.settle()
    assert "data=2, batch 128" not in opened.text("ratios")
    assert "64" in opened.text("batches")
    assert "128" in opened.text("batches"), "a curve over batches has all of them"
    page.locator("#batch").select_option("")
    opened.settle()
    assert "python_loop" in opened.text("ratios")
    page.locator("#implementations label", has_text="python_loop").click()
    opened.settle()
    assert "python_loop" not in opened.text("ratios")
    page.locator("#nobody").click()
    opened.settle()
    for group in ("ratios", "scaling", "breakdown", "roofline"):
        assert "Nothing matches the choices above." in opened.text(group)
    page.locator("#ratios").get_by_role("button", name="Show all").click()
    opened.settle()
    assert "data=8, batch 64" in opened.text("ratios")
    page.locator("#mesh").select_option("data=2")
    page.locator("#nobody").click()
    page.locator("#everyone").click()
    opened.settle()
    assert "python_loop" in opened.text("ratios")
    page.locator("#subject").select_option("mlp-base, fp32")
    opened.settle()
    assert page.locator("#mesh").input_value() == ""
    assert page.locator("#one h3").inner_text().startswith("mlp-base/")


@pytest.mark.slow
def test_choices_of_every_chart(open_page) -> None:
    opened = open_page()
    for group, label, option, shown in (
        ("scaling", "Curve", "Weak scaling, data=N, batch 64 a device", "Weak scaling"),
        ("breakdown", "Bars", "share of the step", "share of the traced step"),
        ("batches", "Along", "data=4", "data=4"),
    ):
        opened.page.locator(f"#{group}").get_by_label(label, exact=True).select_option(option)
        opened.settle()
        names = opened.page.locator(f"#{group} [role=img]").evaluate_all(
            "all => all.map(one => one.getAttribute('aria-label')).join(' ')"
        )
        assert shown in names + opened.text(group), (group, option)


def test_a_curve_breaks_where_a_mesh_has_no_time(open_page) -> None:
    """python_loop is wrong on four devices: its line has a gap there, others have none."""
    opened = open_page("#scaling?off=" + "/".join(set(PLAN.ratios) - {"python_loop", "jit_spmd"}))
    paths = opened.page.locator("#scaling svg").first.locator("path[stroke^='var(--c']")
    drawn = [d for d in paths.evaluate_all("all => all.map(one => one.getAttribute('d'))") if d]
    lines = sorted(d.count("M") for d in drawn if "L" in d)
    assert lines[-1] == 2
    assert 1 in lines


def test_labels_at_the_ends_of_curves_are_apart_in_order_and_near(blank: Page) -> None:
    values = [0.5, 0.51, 0.52, 0.0, 0.01, 1.0]
    rows = [{"name": f"arm{place}", "x": 4, "value": v} for place, v in enumerate(values)]
    rows += [{"name": "ended", "x": 2, "value": 0.7}]
    labels = run_script(blank, "rows => endLabels(rows, 4, (value) => value)", rows)
    assert [row["value"] for row in labels] == sorted(values, reverse=True)
    places = [row["at"] for row in labels]
    assert all(b - a >= 12.99 for a, b in itertools.pairwise(places))
    assert min(places) > 6
    assert max(places) <= 240
    assert all(abs(row["at"] - 240 * (1 - row["value"])) <= 13 for row in labels)
    long = [{"name": "tensor_parallel_shard_map", "x": 4, "value": 1}]
    assert run_script(blank, "rows => endLabels(rows, 4, () => 0)[0].text", long) == (
        "tensor_p\N{HORIZONTAL ELLIPSIS}l_shard_map"
    )


TICKS = [
    ((0.58, 1.2), [0.6, 0.8, 1, 1.2]),
    ((0.985, 1.021), [0.99, 1, 1.01, 1.02]),
    ((2.1e-3, 2.3e-3), [0.0021, 0.00215, 0.0022, 0.00225, 0.0023]),
    ((0.9, 8), [1, 2, 5]),
    ((3, 8), [3, 4, 5, 6, 7, 8]),
    ((3e-9, 2e-4), [1e-8, 1e-7, 1e-6, 1e-5, 1e-4]),
]


@pytest.mark.parametrize(("domain", "expected"), TICKS, ids=str)
def test_logarithmic_axes_have_few_round_ticks(
    blank: Page, domain: tuple[float, float], expected: list[float]
) -> None:
    assert run_script(blank, "logTicks", list(domain)) == pytest.approx(expected, rel=1e-9)


ITEMS = """group => [...document.querySelectorAll(`#${group} .chart svg *`)].flatMap((element) => {
  const { datum, mark, ...look } = element.__data__ ?? {};
  if (!datum) return [];
  const [type, d] = [mark.marktype, element.getAttribute("d")];
  const item = { ...look, ...datum, type, d, width: mark.group.width };
  return [Object.fromEntries(Object.entries(item).filter(([, one]) => Object(one) !== one))];
})"""
"""The items that Vega has drawn in a group of charts, with the rows that they show."""


def ends_of_axis(page: Page, *, logarithmic: bool) -> list[float]:
    """Both ends of the axis of ratios, as two marks on it tell."""
    scale, back = (math.log, math.exp) if logarithmic else (float, float)
    marks = [item for item in page.evaluate(ITEMS, "ratios") if "ratio" in item]
    by_ratio = sorted((m for m in marks if m["type"] == "symbol"), key=lambda mark: mark["ratio"])
    (one, at), (other, to) = ((scale(m["ratio"]), m["x"]) for m in (by_ratio[0], by_ratio[-1]))
    slope = (other - one) / (to - at)
    return [back(one + slope * (x - at)) for x in (0, by_ratio[0]["width"])]


def names_on_axis(page: Page, group: str) -> list[str]:
    """Implementations of a group's first panel, from above."""
    items = page.evaluate(ITEMS, group)
    labels = [item for item in items if item["type"] == "text" and item.get("label") in PLAN.ratios]
    return list(dict.fromkeys(item["label"] for item in sorted(labels, key=lambda item: item["y"])))


@pytest.mark.slow
def test_the_axis_of_ratios_is_bounded_and_holds_the_margin(mlp: Page, open_page) -> None:
    subject = "#ratios?subject=mlp-base%2C+fp32"
    low, high = ends_of_axis(mlp, logarithmic=True)
    assert 0.8 < low < 1, "what was not measured in the same rounds has no interval"
    assert 4 < high < 5.5, "python_loop takes four times as long"
    off = "/".join(set(PLAN.ratios) - {"jit_spmd", "nnx_jit_cached"})
    few = open_page(f"{subject}&off={quote(off, safe='/')}").page
    low, high = ends_of_axis(few, logarithmic=False)
    assert 0.96 < low < 1 / 1.02, "the margin"
    assert 1.03 < high < 1.1


def test_implementations_are_ordered_by_a_typical_panel(mlp: Page, found: Tables) -> None:
    own = {block.name for block in found.comparisons if block.subject == "mlp-base, fp32"}
    cells = found.cells[found.cells["block"].isin(own) & found.cells["ratio"].notna()]
    names = names_on_axis(mlp, "ratios")
    assert names == list(cells.groupby("implementation")["ratio"].median().sort_values().index)
    traced = names_on_axis(mlp, "breakdown")
    assert set(traced) < set(names), "one had no trace"
    assert traced[-1] == "python_loop", "the slowest"


def test_roofs_bend_where_bandwidth_suffices(mlp: Page) -> None:
    items = mlp.evaluate(ITEMS, "roofline")
    marks = [item["intensity"] for item in items if item["type"] == "symbol" and "cell" in item]
    roofs = [item for item in items if item["type"] == "line"]
    assert len(roofs) == 4, "one a number of devices"
    for roof in roofs:
        assert roof["first"] < min(marks) <= max(marks) < roof["last"]
        assert roof["device_flops"] == pytest.approx(roof["first"] * roof["bandwidth"])
        assert roof["ridge"] * roof["bandwidth"] == pytest.approx(roof["matmul"])
        heights = [float(point.partition(",")[2]) for point in roof["d"][1:].split("L")]
        assert heights[0] > heights[1] == heights[2], "slanted, then flat"


def test_no_difference_has_a_place_below_all_others(blank: Page) -> None:
    title = {"title": "t", "format": ".0e"}
    made = run_script(blank, "lossAxis", [0, 1e-6, 1e-3], {**title, "log": True})
    low, high = made["yScale"]["domain"]
    assert low < 0.6e-6
    assert high > 1e-3
    assert made["yScale"]["clamp"]
    assert made["yAxis"]["values"][0] == low
    positive = run_script(blank, "lossAxis", [1e-6, 1e-3], {**title, "log": True})
    assert positive["yAxis"]["values"][0] >= 1e-6 > positive["yScale"]["domain"][0]
    assert "clamp" not in run_script(blank, "lossAxis", [0, 1], {**title, "log": False})["yScale"]


def test_looks_are_those_of_print(whole: Opened) -> None:
    """Colour, shape and dashes of an implementation are described once, for both."""
    data = json.loads(whole.page.locator("#data").text_content() or "")
    looks = charts.looks_of(data["implementations"])
    shown = data["looks"]
    assert shown["names"] == data["implementations"] == list(looks)
    assert shown["colours"] == [f"var(--c{look.colour})" for look in looks.values()]
    assert shown["shapes"] == [look.shape for look in looks.values()]
    assert list(map(tuple, shown["dashed"])) == [look.dashes for look in looks.values()]


def test_curves_on_the_reference_are_seen_to_be(whole: Opened) -> None:
    charts = whole.page.locator("#losses .chart svg")
    drawn = charts.evaluate_all(
        """all => all.map(svg => [...svg.querySelectorAll("path[stroke='var(--muted)']")].map(
             one => [one.getAttribute("stroke-width"), one.getAttribute("stroke-dasharray")]))"""
    )
    loss, apart = charts.all_text_contents()
    assert "whole batch" in loss
    assert "whole batch in" not in loss
    assert set(map(tuple, drawn[0])) == {("5", "1,0")}, "below the curves, and wider"
    assert "whole batch in parts" in apart
    assert set(map(tuple, drawn[1])) == {("1.4", "1,3")}
    assert "equal" in apart, "jit_spmd differs by nothing"
    assert "equal" not in loss


def test_curves_that_agree_are_folded_until_they_are_opened(
    browser: Browser, tmp_path: Path
) -> None:
    directory = synthetic.write(tmp_path, synthetic.Plan(devices=(2,), rounds=6, trained=20))
    opened = Opened(browser.new_page(), write_page(directory))
    folded = opened.page.locator("#losses .drawn > details")
    assert "All curves agree with the reference" in opened.text("losses")
    assert folded.locator("figure").first.is_hidden()
    folded.locator("summary").first.click()
    assert folded.locator("figure").first.is_visible()
    opened.page.locator("#implementations label", has_text="python_loop").click()
    opened.settle()
    assert folded.locator("figure").first.is_visible(), "a choice leaves the fold open"
    opened.page.close()
    assert opened.faults == []


@pytest.mark.slow
def test_the_address_leads_back_to_what_was_chosen(open_page) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - only where there is a browser

    opened = open_page()
    page = opened.page
    page.locator("#subject").select_option("mlp-base, fp32")
    page.locator("#mesh").select_option("data=2")
    page.locator("#implementations label", has_text="python_loop").click()
    page.locator("#breakdown").get_by_label("Bars").select_option("share")
    curve = "Weak scaling, data=N, batch 64 a device"
    page.locator("#scaling").get_by_label("Curve").select_option(curve)
    page.get_by_label("Search in: All cells").fill("data=2 shard_map")
    table = page.locator("#all")
    table.get_by_label("Status, in: All cells").select_option("ok")
    table.get_by_label("Workload, in: All cells").select_option("mlp-base, fp32")
    table.get_by_role("button", name="Step time").click()
    table.get_by_role("button", name="Step time").click()
    table.locator("tbody a").first.click()
    opened.settle()
    again = open_page("#" + page.url.partition("#")[2])
    for one in (opened, again):
        assert one.page.locator("#subject").input_value() == "mlp-base, fp32"
        assert one.page.locator("#mesh").input_value() == "data=2"
        assert not one.page.get_by_label("python_loop", exact=True).is_checked()
        assert one.page.get_by_label("Bars", exact=True).input_value() == "share"
        assert one.page.locator("#scaling").inner_text() == page.locator("#scaling").inner_text()
        assert curve in one.page.locator("#choose-curve option:checked").inner_text()
        assert one.page.get_by_label("Search in: All cells").input_value() == "data=2 shard_map"
        assert one.page.locator("#all th[aria-sort=descending]").inner_text().startswith("Step")
    for group in ("all", "one"):
        mine, other = (one.page.locator(f"#{group}").inner_text() for one in (opened, again))
        assert mine == other
    expect(again.page.locator("#cell h2")).to_be_in_viewport()


def test_a_field_of_the_matrix_keeps_all_other_choices_and_back_returns(open_page) -> None:
    page = open_page().page
    before = page.locator("#subject").input_value()
    search = page.get_by_label("Search in: All cells")
    search.fill("data")
    page.wait_for_url(lambda url: "q=data" in url)
    field = page.locator(".behind td a").last
    title, cell = field.get_attribute("title"), field.get_attribute("href")
    field.click()
    page.wait_for_url(lambda url: "#cell?" in url)
    assert "q=data" in page.url
    name = page.locator("#one h3").inner_text()
    assert quote(name, safe="") in cell.replace("%2F", "%2F")
    assert page.locator(".behind td a").last.get_attribute("title") == title
    page.go_back()
    page.wait_for_url(lambda url: "#cell?" not in url)
    assert page.locator("#subject").input_value() == before
    assert search.input_value() == "data"


def test_back_returns_to_a_page_that_was_opened_without_a_fragment(open_page) -> None:
    page = open_page().page
    opened, before = page.url, page.locator("#subject").input_value()
    page.locator("#all").get_by_role("button", name="Show more rows").click()
    page.locator("#all tbody a").last.click()
    page.wait_for_url(lambda url: "#cell?" in url)
    assert page.locator("#subject").input_value() != before
    page.go_back()
    page.wait_for_url(opened)
    assert page.locator("#subject").input_value() == before


@pytest.mark.slow
def test_unsupported_cells_come_last(open_page) -> None:
    table = open_page("#cells").page.locator("#all")
    assert "unsupported" not in table.locator("tbody").inner_text()
    table.get_by_label("Status, in: All cells").select_option("unsupported")
    assert "jax.pmap is not there" in table.inner_text() or "pmap" in table.inner_text()


@pytest.mark.slow
def test_a_row_of_all_cells_is_low_however_long_its_texts_are(browser: Browser, tmp_path) -> None:
    plan = replace(SMALL, endings={("nnx_jit", 8): ("crashed", "a long reason " * 60)})
    opened = Opened(browser.new_page(viewport={"width": 1300, "height": 900}),
                    write_page(synthetic.write(tmp_path, plan)))  # fmt: skip
    heights = opened.page.locator("#all tbody tr").evaluate_all(
        "all => all.map((one) => one.offsetHeight)"
    )
    assert max(heights) < 160, "six lines of a reason"
    opened.page.close()


def test_a_cell_with_a_time_is_described_first(browser: Browser, tmp_path: Path) -> None:
    plan = synthetic.Plan(
        workloads=("linear-base", "mlp-base"),
        devices=(2,),
        ratios={"alpha": 1.1, "jit_spmd": 1.0},
        endings={("alpha", 0): ("unsupported", "it was written for other problems")},
    )
    opened = Opened(browser.new_page(), write_page(synthetic.write(tmp_path, plan)))
    assert opened.page.locator("#cell h3").inner_text().endswith("/jit_spmd")
    assert opened.page.locator("#compare").is_hidden(), "there is nothing to compare it with"
    assert opened.faults == []
    opened.page.close()


def test_without_any_time_there_are_no_controls_of_charts(browser: Browser, tmp_path: Path) -> None:
    failed = {("jit_spmd", 0): ("crashed", "signal 11")}
    plan = synthetic.Plan(devices=(2,), ratios={"jit_spmd": 1.0}, endings=failed)
    opened = Opened(browser.new_page(), write_page(synthetic.write(tmp_path, plan)))
    assert opened.page.locator("#explore").is_hidden()
    assert opened.page.locator("nav [href='#explore']").is_hidden()
    assert opened.page.locator("#cell").is_visible()
    assert opened.faults == []
    opened.page.close()


@pytest.mark.slow
def test_a_choice_does_not_move_the_page(open_page) -> None:
    opened = open_page("#breakdown")
    top = "document.querySelector('#breakdown').getBoundingClientRect().top"
    before = opened.page.evaluate(top)
    opened.page.locator("#implementations label", has_text="python_loop").click()
    opened.settle()
    assert abs(opened.page.evaluate(top) - before) < 2


@pytest.mark.slow
def test_a_table_behind_a_chart_stays_open_when_the_chart_is_drawn_again(open_page) -> None:
    opened = open_page()
    tables = opened.page.locator("#ratios figure > details, #scaling figure > details")
    tables.first.locator("summary").click()
    opened.page.locator("#mesh").select_option("data=2")
    opened.settle()
    tables.first.locator("tbody tr").first.wait_for()
    assert "data=8" not in tables.first.locator("tbody").inner_text()
    assert [one.evaluate("one => one.open") for one in tables.all()].count(True) == 1
    tables.first.locator("summary").first.click()
    opened.page.locator("#mesh").select_option("")
    opened.settle()
    assert not tables.first.evaluate("one => one.open")


@pytest.mark.slow
def test_the_reader_may_scroll_before_a_choice_is_drawn(open_page) -> None:
    opened = open_page()
    opened.page.locator("#breakdown").scroll_into_view_if_needed()
    opened.settle()
    began, went = opened.page.evaluate(
        """() => {
          const began = scrollY;
          document.querySelector("#implementations input").click();
          dispatchEvent(new WheelEvent("wheel"));
          scrollBy({ top: -300, behavior: "instant" });
          return [began, scrollY];
        }"""
    )
    opened.settle()
    assert went == began - 300
    assert abs(opened.page.evaluate("scrollY") - went) < 100


@pytest.mark.slow
def test_the_description_of_a_cell_stays_as_the_reader_left_it(open_page) -> None:
    opened = open_page()
    details = opened.page.locator("#one details").first
    details.locator("summary").first.click()
    opened.page.locator("#implementations label", has_text="python_loop").click()
    opened.settle()
    opened.page.locator("select#mesh").select_option(index=1)
    opened.settle()
    assert details.evaluate("one => one.open"), "these choices do not affect it"


def test_a_section_in_the_address_keeps_choices(open_page) -> None:
    opened = open_page("#explore?mesh=data%3D2")
    opened.page.get_by_role("link", name="How to read this").click()
    # The browser tells the page of its new address after the click.
    opened.page.wait_for_url("**/*#reading?mesh=data%3D2")
    assert opened.page.locator("#mesh").input_value() == "data=2"


MARK = """name => [...document.querySelectorAll("#ratios .chart svg path")].find(
  ({ __data__: item }) => item.mark.marktype === "symbol" && item.datum.name === name)"""
"""The first mark of an implementation in the charts of ratios."""


def test_a_mark_of_a_chart_leads_to_its_cell(open_page) -> None:
    page = open_page("#ratios?subject=mlp-base%2C+fp32").page
    before = page.url
    mark = page.evaluate_handle(MARK, "nnx_jit_cached").as_element()
    mark.hover()
    tip = page.locator(".tip")
    tip.wait_for()
    assert tip.inner_text().startswith("nnx_jit_cached")
    mark.click()
    page.wait_for_url(lambda url: "#cell?" in url)
    assert page.evaluate("document.activeElement.textContent").endswith("/nnx_jit_cached")
    one = page.locator("#one")
    assert "more time than jit_spmd" in one.inner_text(), "the explanation"
    link = one.get_by_role("link", name="its trace")
    assert link.get_attribute("href").startswith("http://localhost:6006/?run=")
    page.go_back()
    page.wait_for_url(before)


def test_the_chooser_answers_from_stored_rows(browser: Browser, tmp_path: Path) -> None:
    """Every case it offers: the answer is recomputed from the rows, with the code of verdicts."""
    plan = synthetic.Plan(
        workloads=("linear-base", "mlp-base"), devices=(1, 4), batches=("strong", "weak"),
        rounds=8, alone=frozenset({"pmap"}), ratios={**synthetic.RATIOS, "near": 0.93},
        endings={("python_loop", 4): ("oom", "too large")}, usable_cores=2,
    )  # fmt: skip

    def enlarge(row: dict[str, Any]) -> None:
        needs = {"shard_map_psum": 9e8, "shard_map_pmean": 5e8, "near": 3e8}
        if memory := row.get("memory"):
            memory["total_bytes"] = int(needs.get(row["implementation"], 1e8)) + row["batch"]
        if row["implementation"] == "nnx_jit":
            row["memory"] = None

    directory = synthetic.write(tmp_path, plan)
    synthetic.rewrite(directory, "cells", enlarge)
    run = cell_table.build(store.load(directory))
    opened = Opened(browser.new_page(), write_page(directory))
    page = opened.page
    texts = "all => all.map(one => one.value)"
    workloads, counts, limits = (
        page.locator(f"#{key} option").evaluate_all(texts) for key in ("for", "on", "within")
    )
    assert workloads == [block.subject for block in run.comparisons[:: len(run.comparisons) // 2]]
    assert counts == ["1", "4"]
    assert page.locator("#on").input_value() == "1", "four devices share two cores"
    assert len(limits) == 4, "any, and what leaves out one to three"
    ties, chosen = 0, {}
    for workload, count, limit in itertools.product(workloads, counts, limits):
        case = {"for": workload, "on": count, "within": limit}
        for key in case.keys() - {key for key in chosen if chosen[key] == case[key]}:
            page.locator(f"#{key}").select_option(case[key])
        chosen = case
        own = [
            b for b in run.comparisons if (b.subject, str(b.block.mesh.size)) == (workload, count)
        ]
        told = page.locator("#use p")
        assert told.count() == len({block.block.batch for block in own})
        for place, block in enumerate(own):
            expected = _usable(run, block, float(limit or math.inf))
            text = told.nth(place).inner_text()
            assert told.nth(place).locator("a").all_inner_texts() == expected[:4], text
            which = "any" if len(expected) > 2 else "either"
            assert (f": {which} of them may be the fastest" in text) == (len(expected) > 1)
            assert (f"or {len(expected) - 4} more" in text) == (len(expected) > 4)
            assert ("with batch" in text) == (len(own) > 1)
            ties += len(expected) > 1
    assert ties
    address = opened.page.url
    page.close()
    again = Opened(browser.new_page(), address)
    assert {key: again.page.locator(f"#{key}").input_value() for key in chosen} == chosen
    again.page.close()
    assert opened.faults + again.faults == []


def _usable(run: Tables, block: Comparison, limit: float) -> list[str]:
    """Names of what may be the fastest, by step time: the leaders, if all of them fit."""
    cells = run.cells[(run.cells["block"] == block.name) & (run.cells["status"] == "ok")]
    cells = cells.set_index("implementation")
    time = cells["step_s"]
    fits = cells["memory_bytes"] <= limit if limit < math.inf else cells["step_s"] > 0
    ordered = time[fits].sort_values(kind="stable").index
    if set(block.standings.leaders) <= set(ordered):
        return [name for name in ordered if name in block.standings.leaders]
    best, *others = ordered
    most = 1 + max(block.margin, block.floor_width or 0)

    def behind(name: str) -> bool:
        claim = block.claim_of(name, best)
        if claim and claim.ratio.paired:
            return claim.verdict.low > 1
        return bool(time[name] / time[best] > most)

    return [best, *(name for name in others if not behind(name))]


def test_what_was_never_timed_together_is_told_apart_by_the_noise_floor(blank: Page) -> None:
    block = {"margin": 0.02, "ratios": {}, "devices": 2, "leaders": []}
    cells = [
        {"name": name, "arm": 0, "block": place, "step_s": step, "of": {**block, "floor": floor}}
        for place, (name, step, floor) in enumerate(
            [
                ("a", 1.0, None),
                ("b", 1.019, None),
                ("c", 1.09, 0.1),
                ("d", 1.12, 0.1),
                ("e", 1.05, 0),
            ]
        )
    ]
    names = "cells => usable(cells).map(({ name }) => name)"
    assert run_script(blank, names, cells) == ["a", "b", "c"]
    sizes = [100, 999, 1024, 23_800_000, 85e9]
    limits = run_script(blank, "sizes => sizes.map(limitAbove)", sizes)
    assert limits == [100, 1000, 1024, 23 * 2**20, 80 * 2**30]


def test_sections_without_data_are_hidden(browser: Browser, tmp_path: Path) -> None:
    directory = synthetic.write(tmp_path, synthetic.Plan(devices=(1,), ratios={"a": 1.0, "b": 1.5}))
    synthetic.rewrite(directory, "cells", lambda row: row.pop("layout", None))
    opened = Opened(browser.new_page(), write_page(directory))
    page = opened.page
    assert page.locator("#chooser").is_hidden(), "one block leaves nothing to choose"
    assert page.locator("#ratios .chart").count() == 1
    for kind in ("scaling", "batches", "breakdown", "losses", "step", "arrays"):
        assert page.locator(f"#{kind}").is_hidden(), kind
    contents = page.locator("nav").inner_text()
    assert "Compare two" in contents
    assert "See a step" not in contents, "a link would lead nowhere"
    assert "--profile records it" in opened.text("compare")
    page.close()
    assert opened.faults == []


@pytest.mark.slow
def test_charts_follow_the_width_of_the_window(open_page) -> None:
    opened = open_page()
    chart = opened.page.locator("#scaling svg").first
    assert chart.bounding_box()["width"] > 380
    opened.page.set_viewport_size({"width": 380, "height": 800})
    # The charts are drawn again when the width has not changed for a while.
    deadline = time.monotonic() + 60
    # There is no box while the chart is replaced.
    while (chart.bounding_box() or {"width": 380})["width"] >= 380:
        assert time.monotonic() < deadline
        opened.page.wait_for_timeout(100)


def test_a_cell_tells_everything(mlp: Page, found: Tables) -> None:
    from playwright.sync_api import expect  # noqa: PLC0415 - only where there is a browser

    one = mlp.locator("#one")
    text = one.inner_text()
    cell = found.cells.set_index("cell").loc[CELL]
    assert numbers.si(cell["step_s"], "s") in text
    assert numbers.ratio(cell["ratio_low"]) in text
    assert f"/jit_spmd or {CELL}" in text, "the command that measures it again"
    assert "elementwise operations in the update" in text, "causes"
    assert "Noise floor (A/A twin)" in text
    one.locator("details summary").first.click()
    samples = one.locator("details").first.locator("tbody tr")
    expect(samples).to_have_count(15)
    one.locator("details").first.get_by_role("button", name="Show more").click()
    expect(samples).to_have_count(3 * PLAN.launches * PLAN.rounds)


def test_cells_are_sorted_filtered_searched_and_downloaded(open_page, tmp_path: Path) -> None:
    opened = open_page("#cells")
    page, table = opened.page, opened.page.locator("#all")
    rows = table.locator("tbody tr")
    total = len(PLAN.ratios) * len([*PLAN.blocks(), *variant(PLAN).blocks()])
    assert table.get_by_role("status").inner_text() == f"{total} rows"
    table.get_by_label("Workload, in: All cells").select_option("mlp-base, fp32")
    table.get_by_label("Status, in: All cells").select_option("ok")
    page.get_by_label("Search in: All cells").fill("shard_map_p")
    table.get_by_role("button", name="Step time").click()
    shown = rows.locator("td:nth-child(9)").all_inner_texts()
    values = [_seconds(text.splitlines()[0]) for text in shown]
    assert len(values) == 2 * 7
    assert values == sorted(values)
    table.get_by_role("button", name="Step time").click()
    assert rows.locator("td:nth-child(9)").all_inner_texts() == shown[::-1]
    with page.expect_download() as download:
        table.get_by_role("button", name="Download as CSV: All cells").click()
    path = tmp_path / "cells.csv"
    download.value.save_as(path)
    with path.open(newline="") as file:
        stored = list(csv.DictReader(file))
    assert [float(row["step_s"]) for row in stored] == pytest.approx(values[::-1], rel=1e-2)
    assert {row["traced_over_model"] for row in stored} == {"1"}, "as the model's"


def _seconds(text: str) -> float:
    value, _, unit = text.partition(numbers.NARROW)
    return float(value) * {"s": 1, "ms": 1e-3, "\N{MICRO SIGN}s": 1e-6}[unit]


def test_every_table_behind_a_chart_opens(whole: Opened) -> None:
    found = whole.page.locator("figure > details")
    assert found.count() >= 10
    for number in range(found.count()):
        found.nth(number).locator("summary").click()
        # The browser tells of what was opened after the click.
        found.nth(number).locator("tbody tr").first.wait_for()
        assert found.nth(number).get_by_role("button", name=re.compile("^Download")).count() == 1


def test_a_page_that_was_mailed_alone_gives_its_data(whole: Opened, found: Tables) -> None:
    with whole.page.expect_download() as download:
        whole.page.get_by_role("button", name="Download as CSV: All cells").click()
    cells = pd.read_csv(download.value.path())
    stored = found.cells.set_index("cell").loc[cells["cell"]]
    assert len(stored) == len(found.cells)
    for key in ("step_q1_s", "ratio_low", "verdict_high", "memory_bytes"):
        expected = stored[key].replace(math.inf, math.nan).tolist()
        assert cells[key].tolist() == pytest.approx(expected, rel=1e-5, nan_ok=True)


@pytest.mark.slow
def test_every_table_of_figures_can_be_downloaded(open_page) -> None:
    page = open_page().page
    for number in range(page.locator("details").count()):
        page.locator("details").nth(number).evaluate("one => { one.open = true; }")
    tables = page.locator(".table").count()
    buttons = page.get_by_role("button", name=re.compile("^Download as CSV"))
    assert buttons.count() == tables > 12


def test_text_of_a_download_runs_no_formula(blank: Page, tmp_path: Path) -> None:
    quoted = blank.evaluate(
        f"""() => {{ {_read("format.js")} {_read("dom.js")} {_read("table.js")}
        const columns = ["a", "b", "c"].map(key => ({{key, title: key}}));
        const rows = [{{a: "=1+1", b: -2, c: 'x"y'}}, {{a: "+4.2 %", b: "-1", c: "+1+1"}}];
        const made = makeTable({{title: "t", name: "n", rows, columns}});
        document.body.append(made); made.id = "made"; }}"""
    )
    assert quoted is None
    with blank.expect_download() as download:
        blank.locator("#made").get_by_role("button", name="Download").click()
    path = tmp_path / "n.csv"
    download.value.save_as(path)
    assert path.read_text().splitlines() == ["a,b,c", '\'=1+1,-2,"x""y"', "+4.2 %,-1,'+1+1"]


def _read(name: str) -> str:
    return (pages.WEB / name).read_text(encoding="utf-8")


def run_script(page: Page, function: str, *values: object) -> Any:
    """The result of a function of the page's script, which has no data and does not start."""
    scripts = "\n".join(_read(name) for name in pages.SCRIPTS if name not in {"data.js", "app.js"})
    data = json.dumps(charts.for_page([]) | {"implementations": []})
    return page.evaluate(
        f"values => {{ const DATA = {data}; const IMPLEMENTATIONS = []; "
        f"const [CELLS, BLOCKS, TABLES] = [[], [], []]; {scripts} "
        f"return ({function})(...values); }}",
        list(values),
    )


VALUES = [0, 1e-13, 4.4e-7, 9.996e-4, 0.00123, 0.5, 0.999, 0.9996, 1, 1.2345, 9.9951, 9.9996, 10,
          99.95, 0.0625, 0.125, 1.0005, 6.25, 512512, 123.4, 999.6, 1023.9, 7200.4, 86400.0, 1.5e6,
          123456789.0, 3.3e15, 4e21]  # fmt: skip


@pytest.mark.parametrize("name", ["si", "bytes", "percent", "excess", "ratio", "scientific"])
def test_numbers_are_written_as_elsewhere(blank: Page, name: str) -> None:
    ours = {
        "si": lambda value: numbers.si(value, "s"),
        "bytes": numbers.bytes_,
        "percent": numbers.percent,
        "excess": columns.excess,
        "ratio": numbers.ratio,
        "scientific": numbers.scientific,
    }[name]
    values = VALUES if name in {"si", "bytes"} else [*VALUES, *(-v for v in VALUES[3:12])]
    if name != "si":
        values = [value for value in values if abs(value) < 1e7]
    if name == "bytes":
        values = [round(value) for value in values]
    shown = run_script(blank, f"values => values.map(value => {name}(value, 's'))", values)
    assert shown == [ours(value) for value in values]


@pytest.mark.parametrize(
    ("scheme", "plan"),
    [
        pytest.param("light", SMALL, id="light-small"),
        pytest.param("light", PLAN, id="light", marks=pytest.mark.slow),
        pytest.param("dark", PLAN, id="dark", marks=pytest.mark.slow),
    ],
)
def test_accessible(browser: Browser, tmp_path: Path, scheme: str, plan: synthetic.Plan) -> None:
    from axe_playwright_python.sync_playwright import Axe  # noqa: PLC0415 - only of this session

    address = (write_run(tmp_path, plan) / "report.html").as_uri()
    page = browser.new_page(color_scheme=scheme)  # type: ignore[arg-type]
    opened = Opened(page, address)
    opened.page.locator("figure > details summary").first.click()
    found = Axe().run(opened.page, options={"resultTypes": ["violations"]}).response["violations"]
    violations = [
        (one["id"], one["impact"], [node["target"] for node in one["nodes"][:3]]) for one in found
    ]
    page.close()
    assert violations == opened.faults == []


@pytest.mark.slow
def test_theme_can_be_chosen(open_page) -> None:
    opened = open_page(color_scheme="light")
    paper = "getComputedStyle(document.body).backgroundColor"
    light = opened.page.evaluate(paper)
    opened.page.locator("#theme").click()
    opened.settle()
    dark = opened.page.evaluate(paper)
    assert (light, dark) == ("rgb(255, 255, 255)", "rgb(20, 24, 29)")
    opened.page.locator("#theme").click()
    assert opened.page.evaluate(paper) == light


def test_keyboard_alone_reaches_controls(open_page) -> None:
    opened = open_page()
    page = opened.page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the charts"
    page.keyboard.press("Enter")
    page.get_by_label("python_loop", exact=True).focus()
    page.keyboard.press("Space")
    opened.settle()
    assert "python_loop" not in opened.text("ratios")
    page.locator("#all").get_by_role("button", name="Implementation").focus()
    page.keyboard.press("Enter")
    assert page.locator("#all th[aria-sort=ascending]").count() == 1
    bars = page.locator("#breakdown select#choose-bars")
    bars.focus()
    page.keyboard.press("ArrowDown")
    opened.settle()
    assert bars.input_value() == "share"
    assert bars.evaluate("one => one === document.activeElement"), "redrawing keeps the focus"


@pytest.mark.parametrize("width", [360, *slow(390)])
def test_fits_a_phone(open_page, width: int) -> None:
    page = open_page(viewport={"width": width, "height": 740}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    chosen = page.locator("#implementations")
    assert chosen.evaluate("one => one.scrollHeight - one.clientHeight") <= 0, "all are shown"


COLUMNS = """all => all.filter(wide => wide.clientWidth).map(wide => {
  const cells = [...wide.querySelector("table").rows].flatMap(row => [...row.cells]);
  const stays = cells.filter(cell => getComputedStyle(cell).position === "sticky");
  const others = cells.filter(cell => cell.colSpan === 1 && !stays.includes(cell));
  const widest = cells => Math.max(0, ...cells.map(cell => cell.offsetWidth));
  return {
    name: wide.getAttribute("aria-label"), room: wide.clientWidth, whole: wide.scrollWidth,
    sticky: widest(stays), widest: widest(others),
  };
})"""


def _readable(page: Page) -> dict[str, Any]:
    """Tables by name, each of whose columns can be brought into view beside the one that stays."""
    found = page.locator(".wide:has(> table)").evaluate_all(COLUMNS)
    for table in found:
        if table["whole"] > table["room"]:
            assert table["sticky"] <= 0.45 * table["room"], table
            assert table["sticky"] + table["widest"] <= table["room"], table
    return {table["name"]: table for table in found}


@pytest.mark.parametrize("width", slow(390, 768, 1280))
def test_every_column_can_be_scrolled_into_view(open_page, width: int) -> None:
    page = open_page(viewport={"width": width, "height": 900}).page
    for summary in page.locator("figure > details summary").all():
        summary.click()
    found = _readable(page)
    assert len(found) > 15
    kinds = {"Input, against a resident batch", "Checkpoints", "Largest batch that fits"}
    assert kinds < set(found)
    assert {found[name]["sticky"] > 0 for name in kinds} == {True}
    if width == 1280:
        for name in kinds:
            assert found[name]["whole"] <= found[name]["room"], "nothing is to be scrolled"


@pytest.mark.parametrize("width", [400, 768, 1280])
def test_long_names_of_other_pages_fold(browser: Browser, width: int) -> None:
    text = '{% from "macros.html.j2" import head, section %}{{ head("t") }}<body>{{ section(t) }}'
    values = [columns.Column(str(number), f"{number} bytes", "a note") for number in range(8)]
    others = {str(number): columns.Figure(f"{number} bytes", "a note") for number in range(8)}
    rows = [{"name": "which width " * 12, **others}, {"name": "tensor_parallel" * 5, **others}]
    described = [columns.Column("name", "Question"), *values]
    made = rendering.environment(markdown=False).from_string(text)
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_content(made.render(t=columns.Table("Worked", described, rows, ["A fact. " * 20])))
    assert _readable(page)["Worked"]["sticky"] > 0
    assert page.locator("caption").evaluate("one => one.offsetWidth") <= width
    page.close()


def test_long_names_are_neither_cut_nor_broken_within_a_word(mlp: Page) -> None:
    cut = """one => {
        const list = one.cloneNode();
        list.append(new Option("gpt2-deep, fp32, microbatches=8"));
        one.after(list);
        const { offsetWidth: shown } = list;
        list.style.maxWidth = "none";
        const { offsetWidth: needed } = list;
        list.remove();
        return needed - shown;
    }"""
    assert mlp.locator("#subject").evaluate(cut) == 0
    name = mlp.locator("#compare .pair thead button").nth(1).inner_html()
    assert name.startswith("A: ")
    assert name.count("_<wbr>") == name.count("_") > 0


@pytest.mark.slow
def test_any_two_cells_are_compared(open_page, found: Tables) -> None:
    block = "mlp-base/data=2/b64/fp32"
    a, b, other, apart = (f"{block}/{name}" for name in (
        "nnx_jit_cached", "shard_map_pmean", "jit_spmd", "nnx_jit"))  # fmt: skip
    opened = open_page("#compare?" + urlencode({"a": a, "b": b}))
    page = opened.page
    told, table = page.locator("#compared-times"), page.locator("#compare .pair tbody")
    (compared,) = (one for one in found.comparisons if one.name == block)
    claim = compared.claim_of("nnx_jit_cached", "shard_map_pmean")
    figures = map(numbers.ratio, (claim.ratio.value, claim.verdict.low, claim.verdict.high))
    took = "Side by side, A took {} times as long as B (surely between {} and {},"
    assert told.inner_text().startswith(took.format(*figures))
    cells = found.cells.set_index("cell")
    assert "Batch, global" not in table.inner_text(), "they have the same"
    step = table.locator("tr", has_text="Step time, median, quartiles").inner_text()
    assert all(numbers.si(cells["step_s"][name], "s") in step for name in (a, b))
    page.locator("#compare figure summary").click()
    shown = page.locator("#compare figure tbody tr").all_inner_texts()
    explained = attribute(found.traces[a], found.traces[b], 1.0)
    causes = [cause for cause in explained.causes if cause.key.category == "elementwise"]
    assert len(causes) == 1
    assert formatted(-causes[0].difference, "+s") in shown[0]
    assert "transposes in" not in shown[0], "in both"
    drawn = page.locator("#compare svg").text_content()
    assert formatted(-causes[0].difference, "+s") in drawn
    assert numbers.si(explained.traced_a, "s") in drawn

    page.locator("#compare figure summary").click()  # An open table would stay open.
    page.get_by_label("B", exact=True).press("ArrowDown")
    opened.settle()
    assert page.locator("#b").input_value() not in {a, b}
    page.locator("#b").select_option(other)
    page.get_by_role("button", name="Swap").press("Enter")
    opened.settle()
    assert "nnx_jit_cached takes" in page.locator("#compare .drawn").inner_text(), "why"
    again = open_page("#" + page.url.partition("#")[2]).page
    assert (again.locator("#a").input_value(), again.locator("#b").input_value()) == (other, a)
    assert again.locator("#compare").inner_text() == page.locator("#compare").inner_text()
    page.locator("#compare figure summary").click()
    assert "transposes in B only" in page.locator("#compare figure tbody tr").first.inner_text()

    for value, words in (
        (apart, "They were not timed in the same rounds"),
        ("mlp-base/data=8/b64/fp32/nnx_jit_cached", "has no time: no sign of life for 60 s."),
        (other, "A and B are the same cell"),
    ):
        page.locator("#b").select_option(value)
        opened.settle()
        assert words in told.inner_text()
    page.locator("#one").get_by_role("link", name="compare with").click()
    opened.settle()
    assert page.locator("#a").input_value() == page.locator("#one h3").inner_text()


def test_programs_are_compared_by_source_line(browser: Browser, tmp_path: Path) -> None:
    """The page's lines are those of `explain`, which computes them from the stored rows."""
    kinds = (
        "add f32[8]{0}",
        "copy f32[16]{0}",
        "dot f32[4,4]{1,0}",
        "tanh f32[2]{0}",
        "sort s32[9]",
    )
    operations = {
        name: [
            Operation(source, *kind.split(" "), 1 + place * shift, 8 << place)
            for source in ("optax/update.py:42", "", f"model.py:{shift % 2}")
            for place, kind in enumerate(kinds)
        ]
        for shift, name in enumerate(("jit_spmd", "nnx_jit", "pmap"), 1)
    }
    operations["pmap"][0] = operations["jit_spmd"][0]
    operations["python_loop"] = operations["pmap"][::-1]
    known = {name: (name, "dispatch", 3) for name in operations} | {"pmap": ("nnx_jit", "other", 4)}
    plan = synthetic.Plan(devices=(2,), rounds=6, programs=known)
    directory = synthetic.write(tmp_path, plan)

    def store_operations(row: dict[str, Any]) -> None:
        if row["implementation"] in operations:
            row["program"]["operations"] = packed(operations[row["implementation"]])

    synthetic.rewrite(directory, "cells", store_operations)
    opened = Opened(browser.new_page(), write_page(directory))
    page, lines = opened.page, opened.page.locator("#programs")
    page.set_viewport_size({"width": 390, "height": 900})
    heading = page.locator(".behind [colspan]").evaluate("one => one.offsetWidth")
    assert heading >= 120, "the workload's name is not squeezed into a narrow column"
    page.set_viewport_size({"width": 1280, "height": 720})

    def compare(a: str, b: str) -> None:
        for key, name in (("a", a), ("b", b)):
            page.locator(f"#{key}").select_option(f"mlp-base/data=2/b64/fp32/{name}")
            opened.settle()

    for a, b in (("jit_spmd", "nnx_jit"), ("pmap", "jit_spmd")):
        compare(a, b)
        rows = lines.locator("tbody tr").all()
        shown = [tuple(row.locator("th, td").all_inner_texts()) for row in rows]
        expected = program_sentences.shown(differences(operations[a], operations[b]))
        assert shown == list(expected)
        assert any("more" in text for row in shown for text in row)
    compare("pmap", "python_loop")
    assert "the same operations at every source line" in lines.inner_text()
    compare("pmap", "nnx_jit")
    assert "Both run the same compiled program." in page.locator("#compared-times").inner_text()
    assert lines.inner_text() == "", "the table would repeat it"
    compare("jit_spmd", "shard_map_psum")
    assert lines.inner_text() == (
        "The page has no operations of mlp-base/data=2/b64/fp32/shard_map_psum."
    )
    page.close()
    assert opened.faults == []


def test_of_cells_without_traces_the_page_says_so(blank: Page) -> None:
    said = "(a, b) => waterfall({ traced: a }, { traced: b }, 900).textContent"
    assert run_script(blank, said, None, None).startswith("Neither was traced, so what")
    assert run_script(blank, said, {}, None).startswith("B was not traced, so what")


BLOCK = r"M([\d.]+) (\d+)H([\d.]+)v13"


def _drawn_blocks(page: Page) -> dict[str, list[tuple[float, int, float]]]:
    """Left end, row and right end, in pixels, of the blocks of each part of the drawn steps."""
    paths = page.locator("#step path[data-part]").evaluate_all(
        "all => all.map(one => [one.dataset.part, one.getAttribute('d')])"
    )
    return {
        part: [(float(a), int(y), float(b)) for a, y, b in re.findall(BLOCK, d)]
        for part, d in paths
    }


def _stored_blocks(step: DrawnStep) -> dict[str, list[tuple[float, float]]]:
    """Start and end, in nanoseconds, of the pieces of each part, by device."""
    found: dict[str, list[tuple[float, float]]] = {}
    columns = (step["runs"][name] for name in ("op", "start", "ns", "wait"))
    for op, start, ns, wait in zip(*columns, strict=True):
        kind, arrived, end = step["ops"]["category"][op], start + wait, start + ns
        pieces = {kind: (start, end)}
        if kind == "collective":
            pieces = {"wait": (start, arrived), "move": (arrived, end)}
        for part, (first, last) in pieces.items():
            if last > first:
                found.setdefault(part, []).append((first, last))
    return found


def test_a_step_is_drawn_as_it_was_stored(open_page, found: Tables) -> None:
    above, below = PAIR
    steps = [expanded(found.traces[name]["drawn"]) for name in PAIR]
    ends = [0, max(step["ns"] for step in steps)]
    opened = open_page("#step?" + urlencode({"a": above, "b": below}))
    page, box = opened.page, opened.page.locator(".step")
    width = box.locator(".lane").first.evaluate(
        "one => one.ownerSVGElement.width.baseVal.value - 80"
    )

    def check() -> None:
        low, high = ends
        drawn = _drawn_blocks(page)
        stored = [_stored_blocks(step) for step in steps]
        for part in ("dispatch", "matmul", "elementwise", "wait", "move"):
            expected = sorted(
                tuple(width * (min(max(at, low), high) - low) / (high - low) for at in piece)
                for own in stored
                for piece in own.get(part, [])
                if piece[0] < high and piece[1] > low
            )
            shown = sorted((a, b) for a, _, b in drawn[part])
            assert len(shown) == len(expected), part
            assert shown or ends[0], part
            for ours, theirs in zip(shown, expected, strict=True):
                assert ours == pytest.approx(theirs, abs=0.6), part

    check()
    assert len(page.locator("#step .lane").all()) == 8, "two arms of four devices"
    whole = ends[1]
    box.focus()
    page.keyboard.press("+")
    page.keyboard.press("ArrowLeft")
    page.wait_for_url(re.compile(r"span=\d+-\d+"))
    ends[:] = map(int, page.url.rpartition("span=")[2].split("-"))
    assert ends == pytest.approx([0.2 * whole, 0.7 * whole], abs=2)
    check()
    again = open_page("#" + page.url.partition("#")[2])
    assert _drawn_blocks(again.page) == _drawn_blocks(page), "the address keeps the zoom"
    page.keyboard.press("Home")
    ends[:] = [0, whole]
    check()
    box.click(position={"x": 300, "y": 60})
    page.mouse.wheel(0, -200)
    page.wait_for_function("() => location.hash.includes('span=')")
    page.get_by_role("button", name="Whole step").click()
    check()


def test_names_of_operations_in_one_row_of_a_step_do_not_overlap(blank: Page) -> None:
    script = """starts => {
      const lane = { device: 0, height: STEP_ROW };
      const arm = { cell: { name: "a" }, ns: 20000, meetings: [], lanes: [lane] };
      arm.runs = starts.map((start) => ({
        ...{ arm, lane, row: 0, device: 0, start, end: start + 5000, wait: 0 },
        is: { op: `copy.${start}`, category: "layout" },
      }));
      const picture = stepPicture([arm], 900);
      return [...picture.querySelectorAll("text[fill]")].map((one) => one.textContent);
    }"""
    starts = [0, 100, 4000, 5000, 9000, 12000]
    assert run_script(blank, script, starts) == ["copy.0", "copy.5000", "copy.12000"]


@pytest.mark.slow
def test_who_waits_for_whom_is_told(open_page, found: Tables) -> None:
    above, below = PAIR
    step = expanded(found.traces[above]["drawn"])
    opened = open_page("#step?" + urlencode({"a": above, "b": below}))
    page = opened.page
    runs = step["runs"]
    waits = [at for at, op in enumerate(runs["op"]) if op == 2]
    longest = numbers.si(runs["wait"][waits[0]] / 1e9, "s")
    assert f"jit_spmd: device 0 waited {longest} for device 3" in page.locator("#step").inner_text()
    # Zoom in on the collective of the first device, and point at where it waits.
    first, last = runs["start"][waits[0]], runs["start"][waits[3]] + runs["ns"][waits[3]]
    page.goto(page.url.partition("#")[0] + "#step?" + urlencode(
        {"a": above, "b": below, "span": f"{first - 1000}-{last + 1000}"}))  # fmt: skip
    opened.settle()
    wait = page.locator("#step path[data-part=wait]").bounding_box()
    assert wait
    page.mouse.move(wait["x"] + 5, wait["y"] + 5)
    tip = page.locator(".tip")
    tip.wait_for()
    share = numbers.percent(runs["ns"][waits[0]] / step["ns"])
    for text in (
        "all-reduce_in_jit_spmd",
        f"{share} of the step",
        f"waited {longest} for device 3",
    ):
        assert text in tip.inner_text()
    page.locator("#step details summary").click()
    rows = page.locator("#step tbody tr")
    assert "optax/_src/transform.py:283" in rows.nth(3).inner_text()
    assert page.locator("#step .count").inner_text() == f"{2 * len(runs['op'])} rows"


def test_shards_are_drawn_with_the_devices_that_hold_them(mlp: Page) -> None:
    section = mlp.locator("#arrays")
    assert section.locator(".mesh td").count() == 4
    assert "2.38 KiB" in section.locator(".mesh td").first.inner_text().replace(numbers.NARROW, " ")
    divided, whole = (section.locator(".table tbody tr").nth(at) for at in (0, 1))
    assert "blocks/N/up/kernel" in divided.inner_text()
    assert "3 alike" in divided.inner_text()
    assert divided.locator(".shard").all_inner_texts() == ["0", "1", "2", "3"]
    assert whole.locator(".shard.all").all_inner_texts() == ["every device"]
    told = section.inner_text().replace(numbers.NARROW, " ")
    assert "Of 800 B of parameters, a device holds at most 224 B. 32 B of it is on" in told


@pytest.mark.slow
def test_prints_what_was_not_scrolled_to(open_page, tmp_path: Path) -> None:
    opened = open_page(color_scheme="dark")
    opened.page.locator("#theme").click()
    opened.page.locator("#theme").click()
    opened.page.locator("#implementations label", has_text="python_loop").click()
    opened.settle()
    opened.page.emulate_media(media="print", color_scheme="dark")
    paper = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb(255, 255, 255)"
    assert opened.page.locator("#all").is_hidden(), "it is wider than paper"
    assert opened.page.locator("#ratios .tools").first.is_hidden()
    legend = opened.page.locator("#implementations label:visible").all_inner_texts()
    assert "jit_spmd" in legend
    assert "python_loop" not in legend
    assert opened.marks("breakdown") > 10
    assert len(opened.page.pdf()) > 50_000


@pytest.mark.slow
def test_nothing_is_cut_on_paper(open_page) -> None:
    """Charts that were drawn for a wide window shrink to the paper, and tables wrap."""
    page = open_page(viewport={"width": 1440, "height": 900}).page
    page.emulate_media(media="print")
    page.evaluate("document.body.style.width = '718px'")  # A4 within Chromium's margins
    wider = page.locator(".wide").evaluate_all(
        """all => all.filter(one => one.scrollWidth > one.clientWidth).map(
             one => [one.getAttribute('aria-label'), one.scrollWidth, one.clientWidth])"""
    )
    assert wider == []


def test_without_scripts_the_answer_is_there(browser: Browser, directory: Path) -> None:
    page = browser.new_page(java_script_enabled=False)
    page.goto((directory / "report.html").as_uri())
    assert "shard_map_psum" in page.locator("#fastest").inner_text()
    assert "need JavaScript" in page.locator("body").inner_text()
    page.locator("#theme").check()
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == "rgb(20, 24, 29)", "a style does it"
    controls = page.locator("button, select, input:not(#theme)")
    assert not any(control.is_visible() for control in controls.all()), "they would do nothing"
    page.close()


def test_a_run_without_times(browser: Browser, tmp_path: Path) -> None:
    endings = {(name, 0): ("wrong", "all wrong") for name in synthetic.RATIOS}
    directory = synthetic.write(tmp_path, synthetic.Plan(endings=endings))  # type: ignore[arg-type]
    page = browser.new_page()
    opened = Opened(page, write_page(directory))
    assert opened.faults == []
    assert "Nothing has a time: wrong." in page.locator("#fastest").inner_text()
    page.close()


@pytest.mark.slow
def test_a_page_that_paints_long_after_it_is_loaded_is_waited_for(tmp_path: Path) -> None:
    page = tmp_path / "late.html"
    page.write_text("<body><script>setTimeout(() => document.body.append('late'), 700)</script>")
    script = (
        "from pathlib import Path; from bench.trials.selftest.first_paint import first_paint; "
        f"print(first_paint(Path({str(page)!r})))"
    )
    # A process of its own: playwright's driver is one in each.
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) >= 0.7
