"""The pages without a browser: widgets, messages, states, and that charts appear."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from analyzer.aligned import Aligned
from analyzer.marks import Band, Line
from analyzer.pages.parts import replay, runs, warm_core
from analyzer.pages.parts.jobs import Job, Progress
from analyzer.pages.parts.settings_form import Choice
from analyzer.pages.parts.state import TraceRef
from analyzer.pages.parts.store import Store
from analyzer.run import Run
from analyzer.timeline_rows import timeline_rows
from engine.config import PREEMPTION_MODES
from tests.builders import make_meta, make_requests, make_steps, write
from traces import samples
from traces.errors import SettingsError
from traces.recording import open_recording

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 120

TRACE = "arrival_s,prompt_tokens,output_tokens\n" + "".join(
    f"{i * 0.01:.2f},{64 + i % 40},{40 + i % 30}\n" for i in range(60)
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store that the page uses too."""
    monkeypatch.setenv("KV_REPLAY_CACHE", str(tmp_path / "cache"))
    return Store(tmp_path / "cache")


REQUEST = {"request_id": "<b>r0</b>", "first_token_s": 1.0, "finish_s": 4.0, "output_tokens": 3}


def write_pair(folder: Path) -> tuple[Path, Path]:
    """Two small recordings of one workload, A under recompute and B under swap."""
    settings = {"num_gpu_blocks": 11, "block_size": 4, "policy": "fcfs"}
    paths = []
    for mode, used in (("recompute", [1, 2, 3, 1]), ("swap", [1, 2, 2, 1])):
        meta = make_meta(settings={**settings, "preemption_mode": mode})
        requests = make_requests([REQUEST])
        paths.append(write(folder / mode, make_steps(used), requests=requests, meta=meta))
    return paths[0], paths[1]


def open_page(**query: str) -> AppTest:
    """The app, run once with these query parameters."""
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=TIMEOUT_S)
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def link(store: Store, *paths: Path) -> list[str]:
    return [f"file:{store.link(p).id}" for p in paths]


def charts(app: AppTest) -> list[dict[str, Any]]:
    """The figures of the page as plotly.js gets them."""
    return [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]


def text_of(app: AppTest) -> str:
    return "\n".join(
        str(e.value)
        for kind in ("title", "markdown", "caption", "info", "error", "warning")
        for e in app.get(kind)
    )


def test_two_recordings_are_shown_with_verdict_cards_and_timeline(
    store: Store, tmp_path: Path
) -> None:
    a, b = link(store, *write_pair(tmp_path))

    app = open_page(source="Recordings", a=a, b=b)

    assert not app.exception
    assert not app.error
    assert [e.value for e in app.title] == ["A recompute against B swap"]
    figure, shares = charts(app)
    titles = " ".join(a["text"] for a in figure["layout"]["annotations"])
    assert "KV blocks in use" in titles
    assert "Difference B − A" in titles
    assert "10 blocks" in text_of(app)
    assert [line["name"] for line in shares["data"]] == ["A · recompute", "B · swap"]


def test_a_recording_alone_is_shown_by_itself(store: Store, tmp_path: Path) -> None:
    (a,) = link(store, write_pair(tmp_path)[0])

    app = open_page(source="Recordings", a=a)

    assert not app.exception
    assert not app.error
    assert [e.value for e in app.title] == ["A recompute"]
    figure, shares = charts(app)
    titles = " ".join(note["text"] for note in figure["layout"]["annotations"])
    assert "KV blocks in use" in titles
    assert "Difference" not in titles
    assert [line["name"] for line in shares["data"]] == ["A · recompute"]
    assert any("Give a second one" in e.value for e in app.info)


def test_a_third_run_is_drawn_and_judged_beside_both(store: Store, tmp_path: Path) -> None:
    (a, b), (c, _) = (
        link(store, *write_pair(tmp_path / "x")),
        link(store, *write_pair(tmp_path / "y")),
    )

    app = open_page(source="Recordings", a=a, b=b, c=c)

    assert not app.exception
    assert not app.error
    assert [e.value for e in app.title] == ["A recompute against B swap and C recompute"]
    figure, shares = charts(app)
    names = {line.get("name") for line in figure["data"]}
    assert {"KV blocks · A", "KV blocks · B", "KV blocks · C"} <= names
    assert [line["name"][:1] for line in shares["data"]] == ["A", "B", "C"]
    (figures,) = (t.value for t in app.dataframe if "C is" in t.value.columns)
    assert list(figures["C"]) == list(figures["A"])


def test_a_recording_is_taken_out_and_the_next_moves_up(store: Store, tmp_path: Path) -> None:
    a, b = link(store, *write_pair(tmp_path))
    app = open_page(source="Recordings", a=a, b=b)

    app.get_by_key("take_out_a").click().run()

    assert not app.exception
    assert [e.value for e in app.title] == ["A swap"]


def test_a_range_in_the_link_is_the_range_of_the_axis(store: Store, tmp_path: Path) -> None:
    a, b = link(store, *write_pair(tmp_path))

    app = open_page(source="Recordings", a=a, b=b, t="1-3")

    assert charts(app)[0]["layout"]["xaxis"]["range"] == [1.0, 3.0]


def test_a_link_between_pages_sets_the_range_of_a_session_once(
    store: Store, tmp_path: Path
) -> None:
    a, b = link(store, *write_pair(tmp_path))
    app = open_page(source="Recordings", a=a, b=b, t="0-1")
    app.get_by_key("by").set_value("step").run()

    app.query_params["t"] = "1-3"  # as a browser sends it after a press on such a link
    app.query_params["go"] = "0a1b2c3d"
    app.run()
    followed = charts(app)[0]["layout"]["xaxis"]
    app.query_params["t"] = "1-3"  # a browser may send the URL of before the next zoom
    app.query_params["go"] = "0a1b2c3d"
    (slider,) = (e for e in app.slider if e.label == "Shown range")
    slider.set_range(2.0, 3.0).run()

    assert not app.exception
    assert followed["title"]["text"] == "Time since the start (s)"
    assert followed["range"] == [1.0, 3.0]
    assert charts(app)[0]["layout"]["xaxis"]["range"] == [2.0, 3.0]
    assert app.query_params["t"] == "2-3"
    assert "go" not in app.query_params


def test_the_range_of_a_url_without_a_link_gives_way_to_that_of_the_session(
    store: Store, tmp_path: Path
) -> None:
    a, b = link(store, *write_pair(tmp_path))
    app = open_page(source="Recordings", a=a, b=b, t="0-1")

    app.query_params["t"] = "1-3"
    app.run()

    assert charts(app)[0]["layout"]["xaxis"]["range"] == [0.0, 1.0]


def test_a_part_of_the_axis_comes_with_a_strip_of_the_whole(
    store: Store, tmp_path: Path
) -> None:
    a, b = link(store, *write_pair(tmp_path))

    app = open_page(source="Recordings", a=a, b=b, t="1-3")

    _, strip, _ = charts(app)
    assert strip["layout"]["xaxis"]["range"] == [0.0, 4.0]
    greyed = [(s["x0"], s["x1"]) for s in strip["layout"]["shapes"] if s["type"] == "rect"]
    assert greyed == [(0.0, 1.0), (3.0, 4.0)]


def test_pinned_rows_come_first(store: Store, tmp_path: Path) -> None:
    a, b = link(store, *write_pair(tmp_path))

    app = open_page(source="Recordings", a=a, b=b)
    app.get_by_key("pinned").set_value(["waiting", "running"]).run()

    titles = [
        note["text"].split("</b>")[0].removeprefix("<b>")
        for note in charts(app)[0]["layout"]["annotations"]
        if note["text"].startswith("<b>")
    ]
    assert titles[:3] == ["Waiting", "Running", "KV blocks in use"]


def test_a_range_that_cannot_be_shows_all(store: Store, tmp_path: Path) -> None:
    a, b = link(store, *write_pair(tmp_path))

    app = open_page(source="Recordings", a=a, b=b, t="9-nonsense")

    assert charts(app)[0]["layout"]["xaxis"]["range"] == [0.0, 4.0]


def test_alignment_by_step_counts_steps(store: Store, tmp_path: Path) -> None:
    a, b = link(store, *write_pair(tmp_path))
    app = open_page(source="Recordings", a=a, b=b)

    app.get_by_key("by").set_value("step").run()

    axis = charts(app)[0]["layout"]["xaxis"]
    assert axis["title"]["text"] == "Scheduler step"
    assert axis["range"] == [0.0, 4.0]


@pytest.mark.parametrize(
    ("by", "label"), [("time", "%.3f s"), ("step", "%.3f"), ("progress", "%.3f %%")]
)
def test_the_range_slider_has_a_format_that_a_browser_can_print(
    store: Store, tmp_path: Path, by: str, label: str
) -> None:
    a, b = link(store, *write_pair(tmp_path))

    app = open_page(source="Recordings", a=a, b=b, by=by.title())

    assert not app.exception
    assert not app.error
    assert app.get_by_key("by").value == by
    (slider,) = (e for e in app.slider if e.label == "Shown range")
    assert slider.proto.format == label


def test_a_late_report_for_the_last_pair_changes_nothing() -> None:
    def script() -> None:
        import streamlit as st

        from analyzer.pages.parts import state
        from analyzer.pages.parts.runs import PairRef

        state.show_pair(PairRef("run:old", "run:old2"))
        state.look_at("old")
        state.set_range((1.0, 3.0), "old")
        state.show_pair(PairRef("run:new", "run:new2"))
        state.set_range((2.0, 3.0), "old")  # before the new pair is drawn
        state.look_at("new")
        state.set_range((2.0, 3.0), "old")  # and after
        st.query_params.from_dict({"a": "run:old", "b": "run:old2", "t": "1-3"})
        state.write_url()

    app = AppTest.from_function(script).run()

    assert not app.exception
    assert app.session_state["shown_range"] is None
    assert app.query_params == {"a": "run:new", "b": "run:new2"}


def test_a_report_of_the_whole_axis_leaves_no_range_in_the_link(
    store: Store, tmp_path: Path
) -> None:
    a, b = link(store, *write_pair(tmp_path))
    app = open_page(source="Recordings", a=a, b=b, t="1-3")
    (slider,) = (e for e in app.slider if e.label == "Shown range")

    slider.set_range(0.0, 4.0).run()

    assert "t" not in app.query_params
    assert app.query_params["a"] == a


def test_the_panel_has_the_settings_of_a_pair_that_a_link_opened(
    store: Store, tmp_path: Path
) -> None:
    a, b = link(store, *write_pair(tmp_path))

    app = open_page(a=a, b=b)

    panel = {e.label: e.value for e in (*app.number_input, *app.selectbox)}
    assert not app.error
    assert panel["Pool in blocks"] == 11
    assert panel["Pool in tokens"] is None
    assert (panel["A preempts by"], panel["B preempts by"]) == ("recompute", "swap")
    assert "Block size (tokens) 4" in text_of(app).replace("\\", "")


def test_swapping_the_sides_swaps_their_settings(store: Store, tmp_path: Path) -> None:
    a, b = link(store, *write_pair(tmp_path))
    app = open_page(a=a, b=b)

    app.get_by_key("swap_sides").click().run()

    panel = {e.label: e.value for e in app.selectbox}
    assert (panel["A preempts by"], panel["B preempts by"]) == ("swap", "recompute")


def test_settings_that_do_not_fit_are_refused_beside_the_panel(store: Store) -> None:
    app = open_page()
    app.get_by_key("all_settings").set_value(True).run()
    victim = next(e for e in app.selectbox if e.label == "Victim rule")
    assert "priority (needs policy priority)" in victim.options

    victim.set_value("priority")
    next(b for b in app.button if b.label.startswith("Apply")).click().run()

    assert "A: victim 'priority' needs policy 'priority'" in app.error[0].value.replace(
        "\\", ""
    )
    assert "job" not in app.session_state


def test_every_setting_of_the_panel_can_differ_in_b(store: Store) -> None:
    app = open_page()

    app.get_by_key("all_settings").set_value(True).run()

    labels = [
        e.label for kind in ("selectbox", "number_input", "toggle") for e in app.get(kind)
    ]
    for name in ("Asynchronous scheduling", "Link bandwidth (GB/s)", "Model", "Pool in blocks"):
        assert labels.count(name) == 2
    for name in ("Connector", "Prompt blocks only", "Copy out late", "Host memory in blocks"):
        assert labels.count(name) == 2


def test_more_steps_than_points_are_drawn_as_mean_and_band(tmp_path: Path) -> None:
    used = [1, 3] * 1000 + [2, 2] * 200
    run = Run("run:x", open_recording(write(tmp_path / "r", make_steps(used))))
    pair = Aligned({"A": run, "B": run}, "time")

    (row,) = timeline_rows(pair, pair.full, ["blocks"])

    band = next(m for m in row.marks if isinstance(m, Band))
    mean = next(m for m in row.marks if isinstance(m, Line))
    assert band.low[:200].tolist() == [1] * 200
    assert band.high[:200].tolist() == [3] * 200
    assert (band.low[-1], band.high[-1]) == (2, 2)
    assert mean.y[:200] == pytest.approx([2.0] * 200, abs=0.15)
    assert row.note == "mean and range"


def test_few_steps_are_drawn_one_by_one(tmp_path: Path) -> None:
    run = Run("run:x", open_recording(write(tmp_path / "r", make_steps([1, 3] * 100))))
    pair = Aligned({"A": run, "B": run}, "time")

    (row,) = timeline_rows(pair, pair.full, ["blocks"])

    assert {type(m) for m in row.marks} == {Line}


def test_rows_can_be_hidden(store: Store, tmp_path: Path) -> None:
    a, b = link(store, *write_pair(tmp_path))
    app = open_page(source="Recordings", a=a, b=b)

    app.get_by_key("rows").set_value(["running"]).run()

    titles = [a["text"] for a in charts(app)[0]["layout"]["annotations"]]
    assert len(titles) == 1
    assert "Running" in titles[0]


def test_the_sides_can_be_swapped(store: Store, tmp_path: Path) -> None:
    a, b = link(store, *write_pair(tmp_path))
    app = open_page(source="Recordings", a=a, b=b)

    app.get_by_key("swap_sides").click().run()

    assert [e.value for e in app.title] == ["A swap against B recompute"]


def test_a_run_without_preemption_says_how_full_it_was(store: Store, tmp_path: Path) -> None:
    a, b = link(store, *write_pair(tmp_path))

    app = open_page(source="Recordings", a=a, b=b)

    assert any(
        "No preemption in either run" in e.value and "3 of 10 blocks" in e.value
        for e in app.info
    )


def test_unlike_workloads_are_refused_with_the_reason(store: Store, tmp_path: Path) -> None:
    other = {
        "name": "other",
        "format": "hand",
        "digest": "e" * 32,
        "num_requests": 1,
        "notes": [],
    }
    first, _ = write_pair(tmp_path / "x")
    requests = make_requests(
        [{"request_id": "another", "output_tokens": 3, "prompt_tokens": 7}]
    )
    write(tmp_path / "y", make_steps([1, 1]), requests=requests, meta=make_meta(workload=other))
    a, b = link(store, first, tmp_path / "y")

    app = open_page(source="Recordings", a=a, b=b)

    assert not app.exception
    assert "different workloads" in app.error[0].value


def test_a_link_to_a_run_that_is_gone_says_so(store: Store) -> None:
    app = open_page(a="run:" + "0" * 32, b="run:" + "1" * 32)

    assert not app.exception
    assert "not on this machine" in app.error[0].value


@pytest.mark.parametrize("ref", ["run:../../etc", "file:..", "sample:../../app.py", "nonsense"])
def test_a_link_cannot_lead_out_of_the_store(store: Store, ref: str) -> None:
    app = open_page(a=ref, b=ref)

    assert not app.exception
    assert "not on this machine" in app.error[0].value


def test_without_the_bundled_recordings_the_page_still_opens(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "SAMPLES", tmp_path / "nowhere")

    app = open_page(source="Trace")

    assert not app.exception
    assert "Give a request trace" in text_of(app)


def test_a_trace_is_recognised_and_replayed_both_ways(store: Store, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(TRACE)
    entry = store.link(tmp_path / "mine.csv")
    app = open_page(source="Trace", trace=entry.id)

    wait_for_replay(app)

    assert not app.exception
    assert not app.error
    assert "60 requests" in "".join(e.label for e in app.expander)
    assert [e.value for e in app.title] == ["A recompute against B swap"]
    assert "Replayed as **llama" in text_of(app)
    assert "**mine\\.csv**" in "".join(str(e.value) for e in app.sidebar.markdown)
    assert sorted(app.query_params) == ["a", "b", "source", "trace"]
    assert charts(app)


def test_a_result_of_another_trace_is_not_linked_to_under_a_new_one(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "odd.csv").write_text("alpha,beta\n1,2\n")
    a, b = link(store, *write_pair(tmp_path))
    app = open_page(source="Trace", a=a, b=b)

    app.session_state["trace_ref"] = TraceRef(store.link(tmp_path / "odd.csv").id)
    app.run()

    assert app.title[0].value == "Previous result: A recompute against B swap"
    assert "a" not in app.query_params


def link_of(app: AppTest) -> dict[str, str]:
    return {name: str(app.query_params[name]) for name in app.query_params}


def wait_for_replay(app: AppTest, title: str = "") -> None:
    for _ in range(600):
        there = app.session_state["pair"] is not None and title in app.title[0].value
        if there or app.error:
            return
        time.sleep(0.5)
        app.run()


def test_columns_that_nobody_can_guess_are_mapped_by_hand(store: Store, tmp_path: Path) -> None:
    rows = "".join(f"{i},{100 + i},{5 + i}\n" for i in range(20))
    (tmp_path / "odd.csv").write_text(f"alpha,beta,gamma\n{rows}")
    entry = store.link(tmp_path / "odd.csv")
    app = open_page(source="Trace", trace=entry.id)
    assert "no column was recognised" in app.error[0].value

    for role, column in (
        ("arrival_s", "alpha"),
        ("prompt_tokens", "beta"),
        ("output_tokens", "gamma"),
    ):
        app.get_by_key(f"map_{entry.id}_{role}").set_value(column)
    next(b for b in app.button if b.label.startswith("Read again")).click().run()
    wait_for_replay(app)

    assert not app.error
    assert "20 requests" in "".join(e.label for e in app.expander)


def test_a_pool_that_is_too_small_says_who_was_refused_and_why(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "mine.csv").write_text(TRACE)
    app = open_page(source="Trace", trace=store.link(tmp_path / "mine.csv").id)
    wait_for_replay(app)

    app.get_by_key("set_a_num_gpu_blocks@trace").set_value(3)
    first = app.session_state["pair"]
    next(b for b in app.button if b.label.startswith("Apply")).click().run()
    for _ in range(600):
        if app.session_state["pair"] != first:
            break
        time.sleep(0.5)
        app.run()

    assert not app.exception
    assert "A refused 60 of 60 requests" in app.warning[0].value
    assert "the pool has 2" in app.warning[0].value


def test_a_setting_that_cannot_be_is_said_and_the_view_kept(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "mine.csv").write_text(TRACE)
    app = open_page(source="Trace", trace=store.link(tmp_path / "mine.csv").id)
    wait_for_replay(app)
    title = app.title[0].value

    app.get_by_key("all_settings").set_value(True).run()
    app.get_by_key("shape_start").set_value(5000.0)
    next(b for b in app.button if b.label.startswith("Apply")).click().run()
    for _ in range(60):
        if app.error:
            break
        time.sleep(0.2)
        app.run()

    assert "no request arrives between 5000 s and the end" in app.error[0].value
    assert app.title[0].value == title
    assert charts(app)


def test_an_empty_trace_is_refused_with_a_sentence(store: Store, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("")
    entry = store.link(tmp_path / "empty.csv")

    app = open_page(source="Trace", trace=entry.id)

    assert not app.exception
    assert app.error[0].value.startswith("empty\\.csv")


def test_markup_in_a_file_name_stays_text(store: Store, tmp_path: Path) -> None:
    (tmp_path / "**bold** <b>x.csv").write_text("a,b\n1,2\n")
    entry = store.link(tmp_path / "**bold** <b>x.csv")

    app = open_page(source="Trace", trace=entry.id)

    assert not app.exception
    assert "\\*\\*bold\\*\\* \\<b\\>x\\.csv" in app.error[0].value


def test_a_fault_of_ours_is_called_one_and_keeps_its_traceback_folded(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("boom")

    a, b = link(store, *write_pair(tmp_path))
    monkeypatch.setattr("analyzer.pages.compare.verdict_section", broken)

    app = open_page(source="Recordings", a=a, b=b)

    assert not app.exception
    assert "Internal error" in app.error[0].value
    assert "boom" not in app.error[0].value
    assert any("boom" in e.value for e in app.code)


def test_the_page_opens_without_torch() -> None:
    code = "import sys, analyzer.pages.compare; print('torch' in sys.modules, 'numba' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.split()[-2:] == ["False", "False"]


def test_an_upload_is_kept_once_under_the_hash_of_its_content(store: Store) -> None:
    first = store.spool(io.BytesIO(b"a,b\n1,2\n"), "one.csv")
    second = store.spool(io.BytesIO(b"a,b\n1,2\n"), "two.CSV.gz")

    assert first.id == second.id == "a2b7d5004d96e62b24e41e53c5d85ebf"
    assert Path(second.path).read_bytes() == b"a,b\n1,2\n"
    assert [e.name for e in store.recent()] == ["two.CSV.gz"]


def test_a_name_cannot_place_an_upload_elsewhere(store: Store) -> None:
    entry = store.spool(io.BytesIO(b"x"), "../../etc/cron.d/x;.sh /..")

    assert Path(entry.path).is_relative_to(store.root)


def test_a_linked_folder_that_changes_does_not_push_uploads_out(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", keep_entries=2)
    upload = store.spool(io.BytesIO(b"mine"), "mine.zip")
    folder = tmp_path / "growing"
    folder.mkdir()

    for i in range(5):
        (folder / f"part-{i}").write_bytes(b"x" * i)
        store.link(folder)

    assert store.get(upload.id) is not None
    assert len([e for e in store.recent(100) if e.linked]) == 2
    store.spool(io.BytesIO(b"another"), "another.zip")
    assert store.get(upload.id) is None  # of three the longest unused


def test_the_longest_unused_uploads_go_first(tmp_path: Path) -> None:
    store = Store(tmp_path, keep_entries=2)

    for name in ("old", "middle", "new"):
        store.spool(io.BytesIO(name.encode()), name)

    assert [e.name for e in store.recent()] == ["new", "middle"]


def test_deleting_a_linked_file_leaves_it_where_it_lies(store: Store, tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(TRACE)
    entry = store.link(tmp_path / "mine.csv")

    store.delete(entry)

    assert store.get(entry.id) is None
    assert (tmp_path / "mine.csv").exists()


def test_a_job_that_is_cancelled_stops_and_gives_nothing() -> None:
    started = threading.Event()

    def work(report: Any, cancelled: Any) -> str:
        started.set()
        while not cancelled():
            time.sleep(0.01)
        return "half"

    job = Job(work, {"A": Progress()}).start()
    started.wait(10)
    job.cancel()

    assert job.wait(10)
    assert (job.was_cancelled, job.result, job.error) == (True, None, None)


def test_a_job_that_fails_hands_over_the_error() -> None:
    def work(report: Any, cancelled: Any) -> None:
        report("A", 0.5, "half way")
        raise SettingsError("no")

    job = Job(work, {"A": Progress()}).start()

    assert job.wait(10)
    assert str(job.error) == "no"
    assert job.progress["A"] == Progress(0.5, "half way")


def test_two_replays_wait_for_one_compiler_and_a_cancelled_one_never_simulates(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    compilers: list[Any] = []

    class Compiler:
        def __init__(self, *_: Any, **__: Any) -> None:
            time.sleep(0.2)  # room for a second thread to come in
            compilers.append(self)

        def wait(self, seconds: float) -> None:
            time.sleep(0.01)
            raise subprocess.TimeoutExpired("compiler", seconds)

    simulated: list[Any] = []
    monkeypatch.setattr(subprocess, "Popen", Compiler)
    monkeypatch.setattr(Path, "glob", lambda *_: iter(()))
    monkeypatch.setattr(warm_core, "max", lambda *_: 0.0, raising=False)
    monkeypatch.setattr("engine.trials.simulate", lambda *a, **_: simulated.append(a))
    warm_core._started.cache_clear()
    workload, choice = samples.load(samples.names()[0]), Choice({}, {})

    def work(report: Any, cancelled: Any) -> tuple[str, str]:
        return replay.replay_sides(workload, choice, store, report, cancelled)

    jobs = [Job(work, {"A": Progress(), "B": Progress()}).start() for _ in range(2)]
    for _ in range(1000):
        if all("compiling the simulator" in job.progress["A"].text for job in jobs):
            break
        time.sleep(0.01)
    for job in jobs:
        job.cancel()
    ended = [job.wait(10) for job in jobs]
    warm_core._started.cache_clear()

    assert len(compilers) == 1
    assert jobs[0].progress["A"].text.endswith(" s")
    assert ended == [True, True]
    assert [job.error for job in jobs] == [None, None]
    assert simulated == []


def test_the_panel_offers_every_preemption_mode_of_the_engine(store: Store) -> None:
    app = open_page()

    boxes = [e for e in app.selectbox if e.label in ("A preempts by", "B preempts by")]
    assert [list(box.options) for box in boxes] == [list(PREEMPTION_MODES)] * 2
    assert [box.value for box in boxes] == ["recompute", "swap"]
    assert PREEMPTION_MODES == ("recompute", "swap", "offload", "cheapest")


@pytest.mark.parametrize("pair", [("swap", "cheapest"), ("recompute", "offload")])
def test_any_two_modes_can_be_replayed_against_each_other(
    pair: tuple[str, str], store: Store, tmp_path: Path
) -> None:
    (tmp_path / "mine.csv").write_text(TRACE)
    app = open_page(source="Trace", trace=store.link(tmp_path / "mine.csv").id)
    wait_for_replay(app)
    for label, mode in zip(("A preempts by", "B preempts by"), pair, strict=True):
        next(e for e in app.selectbox if e.label == label).set_value(mode)

    next(b for b in app.button if b.label.startswith("Apply")).click().run()
    title = f"A {pair[0]} against B {pair[1]}"
    wait_for_replay(app, title)

    assert app.title[0].value == title
    assert not app.error
    panel = {e.label: e.value for e in open_page(**link_of(app)).selectbox}
    assert (panel["A preempts by"], panel["B preempts by"]) == pair


def test_what_was_not_recorded_is_said_and_not_shown_as_zero(
    store: Store, tmp_path: Path
) -> None:
    unseen = ["steps.stall_s", "steps.swap_out_bytes", "events.cost_s", "events.swap_est_s"]
    meta = make_meta(clock="measured", executor="vllm", not_recorded=unseen)
    run = write(
        tmp_path / "live", make_steps([1, 2]), requests=make_requests([REQUEST]), meta=meta
    )

    app = open_page(a=link(store, run)[0], b=link(store, run)[0])

    figures = app.dataframe[-1].value
    told = dict(zip(figures["Figure"], figures["A"], strict=True))
    assert not app.error
    assert (told["Stalled for copies"], told["Copied out to the host"]) == ("not recorded",) * 2
    assert told["Preemption cost"] == "not recorded"
    assert told["Tokens recomputed"] == "0"
    cards = next(h for h in app.get("html") if "kv-cards" in str(h.proto.body))
    assert "not recorded" in cards.proto.body
