"""Filling in page templates: one style, and every value escaped for the page's language."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from bench.records import files

_HERE = Path(__file__).with_name("templates")


def environment(folder: Path = _HERE, *, markdown: bool) -> Environment:
    """Templates of HTML, or of GitHub's Markdown, in a folder and among the shared ones."""
    made = Environment(
        loader=FileSystemLoader([folder, _HERE]),
        autoescape=not markdown,  # noqa: S701 - `finalize` escapes every value, for Markdown
        finalize=escape_markdown if markdown else None,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    if markdown:
        made.filters["code"] = _code
    else:
        made.globals["style"] = Markup(stylesheet())  # noqa: S704
        made.filters["prose"] = _prose
    return made


def write_pages(folder: Path, name: str, templates: Path = _HERE, **values: Any) -> Path:
    """Fill in a template as a page and as Markdown, and return the page.

    Args:
      folder: where to write `NAME.md` and `NAME.html`.
      name: of the templates, `NAME.md.j2` and `NAME.html.j2`.
      templates: folder of the templates, which may include the shared ones.
      values: for the templates.

    Raises:
      OSError: nothing can be written there.
    """
    for suffix in ("md", "html"):
        filled = environment(templates, markdown=suffix == "md")
        text = filled.get_template(f"{name}.{suffix}.j2").render(values)
        files.write(folder / f"{name}.{suffix}", text)
    return folder / f"{name}.html"


def stylesheet() -> str:
    """The style of all pages."""
    return (_HERE / "style.css").read_text("utf-8")


def reading_guide(**present: bool) -> list[tuple[str, Markup]]:
    """Terms of a report with their explanations in Markdown.

    Args:
      present: whether the run has `traces` and `losses`, which some entries need.
    """
    text = Path(__file__).with_name("reading_guide.toml").read_text("utf-8")
    return [
        (entry["term"], Markup(entry["text"].strip()))  # noqa: S704 (is ours)
        for entry in tomllib.loads(text)["entry"]
        if present.get(entry.get("needs"), True)
    ]


def _prose(text: str) -> Markup:
    """HTML of a text of our own with `code`, *emphasis* and [links](to) in Markdown."""
    html = str(escape(str(text)))
    html = re.sub(r"`(.+?)`", r"<code>\1</code>", html)
    html = re.sub(r"\[(.+?)\]\((.+?)\)", r'<a href="\2">\1</a>', html)
    # A name with a star, `*.jsonl`, is code by now.
    return Markup(re.sub(r"(?<!>)\*(\w[\w ]*)\*", r"<em>\1</em>", html))  # noqa: S704


def escape_markdown(value: Any) -> str:
    """Text that GitHub's Markdown shows as it is, even within a table. Lines are joined."""
    if isinstance(value, Markup):
        return str(value)
    text = " ".join(str(value).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*\[\]|#~!$])", r"\\\1", text)
    # An underscore within a word is plain, and names are full of them.
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)


def _code(value: str) -> Markup:
    """A line of a code block, which cannot end its block."""
    return Markup("    " + " ".join(value.split()))  # noqa: S704
