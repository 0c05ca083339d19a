"""The Diagnose page in Chromium: paste, upload, raw lines, links, widths, brightness, faults."""

from __future__ import annotations

import os
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
from tests.evidence_texts import v1, v1_pool

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]
SHARED = Path(os.environ.get("KV_REPLAY_SHARED", ROOT / ".." / "shared")).resolve() / "cases"
LINES = [
    *v1_pool(400_000),
    *(v1(10 * i, 32, 8 + i, 41.0 + i % 3, generation=900.0) for i in range(8)),
]
FLAGS = "vllm serve /models/<b>a</b> --max-num-seqs 32"
CHART = """() => {
  const g = document.querySelector('.st-key-evidence_chart .js-plotly-plot');
  return g && g._fullLayout && g.querySelector('.xaxislayer-above text');
}"""


@pytest.fixture(scope="module")
def address(server: str) -> str:
    return f"{server}/diagnose"


@pytest.fixture
def page(shared_page: Watched, address: str) -> Watched:
    """The empty page at 1,280 px; at the end nothing may have gone wrong."""
    shared_page.untouched(address, open_page)
    return shared_page


def open_page(page: Watched, url: str) -> None:
    page.page.goto(url)
    page.page.get_by_label("Paste lines").wait_for(state="attached", timeout=WAIT_MS)
    page.settle()


def press(page: Watched, button: str = "Read and diagnose") -> None:
    page.page.get_by_role("button", name=button).click()


def paste(page: Watched, text: str) -> None:
    page.page.get_by_label("Paste lines").fill(text)
    press(page)


def verdict(page: Watched) -> str:
    card = page.page.locator('[aria-label="Verdict"] .kv-word').first
    card.wait_for(timeout=WAIT_MS)
    return str(card.inner_text())


def wait_for_chart(page: Watched) -> None:
    page.page.wait_for_function(CHART, timeout=WAIT_MS)


def test_a_paste_becomes_a_verdict_with_drawn_series_and_raw_lines(page: Watched) -> None:
    paste(page, "\n".join([FLAGS, *LINES]))

    assert verdict(page) == "SLOT_LIMIT"
    wait_for_chart(page)
    page.page.locator(".st-key-evidence_lines_1 label").click()
    raw = page.page.locator(".kv-raw").first
    raw.wait_for(timeout=WAIT_MS)
    assert "Running: 32 reqs" in raw.inner_text()
    page.settle()
    page.picture("diagnose-paste", full_page=True)


def test_two_files_are_uploaded_and_read_together_and_the_link_shows_the_same(
    page: Watched, chromium: Any, tmp_path: Path
) -> None:
    (tmp_path / "server.log").write_text("\n".join(LINES))
    (tmp_path / "flags.txt").write_text(FLAGS)
    page.page.locator('input[type="file"]').set_input_files(
        [tmp_path / "server.log", tmp_path / "flags.txt"]
    )
    page.page.get_by_text("flags.txt").wait_for(timeout=WAIT_MS)
    page.settle()

    press(page)

    assert verdict(page) == "SLOT_LIMIT"
    assert "server.log, flags.txt" in page.page.locator("h1").inner_text()
    page.settle()
    with watched_page(chromium, 1280, 900) as again:
        open_page(again, page.page.url)
        assert verdict(again) == "SLOT_LIMIT"
        assert "server.log, flags.txt" in again.page.locator("h1").inner_text()
        assert again.errors == []


def test_a_binary_file_is_refused_and_the_diagnosis_before_it_stays(
    page: Watched, tmp_path: Path
) -> None:
    paste(page, "\n".join(LINES))
    before = verdict(page)
    (tmp_path / "core.bin").write_bytes(bytes(range(256)) * 64)

    page.page.get_by_text("Give other evidence, or add to this").click()
    page.page.locator('input[type="file"]').last.set_input_files(tmp_path / "core.bin")
    page.page.get_by_text("core.bin").wait_for(timeout=WAIT_MS)
    page.settle()
    press(page)

    page.page.get_by_text("it is a binary file, not text").wait_for(timeout=WAIT_MS)
    assert verdict(page) == before


def test_the_log_of_other_software_gets_no_verdict_on_kv(page: Watched) -> None:
    paste(
        page,
        "\n".join(
            f'192.0.2.{i} - - [04/Mar/2026:10:00:{i:02} +0000] "GET /a HTTP/1.1" 200 612'
            for i in range(40)
        ),
    )

    assert verdict(page) == "INSUFFICIENT_EVIDENCE"
    page.page.get_by_text("it may be of other software").first.wait_for(timeout=WAIT_MS)


@pytest.mark.parametrize(("scheme", "widths"), [("light", [390]), ("dark", [1280, 1920])])
def test_no_width_or_brightness_cuts_anything_off(
    chromium: Any, address: str, scheme: str, widths: list[int]
) -> None:
    with watched_page(chromium, widths[0], 900, scheme) as page:
        open_page(page, f"{address}?e=sample:one-rank-full")
        assert verdict(page) == "DP_IMBALANCE"
        wait_for_chart(page)
        for width in widths:
            page.resize(width, 900)
            wide = page.page.evaluate(
                "() => { const m = document.querySelector('[data-testid=stMain]'); return m.scrollWidth - m.clientWidth }"
            )
            page.picture(f"diagnose-{width}-{scheme}")
            assert wide <= 0, width
        assert page.errors == []
        assert page.outside == []


def test_a_click_on_a_sample_is_enough(page: Watched) -> None:
    page.page.get_by_role("button", name="vLLM V0: preemption warnings").click()

    assert verdict(page) == "CAPACITY_PREEMPTION"
    page.settle()
    assert "e=sample%3Av0-preemptions" in page.page.url or "sample:v0" in page.page.url


def test_a_drag_gets_every_sample_of_that_part_and_the_link_shows_the_same(
    page: Watched, chromium: Any, tmp_path: Path
) -> None:
    path = tmp_path / "long.log"
    path.write_text("\n".join(v1(10 * i, i % 9, 0, float(i % 90), generation=100.0) for i in range(6_000)))  # fmt: skip
    page.page.locator('input[type="file"]').set_input_files(path)
    page.page.get_by_text("long.log").wait_for(timeout=WAIT_MS)
    page.settle()
    press(page)
    verdict(page)
    wait_for_chart(page)
    page.settle()
    inside = """() => {
      const g = document.querySelector('.st-key-evidence_chart .js-plotly-plot'), x = g._fullLayout.xaxis;
      const [a, b] = x.range.map(v => x.r2l(v)), shown = Array.from(g._fullData[0].x, v => x.d2l(v)).filter(v => v >= a && v <= b);
      return [(b - a) / 1e4, shown.length];
    }"""
    samples, drawn = page.page.evaluate(inside)
    assert samples > 5_990
    assert drawn <= 1_510
    area = page.page.locator(".st-key-evidence_chart .nsewdrag").first
    area.scroll_into_view_if_needed()
    box = area.bounding_box()

    page.page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 40)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 44, steps=6)
    page.page.mouse.up()
    page.page.wait_for_function("() => /zoom=/.test(location.search)", timeout=WAIT_MS)
    page.settle()

    samples, drawn = page.page.evaluate(inside)
    assert samples == pytest.approx(618, rel=0.05), "a tenth of the axis, its margins included"
    assert abs(drawn - samples) <= 2, "every sample of it"
    with watched_page(chromium, 1280, 900) as again:
        open_page(again, page.page.url)
        wait_for_chart(again)
        again.settle()
        assert again.page.evaluate(inside) == pytest.approx([samples, drawn], rel=1e-3)
        again.page.keyboard.press("0")
        again.page.wait_for_function("() => !/zoom=/.test(location.search)", timeout=WAIT_MS)
        again.settle()
        assert again.page.evaluate(inside)[0] > 5_990


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared cases beside the project")
def test_a_shared_case_is_uploaded(page: Watched) -> None:
    files = sorted((SHARED / "05-v1-eight-long-decodes-collapse").glob("[!e]*"))

    page.page.locator('input[type="file"]').set_input_files(files)
    page.page.get_by_text("config.txt").wait_for(timeout=WAIT_MS)
    page.settle()
    press(page)

    assert verdict(page) == "THRASH_PREFILL_READMIT"
    wait_for_chart(page)
