"""The validation badge in Chromium: a recording is uploaded, judged, calibrated on, and may then be asked what-ifs."""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.driver import CHROMIUM, WAIT_MS, Watched, watched_page
from tests.validation_worlds import machine_run
from traces.recording import zip_recording

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]
BADGE = "() => document.querySelector('.st-key-validation')?.innerText ?? ''"
GRADE = "() => document.querySelector('.st-key-validation .stMarkdownBadge')?.innerText ?? ''"
CARDS = "() => document.querySelector('.kv-what-if')?.innerText"


@pytest.fixture(scope="module")
def upload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A zip of what a live server wrote that is slower than the preset which its recording names."""
    folder = tmp_path_factory.mktemp("machine")
    return zip_recording(machine_run(folder / "run"), folder / "machine.zip")


@pytest.fixture(scope="module")
def one_page(chromium: Any) -> Iterator[Watched]:
    with watched_page(chromium, 1280, 1400) as found:
        yield found


def wait_for_grade(page: Watched, word: str) -> None:
    page.page.wait_for_function(
        f"(word) => ({GRADE})().includes(word)", arg=word, timeout=WAIT_MS
    )
    page.settle()


def test_an_uploaded_recording_is_judged_calibrated_on_and_then_asked_what_ifs(
    shared_page: Watched, server: str, upload: Path
) -> None:
    page = shared_page
    page.open(f"{server}/?source=Recordings")
    page.page.locator("[data-testid=stSidebar] input[type=file]").first.set_input_files(upload)
    page.page.wait_for_function("() => location.search.includes('a=file')", timeout=WAIT_MS)
    page.settle()

    page.page.get_by_role("link", name="What-if", exact=True).first.click()
    wait_for_grade(page, "Poor")

    said = page.page.evaluate(BADGE)
    assert "No what-ifs on this recording: the agreement is poor" in said
    assert page.page.evaluate(CARDS) is None
    page.picture("validation-poor")

    page.page.get_by_role("button", name="Calibrate on this recording").click()
    wait_for_grade(page, "Good")
    page.page.wait_for_function(CARDS, timeout=WAIT_MS)
    page.settle()

    said = page.page.evaluate(BADGE)
    assert "Calibrated on this recording. Errors are of its second half" in said
    assert "No what-ifs" not in said
    assert "160 requests" in page.page.inner_text("[data-testid=stMain]")
    page.picture("validation-good")

    slider = page.page.locator(".st-key-wi_num_gpu_blocks").get_by_role("slider")
    slider.focus()
    slider.press("ArrowLeft")
    page.page.wait_for_function(
        "() => location.search.includes('num_gpu_blocks')", timeout=WAIT_MS
    )
    page.page.wait_for_function(f"() => (({CARDS})() ?? '').includes('base ')", timeout=WAIT_MS)
    asked = urllib.parse.parse_qs(urllib.parse.urlsplit(page.page.url).query)
    assert asked["a"][0].startswith("file:")
    assert int(asked["num_gpu_blocks"][0]) < 257

    page.page.get_by_role("button", name="Back to the device as it was").click()
    wait_for_grade(page, "Poor")
    assert "No what-ifs on this recording" in page.page.evaluate(BADGE)
