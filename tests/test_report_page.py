"""The Report page without a browser: inputs, downloads, preview, and that foreign text stays text."""

from __future__ import annotations

import io
import json
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from streamlit.testing.v1 import AppTest

from analyzer import browser, run_figures
from analyzer.pages.parts import runs
from analyzer.pages.parts.runs import PairRef, load
from analyzer.pages.parts.shell import Opened
from analyzer.pages.parts.store import Store
from analyzer.pages.report import _file_name, _part_of, _said_in_link, _tables, _trace
from analyzer.report_contents import Ask, gather
from tests.report_builders import MARKUP, pair, pair_paths, triple_paths

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 120


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store that the page uses too."""
    monkeypatch.setenv("KV_REPLAY_CACHE", str(tmp_path / "cache"))
    return Store(tmp_path / "cache")


def page_alone(**query: str) -> AppTest:
    """The page in its frame, as the app opens it."""

    def script() -> None:
        import streamlit as st

        from analyzer.pages import report
        from analyzer.pages.parts import shell

        shown = st.Page(report.page, title="Report", url_path="report", default=True)
        shell.run(st.navigation([shown]), {"report": shown})

    app = AppTest.from_function(script, default_timeout=TIMEOUT_S)
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def opened(store: Store, folder: Path, victim: str = "b", **query: str) -> AppTest:
    a, b = (f"file:{store.link(p).id}" for p in pair_paths(folder, victim))
    return page_alone(source="Recordings", a=a, b=b, **query)


def html_of(app: AppTest) -> str:
    return "\n".join(e.proto.body for e in app.get("html"))


def labels(app: AppTest) -> list[str]:
    return [e.proto.label for e in app.get("download_button")]


def timeline_range(app: AppTest) -> list[float]:
    figure: dict[str, Any] = json.loads(app.get("plotly_chart")[0].proto.spec)
    return [float(v) for v in figure["layout"]["xaxis"]["range"]]


def test_a_pair_is_previewed_and_offered_as_files(store: Store, tmp_path: Path) -> None:
    app = opened(store, tmp_path)

    assert not app.exception
    assert not app.error
    shown = html_of(app)
    assert "<h1>A recompute against B swap</h1>" in shown
    assert "Six figures of run B against run A" in shown
    assert "Set-up" in shown
    assert "A (recompute): its only preemption." in shown
    assert labels(app) == [
        "HTML, interactive, opens offline",
        "Perfetto trace",
        "Parquet",
        "CSV",
    ]
    assert timeline_range(app) == [0.0, 9.0]


def test_title_and_notes_go_into_the_preview_as_text(store: Store, tmp_path: Path) -> None:
    app = opened(store, tmp_path, MARKUP)

    app.text_input(key="report_title").set_value(MARKUP)
    app.text_area(key="report_notes").set_value(f"look at {MARKUP}").run()

    assert not app.exception
    shown = html_of(app)
    assert "<script>alert" not in shown
    assert "<h1>&lt;script&gt;alert(1)&lt;/script&gt;" in shown
    assert "look at &lt;script&gt;" in shown


def test_three_runs_are_reported_and_the_link_names_all(store: Store, tmp_path: Path) -> None:
    a, b, c = (f"file:{store.link(p).id}" for p in triple_paths(tmp_path))

    app = page_alone(source="Recordings", a=a, b=b, c=c)

    assert not app.exception
    assert not app.error
    shown = html_of(app)
    assert "<h1>A recompute against B swap and C cheapest</h1>" in shown
    assert "Six figures of runs B and C against run A" in shown
    assert "C (cheapest): its only preemption." in shown


def test_a_reports_link_holds_the_third_run(store: Store, tmp_path: Path) -> None:
    a, b, c = (f"file:{store.link(p).id}" for p in triple_paths(tmp_path))
    runs = {ref: load(ref, store) for ref in (a, b, c)}
    there = Opened(
        "key", PairRef(a, b, c), runs[a], runs[b], "recordings", False, False, runs[c]
    )

    assert _said_in_link(there, "Why", (1.0, 5.0)) == {
        "a": a,
        "b": b,
        "c": c,
        "t": "1-5",
        "report_title": "Why",
    }


# ---- long runs ------------------------------------------------------------------------------------


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Every run counts as long, and its figures come when this is set."""
    gate = threading.Event()
    true = run_figures.summarize
    monkeypatch.setattr(runs, "LONG_ROWS", 1)
    monkeypatch.setattr(run_figures, "summarize", lambda r: gate.wait(60) and true(r))
    return gate


def until_reported(app: AppTest) -> AppTest:
    for _ in range(100):
        app.run()
        if labels(app):
            return app
        time.sleep(0.1)
    raise AssertionError("the report does not come")


def test_of_long_runs_timeline_and_set_up_come_first_and_the_files_later(
    store: Store, tmp_path: Path, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = (f"file:{store.link(p).id}" for p in pair_paths(tmp_path))
    app = page_alone(source="Recordings", a=a, b=b)

    assert not app.exception
    assert not app.error
    assert timeline_range(app) == [0.0, 9.0]
    assert "Set-up" in html_of(app)
    assert any("Working out verdict, figures and preemptions." in m.value for m in app.markdown)
    assert labels(app) == []

    held.set()
    until_reported(app)
    assert "A (recompute): its only preemption." in html_of(app)
    assert not any("Working out" in m.value for m in app.markdown)

    monkeypatch.setattr(run_figures, "summarize", lambda _: pytest.fail("worked out again"))
    assert labels(page_alone(source="Recordings", a=a, b=b)) != []


def test_the_job_of_a_report_can_be_cancelled_and_taken_up_again(
    store: Store, tmp_path: Path, held: threading.Event
) -> None:
    app = opened(store, tmp_path)

    app.button(key="cancel_working_out").click().run()
    assert not app.exception
    assert any("were not worked out" in i.value for i in app.info)
    assert timeline_range(app) == [0.0, 9.0]

    held.set()
    app.button(key="work_out").click().run()
    assert "Six figures of run B against run A" in html_of(until_reported(app))


def test_a_range_behind_the_end_of_long_runs_is_said(
    store: Store, tmp_path: Path, held: threading.Event
) -> None:
    app = opened(store, tmp_path, t="20-30")

    assert not app.exception
    assert any("the last step ends at 9.000 s" in e.value.replace("\\", "") for e in app.error)
    held.set()


def test_the_shown_range_is_reported_unless_the_user_wants_all(
    store: Store, tmp_path: Path
) -> None:
    app = opened(store, tmp_path, t="1-5")

    assert timeline_range(app) == [1.0, 5.0]
    app.toggle(key="report_part").set_value(False).run()
    assert timeline_range(app) == [0.0, 9.0]


def test_a_recording_alone_is_reported_without_a_comparison(
    store: Store, tmp_path: Path
) -> None:
    a = f"file:{store.link(pair_paths(tmp_path)[0]).id}"

    app = page_alone(source="Recordings", a=a)

    assert not app.exception
    assert not app.error
    assert "Six figures of the run" in html_of(app)
    assert "finishes 2 of 2 requests in 9.00" in html_of(app).replace("\u00a0", " ")


def test_without_a_browser_the_page_says_how_to_get_one(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(browser.VARIABLE, raising=False)
    monkeypatch.setattr(browser, "NAMES", ())
    monkeypatch.setattr(browser, "PLACES", ())

    app = opened(store, tmp_path)

    assert not app.exception
    assert any("apt\\-get install chromium" in c.value for c in app.caption)
    assert not [b for b in app.button if b.key and b.key.startswith("make_")]


def test_a_picture_is_made_on_a_press_and_then_offered(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(browser.VARIABLE, "true")  # a program that there is
    drawn = io.BytesIO()
    Image.new("RGB", (1200, 10)).save(drawn, "PNG")
    asked: list[int] = []

    def draw(document: str, width: int, scale: int) -> bytes:
        asked.append(width * scale)
        return drawn.getvalue()

    monkeypatch.setattr(browser, "to_png", draw)
    app = opened(store, tmp_path)

    app.button(key="make_png").click().run()
    assert not app.exception
    assert asked == [1200]
    assert any(label.startswith("Download PNG") for label in labels(app))

    app.text_input(key="report_title").set_value("another title").run()
    assert not any(label.startswith("Download PNG") for label in labels(app)), (
        "it is out of date"
    )


def test_a_browser_that_fails_is_said_and_the_page_stays(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(browser.VARIABLE, "false")  # ends at once and makes nothing
    app = opened(store, tmp_path)

    app.button(key="make_pdf").click().run()

    assert not app.exception
    assert any("made no PDF" in e.value for e in app.error)
    assert "<h1>A recompute against B swap</h1>" in html_of(app)


def test_a_link_to_a_recording_that_is_gone_says_so(store: Store) -> None:
    app = page_alone(source="Recordings", a="file:" + "0" * 32, b="file:" + "1" * 32)

    assert not app.exception
    assert any("not on this machine" in e.value for e in app.error)


def test_downloads_hold_the_range(tmp_path: Path) -> None:
    contents = gather(*pair(tmp_path), Ask(shown=(0.0, 2.5)))

    with zipfile.ZipFile(io.BytesIO(_tables(contents, ".csv")())) as archive:
        steps = archive.read("A/steps.csv").decode().splitlines()
    assert len(steps) == 1 + 3
    assert len(_trace(contents)) > 100


def test_file_names_are_made_of_the_title(tmp_path: Path) -> None:
    a, b = pair(tmp_path)

    assert _file_name(gather(a, b)) == "kv-replay-a-recompute-against-b-swap"
    assert (
        _file_name(gather(a, b, Ask(title="../../p99 <b>ü</b> / x"))) == "kv-replay-p99-b-ü-b-x"
    )


@pytest.mark.parametrize(
    ("shown", "by", "part"),
    [
        (None, "time", None),
        ((1.0, 5.0), "time", (1.0, 5.0)),
        ((1.0, 5.0), "step", None),
    ],
)
def test_only_a_range_of_time_is_a_range_of_the_report(
    shown: tuple[float, float] | None, by: str, part: tuple[float, float] | None
) -> None:
    assert _part_of(shown, by) == part
