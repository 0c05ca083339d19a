"""The What-if page in Chromium: a moved slider, the keyboard, a link opened, the curve, narrow windows."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from tests.browser.driver import CHROMIUM, WAIT_MS, Watched, watched_page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]
CARDS = "() => document.querySelector('.kv-what-if')?.innerText"
CURVE_DONE = """() => {
  const g = document.querySelector('.st-key-curve_chart .js-plotly-plot');
  return g && g._fullLayout && g.calcdata && !document.querySelector('[data-testid=stMain] [data-testid=stProgress]');
}"""
ENDS = "() => [...document.querySelectorAll('.st-key-curve_chart .annotation-text')].map(t => t.textContent)"
TOO_WIDE = """() => [...document.querySelectorAll('[data-testid=stMain] .kv-card, .st-key-lever_grid > *, .st-key-curve_chart .annotation-text')]
  .filter(e => { const b = e.getBoundingClientRect(); return b.width && (b.left < -1 || b.right > innerWidth + 1); })
  .map(e => e.textContent)"""


@pytest.fixture(scope="module")
def one_page(chromium: Any) -> Iterator[Watched]:
    with watched_page(chromium, 1280, 1400) as found:
        yield found


@pytest.fixture
def page(shared_page: Watched, server: str) -> Watched:
    """The sample with fp8 KV; at the end nothing may have gone wrong."""
    shared_page.untouched(f"{server}/what-if?kv_cache_dtype=fp8", open_page)
    return shared_page


def open_page(page: Watched, url: str) -> None:
    page.page.goto(url)
    page.page.wait_for_function(CARDS, timeout=WAIT_MS)
    page.page.wait_for_function(CURVE_DONE, timeout=WAIT_MS)
    page.settle()


def query(page: Watched) -> dict[str, list[str]]:
    return urllib.parse.parse_qs(urllib.parse.urlsplit(page.page.url).query)


def wait_for_other_cards(page: Watched, before: str) -> None:
    page.page.wait_for_function(
        f"(before) => (({CARDS})() ?? before) !== before", arg=before, timeout=WAIT_MS
    )


def test_a_link_opens_with_its_change_judged_against_the_base(page: Watched) -> None:
    said = page.page.evaluate(CARDS)

    assert "▼ 98.9 % better" in said
    assert "base 176" in said
    assert page.page.get_by_role("button", name="KV cache type auto → fp8").is_visible()
    assert page.page.get_by_text("vllm serve MODEL --kv-cache-dtype fp8").is_visible()


def test_axe_finds_nothing_wrong(page: Watched) -> None:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page.page)

    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("width", [1280, 1920, 390])
def test_nothing_leaves_the_window(width: int, page: Watched) -> None:
    page.resize(width, 1400)

    assert page.page.evaluate(TOO_WIDE) == []
    wide = page.page.evaluate("() => document.documentElement.scrollWidth")
    assert wide <= width
    page.picture(f"what-if-{width}")
    page.resize(1280, 1400)


def test_the_arrow_key_moves_a_slider_and_the_figures_follow(page: Watched) -> None:
    before = page.page.evaluate(CARDS)

    slider = page.page.locator(".st-key-wi_gpu_memory_utilization").get_by_role("slider")
    slider.focus()
    slider.press("ArrowLeft")

    wait_for_other_cards(page, before)
    page.page.wait_for_function(CURVE_DONE, timeout=WAIT_MS)
    page.settle()
    assert query(page)["gpu_memory_utilization"] == ["0.91"]
    assert query(page)["kv_cache_dtype"] == ["fp8"]
    page.page.reload()  # the address holds the whole question
    page.page.wait_for_function(CARDS, timeout=WAIT_MS)
    page.settle()
    assert query(page)["gpu_memory_utilization"] == ["0.91"]
    assert page.page.get_by_role("button", name="GPU memory utilisation 0.92").is_visible()


def test_a_chip_is_taken_back_by_the_keyboard(page: Watched) -> None:
    before = page.page.evaluate(CARDS)

    page.page.get_by_role("button", name="KV cache type auto → fp8").press("Enter")

    wait_for_other_cards(page, before)
    page.settle()
    assert "kv_cache_dtype" not in query(page)
    assert "better" not in page.page.evaluate(CARDS)


def test_the_curve_has_its_marks_and_its_words(page: Watched) -> None:
    page.page.get_by_role("combobox", name="Curve over").click()
    page.page.get_by_role("option", name="KV pool").click()
    page.page.wait_for_function(
        f"() => ({ENDS})().some(t => t.includes('none tried from'))", timeout=WAIT_MS
    )
    page.page.wait_for_function(CURVE_DONE, timeout=WAIT_MS)
    page.settle()

    marks = page.page.evaluate(ENDS)
    assert marks[:2] == ["now 5,179", "base 2,589"]
    assert [m[:18] for m in marks[2:]] == ["A: none tried from", "B: none tried from"]
    chart = page.page.locator(".st-key-curve_chart [aria-label*='Preemptions against KV pool']")
    assert chart.count() == 1
    assert query(page)["over"] == ["num_gpu_blocks"]
