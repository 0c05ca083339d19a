"""The Preemptions page in Chromium: list, keys, links, widths, dark mode, accessibility."""

from __future__ import annotations

import re
import urllib.parse
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
  const g = document.querySelector('.st-key-around_chart .js-plotly-plot');
  return g && g._fullLayout && g.calcdata && g.querySelector('.xaxislayer-above text')
    && document.querySelector('.st-key-preemptions_over_time .js-plotly-plot .xaxislayer-above text');
}"""
TITLE = "() => document.querySelector('.st-key-story h2').innerText"


@pytest.fixture(scope="module")
def address(server: str) -> str:
    return f"{server}/preemptions"


def show(page: Watched, url: str) -> None:
    """Go there and wait until everything is drawn."""
    page.page.goto(url)
    page.page.wait_for_function(DRAWN, timeout=WAIT_MS)
    page.settle()


@pytest.fixture
def page(shared_page: Watched, address: str) -> Watched:
    """The page at 1,280 px on the bundled sample; at the end nothing may have gone wrong."""
    shared_page.untouched(address, show)
    return shared_page


def title(page: Watched) -> str:
    return str(page.page.evaluate(TITLE))


def wait_for_another(page: Watched, before: str) -> str:
    """Wait until another preemption is told, and the URL with it; its title."""
    page.page.wait_for_function(
        f"(before) => ({TITLE})() !== before", arg=before, timeout=WAIT_MS
    )
    page.settle()
    return title(page)


def query(page: Watched) -> dict[str, list[str]]:
    return urllib.parse.parse_qs(urllib.parse.urlsplit(page.page.url).query)


def test_the_first_preemption_is_told_with_its_list_lanes_and_totals(page: Watched) -> None:
    assert re.fullmatch(r"A · Request 53 evicted at step 480 \(19\.9 s\)", title(page))
    card = page.page.inner_text(".st-key-story")
    assert (
        "Request 49 needed a block and 0 of 2,588 were free; victim rule: last admitted."
        in card
    )
    assert "Had it been swapped: " in card
    assert "1 to 100 of 343 preemptions" in page.page.inner_text("[data-testid=stMain]")
    labels = page.page.evaluate(
        "() => document.querySelector('.st-key-around_chart .js-plotly-plot').layout.yaxis.ticktext"
    )
    assert labels[-1] == "<b>▼ 53</b> evicted", "the last admitted is the last"
    page.picture("preemptions-1280", full_page=True)


def test_axe_finds_nothing_wrong(page: Watched) -> None:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page.page).response["violations"]

    assert [(v["id"], [n["html"][:160] for n in v["nodes"]]) for v in found] == []


def test_arrow_keys_step_through_and_the_link_shows_the_same(
    page: Watched, address: str, chromium: Any
) -> None:
    first = title(page)
    page.page.keyboard.press("ArrowRight")
    second = wait_for_another(page, first)
    page.page.keyboard.press("ArrowRight")
    third = wait_for_another(page, second)
    page.page.keyboard.press("ArrowLeft")
    assert wait_for_another(page, third) == second
    assert query(page)["event"] == ["B-480-53"]

    with watched_page(chromium, 1280, 800) as other:
        show(other, page.page.url)
        assert title(other) == second


def test_arrow_keys_in_a_search_move_in_its_text(page: Watched) -> None:
    first = title(page)
    box = page.page.get_by_label("Find a request")
    box.click()
    box.type("53")
    page.page.keyboard.press("ArrowLeft")
    page.page.keyboard.press("Enter")
    page.page.wait_for_function("() => /who=53/.test(location.search)", timeout=WAIT_MS)
    page.settle()

    assert title(page) == first, "the chosen one still fits"
    assert "of 343" not in page.page.inner_text(".st-key-step_through")


def test_a_press_on_a_row_tells_that_row(page: Watched) -> None:
    first = title(page)
    box = page.page.locator(".st-key-preemption_rows").bounding_box()

    page.page.mouse.click(box["x"] + 16, box["y"] + 36 + 35 * 4 + 17)

    assert wait_for_another(page, first).startswith("B · Request 65 evicted at step 643")
    assert query(page)["event"] == ["B-643-65"]


def test_order_and_run_are_in_the_link_and_come_back_from_it(
    page: Watched, chromium: Any
) -> None:
    first = title(page)
    page.page.get_by_role("combobox", name="Order").click()
    page.page.get_by_role("option", name="Costliest first").click()
    costliest = wait_for_another(page, first)
    page.page.get_by_role("radio", name="B", exact=True).click()
    in_b = wait_for_another(page, costliest)
    assert in_b.startswith("B · ")
    assert query(page)["side"] == ["B"]

    with watched_page(chromium, 1280, 800) as other:
        show(other, page.page.url)
        assert title(other) == in_b
        assert "1 of 167" in other.page.inner_text(".st-key-step_through")


def test_other_pages_lead_here_and_back_with_the_same_pair(page: Watched) -> None:
    page.page.get_by_role("link", name="Compare").first.click()
    page.wait_for_chart()
    page.settle()

    page.page.get_by_role("link", name="Each one told, and their totals").click()
    page.page.wait_for_function(DRAWN, timeout=WAIT_MS)
    page.settle()

    assert "343 preemptions" in page.page.inner_text("[data-testid=stMain]")


def test_its_moment_is_shown_on_the_timeline_and_a_zoom_there_stays(page: Watched) -> None:
    ranges = "() => document.querySelector('.st-key-timeline .js-plotly-plot')._fullLayout.xaxis.range.map(Number)"
    page.page.get_by_role("link", name="This moment on the timeline").click()
    page.wait_for_chart()
    page.settle()

    start, end = page.page.evaluate(ranges)
    assert start < 19.9 < end, "the first preemption is at 19.9 s"
    assert end - start < 60, "of 775 s"
    page.page.keyboard.press("s")
    page.page.wait_for_function(
        f"() => {{ const [a, b] = ({ranges})(); return b - a > {(end - start) * 1.5}; }}",
        timeout=WAIT_MS,
    )
    page.settle()
    assert "go=" not in page.page.url
    shown = page.page.evaluate(ranges)
    page.page.keyboard.press("r")  # drawn again, as any later run does
    page.settle()
    assert page.page.evaluate(ranges) == pytest.approx(shown)


def test_a_top_victim_is_looked_up_in_the_list(page: Watched) -> None:
    table = page.page.locator(".st-key-top_victims")
    table.scroll_into_view_if_needed()
    box = table.bounding_box()

    page.page.mouse.click(box["x"] + 16, box["y"] + 36 + 17)

    page.page.wait_for_function("() => /who=/.test(location.search)", timeout=WAIT_MS)
    page.settle()
    assert page.page.get_by_label("Find a request").input_value() == query(page)["who"][0]
    assert "of 343" not in page.page.inner_text(".st-key-step_through")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_width_and_no_brightness_cuts_anything_off(
    chromium: Any, address: str, scheme: str
) -> None:
    sizes = {"light": [(1440, 900), (1920, 1080), (390, 844)], "dark": [(1440, 900)]}[scheme]
    with watched_page(chromium, *sizes[0], scheme) as page:
        show(page, address)
        for width, height in sizes:
            page.resize(width, height)
            wide = page.page.evaluate(
                """() => [...document.querySelectorAll('.js-plotly-plot')].map(g => {
                     const paper = g.getBoundingClientRect();
                     return [...g.querySelectorAll('text')].filter(t => t.textContent.trim())
                       .map(t => t.getBoundingClientRect())
                       .filter(r => r.width && (r.left < paper.left - 1 || r.right > paper.right + 1)).length;
                   })"""
            )
            legend_over_title = page.page.evaluate(
                """() => {
                     const g = document.querySelector('.st-key-around_chart .js-plotly-plot');
                     const legend = g.querySelector('.legend').getBoundingClientRect();
                     const title = [...g.querySelectorAll('.annotation-text')].find(t => /Blocks in use/.test(t.textContent));
                     return legend.bottom > title.getBoundingClientRect().top + 2;
                   }"""
            )
            page.picture(f"preemptions-{width}-{scheme}", full_page=True)

            assert wide == [0] * len(wide), width
            assert not legend_over_title, width
        assert page.errors == []
