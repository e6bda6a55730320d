"""Setup of a run: from options to an engine, with all checks before it starts."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.analyse.verdicts import margin_of
from bench.measure.catalogue import file_faults, find_unsupported, read_catalogue
from bench.measure.engine import Engine
from bench.measure.processes.group import Hosts
from bench.measure.run_folder import folder_faults, resumed_options
from bench.measure.version_environments import VersionBases, find_versions, with_versions
from bench.plan.base_revisions import find_bases
from bench.plan.distributed_config import DistributedConfig
from bench.plan.margins import resolved_margin, runs_here
from bench.plan.matrix import Plan, make_plan, name_of
from bench.plan.options import Options
from bench.plan.variant_files import with_variant_files
from bench.records import store
from bench.records.messages import Catalogue
from bench.records.paths import REPORTS
from bench.records.variants import is_requirement


def set_up_run(options: Options, hosts: Hosts, *, measures: bool) -> Engine:
    """Check the options of a command line, and return the engine that measures them.

    `measures` says whether the run will measure or only show its plan. Raises BadInput with
    everything that is wrong, ChildError if the devices and files of this machine cannot be listed,
    and StoreError if the run to resume cannot be read.
    """
    typed, options = options, resumed_options(options)
    if options.base_revision is not None and not options.implementations:
        given = tuple(map(name_of, options.implementation_path))
        options = replace(options, implementations=given)
    files = options.implementation_path, options.workload_path
    faults = file_faults(*files)
    options = with_variant_files(options, faults)
    if options.resume is not None:
        faults = [f"{fault}; give the current path of the run's file" for fault in faults]
    # Leaving out faulty files allows everything else to be checked too.
    catalogue = hosts.extend(read_catalogue() if faults else read_catalogue(*files))
    faults += folder_faults(options, measures=measures)
    plan = make_plan(options, catalogue, faults)
    plan, catalogue = with_versions(plan, catalogue, install=measures)
    bases = None
    if options.base_revision is not None:
        versions = partial(find_versions, install=measures)
        find = versions if is_requirement(options.base_revision) else find_bases
        bases = find(options, catalogue, plan.implementations)
        plan = bases.reduced(plan)
        if isinstance(bases, VersionBases):
            # A step is slightly slower outside the worker, so both sides run there.
            plan = replace(plan, worker={**plan.worker, "isolated": list(bases.origins)})
    elif options.resume is not None:
        plan = _resumed(plan, typed, store.load(Path(options.resume)))
    elif options.margin is None:
        margin, reason = resolved_margin(plan, catalogue, REPORTS)
        plan = replace(plan, margin=margin, margin_reason=reason)
    if measures and options.resume is None:
        plan = replace(plan, process_spread=earlier_spread(catalogue, REPORTS))
    unsupported = {} if bases and measures else find_unsupported(plan, catalogue)  # a base may run
    return Engine(plan, options, catalogue, bases, hosts, unsupported, measures=measures)


def _resumed(plan: Plan, typed: Options, run: store.Run) -> Plan:
    """Return the plan of a resumed run: the old one, extended by what is newly requested."""
    then = run.manifest["config"]
    kept: dict[str, Any] = {name: then[name] for name in ("process_spread",) if name in then}
    if typed.margin is None:
        kept |= {"margin": margin_of(run.manifest), "margin_reason": then.get("margin_reason", "")}
    if typed.budget is not None and plan.budget_s is not None:
        spent = sum(sum(row["seconds"].values()) for row in run.block_rows)
        kept["budget_s"] = plan.budget_s + spent
    if typed.launches is not None:
        # The looks' error was divided among the planned launches; further ones use the reserve.
        kept |= {"launches": int(then["launches"]), "passes": plan.launches}
    return replace(plan, **kept)


def with_config(options: Options, config: DistributedConfig) -> Options:
    """Fill in missing options from the configuration of a distributed run."""
    mesh = config.mesh()
    if not options.meshes and (config.mesh_shape or mesh.size > mesh.axis("data")):
        options = replace(options, meshes=(str(mesh),))
    if not options.precision and config.mixed_precision != "no":
        options = replace(options, precision=(config.precision,))
    return options


def earlier_spread(catalogue: Catalogue, reports: Path) -> dict[str, dict[str, float]] | None:
    """Estimate the spread of ratios between processes from runs here with several launches.

    Returns what a manifest holds (see bench.analyse.process_spread.known); None without such runs.
    """
    runs = runs_here(catalogue, reports)
    found = [run for run in runs if len({row["launch"] for row in run.block_rows}) > 1]
    if not found:
        return None
    # Imported here because they load slowly, and most machines have no such runs.
    from bench.analyse.cell_table import timed_samples  # noqa: PLC0415
    from bench.analyse.process_spread import by_devices, with_twin  # noqa: PLC0415
    from bench.analyse.sample_rounds import Rounds  # noqa: PLC0415

    blocks = (
        (row["devices"], Rounds.of(own), with_twin(foreign, row["baseline"]))
        for run in found
        for rows in [{row["block"]: row for row in run.block_rows}]
        for foreign in [{row["implementation"] for row in run.cell_rows if "foreign" in row}]
        for name, own in timed_samples(run).groupby("block")
        for row in [rows[str(name)]]
    )
    spreads = by_devices(blocks).items()
    return {key: one for count, own in spreads for key, one in own.stored(count).items()}
