"""Presets: how much a run measures where its options do not say."""

from __future__ import annotations

from dataclasses import dataclass, replace

PRESETS = ("quick", "standard", "full")

CPU_DEVICES = 8
"""Largest default mesh without an accelerator, where devices are virtual."""

DEFAULT_BATCHES = {"linear-base": 1024, "mlp-base": 256, "gpt2-nano": 16, "gpt2-124m": 8}
"""Global batch at strong scaling, by workload and size: large enough that a step on one CPU core
takes milliseconds, small enough that `quick` stays quick."""

FALLBACK_BATCH = 64

REGRESS = "regress"
"""The preset of a regress run where none is asked for."""

PROFILE_STEPS = 5

SILENCE_S = 600.0
"""A worker that reports nothing for this long is assumed to hang. It does not report while it
compiles."""


@dataclass(frozen=True)
class Preset:
    """How much to measure where the options do not say."""

    workloads: tuple[str, ...]
    """Empty: every workload at its default size."""
    batch_factors: tuple[int, ...]
    """Batches, as multiples of the workload's default batch."""
    precisions: tuple[str, ...]
    scaling: str
    launches: int
    rounds: int
    seconds: float
    past_cores: bool
    """Whether default meshes of virtual devices have more of them than there are cores."""


PRESET_TABLE = {
    "quick": Preset(
        workloads=("linear", "mlp"),
        batch_factors=(1,),
        precisions=("fp32",),
        scaling="strong",
        launches=1,
        rounds=32,
        seconds=8.0,
        past_cores=False,
    ),
    "standard": Preset(
        workloads=("linear", "mlp", "gpt2-nano"),
        batch_factors=(1, 4),
        precisions=("fp32",),
        scaling="both",
        launches=3,
        rounds=64,
        seconds=8.0,
        past_cores=True,
    ),
    "full": Preset(
        workloads=(),
        batch_factors=(1, 4),
        # Not fp16: without a scaled loss, not every batch has gradients that it can hold.
        precisions=("fp32", "bf16"),
        scaling="both",
        launches=5,
        rounds=128,
        seconds=30.0,
        past_cores=True,
    ),
}


# More rounds than quick: a gate that is left undecided is of no use, and looks end it early.
PRESET_TABLE[REGRESS] = replace(PRESET_TABLE["quick"], launches=3, rounds=64, seconds=10.0)
