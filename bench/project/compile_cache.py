"""Answers about compiled steps, kept in the user's cache. Imports no jax.

Each lies under a key of all that it comes from: the contents of the cell and of the files by which
it was compiled and read, and the variables that change what is compiled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from pathlib import Path
from typing import cast

from platformdirs import user_cache_path

from bench.measure.environment import relevant_variables
from bench.plan.content_keys import Contents, hashes
from bench.project.compile_children import environment
from bench.records import files
from bench.records.cells import Cell
from bench.records.messages import Catalogue, CompiledAnswer
from bench.records.paths import ROOT

COMPILER = ROOT / "bench/worker/answer/compile_only.py"
"""What answers."""

_RUNNING = re.compile(
    r"JAX_NUM_CPU_DEVICES$|NPROC$|OMP_|NCCL_|SLURM_NTASKS$|JAX_COMPILATION_CACHE_"
    r"|JAX_PERSISTENT_CACHE_|JAX_LOG"
)
"""Variables that change how programs run, on how many devices (which the cell says), and what is
remembered and logged, but not what is compiled."""
_ACCELERATORS = re.compile(r"LIBTPU_|TPU_|CUDA_VISIBLE_DEVICES$|TF_GPU_")
"""Those of other platforms than `cpu` alone."""


class Kept:
    """What has been answered.

    Args:
      catalogue: what there is. The files are read once.
      platform: whose compiler is asked.
    """

    def __init__(self, catalogue: Catalogue, platform: str) -> None:
        self._contents = Contents(catalogue)
        self._shared = _hash([sorted(hashes(COMPILER).items()), compiling_variables(platform)])

    def read(self, cell: Cell) -> CompiledAnswer | None:
        """The answer about a cell; None if there is none, or its file is damaged.

        Raises:
          BadInput: a file of the cell cannot be read.
        """
        try:
            return cast("CompiledAnswer | None", files.unsealed(self.path(cell).read_bytes()))
        except OSError:
            return None

    def keep(self, cell: Cell, answer: CompiledAnswer) -> None:
        """Keep an answer. Where nothing can be kept, the cell is compiled again."""
        with contextlib.suppress(OSError):
            path = self.path(cell)
            path.parent.mkdir(parents=True, exist_ok=True)
            files.write(path, files.sealed(json.dumps(answer)))

    def path(self, cell: Cell) -> Path:
        """Where the answer about a cell lies.

        Raises:
          BadInput: a file of the cell cannot be read.
        """
        key = _hash([self._contents.key(cell), self._shared])[:32]
        return user_cache_path("lockstep") / "programs" / f"{key}.json"


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def compiling_variables(platform: str) -> dict[str, str]:
    """Variables of a process that compiles which change what it compiles."""
    variables = relevant_variables(environment(platform, devices=1))
    return {
        name: value
        for name, value in variables.items()
        if not _RUNNING.match(name) and (platform != "cpu" or not _ACCELERATORS.match(name))
    }
