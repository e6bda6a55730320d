"""A gate, from the outside and with a worker that behaves as told; and what it does to modules."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import synthetic
from fronts import Done, Front

from bench.analyse import cell_table, comparisons, outcomes
from bench.plan import base_revisions
from bench.plan.base_revisions import checkouts, find_repository
from bench.present import gate_comment
from bench.records import store
from bench.records.cells import base_of
from bench.records.git_files import RevisionError, tracked_folders
from bench.records.paths import ROOT
from bench.worker.file_loader import base_modules, load
from tests.slow import slow

SMALL = ("--workloads", "mlp", "--meshes", "data=2", "--launches", "1", "--run", "r")
CELL = "mlp-base/data=2/b256/fp32"

HOSTILE = (
    "</td><script>alert(1)</script> | `x` ``y`` @everyone #1 ![i](http://h/) \\| \x1b[31m\n# H"
)


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", folder, "-c", "user.name=n", "-c", "user.email=e@x", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "state")


class Gate:
    """A repository with step files, and the fake front beside it."""

    def __init__(self, folder: Path) -> None:
        self.repository = folder / "repository"
        (self.repository / "implementations").mkdir(parents=True)
        git(self.repository, "init", "--quiet", "--initial-branch", "main")
        self.write("mine", "steps")
        self.write("other", "steps")
        (folder / "run").mkdir()
        self.front = Front(folder / "run")
        self.front.environment["FAKE_ROOT"] = str(self.repository)

    def write(self, name: str, folder: str) -> None:
        (self.repository / folder).mkdir(exist_ok=True)
        (self.repository / folder / f"{name}.py").write_text(f'"""{name}."""\n')

    @property
    def paths(self) -> tuple[str, ...]:
        steps = self.repository / "steps"
        return tuple(
            word
            for name in ("mine", "other")
            for word in ("--implementation-path", f"{steps}/{name}.py")
        )

    def __call__(self, *words: str, **behaviour) -> Done:
        self.front.told(equal=True, **behaviour)
        done = self.front("regress", "main", *self.paths, *SMALL, *words)
        assert git(self.repository, "worktree", "list").count("\n") == 0
        assert max(map(len, done.out.splitlines()), default=0) <= 80
        return done

    @property
    def summary(self) -> str:
        return (self.front.folder / "reports/r/regress.md").read_text()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    gate = Gate(tmp_path)
    commit(gate.repository)
    return gate


def test_equal_programs_pass(gate: Gate) -> None:
    (gate.repository / "steps" / "new_helper.py").touch()
    done = gate()
    assert done.code == 0, done
    assert "No regression in 2 comparisons with main" in done.out
    assert done.out.splitlines()[-1] == "report: reports/r/report.html"
    assert "summary: reports/r/regress.md" in done.out
    # Head and base are arms of one block in one process, and of nothing else.
    job = gate.front.jobs[0]
    assert job["implementations"] == ["mine", "mine@base", "other", "other@base"]
    base = job["base_files"]["mine@base"]
    assert base["repository"] == str(gate.repository)
    assert base["path"] == f"{base['worktree']}/steps/mine.py"
    assert not Path(base["worktree"]).exists()
    stored = gate.front.stored("r")
    assert set(stored.samples["arm"]) == set(job["implementations"])
    keys = {row["implementation"]: row["key"] for row in stored.cell_rows}
    assert keys["mine"] == keys["mine@base"], "of the same content"
    assert stored.manifest["preset"] == "regress"
    told = stored.manifest["config"]["regress"]
    assert told["cells"] == [f"{CELL}/mine", f"{CELL}/other"]
    (repository,) = told["repositories"]
    assert repository["base"] == repository["head"] == git(gate.repository, "rev-parse", "main")
    assert repository["dirty"]
    assert repository["files"] == ["steps/mine.py", "steps/other.py"]
    assert str(gate.front.folder.parent) not in json.dumps(stored.manifest)
    # Benchmarks that other tools read are of the working tree.
    assert sorted(gate.front.benchmarks("r")) == [f"{CELL}/mine", f"{CELL}/other"]
    done = gate.front("run", "--resume", "r")
    assert done.code == 4
    assert "r gates a change and cannot be resumed" in done.err
    assert "--run: r exists in reports/; choose another name" in gate().err
    again = gate.front("run", *SMALL, "--run", "r")
    assert "--run: r exists in reports/; choose another name" in again.err


def test_a_slower_head_is_a_regression(gate: Gate) -> None:
    done = gate(times={"mine": 1.5, "other": 0.8})
    assert done.code == 1, done
    assert "Regression: slower in 1 of 2 comparisons with main" in done.out
    lines = gate.summary.splitlines()
    assert lines[0] == "### Regression: slower in 1 of 2 comparisons with `main`"
    assert lines[2] == "1 slower, 1 faster"
    (row,) = [line for line in lines if line.startswith(f"| `{CELL}/mine`")]
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:3] == [
        "1.00 \N{MICRO SIGN}s",
        "1.50 \N{MICRO SIGN}s",
    ]
    assert re.fullmatch(r"1\.500 \(1\.\d+.1\.\d+\)", cells[3])
    assert re.fullmatch(r"slower \(4\d\.\d\s% to 5\d\.\d\s%\)", cells[4])
    assert any(line.startswith(f"| `{CELL}/other`") for line in lines), "so is an improvement"
    assert "<details>" not in gate.summary, "nothing is left for it"
    base = git(gate.repository, "rev-parse", "main")
    assert f"    python -m bench regress {base} --implementation-path mine.py" in gate.summary
    assert f"base `{base[:10]}`" in gate.summary
    assert [job["launch"] for job in gate.front.jobs] == [0]


@pytest.mark.slow
def test_what_is_undecided_is_counted_against_what_is_allowed(gate: Gate) -> None:
    margin = ("--margin", "0.05", "--rounds", "16")
    done = gate(*margin)
    assert done.code == 2, done
    assert gate.summary.startswith(
        "### Undecided: 2 of 2 comparisons with `main`, and none slower\n"
    )
    assert re.search(r"undecided \(within \d", gate.summary)
    wrapped = r"undecided \(within\s+(fp32/mine\s+)?\d"  # the rest of the cell's name is between
    assert re.search(wrapped, done.out)
    done = gate(*margin, "--allow-undecided", "2", "--run", "again")
    assert done.code == 0, done
    assert "No regression in 2 comparisons with main, 2 undecided" in done.out


@pytest.mark.parametrize(
    ("behaviour", "code", "words"),
    [
        ({"mine": "wrong"}, 3, "Broken: 1 of 2 comparisons with main no longer right"),
        *slow(
            ({"mine": "segv"}, 3, "1 broken, 1 same"),
            ({"mine": "unsupported"}, 3, "1 broken, 1 same"),
        ),
        ({"mine@base": "wrong"}, 0, "1 fixed, 1 same"),
        ({"mine@base": "unsupported", "mine": "unsupported"}, 0, "1 same, 1 neither"),
        *slow(
            ({"mine@base": "segv"}, 2, "1 undecided, 1 same"),
            ({"mine": "oom", "mine@base": "oom"}, 2, "1 undecided, 1 same"),
        ),
        ({"mine": "wrong", "times": {"other": 2}}, 3, "1 broken, 1 slower"),
    ],
)
def test_broken_and_fixed(gate: Gate, behaviour: dict, code: int, words: str) -> None:
    done = gate(**behaviour)
    assert done.code == code, done
    assert words in done.out
    if "mine" in behaviour and code == 3:
        assert (
            f"- `{CELL}/mine`: `{'crashed' if behaviour['mine'] == 'segv' else behaviour['mine']}: "
            in (gate.summary)
        )


@pytest.mark.slow
def test_k_selects_what_is_compared(gate: Gate) -> None:
    done = gate("-k", "other")
    assert done.code == 0, done
    (job,) = gate.front.jobs
    assert job["implementations"] == ["other", "other@base"]
    assert gate("-k", "nobody").code == 4


def test_new_and_removed_implementations_are_listed(gate: Gate) -> None:
    """Of implementations/, where everything is looked for."""
    for name in ("jit_spmd", "python_loop", "gone", "_private"):
        gate.write(name, "implementations")
    commit(gate.repository)
    (gate.repository / "implementations" / "gone.py").unlink()
    gate.write("pmap", "implementations")
    done = gate.front.told(equal=True)("regress", "main", *SMALL)
    assert done.code == 0, done
    assert gate.front.jobs[0]["implementations"] == [
        *("jit_spmd", "jit_spmd@base", "python_loop", "python_loop@base"),
    ]
    assert "Not compared, because new in the head: `pmap`." in gate.summary
    assert "Not compared, because removed in the head: `gone`." in gate.summary
    assert "Not compared, because new in the head: pmap." in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "the first argument is the revision to compare with"),
        (("--meshes", "data=1"), "the first argument is the revision to compare with"),
        (("no-such",), "'no-such' is not a revision of"),
        (("main", "--allow-undecided", "-1"), "--allow-undecided: '-1' is not a whole number"),
        (("main", "--resume", "r"), "--resume: a gate cannot be resumed"),
        (("main", "--workloads", "mpl"), "did you mean mlp?"),
    ],
)
def test_bad_input_is_refused(gate: Gate, words: tuple[str, ...], message: str) -> None:
    done = gate.front("regress", *words, *(gate.paths if words else ()))
    assert done.code == 4, done
    assert message in done.err
    assert not gate.front.jobs


def test_without_a_repository_or_anything_to_compare_it_is_refused(gate: Gate) -> None:
    outside = gate.front.folder / "outside.py"
    outside.touch()
    done = gate.front("regress", "main", "--implementation-path", str(outside))
    assert done.code == 4, done
    assert "git reads no repository there" in done.err
    assert "name a file" not in done.err, "one is named"
    gate.write("newest", "steps")
    path = str(gate.repository / "steps/newest.py")
    done = gate.front("regress", "main", "--implementation-path", path)
    assert done.code == 4, done
    assert "there is nothing to compare: main has no newest" in done.err


def test_an_installed_package_has_no_base_of_its_own(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(base_revisions, "ROOT", tmp_path)
    (tmp_path / "implementations").mkdir()
    with pytest.raises(RevisionError, match="name a file of your own with --implementation-path"):
        base_revisions.find_repository(tmp_path / "implementations", "main")


@pytest.mark.slow
def test_a_failure_of_its_own_leaves_no_worktree(gate: Gate) -> None:
    gate.front.environment["FAKE_KILL"] = "no-number 0"
    process = gate.front.start("regress", "main", *gate.paths, *SMALL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 3, (out, err)
    assert git(gate.repository, "worktree", "list").count("\n") == 0


@pytest.mark.slow
def test_an_interruption_leaves_no_worktree(gate: Gate) -> None:
    front = gate.front.told(other="hang")
    process = front.start("regress", "main", *gate.paths, *SMALL)
    front.wait_for_hang(process)
    base = Path(front.jobs[0]["base_files"]["mine@base"]["worktree"])
    assert (base / "steps/mine.py").exists()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert "interrupted" in out + err
    assert "--resume" not in out + err
    assert not base.exists()
    assert git(gate.repository, "worktree", "list").count("\n") == 0


def planted(folder: Path, endings: dict | None = None, revision: str = "main", **ratios) -> Path:
    """A stored gate of these implementations: their true times over their bases'."""
    arms = {
        name: value for arm, r in ratios.items() for name, value in ((arm, r), (base_of(arm), 1))
    }
    plan = synthetic.Plan(devices=(2,), ratios=arms, launches=3, rounds=32, endings=endings or {})
    directory = synthetic.write(folder, plan)
    manifest = store.read_manifest(directory)
    (block,) = plan.blocks()
    repository = {"base": "b" * 40, "head": "a" * 40, "dirty": False, "files": ["x.py"]}
    manifest["argv"] = ["regress", revision]
    manifest["config"]["regress"] = {
        "revision": revision,
        "allow_undecided": 0,
        "new": [],
        "removed": [],
        "repositories": [repository],
        "cells": [f"{block.name}/{arm}" for arm in ratios],
    }
    store.write_manifest(directory, manifest)
    return directory


def judged(run: store.Run, ended: str = "") -> outcomes.Outcome:
    return outcomes.judge(run, cell_table.build(run), ended)


def test_planted_changes_come_out_with_all_verdicts_sharing_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    compare = comparisons.compare
    monkeypatch.setattr(
        comparisons, "compare", lambda *a: (asked.append(a[1:3]), compare(*a))[1]
    )  # fmt: skip
    directory = planted(tmp_path, same=1.0, slower=1.1, faster=0.9)
    found = judged(store.load(directory))
    assert [(case.word, case.cell.rpartition("/")[2]) for case in found.cases] == [
        (name, name) for name in ("slower", "faster", "same")
    ]
    assert found.code == outcomes.REGRESSION
    for case in found.cases:
        assert case.claim
        times = case.base["step_s"], case.head["step_s"]
        assert times[1] == pytest.approx(times[0] * case.claim.ratio.value, rel=0.05)
    # The rows' last look may spend 0.008 / 3; there are three comparisons.
    assert asked == [
        ({arm: base_of(arm)}, pytest.approx(0.008 / 3 / 3)) for arm in ("same", "slower", "faster")
    ]


def test_same_by_equal_programs_states_no_bound(tmp_path: Path) -> None:
    """Times that differ by more than the margin would contradict the word beside them."""
    directory = planted(tmp_path, alike=1.3)
    program = {"fingerprint": "1", "dispatch": "a", "host_calls": 1, "operations": ""}
    synthetic.rewrite(directory, "cells", lambda row: row.update(program=program))
    text = gate_comment.markdown(judged(store.load(directory)))
    assert "| same (the program is equal) |" in text
    assert "smaller than the margin, or head and base run the same program." in text


def test_a_head_that_fails_in_one_launch_is_broken(tmp_path: Path) -> None:
    directory = planted(tmp_path, same=1.0, flaky=1.0)

    def fail_once(row) -> None:
        if row["implementation"] == "flaky" and row["launch"] == 1:
            row |= {"status": "timeout", "reason": "no sign of life"}

    synthetic.rewrite(directory, "cells", fail_once)
    found = judged(store.load(directory))
    assert [case.word for case in found.cases] == ["broken", "same"]
    assert found.cases[0].reason == "timeout: no sign of life"


def test_hostile_text_is_inert(tmp_path: Path) -> None:
    endings = {("bad", 2): ("wrong", HOSTILE)}
    directory = planted(tmp_path, endings, revision=HOSTILE, bad=1.0, same=1.0)
    found = judged(store.load(directory))
    text = gate_comment.markdown(found)
    # Everything hostile is within code spans, which end where they began.
    spans = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
    shown = "".join(match.group(2) for match in spans.finditer(text))
    assert "@everyone" in shown
    *lines, command = text.rstrip().splitlines()
    assert command.startswith("    python -m bench regress ")
    left = spans.sub("", "\n".join(lines))
    for part in ("script", "@", "http", "#1", "x1b", "\x1b", "`"):
        assert part not in left, part
    assert "\n# H" not in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert widths == {6}


def test_a_summary_fits_into_a_comment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gate_comment.LONGEST == 2**16, "GitHub's limit"
    names = [f"step_{number:02}" for number in range(12)]
    endings = {(name, 2): ("wrong", "the update differs " * 15) for name in names}
    found = judged(store.load(planted(tmp_path, endings, **dict.fromkeys(names, 1.0))))
    whole = gate_comment.markdown(found)
    assert whole.count("broken |") == 12
    assert "which the report lists" not in whole
    monkeypatch.setattr(gate_comment, "LONGEST", len(whole) - 1)
    text = gate_comment.markdown(found)
    assert len(text) < len(whole)
    assert text.startswith("### Broken: 12 of 12 comparisons with `main` no longer right")
    assert text.count("broken |") == text.count(": `wrong: the update differs") == 7
    assert "\n- and 5 more, which the report lists\n" in text
    assert text.rstrip().endswith(f"    python -m bench regress {'b' * 40}")


def test_what_was_not_measured_is_no_outcome(tmp_path: Path) -> None:
    directory = planted(tmp_path, same=1.0)
    manifest = store.read_manifest(directory)
    manifest["config"]["regress"]["cells"].append("mlp-base/data=4/b64/fp32/same")
    store.write_manifest(directory, manifest)
    run = store.load(directory)
    assert judged(run).code == outcomes.UNDECIDED
    first = gate_comment.markdown(judged(run, "interrupted")).splitlines()[0]
    assert first == "### No outcome, interrupted: 1 of 2 comparisons with `main` not measured"


def test_a_comparison_that_lacks_launches_is_measured_in_part(tmp_path: Path) -> None:
    outcome = judged(store.load(planted(tmp_path, same=1.0)), "interrupted")
    first = gate_comment.markdown(outcome).splitlines()[0]
    assert first == "### No outcome, interrupted: part of 1 comparison with `main` not measured"


# Git.


def test_a_checkout_is_the_base_and_gone_afterwards(gate: Gate) -> None:
    old = git(gate.repository, "rev-parse", "HEAD")
    (gate.repository / "steps" / "mine.py").write_text("changed = True\n")
    commit(gate.repository)
    found = find_repository(gate.repository / "steps", "HEAD~1")
    assert (found.base, found.head, found.dirty) == (
        old,
        git(gate.repository, "rev-parse", "main"),
        False,
    )
    assert "mine" in found.python_files(gate.repository / "steps")
    assert "never" not in found.python_files(gate.repository / "steps")
    with checkouts([found]) as places:
        place = places[gate.repository]
        assert (place / "steps/mine.py").read_text() == '"""mine."""\n'
        (place / "__pycache__").mkdir()
    assert not place.exists()
    assert git(gate.repository, "worktree", "list").count("\n") == 0


def test_output_does_not_make_a_tree_dirty(gate: Gate) -> None:
    (gate.repository / "reports").mkdir()
    (gate.repository / "reports/x.json").touch()
    assert not find_repository(gate.repository, "main").dirty
    (gate.repository / "steps/helper.py").touch()
    assert find_repository(gate.repository, "main").dirty


def test_a_shallow_clone_says_so(gate: Gate, tmp_path: Path) -> None:
    commit_twice = gate.repository / "steps" / "mine.py"
    commit_twice.write_text("again = 1\n")
    commit(gate.repository)
    git(tmp_path, "clone", "--quiet", "--depth", "1", gate.repository.as_uri(), "shallow")
    with pytest.raises(RevisionError, match="shallow clone"):
        find_repository(tmp_path / "shallow", "HEAD~1")


def test_a_repository_of_another_user_is_named_with_git_s_advice(gate: Gate, monkeypatch) -> None:
    """As in a container; `not a git repository` would be untrue."""
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    with pytest.raises(RevisionError, match=r"dubious ownership .* safe\.directory"):
        find_repository(gate.repository, "main")
    with pytest.raises(RevisionError, match="dubious ownership"):
        tracked_folders(gate.repository)  # the gallery would list trial runs as published


# Modules.


@pytest.fixture
def two_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """A repository and a checkout of its base; their helpers tell which is which."""
    for state in ("head", "base"):
        package = tmp_path / state / "src" / "helpers_of_a_gate"
        package.mkdir(parents=True)
        (tmp_path / state / ".git").touch()
        (package / "__init__.py").touch()
        (package / "which.py").write_text(f"STATE = {state!r}\n")
        (package / "later.py").write_text(f"STATE = {state!r}\n")
        (tmp_path / state / "step.py").write_text(
            "from helpers_of_a_gate import which\n"
            "def later():\n"
            "    from helpers_of_a_gate import later\n"
            "    return later.STATE\n"
        )
    monkeypatch.syspath_prepend(str(tmp_path / "head" / "src"))
    yield tmp_path / "head", tmp_path / "base"
    for name in [name for name in sys.modules if name.endswith("_a_gate") or "_a_gate." in name]:
        del sys.modules[name]


def test_a_base_imports_its_own_helpers(two_states: tuple[Path, Path]) -> None:
    head, base = two_states
    step = load(head / "step.py")
    modules, path = dict(sys.modules), list(sys.path)
    with base_modules(base, head):
        old = load(base / "step.py")
    assert (step.which.STATE, old.which.STATE) == ("head", "base")
    assert sys.modules == modules
    assert sys.path == path
    # What it imports later is the base's as well, and imported once.
    with base_modules(base, head):
        assert old.later() == "base"
        assert sys.modules["helpers_of_a_gate.which"] is old.which
    assert step.later() == "head"


def test_a_failed_import_restores_everything(two_states: tuple[Path, Path]) -> None:
    head, base = two_states
    (base / "src/helpers_of_a_gate/which.py").unlink()
    load(head / "step.py")
    modules, path = dict(sys.modules), list(sys.path)
    with pytest.raises(ImportError, match="which"), base_modules(base, head):
        load(base / "step.py")
    assert sys.modules == modules
    assert sys.path == path


STRAY = "from helpers_of_a_gate import which\n"


def test_helpers_that_are_not_found_by_the_path_are_noticed(two_states: tuple[Path, Path]) -> None:
    head, base = two_states
    # As a finder of an editable installation does, which knows folders of its own.
    (base / "step.py").write_text(f"import sys\nsys.path.insert(0, {str(head / 'src')!r})\n{STRAY}")
    message = r"imported helpers_of_a_gate, helpers_of_a_gate\.which from the working tree"
    with pytest.raises(ImportError, match=message), base_modules(base, head):
        load(base / "step.py")
    assert "helpers_of_a_gate" not in sys.modules


def test_what_is_installed_or_cloned_in_a_repository_is_not_its_own(
    two_states: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    head, base = two_states
    installed = head / ".venv/lib/site-packages/installed_in_a_gate"
    cloned = head / "cloned/cloned_in_a_gate"
    for package in (installed, cloned):
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        monkeypatch.syspath_prepend(str(package.parent))
    (cloned.parent / ".git").mkdir()
    with base_modules(base, head):
        assert load(base / "step.py").which.STATE == "base"
        __import__("installed_in_a_gate")
        __import__("cloned_in_a_gate")
    assert {"installed_in_a_gate", "cloned_in_a_gate"} <= set(sys.modules)


# Everything, with the real worker.

STEP = '''"""jax.jit, by the helper beside it."""

import jax
import optax

from bench.contract import TrainStep
from bench.contract.placement import place_model_state_on_shards
from steps.gradients import loss_and_gradients


def why_unsupported(problem, mesh):
    return None


def build(problem, mesh):
    params, loss_fn = problem.functional()

    @jax.jit
    def step(state, batch):
        params, opt_state = state
        loss, grads = loss_and_gradients(loss_fn, params, batch)
        updates, opt_state = problem.optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), loss

    return TrainStep(
        state=place_model_state_on_shards((params, problem.optimizer.init(params)), mesh),
        place=lambda batch: jax.device_put(batch),
        step=step,
        params=lambda state: state[0],
    )
'''

HELPER = """
import jax

def loss_and_gradients(loss_fn, params, batch):
    return jax.value_and_grad(loss_fn)(params, batch)
"""

SLOW_HELPER = """
import jax

def loss_and_gradients(loss_fn, params, batch):
    def again(turn, total):
        shifted = jax.tree.map(lambda leaf: leaf + 1e-9 * turn, params)
        grads = jax.grad(loss_fn)(shifted, batch)
        return total + sum(leaf.sum() for leaf in jax.tree.leaves(grads))

    loss, grads = jax.value_and_grad(loss_fn)(params, batch)
    return loss + 0 * jax.lax.fori_loop(0, 100, again, 0 * loss), grads
"""


@pytest.mark.slow
def test_a_helper_that_became_slow_is_found(tmp_path: Path) -> None:
    """The step's file is the same in both revisions; only what it imports has changed."""
    repository = tmp_path / "repository"
    (repository / "steps").mkdir(parents=True)
    git(repository, "init", "--quiet", "--initial-branch", "main")
    (repository / "steps/mine.py").write_text(STEP)
    (repository / "steps/gradients.py").write_text(HELPER)
    commit(repository)
    (repository / "steps/gradients.py").write_text(SLOW_HELPER)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench", "regress", "main", "--run", "r"),
            *("--implementation-path", "steps/mine.py", "--workloads", "linear-tiny"),
            *("--meshes", "data=1", "--launches", "1", "--rounds", "16", "--seconds", "0.5"),
        ],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, (done.stdout, done.stderr)
    assert "Traceback" not in done.stdout + done.stderr
    folder = repository / "reports/r"
    rows = {row["implementation"]: row for row in store.load(folder).cell_rows}
    assert len({row["key"] for row in rows.values()}) == 2
    base, head = (rows[arm]["sources"]["implementation"] for arm in ("mine@base", "mine"))
    assert [file for file in base if base[file] != head[file]] == ["steps/gradients.py"]
    first = (folder / "regress.md").read_text().splitlines()[0]
    assert first == "### Regression: slower in 1 of 1 comparison with `main`"
    assert "with uncommitted changes" in (folder / "regress.md").read_text()
    run = store.load(folder)
    assert {row["implementation"] for row in run.cell_rows} == {"mine", "mine@base"}
    assert {row["status"] for row in run.cell_rows} == {"ok"}
    assert "mine@base" in (folder / "report.html").read_text()
    assert git(repository, "worktree", "list").count("\n") == 0
