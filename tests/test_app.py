"""The pages without a browser: widgets, messages, states, and that charts appear."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from analyzer.pages.parts import runs
from analyzer.pages.parts.store import Store
from tests.builders import make_meta, make_requests, make_steps, write

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
    (figure,) = charts(app)
    titles = " ".join(a["text"] for a in figure["layout"]["annotations"])
    assert "KV blocks in use" in titles
    assert "Difference B − A" in titles
    assert "10 blocks" in text_of(app)


def test_a_range_in_the_link_is_the_range_of_the_axis(store: Store, tmp_path: Path) -> None:
    a, b = link(store, *write_pair(tmp_path))

    app = open_page(source="Recordings", a=a, b=b, t="1-3")

    assert charts(app)[0]["layout"]["xaxis"]["range"] == [1.0, 3.0]


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

    for _ in range(300):
        if app.session_state["pair"] is not None:
            break
        time.sleep(0.5)
        app.run()

    assert not app.exception
    assert not app.error
    assert "60 requests" in "".join(e.label for e in app.expander)
    assert [e.value for e in app.title] == ["A recompute against B swap"]
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
    import subprocess
    import sys

    code = "import sys, analyzer.pages.compare; print('torch' in sys.modules, 'numba' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout.split()[-2:] == ["False", "False"]
