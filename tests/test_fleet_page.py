"""A fleet in the app: the side bar asks for the rank, and shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from tests.builders import make_meta, make_requests, make_steps, write
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
