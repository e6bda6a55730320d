"""Setup of a run: from options to an engine, with all checks before it starts."""

from __future__ import annotations

import sys
from dataclasses import replace

from bench.measure.catalogue import file_faults, read_catalogue
from bench.measure.engine import Engine
from bench.measure.hosts import Hosts
from bench.measure.run_folder import resumed_options
from bench.plan.base_revisions import find_bases, gated
from bench.plan.distributed_config import DistributedConfig
from bench.plan.matrix import make_plan
from bench.plan.options import Options


def set_up_run(options: Options, hosts: Hosts, *, measures: bool) -> Engine:
    """Check the options, and return the engine that measures them.

    Args:
      options: the options of the command line.
      hosts: the hosts of the run.
      measures: whether the run will measure, not just show its plan.

    Raises:
      BadInput: lists everything that is wrong.
      ChildError: the devices and files of this machine cannot be listed.
      StoreError: the run to resume cannot be read.
    """
    options = resumed_options(options)
    if options.base_revision is not None:
        options = gated(options)
    files = options.implementation_path, options.workload_path
    faults = file_faults(*files)
    if options.resume is not None:
        faults = [f"{fault}; give the current path of the run's file" for fault in faults]
    # Without the faulty files, the faults of everything else are found as well.
    catalogue = hosts.extend(read_catalogue() if faults else read_catalogue(*files))
    plan = make_plan(options, catalogue, faults)
    bases = None
    if options.base_revision is not None:
        bases = find_bases(options, catalogue, plan.implementations)
        plan = bases.reduced(plan)
    return Engine(plan, options, catalogue, sys.argv[1:], bases, hosts, measures=measures)


def with_config(options: Options, config: DistributedConfig) -> Options:
    """Fill in missing options from the configuration of a distributed run."""
    mesh = config.mesh()
    if not options.meshes and (config.mesh_shape or mesh.size > mesh.axis("data")):
        options = replace(options, meshes=(str(mesh),))
    if not options.precision and config.mixed_precision != "no":
        options = replace(options, precision=(config.precision,))
    return options
