"""The charting library that is part of every page: Vega-Lite, as bundled by vl-convert."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata

import vl_convert
from platformdirs import user_cache_path

from bench.records import files

VERSION = "6.1"
"""Of Vega-Lite. vl-convert holds several; bench/present/web/charts/ is written for it."""

LICENCE = (
    "Charts by Vega, Vega-Lite and Vega-Embed of the University of Washington Interactive Data Lab "
    "(BSD 3-Clause licence, https://github.com/vega), and the parts of D3 that they use, by Mike "
    "Bostock (ISC licence, https://d3js.org). Their code is in this file."
)


@functools.cache
def library() -> str:
    """JavaScript that defines `vegaEmbed`, about 0.9 MB; the same for the same vl-convert.

    Expressions are to be run by its own interpreter (`ast`): the page's policy forbids `eval`.
    Packing takes two seconds, so the result is kept in the user's cache.
    """
    packer = importlib.metadata.version("vl-convert-python")
    kept = user_cache_path("lockstep") / f"vega-{packer}-{VERSION}.js"
    with contextlib.suppress(OSError):
        return kept.read_text("utf-8")
    text: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VERSION)
    # Where nothing can be kept, the next report packs it again.
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        files.write(kept, text)
    return text
