"""The pictures of screens in the documents, from a run that has kept rows and a recovery.

``python -m docs.generator.screens RUN`` renews them. They differ from run to run, so no test compares them.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from pathlib import Path

from tests.browser import Browser, viewed

from rolemesh_top.app import TopApp
from rolemesh_top.frame import FrameSource

IMAGES = Path(__file__).resolve().parents[1] / "images"
WIDTH, LARGEST = 1000, 60_000
"""Width of a page in pixels, and maximum size of a picture in bytes."""
FIRST = "document.querySelector('{}').href"
PAGES = {
    "overview": ("overview", "", 900),
    "flow": ("flow", "", 640),
    "time": ("time", "document.querySelector('#lanes[data-ready]') !== null", 600),
    "failure": ("failures", FIRST.format('[data-key="recoveries"] a'), 820),
    "conversation": ("rows?sort=reward", FIRST.format("#rows tbody a"), 800),
}
"""Each picture's page, what to wait for or the link to follow there, and the height in pixels."""


def main(run: Path) -> None:
    """Write the pictures."""
    with tempfile.TemporaryDirectory() as folder, viewed(run) as address:
        browser = Browser(Path(folder))
        try:
            browser.emulate(WIDTH)
            browser.ask("Page.navigate", url=address)
            for name, (page, wanted, height) in PAGES.items():
                show(browser, f"{address.partition('/overview')[0]}/{page}")
                if wanted and isinstance(found := browser.until(wanted), str):
                    show(browser, found)
                browser.until("!/The viewer reads the records/.test(document.body.innerText)")
                browser.picture(IMAGES / f"screen-{name}.webp", height)
        finally:
            browser.close()
    (IMAGES / "screen-top.svg").write_text(asyncio.run(terminal(run)))
    for path in sorted(IMAGES.glob("screen-*")):
        print(f"{path.name}: {path.stat().st_size:,} bytes")
        assert path.stat().st_size <= LARGEST, "too large"


def show(browser: Browser, address: str) -> None:
    """Load a page."""
    browser.ask("Page.navigate", url=address)
    browser.until("document.readyState === 'complete'")


async def terminal(run: Path) -> str:
    """Return the screen of `rolemesh top` as SVG, which asks no host for a font."""
    app = TopApp(FrameSource(run), 60.0, 60.0)
    async with app.run_test(size=(110, 34)) as pilot:
        while app.latest is None:
            await pilot.pause(0.1)
        await pilot.pause(0.5)
        return re.sub(
            r"@font-face \{.*?\}", "", app.export_screenshot(title=f"rolemesh top {run.name}"), flags=re.DOTALL
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
