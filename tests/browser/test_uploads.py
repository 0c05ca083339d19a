"""Large uploads in Chromium: they lie on disk and not in the server's memory, until a page takes them."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pytest

from tests.browser.driver import CHROMIUM, WAIT_MS, Watched
from tests.evidence_texts import v1, v1_pool

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]
LINES = [
    *v1_pool(400_000),
    *(v1(10 * i, 32, 8 + i, 41.0 + i % 3, generation=900.0) for i in range(8)),
]
PADDING = "# nothing that a server of ours would say\n"


@pytest.fixture
def page(shared_page: Watched, server: str) -> Watched:
    shared_page.untouched(f"{server}/diagnose", open_page)
    return shared_page


def open_page(page: Watched, url: str) -> None:
    page.page.goto(url)
    page.page.get_by_label("Paste lines").wait_for(state="attached", timeout=WAIT_MS)
    page.settle()


def drop(page: Watched, file: Path) -> None:
    page.page.locator('[data-testid=stMain] input[type="file"]').set_input_files(file)
    page.page.get_by_label(f"Remove {file.name}").wait_for(timeout=WAIT_MS)
    page.settle()


def parts(page: Watched, store_root: Path, expected: list[int]) -> list[int]:
    """Sizes of the files that came and that no page has taken yet, as expected or after a while."""
    found: list[int] = []
    for _ in range(100):
        found = [p.stat().st_size for p in (store_root / "uploads").glob(".part-*")]
        if found == expected:
            break
        page.page.wait_for_timeout(50)
    return found


def held_bytes(server: str) -> int:
    """What Streamlit says that it holds of all uploads."""
    with urllib.request.urlopen(f"{server}/_stcore/metrics") as answer:
        text = answer.read().decode()
    found = re.findall(r'cache_type="UploadedFileManager".*?\} (\d+)', text)
    assert found, text
    return sum(map(int, found))


def test_a_large_file_waits_on_disk_and_goes_when_it_is_taken_back(
    page: Watched, server: str, store_root: Path, tmp_path: Path
) -> None:
    file = tmp_path / "large.log"
    file.write_text("\n".join(LINES) + "\n" + PADDING * 600_000)

    size = file.stat().st_size

    drop(page, file)

    assert parts(page, store_root, [size]) == [size]
    assert 0 < held_bytes(server) < size / 2
    page.page.get_by_label("Remove large.log").click()
    assert parts(page, store_root, []) == []


def test_a_large_file_is_read_like_a_small_one(
    page: Watched, store_root: Path, tmp_path: Path
) -> None:
    file = tmp_path / "slots.log"
    file.write_text("\n".join(["vllm serve /models/a --max-num-seqs 32", *LINES]) + "\n" + PADDING * 120_000)  # fmt: skip

    drop(page, file)
    assert parts(page, store_root, [file.stat().st_size])
    page.settle()
    page.page.get_by_role("button", name="Read and diagnose").click()

    page.page.locator("h1", has_text="slots.log").wait_for(timeout=WAIT_MS)
    assert parts(page, store_root, []) == []
    kept = (store_root / "evidence" / "uploads").glob("*/file.log")
    assert file.read_bytes() in [p.read_bytes() for p in kept]
