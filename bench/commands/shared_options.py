"""Options that several commands have, as typer declares them."""

from __future__ import annotations

from typing import Annotated

import typer

Files = Annotated[list[str] | None, typer.Option(metavar="FILE", help="As of `run`; repeatable.")]
"""Implementations or workloads that lie elsewhere: `--implementation-path`, `--workload-path`."""
