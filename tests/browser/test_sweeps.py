"""The Sweeps page in Chromium: the sample, links, an upload, recordings to Compare, widths, accessibility."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.browser.driver import CHROMIUM, WAIT_MS, Watched, watched_page
from tests.sweep_builders import run_inline, small_sweep

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]
DRAWN = """() => {
  const charts = ['sweep_heat', 'sweep_front', 'sweep_curve'].map(
    (k) => document.querySelector(`.st-key-${k} .js-plotly-plot`));
  return charts.every((g) => g && g._fullLayout && g.calcdata)
    && !document.querySelector('[data-testid=stMain] [data-testid=stSkeleton]');
}"""
CUT_OFF = """() => [...document.querySelectorAll('[data-testid=stMain] .js-plotly-plot')].flatMap((g) => {
  const frame = g.getBoundingClientRect();
  return [...g.querySelectorAll('text')].filter((t) => {
    const b = t.getBoundingClientRect();
    return b.width && (b.left < frame.left - 1 || b.right > frame.right + 1 || b.bottom > frame.bottom + 1);
  }).map((t) => t.textContent);
})"""
WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def address(server: str) -> str:
    return f"{server}/sweeps"


@pytest.fixture
def page(shared_page: Watched, address: str) -> Watched:
    """The page at 1,280 px; at the end nothing may have gone wrong in it."""
    shared_page.untouched(address, show)
    return shared_page


def show(page: Watched, url: str) -> None:
    page.page.goto(url)
    page.page.wait_for_function(DRAWN, timeout=WAIT_MS)
    page.settle()


def test_axe_finds_nothing_wrong(page: Watched) -> None:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page.page).response["violations"]

    assert [(v["id"], [n["html"][:160] for n in v["nodes"]]) for v in found] == []


def test_a_dropped_table_is_shown_and_its_recordings_open_on_compare_by_path(
    page: Watched, tmp_path: Path
) -> None:
    spec = small_sweep(tmp_path, "num_gpu_blocks=5,9", "preemption=recompute,swap")
    run_inline(spec, tmp_path / "out", keep=True)

    page.page.get_by_text("Open the table of a sweep").click()
    page.page.locator("[data-testid=stMain] input[type=file]").set_input_files(
        tmp_path / "out" / "sweep.parquet"
    )
    page.page.get_by_text("Recordings were kept: give the sweep's folder").wait_for(timeout=WAIT_MS)  # fmt: skip
    page.settle()
    page.page.get_by_label("or a path on this machine: the sweep's folder").fill(str(tmp_path / "out"))  # fmt: skip
    page.page.keyboard.press("Enter")
    page.page.get_by_text("Choose one to three rows").wait_for(timeout=WAIT_MS)
    page.settle()
    grid = page.page.locator(".st-key-sweep_cells canvas").first
    grid.scroll_into_view_if_needed()
    for row in (0, 1):  # their check boxes, in the first column of the canvas
        box = grid.bounding_box()
        page.page.mouse.click(box["x"] + 14, box["y"] + 35 + 35 * row + 17)
        page.settle()
    page.page.get_by_role("button", name="Compare 2 recordings").click()
    page.page.wait_for_function("() => location.pathname === '/' || /compare/.test(location.pathname)", timeout=WAIT_MS)  # fmt: skip
    page.wait_for_chart()

    assert page.page.url.count("file") >= 2
    assert "against" in page.page.inner_text(".st-key-header")


def test_a_link_opens_the_same_choice_and_a_choice_goes_into_it(
    shared_page: Watched, address: str
) -> None:
    page = shared_page
    page.elsewhere(f"{address}?sw_figure=num_preemptions&sw_at_max_num_seqs=256", show)

    assert "Preemptions over KV pool" in page.page.inner_text("[data-testid=stMain]")
    # Streamlit's select box: the text field opens the list.
    page.page.get_by_label("Preemption at").click()
    page.page.get_by_role("option", name="swap").click()
    page.page.wait_for_function("() => /sw_at_preemption_mode=swap/.test(location.search)", timeout=WAIT_MS)  # fmt: skip
    page.settle()

    assert "sw_figure=num_preemptions" in page.page.url
    assert "sw_at_max_num_seqs=256" in page.page.url


@pytest.mark.parametrize(
    ("width", "height", "scheme"),
    [(1440, 900, "light"), (1280, 800, "dark"), (390, 844, "light")],
)
def test_no_width_and_no_brightness_cuts_a_label_off(
    chromium: Any, address: str, width: int, height: int, scheme: str
) -> None:
    with watched_page(chromium, width, height, scheme) as page:
        show(page, address)

        page.picture(f"sweeps-{width}-{scheme}", full_page=True)
        assert page.page.evaluate(CUT_OFF) == []
        assert page.page.evaluate(WIDE) <= 0
        assert page.errors == []
