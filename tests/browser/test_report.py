"""Reports in Chromium: HTML from disk with nothing outside it, PNG, PDF, and the page's downloads."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import pypdfium2
import pytest
from PIL import Image

from analyzer.__main__ import main
from analyzer.report import write_report
from analyzer.report_contents import Ask
from analyzer.run import Run
from tests.browser.driver import (
    ARTIFACTS,
    CHROMIUM,
    ROOT,
    WAIT_MS,
    Watched,
    watched_page,
)
from tests.report_builders import MARKUP, pair
from traces.recording import open_recording

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine"),
]
SAMPLES = ROOT / "traces" / "samples" / "recordings"
PREVIEW_DRAWN = """() => {
  const g = document.querySelector('.st-key-report_timeline .js-plotly-plot');
  return g && g._fullLayout && g.querySelector('.xaxislayer-above text');
}"""


@pytest.fixture(scope="module")
def address(server: str) -> str:
    return server


def sample_pair() -> tuple[Run, Run]:
    a, b = (SAMPLES / f"smollm2-{mode}" for mode in ("recompute", "swap"))
    return Run("", open_recording(a)), Run("", open_recording(b))


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the measured pair as HTML."""
    out = tmp_path_factory.mktemp("report") / "r.html"
    return write_report(out, *sample_pair(), Ask(title="Measured pair", notes="Two notes"))


def open_file(watched: Watched, path: Path) -> list[str]:
    """Open a report from disk; returns a list that fills with requests for anything else."""
    asked: list[str] = []
    watched.page.on(
        "request",
        lambda r: asked.append(r.url) if not r.url.startswith(("data:", "blob:")) else None,
    )
    watched.page.goto(path.as_uri(), timeout=WAIT_MS)
    watched.page.wait_for_selector("html[data-drawn=yes]", timeout=WAIT_MS)
    return asked


def test_the_html_works_from_disk_and_asks_for_nothing(chromium: Any, document: Path) -> None:
    with watched_page(chromium, 1280, 900) as watched:
        asked = open_file(watched, document)

        assert asked == [document.as_uri()]
        assert watched.errors == []
        page = watched.page
        assert page.locator(".plot .main-svg").count() >= 5
        box = page.locator(".plot .nsewdrag").first.bounding_box()
        page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 40)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 40, steps=5)
        page.mouse.up()
        low, high = page.evaluate(
            "() => document.querySelector('.plot')._fullLayout.xaxis.range.map(Number)"
        )
        assert 0 < low < high < 230
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
        watched.picture("report-html")


def test_the_html_fits_a_phone(chromium: Any, document: Path) -> None:
    with watched_page(chromium, 390, 844) as watched:
        open_file(watched, document)

        assert watched.page.evaluate("document.documentElement.scrollWidth") <= 390


def test_without_scripts_the_html_still_says_all(chromium: Any, document: Path) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(document.as_uri())

    text = page.inner_text("body")
    assert "The figures need scripts" in text
    assert "Timeline of run A (recompute) and run B (swap)" in text
    assert "Costliest preemptions" in text
    context.close()


def test_axe_finds_nothing_in_the_html(chromium: Any, tmp_path: Path, document: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe

    bare = (
        tmp_path / "bare.html"
    )  # axe is put in as a script, which the policy would not let run
    text = document.read_text(encoding="utf-8")
    bare.write_text(text.replace("Content-Security-Policy", "x-policy"), encoding="utf-8")
    with watched_page(chromium, 1280, 900) as watched:
        open_file(watched, bare)

        found = Axe().run(watched.page)

    assert [v["id"] for v in found.response["violations"]] == []


def test_markup_in_an_id_runs_nothing_and_is_drawn_as_text(
    chromium: Any, tmp_path: Path
) -> None:
    meta = {"workload": {"name": MARKUP, "digest": "d" * 32}, "model": {"name": MARKUP}}
    out = write_report(tmp_path / "r.html", *pair(tmp_path, MARKUP, **meta), Ask(title=MARKUP))
    with watched_page(chromium, 1280, 900) as watched:
        dialogs: list[str] = []
        watched.page.on("dialog", lambda d: (dialogs.append(d.message), d.dismiss()))
        open_file(watched, out)

        assert dialogs == []
        assert watched.errors == []
        assert watched.page.inner_text("h1") == MARKUP
        assert MARKUP[:35] in watched.page.inner_text(".preempted >> nth=0")


def test_the_pdf_has_pages_of_paper_with_text(tmp_path: Path) -> None:
    out = write_report(tmp_path / "r.pdf", *sample_pair(), Ask(title="Measured pair"))

    pdf = pypdfium2.PdfDocument(out)
    assert 3 <= len(pdf) <= 9
    assert [round(v) for v in pdf[0].get_size()] == [595, 842]  # A4 in points
    text = "\n".join(page.get_textpage().get_text_range() for page in pdf)
    for said in (
        "Measured pair",
        "A (recompute)",
        "Set-up",
        "KV blocks in use",
        "Evidence",
    ):
        assert said in text
    ARTIFACTS.mkdir(exist_ok=True)
    for i, page in enumerate(pdf, start=1):
        page.render(scale=1.2).to_pil().save(ARTIFACTS / f"report-pdf-{i}.png")


def test_the_png_is_made_for_a_chat(tmp_path: Path) -> None:
    out = write_report(tmp_path / "r.png", *sample_pair(), Ask(title="Measured pair"))

    with Image.open(out) as image:
        picture = image.convert("RGB")
    ARTIFACTS.mkdir(exist_ok=True)
    picture.save(ARTIFACTS / "report-card.png")
    assert picture.width == 1200
    assert 1000 <= picture.height <= 1900
    colours = {colour for _, colour in picture.getcolors(2**24)}
    assert (0x00, 0x72, 0xB2) in colours, "A's line"
    assert (0xE6, 0x9F, 0x00) in colours, "B's line"
    assert (255, 0, 254) not in colours, "the end line is cut off"


def test_the_command_line_gives_the_same_report(tmp_path: Path, document: Path) -> None:
    out = tmp_path / "r.html"
    a, b = (str(SAMPLES / f"smollm2-{mode}") for mode in ("recompute", "swap"))

    code = main(["report", a, b, "--out", str(out), "--title", "Measured pair", "--notes", "Two notes"])  # fmt: skip

    assert code == 0
    assert out.read_text(encoding="utf-8") == document.read_text(encoding="utf-8")


# ---- the page -------------------------------------------------------------------------------------


def open_page(watched: Watched, url: str) -> None:
    watched.page.goto(url)
    watched.page.wait_for_function(PREVIEW_DRAWN, timeout=WAIT_MS)
    watched.settle()


def download(watched: Watched, name: str) -> bytes:
    with watched.page.expect_download(timeout=WAIT_MS) as waiting:
        watched.page.get_by_role("button", name=name).click()
    return Path(waiting.value.path()).read_bytes()


@pytest.fixture
def page(shared_page: Watched, address: str) -> Watched:
    """The page at 1,280 px on the bundled sample; at the end nothing may have gone wrong."""
    shared_page.untouched(f"{address}/report", open_page)
    return shared_page


def test_the_page_makes_a_png(page: Watched) -> None:
    page.page.get_by_role("button", name="Make PNG").click()
    page.page.get_by_role("button", name="Download PNG").wait_for(timeout=WAIT_MS)

    data = download(page, "Download PNG")

    with Image.open(io.BytesIO(data)) as image:
        assert image.width == 1200


def test_the_page_makes_files_of_what_the_user_wrote(page: Watched, address: str) -> None:
    page.page.get_by_label("Title").fill("Why p99 doubled")
    page.page.get_by_label("Title").press("Enter")
    page.page.wait_for_selector("h1:text('Why p99 doubled')", timeout=WAIT_MS)
    page.settle()

    document = download(page, "HTML, interactive").decode()
    with zipfile.ZipFile(io.BytesIO(download(page, "Parquet"))) as archive:
        names = archive.namelist()
    trace = download(page, "Perfetto trace")

    assert "<h1>Why p99 doubled</h1>" in document
    assert f"{address}/report?a=" in document
    assert "A/steps.parquet" in names
    assert b"KV blocks in use" in trace
    page.picture("report-page", full_page=True)


def test_the_pages_link_opens_the_same_report(page: Watched, address: str) -> None:
    query = "a=sample:smollm2-recompute&b=sample:smollm2-swap&t=100-150&report_title=Linked"
    open_page(page, f"{address}/report?{query}")

    link = page.page.inner_text(".stCode")
    assert page.page.inner_text(".report h1") == "Linked"
    open_page(page, link)

    assert page.page.inner_text(".report h1") == "Linked"
    shown = page.page.evaluate(
        "() => document.querySelector('.st-key-report_timeline .js-plotly-plot')._fullLayout.xaxis.range"
    )
    assert [float(v) for v in shown] == [100.0, 150.0]


@pytest.mark.parametrize(("scheme", "widths"), [("light", [1920, 390]), ("dark", [1440])])
def test_the_page_fits_and_axe_finds_nothing(
    chromium: Any, address: str, scheme: str, widths: list[int]
) -> None:
    from axe_playwright_python.sync_playwright import Axe

    with watched_page(chromium, widths[0], 900, scheme) as watched:
        open_page(watched, f"{address}/report")
        for width in widths:
            watched.resize(width, 900)

            assert watched.page.evaluate("document.documentElement.scrollWidth") <= width
            found = Axe().run(watched.page, "[data-testid=stMain]")
            watched.picture(f"report-page-{width}-{scheme}", full_page=True)
            broken = [
                (v["id"], v["nodes"][0]["html"][:200]) for v in found.response["violations"]
            ]
            assert broken == [], width
