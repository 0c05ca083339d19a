"""Two people at one server, links to what is gone, and recordings with odd names, in Chromium."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import pytest

from analyzer.pages.parts.store import Store
from tests.browser.driver import CHROMIUM, WAIT_MS, Watched, watched_page
from tests.preemption_worlds import run_of

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]
RANGE = "() => document.querySelector('.st-key-timeline .js-plotly-plot')._fullLayout.xaxis.range.map(Number)"
WIDTH = (
    f"([low, high]) => {{ const [a, b] = ({RANGE})(); return b - a > low && b - a < high; }}"
)
MEASURED = "?a=sample:smollm2-recompute&b=sample:smollm2-swap&t=100-150"
MARKUP = "<img src=x onerror=alert(1)><b>r</b>[a](javascript:alert(2)) **c**"


def wait_for_width(page: Watched, low: float, high: float) -> None:
    page.page.wait_for_function(WIDTH, arg=[low, high], timeout=WAIT_MS)
    page.settle()


def main_text(page: Watched) -> str:
    return str(page.page.inner_text("[data-testid=stMain]"))


def zipped(folder: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for part in sorted(p for p in folder.rglob("*") if p.is_file()):
            archive.write(part, part.relative_to(folder))
    return path


def test_two_sessions_at_once_keep_pair_range_and_upload_to_themselves(
    chromium: Any, server: str, tmp_path: Path
) -> None:
    run_of(tmp_path / "mine", "recompute")
    upload = zipped(tmp_path / "mine", tmp_path / "only-mine.zip")
    with watched_page(chromium, 1280, 800) as one, watched_page(chromium, 1280, 800) as two:
        one.open(server)
        two.open(f"{server}/{MEASURED}")
        one.settle()
        two.settle()
        title = two.page.inner_text("h1")
        whole = one.page.evaluate(RANGE)

        one.page.keyboard.press("w")  # both before either is answered
        two.page.keyboard.press("w")
        wait_for_width(two, 25, 35)
        wait_for_width(one, 0.55 * (whole[1] - whole[0]), 0.65 * (whole[1] - whole[0]))
        shown = two.page.evaluate(RANGE)
        assert shown == pytest.approx([110, 140], rel=0.01)
        assert one.page.evaluate(RANGE)[1] > 400

        one.page.get_by_role("radio", name="Recordings").click()
        one.page.wait_for_selector("[data-testid=stFileUploaderDropzone]", timeout=WAIT_MS)
        one.page.set_input_files("[data-testid=stSidebar] input[type=file]", upload)
        two.page.keyboard.press("r")  # drawn again while the other one uploads
        one.page.wait_for_function("() => /[?&]a=file/.test(location.search)", timeout=WAIT_MS)
        one.page.wait_for_function(
            "() => /shown by itself/.test(document.querySelector('[data-testid=stMain]').innerText)",
            timeout=WAIT_MS,
        )
        wait_for_width(one, 11, 13)
        two.settle()

        assert "only-mine" in one.page.inner_text("[data-testid=stSidebar]")
        assert "only-mine" not in two.page.inner_text("body")
        assert two.page.inner_text("h1") == title
        assert two.page.evaluate(RANGE) == pytest.approx(shown)
        assert "a=sample" in two.page.url
        two.page.keyboard.press("s")
        wait_for_width(two, 40, 60)
        assert one.page.evaluate(RANGE) == pytest.approx([0, 12])
        for page in (one, two):
            assert page.errors == []
            assert page.outside == []


@pytest.mark.parametrize("path", ["", "preemptions", "requests", "block-map", "report"])
def test_a_link_to_what_is_gone_says_so_and_leads_back_to_the_sample(
    chromium: Any, server: str, path: str
) -> None:
    gone = "a=file:" + "0" * 32 + "&b=run:" + "1" * 32
    with watched_page(chromium, 1280, 800) as page:
        page.page.goto(f"{server}/{path}?source=Recordings&{gone}")
        page.page.get_by_text("not on this machine").first.wait_for(timeout=WAIT_MS)

        page.page.get_by_role("button", name="Show the bundled sample").click()
        page.page.wait_for_function(
            "() => /A recompute against B swap/.test(document.querySelector('h1')?.innerText ?? '')",
            timeout=WAIT_MS,
        )

        assert "not on this machine" not in main_text(page)
        assert "000000" not in page.page.url
        assert page.errors == []


def test_a_request_id_full_of_markup_runs_nothing_on_any_page(
    chromium: Any, server: str, store_root: Path, tmp_path: Path
) -> None:
    evicted = ((3, MARKUP, "a", 5, 6, 0), (7, "b", MARKUP, 9, 8, 0))
    refs = []
    for mode in ("recompute", "swap"):
        run_of(tmp_path / mode, mode, evicted)
        refs.append(f"file:{Store(store_root).link(tmp_path / mode).id}")
    with watched_page(chromium, 1280, 900) as page:
        dialogs: list[str] = []
        page.page.on("dialog", lambda d: (dialogs.append(d.message), d.dismiss()))
        for path in ("", "preemptions", "requests", "block-map", "report"):
            page.page.goto(f"{server}/{path}?source=Recordings&a={refs[0]}&b={refs[1]}")
            page.page.wait_for_function(
                "() => /A recompute against B swap/.test(document.querySelector('h1')?.innerText ?? '')",
                timeout=WAIT_MS,
            )
            page.settle()
            assert page.page.locator("[data-testid=stMain] img[src=x]").count() == 0, path
            assert page.page.locator("a[href^=javascript]").count() == 0, path
            assert page.page.locator("[data-testid=stAlertContentError]").count() == 0, path
        assert dialogs == []
        assert page.outside == []


def test_what_lies_below_the_first_chart_comes_when_that_is_drawn(
    chromium: Any, server: str
) -> None:
    with watched_page(chromium, 1280, 800) as before:  # its figures are known from now on
        before.open(server)
        before.page.wait_for_selector("text=All figures", timeout=WAIT_MS)
    with watched_page(chromium, 1280, 800) as page:
        told: list[str] = []
        page.page.on(
            "request",
            lambda r: told.append(r.method) if "_kv_replay/drawn/" in r.url else None,
        )

        page.open(server)
        page.page.wait_for_selector("text=All figures", timeout=WAIT_MS)
        page.settle()
        page.page.keyboard.press("w")  # a later run waits for nothing
        page.settle()

        assert told == ["POST"]


def test_what_lies_below_the_first_chart_comes_where_the_word_is_lost(
    chromium: Any, server: str
) -> None:
    with watched_page(chromium, 1280, 800) as page:
        page.page.route("**/_kv_replay/drawn/*", lambda route: route.abort())

        page.open(server)
        page.page.wait_for_selector("text=All figures", timeout=WAIT_MS)

        assert "B swap" in page.page.inner_text("h1")


def test_the_server_starts_without_a_warning(server: str, store_root: Path) -> None:
    said = (store_root / "server.log").read_text().partition("URL:")[2]
    assert server in said
    assert "No runtime found" not in said
