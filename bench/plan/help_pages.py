"""Help pages of the commands that take the options of a run; their texts are in help_pages.toml."""

import argparse
import tomllib
from pathlib import Path

from bench.plan.options import add_options
from bench.records.paths import PROGRAM


def help_page(command: str) -> str:
    """Return the page of `python -m bench COMMAND --help` for `run`, `regress` or `upgrade`."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    page = tomllib.loads(text.replace("python -m bench", PROGRAM))[command]
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} {command}",
        description=page["text"],
        epilog=f"{page['after']}exit codes:\n{page['exit_codes']}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, settings in page.get("arguments", {}).items():
        parser.add_argument(name, **settings)
    gate = command != "run"
    add_options(parser.add_argument, without=["resume"] if gate else [])
    if gate:
        add_options(parser.add_argument, gate=True)
    return parser.format_help()
