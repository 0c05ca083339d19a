"""The Block map page in Chromium: hover, click, zoom both ways, player, links, dark and narrow."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from analyzer.pages.parts.store import Store
from tests.browser.driver import CHROMIUM, WAIT_MS, Watched, watched_page
from tests.builders import make_meta, make_requests, make_steps, write

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]
CHART = ".st-key-block_map .js-plotly-plot"
DRAWN = """() => {
  const g = document.querySelector('.st-key-block_map .js-plotly-plot');
  return g && g._fullLayout && g.querySelector('.xaxislayer-above text') && document.querySelectorAll('.st-key-block_map image').length > 0;
}"""
MEASURED = "block-map?sample=SmolLM2+on+a+CPU+core%2C+measured"


@pytest.fixture(scope="module")
def address(server: str) -> str:
    return server


@pytest.fixture(scope="module")
def one_page(chromium: Any) -> Iterator[Watched]:
    with watched_page(chromium, 1280, 1500) as found:
        yield found


@pytest.fixture
def page(shared_page: Watched, address: str) -> Watched:
    """The map of the measured sample at 1,280 px; at the end nothing may have gone wrong."""
    shared_page.untouched(f"{address}/{MEASURED}", open_map)
    return shared_page


def open_map(page: Watched, url: str) -> None:
    page.page.goto(url)
    page.page.wait_for_function(DRAWN, timeout=WAIT_MS)
    page.page.wait_for_selector(".player canvas", timeout=WAIT_MS)
    says(page, ".where", "step")
    page.settle()


def says(page: Watched, place: str, pattern: str) -> None:
    """Wait until that place of the player says it; it lies in a shadow tree, which scripts do not see."""
    from playwright.sync_api import expect

    expect(page.page.locator(place)).to_have_text(re.compile(pattern), timeout=WAIT_MS)


def map_box(page: Watched, nth: int = 0) -> dict[str, float]:
    """Where the nth map lies on the screen; each has a strip of marks over it."""
    areas = page.page.locator(f"{CHART} .nsewdrag")
    boxes = [areas.nth(i).bounding_box() for i in range(areas.count())]
    tall = sorted((b for b in boxes if b["height"] > 150), key=lambda b: b["y"])
    return tall[nth]


def ranges(page: Watched) -> tuple[list[float], list[float]]:
    script = f"() => {{ const l = document.querySelector('{CHART}')._fullLayout; return [l.xaxis.range, l.yaxis2.range].map(r => r.map(Number)); }}"
    x, y = page.page.evaluate(script)
    return x, y


def drag(page: Watched, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Drag over the first map, from one share of its box to another."""
    box = map_box(page)
    at = [(box["x"] + box["width"] * x, box["y"] + box["height"] * y) for x, y in (start, end)]
    page.page.mouse.move(*at[0])
    page.page.mouse.down()
    page.page.mouse.move(*at[1], steps=6)
    page.page.mouse.up()


def wait_for_link(page: Watched, pattern: str) -> str:
    page.page.wait_for_function(f"() => /{pattern}/.test(location.search)", timeout=WAIT_MS)
    page.settle()
    return urllib.parse.unquote(urllib.parse.urlsplit(page.page.url).query)


def where(page: Watched) -> str:
    return str(page.page.inner_text(".where"))


def step_shown(page: Watched) -> int:
    found = re.search(r"step ([\d,]+)", where(page))
    assert found is not None
    return int(found[1].replace(",", ""))


def wait_for_step(page: Watched, step: int) -> None:
    says(page, ".where", f"step {step:,} of")


def test_every_block_is_on_the_map_of_both_runs(page: Watched) -> None:
    page.picture("block-map-1280", full_page=True)

    images = page.page.locator(".st-key-block_map .imagelayer image")
    assert images.count() == 3, "two maps and the host tier of the swap run"
    text = page.page.inner_text(".st-key-block_map")
    assert "A · recompute" in text
    assert "blocks 1 to 64 · 5 preemptions" in text
    assert map_box(page)["y"] < 420, "the map starts on the first screen"


def test_axe_finds_nothing(page: Watched) -> None:
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(page.page)

    broken = [
        (v["id"], [n["target"] for n in v["nodes"]]) for v in found.response["violations"]
    ]
    assert broken == []


def test_hover_tells_owner_and_age(page: Watched) -> None:
    box = map_box(page)

    page.page.mouse.move(box["x"] + box["width"] * 0.03, box["y"] + box["height"] - 8, steps=5)

    page.page.wait_for_function(
        "() => document.querySelector('.st-key-block_map .hoverlayer').textContent.includes('request 0')",
        timeout=WAIT_MS,
    )
    said = page.page.text_content(".st-key-block_map .hoverlayer") or ""
    assert "block 2" in said or "block 3" in said
    assert re.search(r"since 0\.000 s, for \d", said)


def test_a_click_lights_up_the_request_and_a_second_one_puts_it_out(page: Watched) -> None:
    box = map_box(page)
    at = (box["x"] + box["width"] * 0.03, box["y"] + box["height"] - 8)

    page.page.mouse.click(*at)

    assert "request=0" in wait_for_link(page, "request=")
    assert "Request 0" in page.page.inner_text(".st-key-chosen_request")
    page.picture("block-map-lit")
    page.page.mouse.move(*(v + 3 for v in at))
    page.page.mouse.click(*at)
    page.page.wait_for_function("() => !/request=/.test(location.search)", timeout=WAIT_MS)


def test_a_drag_zooms_to_time_and_blocks_and_the_link_shows_the_same(
    page: Watched, address: str, chromium: Any
) -> None:
    drag(page, (0.3, 0.2), (0.6, 0.7))

    link = wait_for_link(page, "[?&]t=.*")
    page.page.wait_for_function("() => /blocks=/.test(location.search)", timeout=WAIT_MS)
    page.settle()
    link = urllib.parse.unquote(urllib.parse.urlsplit(page.page.url).query)
    page.page.wait_for_function(  # the link is written before the map is drawn
        f"""() => {{ const l = document.querySelector('{CHART}')._fullLayout;
          return l.xaxis.range[1] - l.xaxis.range[0] < 120 && l.yaxis2.range[1] - l.yaxis2.range[0] < 50; }}""",
        timeout=WAIT_MS,
    )
    page.settle()
    x, y = ranges(page)
    assert x[1] - x[0] == pytest.approx(0.3 * 230.3, rel=0.1)
    assert 25 < y[1] - y[0] < 40
    with watched_page(chromium, 1280, 1500) as second:
        open_map(second, f"{address}/block-map?{link}")
        again = ranges(second)
    assert again[0] == pytest.approx(x, rel=1e-3)
    assert again[1] == pytest.approx(y)
    page.page.get_by_role("button", name="Show all").click()
    page.page.wait_for_function(
        "() => !/[?&](t|blocks)=/.test(location.search)", timeout=WAIT_MS
    )
    page.page.wait_for_function(  # the link is written before the map is drawn
        f"() => document.querySelector('{CHART}')._fullLayout.yaxis2.range[0] === 0.5",
        timeout=WAIT_MS,
    )
    assert ranges(page)[1] == [0.5, 64.5]


def test_keys_zoom_in_and_show_all(page: Watched) -> None:
    start, end = ranges(page)[0]

    page.page.keyboard.press("w")
    wait_for_link(page, "[?&]t=")
    zoomed = ranges(page)[0]
    page.page.keyboard.press("0")
    page.page.wait_for_function("() => !/[?&]t=/.test(location.search)", timeout=WAIT_MS)

    assert zoomed == pytest.approx(
        [start + 0.2 * (end - start), end - 0.2 * (end - start)], rel=0.01
    )


def test_steps_go_one_by_one_and_stand_in_the_link(page: Watched) -> None:
    first = step_shown(page)

    for i in range(1, 4):
        page.page.get_by_role("button", name="Step ›").click()
        wait_for_step(page, first + i)
    page.page.get_by_role("button", name="‹ Step").click()
    wait_for_step(page, first + 2)

    assert f"step={first + 2}" in wait_for_link(page, f"step={first + 2}")


def test_a_step_of_the_link_is_shown(shared_page: Watched, address: str) -> None:
    shared_page.elsewhere(f"{address}/{MEASURED}&step=700", open_map)

    wait_for_step(shared_page, 700)
    assert "of 64 blocks in use" in shared_page.page.inner_text(".player figcaption >> nth=0")


def test_next_preemption_goes_to_the_step_that_evicts(page: Watched) -> None:
    first = step_shown(page)

    page.page.get_by_role("button", name="Preemption »").click()

    says(page, ".where", rf"step (?!{first:,} )")
    assert step_shown(page) > first


def test_playing_moves_the_pool_and_the_line_without_the_server(page: Watched) -> None:
    before = step_shown(page)
    line = "() => parseFloat(document.querySelector('.kv-snapshot').style.left)"
    start = page.page.evaluate(line)

    page.page.get_by_role("button", name="▶ Play").click()
    for _ in range(500):
        if step_shown(page) > before + 20:
            break
        page.page.wait_for_timeout(40)
    assert step_shown(page) > before + 20
    assert "step=" not in page.page.url, "playing is told to nobody"
    page.page.get_by_role("button", name="⏸ Pause").click()

    assert "step=" in wait_for_link(page, "step=")
    assert page.page.evaluate(line) > start


def test_a_click_on_a_cell_of_the_pool_lights_up_its_request(page: Watched) -> None:
    page.page.locator(".player canvas").first.scroll_into_view_if_needed()
    canvas = page.page.locator(".player canvas").first.bounding_box()

    page.page.mouse.move(canvas["x"] + 10, canvas["y"] + 10, steps=3)
    page.page.locator(".tip").wait_for(timeout=WAIT_MS)
    said = page.page.inner_text(".tip")
    page.page.mouse.click(canvas["x"] + 10, canvas["y"] + 10)

    link = wait_for_link(page, "request=")
    found = re.search(r"request (\d+)", said)
    assert found is not None
    assert f"request={found[1]}" in link
    page.page.wait_for_selector(".st-key-chosen_request", timeout=WAIT_MS)


def test_dark_and_narrow_show_the_same_map(address: str, chromium: Any) -> None:
    for scheme, widths in (("light", [390]), ("dark", [1440, 1920])):
        with watched_page(chromium, widths[0], 1400, scheme) as found:
            open_map(found, f"{address}/{MEASURED}&colour=State&request=29")
            for width in widths:
                found.resize(width, 1400)
                found.picture(f"block-map-{width}-{scheme}")
                wide = found.page.evaluate("() => document.documentElement.scrollWidth")
                assert wide <= width, "nothing is wider than the window"
            assert found.errors == []


def test_a_pair_without_ownership_is_replayed_at_a_press(
    address: str, chromium: Any, store_root: Path, tmp_path: Path
) -> None:
    """Made by hand, so that the replay differs: what the page must say, and not draw."""
    rows = [{"request_id": "r0", "prompt_tokens": 6, "output_tokens": 3, "first_token_s": 1.0, "finish_s": 4.0}]  # fmt: skip
    path = write(tmp_path / "hand", make_steps([2, 2, 2, 2]), requests=make_requests(rows), meta=make_meta())  # fmt: skip
    ref = f"file:{Store(store_root).link(path).id}"
    with watched_page(chromium, 1280, 900) as found:
        found.page.goto(f"{address}/block-map?source=Recordings&a={ref}")
        found.page.get_by_role("button", name="Replay A with ownership").click(timeout=WAIT_MS)
        found.page.get_by_text("it came out differently from the recording").wait_for(
            timeout=600_000
        )
        found.picture("block-map-differs")
