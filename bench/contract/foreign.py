"""The child's side of a foreign arm: `python foreign.py FILE` answers a worker's requests.

docs/foreign-contract.md is the contract. This file needs only NumPy, so that it runs without jax.
"""

import gc
import importlib
import json
import os
import sys
import time
import traceback
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}
DTYPES |= {"I16": "<i2", "I8": "|i1", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1"}
now = time.perf_counter_ns  # bound before a step is loaded, which may replace the clock


def write_arrays(path: str | Path, arrays: dict[str, Any]) -> None:
    """Write named arrays as safetensors: the header's length, the header, the data."""
    names, header, at = {np.dtype(v): k for k, v in DTYPES.items()}, {}, 0
    own = {name: np.asarray(value, order="C") for name, value in arrays.items()}
    for name, array in own.items():
        span = [at, at := at + array.nbytes]
        header[name] = {"dtype": names[array.dtype], "shape": array.shape, "data_offsets": span}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # aligns the arrays, so that readers need no copies
    with Path(path).open("wb") as file:
        file.writelines([len(text).to_bytes(8, "little"), text, *(a.data for a in own.values())])


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """Read the named arrays of a safetensors file."""
    data = np.fromfile(path, np.uint8)
    start = 8 + int.from_bytes(data[:8].tobytes(), "little")
    arrays = {}
    for name, entry in json.loads(data[8:start].tobytes()).items():
        part = data[start:][slice(*entry["data_offsets"])].view(DTYPES[entry["dtype"]])
        arrays[name] = np.require(part, requirements="A").reshape(entry["shape"])
    return arrays


def run(step: Any, batch: Any, steps: int, wait_each: bool) -> dict[str, Any]:
    """Run steps and wait for the devices; return the nanoseconds and the last step's loss."""
    loss: Any = 0.0
    wait_for_loss = getattr(step, "wait_for_loss", step.wait)
    gc.disable()
    began = now()
    for _ in range(steps):
        loss = step.step(batch)
        if wait_each:
            wait_for_loss()
    ended = (steps and step.wait()) or now()
    gc.enable()
    return {"ns": ended - began, "loss": float(loss)}


def serve(load: Any, packages: list[str]) -> None:
    """Serve requests from stdin with the implementation that `load` returns; reply on stdout."""
    module: Any = None
    step: Any = None
    python = {"python": sys.version.split()[0]}
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # anything else that is printed goes to stderr
    for line in sys.stdin:
        asked, answer = json.loads(line), {}
        try:
            module = module or load()
            match asked["ask"]:
                case "why_unsupported":
                    answer["reason"] = module.why_unsupported(SimpleNamespace(**asked["problem"]))
                case "build":
                    step = batch = None  # frees an earlier step's memory
                    params = read_arrays(asked["arrays"])
                    step = module.build(SimpleNamespace(**asked["problem"], params=params))
                    answer["versions"] = {name: version(name) for name in packages} | python
                    answer |= getattr(step, "about", {})
                case "place":
                    batch = step.place([*read_arrays(asked["arrays"]).values()])
                case "run":
                    answer = run(step, batch, asked["steps"], asked["wait_each"])
                case "params":
                    write_arrays(asked["arrays"], step.params())
        except ModuleNotFoundError as error:
            answer = {"missing": error.name}
        except BaseException as error:  # noqa: BLE001 - a file may raise anything, even SystemExit
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        channel.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    sys.path[0] = str(Path(sys.argv[1]).parent)
    serve(lambda: importlib.import_module(Path(sys.argv[1]).stem), sys.argv[2:])
