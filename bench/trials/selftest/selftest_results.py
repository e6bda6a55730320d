"""The results of a self-test: figures of its stored rows and samples, each with an interval.

They are written as a page, as Markdown and as one JSON file.
"""

# ruff: noqa: PLR2004 (targets stand where they are compared)

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import pandas as pd

from bench.present.columns import Column, Table
from bench.present.rendering import write_pages
from bench.records import files
from bench.records.statuses import MARGIN
from bench.records.trial_results import SELFTEST_FIGURES
from bench.trials.selftest import equal_arms, selftest_settings
from bench.trials.selftest.equal_arms import SCALED, SECONDS, SEVERAL, WORKING
from bench.trials.selftest.selftest_settings import PLANTED, SAMPLES, STEPS, USUAL, Row
from bench.trials.selftest.shares import Shares, intervals, shares, verdicts

LOCKSTEP = "Lockstep"
LARGE = 10_000
"""Number of cells of the run whose report has performance targets."""


@dataclass(frozen=True)
class Target:
    """A promise of the project, and whether it was met."""

    promise: str
    measured: str
    met: bool


@dataclass(frozen=True)
class Figures:
    """All figures of a self-test."""

    steps: list[Shares]
    """Results of each tool, by slowdown, number of arms and measuring time."""
    places: list[Shares]
    """Results of Lockstep on seven arms, by step and load."""
    intervals: list[Shares]
    """Results of Lockstep's intervals, by number of arms and rounds."""
    targets: list[Target]
    errors: dict[str, int]
    """Number of failed trials, by peer."""


def compute(rows: list[Row], samples: pd.DataFrame, seconds: float, count: int = 300) -> Figures:
    """Return all figures of the stored rows and samples.

    A pair has the measuring time `seconds` in one process; `count` is as in `equal_arms.trials`.
    """
    # Earlier self-tests also timed a program that spins.
    names = [step.name for step in STEPS]
    peers = [row for row in rows if row["kind"] == "peer" and row["program"] in names]
    own = samples[samples["block"].isin(names)]
    found = equal_arms.trials(own, count, sorted({seconds, *SECONDS})).assign(tool=LOCKSTEP)
    timed = found["size"].str.endswith("pair")
    scaled = found["slowed"] == SCALED
    placed = scaled & (found["arms"] == 7) & (found["load"] != SEVERAL)
    every = pd.concat([found[timed], peer_trials(peers)])
    steps = shares(every, ["tool", "slowed", "arms", "size"])
    return Figures(
        steps=steps,
        places=shares(found[placed & timed], ["program", "load", "size"]),
        intervals=shares(found[scaled & ~timed], ["arms", "size"]),
        targets=[*targets(steps, found, rows)],
        errors=dict(Counter(row["peer"] for row in peers if row["error"])),
    )


def peer_trials(rows: Sequence[Row]) -> pd.DataFrame:
    """Return the verdicts of peers, in the columns of `equal_arms.trials` and `tool`.

    Failed trials are left out; those without a verdict are undecided. No two share a process.
    """
    words = {True: "slower", False: "faster", None: "undecided"}
    found = [
        {
            "tool": row["peer"], "program": row["program"], "load": row["pattern"],
            "slowed": WORKING, "arms": 2, "size": f"{row['seconds']:g} s per pair",
            "trial": f"peer {number}", "truth": PLANTED.get(row["slowdown"], 1.0),
            "processes": [], "used_s": row["measured_s"], "word": words[row["slower"]],
        }
        for number, row in enumerate(rows)
        if not row["error"]
    ]  # fmt: skip
    return pd.DataFrame(found, columns=["tool", *equal_arms.COLUMNS])


def targets(steps: Sequence[Shares], own: pd.DataFrame, rows: Sequence[Row]) -> Iterator[Target]:
    """Yield the project's targets, with the measurements under all loads together.

    `steps` are those of Figures, and `own` has Lockstep's trials.
    """
    for each in shares(own, ["tool"]):
        alarms, holds = each.alarms, each.holds
        promise = "Equal real steps are called different in at most 1 % of blocks (upper bound 2 %)"
        few = alarms.value <= 0.01 and alarms.interval[1] <= 0.02
        yield Target(promise, alarms.counted, few)
        promise = "The 95 % interval of equal real steps holds 1 in 93 to 97 % of trials"
        yield Target(promise, holds.counted, 0.93 <= holds.value <= 0.97)
    for each in shares(own[own["truth"] > 1 + MARGIN], ["tool"]):
        promise = "No program that is slower by more than the margin is called faster or the same"
        yield Target(promise, each.wrong.counted, each.wrong.count == 0)
    pair = {"tool": LOCKSTEP, "arms": 2, "slowed": SCALED}
    for planted, size, least in (
        ("5 % slower", "10 s per pair", 0.95),
        ("2 % slower", "20 s per pair", 0.9),
    ):
        for each in steps:
            if each.keys == {**pair, "size": size} and planted in each.found:
                share, often = each.found[planted], f"{100 * least:.0f} % of trials of {size}"
                promise = f"A real step that is {planted} is found in at least {often}"
                yield Target(promise, share.counted, share.value >= least)
    if inside := [row["inside_s"] / row["wall_s"] for row in rows if row["kind"] == "own"]:
        promise, part = "At least 85 % of the measuring time is spent in steps", median(inside)
        yield Target(promise, f"{100 * part:.1f} %", part >= 0.85)
    if overheads := [row for row in rows if row["kind"] == "overhead"]:
        # The least disturbed process shows the cost of the clock without the effect of the load.
        quietest = min(overheads, key=lambda row: float(row["throughput_ns"]))
        recorded, untimed = quietest["throughput_ns"] - quietest["call_ns"], quietest["untimed_ns"]
        promise = "The clock adds at most 100 ns to a step"
        yield Target(promise, f"{recorded:.0f} ns", recorded <= 100)
        yield Target("At most 1000 ns per step pass untimed", f"{untimed:.0f} ns", untimed <= 1000)
    for row in (row for row in rows if row["kind"] == "report" and row["cells"] >= LARGE):
        seconds, mbytes = row["seconds"], row["bytes"] / 1e6
        promise = f"The report of {LARGE:,} cells is rebuilt within 10 s and takes at most 20 MB"
        measured = f"{row['cells']} cells: {seconds:.1f} s, {mbytes:.1f} MB"
        yield Target(promise, measured, seconds <= 10 and mbytes <= 20)
        if (large := row["first_paint_s"]) is not None:  # there is a browser
            promise = f"A browser shows the report of {LARGE:,} cells within 2 s"
            yield Target(promise, f"{large:.2f} s", large <= 2)
            usual, drawn = row["usual_paint_s"], row["usual_drawn_s"]
            promise = f"A browser shows the report of {USUAL} cells within 0.5 s, all within 2 s"
            yield Target(promise, f"{usual:.2f} s, {drawn:.2f} s", usual <= 0.5 and drawn <= 2)


TARGETS = (
    Column("promise", "Promise"),
    Column("met", "Met", value=lambda target: "met" if target.met else "missed"),
    Column("measured", "Measured"),
)


def build(folder: Path) -> tuple[Path, Figures]:
    """Write `figures.json`, `report.md` and `report.html` from a self-test's stored rows.

    Return the path of the page and the figures on it. The errors are those of
    `selftest_settings.read`.
    """
    manifest, rows = selftest_settings.read(folder)
    settings = manifest["settings"]
    # Earlier self-tests also timed a program that spins, for a fifth of the time.
    seconds = float(settings["seconds"]) * (5 if "trials" in settings else 1)
    figures = compute(rows, pd.read_parquet(folder / SAMPLES), seconds)
    files.write_sealed(folder / SELFTEST_FIGURES, asdict(figures))
    measured = {"size": "Measured"}
    kinds = {"tool": "Tool", **measured, "arms": "Arms", "slowed": "Slowed by"}
    placed = [each for each in figures.places if each.keys["size"] == f"{seconds:g} s per pair"]
    page = write_pages(
        folder,
        "selftest",
        Path(__file__).parent,
        file="report",
        title=folder.name,
        manifest=manifest,
        errors=figures.errors,
        targets=Table("What the project promises, and what was measured", TARGETS, figures.targets),
        steps=[
            verdicts("All steps and loads together", figures.steps, kinds),
            verdicts("By step and load, seven arms", placed,
                     {"program": "Step", "load": "Load", **measured}),
            intervals("Intervals", figures.intervals, {**measured, "arms": "Arms"}),
        ],
    )  # fmt: skip
    return page, figures
