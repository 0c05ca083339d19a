"""A fleet in the app: the side bar asks for the rank, and shows it; the Fleet page shows all of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from analyzer.pages.parts.store import Store, default_root
from tests.builders import make_meta, make_requests, make_steps, write
from tests.fleet_builders import rank as write_rank
from tests.test_telemetry_files import make_samples
from tests.test_telemetry_files import write as write_telemetry

ROOT = Path(__file__).parents[1]
REQUEST = {"request_id": "r0", "first_token_s": 1.0, "finish_s": 4.0, "output_tokens": 3}


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KV_REPLAY_CACHE", str(tmp_path / "cache"))


def fleet(root: Path, mode: str) -> Path:
    settings = {"num_gpu_blocks": 11, "block_size": 4, "preemption_mode": mode}
    for rank in range(2):
        write(
            root / mode / f"rank-{rank:02d}",
            make_steps([1, 2, 3, 1]),
            requests=make_requests([REQUEST]),
            meta=make_meta(settings=settings),
        )
    return root / mode


def recordings_page() -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    app.query_params["source"] = "Recordings"
    return app.run()


def test_a_path_that_is_a_fleet_asks_for_the_rank_and_shows_it(tmp_path: Path) -> None:
    app = recordings_page()

    app.text_input(key="path_a").set_value(str(fleet(tmp_path, "recompute"))).run()
    assert app.selectbox(key="rank_a").options == ["rank 0 (rank-00)", "rank 1 (rank-01)"]
    app.selectbox(key="rank_a").set_value("rank-01").run()
    app.text_input(key="path_b").set_value(str(fleet(tmp_path, "swap") / "rank-00")).run()

    assert not app.exception
    assert not app.error
    assert any("**A**: rank\\-01" in str(m.value) for m in app.markdown)
    assert [t.value for t in app.title] == ["A recompute against B swap"]


def test_another_rank_of_the_fleet_can_be_chosen_afterwards(tmp_path: Path) -> None:
    app = recordings_page()
    app.text_input(key="path_a").set_value(str(fleet(tmp_path, "recompute"))).run()

    app.selectbox(key="rank_a").set_value("rank-01").run()
    app.selectbox(key="rank_a").set_value("rank-00").run()

    assert not app.exception
    assert any("**A**: rank\\-00" in str(m.value) for m in app.markdown)


def test_a_recording_given_after_a_fleet_takes_its_place(tmp_path: Path) -> None:
    app = recordings_page()
    root = fleet(tmp_path, "recompute")
    app.text_input(key="path_a").set_value(str(root)).run()

    app.text_input(key="path_a").set_value(str(root / "rank-00")).run()

    assert not app.exception
    assert not [b for b in app.selectbox if b.key == "rank_a"]
    assert any("**A**: rank\\-00" in str(m.value) for m in app.markdown)


def test_a_fleet_of_telemetry_says_that_there_is_nothing_to_compare(tmp_path: Path) -> None:
    for rank in range(2):
        write_telemetry(tmp_path / "t" / f"stats-{rank:02d}")
    app = recordings_page()

    app.text_input(key="path_a").set_value(str(tmp_path / "t")).run()

    assert not app.exception
    assert any("telemetry only" in str(e.value) for e in app.error)


# ---- the Fleet page ---------------------------------------------------------------------------------


def fleet_alone() -> None:
    """The page in the frame, as the app would show it."""
    import streamlit as st

    from analyzer.pages import fleet
    from analyzer.pages.parts import shell

    chosen = st.Page(fleet.page, title="Fleet", url_path="fleet", default=True)
    shell.run(st.navigation([chosen], position="hidden"), {"fleet": chosen})


def fleet_page(root: Path | None = None, **query: str) -> AppTest:
    """The page, run once; root: folder of the fleet."""
    app = AppTest.from_function(fleet_alone, default_timeout=120)
    if root is not None:
        app.query_params["fleet"] = f"file:{Store(default_root()).link(root).id}"
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def until(app: AppTest, done: Callable[[AppTest], bool]) -> AppTest:
    """Run the page again until its job is done."""
    for _ in range(120):
        if done(app):
            return app
        time.sleep(0.5)
        app.run()
    raise AssertionError("the job did not end")


def words(app: AppTest) -> str:
    """All that the page says in Markdown, captions and messages, markup switched on again."""
    parts = [*app.title, *app.markdown, *app.caption, *app.info, *app.warning, *app.error]
    return " ".join(str(p.value) for p in parts).replace("\\", "")


def charts(app: AppTest) -> list[dict[str, Any]]:
    return [json.loads(c.proto.spec) for c in app.get("plotly_chart")]


@pytest.fixture
def uneven(tmp_path: Path) -> Path:
    """Rank 0 full with two requests waiting, rank 1 nearly empty."""
    write_rank(
        tmp_path / "f" / "rank-00",
        [10] * 4,
        prompts=[8, 8],
        num_waiting=[2] * 4,
        num_preempted=[0, 1, 1, 0],
    )
    write_rank(tmp_path / "f" / "rank-01", [2] * 4, prompts=[8])
    return tmp_path / "f"


def test_the_fleet_page_begins_with_a_path_and_a_sample() -> None:
    app = fleet_page()

    assert not app.exception
    assert not app.error
    assert app.text_input(key="fleet_path").value == ""
    assert app.button(key="fleet_sample").label == "Try a sample fleet"


def test_a_folder_of_ranks_is_drawn_rank_by_rank(uneven: Path) -> None:
    app = fleet_page()

    app.text_input(key="fleet_path").set_value(str(uneven)).run()

    assert not app.exception
    assert not app.error
    assert [t.value for t in app.title] == ["Fleet · f: 2 ranks"]
    assert "For 100 % of the time a rank is full or preempts while another has room" in words(
        app
    )
    assert str(app.query_params["fleet"]).startswith("file:")
    names = [t["name"] for t in charts(app)[0]["data"]]
    assert names.count("rank 0") == names.count("rank 1") == 4
    assert app.dataframe[0].value["Rank"].to_list() == ["rank 0", "rank 1"]


def test_a_link_opens_the_fleet_with_its_view(uneven: Path) -> None:
    app = fleet_page(uneven, fleet_view="Heat map", fleet_measure="Waiting", t="1-3")

    assert not app.exception
    drawn = charts(app)[0]
    assert drawn["data"][0]["type"] == "heatmap"
    assert drawn["layout"]["xaxis"]["range"] == [1.0, 3.0]
    assert "Waiting" in drawn["layout"]["annotations"][0]["text"]


def test_a_fleet_in_the_side_bar_is_shown_on_the_page(uneven: Path) -> None:
    app = AppTest.from_function(fleet_alone, default_timeout=120)
    app.session_state["fleet_asked"] = str(uneven)  # as the side bar's button leaves it

    app.run()

    assert not app.exception
    assert [t.value for t in app.title] == ["Fleet · f: 2 ranks"]


def test_a_fleet_of_the_side_bar_that_is_gone_is_said_not_thrown(
    uneven: Path, tmp_path: Path
) -> None:
    app = AppTest.from_function(fleet_alone, default_timeout=120)
    app.session_state["fleet_a"] = str(tmp_path / "gone")
    app.run()

    app.button(key="fleet_from_a").click().run()

    assert not app.exception
    assert ["there is no such file or folder" in e.value for e in app.error] == [True]


def test_the_side_bar_offers_all_ranks_of_a_fleet(tmp_path: Path) -> None:
    app = recordings_page()

    app.text_input(key="path_a").set_value(str(fleet(tmp_path, "recompute"))).run()

    assert app.button(key="to_fleet_a").label == "All ranks on Fleet"


def test_ranks_are_found_by_name(uneven: Path) -> None:
    app = fleet_page(uneven)

    app.text_input(key="fleet_find").set_value("RANK 1").run()
    assert app.dataframe[0].value["Rank"].to_list() == ["rank 1"]
    app.text_input(key="fleet_find").set_value("<b>*no*").run()

    assert not app.exception
    assert "No rank's name or folder holds <b>*no*" in words(app)


def test_what_was_left_out_is_said_with_its_reason(uneven: Path) -> None:
    write(uneven / "rank-02", make_steps([1, 99]))
    (uneven / "rank-03").mkdir()

    app = fleet_page(uneven)

    assert not app.exception
    assert "rank-02 was left out" in words(app)
    assert "rank-03 was left out: the folder holds no table" in words(app)


def test_one_rank_only_is_drawn_and_has_nobody_to_compare_with(tmp_path: Path) -> None:
    write_rank(tmp_path / "one" / "rank-00", [5, 6], prompts=[4])

    app = fleet_page(tmp_path / "one")

    assert not app.exception
    assert "One rank only: there is no other to compare with." in words(app)
    assert [t.value for t in app.title] == ["Fleet · one: 1 rank"]


def test_a_fleet_of_telemetry_has_lines_and_nothing_to_route(tmp_path: Path) -> None:
    for i in range(2):
        write_telemetry(tmp_path / "t" / f"stats-{i:02d}", make_samples(engine_rank=[i] * 3))

    app = fleet_page(tmp_path / "t")

    assert not app.exception
    assert "usage known" in words(app)
    assert "Telemetry names no requests" in words(app)
    assert not [b for b in app.button if b.key == "fleet_route"]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda p: p.mkdir(), "the folder is empty"),
        (lambda p: p.write_text("x"), "a fleet is a folder of recordings"),
        (lambda p: None, "there is no such file or folder"),
    ],
)
def test_what_is_no_fleet_is_said(
    tmp_path: Path, make: Callable[[Path], Any], said: str
) -> None:
    make(tmp_path / "x")
    app = fleet_page()

    app.text_input(key="fleet_path").set_value(str(tmp_path / "x")).run()

    assert not app.exception
    assert said in words(app)
    assert app.button(key="fleet_sample")


def test_a_link_to_a_fleet_that_is_gone_says_so() -> None:
    app = fleet_page(fleet="run:" + "0" * 32)

    assert not app.exception
    assert "a fleet that is not on this machine" in words(app)


def test_the_sample_fleet_is_routed_again_and_replicas_are_counted() -> None:
    app = fleet_page()

    app.button(key="fleet_sample").click().run()
    until(app, lambda a: a.title[0].value == "Fleet · simulated: 4 ranks")
    sample = app.query_params["fleet"]
    app.button(key="fleet_route").click().run()
    until(app, lambda a: len(a.dataframe) > 1)
    table = app.dataframe[1].value
    app.button(key="fleet_search").click().run()
    until(app, lambda a: len(a.dataframe) > 2)

    assert not app.exception
    assert not app.error
    by_figure = {row["Figure"]: row for _, row in table.iterrows()}
    assert by_figure["Preemptions"]["Recorded"] == "130"
    assert by_figure["Preemptions"]["Simulated as recorded"] == "130"
    assert by_figure["Preemptions"]["Least KV tokens"] == "2"
    assert by_figure["Times are"]["Least KV tokens"] == "modelled"
    assert "5 replicas are the fewest that meet the goal (no preemption)" in words(app)
    assert app.query_params["routed"] == "least-tokens-4"
    app.button(key="fleet_open_routed").click().run()
    until(app, lambda a: a.query_params["fleet"] != sample)
    assert app.title[0].value == "Fleet · simulated: 4 ranks"
