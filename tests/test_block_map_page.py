"""The Block map page without a browser: map, chosen request, states without ownership, its replay."""

from __future__ import annotations

import base64
import json
import shutil
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from streamlit.testing.v1 import AppTest

from analyzer.block_frames import close_up, frame_places, frames
from analyzer.block_picture import BlockRun
from analyzer.pages.parts import block_source, block_state
from analyzer.pages.parts.store import Store
from analyzer.run import Run
from tests.builders import make_blocks, make_meta, make_requests, make_steps, write
from tests.test_block_map import interval, make_run
from traces.errors import RecordingError
from traces.recording import open_recording

TIMEOUT_S = 120
SAMPLES = Path(__file__).parents[1] / "traces" / "samples" / "recordings"
MARKUP = "<b>r1</b>"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store that the page uses too."""
    monkeypatch.setenv("KV_REPLAY_CACHE", str(tmp_path / "cache"))
    return Store(tmp_path / "cache")


def write_run(folder: Path, blocks: bool = True, **meta: Any) -> Path:
    """A recording of four steps and ten blocks: r0 holds 1 and 2, then <b>r1</b> takes 2."""
    rows = [
        {"request_id": "r0", "first_token_s": 1.0, "finish_s": 4.0, "prompt_tokens": 6, "output_tokens": 3},
        {"request_id": MARKUP, "arrival_s": 1.0, "first_token_s": 3.0, "finish_s": 4.0, "prompt_tokens": 3, "output_tokens": 2},
    ]  # fmt: skip
    held = [
        interval(1, "r0", 0, 0, 3),
        interval(2, "r0", 1, 0, 1),
        interval(2, MARKUP, 0, 2, 3),
    ]
    return write(
        folder,
        make_steps([2, 2, 2, 2]),
        requests=make_requests(rows),
        blocks=make_blocks(held) if blocks else None,
        meta=make_meta(**meta),
    )


def pair(store: Store, folder: Path, blocks: bool = True, **meta: Any) -> dict[str, str]:
    """Query of two such recordings in the places A and B."""
    paths = [write_run(folder / name, blocks, **meta) for name in ("one", "two")]
    a, b = (f"file:{store.link(p).id}" for p in paths)
    return {"a": a, "b": b}


def open_page(**query: str) -> AppTest:
    """The page alone, run once with these query parameters."""

    def script() -> None:
        from analyzer.pages import block_map

        block_map.page()

    app = AppTest.from_function(script, default_timeout=TIMEOUT_S)
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def chart(app: AppTest) -> dict[str, Any]:
    """The map as plotly.js gets it."""
    (found,) = app.get("plotly_chart")
    return json.loads(found.proto.spec)  # type: ignore[no-any-return]


def text_of(app: AppTest) -> str:
    return "\n".join(
        str(e.value)
        for kind in ("title", "markdown", "caption", "info", "error", "warning")
        for e in app.get(kind)
    )


def legend(figure: dict[str, Any]) -> str:
    return " ".join(t["name"] for t in figure["data"] if t.get("showlegend", True))


def test_both_runs_have_a_map_over_one_axis(store: Store, tmp_path: Path) -> None:
    app = open_page(**pair(store, tmp_path))

    assert not app.exception
    assert not app.error
    layout = chart(app)["layout"]
    assert len(layout["images"]) == 2
    assert layout["xaxis"]["range"] == [0.0, 4.0]
    assert layout["yaxis4"]["matches"] == "y2", "a zoom down one map is one of the other"
    titles = " ".join(a["text"] for a in layout["annotations"])
    assert "A · recompute" in titles
    assert "Reuse" in titles


def test_range_and_blocks_of_the_link_are_shown(store: Store, tmp_path: Path) -> None:
    app = open_page(**pair(store, tmp_path), t="1-3", blocks="2-4")

    layout = chart(app)["layout"]
    assert layout["xaxis"]["range"] == [1.0, 3.0]
    assert layout["yaxis2"]["range"] == [1.5, 4.5]


@pytest.mark.parametrize("blocks", ["9-nonsense", "0-3", "4-2", "²-3", "9" * 30 + "-1", ""])
def test_blocks_that_cannot_be_are_all_blocks(blocks: str) -> None:
    assert block_state.parse_blocks(blocks) is None


def test_blocks_beyond_the_pool_are_all_blocks(store: Store, tmp_path: Path) -> None:
    app = open_page(**pair(store, tmp_path), blocks="500-900")

    assert chart(app)["layout"]["yaxis2"]["range"] == [0.5, 10.5]


def test_a_request_of_the_link_is_lit_and_described(store: Store, tmp_path: Path) -> None:
    app = open_page(**pair(store, tmp_path), request="r0")

    assert "chosen request" in legend(chart(app))
    assert "**A**: at most 2 blocks, then in 1 run of neighbours" in text_of(app)
    assert "held from step 0 to 3" in text_of(app)


def test_a_request_with_markup_in_its_name_is_lit_and_shown_as_text(
    store: Store, tmp_path: Path
) -> None:
    app = open_page(**pair(store, tmp_path), request=MARKUP)

    assert "chosen request" in legend(chart(app))
    assert r"**Request \<b\>r1\</b\>**" in text_of(app)
    assert MARKUP not in json.dumps(chart(app))


def test_a_request_that_is_not_there_says_so(store: Store, tmp_path: Path) -> None:
    app = open_page(**pair(store, tmp_path), request="nobody")

    assert not app.exception
    assert "**A**: holds no block here." in text_of(app)
    assert "chosen request" not in legend(chart(app))


def test_the_colour_of_the_link_is_the_colour(store: Store, tmp_path: Path) -> None:
    app = open_page(**pair(store, tmp_path), colour="State")

    assert "prefill" in legend(chart(app))
    assert "one colour per request" not in legend(chart(app))


def test_one_run_alone_has_the_whole_height(store: Store, tmp_path: Path) -> None:
    query = pair(store, tmp_path)

    both = open_page(**query, map_runs="B")
    alone = open_page(a=query["a"])

    for app in (both, alone):
        assert len(chart(app)["layout"]["images"]) == 1
    assert "B · recompute" in chart(both)["layout"]["annotations"][0]["text"]


@pytest.mark.parametrize(
    ("by", "end", "since"),  # 2 of 5 tokens come in these steps: the first ones
    [("Step", 4.0, "since step"), ("Progress", 40.0, " s, for ")],
)
def test_other_axes_count_steps_and_work(
    store: Store, tmp_path: Path, by: str, end: float, since: str
) -> None:
    app = open_page(**pair(store, tmp_path), by=by)

    assert not app.error
    figure = chart(app)
    assert figure["layout"]["xaxis"]["range"] == [0.0, end]
    (first, *_) = (t for t in figure["data"] if t["type"] == "heatmap")
    assert since in first["hovertemplate"]


def test_three_runs_have_three_maps(store: Store, tmp_path: Path) -> None:
    query = pair(store, tmp_path)

    app = open_page(**query, c=query["a"])

    assert len(chart(app)["layout"]["images"]) == 3


def test_the_numbers_are_there_as_tables(store: Store, tmp_path: Path) -> None:
    app = open_page(**pair(store, tmp_path))

    app.toggle(key="show_map_data").set_value(True).run()

    reuse, scatter = (d.value for d in app.dataframe)
    assert reuse["blocks that changed hands"].sum() == 2  # block 2, in A and in B
    assert scatter["mean copies, coalesced"].max() == 1.0


# ---- without ownership ------------------------------------------------------------------------


def test_without_ownership_the_page_says_how_to_record_it(store: Store, tmp_path: Path) -> None:
    app = open_page(**pair(store, tmp_path, blocks=False))

    assert not app.exception
    assert "**A and B: nobody noted who held which block.**" in text_of(app)
    assert "`--blocks`" in text_of(app)
    assert [b.label for b in app.button if b.key == "replay_blocks"] == [
        "Replay A and B with ownership"
    ]
    assert not app.get("plotly_chart")


def test_what_a_server_measured_cannot_be_replayed_and_says_why(
    store: Store, tmp_path: Path
) -> None:
    app = open_page(**pair(store, tmp_path, blocks=False, clock="measured", executor="vllm"))

    assert "A cannot be replayed: its times were measured by vllm" in text_of(app)
    assert not [b for b in app.button if b.key == "replay_blocks"]


def test_one_run_with_ownership_is_drawn_beside_one_without(
    store: Store, tmp_path: Path
) -> None:
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", blocks=False)
    query = {k: f"file:{store.link(p).id}" for k, p in (("a", a), ("b", b))}

    app = open_page(**query)

    assert "**B: nobody noted who held which block.**" in text_of(app)
    assert len(chart(app)["layout"]["images"]) == 1


def stripped(folder: Path) -> Run:
    """The measured sample, its ownership removed."""
    shutil.copytree(SAMPLES / "smollm2-swap", folder, ignore=shutil.ignore_patterns("blocks"))
    closed = json.loads((folder / "closed.json").read_text())
    del closed["rows"]["blocks"]
    (folder / "closed.json").write_text(json.dumps(closed))
    return Run(f"file:{folder.name}", open_recording(folder), "stamp")


def no_report(side: str, done: float, text: str) -> None:
    return None


def test_a_replay_finds_the_ownership_that_was_recorded(store: Store, tmp_path: Path) -> None:
    run = stripped(tmp_path / "without")
    assert block_source.mapped(run, store) is None

    done = block_source.replay_with_blocks({"A": run}, store, no_report, lambda: False)

    assert done
    found = block_source.mapped(run, store)
    recorded = open_recording(SAMPLES / "smollm2-swap")
    assert found is not None
    truth = BlockRun(Run("", recorded), recorded.blocks)  # type: ignore[arg-type]
    for name in ("block", "owner", "logical", "first", "last"):
        assert (getattr(found.own, name) == getattr(truth.own, name)).all()


def test_a_replay_that_was_stopped_leaves_nothing(store: Store, tmp_path: Path) -> None:
    run = stripped(tmp_path / "without")

    done = block_source.replay_with_blocks({"A": run}, store, no_report, lambda: True)

    assert not done
    assert block_source.mapped(run, store) is None
    assert not list((store.root / "runs").glob(".part-*"))


def test_a_replay_that_differs_is_not_taken_for_the_recording(
    store: Store, tmp_path: Path
) -> None:
    run = Run("file:hand", open_recording(write_run(tmp_path / "hand", blocks=False)), "stamp")

    block_source.replay_with_blocks({"A": run}, store, no_report, lambda: False)

    with pytest.raises(RecordingError, match="came out differently from the recording"):
        block_source.mapped(run, store)


def test_a_run_that_did_not_complete_is_not_replayed(tmp_path: Path) -> None:
    path = write(tmp_path / "cut", make_steps([0]), meta=make_meta(), status="cancelled")

    assert "did not complete (cancelled)" in str(
        block_source.why_not(Run("", open_recording(path)))
    )


# ---- the player's frames ----------------------------------------------------------------------


def test_frames_are_steps_where_there_are_few(tmp_path: Path) -> None:
    edges = np.arange(9.0)

    assert frame_places(edges, (0.0, 8.0), 4).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert len(frame_places(np.arange(10_001.0), (0.0, 10_000.0), 4)) == 240
    assert len(frame_places(np.arange(10_001.0), (0.0, 10_000.0), 10_000)) == 100
    assert close_up(np.arange(1_001.0), 500).tolist() == list(range(460, 541))
    assert close_up(edges, 0).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_a_frame_holds_the_pool_at_its_step(tmp_path: Path) -> None:
    run = make_run(tmp_path, used=[2, 3, 3, 3, 2, 0, 0, 0])

    found = frames(run, np.arange(9.0), (0.0, 8.0))

    assert found.step.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert found.used.tolist() == [2, 3, 3, 3, 2, 0, 0, 0]
    owner = [["." if o == 0 else found.labels[o - 1] for o in row] for row in found.owner]
    assert owner[1] == ["r0", "r0", "r0", "r0", "r1", "r1", "r1", "r1"]  # held it last
    assert (found.state[1] >= 3).tolist() == [True] * 5 + [False] * 3
    assert found.index is None
    assert found.per_cell == 1.0


def test_frames_of_a_chosen_request_say_which_cells_are_lit(tmp_path: Path) -> None:
    run = make_run(tmp_path)

    found = frames(run, np.arange(9.0), (0.0, 8.0), lit="r1")

    assert found.index is not None
    assert (found.index == 63).sum() == 5


def test_packed_frames_unpack_to_the_same(tmp_path: Path) -> None:

    found = frames(make_run(tmp_path), np.arange(9.0), (0.0, 8.0))

    packed = found.packed()

    assert json.loads(json.dumps(packed)) == packed
    plane = np.frombuffer(zlib.decompress(base64.b64decode(packed["state"])), np.uint8)
    assert (plane.reshape(4, 8) == found.state).all()
    assert packed["ownerBytes"] == 1
    codes = np.frombuffer(zlib.decompress(base64.b64decode(packed["codes"])), np.int32)
    assert pl.Series(found.labels).to_list() == ["r0", "r1"]
    assert codes.tolist() == [0, 1]
