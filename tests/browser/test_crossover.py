"""The Crossover page in Chromium: controls and URL, keyboard, widths, dark mode, accessibility."""

from __future__ import annotations

import re
import urllib.parse
from typing import Any

import pytest

from tests.browser.driver import CHROMIUM, WAIT_MS, Watched, watched_page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]
DRAWN = """() => ['cx_curves', 'cx_map', 'cx_intensity'].every(
  k => document.querySelector(`.st-key-${k} .js-plotly-plot text`))"""
VERDICT = "() => document.querySelector('.st-key-verdict strong').innerText"


def show(page: Watched, url: str) -> None:
    """Go there and wait until everything is drawn."""
    page.page.goto(url)
    page.page.wait_for_function(DRAWN, timeout=WAIT_MS)
    page.settle()


@pytest.fixture(scope="module")
def address(server: str) -> str:
    return f"{server}/crossover"


@pytest.fixture
def page(shared_page: Watched, address: str) -> Watched:
    """The page at 1,280 px on the bundled sample, untouched."""
    shared_page.untouched(address, show)
    return shared_page


def query(page: Watched) -> dict[str, list[str]]:
    return urllib.parse.parse_qs(urllib.parse.urlsplit(page.page.url).query)


def verdict(page: Watched) -> str:
    return str(page.page.evaluate(VERDICT))


def wait_for_another(page: Watched, before: str) -> str:
    page.page.wait_for_function(
        f"(before) => ({VERDICT})() !== before", arg=before, timeout=WAIT_MS
    )
    page.settle()
    return verdict(page)


def test_the_sample_is_judged_with_its_victims_on_the_chart(page: Watched) -> None:
    assert re.match(r"Recompute is cheaper from 16 to \d+ tokens, and swap at", verdict(page))
    assert page.page.locator(".st-key-cx_curves .scatterlayer .trace").count() >= 6
    text = page.page.locator(".st-key-verdict").inner_text()
    assert "A (recompute): of 176 victims" in text


def test_a_control_is_set_by_keys_and_the_link_shows_the_same(
    page: Watched, chromium: Any
) -> None:
    before = verdict(page)
    field = page.page.locator('input[aria-label="Still cached (%)"]')
    field.focus()
    page.page.keyboard.press("Control+a")
    page.page.keyboard.type("0")
    page.page.keyboard.press("Enter")
    after = wait_for_another(page, before)

    assert query(page)["cx_cached"] == ["0"]
    with watched_page(chromium, 1280, 800) as other:
        show(other, page.page.url)
        assert verdict(other) == after
        assert query(other)["cx_cached"] == ["0"]

    page.page.get_by_text("Back to the run's own").click()
    assert wait_for_another(page, after) == before
    assert "cx_cached" not in query(page)


def test_another_page_and_back_keeps_what_was_set(page: Watched) -> None:
    before = verdict(page)
    field = page.page.locator('input[aria-label="Running beside"]')
    field.fill("0")
    field.press("Enter")
    after = wait_for_another(page, before)

    page.page.get_by_role("link", name="Report").first.click()
    page.page.wait_for_function("() => location.pathname.endsWith('/report')", timeout=WAIT_MS)
    page.settle()
    page.page.get_by_role("link", name="Crossover").first.click()
    page.page.wait_for_function(DRAWN, timeout=WAIT_MS)
    page.settle()

    assert verdict(page) == after
    assert query(page)["cx_beside"] == ["0"]


def test_axe_finds_nothing_wrong(page: Watched) -> None:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page.page).response["violations"]

    assert [(v["id"], [n["html"][:160] for n in v["nodes"]]) for v in found] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_everything_without_scrolling_sideways(
    chromium: Any, address: str, scheme: str
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with watched_page(chromium, 390, 844, scheme) as found:
        show(found, f"{address}?cx_path=loop&cx_cached=0")
        widths = found.page.evaluate(
            "() => [document.querySelector('[data-testid=stMain]').scrollWidth, innerWidth]"
        )
        frame = found.page.evaluate(
            "() => { const f = document.querySelector('.st-key-cx_map_frame'); return [f.scrollWidth, f.clientWidth]; }"
        )
        found.picture(f"crossover-phone-{scheme}", full_page=True)
        wrong = Axe().run(found.page).response["violations"]

        assert widths[0] <= widths[1]
        assert frame[0] >= 860 > frame[1]  # the map alone scrolls
        assert [(v["id"], [n["html"][:160] for n in v["nodes"]]) for v in wrong] == []
        assert found.errors == []
        assert found.outside == []
