#!/usr/bin/env bash
# A run whose processes learn their ranks from variables, as under many launchers.
#
# Two processes on this host, or WORLD_SIZE:
#
#   examples/variables.sh --workloads mlp --meshes "data=1 data=2"
#
# Where RANK is set, this is only that one process, which you start on every host, or a launcher:
#
#   export WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=node1 LOCKSTEP_TOKEN=...
#   RANK=0 examples/variables.sh ...      # on node1
#   RANK=1 examples/variables.sh ...      # on node2, with the same arguments
#
#   torchrun --no-python --nnodes 2 --nproc-per-node 1 ... examples/variables.sh ...
#
# Every argument goes to `python -m bench run`.
set -euo pipefail
checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH="$checkout${PYTHONPATH:+:$PYTHONPATH}"
export WORLD_SIZE="${WORLD_SIZE:-2}" MASTER_ADDR="${MASTER_ADDR:-127.0.0.1}"
export MASTER_PORT="${MASTER_PORT:-29500}"
command=("${PYTHON:-python}" -m bench run --distributed env "$@")

if [[ -n ${RANK:-} ]]; then
  # torchrun listens at MASTER_PORT itself.
  if [[ -n ${TORCHELASTIC_USE_AGENT_STORE:-} ]]; then export MASTER_PORT=$((MASTER_PORT + 1)); fi
  exec "${command[@]}"
fi

# Whoever knows the token may take part: here, the processes below.
export LOCKSTEP_TOKEN="${LOCKSTEP_TOKEN:-$(od -An -N16 -tx1 /dev/urandom | tr -d ' ')}"
for ((rank = 1; rank < WORLD_SIZE; rank++)); do
  RANK=$rank LOCAL_RANK=$rank "${command[@]}" &
done
others=($(jobs -p))
# Here, too, so that a scheduler's SIGTERM, which may reach only this script, can be passed on. A
# process in the background ignores Ctrl-C.
RANK=0 LOCAL_RANK=0 "${command[@]}" &
trap 'kill -TERM $!' INT TERM USR1
while kill -0 $! 2>/dev/null; do wait $! && code=0 || code=$?; done
# Those that have met rank 0 end by themselves, and ignore this; others would wait for it.
kill "${others[@]}" 2>/dev/null || true
wait
exit "$code"
