"""A cache of compiled steps' figures, in the user's cache folder.

The key of an entry hashes everything that it depends on: the cell's contents, the files that
compile and read its program, and the environment variables that affect compilation.
"""

import json
import re
from typing import cast

from bench.measure.environment import relevant_variables
from bench.plan.content_keys import Contents, digest, read_files
from bench.project.compile_children import environment
from bench.records import user_cache
from bench.records.cells import Cell
from bench.records.messages import Catalogue, CompiledAnswer
from bench.records.paths import ROOT

COMPILER = ROOT / "bench/worker/answer/compile_only.py"

_RUNNING = re.compile(
    r"JAX_NUM_CPU_DEVICES$|NPROC$|OMP_|NCCL_|SLURM_NTASKS$|JAX_COMPILATION_CACHE_"
    r"|JAX_PERSISTENT_CACHE_|JAX_LOG"
)
"""Variables that affect how programs run, the number of devices (which the cell specifies), caching
or logging, but not compilation."""
_ACCELERATORS = re.compile(r"LIBTPU_|TPU_|CUDA_VISIBLE_DEVICES$|TF_GPU_")
"""Variables that affect only platforms other than `cpu`."""


class CompileCache:
    """Cached compiler results for one platform."""

    def __init__(self, catalogue: Catalogue, platform: str) -> None:
        self._contents = Contents(catalogue)
        files = read_files(COMPILER).hashes
        self._shared = [sorted(files.items()), compiling_variables(platform)]

    def read(self, cell: Cell) -> CompiledAnswer | None:
        """Return the result for a cell; None if it is missing or its file is damaged.

        Raises:
          BadInput: one of the cell's files cannot be read.
        """
        answer = user_cache.read(self.name(cell))
        return None if answer is None else cast("CompiledAnswer", json.loads(answer))

    def write(self, cell: Cell, answer: CompiledAnswer) -> None:
        """Store a result; if the folder cannot be written, the next call compiles again."""
        user_cache.write(self.name(cell), json.dumps(answer).encode())

    def name(self, cell: Cell) -> str:
        """Return the path of a cell's result in the user's cache; raises BadInput like `read`."""
        key = digest(json.dumps([self._contents.key(cell), self._shared]).encode(), 32)
        return f"programs/{key}.json"


def compiling_variables(platform: str) -> dict[str, str]:
    """Return the environment variables that affect what a process compiles."""
    return {
        name: value
        for name, value in relevant_variables(environment(platform, devices=1)).items()
        if not _RUNNING.match(name) and (platform != "cpu" or not _ACCELERATORS.match(name))
    }
