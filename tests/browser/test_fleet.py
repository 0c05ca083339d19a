"""The Fleet page in Chromium: lines of all ranks, zoom, the way to a rank, a phone's width."""

from __future__ import annotations

import urllib.parse
from pathlib import Path

import pytest

from analyzer.pages.parts.store import Store
from tests.browser.driver import CHROMIUM, WAIT_MS, Watched
from tests.fleet_builders import skewed_fleet

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]
DRAWN = """() => {
  const g = document.querySelector('.st-key-fleet_chart .js-plotly-plot');
  return g && g._fullLayout && g.calcdata && g.querySelector('.xaxislayer-above text')
    && document.querySelector('.st-key-fleet_ask');
}"""
RANGE = "() => document.querySelector('.st-key-fleet_chart .js-plotly-plot')._fullLayout.xaxis.range"
POINTS = (
    "() => document.querySelector('.st-key-fleet_chart .js-plotly-plot')._fullData[0]._length"
)
WIDTHS = "() => { const m = document.querySelector('[data-testid=stMain]'); return [m.scrollWidth, m.clientWidth]; }"


@pytest.fixture(scope="module")
def address(server: str, store_root: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page on a fleet of four ranks, nearly half of the requests on the first."""
    root = skewed_fleet(tmp_path_factory.mktemp("fleet") / "skewed")
    return f"{server}/fleet?fleet=file:{Store(store_root).link(root).id}"


def show(page: Watched, url: str) -> None:
    page.page.goto(url)
    page.page.wait_for_function(DRAWN, timeout=WAIT_MS)
    page.settle()


@pytest.fixture
def page(shared_page: Watched, address: str) -> Watched:
    shared_page.untouched(address, show)
    return shared_page


def query(page: Watched) -> dict[str, list[str]]:
    return urllib.parse.parse_qs(urllib.parse.urlsplit(page.page.url).query)


def test_at_390_pixels_nothing_is_wider_than_the_screen(page: Watched) -> None:
    page.page.set_viewport_size({"width": 390, "height": 844})
    page.settle()

    width, room = page.page.evaluate(WIDTHS)
    assert width <= room
    page.picture("fleet-390", full_page=True)
    page.resize(1280, 800)


def test_a_drag_shows_that_part_of_all_ranks_in_detail(page: Watched) -> None:
    said = page.page.inner_text("[data-testid=stMain]")
    assert "Busiest is rank 0" in said
    assert "Fleet · skewed: 4 ranks" in said
    page.picture("fleet-1280", full_page=True)
    low, high = page.page.evaluate(RANGE)
    box = page.page.locator(".st-key-fleet_chart .nsewdrag").first.bounding_box()
    assert box is not None

    page.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 40)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40, steps=6)
    page.page.mouse.up()
    page.page.wait_for_function("() => location.search.includes('t=')", timeout=WAIT_MS)
    page.settle()

    start, end = page.page.evaluate(RANGE)
    span = high - low
    assert start == pytest.approx(low + 0.3 * span, abs=0.03 * span)
    assert end == pytest.approx(low + 0.6 * span, abs=0.03 * span)
    assert page.page.evaluate(POINTS) == 1_201, "the part has as many buckets as the whole had"


def test_a_rank_opens_on_the_preemptions_page(page: Watched) -> None:
    table = page.page.locator(".st-key-fleet_table canvas").first
    table.scroll_into_view_if_needed()
    page.settle()
    box = table.bounding_box()
    assert box is not None
    page.page.mouse.click(box["x"] + 18, box["y"] + 53)  # the first row's tick box
    page.page.wait_for_selector(".st-key-fleet_open_preemptions button", timeout=WAIT_MS)

    page.page.click(".st-key-fleet_open_preemptions button")
    page.page.wait_for_url("**/preemptions?**", timeout=WAIT_MS)
    page.settle()

    assert query(page)["a"][0].startswith("file:")
    assert "recompute" in page.page.inner_text(".st-key-header h1")
