"""Formulae are found from two sizes, checked on others, and refused where they do not hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.project.compiled_programs import Program
from bench.project.program_formulae import FormulaError, fit, grown, ladder
from bench.records.cells import Block, Cell, StepOptions
from bench.records.collective_kinds import bus_factor
from bench.records.mesh import MeshShape


def row(kind, axes, members, count, payload):
    wire = payload * bus_factor(kind, members)
    return {
        "kind": kind,
        "axes": axes,
        "members": members,
        "dtypes": ["f32"],
        "count": count,
        "payload_bytes": payload,
        "wire_bytes": wire,
    }


def program(size, batch, model=2):
    """ZeRO over `data` beside tensor parallelism: what is divided by n, and what is not.

    1,000,000 parameters are replicated, 12,000,000 of optimizer state divided.
    """
    rows = batch / size
    return Program(
        implementation="own",
        workload="gpt2",
        size="nano",
        mesh=MeshShape((("data", size), ("model", model))),
        batch=batch,
        options=StepOptions(),
        flops=6e6 * rows,
        accessed_bytes=3e6 + 36e6 / size + 1e5 * rows,
        memory_bytes=1e6 + 12e6 / size + 5e4 * rows,
        state_bytes=1e6 + 12e6 / size,
        communication=(
            row("reduce-scatter", ["data"], size, 3, 1_000_000),
            row("all-gather", ["data"], size, 3, 1_000_000),
            row("all-reduce", ["model"], model, 8, round(64_000 * rows)),
            row("all-reduce", ["data", "model"], size * model, 1, 4),
            row("collective-permute", ["data"], 2, 2, round(640 * rows)),
        ),
        model_flops=5e6 * batch,
        units=64 * batch,
        unit="tokens",
        bubble=0.0,
        read="compiled",
    )


SIZES, FAR = (4, 32, 128, 512), 8192
BATCHES = {
    "weak": {size: 8 * size for size in (*SIZES, FAR)},
    "strong": dict.fromkeys((*SIZES, FAR), 2 * FAR),
}


def compiled(scaling):
    return [program(n, BATCHES[scaling][n]) for n in SIZES]


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_a_program_beyond_the_compiled_ones_is_what_it_would_be(scaling):
    formula = fit(compiled(scaling)[::-1], "data")
    assert (formula.scaling, formula.fitted, formula.smallest.mesh.size) == (scaling, (4, 32), 8)
    found, truth = formula.at(FAR), program(FAR, BATCHES[scaling][FAR])
    assert found.read == "formula"
    assert found.cell == truth.cell
    for name in ("flops", "memory_bytes", "state_bytes", "model_flops", "units"):
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=1e-9), name
    for own, expected in zip(found.communication, truth.communication, strict=True):
        assert own == expected | {"wire_bytes": pytest.approx(expected["wire_bytes"])}


def test_a_shard_of_one_sample_is_not_taken_for_one_of_several():
    with pytest.raises(FormulaError, match="one sample at a time, and no program that does so"):
        fit(compiled("strong"), "data").at(2 * FAR)
    alone = [program(size, size) for size in SIZES]
    assert fit(alone, "data").at(FAR).batch == FAR


def test_every_figure_is_checked_at_every_other_size():
    formula = fit(compiled("strong"), "data")
    assert {check.size for check in formula.checks} == {128, 512}
    assert len(formula.checks) == 2 * (3 + 5)
    assert max(check.error for check in formula.checks) < 1e-12
    names = {check.figure for check in formula.checks}
    assert "payload_bytes of all-reduce over data, model of f32" in names


def changed(**figures):
    *rest, last = compiled("weak")
    return [*rest, replace(last, **figures)]


def test_a_figure_that_is_off_is_told_with_all_checks():
    off = changed(flops=1.02 * 6e6 * 8)
    with pytest.raises(FormulaError, match=r"at data=512, flops is 4.896e\+07 as compiled, and 4.8e\+07") as error:  # fmt: skip  # noqa: E501
        fit(off, "data")
    (wrong,) = [check for check in error.value.checks if check.error > 0.01]
    assert (wrong.size, wrong.figure) == (512, "flops")
    assert len(error.value.checks) == 16
    fit(changed(flops=1.005 * 6e6 * 8), "data")


def communicates(number, **change):
    rows = list(compiled("weak")[-1].communication)
    rows[number] = {**rows[number], **change}
    return changed(communication=tuple(rows))


@pytest.mark.parametrize(
    ("programs", "message"),
    [
        (changed(communication=()), "the communication differs: only one has payload_bytes of"),
        (communicates(0, kind="all-to-all"), "only one has payload_bytes of all-to-all over data"),
        (
            communicates(0, count=4),
            "has 4 of reduce-scatter over data of f32 among 512 members, but 3 among 512",
        ),
        (
            communicates(0, members=256),
            "has 3 of reduce-scatter over data of f32 among 256 members, but 3 among 512",
        ),
        (
            communicates(0, payload_bytes=1_020_000),
            "is 1.02e+06 as compiled, and 1e+06 by the",
        ),
        (changed(bubble=0.5), "the bubble is 0.5 and not 0"),
    ],
)
def test_another_program_is_not_extrapolated(programs, message):
    with pytest.raises(FormulaError) as error:
        fit(programs, "data")
    assert message in str(error.value)


def test_groups_of_another_form_are_not_extrapolated():
    programs = [
        replace(one, communication=(row("all-reduce", [], 3, 1, 100),)) for one in compiled("weak")
    ]
    with pytest.raises(FormulaError, match="a collective is along no axis of the mesh"):
        fit(programs, "data")


@pytest.mark.parametrize(
    ("programs", "message"),
    [
        (compiled("weak")[:2], "three different sizes of data, each of 2 at least, and has 4, 32"),
        ([program(1, 8), *compiled("weak")], "has 1, 4, 32, 128, 512"),
        ([*compiled("weak")[:3], *compiled("strong")[3:]], "differ by more than data"),
        (changed(options=StepOptions(remat=True)), "differ by more than data"),
        (changed(read="formula"), "made of compiled programs"),
    ],
)
def test_programs_that_cannot_be_compared_are_refused(programs, message):
    with pytest.raises(ValueError, match=message):
        fit(programs, "data")


def test_an_error_that_is_small_where_it_is_checked_is_not_carried_to_where_it_is_large():
    ordered = compiled("strong")
    # Slightly more than there would be, at the second size that the constants are from.
    ordered[1] = replace(ordered[1], flops=1.0004 * ordered[1].flops)
    formula = fit(ordered, "data")
    assert 0.001 < max(check.error for check in formula.checks) < 0.01
    assert formula.at(512).flops == pytest.approx(ordered[3].flops, rel=0.01)
    with pytest.raises(FormulaError, match=r"at data=8192, flops would be .*, the error at data="):
        formula.at(FAR)


def test_a_figure_below_zero_is_refused():
    """Two sizes between which a figure falls by more than it could."""
    programs = [replace(one, flops=max(1.0, 1e9 - 1e6 * n)) for n, one in zip(SIZES, compiled("weak"), strict=True)]  # fmt: skip  # noqa: E501
    with pytest.raises(FormulaError):
        fit(programs, "data")
    falling = [replace(one, flops=-1.0 + 8.0 / one.mesh.axis("data")) for one in compiled("weak")]
    with pytest.raises(FormulaError, match="at data=8192, flops would be below 0"):
        fit(falling, "data").at(FAR)


CELL = Cell(Block("gpt2", "nano", MeshShape.parse("data=2,model=4"), 64, StepOptions()), "own")


def test_weak_scaling_keeps_a_shards_batch_and_strong_the_global_one():
    weak, strong = (grown(CELL, "data", 16, scaling).block for scaling in ("weak", "strong"))
    assert (str(weak.mesh), weak.batch) == ("data=16,model=4", 512)
    assert (str(strong.mesh), strong.batch) == ("data=16,model=4", 64)


@pytest.mark.parametrize(
    ("axis", "size", "scaling", "message"),
    [
        ("fsdp", 4, "weak", "no axis 'fsdp' that a batch is split over"),
        ("model", 8, "weak", "no axis 'model' that a batch is split over"),
        ("data", 128, "strong", "a global batch of 64 does not divide into 128 parts"),
    ],
)
def test_what_cannot_grow_is_refused(axis, size, scaling, message):
    with pytest.raises(ValueError, match=message):
        grown(CELL, axis, size, scaling)


def test_a_ladder_has_the_sizes_that_can_be_compiled():
    assert [cell.block.mesh.axis("data") for cell in ladder(CELL, "data", "weak")] == [
        2,
        16,
        64,
        256,
    ]
    assert [cell.block.batch for cell in ladder(CELL, "data", "weak")] == [64, 512, 2048, 8192]
    # Of 64 samples, no more than 64 shards can be made.
    assert [cell.block.mesh.size for cell in ladder(CELL, "data", "strong")] == [8, 64, 256]
