"""A drawn step shows every run where it was, on one clock, and adds up to the parts of its step."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import pytest
from test_step_parts import OPERATIONS, PROGRAM

from bench.records.step_programs import compressed, expanded
from bench.worker.trace import drawn_step as drawing
from bench.worker.trace.step_parts import device_step, identify_runs
from bench.worker.trace.xspace import Event

STEP = (1000, 1100)
EVENTS = (
    ("dot", 0, 1010, 1040), ("fusion", 0, 1030, 1050), ("reduce", 0, 1050, 1090),
    ("dot", 1, 1020, 1070), ("reduce", 1, 1070, 1088), ("loop", 1, 1090, 1096),
)  # fmt: skip


def kept(events=EVENTS, began=0, step=STEP, number=3):
    listed = [Event(device, "jit_step", name, 0, start, end) for name, device, start, end in events]
    listed.sort(key=lambda event: event.start)
    runs = identify_runs(listed, PROGRAM, {0: 0, 1: 1}, began)
    own = [
        device_step(step, [run for run in runs if run.event.device == device]) for device in (0, 1)
    ]
    return number, began, own


def rows(drawn):
    """Runs as (device, operation or category, start, ns, wait)."""
    columns = ("device", "op", "start", "ns", "wait")
    listed = zip(*(drawn["runs"][column] for column in columns), strict=True)
    names = [
        op or category
        for op, category in zip(drawn["ops"]["op"], drawn["ops"]["category"], strict=True)
    ]
    return [(device, names[op], *rest) for device, op, *rest in listed]


def test_runs_are_told_from_the_start_of_their_step():
    drawn = expanded(compressed(drawing.drawn_step(*kept(), [0, 1])))
    assert (drawn["step"], drawn["ns"], drawn["one_clock"], drawn["left_out"]) == (3, 100, True, 0)
    assert rows(drawn) == [
        (0, "dispatch", 0, 10, 0), (0, "dot", 10, 30, 0), (0, "fusion", 30, 20, 0),
        (0, "reduce", 50, 40, 20),
        (1, "dispatch", 0, 20, 0), (1, "dot", 20, 50, 0), (1, "reduce", 70, 18, 0),
        (1, "loop", 90, 6, 0),
    ]  # fmt: skip
    assert drawn["runs"]["meeting"] == [-1, -1, -1, 0, -1, -1, 0, -1]
    # A loop with nothing inside was compiled to one kernel, which counts as what it calls.
    assert drawn["ops"]["category"][-1] == OPERATIONS["loop"].inside


def test_the_drawn_times_add_up_to_the_parts_of_the_step():
    step = kept()
    drawn = drawing.drawn_step(*step, [0, 1])
    painted = defaultdict(set)
    for device, name, start, ns, wait in rows(drawn):
        kind = {"dispatch": "dispatch", "reduce": "wait"}.get(name, "compute")
        until = start + wait if name == "reduce" else start + ns
        painted[device, kind] |= set(range(start, until))
        if name == "reduce":
            painted[device, "move"] |= set(range(start + wait, start + ns))
    for device, own in enumerate(step[2]):
        for kind in ("dispatch", "compute", "wait", "move"):
            assert len(painted[device, kind]) == own.share[kind], (device, kind)


def test_an_operation_precedes_those_inside_it_that_start_with_it():
    drawn = drawing.drawn_step(*kept([("dot", 0, 1000, 1030), ("loop", 0, 1000, 1040)]), [0, 1])
    assert [name for device, name, *_ in rows(drawn) if device == 0] == ["loop", "dot"]


@pytest.mark.parametrize(
    ("hosts", "clocks", "shared"),
    [("a", [0], True), ("aa", [5, 6], True), ("aa", [5, 0], False), ("ab", [5, 6], False)],
)
def test_times_of_processes_are_compared_on_one_host_if_all_clocks_are_known(hosts, clocks, shared):
    assert drawing.share_clock(hosts, clocks) == shared


def test_of_many_results_the_first_are_described(monkeypatch):
    many = replace(OPERATIONS["dot"], shapes=("f32[2]",) * 6)
    monkeypatch.setitem(OPERATIONS, "dot", many)
    drawn = drawing.drawn_step(*kept(), [0, 1])
    assert "f32[2], f32[2], f32[2], f32[2] and 2 more" in drawn["ops"]["shapes"]


def test_only_the_longest_runs_are_drawn(monkeypatch):
    monkeypatch.setattr(drawing, "MOST_RUNS", 3)
    drawn = drawing.drawn_step(*kept(), [0, 1])
    assert sorted(row[3] for row in rows(drawn)) == [30, 40, 50]
    assert drawn["left_out"] == 5


@pytest.mark.parametrize(("hosts", "one_clock"), [(("a", "a"), True), (("a", "b"), False)])
def test_processes_are_drawn_on_one_clock_if_they_share_one(monkeypatch, hosts, one_clock):
    """Another process entered the same step 5 ns later, and its trace's clock began 400 before."""

    def gathered(own):
        _, began, start, count, listed = own
        moved = [(2, at + 405, *rest) for place, at, *rest in listed if place == 1]
        return [(hosts[0], *own[1:]), (hosts[1], began - 400, start + 405, count, moved)]

    step = kept(began=10**18)
    monkeypatch.setattr(drawing.process_exchange, "gather", gathered)
    drawn = drawing.drawn_step(*step, [0, 1])
    assert drawn["one_clock"] is one_clock
    late = 5 if one_clock else 0
    assert [row for row in rows(drawn) if row[0] == 2] == [
        (2, "dispatch", late, 20, 0), (2, "dot", 20 + late, 50, 0),
        (2, "reduce", 70 + late, 18, 0), (2, "loop", 90 + late, 6, 0),
    ]  # fmt: skip
    met = {number for number in drawn["runs"]["meeting"] if number >= 0}
    assert len(met) == (1 if one_clock else 2), "without a common clock, none is seen to meet"
