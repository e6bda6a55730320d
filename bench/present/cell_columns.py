"""The columns of a cell: one description for all tables, in the report and on its page."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from bench.analyse.cell_table import Tables
from bench.present import command_lines, trace_tables
from bench.present.bounds import describe_verdict, percentage
from bench.present.columns import Column, between, formatted, missing, where_known
from bench.present.trace_tables import Reason
from bench.records import numbers
from bench.records.printable import shortened
from bench.records.rows import Manifest

Row = dict[str, Any]
"""A row of `Tables.cells`, with what `rows` adds."""

_COMPILING = ("trace_s", "lower_s", "compile_s")


def rows(found: Tables, manifest: Manifest) -> dict[str, Row]:
    """Return every cell by name: its row of `found.cells`, its cause, and facts of its block."""
    cells = {cell["cell"]: cell | {"cause": Reason("")} for cell in found.rows}
    blocks = {}
    for block in found.comparisons:
        blocks[block.name] = {
            "subject": block.subject,
            "place": block.place,
            "command": partial(command_lines.of_cells, manifest),
            "single_steps": block.span_steps == (1,),
        }
        for name, reason in trace_tables.reasons(block, found.traces).items():
            cells[f"{block.name}/{name}"]["cause"] = reason
    return {name: cell | blocks[cell["block"]] for name, cell in cells.items()}


def is_baseline(cell: Row) -> bool:
    """Return whether the cell is its block's baseline, and has a time."""
    return bool(cell["status"] == "ok" and cell["implementation"] == cell["baseline"])


def _standing(cell: Row) -> str:
    """Return which of `baseline`, `approximate` and `measured separately` apply."""
    known = {
        "baseline": is_baseline(cell),
        "approximate": cell["approximate"],
        "measured separately": not cell["interleaved"],
    }
    return ", ".join(word for word, applies in known.items() if applies)


def _rounded_down(share: float) -> float:
    """Round a lower bound down to the digits that `excess` shows."""
    scale = 10.0 ** (2 - np.floor(np.log10(1 + share)) + (share < 1) + (100 * share < 1))
    return float(np.floor(scale * share) / scale)


def _step(cell: Row) -> str:
    """Return the quartiles; for a span of a single step, note that it is a latency."""
    spread = between(cell["step_q1_s"], cell["step_q3_s"], "s")
    return f"{spread}, single steps" if spread and cell["single_steps"] else spread


def _ratio_interval(cell: Row) -> str:
    if is_baseline(cell) or cell["status"] != "ok":
        return ""
    if missing(cell["ratio"]):
        return "the baseline has no time"
    return between(cell["ratio_low"], cell["ratio_high"], "ratio") or "no interval"


def _compile(cell: Row) -> str:
    """Return `0.12 + 0.08 + 1.30 s in run r1`."""
    parts = [cell[name] for name in _COMPILING]
    if any(map(missing, parts)):
        return ""
    if is_other_framework(cell["foreign"]):
        return "first step minus the fastest"
    each = f"{' + '.join(f'{part:.2f}' for part in parts)}{numbers.NARROW}s"
    where = f" in run {cell['compiled_in']}" if cell["compiled_in"] else ""
    return f"{each}{' cached' if cell['cache_hits'] > 0 else ''}{where}"


def is_other_framework(foreign: object) -> bool:
    """Return whether `foreign` describes processes without jax; cells in the worker have none."""
    return isinstance(foreign, dict) and "jax" not in foreign["versions"]


def framework(foreign: Mapping[str, Any]) -> str:
    """Return `torch 2.13.0, python 3.11.7; 2 processes of 1 thread`, and any isolation."""
    versions = ", ".join(f"{name} {version}" for name, version in foreign["versions"].items())
    processes = numbers.count(foreign["processes"], "process", "processes")
    apart = "isolated; " if foreign.get("isolated") else ""
    return f"{apart}{versions}; {processes} of {numbers.count(foreign['threads'], 'thread')}"


def _idle(cell: Row) -> str:
    """Return the measured idle share of a pipelined step, beside its schedule's."""
    if missing(cell["idle"]):
        return ""
    ends = between(cell["idle_low"], cell["idle_high"], "percent")
    return f"{numbers.percent(cell['idle'])}{f' ({ends})' if ends else ''} measured"


def collectives(cell: Row) -> str:
    """Return `2 all-reduces over data, 1 all-gather over fsdp`; empty if unknown or without any."""
    if cell["devices"] == 1 or cell["communication"] is None:
        return ""
    texts = []
    for row in cell["communication"]:
        others = [dtype for dtype in row["dtypes"] if dtype != "f32"]
        dtypes = f" ({', '.join(others)})" if others else ""
        axes = " and ".join(row["axes"])
        where = f"over {axes}" if axes else f"among {row['members']} devices"
        texts.append(f"{numbers.count(row['count'], row['kind'])}{dtypes} {where}")
    return ", ".join(texts) or "no collective"


def _error(value: str, error: str, unit: str) -> Callable[[Row], str]:
    """Return a formatter of the interval of a value with this error."""

    def text(cell: Row) -> str:
        middle, half = cell[value], cell[error]
        return "" if missing(middle) else between(max(middle - half, 0.0), middle + half, unit)

    return text


def _over_model(key: str) -> Callable[[Row], float]:
    return lambda cell: float(cell[key] / cell["model_flops"])


def _again(cell: Row) -> str:
    """Return the command that measures the cell again, beside the baseline that it refers to."""
    arms = [cell["baseline"] or cell["implementation"], cell["implementation"]]
    names = (f"{cell['block']}/{arm.partition('@')[0]}" for arm in arms)
    return str(cell["command"](dict.fromkeys(names)))


IMPLEMENTATION = Column("implementation", "Implementation", filter=True)
PLACE = Column("place", "Mesh, batch", filter=True, only="text")

COLUMNS = (
    replace(IMPLEMENTATION, detail=_standing),
    Column("subject", "Workload", filter=True, long=True, only="page"),
    Column("mesh", "Mesh", filter=True, only="page"),
    Column("batch", "Batch", "global", "count", filter=True, only="page"),
    Column("status", "Status", "", "status", filter=True, only="page",
           detail=lambda cell: shortened(cell["reason"])),
    Column("verdict", "Verdict", filter=True,
           detail=lambda c: describe_verdict(c) if c["verdict"] else "",
           value=lambda cell: "baseline" if is_baseline(cell) else cell["verdict"]),
    Column("behind_low", "Behind the fastest", "at least", "excess",
           value=lambda cell: _rounded_down(cell["behind_low"] - 1),
           detail=where_known("behind_high", lambda b: f"at most {percentage(b)}" * (b > 1))),
    Column("ratio", "To baseline", "ratio, 95 % interval", "ratio", detail=_ratio_interval),
    Column("verdict_interval", "Interval of the verdict", "stricter than 95 %", only="cell",
           value=lambda cell: between(cell["verdict_low"], cell["verdict_high"], "ratio") or None),
    Column("step_s", "Step time", "median, quartiles", "s", detail=_step),
    Column("latency_s", "Latency", "median, quartiles", "s", span=("latency_q1_s", "latency_q3_s")),
    Column("units_per_s", "Throughput", "per second", "si",
           detail=lambda cell: "" if missing(cell["units_per_s"]) else cell["unit"]),
    Column("cause", "Why", "main cause, as traced", long=True, optional=True,
           value=lambda cell: cell["cause"].main or None,
           detail=lambda c: formatted(c["cause"].seconds, "+s") if c["cause"].main else ""),
    Column("approximate", "Approximate", "how the step differs", long=True, optional=True,
           value=lambda cell: cell["approximate"] or None),
    Column("foreign", "Framework", "in processes of its own", long=True, optional=True,
           value=lambda cell: cell["foreign"] and framework(cell["foreign"])),
    Column("compile_total_s", "Compile", "trace + lower + compile", "s",
           value=lambda cell: sum(cell[name] for name in _COMPILING), detail=_compile),
    Column("memory_bytes", "Memory", "per device, as planned", "bytes",
           detail=where_known("high_water_bytes", lambda b: f"{numbers.bytes_(b)} measured")),
    Column("argument_bytes", "Arguments", "per device, as planned", "bytes", only="cell"),
    Column("output_bytes", "Outputs", "per device, as planned", "bytes", only="cell"),
    Column("alias_bytes", "Aliased outputs", "per device, as planned", "bytes", only="cell"),
    Column("temporary_bytes", "Temporaries", "per device, as planned", "bytes", only="cell"),
    Column("wire_bytes", "Sends", "per device and step", "bytes", long=True, optional=True,
           value=lambda cell: cell["wire_bytes"] if cell["devices"] > 1 else None,
           detail=collectives),
    Column("bubble", "Bubble", "by schedule", "percent", lambda cell: cell["bubble"] or None,
           detail=_idle, optional=True),
    Column("achieved_flops", "Achieved", "model FLOP/s", "FLOP/s"),
    Column("model_flops", "Model FLOPs", "per step", "FLOP", only="cell"),
    Column("accessed_bytes", "Accessed", "per step, compiled", "bytes", only="cell"),
    Column("traced_over_model", "Traced FLOPs", "over the model's", "significant",
           _over_model("traced_flops"), only="page"),
    Column("compiled_over_model", "Compiled FLOPs", "over the model's", "significant",
           _over_model("compiled_flops"), only="page"),
    Column("roof", "Of the roof", "measured", "percent", only="page"),
    Column("mfu", "MFU", "", "percent", optional=True),
    Column("joules_per_step", "Energy", "per step, 95 % interval", "J", optional=True,
           detail=_error("joules_per_step", "joules_error", "J")),
    Column("joules_per_unit", "Energy", "per sample or token", "J", optional=True),
    Column("watts", "Power", "mean", "W", optional=True),
    Column("energy_ratio", "Energy to baseline", "per step, 95 % interval", "ratio", optional=True,
           detail=_error("energy_ratio", "energy_ratio_error", "ratio")),
    Column("fingerprint", "Program", "equal for equal programs", only="cell",
           detail=where_known("host_calls",
                              lambda n: f"the host calls {numbers.count(int(n), 'function')}")),
    Column("proof_error", "Proof", "largest error, of the allowed", "percent", only="cell"),
    Column("again", "Measure again", value=_again, only="cell"),
)  # fmt: skip
"""A cell's columns, in the order of the tables."""
