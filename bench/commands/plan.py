"""`python -m bench plan WORKLOAD-SIZE`: which mesh shape would be fastest on other hardware."""

from typing import Annotated

import typer

from bench.commands.shared_options import Files, Keyword, plain_console
from bench.measure.catalogue import file_faults, read_catalogue
from bench.plan.option_values import BadInput, choice, collected, remat_policy
from bench.plan.presets import default_batch, is_exact
from bench.plan.selection import selector
from bench.records import files
from bench.records.cells import PRECISIONS, StepOptions
from bench.records.paths import REPORTS
from bench.records.printable import closest


def plan(
    workload: str,
    hardware: str = "h100-sxm",
    chips: int = 8,
    batch: Annotated[int | None, typer.Option(min=1)] = None,
    precision: str = "bf16",
    microbatches: Annotated[int, typer.Option(min=1)] = 1,
    remat: str = "none",
    scan_layers: bool = False,
    keyword: Keyword = "",
    implementation_path: Files = None,
    workload_path: Files = None,
) -> None:
    """Rank mesh shapes and implementations of a workload by predicted step time.

    Args:
      workload (WORKLOAD-SIZE): Workload and size, as gpt2-124m.
      hardware (NAME): Chip, named by its file in bench/project/hardware/.
      chips: Number of chips.
      batch: Global batch (default: the workload's default batch for each chip).
      precision: Precision of the step.
      microbatches: Microbatches that a batch is split into.
      remat (POLICY): What the backward pass recomputes: none, dots or full, also called nothing.
      scan_layers: Run a model's equal layers in one loop over stacked parameters.
    """
    from bench.project import mesh_ranking
    from bench.project.compiled_programs import MOST_DEVICES, compiling
    from bench.project.projection import targets, without_peak

    faults = file_faults(implementation_path or (), workload_path or ())
    collected(faults, choice(PRECISIONS), precision, "--precision")
    policy = collected(faults, remat_policy, remat, "--remat") or ""
    # Every mesh is compiled.
    wanted, _ = targets(faults, hardware, str(chips), most=MOST_DEVICES)
    if len(wanted) > 1:
        faults.append("--hardware: a plan is for one kind of chip")
    batch = batch or default_batch(workload) * chips
    if batch % microbatches:
        faults.append(f"--batch: {batch} does not divide into {microbatches} microbatches")
    selected = collected(faults, selector, keyword) or selector("")
    faults = faults or [*without_peak(wanted, [precision])]
    if faults:
        raise BadInput(faults)
    (sheet,) = wanted
    catalogue = read_catalogue(implementation_path or (), workload_path or ())
    given = {*catalogue["implementation_paths"], *catalogue["workload_paths"]}
    for entry in (*catalogue["implementations"], *catalogue["workloads"]):
        if entry["error"] and entry["path"] in given:
            raise BadInput([f"{entry['path']}: {entry['error']}"])
    known = {
        f"{entry['name']}-{size}": (entry["name"], size)
        for entry in catalogue["workloads"]
        if not entry["error"]
        for size in entry["sizes"]
    }
    if (name := known.get(workload)) is None:
        raise BadInput([f"unknown workload {workload!r}; {closest(workload, known)}"])
    scanning = {entry["name"] for entry in catalogue["workloads"] if entry.get("scans")}
    if scan_layers and name[0] not in scanning:
        raise BadInput([f"--scan-layers: {name[0]} has no stack of equal layers to loop over"])
    every = catalogue["implementations"]
    usable = [entry["name"] for entry in every if not entry["error"] and is_exact(entry)]
    chosen = [implementation for implementation in usable if selected(implementation)]
    if not chosen:
        raise BadInput([f"-k: {keyword!r} selects none of {', '.join(usable)}"])
    options = StepOptions(precision, microbatches, policy, scan_layers)
    with compiling(catalogue, plain_console(stderr=True)) as read:
        ranking = mesh_ranking.rank(name, batch, options, sheet, chips, chosen, read)
    if not ranking.ranked:
        reasons = (*ranking.refused, *ranking.unsupported)
        raise BadInput([f"{workload}: no mesh can be predicted", *reasons])
    written = mesh_ranking.build(ranking, REPORTS / f"plan_{files.slug(ranking.title)}")
    mesh_ranking.show(plain_console(), ranking)
    typer.echo(f"plan: {written.as_posix()}")
