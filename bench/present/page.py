"""The report as one HTML file: the first screen is text, the rest is drawn from embedded data."""

import base64
import hashlib
import re
from collections import Counter
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from bench.analyse.cell_table import Tables
from bench.present import page_data, placing_table, run_environment, run_tables, sentences
from bench.present.caveats import caveats
from bench.present.charts import CHARTS
from bench.present.plots import vega_plot
from bench.present.rendering import reading_guide, render, stylesheet
from bench.records import numbers
from bench.records.rows import Manifest
from bench.records.statuses import FAILURES, STATUSES

WEB = Path(__file__).with_name("web")

SCRIPTS = sorted(
    (path.relative_to(WEB).as_posix() for path in WEB.rglob("*.js")),
    key=lambda name: (name not in {"data.js", "format.js"}, name),
)
"""They are concatenated into one script; all others use constants of the first two."""


def html(found: Tables, manifest: Manifest, projected: str = "") -> str:
    """Return the page of a run; `projected` is the path of its projection, if it has any."""
    page = content(found, manifest, projected)
    return render("page.html", WEB, markdown=False, page=page, charts=CHARTS)


def content(found: Tables, manifest: Manifest, projected: str = "") -> dict[str, Any]:
    """Return everything that the template shows, by the names it uses."""
    cells = found.rows
    ended = Counter(cell["status"] for cell in cells)
    data = page_data.build(found, manifest)
    answers = sentences.answers(sentences.summaries(found))
    names = numbers.count(len(data["implementations"]), "implementation")
    situations = numbers.count(len(found.comparisons), "situation")
    timed = sum(bool(block.ranked) for block in found.comparisons)
    # Everything here is either our own or escaped for its context.
    style = Markup(stylesheet() + _read("page.css"))  # noqa: S704
    # No string of the library may close the element that contains it.
    inert = vega_plot.library().replace("</script", "<\\/script").replace("<!--", "<\\!--")
    library = Markup(inert)  # noqa: S704
    code = Markup("\n".join(map(_read, SCRIPTS)))  # noqa: S704
    return {
        "run": manifest["run"],
        "question": run_environment.question(manifest),
        "counts": f"{names} in {situations} (workload, mesh and batch)" if cells else "",
        "tally": sentences.tally(cells),
        "started": run_environment.started(manifest),
        "subjects": [
            (subject, [_marked(text, data["implementations"]) for text in texts])
            for subject, texts in answers.items()
        ],
        "matrix": placing_table.make(found),
        "failures": [(ended[name], STATUSES[name].label) for name in FAILURES if ended[name]],
        "caveats": caveats(found, manifest),
        "machine": run_environment.machine(manifest),
        "environment": run_environment.environment(manifest, found),
        "endings": run_tables.endings(cells),
        "tables": data["tables"],
        "guide": reading_guide(traces=found.traces, losses=found.losses, chooser=timed > 1),
        "projected": projected,
        "licence": vega_plot.LICENCE,
        "policy": _policy(style, library, code),
        "style": style,
        "data": Markup(page_data.encode(data)),  # noqa: S704
        "library": library,
        "code": code,
    }


def _policy(style: str, *scripts: str) -> str:
    """Return a Content-Security-Policy: nothing is fetched, and only the page's own scripts run."""
    digests = (hashlib.sha256(text.encode()).digest() for text in (style, *scripts))
    own, *code = (f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {' '.join(code)}; style-src {own}; base-uri 'none'; "
        "form-action 'none'"
    )


def _marked(text: str, names: list[str]) -> Markup:
    """Return an answer with implementation names in bold, and slower ones in another colour."""
    longest_first = sorted(map(re.escape, names), key=len, reverse=True)
    parts = re.split(rf"(?<!\w)({'|'.join(longest_first)})(?!\w)", text)
    marked = Markup("").join(
        Markup("<b>{}</b>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    )
    slower = r'<span class="slower">\g<0></span>'
    return Markup(re.sub(r"; .*?(?=\. |$)", slower, str(marked), count=1))  # noqa: S704 (is escaped)


def _read(name: str) -> str:
    return (WEB / name).read_text("utf-8")
