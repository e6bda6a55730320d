"""The manual stays short and true: its links, sessions, options and paths exist."""

from __future__ import annotations

import importlib
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.__main__ import app
from bench.records.paths import ROOT

PAGES = sorted(
    [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    + [ROOT / "implementations/README.md", *(ROOT / "docs").rglob("*.md")]
)
LIMITS = {
    "README.md": 1100,
    "ARCHITECTURE.md": 1500,
    **{
        f"docs/{name}.md": 600
        for name in (
            *("accelerators", "beyond-the-step", "clusters", "compile-time-and-memory"),
            *("explaining", "failures", "foreign", "foreign-contract", "isolation", "model-state"),
            *("gating-ci", "library", "projecting", "reading-a-report", "refereeing"),
            *("running", "upgrading"),
        )
    },
}
"""The most words that a page may have."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def commands() -> list[tuple[str, str]]:
    """Every nox command in a code block: the page and the line."""
    found = []
    for page in PAGES:
        for block in re.findall(r"```(?:bash|sh)\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            found += [
                (name_of(page), line.partition(" # ")[0].strip())
                for line in block.splitlines()
                if "nox " in line and "install" not in line
            ]
    return found


@cache
def help_of(command: str) -> str:
    done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert done.exit_code == 0
    return done.output


@pytest.mark.parametrize("page", LIMITS)
def test_a_page_is_short_enough_to_be_read(page: str) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").split()) <= LIMITS[page]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_paths_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            assert (page.parent / target.partition("#")[0]).exists(), target
    for path in re.findall(r"`((?:bench|tests|docs|examples)/[\w./-]+)`", text):
        assert "NAME" in path or (ROOT / path).exists(), path


def test_commands_name_sessions_and_options_that_exist() -> None:
    sessions = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    checked = 0
    for page, line in commands():
        words = shlex.split(line)
        if "-s" not in words:
            continue
        session = words[words.index("-s") + 1]
        assert re.search(rf"\b{session}\b", sessions), f"{page}: {line}"
        given = words[words.index("--") + 1 :] if "--" in words else []
        options = {word.partition("=")[0] for word in given if re.match(r"--?[a-z]", word)}
        listed = help_of("run" if session == "bench" else session) if options else ""
        for option in options - {"-k", "-x", "--collect-only", "-n"}:
            assert option in listed, f"{page}: {session} has no {option}"
        checked += 1
    assert checked > 20


def test_the_table_of_implementations_has_every_file() -> None:
    folder = ROOT / "implementations"
    told = re.findall(r"\]\(([\w/]+)\.py\)", (folder / "README.md").read_text(encoding="utf-8"))
    files = (path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py"))
    assert sorted(told) == sorted(f.as_posix() for f in files if not f.name.startswith("_"))


def test_the_readme_shows_what_a_published_run_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    pictures = importlib.import_module("make_pictures")
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert pictures.quoting(page, pictures.answers()) == page, "run `nox -s pictures`"


def test_the_checks_run_the_commands_of_every_page_that_marks_some() -> None:
    (listed,) = re.findall(r"docs/\{(.*)\}\.md", (ROOT / ".ci/run").read_text("utf-8"))
    marked = {page.stem for page in (ROOT / "docs").glob("*.md") if "```bash\n" in page.read_text()}
    assert set(listed.split(",")) == marked
