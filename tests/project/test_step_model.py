"""How long a step takes on hardware, and how calibrations are fitted and tried."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from scipy.stats import t as student

from bench.project import calibration, published_results
from bench.project.calibration import Trial, calibrate, fit
from bench.project.collective_costs import Route, Switch
from bench.project.compiled_programs import Program
from bench.project.hardware import NAMES, HardwareError, hardware
from bench.project.machines import Machine, of_ceilings, of_sheet
from bench.project.step_model import Calibration, predict, work
from bench.records.cells import Block, Cell, StepOptions
from bench.records.mesh import MeshShape
from bench.records.rows import Ceilings
from bench.records.step_programs import Communication

GB = 1e9
MIB = 2**20
IDEAL = Calibration(share=1.0, exposed=0.0, overhead_s=0.0, spread=0.0)


def communication(kind: str, axes: list[str], payload: float, count: int = 1) -> Communication:
    return Communication(
        kind=kind, axes=axes, members=2, dtypes=["f32"], count=count,
        payload_bytes=int(payload), wire_bytes=payload,
    )  # fmt: skip


def step(
    *rows: Communication,
    flops: float = 3e12,
    state: float = 0.0,
    mesh: str = "data=2,model=2",
    name: str = "one",
    remat: str = "",
    **others: float,
) -> Program:
    figures = {"memory_bytes": 1 * GB, "model_flops": 6e12, **others}
    options = StepOptions("bf16", remat=remat)
    return Program(
        cell=Cell(Block("mlp", "base", MeshShape.parse(mesh), 8, options), name), flops=flops,
        state_bytes=state, communication=rows, units=8, unit="samples",
        read="compiled", **figures,
    )  # fmt: skip


MACHINE = Machine(1e12, 2e12, 1 * GB, 2 * GB, lambda _: Route(Switch(2, 1 * GB)), combines=False)
"""3 s of products; an all-reduce of 1 GB takes 1 s, one of its phases half."""

GRADIENTS = communication("all-reduce", ["data"], GB)
PARAMETERS = communication("all-gather", ["fsdp"], GB)
UPDATED = communication("all-gather", ["data"], GB) | {"returned": True}
ACTIVATIONS = communication("all-reduce", ["model"], GB)
HANDED_ON = communication("collective-permute", ["pipe"], GB)
MIXED = communication("all-reduce", ["data", "model"], GB)
OTHER = communication("all-reduce", [], GB)
SPLIT = communication("all-to-all", ["data"], GB)


@pytest.mark.parametrize(
    ("rows", "hidden", "exposed"),
    [
        ([], 3, 3),
        ([GRADIENTS], 3, 4),
        ([PARAMETERS], 3, 3.5),
        ([GRADIENTS, PARAMETERS], 3, 4.5),
        # Waited for, whatever can be hidden.
        ([ACTIVATIONS], 4, 4),
        ([HANDED_ON], 4, 4),
        ([MIXED], 4, 4),
        ([OTHER], 4, 4),
        ([SPLIT], 3.5, 3.5),
        # Gradients come after the forward pass, a third of the products.
        ([communication("all-reduce", ["data"], 2.5 * GB)], 3.5, 5.5),
        ([communication("all-gather", ["fsdp"], 5 * GB)], 3, 5.5),
        # So do parameters that have been updated.
        ([communication("all-reduce", ["data"], 1.5 * GB), UPDATED], 3, 5),
        ([communication("all-reduce", ["data"], 2 * GB), UPDATED], 3.5, 5.5),
        ([communication("all-reduce", ["data"], 2 * GB), PARAMETERS], 3, 5.5),
        # The links are busy for longer than the products.
        ([communication("all-gather", ["fsdp"], 7 * GB)], 3.5, 6.5),
    ],
)
def test_communication_is_hidden_where_nothing_waits_for_it(
    rows: list[Communication], hidden: float, exposed: float
) -> None:
    found = work(step(*rows), MACHINE)
    assert found.step_s(IDEAL) == pytest.approx(hidden)
    assert found.step_s(replace(IDEAL, exposed=1)) == pytest.approx(exposed)
    assert found.step_s(replace(IDEAL, exposed=0.25)) == pytest.approx(
        hidden + 0.25 * (exposed - hidden)
    )


def test_recomputing_makes_the_forward_pass_a_smaller_share() -> None:
    reduced = communication("all-reduce", ["data"], 2.5 * GB)
    assert work(step(reduced, remat="full"), MACHINE).step_s(IDEAL) == pytest.approx(0.75 + 2.5)


@pytest.mark.parametrize(
    ("row", "times", "count"),
    [
        (communication("all-gather", ["fsdp"], 90 * MIB, 148), 1, 3),
        (communication("all-gather", ["fsdp"], 90 * MIB + 1, 148), 1, 4),
        # What comes out counts: half of it, of two.
        (communication("reduce-scatter", ["fsdp"], 90 * MIB, 148), 1, 2),
        (communication("all-reduce", ["data"], 1e3, 12), 1, 1),
        # Those of one microbatch do not wait for the next one's products.
        (communication("all-reduce", ["data"], 1e3, 12), 4, 4),
        # Larger ones stay as they are.
        (communication("all-gather", ["fsdp"], 900 * MIB, 5), 1, 5),
        # The next product is made of what is waited for.
        (communication("all-reduce", ["model"], 1e3, 12), 1, 12),
        (communication("all-reduce", [], 1e3, 12), 1, 12),
    ],
)
def test_small_collectives_that_nothing_waits_for_are_combined(
    row: Communication, times: int, count: int
) -> None:
    program = step({**row, "times": times}, flops=0.0)
    slow = Route(Switch(2, 1 * GB), overhead_s=0.1)
    combining = replace(MACHINE, route=lambda _: slow, combines=True)
    found = work(program, combining)
    apart = work(program, replace(combining, combines=False))
    (one,), (as_it_is,) = found.collectives, apart.collectives
    assert (one.count, as_it_is.count) == (count, row["count"])
    assert as_it_is.seconds - one.seconds == pytest.approx(0.1 * (row["count"] - count))
    assert one.separate_s == as_it_is.separate_s == as_it_is.seconds
    # Nobody knows what another compiler does: the interval holds both.
    assert predict(found, IDEAL).high_s == predict(apart, IDEAL).high_s
    assert predict(found, IDEAL).best_s == pytest.approx(one.seconds)


def test_the_update_moves_the_state_twice_and_overhead_adds_up() -> None:
    found = work(step(state=0.5 * GB, flops=1e12), MACHINE)
    slow = Calibration(share=0.5, exposed=0, overhead_s=0.25, spread=0, shares={"other": 1.0})
    assert found.step_s(slow) == pytest.approx(2 + 1 + 0.25)
    assert work(step(flops=1e12, name="other"), MACHINE).step_s(slow) == pytest.approx(1.25)


def test_a_prediction_says_what_binds() -> None:
    cases = {
        "compute": step(GRADIENTS),
        "memory": step(state=2 * GB),
        "all-reduce over data": step(communication("all-reduce", ["data"], 2.1 * GB), PARAMETERS),
        "all-gather over fsdp": step(communication("all-gather", ["fsdp"], 7 * GB), GRADIENTS),
        "all-reduce over model": step(communication("all-reduce", ["model"], 4 * GB)),
        "all-reduce over other groups": step(communication("all-reduce", [], 4 * GB)),
    }
    for binds, program in cases.items():
        found = predict(work(program, MACHINE), IDEAL)
        assert found.binds == binds
        assert found.limit == ("" if binds in ("compute", "memory") else "inside")
    heavy = replace(IDEAL, overhead_s=5.0)
    assert predict(work(step(), MACHINE), heavy).binds == "overhead"


def test_a_prediction_has_its_parts() -> None:
    found = predict(work(step(GRADIENTS, ACTIVATIONS, state=0.5 * GB), MACHINE), IDEAL)
    assert (found.work.products_s, found.work.memory_s) == (3, 1)
    assert (found.best_s, found.hidden_s, found.row()["communication_s"]) == (5, 1, 2)
    assert found.mfu == 6e12 / (5 * 4 * 2e12)
    assert found.row()["units_per_s"] == 8 / 5
    assert [one.name for one in found.work.collectives] == [
        "all-reduce over data",
        "all-reduce over model",
    ]


@pytest.mark.parametrize(("capacity", "fits"), [(2 * GB, True), (0.5 * GB, False)])
def test_a_program_fits_if_its_memory_is_there(capacity: float, fits: bool) -> None:
    found = predict(work(step(), replace(MACHINE, memory_bytes=capacity)), IDEAL)
    assert found.fits is fits


def test_the_interval_holds_the_spread_and_what_overlap_may_do() -> None:
    rows = [communication("all-reduce", ["data"], GB), ACTIVATIONS]
    found = work(step(*rows), MACHINE)
    sure = predict(found, Calibration(share=0.5, exposed=0.5, overhead_s=0, spread=0.0))
    # All of the gradients hidden; nothing hidden.
    assert (sure.low_s, sure.best_s, sure.high_s) == pytest.approx((7, 7.5, 8))
    rough = predict(found, Calibration(share=0.5, exposed=0.5, overhead_s=0, spread=0.5))
    assert (rough.low_s, rough.high_s) == pytest.approx((7.5 * math.exp(-0.5), 7.5 * math.exp(0.5)))
    # The update is in both ends.
    updating = work(step(*rows, state=0.5 * GB), MACHINE)
    ends = predict(updating, Calibration(share=0.5, exposed=0.5, overhead_s=0, spread=0.0))
    assert (ends.low_s, ends.best_s, ends.high_s) == pytest.approx((8, 8.5, 9))
    # Not faster than products at their best, and with no spread known no end.
    unknown = predict(found, Calibration(share=0.5, exposed=0.5, overhead_s=0, spread=None))
    assert (unknown.low_s, unknown.high_s) == (3, math.inf)


@pytest.mark.parametrize(
    ("rows", "longest"),
    [
        ([], 0),
        ([ACTIVATIONS], 1),
        ([GRADIENTS, PARAMETERS, ACTIVATIONS], 1),
        ([GRADIENTS, SPLIT, ACTIVATIONS], 1.5),
        # A collective over two axes, or over the whole mesh, counts for each of them.
        ([MIXED, GRADIENTS, ACTIVATIONS, ACTIVATIONS], 3),
        ([OTHER, GRADIENTS], 2),
        ([OTHER], 1),
    ],
)
def test_no_step_is_shorter_than_the_communication_of_an_axis(
    rows: list[Communication], longest: float
) -> None:
    found = work(step(*rows, flops=1e9), MACHINE)
    assert found.longest_axis_s == pytest.approx(longest)
    assert predict(found, Calibration(1, 0, 0, spread=5)).low_s >= longest * (1 - 1e-12)


def test_every_sheet_says_what_products_reach() -> None:
    for name in NAMES:
        assert 0.5 < hardware(name).achievable.value <= 1


def test_a_machine_of_a_sheet() -> None:
    machine = of_sheet(hardware("h100-sxm"), MeshShape.parse("data=16"), "bf16")
    assert machine.peak == 989.4e12
    assert machine.flops == pytest.approx(794.5e12, rel=1e-3)
    assert machine.memory_bytes == 80e9
    assert machine.route(("data",)).members == 16
    with pytest.raises(HardwareError, match="tpu-v5p: no peak is published for fp32"):
        of_sheet(hardware("tpu-v5p"), MeshShape.parse("data=16"), "fp32")


def test_a_machine_of_ceilings_has_latency_and_rate_of_all_reduces() -> None:
    measured = Ceilings(
        matmul_flops=1e11, memory_bytes=2e10, all_reduce_bytes=1e9, all_reduce_s=1e-4
    )
    machine = of_ceilings(measured, MeshShape.parse("data=4"))
    one = work(step(communication("all-reduce", ["data"], 1e9, count=10), mesh="data=4"), machine)
    # Ten latencies, and what a ring sends: 2 x 3/4 of the payload.
    assert one.collectives[0].seconds == pytest.approx(10 * 1e-4 + 1.5)
    assert math.isnan(machine.peak)
    assert machine.route(()).members == 1
    assert of_ceilings(measured, MeshShape.parse("data=2")).route(("data",)).members == 2
    alone = {**measured, "all_reduce_bytes": None, "all_reduce_s": None}
    lone = of_ceilings(Ceilings(**alone), MeshShape.parse("data=4"))
    with pytest.raises(
        HardwareError, match="no all-reduce was measured on the 4 devices of data=4"
    ):
        lone.route(("data",))


TRUE = Calibration(0.7, 0.8, 2e-3, None, {"one": 0.7, "two": 0.5})


def observations(groups: int, error: float = 0.0) -> list[Trial]:
    """Steps of two implementations on machines of unlike links; groups err up and down by turns."""
    found = []
    for number in range(groups):
        for name in ("one", "two"):
            for flops in (1e10, 1e12):
                rate = 1e9 * 2**number
                machine = replace(MACHINE, route=lambda _, rate=rate: Route(Switch(2, rate)))
                one = work(step(GRADIENTS, flops=flops, name=name), machine)
                wrong = math.exp(error * (-1) ** number)
                found.append(Trial(one, one.step_s(TRUE) * wrong, f"group {number}"))
    return found


def test_a_fit_finds_the_figures_that_steps_were_made_with() -> None:
    found = fit(observations(4))
    assert found.exposed == pytest.approx(0.8, abs=0.02)
    assert found.shares["one"] == pytest.approx(0.7, rel=0.02)
    assert found.shares["two"] == pytest.approx(0.5, rel=0.02)
    # Of one that was not measured nothing is known but the others.
    other = work(step(flops=1e12, name="three"), MACHINE)
    assert 0.5 < other.products_s / other.compute_s(found) < 0.7


def test_what_steps_do_not_tell_stays_as_assumed() -> None:
    alone = work(step(flops=1e12), MACHINE)
    found = fit([Trial(alone, 2.0, "only")])
    assert found.exposed == calibration.EXPOSED
    assert found.share == pytest.approx(0.5, rel=0.01)
    with pytest.raises(ValueError, match="nothing was measured"):
        fit([])


@pytest.mark.parametrize("names", [("one",), ("one", "two")])
def test_no_share_exceeds_1(names: tuple[str, ...]) -> None:
    """However short the products were, or however long the communication took."""
    made = [one.work for one in observations(4) if one.cell.implementation in names]
    short = fit([Trial(one, 0.3 * one.step_s(IDEAL), "any") for one in made])
    assert [one.products_s / one.compute_s(short) for one in made] == pytest.approx([1] * len(made))
    assert short.share <= 1
    late = replace(IDEAL, exposed=4)
    assert fit([Trial(one, one.step_s(late), "any") for one in made]).exposed == pytest.approx(1)


def test_groups_are_predicted_from_the_others_alone() -> None:
    told = observations(4)
    wrong = [
        replace(one, measured_s=2 * one.measured_s) if one.group == "group 3" else one
        for one in told
    ]
    found = calibrate(wrong)
    assert len(found.tried) == len(told)
    # The others know nothing of its factor of two.
    for one in found.tried:
        if one.group == "group 3":
            assert one.ratio == pytest.approx(0.5, abs=0.05)


def test_the_spread_is_students_of_as_many_groups_as_were_left_out() -> None:
    found = calibrate(observations(4, error=0.2))
    errors = found.errors
    assert list(errors) == [f"group {number}" for number in range(4)]
    rms = math.sqrt(sum(error**2 for error in errors.values()) / 4)
    assert found.calibration.spread == pytest.approx(student.ppf(0.975, 4) * rms)
    assert found.calibration.spread is not None
    assert found.calibration.spread > 0.2


@pytest.mark.parametrize("groups", [1, 2])
def test_fewer_than_three_groups_are_no_interval(groups: int) -> None:
    found = calibrate(observations(groups))
    assert found.calibration.spread is None
    assert len(found.errors) == (0 if groups == 1 else 2)


def test_published_steps_have_the_collectives_of_their_frameworks() -> None:
    for entry in published_results.published():
        for one in entry.observations("any"):
            counts = [row["count"] for row in one.work.program.communication]
            assert [found.count for found in one.work.collectives] == counts


def test_a_published_model_has_the_flops_of_palms_appendix() -> None:
    """238,300 tokens/s of PaLM 540B on 6144 TPUs v4 are an MFU of 46.2 %."""
    palm = published_results.published()[0].model_copy(
        update={
            "parameters": 540.35e9, "layers": 118, "attention": 48 * 256, "width": 18432,
            "sequence": 2048,
        }
    )  # fmt: skip
    assert round(238.3e3 * palm.flops / (6144 * 275e12), 3) == 0.462


def test_each_microbatch_gathers_parameters_and_scatters_gradients() -> None:
    entry, mesh = published_results.published()[0], MeshShape.parse("data=2,fsdp=4")
    whole, parts = (
        {
            row["kind"]: (row["count"], row["payload_bytes"])
            for row in entry.model_copy(update={"microbatches": n}).program(mesh).communication
        }
        for n in (1, 4)
    )
    for kind, (count, payload) in whole.items():
        times = 1 if kind == "all-reduce" else 4
        assert parts[kind] == (times * count, pytest.approx(times * payload))


def test_a_chips_kind_is_that_of_its_links() -> None:
    assert {name for name in NAMES if published_results.kind(name) == "TPU"} == {
        name for name in NAMES if name.startswith("tpu")
    }


def test_a_chip_that_is_left_out_has_no_share_of_the_models_on_others() -> None:
    for name in ("h200", "a100-sxm-80gb", "tpu-v4"):
        for one in published_results.calibration_of_chip(name).tried:
            work_, own = one.work, one.group
            others = {
                other.work.program.cell.implementation
                for other in published_results.calibration_of_chip(name).tried
                if other.group != own
            }
            assert work_.program.cell.implementation not in others


def test_published_steps_beside_predictions() -> None:
    rows = published_results.compare()
    entries = published_results.published()
    assert len(rows) == sum(len(entry.rows) for entry in entries)
    errors = [abs(row["error"]) for row in rows]
    # As docs/projecting.md says.
    assert max(errors) < 0.39
    assert sorted(errors)[len(errors) // 2] < 0.15
    misses = {row["name"] for row in rows if not row["within"]}
    assert misses == {"MaxText 128B"}
    for row in rows:
        over = row["predicted_efficiency"] - row["measured_efficiency"]
        assert -0.03 < over < (0.04 if "h100" in row["hardware"] else 0.17)
