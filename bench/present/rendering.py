"""Rendering of templates: one style, and every value escaped for the output language."""

import base64
import re
import tomllib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from bench.records import files
from bench.records.paths import adapt_commands

_HERE = Path(__file__).with_name("templates")


def environment(folder: Path = _HERE, *, markdown: bool) -> Environment:
    """Return the environment of templates, in a folder or shared, for HTML or GitHub's Markdown.

    A template that imports `macros` gets those of its language, which have the same names, so it
    can be rendered in both.
    """
    made = Environment(
        loader=FileSystemLoader([folder, _HERE]),
        autoescape=True,
        finalize=_escaped if markdown else None,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals["macros"] = f"macros.{'md' if markdown else 'html'}.j2"
    made.globals["style"] = Markup(stylesheet())  # noqa: S704
    made.filters |= {"code": _code, "prose": _prose, "contents": _contents, "image": image}
    made.filters["adapt_commands"] = adapt_commands
    return made


def render(name: str, templates: Path = _HERE, *, markdown: bool, **values: Any) -> str:
    """Render the template `NAME.j2` of a folder; in Markdown, blank lines are not repeated."""
    text = environment(templates, markdown=markdown).get_template(f"{name}.j2").render(values)
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n" if markdown else text


def write_pages(
    folder: Path, name: str, templates: Path = _HERE, *, file: str = "", **values: Any
) -> Path:
    """Render a template with values as `FILE.md` and `FILE.html` in a folder; return the page.

    The template is `NAME.j2` in `templates`, and may include the shared ones. Without `file`, the
    files are named after the template. Raises OSError if they cannot be written.
    """
    for suffix in ("md", "html"):
        text = render(name, templates, markdown=suffix == "md", **values)
        files.write(folder / f"{file or name}.{suffix}", text)
    return folder / f"{file or name}.html"


def stylesheet() -> str:
    """Return the style of all pages."""
    return (_HERE / "style.css").read_text("utf-8")


def reading_guide(**present: object) -> list[tuple[str, Markup]]:
    """Return the terms of a report with their explanations in Markdown.

    `present` says whether there are `traces`, `losses` and a `chooser`, which some entries need.
    """
    text = adapt_commands(Path(__file__).with_name("reading_guide.toml").read_text("utf-8"))
    return [
        (entry["term"], Markup(entry["text"].strip()))  # noqa: S704 (is ours)
        for entry in tomllib.loads(text)["entry"]
        if present.get(entry.get("needs"), True)
    ]


def image(svg: str) -> str:
    """Return an SVG as a data URL, which a page can show without network access."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _contents(page: str) -> list[tuple[str, Markup]]:
    found = re.findall(r'<section id="([^"]+)"[^>]*>\s*<h2[^>]*>(.+?)</h2>', page)
    return [(name, Markup(heading)) for name, heading in found]  # noqa: S704 (is escaped)


def _prose(text: str) -> Markup:
    """Return our own text as HTML; `code`, *emphasis* and [links](to) are as in Markdown."""
    html = str(escape(text))
    html = re.sub(r"`(.+?)`", r"<code>\1</code>", html)
    html = re.sub(r"\[(.+?)\]\((.+?)\)", r'<a href="\2">\1</a>', html)
    # A name with a star, `*.jsonl`, is already code here.
    return Markup(re.sub(r"(?<!>)\*(\w[\w ]*)\*", r"<em>\1</em>", html))  # noqa: S704


def _escaped(value: Any) -> Markup:
    """Return text that GitHub's Markdown shows unchanged, even in a table. Lines are joined."""
    if isinstance(value, Markup):
        return value
    text = " ".join(str(value).split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*\[\]|#~!$])", r"\\\1", text)
    # An underscore within a word needs no escape, and names are full of them.
    return Markup(re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text))  # noqa: S704


def _code(value: str) -> Markup:
    """Return text as one line of an indented code block, which it cannot end."""
    return Markup("    " + " ".join(value.split()))  # noqa: S704
