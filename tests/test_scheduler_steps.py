"""Growing and admitting: blocks, budget, gates and the prefix cache in a world of 4 blocks of 4 tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.engine_builders import decide, make_request, make_settings, make_trace, tokens_of


def test_a_block_is_taken_when_a_token_crosses_the_boundary(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", prompt=4, output=3))

    steps, _ = decide(trace, make_settings(), tmp_path)

    assert [s["new_blocks"] for s in steps] == [{"a": [1]}, {"a": [2]}, {}]
    assert [s["blocks"]["used"] for s in steps] == [1, 2, 2]
    assert [s["finished"] for s in steps] == [[], [], ["a"]]
    assert steps[-1]["blocks_end"]["used"] == 0


def test_without_a_prefix_cache_blocks_are_reused_last_in_first_out(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 8, 1), make_request("b", 12, 1, arrival=1))

    steps, _ = decide(trace, make_settings(), tmp_path)

    assert steps[0]["new_blocks"] == {"a": [1, 2]}
    assert steps[1]["new_blocks"] == {"b": [2, 1, 3]}


def test_cached_blocks_are_freed_to_the_tail_last_block_first(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 8, 1), make_request("b", 16, 1, arrival=1))

    steps, _ = decide(trace, make_settings(enable_prefix_caching=True), tmp_path)

    assert steps[0]["blocks_end"] == {
        "usable": 4, "used": 0, "free": 4, "cached_used": 0, "cached_free": 2,
    }  # fmt: skip
    assert steps[1]["new_blocks"] == {"b": [3, 4, 2, 1]}


def test_a_shared_prefix_is_found_block_by_block(tmp_path: Path) -> None:
    trace = make_trace(
        make_request("a", 9, 1, prefix=[1, 2]),
        make_request("b", 9, 1, arrival=1, prefix=[1, 3]),
        prefix_block_tokens=4,
    )

    steps, recording = decide(trace, make_settings(enable_prefix_caching=True), tmp_path)

    assert steps[1]["admitted"] == [{"id": "b", "kind": "new", "cached_tokens": 4, "tokens": 5}]
    assert recording.requests["cached_tokens"].to_list() == [0, 4]


def test_a_full_hit_computes_its_last_block_again(tmp_path: Path) -> None:
    trace = make_trace(
        make_request("a", 8, 1, prefix=[1, 2]),
        make_request("b", 8, 1, arrival=1, prefix=[1, 2]),
        prefix_block_tokens=4,
    )

    steps, _ = decide(trace, make_settings(enable_prefix_caching=True), tmp_path)

    assert steps[1]["admitted"][0]["cached_tokens"] == 4
    assert tokens_of(steps)[1] == {"b": 4}


def test_a_request_of_the_same_step_shares_blocks_being_computed(tmp_path: Path) -> None:
    trace = make_trace(
        make_request("a", 9, 2, prefix=[1, 2]),
        make_request("b", 9, 2, prefix=[1, 2]),
        prefix_block_tokens=4,
    )

    steps, _ = decide(trace, make_settings(enable_prefix_caching=True), tmp_path)

    assert [a["cached_tokens"] for a in steps[0]["admitted"]] == [0, 8]
    assert steps[0]["new_blocks"] == {"a": [1, 2, 3], "b": [1, 2, 4]}
    assert steps[0]["blocks"]["used"] == 4


def test_prefix_segments_need_not_be_as_long_as_blocks(tmp_path: Path) -> None:
    trace = make_trace(
        make_request("a", 13, 1, prefix=[1, 2]),
        make_request("b", 13, 1, arrival=1, prefix=[1, 2]),
        make_request("c", 13, 1, arrival=2, prefix=[1, 9]),
        prefix_block_tokens=6,
    )

    steps, _ = decide(trace, make_settings(enable_prefix_caching=True), tmp_path)

    # Segments end at tokens 6 and 12: b shares 12 tokens, c shares 6, which is one whole block.
    assert [s["admitted"][0]["cached_tokens"] for s in steps] == [0, 12, 4]


def test_the_watermark_keeps_blocks_free_while_others_run(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 4, 3), make_request("b", 8, 1, arrival=1))

    free, _ = decide(trace, make_settings(), tmp_path / "none")
    kept, _ = decide(trace, make_settings(watermark=0.2), tmp_path / "one block")

    # At step 1, a holds 2 of the 4 blocks and b needs the other 2.
    assert [s["running"] for s in free] == [["a"], ["a", "b"], ["a"]]
    assert [s["running"] for s in kept] == [["a"], ["a"], ["a"], ["b"]]


def test_the_watermark_does_not_hold_when_nothing_runs(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 16, 1))

    steps, _ = decide(trace, make_settings(watermark=0.5), tmp_path)

    assert tokens_of(steps) == [{"a": 16}]


def test_the_gate_asks_for_room_for_the_whole_prompt(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 4, 3), make_request("b", 12, 1, arrival=1))
    budget: dict[str, Any] = {"max_num_batched_tokens": 8}

    gated, _ = decide(trace, make_settings(**budget), tmp_path / "on")
    open_, _ = decide(
        trace, make_settings(scheduler_reserve_full_isl=False, **budget), tmp_path / "off"
    )

    # b needs 3 blocks and 2 are free; its first chunk of 7 tokens needs only those 2.
    assert tokens_of(gated)[:3] == [{"a": 4}, {"a": 1}, {"a": 1}]
    assert tokens_of(open_)[:2] == [{"a": 4}, {"a": 1, "b": 7}]


def test_a_prompt_is_cut_to_the_budget_that_is_left(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 10, 1), make_request("b", 10, 1))

    steps, _ = decide(trace, make_settings(blocks=8, max_num_batched_tokens=16), tmp_path)

    assert tokens_of(steps) == [{"a": 10, "b": 6}, {"b": 4}]


def test_without_chunking_a_prompt_over_the_budget_stops_admission(tmp_path: Path) -> None:
    trace = make_trace(
        make_request("a", 10, 1), make_request("b", 10, 1), make_request("c", 2, 1)
    )
    settings = make_settings(
        blocks=8, max_model_len=16, max_num_batched_tokens=16, enable_chunked_prefill=False
    )

    steps, _ = decide(trace, settings, tmp_path)

    assert tokens_of(steps) == [{"a": 10}, {"b": 10, "c": 2}]


def test_long_prompts_come_in_chunks_of_the_threshold(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 10, 2))

    steps, _ = decide(trace, make_settings(long_prefill_token_threshold=4), tmp_path)

    assert tokens_of(steps) == [{"a": 4}, {"a": 4}, {"a": 2}, {"a": 1}]


def test_no_more_than_max_num_seqs_run(tmp_path: Path) -> None:
    trace = make_trace(*[make_request(id, 1, 2) for id in "abc"])

    steps, _ = decide(trace, make_settings(max_num_seqs=2), tmp_path)

    assert [s["running"] for s in steps] == [["a", "b"], ["a", "b"], ["c"], ["c"]]
    assert steps[0]["waiting"] == ["c"]


def test_max_model_len_cuts_the_output(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 5, 20))

    _, recording = decide(trace, make_settings(max_model_len=8), tmp_path)

    assert recording.requests["output_tokens"].to_list() == [3]
    assert recording.requests["status"].cast(str).to_list() == ["finished"]


def test_the_more_important_request_is_admitted_first(tmp_path: Path) -> None:
    trace = make_trace(
        make_request("low", 8, 1, priority=2),
        make_request("mid", 8, 1, priority=1),
        make_request("high", 8, 1, priority=0),
    )

    steps, _ = decide(trace, make_settings(policy="priority"), tmp_path)

    assert [s["running"] for s in steps] == [["high", "mid"], ["low"]]
    assert steps[0]["waiting"] == ["low"]


def test_a_waiting_request_preempts_nobody_however_important(tmp_path: Path) -> None:
    trace = make_trace(
        make_request("low", 13, 3, priority=9),
        make_request("high", 8, 1, arrival=1, priority=0),
    )

    steps, _ = decide(trace, make_settings(policy="priority"), tmp_path)

    assert [s["running"] for s in steps] == [["low"], ["low"], ["low"], ["high"]]
    assert all(not s["preempted"] for s in steps)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (
            make_request("big", 20, 2),
            "needs 5 blocks (20 tokens, 4 per block) but the pool has 4, so it can never run: set num_gpu_blocks to 6 or more",
        ),
        (
            make_request("long", 64, 2),
            "the prompt of 64 tokens leaves no room for output under max_model_len: raise max_model_len",
        ),
        (
            make_request("grows", 4, 20),
            "has grown to need 5 blocks (17 tokens, 4 per block) but the pool has 4, so it can never run: set num_gpu_blocks to 6 or more",
        ),
    ],
    ids=lambda v: v["id"] if isinstance(v, dict) else "",
)
def test_what_can_never_run_is_refused_and_others_go_on(
    request_: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    trace = make_trace(request_, make_request("after", 4, 2, arrival=1))

    _, recording = decide(trace, make_settings(), tmp_path)

    refused = recording.events.filter(pl.col("kind").cast(pl.String) == "refuse")
    statuses = dict(recording.requests.select("request_id", "status").iter_rows())
    assert refused["request_id"].to_list() == [request_["id"]]
    assert refused["reason"].to_list() == [reason]
    assert statuses == {request_["id"]: "refused", "after": "finished"}


def test_compat_waits_for_ever_where_the_default_refuses(tmp_path: Path) -> None:
    trace = make_trace(make_request("big", 20, 2), make_request("after", 4, 2))

    steps, recording = decide(trace, make_settings(compat="vllm-0.26"), tmp_path)

    assert recording.status == "stalled"
    assert steps[-1]["waiting"] == ["big", "after"]
    assert recording.requests["status"].cast(str).to_list() == ["unfinished", "unfinished"]
