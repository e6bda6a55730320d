#!/usr/bin/env bash
# A run whose processes Open MPI starts: two on this host, or as many as you say, where you say.
#
#   examples/openmpi.sh --workloads mlp --meshes "data=1 data=2"
#   PROCESSES=4 HOSTS=node1:2,node2:2 examples/openmpi.sh --meshes data=4
#
# Every argument goes to `python -m bench run`. jax.distributed.initialize() detects who is who.
set -euo pipefail
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH="$checkout${PYTHONPATH:+:$PYTHONPATH}"

# --bind-to none: Lockstep itself keeps each worker to cores of its own.
setsid mpirun -n "${PROCESSES:-2}" ${HOSTS:+--host "$HOSTS"} -x PYTHONPATH --bind-to none \
  "${PYTHON:-python}" -m bench run --distributed auto "$@" &

# mpirun answers Ctrl-C by killing all within two seconds, without reading what they print. This
# signal it passes on, and rank 0 ends the run as on Ctrl-C: workers go, the report is written.
trap 'kill -USR1 $!' INT TERM USR1
while kill -0 $! 2>/dev/null; do wait $! && code=0 || code=$?; done
exit "$code"
