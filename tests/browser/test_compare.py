"""The Compare page in Chromium: first picture, zoom, upload of a trace, accessibility."""

from __future__ import annotations

import os
import re
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from tests.browser.driver import (
    CHROMIUM,
    ROOT,
    WAIT_MS,
    Watched,
    watched_page,
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]
COMPILE_MS = 600_000  # the simulator is compiled once on a machine
SHARED = Path(os.environ.get("KV_REPLAY_SHARED", ROOT / ".." / "shared")).resolve()
REAL_TRACE = SHARED / "traces" / "azure-llm-2023" / "AzureLLMInferenceTrace_conv.first-half.csv"
MADE_UP = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:{i // 600:02d}:{i / 10 % 60:09.6f},{300 + 37 * i % 900},{20 + 13 * i % 180}\n"
    for i in range(900)
)


@pytest.fixture(scope="module")
def address(server: str) -> str:
    return server


@pytest.fixture
def page(shared_page: Watched, address: str) -> Watched:
    """The page at 1,280 px with the bundled sample on it; at the end nothing may have gone wrong."""
    shared_page.untouched(address, Watched.open)
    return shared_page


def shown_range(page: Watched) -> list[float]:
    script = "() => document.querySelector('.st-key-timeline .js-plotly-plot')._fullLayout.xaxis.range.map(Number)"
    return page.page.evaluate(script)  # type: ignore[no-any-return]


def points_shown(page: Watched) -> int:
    """Points of the first long line whose x lies in the shown range."""
    script = """() => {
      const g = document.querySelector('.st-key-timeline .js-plotly-plot'), [a, b] = g._fullLayout.xaxis.range;
      const line = g._fullData.find(t => ['KV blocks · A', 'mean KV blocks · A'].includes(t.name) && t.line.width);
      return Array.from(line.x).filter(x => x >= a && x <= b).length;
    }"""
    return int(page.page.evaluate(script))


def drag(page: Watched, start_frac: float, end_frac: float) -> None:
    box = page.page.locator(".st-key-timeline .nsewdrag").first.bounding_box()
    y = box["y"] + 60
    at = [
        box["x"] + box["width"] * f for f in (start_frac, (start_frac + end_frac) / 2, end_frac)
    ]
    page.page.mouse.move(at[0], y)
    page.page.mouse.down()
    for x in at[1:]:
        page.page.mouse.move(x, y + 4, steps=5)
    page.page.mouse.up()


def wait_for_link(page: Watched, pattern: str, timeout_ms: int = WAIT_MS) -> str:
    page.page.wait_for_function(f"() => /{pattern}/.test(location.search)", timeout=timeout_ms)
    page.settle()
    return urllib.parse.unquote(urllib.parse.urlsplit(page.page.url).query)


def test_the_first_picture_is_the_sample_with_verdict_and_six_cards(page: Watched) -> None:
    text = page.page.inner_text("[data-testid=stMain]")

    assert "Sample data" in text
    assert page.page.locator(".kv-card").count() == 6
    assert re.search(r"[\d,]+ blocks", page.page.inner_text(".st-key-verdict"))
    box = page.page.locator(".st-key-timeline .js-plotly-plot").bounding_box()
    assert box["y"] < 500, "the chart starts on the first screen"


def test_axe_finds_nothing_wrong(page: Watched) -> None:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page.page).response["violations"]

    ours = [(v["id"], [n["html"][:160] for n in v["nodes"]]) for v in found]
    assert ours == []


def test_no_chosen_setting_is_cut_off(page: Watched) -> None:
    cut = page.page.evaluate(
        """() => [...document.querySelectorAll('[data-testid=stSidebar] input[role=combobox]')]
             .filter(i => i.scrollWidth > i.clientWidth).map(i => i.value)"""
    )

    assert cut == []


def test_a_drag_shows_more_detail_and_can_be_linked_to(
    page: Watched, address: str, chromium: Any
) -> None:
    before = shown_range(page)
    kept = points_shown(page)

    drag(page, 0.45, 0.60)

    link = wait_for_link(page, "[?&]t=")
    start, end = shown_range(page)
    assert before[0] < start < end < before[1]
    assert (end - start) / (before[1] - before[0]) == pytest.approx(0.15, abs=0.03)
    assert points_shown(page) > 0.15 * kept * 1.5, (
        "the range was asked for again, with its own detail"
    )
    page.picture("compare-1280-zoomed")
    with watched_page(chromium, 1280, 800) as second:
        second.open(f"{address}/?{link}")
        second.settle()
        assert shown_range(second) == pytest.approx([start, end], rel=1e-3)


def wait_for_width(page: Watched, seconds_shown: float) -> None:
    script = """(want) => {
      const [a, b] = document.querySelector('.st-key-timeline .js-plotly-plot')._fullLayout.xaxis.range.map(Number);
      return Math.abs((b - a) / want - 1) < 0.03;
    }"""
    page.page.wait_for_function(script, arg=seconds_shown, timeout=WAIT_MS)


def test_keys_zoom_move_and_show_all(page: Watched) -> None:
    start, end = shown_range(page)

    page.page.keyboard.press("w")
    wait_for_width(page, 0.6 * (end - start))
    zoomed = shown_range(page)
    page.page.keyboard.press("d")
    page.page.wait_for_function(
        f"() => document.querySelector('.st-key-timeline .js-plotly-plot')._fullLayout.xaxis.range[0] > {zoomed[0]} + 1",
        timeout=WAIT_MS,
    )
    moved = shown_range(page)
    page.page.keyboard.press("0")
    wait_for_width(page, end - start)

    assert zoomed == pytest.approx(
        [start + 0.2 * (end - start), end - 0.2 * (end - start)], rel=0.01
    )
    assert moved[1] - moved[0] == pytest.approx(zoomed[1] - zoomed[0], rel=0.01)
    assert shown_range(page) == pytest.approx([start, end])


def test_the_wheel_zooms_about_the_pointer_with_ctrl_and_else_scrolls(page: Watched) -> None:
    start, end = shown_range(page)
    box = page.page.locator(".st-key-timeline .nsewdrag").first.bounding_box()
    page.page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)

    page.page.mouse.wheel(0, 40)
    page.settle()
    untouched = shown_range(page)
    page.page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 50)
    page.page.keyboard.down("Control")
    page.page.mouse.wheel(0, -300)
    page.page.keyboard.up("Control")
    wait_for_width(page, (end - start) / 1.25**3)
    zoomed = shown_range(page)

    assert untouched == pytest.approx([start, end])
    pointer = start + 0.25 * (end - start)
    assert (pointer - zoomed[0]) / (zoomed[1] - zoomed[0]) == pytest.approx(0.25, abs=0.01)


def test_the_strip_of_the_whole_axis_shows_another_part(page: Watched) -> None:
    start, end = shown_range(page)
    drag(page, 0.45, 0.60)
    wait_for_link(page, "[?&]t=")
    strip = page.page.locator("[class*=st-key-overview] .nsewdrag").first
    strip.scroll_into_view_if_needed()
    box = strip.bounding_box()

    page.page.mouse.move(box["x"] + box["width"] * 0.1, box["y"] + 15)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 20, steps=8)
    page.page.mouse.up()
    wait_for_width(page, 0.2 * (end - start))

    assert shown_range(page)[0] == pytest.approx(start + 0.1 * (end - start), rel=0.05)


def test_a_question_mark_opens_the_sheet_of_keys(page: Watched) -> None:
    page.page.keyboard.press("?")

    page.page.wait_for_selector("[role=dialog]", timeout=WAIT_MS)
    assert "Ctrl + wheel" in page.page.inner_text("[role=dialog]")
    page.page.keyboard.press("Escape")
    page.page.wait_for_selector("[role=dialog]", state="detached", timeout=WAIT_MS)


def test_one_cursor_reads_every_row(page: Watched) -> None:
    box = page.page.locator(".st-key-timeline .nsewdrag").first.bounding_box()

    page.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 50, steps=5)
    page.page.wait_for_function(
        "() => document.querySelector('.st-key-timeline .hoverlayer').textContent.includes('Waiting')",
        timeout=WAIT_MS,
    )

    said = page.page.locator(".st-key-timeline .hoverlayer").first.text_content()
    for name in (
        "KV blocks",
        "B − A",
        "Running",
        "Waiting",
        "Step time",
        "Preemptions",
        "Tokens",
    ):
        assert name in said


def test_another_mode_is_chosen_replayed_and_explained(page: Watched) -> None:
    page.page.get_by_role("combobox", name="B preempts by").first.click()
    page.page.get_by_role("option", name="cheapest", exact=True).click()

    page.page.get_by_role("button", name="Apply and replay").click()
    page.page.wait_for_function(
        "() => document.body.innerText.includes('A recompute against B cheapest')",
        timeout=COMPILE_MS,
    )
    page.page.wait_for_function(
        "() => /It swapped [\\d,]+ of its victims and recomputed [\\d,]+/.test("
        "document.querySelector('.st-key-verdict')?.innerText ?? '')",
        timeout=COMPILE_MS,
    )
    page.wait_for_chart()
    page.settle()

    assert "B (cheapest)" in page.page.inner_text(".st-key-verdict")
    assert "run:" in wait_for_link(page, "[?&]b=run")


def test_an_uploaded_trace_is_replayed_both_ways(page: Watched, tmp_path: Path) -> None:
    trace = REAL_TRACE
    if not trace.exists():
        trace = tmp_path / "conversations.csv"
        trace.write_text(MADE_UP)
    page.page.get_by_role("radio", name="Trace").click()
    page.page.wait_for_selector("[data-testid=stFileUploaderDropzone]", timeout=WAIT_MS)

    page.page.set_input_files("[data-testid=stSidebar] input[type=file]", trace)
    wait_for_link(page, "[?&]a=run", COMPILE_MS)
    page.wait_for_chart()
    page.settle()

    text = page.page.inner_text("[data-testid=stMain]")
    assert trace.name in text
    assert "Azure LLM inference trace" in text
    assert "A recompute against B swap" in text
    page.picture("compare-1280-uploaded")
    page.page.get_by_role("button", name="Replay with").click()
    page.page.wait_for_function(
        "() => !document.querySelector('.st-key-press')", timeout=WAIT_MS
    )
    page.settle()
    page.picture("compare-1280-pressed")
    assert "No preemption in either run" not in page.page.inner_text(".st-key-verdict")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_width_and_no_brightness_cuts_a_label_off(
    chromium: Any, address: str, scheme: str
) -> None:
    sizes = {"light": [(1440, 900), (1920, 1080), (390, 844)], "dark": [(1440, 900)]}[scheme]
    with watched_page(chromium, *sizes[0], scheme) as page:
        page.open(address)
        for width, height in sizes:
            page.resize(width, height)
            page.picture(f"compare-{width}-{scheme}")

            cut = page.page.evaluate(
                """() => {
                  const g = document.querySelector('.st-key-timeline .js-plotly-plot').getBoundingClientRect();
                  const texts = [...document.querySelectorAll('.st-key-timeline .ytick text, .st-key-timeline .annotation-text, .st-key-timeline .xtick text')];
                  return texts.filter(t => { const r = t.getBoundingClientRect(); return r.width && (r.left < g.left - 1 || r.right > g.right + 1); })
                              .map(t => t.textContent);
                }"""
            )
            wide = page.page.evaluate(
                "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
            )
            assert cut == [], width
            assert wide <= 0, width
            top = page.page.locator(".st-key-timeline .js-plotly-plot").bounding_box()["y"]
            assert top < height - 200, "the first row begins on the first screen"
        assert page.errors == []
        assert page.outside == []
