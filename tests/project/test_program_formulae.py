"""Formulae are found from two sizes, checked on others, and refused where they do not hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.project import program_formulae
from bench.project.compiled_programs import Program
from bench.project.program_formulae import Curve
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
    mesh = MeshShape((("data", size), ("model", model)))
    return Program(
        cell=Cell(Block("gpt2", "nano", mesh, batch, StepOptions()), "own"),
        flops=6e6 * rows,
        memory_bytes=1e6 + 12e6 / size + 5e4 * rows,
        state_bytes=1e6 + 12e6 / size,
        communication=[
            row("reduce-scatter", ["data"], size, 3, 1_000_000),
            row("all-gather", ["data"], size, 3, 1_000_000),
            row("all-reduce", ["model"], model, 8, round(64_000 * rows)),
            row("all-reduce", ["data", "model"], size * model, 1, 4),
            row("collective-permute", ["data"], 2, 2, round(640 * rows)),
        ],
        model_flops=5e6 * batch,
        units=64 * batch,
        unit="tokens",
        read="compiled",
    )


SIZES, FAR = (4, 32, 128, 512), 8192
BATCHES = {
    "weak": {size: 8 * size for size in (*SIZES, FAR)},
    "strong": dict.fromkeys((*SIZES, FAR), 2 * FAR),
}


def compiled(scaling):
    return [program(n, BATCHES[scaling][n]) for n in SIZES]


def in_microbatches(cell, count):
    return replace(cell, block=replace(cell.block, options=StepOptions(microbatches=count)))


def fit(programs, scaling="weak"):
    return program_formulae.fit(Curve.through(programs[0].cell, scaling), programs)


def at(formula, size):
    return formula.at(formula.curve.cell(2 * size))


@pytest.mark.parametrize("scaling", ["weak", "strong"])
def test_a_program_beyond_the_compiled_ones_is_what_it_would_be(scaling):
    formula = fit(compiled(scaling)[::-1], scaling)
    assert [one.mesh.axis("data") for one in formula.programs] == [*SIZES]
    found, truth = at(formula, FAR), program(FAR, BATCHES[scaling][FAR])
    assert found.read == "formula"
    assert found.cell == truth.cell
    for name in ("flops", "memory_bytes", "state_bytes", "model_flops", "units"):
        assert getattr(found, name) == pytest.approx(getattr(truth, name), rel=1e-9), name
    for own, expected in zip(found.communication, truth.communication, strict=True):
        assert own == expected | {"wire_bytes": pytest.approx(expected["wire_bytes"])}


def test_a_shard_of_one_sample_is_not_taken_for_one_of_several():
    with pytest.raises(ValueError, match="one sample at a time, and no program that does so"):
        at(fit(compiled("strong"), "strong"), 2 * FAR)
    alone = [program(size, size) for size in SIZES]
    assert at(fit(alone), FAR).cell.block.batch == FAR
    # Two samples in two microbatches.
    halved = [replace(one, cell=in_microbatches(one.cell, 2)) for one in compiled("strong")]
    with pytest.raises(ValueError, match="one sample at a time"):
        at(fit(halved, "strong"), FAR)


def test_every_figure_is_checked_at_every_other_size():
    formula = fit(compiled("strong"), "strong")
    assert {size for size, _ in formula.off} == {128, 512}
    assert len(formula.off) == 2 * (3 + 5)
    assert formula.error < 1e-12
    assert (512, "payload_bytes of all-reduce over data, model of f32") in formula.off


def changed(**figures):
    *rest, last = compiled("weak")
    return [*rest, replace(last, **figures)]


def test_a_figure_that_is_off_is_told():
    said = r"at data=512, flops is 4.896e\+07 as compiled, and 4.8e\+07 by the formula from data=4 "
    with pytest.raises(ValueError, match=said):
        fit(changed(flops=1.02 * 6e6 * 8))
    fit(changed(flops=1.005 * 6e6 * 8))


def communicates(number, **change):
    rows = list(compiled("weak")[-1].communication)
    rows[number] = {**rows[number], **change}
    return changed(communication=tuple(rows))


@pytest.mark.parametrize(
    ("differing", "message"),
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
    ],
)
def test_another_program_is_not_extrapolated(differing, message):
    with pytest.raises(ValueError) as error:  # noqa: PT011
        fit(differing)
    assert message in str(error.value)


def test_groups_of_another_form_are_not_extrapolated():
    programs = [
        replace(one, communication=(row("all-reduce", [], 3, 1, 100),)) for one in compiled("weak")
    ]
    with pytest.raises(ValueError, match="a collective is along no axis of the mesh"):
        fit(programs)


def test_two_sizes_are_too_few():
    with pytest.raises(ValueError, match="a formula needs three sizes of data, and has 4, 32"):
        fit(compiled("weak")[:2])
    assert fit(compiled("weak")[:3]).error < 1e-12


def test_an_error_that_is_small_where_it_is_checked_is_not_carried_to_where_it_is_large():
    ordered = compiled("strong")
    # Slightly more than there would be, at the second size that the constants are from.
    ordered[1] = replace(ordered[1], flops=1.0004 * ordered[1].flops)
    formula = fit(ordered, "strong")
    assert 0.001 < formula.error < 0.01
    assert at(formula, 512).flops == pytest.approx(ordered[3].flops, rel=0.01)
    with pytest.raises(ValueError, match=r"at data=8192, flops would be .*, the error at data="):
        at(formula, FAR)


def test_a_figure_below_zero_is_refused():
    """Two sizes between which a figure falls by more than it could."""
    programs = [replace(one, flops=max(1.0, 1e9 - 1e6 * n)) for n, one in zip(SIZES, compiled("weak"), strict=True)]  # fmt: skip  # noqa: E501
    with pytest.raises(ValueError, match=r"flops is .* as compiled"):
        fit(programs)
    falling = [replace(one, flops=-1.0 + 8.0 / one.mesh.axis("data")) for one in compiled("weak")]
    with pytest.raises(ValueError, match="at data=8192, flops would be below 0"):
        at(fit(falling), FAR)


CELL = Cell(Block("gpt2", "nano", MeshShape.parse("data=2,model=4"), 64, StepOptions()), "own")


def test_weak_scaling_keeps_a_shards_batch_and_strong_the_global_one():
    curves = [Curve.through(CELL, scaling) for scaling in ("weak", "strong")]
    weak, strong = (curve.cell(64).block for curve in curves)
    assert (str(weak.mesh), weak.batch) == ("data=16,model=4", 512)
    assert (str(strong.mesh), strong.batch) == ("data=16,model=4", 64)
    assert all(curve.cell(8) == CELL for curve in curves)
    assert curves[0].cell(6) is None, "these do not divide into the mesh"
    assert curves[1].cell(512) is None, "64 samples do not divide into 128 shards"
    parts = Curve.through(in_microbatches(CELL, 4), "strong")
    assert parts.cell(64).block.batch == 64
    assert parts.cell(128) is None, "2 samples of a shard do not divide into 4 microbatches"


def test_a_ladder_has_the_sizes_that_can_be_compiled():
    weak, strong = (Curve.through(CELL, scaling).ladder() for scaling in ("weak", "strong"))
    assert [cell.block.mesh.axis("data") for cell in weak] == [2, 16, 64, 256]
    assert [cell.block.batch for cell in weak] == [64, 512, 2048, 8192]
    # Of 64 samples, no more than 64 shards can be made.
    assert [cell.block.mesh.size for cell in strong] == [8, 64, 256]
    block = replace(CELL.block, mesh=MeshShape.parse("model=4,data=2"))
    assert Curve.through(replace(CELL, block=block), "weak").ladder() == []
