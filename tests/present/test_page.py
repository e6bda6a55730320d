"""The page as a file: its first screen, and what it may do. tests/test_browser.py opens it."""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Any

import pytest
import synthetic
from pages import Elements

from bench.analyse import cell_table
from bench.present import markdown, page
from bench.present.print_plots import Figures
from bench.records import store

HOSTILE = "</td><script>alert(1)</script> <img src=x onerror=1> \x1b[31m\n# H"
PLAN = synthetic.Plan(
    workloads=("linear-base", "gpt2-nano"),
    batches=("strong", "weak"),
    usable_cores=4,
    alone=frozenset({"nnx_jit"}),
    endings={
        ("python_loop", 4): ("wrong", "gradients 4 times too large"),
        ("pmap", 0): ("unsupported", "jax.pmap is not there"),
        ("nnx_jit", 8): ("oom", HOSTILE),
    },
)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> store.Run:
    return store.load(synthetic.write(tmp_path_factory.mktemp("reports"), PLAN))


@pytest.fixture(scope="module")
def found(run) -> cell_table.Tables:
    return cell_table.build(run)


@pytest.fixture(scope="module")
def made(found, run) -> dict[str, Any]:
    return page.content(found, run.manifest)


@pytest.fixture(scope="module")
def text(found, run) -> str:
    return page.html(found, run.manifest)


@pytest.fixture(scope="module")
def elements(text) -> Elements:
    parser = Elements()
    parser.feed(text)
    assert parser.open == [], "every element is closed"
    return parser


def test_only_the_pages_own_scripts_and_style_may_run(elements) -> None:
    (policy,) = [a["content"] for tag, a in elements.found
                 if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy"]  # fmt: skip
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    present = {
        base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for tag, attributes, text in elements.texts
        if attributes.get("type") != "application/json"
    }
    assert allowed == present
    assert len(present) == 3


def test_nothing_is_fetched(elements) -> None:
    for tag, attributes in elements.found:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base"}
        assert "src" not in attributes
        assert "style" not in attributes
        assert not [name for name in attributes if name.startswith("on")]


def test_links_within_the_page_have_targets(elements) -> None:
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {a["href"][1:] for tag, a in elements.found if tag == "a" and a["href"][:1] == "#"}
    assert {target.partition("?")[0] for target in targets} <= set(ids)


def test_hostile_text_is_escaped(text) -> None:
    assert "<script>alert" not in text
    assert "<img" not in text.partition('id="data"')[0]


def test_how_it_was_run_and_traced_is_said(text, tmp_path) -> None:
    assert "python -m bench run --preset quick --meshes data=1 data=2" in text
    run = store.load(synthetic.write(tmp_path, synthetic.Plan(devices=(2,), traced=True)))
    found = cell_table.build(run)
    traced = page.html(found, run.manifest)
    for shown, said in ((text, False), (traced, True)):
        assert ("<code>nox -s tensorboard</code> serves them" in shown) == said


def test_hostile_names_break_nothing(tmp_path) -> None:
    name = 'a<b>&"c$x^{$'
    plan = synthetic.Plan(devices=(2,), ratios={"jit_spmd": 1.0, name: 0.9})
    run = store.load(synthetic.write(tmp_path, plan))
    found = cell_table.build(run)
    parser = Elements()
    parser.feed(page.html(found, run.manifest))
    assert parser.open == []
    assert ("b", {}) in parser.found, "the name in the answer"


def test_of_a_page_of_ordinary_size(text) -> None:
    assert len(text.encode()) < 5e6


def test_the_first_screen_has_the_answer(found, made, text) -> None:
    first = text.partition('<section id="explore">')[0]
    for _, answers in made["subjects"]:
        assert answers
        for answer in answers:
            assert answer.startswith("Use <b>shard_map_p")
            assert answer in first
    assert made["question"] in first
    assert "Against the baselines" not in first
    assert '<td class="shade0 fastest"><a href="#cell?subject=gpt2-nano%2C+fp32&amp;cell=' in first
    assert made["failures"] == [(4, "wrong"), (4, "out of memory")]
    assert '<a href="#endings"><b>4</b> wrong</a>' in first
    for title in made["caveats"]:
        assert title in first
    assert "python 3.13.1, jax 0.10.2" in first


def test_same_rows_same_page(found, run, text) -> None:
    again = cell_table.build(run)
    assert page.html(again, run.manifest) == text


def test_nothing_measured(tmp_path) -> None:
    run = store.load(store.create(tmp_path, synthetic.manifest(PLAN)))
    empty = cell_table.build(run)
    made = page.content(empty, run.manifest)
    assert made["tally"] == "No cell has ended yet."
    html = page.html(empty, run.manifest)
    assert html.startswith("<!doctype html>")
    assert "Nothing has been measured yet." in html


def test_only_what_is_slower_is_coloured_so() -> None:
    said = page._marked("a is fastest; b takes longer. a: 3 M tokens/s.", ["a", "b"])
    assert said == (
        '<b>a</b> is fastest<span class="slower">; <b>b</b> takes longer</span>. <b>a</b>: 3 M '
        "tokens/s."
    )


def test_only_the_page_explains_its_chooser(made, found, run) -> None:
    term = "Your workload, devices and memory"
    assert term in dict(made["guide"])
    undrawn = Figures({block.subject: [] for block in found.comparisons}, {})
    assert term not in dict(markdown.content(found, run.manifest, undrawn)["guide"])


def test_the_guide_defines_ratio_and_noise_floor_as_they_are_computed(made) -> None:
    guide = dict(made["guide"])
    assert "just before" not in guide["Ratio and interval"]  # the wash-out step never counts
    assert "how far the 95 % interval of the ratio extends from 1" in guide["Noise floor"]
