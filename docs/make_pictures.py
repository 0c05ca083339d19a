"""Pictures of the real app with the bundled sample, for README and docs: `python -m docs.make_pictures`.

It starts the app, drives it in Chromium and writes docs/pictures/. It knows which picture shows what.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.browser.driver import CHROMIUM, Watched, browser, running_app, watched_page

PICTURES = Path(__file__).parent / "pictures"
# name -> width, height, colour scheme, query, whether the cursor's box is shown
SHOTS = {
    "compare": (1440, 1240, "light", "", False),
    "compare-dark": (1440, 1240, "dark", "?t=340-490", True),
}


def main() -> None:
    """Take every picture. Raises RuntimeError where no chromium is found."""
    if CHROMIUM is None:
        raise RuntimeError(
            "no chromium was found: install one, such as Debian's package of that name"
        )
    PICTURES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as cache,
        running_app(Path(cache)) as address,
        browser() as chromium,
    ):
        for name, (width, height, scheme, query, has_cursor) in SHOTS.items():
            with watched_page(chromium, width, height, scheme) as page:
                page.open(f"{address}/{query}")
                page.settle()
                page.page.wait_for_timeout(1500)
                if has_cursor:
                    _put_cursor(page)
                page.page.screenshot(path=PICTURES / f"{name}.png")
                print(PICTURES / f"{name}.png")


def _put_cursor(page: Watched) -> None:
    """Show the cursor's box, which a still picture would not have."""
    box = page.page.locator(".st-key-timeline .nsewdrag").first.bounding_box()
    page.page.mouse.move(box["x"] + box["width"] * 0.62, box["y"] + 120, steps=5)
    page.page.wait_for_timeout(1500)


if __name__ == "__main__":
    main()
