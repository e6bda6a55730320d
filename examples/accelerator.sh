#!/usr/bin/env bash
# The first half hour on an accelerator: what is here, is it right, how fast is it, publish it.
#
#   examples/accelerator.sh                # gpt2-124m in bf16, on one device and on all
#   SIZE=tiny examples/accelerator.sh      # the same on any machine, in minutes
#
# It needs no network. If interrupted, it continues when it is started again with the same RUN, and
# repeats no stored proofs, programs and blocks. Arguments go to `python -m bench run`.
#
#   RUN              name of the run (default: accelerator-SIZE)
#   IMPLEMENTATIONS  the first is the baseline
#   MINUTES          for all of it (default: 25); what has not begun by then is left out
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python}
size=${SIZE:-124m}
run=${RUN:-accelerator-$size}
minutes=${MINUTES:-25}
read -ra names <<<"${IMPLEMENTATIONS:-jit_spmd nnx_jit_cached shard_map_pmean fsdp_spmd}"
common=(--preset accelerator --workloads "gpt2-$size" --implementations "${names[@]}")
[ "$size" = 124m ] || common+=(--batch-sizes 8 --rounds 16 --seconds 2)

left() { # seconds until the end
  echo $((minutes * 60 - SECONDS))
}

bench() { # at most until the end; interrupted as by Ctrl-C, so that what was measured is stored
  [ "$(left)" -gt 0 ] || { echo "accelerator.sh: the $minutes minutes are over" >&2; exit 124; }
  timeout --foreground --signal INT --kill-after 60 "$(left)" "$python" -m bench "$@"
}

measure() { # NAME ARGUMENTS: a run, or the rest of one that was cut off
  if [ -e "reports/$1/manifest.json" ]; then
    bench run --resume "$1"
  else
    bench run --run "$@"
  fi
}

echo "== 1. what is here"
bench doctor

echo "== 2. the gate: every implementation is proved, at the smallest batch"
measure "$run-gate" "${common[@]}" --batch-sizes 8 --rounds 4 --seconds 1

echo "== 3. the preset"
measure "$run" "${common[@]}" --profile "$@" || code=$?
case ${code:-0} in
  0 | 1 | 2 | 124) ;; # done, some cells failed (oom, say), or out of time: it is published
  *) exit "$code" ;;
esac

echo "== 4. publish"
"$python" -m bench report "$run" # the run may have been ended before that
"$python" -m bench publish "$run"
[ "${code:-0}" = 0 ] || echo "accelerator.sh: published, but the run's exit code was $code" >&2
