"""`python -m bench gallery` and `publish`: the index of published runs, and one run more."""

from __future__ import annotations

from typing import Annotated

import typer

from bench.commands.exits import refuse
from bench.measure.run_folder import find_run
from bench.plan.matrix import BadInput
from bench.records import store
from bench.records.paths import REPORTS


def gallery() -> None:
    """Index the published runs: write reports/README.md and reports/index.html.

    Published is what git knows in reports/; outside of a checkout, every folder there.
    """
    # Other commands need not wait for these.
    from bench.present.gallery import index as page  # noqa: PLC0415
    from bench.present.gallery.entries import EntryError  # noqa: PLC0415

    if not REPORTS.is_dir():
        refuse(f"there is no folder {REPORTS}/ here")
    try:
        index, entries = page.build(REPORTS)
    except EntryError as error:
        refuse(str(error))
    for entry in entries:
        typer.echo(f"{entry.folder}: {entry.headline}")
    typer.echo(f"gallery: {index.as_posix()}")


def publish(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Name or folder of a stored run.")],
) -> None:
    """Make a folder of a run that can be committed, and add it to the gallery.

    It is named by workload, hardware and date, has no Parquet and no traces, may have 20 MiB, and
    is refused if it tells a path, user or host of this machine.
    """
    from bench.commands import publish  # noqa: PLC0415 (as above)
    from bench.present.gallery import index as page  # noqa: PLC0415
    from bench.present.gallery.entries import EntryError  # noqa: PLC0415

    try:
        folder = publish.publish(store.load(find_run(run)), REPORTS)
        page.build(REPORTS, also=[folder.name])
    except BadInput as error:
        refuse("\n".join(error.faults))
    except (store.StoreError, EntryError) as error:
        refuse(str(error))
    index = [(REPORTS / name).as_posix() for name in (page.MARKDOWN, page.PAGE)]
    typer.echo(f"published: {folder.as_posix()}")
    typer.echo(f"to commit: git add --force {folder.as_posix()} {' '.join(index)}")
