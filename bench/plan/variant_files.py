"""Files of variants: Lockstep's `--variant @gpu`, `@cpu` and `@tpu`, or a user's `@FILE.toml`.

A file has a line `NAME = "VARIABLE=VALUE ..."` for each variant. All of them race, as if each were
given as `--variant "@NAME=VARIABLE=VALUE ..."`.
"""

import tomllib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from bench.plan.option_values import collected
from bench.plan.options import Options
from bench.records.variants import Variant, required_file

SHIPPED = {path.stem: path for path in sorted((Path(__file__).parent / "flags").glob("*.toml"))}
"""Files of flags, by the platform that they are for."""


def read_variants(text: str) -> list[str]:
    """Return a value of `--variant`, or if it names a file, a value for each of its variants.

    Raises ValueError if the file cannot be read, or if an entry is not text.
    """
    name = text.removeprefix("@")
    if name == text or ("=" in name and not name.endswith(".toml")):
        return [text]
    path = SHIPPED.get(name, Path(name))
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        shipped = ", ".join(f"@{platform}" for platform in SHIPPED)
        what = f"there is no file {name or repr(name)}; shipped ones are {shipped}"
        raise ValueError(what) from None
    except ValueError as error:  # not UTF-8, or not TOML
        raise ValueError(f"{path}: {error}") from error
    wrong = [key for key, change in entries.items() if not isinstance(change, str)]
    if wrong or not entries:
        which = f"{wrong[0]!r} is not text" if wrong else "it names no variant"
        raise ValueError(f'{path}: {which}; write lines such as NAME = "XLA_FLAGS=--FLAG=VALUE"')
    return [f"@{key}={change}" for key, change in entries.items()]


def with_variant_files(options: Options, faults: list[str]) -> Options:
    """Return the options with the variants of files in place of the files; append all faults."""
    texts = (collected(faults, read_variants, text, "--variant") for text in options.variant)
    return replace(options, variant=tuple(one for found in texts for one in found or ()))


def chosen(
    variants: Iterable[Variant], platform: str, *, gate: bool
) -> tuple[list[Variant], list[str]]:
    """Return the variants that a run measures, and everything that is wrong with them.

    A TPU belongs to one process, so that no variant races there: each has workers of its own.
    `gate` says whether the run compares revisions.
    """
    found: dict[str, Variant] = {}
    faults = []
    for variant in variants:
        if variant.name in found:
            faults.append(f"the name {variant.name!r} is used twice")
        if gate and (variant.requirement or variant.raced):
            faults.append("a gate already has a second version: its base")
        if (file := required_file(variant.requirement)) and not file.is_file():
            faults.append(f"there is no file {file}")
        found[variant.name] = replace(variant, raced=variant.raced and platform != "tpu")
    others = {name: one.platforms - {platform} for name, one in found.items()}
    if names := [name for name in others if others[name]]:
        faults.append(
            f"{', '.join(names)}: flags of {', '.join(sorted(set().union(*others.values())))} do "
            f"nothing on {platform}; use those of {platform}, as --variant @{platform} does, or of "
            "no platform"
        )
    return [*found.values()], faults
