"""The Sweeps page without a browser: the sample, a table of one's own, choices in the link, bad files."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from streamlit.testing.v1 import AppTest

from analyzer.pages.parts.store import Store
from analyzer.pages.parts.sweep_source import SAMPLE_TABLE
from analyzer.sweep_table import read_sweep
from tests.sweep_builders import run_inline, small_sweep

TIMEOUT_S = 120


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store that the page uses too."""
    monkeypatch.setenv("KV_REPLAY_CACHE", str(tmp_path / "cache"))
    return Store(tmp_path / "cache")


def page_alone() -> None:
    """The page in the frame, as the app would show it."""
    import streamlit as st

    from analyzer.pages import compare, sweeps
    from analyzer.pages.parts import shell

    pages = {
        "sweeps": st.Page(sweeps.page, title="Sweeps", url_path="sweeps", default=True),
        "compare": st.Page(compare.page, title="Compare", url_path="compare"),
    }
    shell.run(st.navigation(list(pages.values()), position="hidden"), pages)


def open_page(**query: str) -> AppTest:
    app = AppTest.from_function(page_alone, default_timeout=TIMEOUT_S)
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def words(app: AppTest) -> str:
    kinds = ("title", "header", "markdown", "caption", "info", "error")
    return "\n".join(str(e.value) for kind in kinds for e in app.main.get(kind))


def charts(app: AppTest) -> list[str]:
    return [e.proto.id.rsplit("-", 1)[-1] for e in app.main.get("plotly_chart")]


@pytest.fixture
def own(store: Store, tmp_path: Path) -> tuple[str, Path]:
    """A small sweep with kept recordings and a refused cell; (its id in the store, its folder)."""
    spec = small_sweep(
        tmp_path, "num_gpu_blocks=5,9", "max_num_seqs=2,8", "max_num_batched_tokens=4,16"
    )
    run_inline(spec, tmp_path / "out", keep=True)
    return store.link(tmp_path / "out").id, tmp_path / "out"


def test_the_bundled_sweep_is_whole_and_small() -> None:
    table = read_sweep(SAMPLE_TABLE)

    assert SAMPLE_TABLE.stat().st_size < 200_000
    assert table.notes == ()
    assert table.frame.height == table.num_cells
    assert set(table.frame["status"]) == {"completed"}
    assert table.axes == ("kv_tokens", "rate_scale", "max_num_seqs", "preemption_mode")


def test_the_sample_is_there_before_anything_is_given(store: Store) -> None:
    app = open_page()

    said = words(app)
    assert "Sample data" in said
    assert "goodput: TTFT at most 2 s, TPOT at most 0.1 s" in said.replace("\\", "")
    assert "TTFT p99 over KV pool" in said.replace("\\", "")
    assert charts(app) == ["sweep_heat", "sweep_front", "sweep_curve"]
    assert not app.error
    assert app.query_params == {} or "sw" not in app.query_params


def test_choices_come_from_the_link_and_go_into_it(store: Store) -> None:
    app = open_page(sw_figure="num_preemptions", sw_x="rate_scale", sw_y="kv_tokens", sw_at_max_num_seqs="16")  # fmt: skip

    assert app.selectbox(key="sweep_figure").value == "num_preemptions"
    assert app.selectbox(key="sweep_x").value == "rate_scale"
    assert app.selectbox(key="sweep_at_max_num_seqs").value == "16"
    app.selectbox(key="sweep_figure").set_value("tpot_p99_s").run()

    assert "TPOT p99" in words(app)
    assert app.query_params["sw_figure"] == "tpot_p99_s"
    assert app.query_params["sw_x"] == "rate_scale"


def test_a_choice_that_the_table_does_not_have_gives_its_default(store: Store) -> None:
    app = open_page(sw_figure="<b>", sw_x="nonsense", sw_at_trace="7")

    assert app.selectbox(key="sweep_figure").value == "ttft_p99_s"
    assert app.selectbox(key="sweep_x").value == "kv_tokens"
    assert not app.error
    assert "sw_at_trace" not in app.query_params


def test_a_table_of_ones_own_shows_refused_cells_with_their_reason(
    own: tuple[str, Path],
) -> None:
    app = open_page(sw=own[0])

    said = words(app).replace("\\", "")
    assert "Cells without figures: 2 refused" in said
    reasons = [d.value for d in app.dataframe if "Reason" in d.value.columns]
    assert "max_num_batched_tokens 4 is less than max_num_seqs 8" in reasons[0]["Reason"][0]
    assert "Choose one to three rows" in said


def choose_recordings() -> None:
    """What the button's callback does, and what the frame then shows."""
    import streamlit as st

    from analyzer.pages.parts import state
    from analyzer.pages.parts.store import Store, default_root
    from analyzer.pages.parts.sweep_views import choose_recordings

    choose_recordings(st.session_state["paths"])
    pair = state.shown_pair()
    store = Store(default_root())
    for ref in (pair.a, pair.b, pair.c):
        entry = store.get(ref.removeprefix("file:"))
        st.text(entry.path if entry else "none")
    st.text(st.session_state["source"])


def test_chosen_recordings_become_those_that_all_pages_show(own: tuple[str, Path]) -> None:
    kept = [
        str(own[1] / r) for r in pl.read_parquet(own[1] / "sweep.parquet")["recording"] if r
    ]
    app = AppTest.from_function(choose_recordings, default_timeout=TIMEOUT_S)
    app.session_state["paths"] = kept[:2]

    app.run()

    assert len(kept) == 6
    assert [t.value for t in app.text] == [*kept[:2], "none", "recordings"]


def choose_what_is_gone() -> None:
    """A press of the button after the recordings were deleted, and what the page then says."""
    import streamlit as st

    from analyzer.pages.parts import state, sweep_source
    from analyzer.pages.parts.sweep_views import choose_recordings

    st.button("Compare", on_click=choose_recordings, args=(["/gone/a-recording"],))
    sweep_source.source_section(is_sample=True)
    st.text(str(state.shown_pair()))


def test_a_chosen_recording_that_is_gone_is_said_and_what_was_shown_stays(store: Store) -> None:
    app = AppTest.from_function(choose_what_is_gone, default_timeout=TIMEOUT_S).run()

    app.button[0].click().run()

    assert not app.exception
    assert [e.value.replace("\\", "") for e in app.error] == [
        "a-recording: there is no such file or folder. Check the path; it is read on the machine that runs this page."
    ]
    assert [t.value for t in app.text] == ["None"]
    assert "source" not in app.session_state


def test_a_link_to_a_table_that_is_gone_says_so_and_shows_the_sample(store: Store) -> None:
    app = open_page(sw="0" * 32)

    assert "leads to a sweep that is not on this machine" in app.error[0].value
    assert charts(app)
    assert "sw" not in app.query_params


def test_a_path_is_opened_and_a_bad_one_keeps_what_was_shown(
    own: tuple[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    app = open_page()

    app.text_input(key="sweep_path_0").set_value(str(tmp_path / "notes.txt")).run()
    assert "it is not a Parquet file" in app.error[0].value
    assert "Sample data" in words(app)
    app.text_input(key="sweep_path_1").set_value(str(own[1])).run()

    assert not app.error
    assert app.query_params["sw"] == own[0]
    app.button(key="sweep_sample").click().run()
    assert "Sample data" in words(app)


def test_data_of_every_picture_is_shown_as_a_table(store: Store) -> None:
    app = open_page()
    before = len(app.dataframe)

    for name in ("heat", "front", "curve"):
        app.toggle(key=f"sweep_{name}_data").set_value(True)
    app.run()

    assert len(app.dataframe) == before + 3


def test_a_sweep_of_seeds_alone_says_that_nothing_varies(store: Store, tmp_path: Path) -> None:
    run_inline(small_sweep(tmp_path, "num_gpu_blocks=9"), tmp_path / "out")

    app = open_page(sw=store.link(tmp_path / "out").id)

    assert "Nothing varies in this sweep but the seed" in words(app)
    assert charts(app) == ["sweep_front"]
    assert not app.error


def test_markup_in_a_foreign_table_is_shown_as_text(store: Store, tmp_path: Path) -> None:
    frame = pl.DataFrame(
        {"trace": ["<script>x</script>", "**b**"], "status": ["completed", "failed"], "num_preemptions": [1, None],
         "error": [None, "<img src=x onerror=alert(1)>"], "kv_tokens": [1, 2]}
    )  # fmt: skip
    frame.write_parquet(tmp_path / "odd.parquet")

    app = open_page(sw=store.link(tmp_path / "odd.parquet").id)

    assert "<script>" not in words(app)
    assert not app.exception
