"""What is proved in float64 fits where the timed step fits."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bench.records.cells import Block, StepOptions
from bench.records.mesh import MeshShape
from bench.worker.block import proof_block


@pytest.mark.parametrize(("platform", "remat"), [("cpu", ""), ("gpu", "full"), ("tpu", "full")])
def test_accelerators_recompute_activations_in_the_proof_alone(platform, remat):
    options = StepOptions("bf16", microbatches=2, clip_norm=1.0)
    block = Block("gpt2", "124m", MeshShape.parse("data=1"), 8, options)
    mesh = SimpleNamespace(devices=np.array([SimpleNamespace(platform=platform)]))
    assert proof_block(block, mesh).options == replace(options, remat=remat)
    assert block.options == options, "what is timed stays"
