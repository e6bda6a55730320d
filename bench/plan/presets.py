"""Presets: the amount of measuring where a run's options do not specify it."""

from __future__ import annotations

from dataclasses import dataclass, replace

PRESETS = ("quick", "standard", "full", "strategies", "accelerator")

CPU_DEVICES = 8
"""Largest default mesh without an accelerator, where devices are virtual."""

DEFAULT_BATCHES = {
    "linear-base": 1024, "mlp-base": 256, "gpt2-nano": 16, "gpt2-124m": 8, "gpt2-nano-512": 8,
    "gpt2-nano-2048": 2, "gpt2-deep": 16, "moe-nano": 16, "gpt2_muon-nano": 16,
    "gpt2_muon-124m": 8,
}  # fmt: skip
"""Global batch at strong scaling, by workload and size: large enough that a step on one CPU core
takes milliseconds, small enough that `quick` stays quick."""

REGRESS = "regress"
"""The default preset of a regress run."""

PROFILE_STEPS = 5

SILENCE_S = 600.0
"""A worker that reports nothing for this long is assumed to hang. It does not report while it
compiles."""


@dataclass(frozen=True)
class Preset:
    """Defaults for everything that the options of a run leave open."""

    workloads: tuple[str, ...]
    """If empty, every workload at its default size."""
    batch_factors: tuple[int, ...]
    """Batches, as multiples of the workload's default batch."""
    precisions: tuple[str, ...]
    scaling: str
    launches: int
    rounds: int
    seconds: float
    past_cores: bool
    """Whether default meshes of virtual devices may have more devices than there are cores."""
    meshes: tuple[str, ...] = ()
    """Those that fit the devices are measured; if empty, `data` alone, in powers of two."""
    only_ends: bool = False
    """Whether default meshes are only one device and all devices, without those in between."""
    microbatches: int = 1
    parts: tuple[Preset, ...] = ()
    """Presets whose blocks make up this preset."""

    def default_sizes(self, limit: int) -> list[int]:
        """Return the device counts of the default meshes, up to `limit`, without repetition."""
        powers = [2**power for power in range(1 if self.only_ends else limit.bit_length())]
        return list(dict.fromkeys([*powers, limit]))


_QUICK = Preset(
    workloads=("linear", "mlp"), batch_factors=(1,), precisions=("fp32",), scaling="strong",
    launches=1, rounds=48, seconds=8.0, past_cores=False,
)  # fmt: skip
_STANDARD = replace(
    _QUICK, workloads=("linear", "mlp", "gpt2-nano"), batch_factors=(1, 4), scaling="both",
    launches=3, rounds=64, past_cores=True,
)  # fmt: skip
PRESET_TABLE = {
    "quick": _QUICK,
    "standard": _STANDARD,
    # Not fp16: without loss scaling, the gradients of some batches overflow or underflow.
    "full": replace(
        _STANDARD, workloads=(), precisions=("fp32", "bf16"), launches=5, rounds=128, seconds=30.0
    ),
    # A small block for each kind of strategy, on a mesh that suits it.
    "strategies": replace(
        _QUICK,
        parts=tuple(
            replace(_QUICK, workloads=(workload,), meshes=meshes, microbatches=count)
            for workload, meshes, count in (
                ("mlp", ("data=2",), 1),
                ("gpt2-nano", ("data=1,fsdp=2,model=2",), 1),
                ("gpt2-nano-512", ("data=1,context=2",), 1),
                ("gpt2-deep", ("data=1,pipe=2",), 8),
                ("moe", ("data=1,expert=2",), 1),
            )
        ),
    ),
    # A model that fills an accelerator, from a small batch to one that hides most latency.
    "accelerator": replace(
        _QUICK,
        workloads=("gpt2-124m",),
        batch_factors=(1, 4, 8),
        precisions=("bf16",),
        seconds=20.0,
        only_ends=True,
    ),
    # More rounds than quick: an undecided gate is useless, and looks can end it early.
    REGRESS: replace(_QUICK, launches=3, rounds=64, seconds=10.0),
}


def default_batch(workload: str) -> int:
    """Return the global batch at strong scaling of a workload and size, such as `mlp-base`."""
    return DEFAULT_BATCHES.get(workload, 64)
