"""Screenshot reports as people see them, to be looked at: `nox -s screenshots`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from playwright.sync_api import sync_playwright

from bench.records.paths import ROOT
from bench.trials.selftest.first_paint import chromium, flags

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FOLDER = ROOT / ".cache" / "screenshots"
"""Ignored by git: one folder for each run, one picture for each look."""

LOOKS: dict[str, dict[str, Any]] = {
    "wide": {"width": 1440},
    "narrow": {"width": 390},
    "dark": {"width": 1440, "color_scheme": "dark"},
    "print": {"width": 794, "media": "print"},
    "deuteranopia": {"width": 1440, "vision": "deuteranopia"},
    "protanopia": {"width": 1440, "vision": "protanopia"},
    "tritanopia": {"width": 1440, "vision": "tritanopia"},
}
"""Width in CSS pixels (794 is A4 at 96 per inch), and what the browser is to emulate."""

HEIGHT = 900
"""Height of the window in CSS pixels; a picture is as high as its page."""

UNFOLD = """document.querySelectorAll('details').forEach((part) => {
  part.open = !part.closest('figure');
})"""
"""JavaScript that unfolds everything but the numbers behind charts."""

DRAWN = "body[data-drawn=all]"
"""What a page is after its last chart was drawn."""

PATIENCE_MS = 120_000


def main() -> None:
    """Screenshot the reports of the named runs, or of all in reports/, with everything unfolded.

    Raises:
      SystemExit: a named run has no report, or there is no Chromium on the PATH.
    """
    names = sys.argv[1:] or sorted(path.parent.name for path in ROOT.glob("reports/*/report.html"))
    pages = {name: ROOT / "reports" / name / "report.html" for name in names}
    for name, page in pages.items():
        if not page.is_file():
            sys.exit(f"reports/{name} has no report.html; `nox -s report -- {name}` makes it")
    path = chromium()
    if path is None:
        sys.exit("Chromium is needed; on Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags())
        for name, page in pages.items():
            for look, emulated in LOOKS.items():
                picture = FOLDER / name / f"{look}.png"
                take(browser, page, picture, **emulated)
                sys.stdout.write(f"{picture.relative_to(ROOT)}\n")


def take(
    browser: Browser,
    path: Path,
    picture: Path,
    *,
    width: int,
    color_scheme: Any = "light",
    media: Any = "screen",
    vision: str = "none",
) -> None:
    """Screenshot a whole page; the last three are values of the browser's own emulation."""
    page = browser.new_page(viewport={"width": width, "height": HEIGHT}, color_scheme=color_scheme)
    try:
        page.goto(path.as_uri())
        page.wait_for_selector(DRAWN, timeout=PATIENCE_MS)
        # Opening a page would end what is emulated.
        page.emulate_media(media=media)
        session = page.context.new_cdp_session(page)
        session.send("Emulation.setEmulatedVisionDeficiency", {"type": vision})
        page.evaluate(UNFOLD)
        page.screenshot(path=picture, full_page=True)
    finally:
        page.close()


if __name__ == "__main__":
    main()
