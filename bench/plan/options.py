"""The options of a run, each with a reader of its value, and the pages with their help.

Values remain text as typed, which a resumed run reads again. bench.plan.matrix parses them, so that
all faults of a command line are reported in one message.
"""

import tomllib
from argparse import SUPPRESS, ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Self

from bench.plan.option_values import BadInput, choice, positive, remat_policy, share, whole
from bench.plan.presets import PRESETS
from bench.records.arms import CHECKPOINT_MODES, INPUT_WAYS
from bench.records.cells import PRECISIONS
from bench.records.mesh import MeshShape
from bench.records.paths import PROGRAM
from bench.records.variants import Variant

_WORDS = {
    "preset": PRESETS[0],
    "presets": ", ".join(PRESETS),
    "precisions": ", ".join(PRECISIONS),
    "inputs": "; ".join(map(": ".join, INPUT_WAYS.items())),
    "checkpoints": "; ".join(map(": ".join, CHECKPOINT_MODES.items())),
}
_TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _option(
    read: Callable[[str], object] = str, action: str = "store", *, gate: bool | None = False
) -> Any:
    """Declare an option, whose help is in options.toml.

    `read` parses a value, or raises ValueError. `action` is one of argparse: `store`, `store_true`,
    `append` (repeatable) or `extend` (several values at once). `gate` says whether only
    `regress` has the option; None if pytest declares it.
    """
    default = {"store": None, "store_true": False}.get(action, ())
    return field(default=default, metadata={"read": read, "action": action, "gate": gate})


@dataclass(frozen=True)
class Options:
    """The options as typed. None and empty tuples mean the preset's value."""

    preset: str | None = _option(choice(PRESETS))
    workloads: tuple[str, ...] = _option(action="extend")
    implementations: tuple[str, ...] = _option(action="extend")
    meshes: tuple[str, ...] = _option(MeshShape.parse, "extend")
    batch_sizes: tuple[str, ...] = _option(whole, "extend")
    precision: tuple[str, ...] = _option(choice(PRECISIONS), "extend")
    microbatches: tuple[str, ...] = _option(whole, "extend")
    remat: tuple[str, ...] = _option(remat_policy, "extend")
    scan_layers: tuple[str, ...] = _option(choice(("no", "yes")), "extend")
    clip_norm: str | None = _option(positive("number"))
    variant: tuple[str, ...] = _option(Variant.parse, "append")
    devices: str | None = _option(whole)
    processes: tuple[str, ...] = _option(whole, "extend")
    distributed: str | None = _option()
    scaling: str | None = _option(choice(("strong", "weak", "both")))
    launches: str | None = _option(partial(whole, most=10_000))
    rounds: str | None = _option(whole)
    seconds: str | None = _option(positive("number of seconds"))
    margin: str | None = _option(share)
    budget: str | None = _option(positive("number of seconds"))
    target_ci: str | None = _option(share)
    baseline: str | None = _option()
    input: tuple[str, ...] = _option(choice(tuple(INPUT_WAYS)), "extend")
    ablate: bool = _option(action="store_true")
    checkpoint: tuple[str, ...] = _option(choice(tuple(CHECKPOINT_MODES)), "extend")
    checkpoint_dir: str | None = _option()
    profile: bool = _option(action="store_true")
    profile_steps: str | None = _option(whole)
    train_steps: str | None = _option(whole)
    cold: bool = _option(action="store_true")
    timeout: str | None = _option(positive("number of seconds"))
    silence: str | None = _option(positive("number of seconds"))
    isolate: tuple[str, ...] = _option(action="extend")
    implementation_path: tuple[str, ...] = _option(action="append")
    workload_path: tuple[str, ...] = _option(action="append")
    run: str | None = _option()
    resume: str | None = _option()
    dry_run: bool = _option(action="store_true")
    k: str | None = _option(gate=None)
    base_revision: str | None = _option(gate=True)
    allow_undecided: str | None = _option(partial(whole, least=0), gate=True)

    def to_json(self) -> dict[str, Any]:
        """Return the options for the manifest, without those that are left to the preset."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value not in (None, (), False) and name not in ("run", "resume")
        }

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Self:
        """Read the output of `to_json`."""
        lists = {name: tuple(value) for name, value in stored.items() if isinstance(value, list)}
        return cls(**{**stored, **lists})


READERS = {one.name: one.metadata["read"] for one in fields(Options)}
"""Readers of the values by option name; each raises ValueError."""


def flag(name: str) -> str:
    """Return an option as it is typed: `--batch-sizes`."""
    return f"{'--' if len(name) > 1 else '-'}{name.replace('_', '-')}"


def add_options(
    add: Callable[..., Any], *, gate: bool = False, without: Collection[str] = ()
) -> None:
    """Declare the options of a run, or, if `gate`, only those of a regress run.

    `add` has the signature of argparse's add_argument; `without` names options to leave out.
    """
    for option in fields(Options):
        if option.metadata["gate"] != gate or option.name in without:
            continue
        texts = {name: text.format(**_WORDS) for name, text in _TEXTS[option.name].items()}
        action = option.metadata["action"]
        settings: dict[str, Any] = {"help": SUPPRESS, **texts, "action": action}
        more: dict[str, Any] = {"append": {"default": []}, "extend": {"default": [], "nargs": "+"}}
        settings |= more.get(action, {})
        # pytest and its plugins have destinations of their own: a prefix keeps these apart.
        add(flag(option.name), dest=f"lockstep_{option.name}", **settings)


def read_options(namespace: Namespace) -> Options:
    """Collect the options from parsed arguments; quoted strings with several values are split."""
    values: dict[str, Any] = {}
    for option in fields(Options):
        kept = "keyword" if option.name == "k" else f"lockstep_{option.name}"
        value: Any = getattr(namespace, kept, option.default)
        if option.metadata["action"] == "extend":
            given, value = value, [word for text in value for word in text.split()]
            if given and not value:
                raise BadInput([f"{flag(option.name)}: a value is missing"])
        values[option.name] = tuple(value) if isinstance(value, list) else value
    values["k"] = values["k"] or None  # pytest's default is an empty text
    return Options(**values)


def command_parser(
    command: str, without: Collection[str] = (), kind: type[ArgumentParser] = ArgumentParser
) -> ArgumentParser:
    """Return a parser of the options of a run and those of a command in help_pages.toml."""
    text = Path(__file__).with_name("help_pages.toml").read_text(encoding="utf-8")
    page = tomllib.loads(text.replace("python -m bench", PROGRAM))[command]
    parser = kind(
        prog=f"{PROGRAM} {command}",
        description=page["text"],
        epilog=f"{page['after']}exit codes:\n{page['exit_codes']}",
        formatter_class=RawDescriptionHelpFormatter,
    )
    for name, settings in page.get("arguments", {}).items():
        parser.add_argument(name, **settings)
    add_options(parser.add_argument, without=without)
    return parser


def help_page(command: str) -> str:
    """Return the page of `python -m bench COMMAND --help` for `run`, `regress` or `upgrade`."""
    gate = command != "run"
    parser = command_parser(command, ["resume"] if gate else [])
    if gate:
        add_options(parser.add_argument, gate=True)
    return parser.format_help()
