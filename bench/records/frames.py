"""Data frames of stored rows, and files of data frames.

Pandas and Arrow take a second to load, so bench.records.store imports this module only when needed.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pandas.api.types import is_object_dtype
from pyarrow import csv, parquet
from pyarrow import json as arrow_json

from bench.records import files
from bench.records.row_parts import BoardSlot, Energy
from bench.records.rows import CellRow, CompileTimes, HostSlot, InputWait, SampleRow
from bench.records.step_programs import CompilersCost, MemoryBytes, StepProgram

_NESTED: dict[type, dict[str, type]] = {
    CellRow: {
        "compile": CompileTimes,
        "memory": MemoryBytes,
        "cost": CompilersCost,
        "program": StepProgram,
    },
    SampleRow: {"host": HostSlot, "energy": Energy, "boards": BoardSlot, "input": InputWait},
}
"""Keys whose entries become columns of their own: `compile_trace_s`, `memory_total_bytes` ..."""


def of_samples(texts: Iterable[bytes]) -> pd.DataFrame:
    """Read samples from lines of JSON, with Arrow because there may be very many."""
    columns = _columns(SampleRow)
    text = b"".join(texts)
    if not text:
        return pd.DataFrame(columns=columns)
    table = arrow_json.read_json(pa.BufferReader(text))
    frame: pd.DataFrame = table.flatten().to_pandas()
    frame.columns = [str(name).replace(".", "_") for name in frame.columns]
    return frame.reindex(columns=columns)


def of_rows(rows: Iterable[dict[str, Any]], kind: type) -> pd.DataFrame:
    """Make a frame of rows; `kind` is their TypedDict in bench.records.rows."""
    nested = _NESTED.get(kind, {})
    return pd.DataFrame([_spread(row, nested) for row in rows], columns=_columns(kind))


def write(frame: pd.DataFrame, directory: Path, name: str) -> None:
    """Write `<name>.csv` and `<name>.parquet`; objects in cells become JSON text."""
    flat = frame.copy()
    for column in filter(lambda name: is_object_dtype(flat[name]), flat.columns):
        present = flat[column].dropna()
        if present.map(lambda value: isinstance(value, dict | list | np.ndarray)).any():
            flat[column] = flat[column].map(_json)
    table = pa.Table.from_pandas(flat, preserve_index=False)
    with files.replacing(directory / f"{name}.csv") as draft:
        csv.write_csv(table, draft, csv.WriteOptions(quoting_style="needed"))
    with files.replacing(directory / f"{name}.parquet") as draft:
        parquet.write_table(table, draft)


def _json(value: Any) -> str | None:
    if isinstance(value, np.ndarray):  # Arrow reads a stored list as an array
        value = value.tolist()
    return json.dumps(value) if isinstance(value, dict | list) else None


def _columns(kind: type) -> list[str]:
    nested = _NESTED.get(kind, {})
    columns = []
    for key in kind.__annotations__:  # inherited ones first
        parts = nested[key].__annotations__ if key in nested else ()
        columns += [f"{key}_{name}" for name in parts] or [key]
    return columns


def _spread(row: dict[str, Any], nested: Iterable[str]) -> dict[str, Any]:
    flat = dict(row)
    for key in nested:
        for name, value in (flat.pop(key, None) or {}).items():
            flat[f"{key}_{name}"] = value
    return flat
