"""The Markdown report: its summary can be pasted, names every plot, and has an end."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import synthetic
from test_report import HOSTILE

from bench.analyse import cell_table
from bench.present import markdown, print_plots, report_files
from bench.present.print_plots import Figures
from bench.present.rendering import environment
from bench.records import store
from bench.records.largest_batches import MaxBatchRow

if TYPE_CHECKING:
    from bench.analyse.cell_table import Tables

SMALL = synthetic.Plan(devices=(2,))


def rendered(summary: dict[str, Any]) -> str:
    text = environment(markdown=True).get_template("summary.md.j2").render(s=summary)
    return re.sub(r"\n{3,}", "\n\n", text)


ENDINGS = {
    ("python_loop", 4): ("wrong", "gradients 4 times too large"),
    ("pmap", 0): ("unsupported", "jax.pmap is not there"),
    ("nnx_jit", 2): ("oom", HOSTILE),
    ("nnx_jit_cached", 2): ("crashed", "signal 11 " * 99),
}


def build(tmp_path: Path, **changes: Any) -> tuple[Tables, store.Run]:
    """Tables of a run of one block, or of what is changed."""
    run = store.load(synthetic.write(tmp_path, dataclasses.replace(SMALL, **changes)))
    return cell_table.build(run), run


def undrawn(found: Tables) -> Figures:
    """No plot at all."""
    return Figures({block.subject: [] for block in found.comparisons}, {})


def content(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """The page of such a run, without plots."""
    found, run = build(tmp_path, **changes)
    return markdown.content(found, run.manifest, undrawn(found))


def text(tmp_path: Path, **changes: Any) -> str:
    """Its text."""
    return markdown.render(content(tmp_path, **changes))


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a run in which not everything went well, with its plots."""
    found, run = build(
        tmp_path_factory.mktemp("reports"), devices=(1, 2, 4), endings=ENDINGS, launches=3,
        foreign=0.5,
    )  # fmt: skip
    return markdown.render(markdown.content(found, run.manifest, print_plots.draw(found)))


def first_part(page: str) -> str:
    """Down to the rule."""
    return page.partition("\n---\n")[0]


def test_the_summary_stands_alone(page: str) -> None:
    summary = first_part(page)
    assert summary.startswith("# Lockstep: synthetic\n")
    assert not re.search(r"(?<!\\)\]\(", summary), "nothing that is linked would be there"
    assert summary.splitlines()[2].startswith("- **mlp-base, fp32**: Use shard_map_p")
    assert "| Time behind the fastest | mlp-base, fp32, batch 64 |" in summary
    assert re.search(r"\| \| \*\*data=1\*\* \d+\s+ms \| \*\*data=2\*\* ", summary)
    rows = dict(re.findall(r"^\| (\w+) \| (.*) \|$", summary, re.MULTILINE))
    # Equally fast: either may come out first.
    assert {rows["shard_map_psum"][:3], rows["shard_map_pmean"][:3]} == {"**f", "*+0"}
    assert re.match(r"\+\d+\s% \| \+\d+\s% \| \+\d+\s% \| \+\d+\s% \| ", rows["jit_spmd"])
    assert re.match(r"4\.\d\u00d7 \| 4\.\d\u00d7 \| wrong \| 4\.\d\u00d7 \| ", rows["python_loop"])
    assert "Against the baselines:" in summary
    assert "An eight-core processor; cores 4; commit 0123456789" in summary
    assert "Caveats: a busy host" in summary


def test_the_summary_says_what_went_wrong(page: str) -> None:
    summary = first_part(page)
    assert "- **wrong**: python_loop, 1 cell: gradients 4 times too large" in summary
    assert "- **crashed**: nnx_jit_cached, 1 cell: signal 11 signal 11" in summary
    assert max(map(len, summary.splitlines())) < 600, "reasons are cut"
    assert "jax.pmap is not there" not in summary, "nobody expected it to run"
    assert "3 unsupported" in summary


def test_the_only_fastest_is_bold(tmp_path: Path) -> None:
    found = content(tmp_path, ratios={"jit_spmd": 1.0, "fast": 0.8})["summary"]
    assert "| fast | **fastest** | +0 % |" in rendered(found)


def test_of_many_equals_some_are_named(tmp_path: Path) -> None:
    ratios = {"jit_spmd": 1.0} | {f"other{number}": 1.0 for number in range(8)}
    ((said,),) = content(tmp_path, ratios=ratios, noise=0.05)["summary"]["answers"].values()
    assert re.match(r"\w+, \w+, \w+ and 6 more lead: ", said)


def test_what_is_not_decided_has_a_bound(tmp_path: Path) -> None:
    ratios = {"jit_spmd": 1.0, "close": 1.01}
    found = content(tmp_path, ratios=ratios, noise=0.05)
    text = markdown.render(found)
    assert re.search(
        r"(close and jit_spmd|jit_spmd and close) lead: within \d+\.\d\s% of one another", text
    )
    assert re.fullmatch(
        r"Against the baselines: 1 undecided \(within \d+\.\d\s%\)\. 2 cells: 2 ok\.",
        found["summary"]["counts"],
    )
    assert re.search(r"\| close \| undecided \(within \d+\.\d\s%\) \|", text)


def test_the_summary_of_a_standard_run_fits_a_comment(tmp_path: Path) -> None:
    """As many blocks, and names as long, as there are; nothing decided, and all kinds of ends."""
    names = [f"tensor_parallel_activations_{number:02}" for number in range(16)]
    ways = ("wrong", "crashed", "timeout", "oom")
    endings = {(names[n], 8): (ways[n % 4], f"reason {n} " * 30) for n in range(1, 14)}
    summary = content(
        tmp_path, workloads=("linear-base", "mlp-base", "gpt2-nano"), devices=(1, 2, 4, 8, 16, 32),
        batches=("strong", "weak"), endings=endings, rounds=6, noise=0.1,
        ratios={"jit_spmd": 1.0} | dict.fromkeys(names, 1.0),
    )["summary"]  # fmt: skip
    assert summary["matrix"] is not None
    assert summary["matrix"].note.endswith("The table shows 12 of 33 situations.")
    assert summary["unnamed"] == 1
    assert 6_000 < len(rendered(summary)) < 10_000


def test_the_summary_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "NAMED", 1)
    many = {(name, 2): ("crashed", f"signal {n}") for n, name in enumerate(synthetic.RATIOS) if n}
    summary = content(tmp_path, devices=(1, 2, 4, 8), endings=many, rounds=6)["summary"]
    assert [one["status"] for one in summary["failures"]] == ["crashed"]
    assert summary["unnamed"] == 5
    assert "5 more reasons are in the report." in rendered(summary)
    assert "1 more reason is in the report." in rendered({**summary, "unnamed": 1})


def test_tables_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = {"devices": (1, 2, 4, 8), "workloads": ("linear-base", "mlp-base"), "rounds": 6}
    whole = content(tmp_path, **plan)
    assert all(not subject["left_out"] for subject in whole["subjects"])
    monkeypatch.setattr(markdown, "BYTES", 12_000)
    found = content(tmp_path / "again", **plan)
    sizes = [len(text.encode()) for one in found["subjects"] for text in one["sections"]]
    assert sum(sizes) <= 12_000
    for subject, before in zip(found["subjects"], whole["subjects"], strict=True):
        shown = len(subject["sections"])
        assert 1 < shown < len(before["sections"]), "each has had its share"
        assert subject["left_out"] == len(before["sections"]) - shown
    said = f"the last {subject['left_out']} of {len(before['sections'])} sections."
    assert said in markdown.render(found)


def test_every_table_is_rectangular(page: str) -> None:
    width = 0
    for line in page.splitlines():
        bars = len(re.findall(r"(?<!\\)\|", line))
        assert not bars or not width or bars == width, line
        width = bars


def test_the_baseline_has_no_verdict_whose_interval_could_be_missing(page: str) -> None:
    rows = [line.split(" | ")[1] for line in page.splitlines() if " (baseline) | " in line]
    assert len(rows) == 3
    assert set(rows) == {"baseline"}


def test_hostile_text_is_inert(page: str) -> None:
    assert "<script" not in page
    assert "![i]" not in page
    lines = [line for line in page.splitlines() if "alert(1)" in line]
    assert len(lines) == 2, "in the summary, and in the table of what has no time"
    # Four cells and no more: bars within the reason are escaped.
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [0, 5]
    assert "# H" not in page.splitlines()


def test_every_plot_is_linked_with_its_caption(page: str) -> None:
    linked = re.findall(r"\(plots/(.+)\.svg\)", page)
    assert len(linked) == len(set(linked))
    assert {slug.partition("-")[0] for slug in linked} == {
        "ratios", "strong", "roofline",
    }  # fmt: skip
    assert "Thick lines are 95 % confidence intervals" in page
    assert page.index("plots/") < page.index("## Tables of")


def test_what_is_not_drawn_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(print_plots, "PANELS", 3)
    found, run = build(tmp_path, devices=(1, 2))
    page = markdown.render(markdown.content(found, run.manifest, print_plots.draw(found)))
    assert "Not drawn, because a report has room for 3 panels: scaling and roofline." in page


def test_there_are_no_gaps(page: str) -> None:
    assert "\n\n\n" not in page


def test_a_variant_is_shown_against_the_usual_environment(tmp_path: Path) -> None:
    page = text(tmp_path, variants={"": 1.0, "slow": 1.5}, launches=5, shared_noise=0.002)
    assert page.count("### What options change") == 1
    assert re.search(
        r"\| jit_spmd \| data=2, batch 64 \| variant=slow "
        r"\| 1\.[45]\d+ \(1\.\d+\S1\.\d+\) \| slower \|",
        page,
    )


def test_a_bubble_is_shown_as_scheduled_and_measured(tmp_path: Path) -> None:
    page = text(tmp_path, stages=3, launches=3, shared_noise=0.002)
    assert "Bubble (by schedule)" in page
    assert re.search(r"\| 50\.0\s% \(\d+\.\d\s% \(\d+\.\d\s%\S\d+\.\d\s%\) measured\) \|", page)


def test_measured_memory_is_shown(tmp_path: Path) -> None:
    assert text(tmp_path, launches=2).count(" measured) |") == 1


def test_what_traces_showed_is_shown(tmp_path: Path) -> None:
    page = text(tmp_path, ratios={"jit_spmd": 1.0, "slow": 1.5}, launches=3, traced=True)
    assert re.search(
        r"\| slow \| slower \(4\d\.\d\s% to 5\d\.\d\s%\) \|.*"
        r"\| elementwise operations in the update that transpose \(\+\d+",
        page,
    )
    assert "### Where a step's time goes, data=2, batch 64" in page


def test_a_run_that_has_measured_nothing_has_a_page(tmp_path: Path) -> None:
    run = store.load(store.create(tmp_path, synthetic.manifest(SMALL)))
    found = cell_table.build(run)
    page = markdown.render(markdown.content(found, run.manifest, print_plots.draw(found)))
    assert page.startswith(
        "# Lockstep: synthetic\n\nNothing could be compared.\n\nNo cell has ended"
    )


def test_reports_have_their_plots_as_files(tmp_path: Path) -> None:
    directory = report_files.build(build(tmp_path)[1]).parent
    page = (directory / "report.md").read_text("utf-8")
    linked = set(re.findall(r"\(plots/(.+)\.svg\)", page))
    for ending in ("svg", "png", "pdf"):
        assert {path.stem for path in (directory / "plots").glob(f"*.{ending}")} == linked


def test_the_largest_batches_of_several_options_are_with_their_blocks(tmp_path: Path) -> None:
    found, run = build(tmp_path, variants={"": 1.0, "slow": 1.25})
    row = MaxBatchRow(
        implementation="jit_spmd", workload="mlp-base", mesh="data=2", options="fp32,variant=slow",
        limit_bytes=4e9, limit_is="this device", batch=48, predicted_bytes=3.9e9, next_batch=50,
        next_bytes=4.1e9, compilations=6, status="ok", reason="", refuted=[], peak_bytes=None,
        contents="hash",
    )  # fmt: skip
    found = dataclasses.replace(found, largest=[row])
    general, slow = markdown.content(found, run.manifest, undrawn(found))["subjects"]
    assert ["Largest batch" in str(each["sections"]) for each in (general, slow)] == [False, True]
