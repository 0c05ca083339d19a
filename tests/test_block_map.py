"""Ownership made ready to be asked: who holds a cell, in which state it is, how scattered blocks lie."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image

from analyzer import block_measures
from analyzer.block_colours import COLOUR_BY, palette
from analyzer.block_map import NOBODY, Ownership, ownership_of
from analyzer.block_map_figure import MapAxis, alt_text, block_map, png
from analyzer.block_picture import (
    Asked,
    BlockRun,
    Lit,
    MapPicture,
    cell_ages,
    cell_texts,
    picture,
)
from analyzer.block_states import CellState, states_of
from analyzer.host_tier import host_tier
from analyzer.look import DARK, LIGHT
from analyzer.run import Run
from tests.builders import (
    make_blocks,
    make_events,
    make_meta,
    make_requests,
    make_steps,
    record,
)
from traces.recording import open_recording

SAMPLES = Path(__file__).parents[1] / "traces" / "samples" / "recordings"
POOL = 4
STEPS = 8
U, E, C = CellState.UNUSED, CellState.EMPTY, CellState.CACHED
P, D, S, F = CellState.PREFILL, CellState.DECODE, CellState.SHARED, CellState.FENCED


def interval(block: int, request: str, index: int, first: int, last: int) -> dict[str, Any]:
    return {
        "block_id": block,
        "request_id": request,
        "logical_index": index,
        "first_step": first,
        "last_step": last,
    }


def request(
    name: str, arrival: float, prompt: int, output: int, first: float
) -> dict[str, Any]:
    return {
        "request_id": name,
        "arrival_s": arrival,
        "prompt_tokens": prompt,
        "output_tokens": output,
        "first_token_s": first,
        "finish_s": 8.0,
    }


# Blocks of 4 tokens. r0 holds 1 and 2 in steps 0 to 3 and ends with 7 tokens computed, so that its
# second block is not full; r1 takes 3, is preempted in step 5 with 4 tokens computed, and block 2.
INTERVALS = [
    interval(1, "r0", 0, 0, 3),
    interval(2, "r0", 1, 0, 3),
    interval(3, "r1", 0, 1, 4),
    interval(2, "r1", 1, 4, 4),
]
REQUESTS = [request("r0", 0.0, 5, 3, 1.0), request("r1", 0.5, 4, 9, 3.0)]
PREEMPT = {
    "step": 5,
    "kind": "preempt",
    "request_id": "r1",
    "mode_used": "recompute",
    "tokens": 4,
}


def make_run(
    folder: Path,
    intervals: Iterable[Mapping[str, Any]] = INTERVALS,
    requests: Iterable[Mapping[str, Any]] = REQUESTS,
    events: Iterable[Mapping[str, Any]] = (PREEMPT,),
    caching: bool = True,
    used: Iterable[int] = (0,) * STEPS,
    **columns: Any,
) -> BlockRun:
    """A run of eight steps of a second each over four blocks."""
    meta = make_meta(POOL)
    meta["settings"]["enable_prefix_caching"] = caching
    recording = record(
        folder,
        steps=make_steps(used, POOL, **columns),
        events=make_events(events),
        requests=make_requests(requests),
        blocks=make_blocks(intervals),
        meta=meta,
    )
    assert recording.blocks is not None
    return BlockRun(Run("", recording), recording.blocks)


def owners(own: Ownership) -> list[list[str]]:
    """A row a block, lowest first: who holds it in each step, '.' for nobody."""
    cells = own.at(np.arange(1, POOL + 1), np.arange(own.num_steps))
    return [["." if c == NOBODY else own.ids[int(c)] for c in row] for row in cells.owner]


def drawn(run: BlockRun) -> list[list[CellState]]:
    cells = run.own.at(np.arange(1, POOL + 1), np.arange(STEPS))
    return [[CellState(s) for s in row] for row in states_of(cells, run.told)]


def edges(run: BlockRun) -> np.ndarray:
    return np.append(run.starts_s, run.starts_s[-1] + 1)


def shown(run: BlockRun, **asked: Any) -> MapPicture:
    """The whole run, a pixel a step."""
    return picture(run, edges(run), Asked((0.0, 8.0), columns=STEPS, **asked), "A", "hand")


def test_a_cell_belongs_to_who_holds_the_block_in_that_step(tmp_path: Path) -> None:
    own = make_run(tmp_path).own

    assert owners(own) == [
        ["r0", "r0", "r0", "r0", ".", ".", ".", "."],
        ["r0", "r0", "r0", "r0", "r1", ".", ".", "."],
        [".", "r1", "r1", "r1", "r1", ".", ".", "."],
        [".", ".", ".", ".", ".", ".", ".", "."],
    ]


def test_pieces_of_a_cut_interval_are_one(tmp_path: Path) -> None:
    run = make_run(tmp_path, [interval(1, "r0", 0, 0, 1), interval(1, "r0", 0, 2, 5)])

    assert len(run.own) == 1
    assert (run.own.first[0], run.own.last[0]) == (0, 5)


def test_pieces_of_a_shared_block_are_joined_for_each_holder(tmp_path: Path) -> None:
    pieces = [interval(1, name, 0, *part) for part in ((0, 2), (3, 5)) for name in ("r0", "r1")]

    run = make_run(tmp_path, pieces)

    assert len(run.own) == 2
    assert run.own.last.tolist() == [5, 5]


def test_the_same_request_that_comes_back_later_is_another_interval(tmp_path: Path) -> None:
    run = make_run(tmp_path, [interval(1, "r0", 0, 0, 1), interval(1, "r0", 0, 3, 5)])

    assert len(run.own) == 2
    assert owners(run.own)[0] == ["r0", "r0", ".", "r0", "r0", "r0", ".", "."]


def test_a_shared_block_is_shown_as_its_first_holder_until_it_goes(tmp_path: Path) -> None:
    shared = [interval(1, "r0", 0, 0, 3), interval(1, "r1", 0, 2, 6)]

    run = make_run(tmp_path, shared, events=())

    assert owners(run.own)[0] == ["r0", "r0", "r0", "r0", "r1", "r1", "r1", "."]
    assert drawn(run)[0] == [P, D, S, S, D, D, D, C]
    assert run.own.holders(np.array([1]), np.arange(STEPS)).tolist() == [
        [1, 1, 2, 2, 1, 1, 1, 0]
    ]


def test_a_holder_within_the_time_of_another_is_never_shown_and_still_counted(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path, [interval(1, "r0", 0, 0, 5), interval(1, "r1", 0, 2, 3)])

    assert owners(run.own)[0] == ["r0"] * 6 + [".", "."]
    assert drawn(run)[0][2:4] == [S, S]


def test_free_blocks_are_told_apart_by_what_is_left_in_them(tmp_path: Path) -> None:
    run = make_run(tmp_path)

    assert drawn(run) == [
        [P, D, D, D, C, C, C, C],  # 4 of its 4 tokens computed: can be hit
        [P, D, D, D, D, E, E, E],  # r1 had computed 4 tokens, none of them in its second block
        [U, P, P, D, D, C, C, C],
        [U] * 8,
    ]


def test_without_prefix_caching_nothing_is_left_in_a_free_block(tmp_path: Path) -> None:
    run = make_run(tmp_path, caching=False)

    assert drawn(run)[0] == [P, D, D, D, E, E, E, E]


def test_a_block_that_waits_for_its_copy_is_the_victims_until_it_is_done(
    tmp_path: Path,
) -> None:
    preempt = {**PREEMPT, "step": 3, "mode_used": "swap"}

    run = make_run(tmp_path, [interval(1, "r1", 0, 1, 4)], events=[preempt])

    assert drawn(run)[0] == [U, P, P, F, F, C, C, C]


@pytest.mark.parametrize("name", ["smollm2-recompute", "smollm2-swap"])
def test_states_add_up_to_what_the_steps_counted(name: str) -> None:
    recording = open_recording(SAMPLES / name)
    run = BlockRun(Run("", recording), recording.blocks)  # type: ignore[arg-type]
    rows = np.arange(run.own.num_steps)

    states = states_of(run.own.at(np.arange(1, run.own.num_blocks + 1), rows), run.told)

    assert ((states >= P).sum(0) == recording.steps["used_blocks"].to_numpy()).all()
    assert ((states == C).sum(0) == recording.steps["cached_free_blocks"].to_numpy()).all()


def test_intervals_of_no_block_of_the_pool_are_left_out_and_counted(tmp_path: Path) -> None:
    bad = [
        interval(0, "r0", 0, 0, 3),
        interval(5, "r0", 0, 0, 3),
        interval(1, "r0", 0, 9, 12),
        interval(1, "r0", 0, 3, 2),
    ]

    own = make_run(tmp_path, [*INTERVALS, *bad]).own

    assert own.num_dropped == 4
    assert len(own) == 4


def test_a_request_that_only_blocks_know_comes_last(tmp_path: Path) -> None:
    recording = record(
        tmp_path,
        steps=make_steps([0] * 3, POOL),
        requests=make_requests(REQUESTS),
        blocks=make_blocks([interval(1, "a stranger", 0, 0, 1)]),
        meta=make_meta(POOL),
    )

    own = ownership_of(recording.blocks, recording.steps, recording.requests, POOL)  # type: ignore[arg-type]

    assert own.ids.to_list() == ["r0", "r1", "a stranger"]
    assert own.code("a stranger") == 2
    assert own.code("r0") is None, "it never held a block"
    assert own.code("nobody") is None


def test_steps_with_gaps_are_counted_by_their_rows(tmp_path: Path) -> None:
    recording = record(
        tmp_path,
        steps=make_steps([0] * 4, POOL, step=[10, 11, 20, 21]),
        requests=make_requests(REQUESTS),
        blocks=make_blocks([interval(1, "r0", 0, 11, 15), interval(2, "r0", 1, 12, 20)]),
        meta=make_meta(POOL),
    )

    own = ownership_of(recording.blocks, recording.steps, recording.requests, POOL)  # type: ignore[arg-type]

    assert owners(own)[:2] == [[".", "r0", ".", "."], [".", ".", "r0", "."]]


def test_an_empty_table_is_a_map_of_blocks_never_used(tmp_path: Path) -> None:
    run = make_run(tmp_path, [], events=())

    found = shown(run)

    assert not found.index.any()
    assert found.states[U] == 1.0
    assert found.hover.text[0, 0] == "never used yet"


# ---- pictures ---------------------------------------------------------------------------------


def test_a_picture_is_as_large_as_it_was_asked_for_and_no_larger_than_the_pool(
    tmp_path: Path,
) -> None:
    run = make_run(tmp_path)

    assert shown(run).index.shape == (4, 8)
    assert shown(run, rows=2).index.shape == (2, 8)
    assert shown(run, rows=2).per_row == 2.0
    assert shown(run, blocks=(2, 3)).index.shape == (2, 8)
    assert shown(run, blocks=(9, 12)).blocks == (1, 4), "blocks that are not there: all"


def test_the_same_request_has_the_same_colour_in_every_run(tmp_path: Path) -> None:
    a = shown(make_run(tmp_path / "a"))
    b = shown(make_run(tmp_path / "b", [interval(4, "r1", 0, 0, 7)]))

    assert a.index[2, 1] == b.index[3, 0]
    assert a.index[0, 0] != a.index[2, 1]


def test_a_chosen_request_is_lit_and_the_rest_dimmed(tmp_path: Path) -> None:
    found = shown(make_run(tmp_path), lit="r1")

    lit = found.index == 63
    assert found.lit == Lit("r1", 1.0, 5.0)
    assert lit.tolist() == [
        [False] * 8,
        [False] * 4 + [True] + [False] * 3,
        [False] + [True] * 4 + [False] * 3,
        [False] * 8,
    ]
    assert (found.index[~lit] >= 64).all()


def test_a_chosen_request_is_lit_where_its_pixel_shows_another_block(tmp_path: Path) -> None:
    found = shown(make_run(tmp_path, [interval(1, "r0", 0, 3, 3)]), lit="r0", rows=1)

    assert (found.index[0] == 63).tolist() == [False] * 3 + [True] + [False] * 4


def test_a_request_that_holds_nothing_lights_nothing(tmp_path: Path) -> None:
    assert shown(make_run(tmp_path), lit="<script>").lit is None


def test_no_step_before_the_start_and_after_the_end(tmp_path: Path) -> None:
    run = make_run(tmp_path)

    found = picture(run, edges(run), Asked((0.0, 16.0), columns=16), "A", "hand")

    assert (found.index[:, 8:] == 7).all()
    assert (found.index[:, :8] != 7).all()
    assert found.hover.text[0, -1] == ""


def test_hover_tells_owner_index_state_and_age(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    cells = run.own.at(np.array([2]), np.array([2, 6]))

    assert cell_texts(run, cells).tolist() == [
        ["request r0, its block 1, in use, decode", "free, last of request r1"]
    ]
    assert cell_ages(run, cells, "time").tolist() == [[[0.0, 2.0], [5.0, 1.0]]]
    assert cell_ages(run, cells, "step").tolist() == [[[0.0, 2.0], [5.0, 1.0]]]


def test_markup_in_ids_and_endless_ids_do_no_harm(tmp_path: Path) -> None:
    name = "<b>%{x}" + "x" * 10_000
    run = make_run(tmp_path, [interval(1, name, 0, 0, 3)], [request(name, 0.0, 4, 4, 1.0)], ())

    text = shown(run).hover.text[0, 0]

    assert text == f"request ·b···x·{'x' * 21}, its block 0, in use, prefill"


def test_preemptions_are_marked_where_they_happened(tmp_path: Path) -> None:
    found = shown(make_run(tmp_path))

    assert found.marks.x.tolist() == [5.0]
    assert found.marks.count.tolist() == [1]
    assert found.marks.victims == ["r1"]
    part = picture(make_run(tmp_path / "b"), np.arange(9.0), Asked((0.0, 4.0)), "A", "hand")
    assert part.num_preemptions == 0


def test_age_is_counted_from_when_the_block_was_taken(tmp_path: Path) -> None:
    run = make_run(tmp_path, [interval(1, "r0", 0, 0, 7)])

    found = shown(run, by="age")

    assert (found.index[0] - 40).tolist() == [0, 3, 3, 4, 4, 4, 4, 4]  # 0, 1, 2, 3, ... s


def test_host_memory_is_stacked_by_who_went_first(tmp_path: Path) -> None:
    events = [
        {"step": 2, "kind": "swap_out", "request_id": "r1", "blocks": 1},
        {"step": 3, "kind": "swap_out", "request_id": "r0", "blocks": 2},
        {"step": 5, "kind": "swap_in", "request_id": "r1", "blocks": 1},
    ]
    run = make_run(tmp_path, events=events, host_used_blocks=[0, 0, 1, 3, 3, 2, 2, 2])
    tier = host_tier(run.own, run.steps, run.events)
    assert tier is not None

    index, blocks = tier.raster(np.append(np.arange(STEPS), -1), 3)

    r0, r1 = 8, 9
    assert blocks == 3
    assert index.tolist() == [
        [U, U, r1, r1, r1, r0, r0, r0, U],
        [U, U, U, r0, r0, r0, r0, r0, U],
        [U, U, U, r0, r0, U, U, U, U],
    ]


def test_host_blocks_that_no_request_is_known_to_have_are_grey(tmp_path: Path) -> None:
    run = make_run(tmp_path, host_used_blocks=[0, 2, 2, 0, 0, 0, 0, 0])

    index, blocks = run.host.raster(np.arange(STEPS), 2)  # type: ignore[union-attr]

    assert blocks == 2
    assert index[:, 1].tolist() == [C, C]
    assert make_run(tmp_path / "b").host is None


# ---- measures ---------------------------------------------------------------------------------


def test_runs_are_neighbours_in_the_table_and_in_memory(tmp_path: Path) -> None:
    scattered = [
        interval(2, "r0", 0, 0, 3),
        interval(3, "r0", 1, 0, 3),
        interval(1, "r0", 2, 0, 3),
        interval(4, "r1", 0, 2, 3),
    ]
    own = make_run(tmp_path, scattered).own

    found = block_measures.runs_at(own, np.array([0, 2, 5]))

    assert found.rows() == [
        (0, 1, 3, 2, 2, 1),
        (2, 2, 4, 3, 2, 2),
        (5, 0, 0, 0, 0, 0),
    ]
    assert block_measures.request_runs(own, 0, 0) == (3, 2)
    assert block_measures.request_runs(own, 0, 5) == (0, 0)


def test_a_block_changes_hands_when_another_request_takes_it(tmp_path: Path) -> None:
    own = make_run(
        tmp_path,
        [
            interval(1, "r0", 0, 0, 1),
            interval(1, "r1", 0, 3, 4),
            interval(1, "r1", 0, 6, 6),
            interval(2, "r1", 1, 3, 4),
        ],
    ).own

    assert block_measures.handover_rows(own).tolist() == [3]
    assert block_measures.handovers_per_block(own, 0, 7).tolist() == [0, 1, 0, 0, 0]
    assert block_measures.handovers_per_block(own, 4, 7).tolist() == [0, 0, 0, 0, 0]


def test_cached_tokens_are_counted_as_blocks(tmp_path: Path) -> None:
    run = make_run(tmp_path, cached_tokens=[0, 8, 0, 4, 0, 0, 0, 0])

    found = block_measures.hit_blocks(run.steps, np.array([0, 2, 8]), 4)

    assert found.tolist() == [2.0, 1.0]


# ---- figures ----------------------------------------------------------------------------------


def test_a_raster_becomes_a_picture_with_the_lowest_block_at_the_bottom() -> None:
    raster = np.array([[8, 8], [1, 2]], np.uint8)

    image = Image.open(io.BytesIO(png(raster, palette(LIGHT), least_rows=4))).convert("RGB")

    assert image.size == (2, 4)
    bottom, top = image.getpixel((0, 3)), image.getpixel((0, 0))
    assert bottom == (0x00, 0x72, 0xB2)
    assert top != bottom


def test_every_colour_of_the_palette_is_one_that_plotly_takes() -> None:
    for theme in (LIGHT, DARK):
        colours = palette(theme)
        assert len(colours) == 128
        assert all(len(c) == 7 and int(c[1:], 16) >= 0 for c in colours)
        owners_ = colours[8:29]
        assert len(set(owners_)) == 21


@pytest.mark.parametrize("by", list(COLOUR_BY))
def test_a_figure_has_a_map_a_host_tier_and_rows(tmp_path: Path, by: Any) -> None:
    run = make_run(tmp_path, host_used_blocks=[0, 2, 2, 0, 0, 0, 0, 0])
    found = shown(run, by=by)
    axis = MapAxis("Time since the start", "s", (0.0, 8.0))

    figure = block_map([found], axis, by, LIGHT).to_plotly_json()

    assert len(figure["layout"]["images"]) == 2
    titles = " ".join(a["text"] for a in figure["layout"]["annotations"])
    for said in ("A · hand", "host memory", "Scatter", "Reuse", "1 preemption"):
        assert said in titles
    assert [t["type"] for t in figure["data"]].count("heatmap") == 1
    words = alt_text([found], axis, by)
    assert "1 preemption, 1 change of holder" in words


def test_the_payload_does_not_grow_with_the_run(tmp_path: Path) -> None:
    few = make_run(tmp_path / "few")
    many = make_run(
        tmp_path / "many", [interval(1 + i % 4, "r0", i, i % 8, i % 8) for i in range(4000)]
    )
    axis = MapAxis("Time since the start", "s", (0.0, 8.0))

    sizes = [
        len(block_map([shown(run)], axis, "owner", LIGHT).to_json()) for run in (few, many)
    ]

    assert sizes[1] < sizes[0] * 1.2


def test_polars_is_given_no_index_of_nobody(tmp_path: Path) -> None:
    """NOBODY is -1, which would silently be the last element: texts of free cells name no stranger."""
    run = make_run(tmp_path, [interval(3, "r1", 0, 1, 1)])

    texts = pl.Series(shown(run).hover.text[0].astype(str))

    assert not texts.str.contains("request").any()
