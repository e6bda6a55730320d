"""What can be said of a plan's cells before anything is measured."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.records.messages import SupportRequest
from bench.worker.answer.cell_requests import support

BLOCK = {"workload": "mlp", "size": "tiny", "batch": 8, "options": "fp32"}
FILE = """
def why_unsupported(problem, mesh):
    {body}

def build(problem, mesh):
    raise AssertionError("only why_unsupported is called")
"""

OWN = (
    "import dataclasses as d; from bench.contract.workloads import mlp as m; "
    "return d.replace(m.problem(m.SIZES['tiny'](), 8, 'fp32'), {})"
)
"""The body of a workload's `problem`: that of `mlp`, with one field replaced."""


def asked(tmp_path: Path, *meshes: str, **bodies: str):
    for name, body in bodies.items():
        (tmp_path / f"{name}.py").write_text(FILE.format(body=body))
    return support(
        SupportRequest(
            blocks=[{**BLOCK, "mesh": mesh} for mesh in meshes],
            implementations=[*bodies, "jit_spmd", "tensor_parallel_spmd"],
            implementation_paths=[str(tmp_path / f"{name}.py") for name in bodies],
            workload_paths=[],
        )
    )


def test_reasons_are_known_by_block(tmp_path):
    bodies = {"never": "return 'not today'", "broken": "raise ValueError(problem)"}
    found = asked(tmp_path, "data=2", "data=2,model=2", "data=64", **bodies)
    assert not found["faults"]
    data, model = found["unsupported"].values()
    assert data["never"] == model["never"] == "not today"
    assert "broken" not in data, "its worker will say where it raises"
    assert not data["jit_spmd"]
    assert "model" in data["tensor_parallel_spmd"]
    assert model["jit_spmd"]
    assert not model["tensor_parallel_spmd"]


@pytest.mark.parametrize("value", ["False", "5", "''", "True"])
def test_an_answer_that_is_no_reason_is_a_fault_once(tmp_path, value):
    found = asked(tmp_path, "data=1", "data=2", odd=f"return {value}")
    (fault,) = found["faults"]
    assert "odd.py" in fault
    assert f"why_unsupported returns {value}" in fault


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise KeyError('rows')", r"KeyError: 'rows' \(own.py:4\)"),
        ("__import__('json').loads('no')", r"JSONDecodeError: Expecting value: .* \(own.py:4\)"),
        ("return {'loss': 0}", "problem returns an object of type dict"),
        (OWN.format("units_per_step=0"), "units_per_step is 0; it must be a positive number"),
        (OWN.format("units_per_step='8'"), "units_per_step is '8'; it must be a positive number"),
        (OWN.format("model_flops=None"), "model_flops is None; it must be a positive number"),
        (OWN.format("model_flops=-5.0"), "model_flops is -5.0; it must be a positive number"),
        (OWN.format("model_flops=float('nan')"), "model_flops is nan; it must be a positive .*"),
    ],
)
def test_a_workload_without_a_problem_is_a_fault_once(tmp_path, body, said):
    path = tmp_path / "own.py"
    path.write_text(
        f"SIZES, DEFAULT_SIZE = {{'tiny': lambda: 0}}, 'tiny'\n\ndef problem(*_):\n    {body}\n"
    )
    found = support(
        SupportRequest(
            blocks=[{**BLOCK, "workload": "own", "mesh": mesh} for mesh in ("data=1", "data=2")],
            implementations=["jit_spmd"],
            implementation_paths=[],
            workload_paths=[str(path)],
        )
    )
    (fault,) = found["faults"]
    assert re.fullmatch(rf"workload own \(.*own\.py\): {said}", fault)
