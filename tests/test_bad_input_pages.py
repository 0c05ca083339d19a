"""Bad input through every page: its sentence, the view of before, a next step, and nothing huge sent."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from streamlit.testing.v1 import AppTest

from analyzer.pages.parts.store import Store
from tests.builders import make_meta, make_requests, make_steps, write
from tests.preemption_worlds import run_of
from traces.errors import FileError
from traces.open import open_workload

TIMEOUT_S = 120
PAGES = ("compare", "preemptions", "requests", "block_map", "report")
MARKUP = "<img src=x onerror=alert(1)>[a](javascript:b) $x^2$ **c** `d` :red[e]"
LONG = "x" * 10_000_000


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store that the pages use too."""
    monkeypatch.setenv("KV_REPLAY_CACHE", str(tmp_path / "cache"))
    return Store(tmp_path / "cache")


def script(name: str) -> None:
    """One page in the frame, as the app would show it."""
    import importlib

    import streamlit as st

    from analyzer.pages.parts import shell

    page = importlib.import_module(f"analyzer.pages.{name}").page
    chosen = st.Page(page, title=name, url_path=name, default=True)
    shell.run(st.navigation([chosen], position="hidden"), {name: chosen})


def open_page(name: str, **query: str) -> AppTest:
    assert importlib.import_module(f"analyzer.pages.{name}").page
    app = AppTest.from_function(script, args=(name,), default_timeout=TIMEOUT_S)
    for key, value in query.items():
        app.query_params[key] = value
    return app.run()


def link(store: Store, *paths: Path) -> list[str]:
    return [f"file:{store.link(p).id}" for p in paths]


def good(folder: Path, mode: str = "recompute") -> Path:
    run_of(folder, mode)
    return folder


def sent(app: AppTest) -> Iterator[bytes]:
    """What a browser would be sent, element by element."""
    waiting: list[Any] = [app._tree]
    while waiting:
        node = waiting.pop()
        children = getattr(node, "children", {})
        waiting += list(children.values())
        proto = getattr(node, "proto", None)
        if proto is not None and not children:
            yield proto.SerializeToString()


# ---- what cannot be shown -------------------------------------------------------------------------


@pytest.mark.parametrize("source", ["Recordings", "Sample"])
@pytest.mark.parametrize("name", PAGES)
def test_a_link_to_what_is_gone_says_so_once_on_every_page_and_offers_the_sample(
    store: Store, name: str, source: str
) -> None:
    app = open_page(name, source=source, a="file:" + "0" * 32, b="run:" + "1" * 32)

    assert not app.exception
    assert len(app.error) == 1
    assert "not on this machine" in app.error[0].value
    if name == "compare":
        app.button(key="show_sample").click().run()
        assert not app.error
        assert [t.value for t in app.title] == ["A recompute against B swap"]


def broken(folder: Path, what: str) -> Path:
    """A recording that a reader refuses. what: why."""
    columns: dict[str, Any] = {
        "back": {"t_start_s": [0.0, 2.0, 1.0]},
        "nan": {"stall_s": [0.0, float("nan"), 0.0]},
        "infinite": {"t_start_s": [0.0, 1.0, float("inf")]},
    }[what]
    requests = make_requests([{"request_id": "a", "first_token_s": 1.0, "finish_s": 2.0}])
    return write(folder, make_steps([1, 1, 1], **columns), requests=requests, meta=make_meta())


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("back", "the clock went back"),
        ("nan", "nan is not a finite number"),
        ("infinite", "inf is not a finite number"),
    ],
)
def test_a_recording_that_breaks_a_law_is_refused_and_the_pair_before_it_stays(
    store: Store, tmp_path: Path, name: str, what: str, sentence: str
) -> None:
    a, b = link(store, good(tmp_path / "a"), good(tmp_path / "b", "swap"))
    app = open_page(name, source="Recordings", a=a, b=b)
    title = app.title[0].value
    num_charts = len(app.get("plotly_chart"))
    assert not app.error

    app.text_input(key="path_c").set_value(str(broken(tmp_path / "c", what))).run()

    assert not app.exception
    assert len(app.error) == 1
    assert sentence in app.error[0].value.replace("\\", "")
    page, _, pair = title.rpartition(" · ")
    assert app.title[0].value == f"{page} · Previous result: {pair}".removeprefix(" · ")
    assert len(app.get("plotly_chart")) == num_charts
    app.button(key="take_out_c").click().run()
    assert not app.error
    assert app.title[0].value == title


# ---- what is odd and can be shown -----------------------------------------------------------------


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("victim", [MARKUP, LONG], ids=["markup", "10 MB"])
def test_a_preempted_request_may_be_called_anything(
    store: Store, tmp_path: Path, name: str, victim: str
) -> None:
    evicted = ((3, victim, "a", 5, 6, 0), (7, "b", victim, 9, 8, 0))
    folders = []
    for mode in ("recompute", "swap"):
        run_of(tmp_path / mode, mode, evicted)
        folders.append(tmp_path / mode)
    a, b = link(store, *folders)

    app = open_page(name, source="Recordings", a=a, b=b)

    assert not app.exception
    assert not app.error
    everything = list(sent(app))
    assert sum(map(len, everything)) < 2_000_000
    if victim == MARKUP:
        for markdown in [*app.markdown, *app.caption, *app.warning, *app.info]:
            assert "[a](java" not in markdown.value
            assert ":red[" not in markdown.value
        for part in (e.proto.body for e in app.get("html")):
            assert "<img" not in part
        for chart in app.get("plotly_chart"):
            assert "<img" not in json.dumps(json.loads(chart.proto.spec)["layout"])


def test_two_million_requests_of_a_foreign_parquet_are_read(tmp_path: Path) -> None:
    """With NaN and infinities among them, and times that go back."""
    num = 2_000_000
    frame = pl.select(
        arrival_s=pl.int_range(num).cast(pl.Float64).reverse() / 100,
        prompt_tokens=pl.int_range(num) % 4_000 + 1,
        output_tokens=pl.int_range(num) % 300 + 1,
    )
    frame = frame.with_columns(
        arrival_s=pl.when(pl.int_range(num) == 7).then(float("nan")).otherwise("arrival_s")
    )
    frame.write_parquet(tmp_path / "many.parquet")

    workload = open_workload(tmp_path / "many.parquet")

    assert len(workload) == num - 1
    assert dict(workload.report.dropped) == {"no arrival time": 1}
    assert workload.report.out_of_order > 1_999_000
    assert workload.table["arrival_s"].is_sorted()


def test_an_infinite_time_of_a_foreign_parquet_is_said_and_the_view_stays(
    store: Store, tmp_path: Path
) -> None:
    a, b = link(store, good(tmp_path / "a"), good(tmp_path / "b", "swap"))
    pl.DataFrame(
        {"arrival_s": [0.0, float("inf")], "prompt_tokens": [1, 2], "output_tokens": [3, 4]}
    ).write_parquet(tmp_path / "odd.parquet")
    app = open_page("compare", source="Trace", a=a, b=b)

    app.text_input(key="trace_path").set_value(str(tmp_path / "odd.parquet")).run()

    assert not app.exception
    assert "inf is not a time" in app.error[0].value.replace("\\", "")
    assert [t.value for t in app.title] == ["Previous result: A recompute against B swap"]
    assert app.get("plotly_chart")


# ---- what is linked where it lies -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("x" * 5000, "cannot be opened"),
        ("a\0b", "cannot be used"),
        ("~nobody-of-that-name/x", "there is no such file or folder"),
        ("gone", "there is no such file or folder"),
    ],
)
def test_a_path_that_the_system_refuses_is_a_sentence_not_a_fault_of_the_product(
    store: Store, path: str, fault: str
) -> None:
    with pytest.raises(FileError) as refused:
        store.link(Path(path))

    assert fault in str(refused.value)
    assert len(str(refused.value)) < 500


def test_a_folder_of_far_too_many_files_is_refused_before_they_are_counted(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("analyzer.pages.parts.store.MOST_FILES", 3)
    (tmp_path / "disk" / "below").mkdir(parents=True)
    for i in range(4):
        (tmp_path / "disk" / "below" / f"{i}").touch()

    with pytest.raises(FileError, match="more than 3 files lie below this folder"):
        store.link(tmp_path / "disk")


def test_what_must_not_be_looked_into_is_left_out_of_a_linked_folder(
    store: Store, tmp_path: Path
) -> None:
    folder = good(tmp_path / "run")
    whole = store.link(folder)
    (folder / "gone").symlink_to(tmp_path / "nowhere")
    (folder / "loop").symlink_to(folder / "loop")

    assert store.link(folder).num_bytes == whole.num_bytes
