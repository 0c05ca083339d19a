"""What the pages do with an upload, whether Streamlit holds its bytes or a token of what lies on disk."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from analyzer.pages.parts.evidence_reading import evidence_store
from analyzer.pages.parts.store import Store
from analyzer.pages.parts.sweep_source import SAMPLE_TABLE
from analyzer.pages.parts.uploads import OnDisk, hand_over
from tests.evidence_texts import v1, v1_pool

TIMEOUT_S = 120
LOG = "\n".join([*v1_pool(400_000), *(v1(10 * i, 32, 8 + i, 41.0) for i in range(8))]).encode()


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store that the page uses too."""
    monkeypatch.setenv("KV_REPLAY_CACHE", str(tmp_path / "cache"))
    return Store(tmp_path / "cache")


def on_disk(store: Store, content: bytes) -> bytes:
    """What Streamlit holds of a file that the server has written to the store."""
    with store.open_part() as part:
        part.write(content)
    id_ = hashlib.blake2b(content, digest_size=16).hexdigest()
    return hand_over(OnDisk(Path(part.name), id_, len(content)))


def not_on_disk(store: Store, num_bytes: int) -> bytes:
    """What Streamlit holds of a file that the disk did not take."""
    return hand_over(OnDisk(None, "0" * 32, num_bytes, "No space left on device"))


def the_sources() -> None:
    """The side bar's choice of recordings, and what it made of it."""
    from analyzer.pages.parts import sources, state
    from analyzer.pages.parts.messages import guarded
    from analyzer.pages.parts.store import Store, default_root

    with guarded():
        sources.source_section(Store(default_root()))
    state.write_url()


def diagnose() -> None:
    from analyzer.pages import diagnose

    diagnose.page()


def the_sweeps() -> None:
    """The box for a table of one's own, and which one is shown."""
    import streamlit as st

    from analyzer.pages.parts import sweep_source, sweep_state

    sweep_source.source_section(is_sample=True)
    sweep_source.opened()
    st.caption(f"shown: {sweep_state.shown()}")


def text_of(app: AppTest) -> str:
    kinds = ("title", "header", "markdown", "caption", "info", "error")
    return "\n".join(str(e.value) for kind in kinds for e in app.get(kind)).replace("\\", "")


@pytest.mark.parametrize("way", ["bytes", "disk"])
def test_dropped_recordings_take_their_places_by_name(store: Store, way: str) -> None:
    app = AppTest.from_function(the_sources, default_timeout=TIMEOUT_S)
    app.query_params["source"] = "Recordings"
    app.run()
    contents = [b"PK one", b"PK two, longer"]
    held = contents if way == "bytes" else [on_disk(store, c) for c in contents]

    names = ("before.zip", "after.zip")
    app.file_uploader[0].set_value(
        [(n, h, "application/zip") for n, h in zip(names, held, strict=True)]
    )
    app.run()

    assert not app.error
    assert not app.exception
    assert "**A**: before.zip" in text_of(app)
    assert "**B**: after.zip" in text_of(app)
    kept = {e.name: (e.num_bytes, Path(e.path).read_bytes()) for e in store.recent()}
    assert kept == {"before.zip": (6, b"PK one"), "after.zip": (14, b"PK two, longer")}
    assert list((store.root / "uploads").glob(".part-*")) == []


def test_recordings_that_were_given_before_can_be_opened_again_and_deleted(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    kept = [store.link(tmp_path / "run"), store.spool(io.BytesIO(b"PK one"), "one.zip")]
    store.spool(io.BytesIO(b"arrival_s\n"), "trace.csv")
    app = AppTest.from_function(the_sources, default_timeout=TIMEOUT_S)
    app.query_params["source"] = "Recordings"
    app.run()
    assert [o.split(" (")[0] for o in app.selectbox(key="recent_file").options] == [
        "one.zip",
        "run",
    ]

    for entry in kept:
        app.selectbox(key="recent_file").set_value(entry.id)
        app.button(key="open_recent").click().run()

    assert not app.exception
    assert "**A**: run" in text_of(app)
    assert "**B**: one.zip" in text_of(app)

    (tmp_path / "run" / "part").touch()  # it is being written: another state of the same folder
    newer = store.link(tmp_path / "run")
    app.run()
    assert len(app.selectbox(key="recent_file").options) == 2
    app.selectbox(key="recent_file").set_value(newer.id)
    app.button(key="delete_recent").click().run()

    assert not app.exception
    assert "**A**: one.zip" in text_of(app)
    assert "**B**: not chosen" in text_of(app)
    assert store.get(kept[0].id) is None
    assert (tmp_path / "run").is_dir()  # a linked file itself stays


def test_an_empty_file_does_not_stand_before_what_is_dropped_next(store: Store) -> None:
    app = AppTest.from_function(the_sources, default_timeout=TIMEOUT_S)
    app.query_params["source"] = "Recordings"
    app.run()

    app.file_uploader[0].set_value(
        [("nothing.zip", b"", "application/zip"), ("one.zip", b"PK one", "application/zip")]
    )
    app.run()

    assert [e.value.replace("\\", "") for e in app.error] == [
        "nothing.zip: the file is empty. Check how it was written, and give one with content."
    ]
    assert "**A**: one.zip" in text_of(app)
    assert [i.key for i in app.text_input] == ["path_a", "path_b", "path_c"]

    app.file_uploader[0].set_value([("two.zip", b"PK two", "application/zip")]).run()

    assert not app.error
    assert "**A**: one.zip" in text_of(app)
    assert "**B**: two.zip" in text_of(app)


@pytest.mark.parametrize(("source", "key"), [("Recordings", "path_a"), ("Trace", "trace_path")])
def test_a_path_that_leads_nowhere_leaves_the_rest_of_the_side_bar_as_it_was(
    store: Store, tmp_path: Path, source: str, key: str
) -> None:
    app = AppTest.from_function(the_sources, default_timeout=TIMEOUT_S)
    app.query_params["source"] = source
    app.run()
    before = [(i.key, i.label) for i in app.text_input], [c.value for c in app.caption]

    app.text_input(key=key).set_value(str(tmp_path / "gone")).run()

    assert [e.value.replace("\\", "") for e in app.error] == [
        "gone: there is no such file or folder. Check the path; it is read on the machine that runs this page."
    ]
    assert (
        [(i.key, i.label) for i in app.text_input],
        [c.value for c in app.caption],
    ) == before


@pytest.mark.parametrize("way", ["bytes", "disk"])
def test_dropped_evidence_is_read_once_the_button_is_pressed(store: Store, way: str) -> None:
    app = AppTest.from_function(diagnose, default_timeout=TIMEOUT_S).run()
    held = LOG if way == "bytes" else on_disk(store, LOG)

    app.file_uploader[0].set_value([("server.log", held, "text/plain")])
    next(b for b in app.button if b.label == "Read and diagnose").click()
    app.run()

    assert not app.error
    assert not app.exception
    assert [e.name for e in evidence_store().recent()] == ["server.log"]
    assert Path(evidence_store().recent()[0].path).read_bytes() == LOG
    assert list((store.root / "uploads").glob(".part-*")) == []


@pytest.mark.parametrize("way", ["bytes", "disk"])
def test_a_dropped_table_of_a_sweep_is_opened(store: Store, way: str) -> None:
    app = AppTest.from_function(the_sweeps, default_timeout=TIMEOUT_S).run()
    table = SAMPLE_TABLE.read_bytes()
    held = table if way == "bytes" else on_disk(store, table)

    app.file_uploader[0].set_value(("mine.parquet", held, "application/octet-stream")).run()

    assert not app.error
    assert not app.exception
    (entry,) = store.recent()
    assert entry.name == "mine.parquet"
    assert f"shown: {entry.id}" in text_of(app)


def test_an_empty_table_of_a_sweep_is_let_go_of_and_said(store: Store) -> None:
    app = AppTest.from_function(the_sweeps, default_timeout=TIMEOUT_S).run()
    shown = [c.value for c in app.caption if c.value.startswith("shown: ")]

    app.file_uploader[0].set_value(("none.parquet", b"", "application/octet-stream")).run()

    assert [e.value.replace("\\", "") for e in app.error] == [
        "none.parquet: the file is empty. Check how it was written, and give one with content."
    ]
    assert [c.value for c in app.caption if c.value.startswith("shown: ")] == shown
    assert app.file_uploader[0].value is None


def test_more_evidence_than_is_read_at_once_is_said_and_none_left_out(store: Store) -> None:
    app = AppTest.from_function(diagnose, default_timeout=TIMEOUT_S).run()

    app.file_uploader[0].set_value([(f"{i}.log", LOG, "text/plain") for i in range(201)])
    next(b for b in app.button if b.label == "Read and diagnose").click()
    app.run()

    assert [e.value.replace("\\", "") for e in app.error] == [
        "evidence: 201 files were dropped. Give at most 200 at once."
    ]
    assert evidence_store().recent() == []


@pytest.mark.parametrize("script", [the_sources, the_sweeps])
def test_a_disk_that_is_full_is_said_with_the_name_of_the_file(store: Store, script) -> None:  # type: ignore[no-untyped-def]  # a function without arguments, read as text
    app = AppTest.from_function(script, default_timeout=TIMEOUT_S)
    app.query_params["source"] = "Recordings"
    app.run()

    app.file_uploader[0].set_value([("run.zip", not_on_disk(store, 10**9), "application/zip")])
    app.run()

    assert [e.value.replace("\\", "") for e in app.error] == [
        f"run.zip: it could not be stored (No space left on device). Make room in {store.root}, "
        "or set KV_REPLAY_CACHE to a folder that has some."
    ]
    assert not app.exception
