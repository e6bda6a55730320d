"""A small problem on two devices, and its gate, for all tests of the worker that need no other."""

from __future__ import annotations

import math
from functools import partial

import jax
import pytest

from bench.contract.workloads import mlp
from bench.records.mesh import MeshShape
from bench.worker.problems import drawn, make_mesh
from bench.worker.prove.gate import Gate

on_the_host = partial(drawn, devices=jax.devices()[:1], memory=math.inf)
"""Draws a problem's parameters once, as a worker does, and not for every step that is built."""


@pytest.fixture(scope="module")
def mesh():
    return make_mesh(MeshShape.parse("data=2"))


@pytest.fixture(scope="module")
def problem():
    return on_the_host(mlp.problem(mlp.SIZES["tiny"](), 8, "fp32"))


@pytest.fixture(scope="module")
def gate(mesh, problem, programs):
    with jax.enable_x64(True):
        exact = mlp.problem(mlp.SIZES["tiny"](), 8, "fp64")
    return Gate(problem, exact, mesh, 2, "fp32", programs)
