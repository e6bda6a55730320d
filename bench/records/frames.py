"""The data frame of samples, and files of data frames.

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
from bench.records.row_parts import BoardState, Energy
from bench.records.rows import HostSlot, InputWait, SampleRow

_NESTED = {"host": HostSlot, "energy": Energy, "boards": BoardState, "input": InputWait}
"""Keys of a sample whose entries become columns of their own, such as `host_steal_s`."""


def samples_frame(texts: Iterable[bytes]) -> pd.DataFrame:
    """Read samples from lines of JSON, with Arrow because there may be very many."""
    columns = []
    for key in SampleRow.__annotations__:  # inherited ones first
        parts = _NESTED[key].__annotations__ if key in _NESTED else ()
        columns += [f"{key}_{name}" for name in parts] or [key]
    text = b"".join(texts)
    if not text:
        return pd.DataFrame(columns=columns)
    table = arrow_json.read_json(pa.BufferReader(text))
    frame: pd.DataFrame = table.flatten().to_pandas()
    frame.columns = [str(name).replace(".", "_") for name in frame.columns]
    return frame.reindex(columns=columns)


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
