"""`python -m bench publish RUN`: make a folder of a run for committing to git."""

import typer

from bench.measure.run_folder import find_run
from bench.records import store
from bench.records.paths import REPORTS


def publish(run: str) -> None:
    """Make a folder of a run for committing to git, and add it to the gallery.

    The folder is named after the workload, the hardware and the date. It has neither Parquet files
    nor traces and at most 20 MiB. A run whose files contain a path, user name or host name of this
    machine is refused.
    """
    from bench.present.gallery import index, published_run

    stored = store.load(find_run(run))
    folder = published_run.publish(stored, REPORTS)
    index.build(REPORTS, also=[folder.name])
    pages = [(REPORTS / name).as_posix() for name in (index.MARKDOWN, index.PAGE)]
    typer.echo(f"published: {folder.as_posix()}")
    typer.echo(f"to commit: git add --force {folder.as_posix()} {' '.join(pages)}")
