"""Help pages of the commands that take the options of a run."""

import argparse

from bench.plan.options import add_options
from bench.records.paths import PROGRAM

_RUN_EXAMPLES = """\
examples:
  python -m bench run
  python -m bench run --workloads mlp gpt2-nano --meshes data=1 data=2
  python -m bench run --implementations python_loop NAME --scaling both --rounds 32
  python -m bench run --implementation-path ../mine.py
  python -m bench run --preset standard --dry-run
  python -m bench run --resume NAME

Options of pytest and pytest-benchmark work too: -k EXPR (names as shown by --collect-only,
with `=`: -k "data=2 and python_loop"), -x, --collect-only, --benchmark-autosave,
--benchmark-compare.

exit codes:
  0  every cell is ok, or unsupported by its implementation
  1  a cell is wrong or implausible, ran out of memory, timed out or crashed
  2  interrupted; everything measured is stored: continue with --resume
  3  Lockstep itself failed, for example because the disk is full
  4  bad input; nothing was run
  5  nothing selected
"""

_REGRESS_TEXT = """\
Measure the working tree and an earlier revision of it side by side: each implementation and its
base take turns in the same processes, so that the host's noise hits both alike. The base is a
temporary git worktree; its implementations bring their own helper modules
(bench/contract/placement.py, or your own package in your repository). The workload, the proof and
the clock are those of the working tree for both, and what a file sets for its whole process
(jax.config, environment variables) holds for both. A file given by --implementation-path is looked
up in the repository that contains it, and compared alone unless --implementations names others.

A regression is a verdict of `slower`. The chance of any wrong verdict in the whole run is at most
1 %, however many comparisons there are and however often their samples are looked at; a difference
that is surely within the margin is no regression."""

_REGRESS_EXAMPLES = """\
examples:
  python -m bench regress main
  python -m bench regress HEAD~1 --workloads mlp --meshes data=2 -k "jit_spmd"
  python -m bench regress origin/main --implementation-path steps/mine.py --budget 600

By default: quick's workloads and meshes, 3 launches of up to 64 rounds. Every option of
`python -m bench run` works, except --resume. -k and the like select implementations of the working
tree; their bases are measured with them. Beside the report, the run's folder holds regress.md, a
summary for a pull request.
"""

_REGRESS_CODES = """
exit codes:
  0    no regression
  1    an implementation is slower than its base
  2    more than N comparisons are undecided (--allow-undecided N)
  3    broken: an implementation that was right at the base is not now; or Lockstep itself failed
  4    bad input: an unknown revision, no git repository, nothing to compare; nothing was run
  130  interrupted; everything measured is stored
"""

_UPGRADE_TEXT = """\
Compare each step here with the same step under another version of jax, side by side: uv makes an
environment for the version (kept in the user's cache), in a Python that is installed here, and its
steps run in processes of their own that take turns with the present ones, round by round. Both are
proved against the same float64 truth. `python -m bench regress jax==0.10.2` is the same. --to
compares another version than the present one. --bisect finds the release that made a step slower,
by such comparisons with the releases between."""

_UPGRADE_EXAMPLES = """\
examples:
  python -m bench upgrade --from jax==0.10.2
  python -m bench upgrade --from jax==0.11.0 --to jax==0.12.0 --workloads mlp --meshes data=2

Options and exit codes are those of `python -m bench regress`.
"""


def help_text() -> str:
    """Return the page of `python -m bench run --help`."""
    text = "Prove and time every implementation in every block, then write a report."
    parser = _parser("run", text, _RUN_EXAMPLES)
    add_options(parser.add_argument)
    return parser.format_help()


def regress_help_text() -> str:
    """Return the page of `python -m bench regress --help`."""
    parser = _parser("regress", _REGRESS_TEXT, _REGRESS_EXAMPLES + _REGRESS_CODES)
    add_options(parser.add_argument, without=["resume"])
    add_options(parser.add_argument, gate=True)
    parser.add_argument("BASE_REV", help="revision to compare with: a branch, tag or commit")
    return parser.format_help()


def upgrade_help_text() -> str:
    """Return the page of `python -m bench upgrade --help`."""
    parser = _parser("upgrade", _UPGRADE_TEXT, _UPGRADE_EXAMPLES + _REGRESS_CODES)
    for option, text in (("--from", "to compare with"), ("--to", "in place of the present one")):
        parser.add_argument(option, metavar="VERSION", help=f"version {text}, as jax==0.10.2")
    bisect = "find the release that made a step slower"
    parser.add_argument("--bisect", action="store_true", help=bisect)
    add_options(parser.add_argument, without=["resume"])
    add_options(parser.add_argument, gate=True)
    return parser.format_help()


def _parser(command: str, description: str, epilog: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"{PROGRAM} {command}",
        description=description.replace("python -m bench", PROGRAM),
        epilog=epilog.replace("python -m bench", PROGRAM),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
