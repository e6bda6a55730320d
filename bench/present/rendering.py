"""How pages are filled in: one look, everything escaped for what the page is written in."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from bench.records import files

_HERE = Path(__file__).with_name("templates")


def environment(folder: Path = _HERE, *, markdown: bool) -> Environment:
    """For templates in a folder, and those here: HTML, or GitHub's Markdown."""
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
    return made


def write_pages(folder: Path, name: str, templates: Path = _HERE, **values: Any) -> Path:
    """Fill in a template as a page and as Markdown, and return the page.

    Args:
      folder: where to write `NAME.md` and `NAME.html`.
      name: of the templates, `NAME.md.j2` and `NAME.html.j2`.
      templates: folder of the templates, which may include those here.
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
    """What all pages look like."""
    return (_HERE / "style.css").read_text("utf-8")


def escape_markdown(value: Any) -> str:
    """Text that GitHub's Markdown, also within a table, shows as it is. Lines are joined."""
    if isinstance(value, Markup):
        return str(value)
    text = " ".join(str(value).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*\[\]|#~!$])", r"\\\1", text)
    # An underscore within a word is plain, and names are full of them.
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)


def _code(value: str) -> Markup:
    """A code block's line, which cannot end its block."""
    return Markup("    " + " ".join(value.split()))  # noqa: S704
