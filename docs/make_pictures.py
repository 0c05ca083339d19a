"""Pictures of the real app with the bundled samples, for README and docs: `make shots`.

It starts the app, drives it in Chromium and writes docs/pictures/. It knows which picture shows what.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.browser.driver import CHROMIUM, WAIT_MS, Watched, browser, running_app, watched_page

PICTURES = Path(__file__).parent / "pictures"
CHARTS_DRAWN = """() => {
  const charts = [...document.querySelectorAll('[data-testid=stMain] .js-plotly-plot')];
  return charts.length && charts.every((g) => g._fullLayout && g.calcdata)
    && !document.querySelector('[data-testid=stMain] [data-testid=stSkeleton]');
}"""


def _put_cursor(page: Watched) -> None:
    """Show the cursor's box, which a still picture would not have."""
    box = page.page.locator(".st-key-timeline .nsewdrag").first.bounding_box()
    page.page.mouse.move(box["x"] + box["width"] * 0.62, box["y"] + 120, steps=5)
    page.page.wait_for_timeout(1500)


def _try_a_sample(page: Watched) -> None:
    """Read one of the bundled pieces of evidence."""
    page.page.get_by_role("button", name="vLLM V0: preemption warnings").click()
    page.page.wait_for_selector(".st-key-evidence_chart .js-plotly-plot", timeout=WAIT_MS)


def _wait_for_curve(page: Watched) -> None:
    """Until the curve has all its points and its job is no more on the page."""
    page.page.wait_for_selector(".st-key-curve_chart .js-plotly-plot", timeout=WAIT_MS)
    page.page.wait_for_function(
        "() => !document.querySelector('[data-testid=stMain] [data-testid=stProgress]')",
        timeout=WAIT_MS,
    )


def _show_the_sample_fleet(page: Watched) -> None:
    """Simulate the sample fleet and draw its ranks."""
    page.page.click(".st-key-fleet_sample button")
    page.page.wait_for_selector(".st-key-fleet_chart .js-plotly-plot", timeout=WAIT_MS)
    page.page.wait_for_function(CHARTS_DRAWN, timeout=WAIT_MS)
    page.settle()
    page.page.mouse.move(0, 0)


@dataclass(frozen=True)
class Shot:
    """One picture. path: of the page with its query; has_chart: whether the page opens with one;
    then: what to do before the picture is taken."""

    path: str = "/"
    width: int = 1440
    height: int = 1240
    scheme: str = "light"
    has_chart: bool = True
    then: Callable[[Watched], Any] | None = None


SHOTS = {
    "compare": Shot(),
    "compare-dark": Shot("/?t=340-490", scheme="dark", then=_put_cursor),
    "compare-narrow": Shot(width=390, height=1100),
    "preemptions": Shot("/preemptions"),
    "requests": Shot("/requests"),
    "block-map": Shot("/block-map"),
    "crossover": Shot("/crossover"),
    "diagnose": Shot("/diagnose", has_chart=False, then=_try_a_sample),
    "what-if": Shot(
        "/what-if?kv_cache_dtype=fp8&over=num_gpu_blocks", height=1500, then=_wait_for_curve
    ),
    "sweeps": Shot("/sweeps"),
    "fleet": Shot("/fleet", has_chart=False, then=_show_the_sample_fleet),
    "report": Shot("/report", has_chart=False),
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
        for name, shot in SHOTS.items():
            with watched_page(chromium, shot.width, shot.height, shot.scheme) as page:
                _take(page, address, shot)
                page.page.screenshot(path=PICTURES / f"{name}.png")
                print(PICTURES / f"{name}.png")


def _take(page: Watched, address: str, shot: Shot) -> None:
    page.page.goto(f"{address}{shot.path}")
    page.page.wait_for_selector("[data-testid=stMain] h1", timeout=WAIT_MS)
    if shot.has_chart:
        page.page.wait_for_function(CHARTS_DRAWN, timeout=WAIT_MS)
    page.settle()
    if shot.then is not None:
        shot.then(page)
        page.settle()
    page.page.wait_for_timeout(1500)


if __name__ == "__main__":
    main()
