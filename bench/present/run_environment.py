"""The environment of a run, as names and values, and in one line."""

from datetime import UTC, datetime
from typing import Any

from bench.analyse.cell_table import Tables
from bench.present import command_lines
from bench.records import numbers
from bench.records.rows import Manifest


def environment(manifest: Manifest, found: Tables | None = None) -> list[tuple[str, str]]:
    """Return a run's environment as names and values, with energy counters if tables are given."""
    host, git = manifest["host"], manifest["git"]
    memory = manifest["device_memory_bytes"]
    device = f"{manifest['device_count']} {numbers.TIMES} {manifest['device_kind']}"
    device += f", {numbers.bytes_(memory)} each" if memory else ""
    if manifest["platform"] == "cpu":
        device = "virtual CPU devices, as many as each mesh has"
    dirty = " with uncommitted changes" if git["dirty"] else ""
    variants = manifest["config"].get("variants", {})
    known = [
        ("Started", started(manifest)),
        ("Command", command_lines.of_run(manifest)),
        ("Preset", manifest["preset"]),
        ("Margin", manifest["config"].get("margin_reason") or None),
        ("Platform", manifest["platform"]),
        ("Device", device),
        ("Processor", host["cpu"]),
        ("Cores", _cores(host)),
        ("Host memory", numbers.bytes_(host["memory_bytes"])),
        ("Operating system", host["os"]),
        ("Load at start", None if host["load"] is None else f"{host['load']:.2f}"),
        ("Versions", ", ".join(f"{k} {v}" for k, v in manifest["versions"].items())),
        ("Environment", " ".join(f"{k}={v}" for k, v in manifest["environment"].items()) or "-"),
        *((f"Variant {name}", text) for name, text in variants.items()),
        ("Energy", (found and energy(found)) or None),
        ("Commit", f"{git['commit'] or 'unknown'}{dirty}"),
    ]
    return [(name, str(value)) for name, value in known if value is not None]


def machine(manifest: Manifest) -> str:
    """Return the environment in a few words."""
    host, versions = manifest["host"], manifest["versions"]
    chip = host["cpu"] if manifest["platform"] == "cpu" else manifest["device_kind"]
    software = f"{host['os']}, python {versions['python']}, jax {versions['jax']}"
    return f"{chip}, {_cores(host)} cores, {software}"


def question(manifest: Manifest) -> str:
    """Return the question that a run answers."""
    return f"Which train step is fastest on {hardware(manifest)}?"


def hardware(manifest: Manifest) -> str:
    """Return `2 CPU cores` or `8 x NVIDIA H200`."""
    if manifest["platform"] == "cpu":
        return numbers.count(manifest["host"]["usable_cores"], "CPU core")
    count, kind = manifest["device_count"], manifest["device_kind"]
    return kind if count == 1 else f"{count} {numbers.TIMES} {kind}"


def chips(manifest: Any) -> str:
    """Return `2 cores of AMD EPYC` or `8 x NVIDIA H200`; self-tests and faults run on CPUs."""
    if manifest.get("platform", "cpu") != "cpu":
        return hardware(manifest)
    host = manifest["host"]
    return f"{numbers.count(host['usable_cores'], 'core')} of {host['cpu']}"


def provenance(manifest: Manifest) -> str:
    """Return devices, host, commit, versions and time in one line."""
    known = dict(environment(manifest))
    made = f"cores {known['Cores']}; commit {known['Commit']}; {known['Versions']}"
    return f"{known['Device']}; {known['Processor']}; {made}; {known['Started']}"


def started(manifest: Manifest) -> str:
    """Return the start time of the run: `2026-11-21 14:10 UTC`."""
    moment = datetime.fromisoformat(manifest["started_at"])
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _cores(host: dict[str, Any]) -> str:
    usable, physical = host["usable_cores"], host["physical_cores"]
    differ = physical and physical != usable
    return f"{usable} usable, {physical} physical" if differ else f"{usable}"


def energy(found: Tables) -> str:
    """Name the energy counter, or why there is none; empty if no launch looked for counters."""
    meters = [meter for block in found.comparisons for meter in found.meters.get(block.name, ())]
    reasons = sorted({meter["reason"] for meter in meters if meter["reason"]})
    known = [meter for meter in meters if not meter["reason"]]
    parts = []
    if known:
        kinds = sorted({kind for meter in known for kind in meter["counted"]})
        longest = max(meter["period_s"] for meter in known)
        parts.append(
            f"of whole {' and '.join(f'{kind}s' for kind in kinds)}, with idle power and other "
            f"programs; the counters advance every {numbers.si(longest, 's')}, and turns that are "
            "too short for them have no figure: a larger --seconds makes them longer"
        )
    if reasons:
        parts.append(f"{'elsewhere ' if known else ''}unknown: {'; '.join(reasons)}")
    return "; ".join(parts)
