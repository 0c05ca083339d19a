"""The Requests page in Chromium: zoom, hover, choosing a request by click, table and link, widths."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.driver import (
    CHROMIUM,
    WAIT_MS,
    Watched,
    watched_page,
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]
DRAWN = """() => {
  const g = document.querySelector('.st-key-lanes .js-plotly-plot');
  return g && g._fullLayout && g.querySelector('.xaxislayer-above text') && document.querySelector('.st-key-requests_csv button');
}"""
HOVER = "() => [...document.querySelectorAll('.st-key-lanes .hoverlayer .hovertext text')].map(t => t.textContent).join(' ')"
LABELS_INSIDE = """() => [...document.querySelectorAll('.st-key-lanes .annotation-text, .st-key-lanes .ytick text, .st-key-lanes .legendtext, .st-key-latency_chart text')]
  .filter(t => { const b = t.getBoundingClientRect(), p = t.closest('.js-plotly-plot').getBoundingClientRect(); return b.width && (b.left < p.left - 1 || b.right > p.right + 1); })
  .map(t => t.textContent)"""


@pytest.fixture(scope="module")
def address(server: str) -> str:
    return f"{server}/requests"


@pytest.fixture(scope="module")
def one_page(chromium: Any) -> Iterator[Watched]:
    with watched_page(chromium, 1280, 1400) as found:
        yield found


@pytest.fixture
def page(shared_page: Watched, address: str) -> Watched:
    """The sample's requests at 1,280 px; at the end nothing may have gone wrong."""
    shared_page.untouched(address, open_page)
    return shared_page


def open_page(page: Watched, url: str) -> None:
    page.page.goto(url)
    page.page.wait_for_function(DRAWN, timeout=WAIT_MS)
    page.settle()


def row(page: Watched, nth: int) -> dict[str, float]:
    """Where a row of the lanes is on the screen."""
    found: dict[str, float] = (
        page.page.locator(".st-key-lanes .nsewdrag").nth(nth).bounding_box()
    )
    return found


def query(page: Watched) -> dict[str, list[str]]:
    return urllib.parse.parse_qs(urllib.parse.urlsplit(page.page.url).query)


def wait_for_link(page: Watched, pattern: str) -> None:
    page.page.wait_for_function(
        f"() => /{pattern}/.test(decodeURIComponent(location.search))", timeout=WAIT_MS
    )
    page.settle()


def shown_range(page: Watched) -> list[float]:
    script = "() => document.querySelector('.st-key-lanes .js-plotly-plot')._fullLayout.xaxis.range.map(Number)"
    return page.page.evaluate(script)  # type: ignore[no-any-return]


def wait_for_width(page: Watched, low: float, high: float) -> None:
    """Until the lanes show more than `low` and less than `high` seconds: the URL knows it before."""
    page.page.wait_for_function(
        """([low, high]) => {
          const [a, b] = document.querySelector('.st-key-lanes .js-plotly-plot')._fullLayout.xaxis.range.map(Number);
          return b - a > low && b - a < high;
        }""",
        arg=[low, high],
        timeout=WAIT_MS,
    )


def drag(page: Watched, start_frac: float, end_frac: float) -> None:
    box = row(page, 0)
    y = box["y"] + box["height"] / 2
    at = [
        box["x"] + box["width"] * f for f in (start_frac, (start_frac + end_frac) / 2, end_frac)
    ]
    page.page.mouse.move(at[0], y)
    page.page.mouse.down()
    for x in at[1:]:
        page.page.mouse.move(x, y + 3, steps=5)
    page.page.mouse.up()


def test_a_drag_goes_from_requests_by_arrival_to_lanes_and_keeps_the_range_on_other_pages(
    page: Watched,
) -> None:
    assert "where they arrived" in page.page.inner_text(".st-key-lanes")

    drag(page, 0.20, 0.24)
    wait_for_link(page, "[?&]t=")
    page.page.wait_for_function(
        "() => /a strip/.test(document.querySelector('.st-key-lanes').innerText)",
        timeout=WAIT_MS,
    )

    start, end = shown_range(page)
    assert (end - start) / 775 == pytest.approx(0.04, abs=0.015)
    text = page.page.inner_text(".st-key-lanes")
    assert "a strip" in text
    assert "preempted longest" in text
    page.picture("requests-1280-zoomed", full_page=True)
    page.page.get_by_role("link", name="Compare").first.click()
    page.wait_for_chart()
    page.settle()
    script = "() => document.querySelector('.st-key-timeline .js-plotly-plot')._fullLayout.xaxis.range.map(Number)"
    assert page.page.evaluate(script) == pytest.approx([start, end], rel=1e-3)


def test_one_cursor_runs_through_all_rows_and_a_click_chooses_the_request(
    page: Watched,
) -> None:
    sky = row(page, 2)
    at = sky["x"] + sky["width"] * 0.3, sky["y"] + sky["height"] * 0.93

    page.page.mouse.move(at[0] - 40, at[1])
    page.page.mouse.move(*at, steps=6)
    page.page.wait_for_function(
        f"() => /lasted/.test(({HOVER})())",
        timeout=WAIT_MS,
    )
    told = str(page.steady(HOVER))  # a busy browser is still where the mouse was before
    spike = page.page.locator(".st-key-lanes .spikeline").first.bounding_box()
    page.page.mouse.click(*at)
    wait_for_link(page, "[?&]request=")

    found = re.search(r"request (\S+?) in A", told)
    assert found
    page.page.locator(".st-key-chosen .js-plotly-plot").wait_for(timeout=WAIT_MS)
    assert query(page)["request"] == [found.group(1)]
    assert spike["height"] > 3 * sky["height"]
    chosen = page.page.locator(".st-key-chosen")
    assert f"Request {found.group(1)}" in chosen.inner_text()
    assert chosen.locator(".js-plotly-plot").count() == 1


def test_a_link_shows_the_request_and_zooms_to_it(shared_page: Watched, address: str) -> None:
    page = shared_page
    page.elsewhere(f"{address}?request=376", open_page)

    page.page.get_by_role("button", name="Zoom to it").click()
    wait_for_link(page, "[?&]t=")
    wait_for_width(page, 20.8, 40)

    start, end = shown_range(page)
    assert start < 131.5
    assert end > 152
    page.page.get_by_role("button", name="Close").click()
    page.page.wait_for_function(
        "() => !document.querySelector('.st-key-chosen')", timeout=WAIT_MS
    )


def test_keys_zoom_and_show_all(page: Watched) -> None:
    start, end = shown_range(page)

    page.page.keyboard.press("w")
    wait_for_width(page, 0.55 * (end - start), 0.65 * (end - start))
    zoomed = shown_range(page)
    page.page.keyboard.press("0")
    wait_for_width(page, 0.99 * (end - start), 1.01 * (end - start))

    assert zoomed == pytest.approx(
        [start + 0.2 * (end - start), end - 0.2 * (end - start)], rel=0.02
    )
    assert shown_range(page) == pytest.approx([start, end])


def test_the_table_is_searched_on_the_server_and_downloaded_whole(
    page: Watched, tmp_path: Path
) -> None:
    box = page.page.get_by_label("Find", exact=True)
    box.fill("19")
    box.press("Enter")
    page.page.wait_for_function(
        "() => /of 2,000, whose id holds/.test(document.body.innerText)", timeout=WAIT_MS
    )
    page.settle()

    with page.page.expect_download(timeout=WAIT_MS) as download:
        page.page.locator(".st-key-requests_csv button").click()
    download.value.save_as(tmp_path / "requests.csv")

    lines = (tmp_path / "requests.csv").read_text().splitlines()
    assert lines[0].startswith("request,arrival_s,prompt_tokens")
    assert len(lines) > 100
    assert all("19" in line.split(",")[0] for line in lines[1:])


def test_bounds_are_in_the_link_and_in_the_figure(page: Watched) -> None:
    box = page.page.get_by_label("TTFT at most (s)")
    box.fill("5")
    box.press("Enter")
    wait_for_link(page, "most_ttft=5")
    page.page.wait_for_function(
        "() => /your bound 5.00 s/.test(document.querySelector('.st-key-latency_chart').textContent)",
        timeout=WAIT_MS,
    )

    assert "Missed TTFT 5.00 s" in page.page.inner_text("[data-testid=stMain]")


def test_axe_finds_nothing_wrong(shared_page: Watched, address: str) -> None:
    from axe_playwright_python.sync_playwright import Axe

    shared_page.elsewhere(f"{address}?request=376", open_page)

    found = Axe().run(shared_page.page).response["violations"]

    ours = [(v["id"], [n["html"][:160] for n in v["nodes"]]) for v in found]
    assert ours == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_width_and_no_brightness_cuts_a_label_off(
    chromium: Any, address: str, scheme: str
) -> None:
    sizes = {"light": [(1440, 900), (390, 844)], "dark": [(1920, 1080)]}[scheme]
    with watched_page(chromium, *sizes[0], scheme) as page:
        open_page(page, f"{address}?request=376&t=130-160")

        for width, height in sizes:
            page.resize(width, height)
            page.picture(f"requests-{width}-{scheme}", full_page=True)
            assert page.page.evaluate(LABELS_INSIDE) == [], width
            wide = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert page.page.evaluate(wide) <= 0, width
        assert page.errors == []
