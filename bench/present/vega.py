"""The charting library that is part of every page: Vega-Lite, as bundled by vl-convert."""

import functools
import importlib.metadata

import vl_convert

from bench.records import user_cache

VERSION = "6.1"
"""Version of Vega-Lite. vl-convert bundles several; bench/present/web/charts/ targets this one."""

LICENCE = (
    "Charts by Vega, Vega-Lite and Vega-Embed of the University of Washington Interactive Data Lab "
    "(BSD 3-Clause licence, https://github.com/vega), and the parts of D3 that they use, by Mike "
    "Bostock (ISC licence, https://d3js.org). Their code is in this file."
)


@functools.cache
def library() -> str:
    """Return JavaScript that defines `vegaEmbed`, about 0.9 MB; fixed by vl-convert's version.

    Expressions have to run in its own interpreter (`ast`): the page's policy forbids `eval`.
    Bundling takes two seconds, so the result is kept in the user's cache.
    """
    packer = importlib.metadata.version("vl-convert-python")
    name = f"vega-{packer}-{VERSION}.js"
    kept = user_cache.read(name)
    if kept is not None:
        return kept.decode()
    text: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VERSION)
    user_cache.write(name, text.encode())
    return text
