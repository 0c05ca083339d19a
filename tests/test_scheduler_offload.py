"""Preemption by offload: blocks are copied to the host as they fill, and a victim is restored from there.

Timed tests use SECONDS: a step takes 1 s and a block 1 s to copy. On the step clock a copy takes one
step unless told otherwise. `docs/scheduler.md` tells the moments; the laws (test_scheduler_laws.py)
look at every block of random runs, the golden cases at equality with vLLM.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from engine.config import EngineSettings
from engine.simulator import simulate
from tests.engine_builders import (
    SECONDS,
    decide,
    make_request,
    make_settings,
    make_trace,
    tokens_of,
)
from traces.recording import Recording, open_recording
from traces.workload import Workload

# Two requests fill the pool; at step 2, a (9 tokens) needs a third block and b is the victim.
A, B = make_request("a", 7, 5), make_request("b", 7, 4)
BLOCK = 4 * 131_072  # bytes of 4 tokens of 128 KiB, Llama-3.1-8B
COMPAT = "vllm-0.26"


def offload(blocks: int = 4, **changes: Any) -> EngineSettings:
    """The small world with the native connector, which stores every full block."""
    base = {"preemption_mode": "offload", "num_host_blocks": 8, "offload_prompt_only": False}
    return make_settings(blocks, **{**base, **changes})


def simple(blocks: int = 4, **changes: Any) -> EngineSettings:
    return offload(
        blocks, **{"offload_connector": "simple", "enable_prefix_caching": True, **changes}
    )


def timed(blocks: int = 4, **changes: Any) -> EngineSettings:
    return offload(blocks, **{"clock": "modelled", "cost_overrides": SECONDS, **changes})


def rows(recording: Recording, kind: str) -> list[dict[str, Any]]:
    return [e for e in recording.events.to_dicts() if e["kind"] == kind]


def request_row(recording: Recording, id: str) -> dict[str, Any]:
    return next(r for r in recording.requests.to_dicts() if r["request_id"] == id)


def ids(steps: Iterable[Mapping[str, Any]], field: str) -> list[list[str]]:
    return [[e["id"] for e in step[field]] for step in steps]


# --- Restoring --------------------------------------------------------------------------------


def test_a_victim_is_restored_and_recomputes_nothing_that_the_host_has(tmp_path: Path) -> None:
    steps, recording = decide(make_trace(A, B), offload(), tmp_path)

    assert steps[2]["preempted"] == [{"id": "b", "computed_tokens_lost": 8, "blocks_held": 2}]
    assert (steps[5]["deferred"], steps[5]["scheduled"]) == (["b"], [])
    assert steps[6]["scheduled"] == [{"id": "b", "tokens": 1, "computed_before": 8}]
    assert recording.steps["restored_tokens"].to_list() == [0, 0, 0, 0, 0, 0, 8, 0]
    assert recording.steps["recomputed_tokens"].sum() == 0
    (event,) = rows(recording, "preempt")
    assert (event["mode_asked"], event["mode_used"]) == ("offload", "offload")
    assert request_row(recording, "b")["restored_tokens"] == 8


def test_prompt_only_computes_generated_tokens_again(tmp_path: Path) -> None:
    steps, recording = decide(make_trace(A, B), offload(offload_prompt_only=True), tmp_path)

    # Of b's 7 prompt tokens one block is full; the second is filled by a generated token.
    assert steps[6]["scheduled"] == [{"id": "b", "tokens": 5, "computed_before": 4}]
    assert request_row(recording, "b")["restored_tokens"] == 4
    assert request_row(recording, "b")["recomputed_tokens"] == 4
    assert recording.steps["host_used_blocks"].max() == 2


def test_what_the_gpu_still_has_is_not_loaded(tmp_path: Path) -> None:
    steps, recording = decide(make_trace(A, B), offload(enable_prefix_caching=True), tmp_path)

    # a took one of b's two blocks; the other is found in the GPU's cache.
    (load,) = rows(recording, "load")
    assert (load["blocks"], load["tokens"]) == (1, 4)
    assert rows(recording, "resume")[0]["tokens"] == 4
    assert steps[6]["scheduled"] == [{"id": "b", "tokens": 1, "computed_before": 8}]
    b = request_row(recording, "b")
    assert (b["cached_tokens"], b["restored_tokens"], b["recomputed_tokens"]) == (4, 4, 0)


@pytest.mark.parametrize("lazy", [False, True])
def test_the_simple_connector_restores_what_the_gpu_has_lost(
    lazy: bool, tmp_path: Path
) -> None:
    trace = make_trace(make_request("a", 7, 9), B)

    _, recording = decide(trace, simple(lazy_offload=lazy), tmp_path)

    # b's second block was computed by the step before it left: nobody has stored it.
    b = request_row(recording, "b")
    assert (b["cached_tokens"], b["restored_tokens"], b["recomputed_tokens"]) == (0, 4, 4)


def test_the_eager_connector_stores_at_once_and_the_lazy_one_what_is_about_to_go(
    tmp_path: Path,
) -> None:
    trace = make_trace(make_request("a", 7, 9), B)
    moved = {}
    for lazy in (False, True):
        _, recording = decide(trace, simple(lazy_offload=lazy), tmp_path / str(lazy))
        moved[lazy] = [n // BLOCK for n in recording.steps["swap_out_bytes"]]

    # Eager: the first block of each in step 1. Lazy: b's first block when b leaves, and what a
    # leaves when it ends.
    assert moved[False] == [0, 2, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1]
    assert moved[True] == [0, 0, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0]


def test_a_new_request_is_restored_too(tmp_path: Path) -> None:
    one = make_request("one", 5, 2, 0, prefix=[7])
    two = make_request("two", 5, 2, 4, prefix=[7])

    steps, recording = decide(make_trace(one, two, prefix_block_tokens=4), offload(), tmp_path)

    (load,) = rows(recording, "load")
    assert (load["request_id"], load["step"], load["tokens"]) == ("two", 4, 4)
    assert steps[-2]["admitted"] == [
        {"id": "two", "kind": "new", "cached_tokens": 4, "tokens": 1}
    ]
    assert recording.steps["restored_tokens"].sum() == 4
    assert recording.steps["cached_tokens"].sum() == 0


# --- While a restore is under way -------------------------------------------------------------


def test_others_run_while_a_victim_is_restored_which_takes_no_seat(tmp_path: Path) -> None:
    trace = make_trace(A, B, make_request("n1", 3, 3, 3), make_request("n2", 3, 3, 3))

    steps, recording = decide(trace, offload(5, max_num_seqs=2, load_steps=4), tmp_path)

    assert [s["deferred"] for s in steps[5:8]] == [["b"]] * 3
    assert [s["running"] for s in steps[5:7]] == [["n1", "n2"]] * 2
    assert recording.steps["num_swapped"].to_list()[5:7] == [1, 1]
    assert recording.steps["num_waiting"].to_list()[5:7] == [0, 0]
    assert steps[9]["scheduled"] == [{"id": "b", "tokens": 1, "computed_before": 8}]


def test_a_restore_takes_no_token_budget(tmp_path: Path) -> None:
    trace = make_trace(A, B, make_request("n", 8, 2, 3))

    steps, recording = decide(trace, offload(max_num_batched_tokens=8, load_steps=4), tmp_path)

    assert [e["step"] for e in rows(recording, "load")] == [5]
    assert tokens_of(steps)[5] == {"n": 8}


def test_a_request_that_is_restored_is_no_victim(tmp_path: Path) -> None:
    trace = make_trace(A, B, make_request("c", 3, 9, 5, abort=13))

    steps, _ = decide(trace, offload(load_steps=8), tmp_path)

    # c needs a third block at step 11 and b holds two of four: c is its own victim.
    assert ids(steps, "preempted") == [[], [], ["b"], *[[]] * 8, ["c"], *[[]] * 3]
    assert [s["deferred"] for s in steps[5:13]] == [["b"]] * 8


def test_a_restore_that_takes_many_steps_alone_is_waited_for(tmp_path: Path) -> None:
    steps, recording = decide(make_trace(A, B), offload(load_steps=9), tmp_path)

    assert [s["deferred"] for s in steps[5:14]] == [["b"]] * 9
    assert request_row(recording, "b")["status"] == "finished"
    assert recording.status == "completed"


def test_an_abort_while_loading_gives_the_blocks_back_with_the_copy(tmp_path: Path) -> None:
    trace = make_trace(make_request("c", 1, 12), A, {**B, "abort": 6})

    steps, recording = decide(trace, offload(5, load_steps=4), tmp_path)

    # c alone holds two blocks; the copy into b's two ends with step 8, at which c takes a third.
    assert [s["blocks"]["used"] for s in steps[5:10]] == [4, 4, 4, 5, 3]
    assert steps[8]["blocks_end"]["used"] == 3
    assert request_row(recording, "b")["status"] == "aborted"
    assert steps[-1]["blocks_end"]["used"] == 0


@pytest.mark.parametrize(("asynchronous", "load_step"), [(False, 8), (True, 9)])
def test_blocks_that_a_step_in_flight_writes_are_loaded_into_only_when_it_is_done(
    asynchronous: bool, load_step: int, tmp_path: Path
) -> None:
    trace = make_trace(
        make_request("old", 9, 2, 0, prefix=[1]),
        make_request("r", 12, 9, 4, abort=8),  # holds the whole pool
        make_request("new", 9, 2, 5, prefix=[1]),
        prefix_block_tokens=8,
    )

    steps, recording = decide(trace, offload(async_scheduling=asynchronous), tmp_path)

    assert [e["step"] for e in rows(recording, "load")] == [load_step]
    used = {s["step"]: s["blocks"]["used"] for s in steps}
    assert used[8] == (4 if asynchronous else 2)


# --- The host's room --------------------------------------------------------------------------


def test_without_room_on_the_host_a_store_is_skipped_and_the_victim_recomputes(
    tmp_path: Path,
) -> None:
    steps, recording = decide(make_trace(A, B), offload(num_host_blocks=1), tmp_path)

    # a's first block is being written when b's is to be stored, and stays.
    assert recording.steps["host_used_blocks"].max() == 1
    assert request_row(recording, "b")["restored_tokens"] == 0
    assert steps[5]["scheduled"] == [{"id": "b", "tokens": 9, "computed_before": 0}]
    assert recording.steps["recomputed_tokens"].sum() == 8
    assert rows(recording, "preempt")[0]["mode_used"] == "offload"


def test_the_least_recently_used_host_block_goes_first(tmp_path: Path) -> None:
    prefixes = {"first": 1, "second": 2, "third": 3, "hit": 2, "miss": 1, "gone": 3}
    trace = make_trace(
        *[
            make_request(id, 5, 2, 3 * i, prefix=[prefix])
            for i, (id, prefix) in enumerate(prefixes.items())
        ],
        prefix_block_tokens=4,
    )

    _, recording = decide(trace, offload(num_host_blocks=2), tmp_path)

    # third takes the place of first; hit makes second the youngest, so miss takes that of third.
    restored = {r["request_id"]: r["restored_tokens"] for r in recording.requests.to_dicts()}
    assert restored == {"first": 0, "second": 0, "third": 0, "hit": 4, "miss": 0, "gone": 0}


def test_the_host_keeps_what_ended_requests_stored(tmp_path: Path) -> None:
    _, recording = decide(make_trace(A, B), offload(), tmp_path)

    assert recording.steps["host_used_blocks"].to_list() == [2, 4, 4, 4, 4, 4, 4, 4]


# --- Copies on the clock ----------------------------------------------------------------------


def test_copies_are_counted_in_the_step_that_starts_them(tmp_path: Path) -> None:
    _, recording = decide(make_trace(A, B), offload(), tmp_path)

    # A store is held back until the next step starts.
    steps = recording.steps
    assert steps["swap_out_bytes"].to_list() == [0, 2 * BLOCK, 2 * BLOCK, 0, 0, 0, 0, 0]
    assert steps["swap_in_bytes"].to_list() == [0, 0, 0, 0, 0, 2 * BLOCK, 0, 0]
    (load,) = rows(recording, "load")
    assert (load["blocks"], load["tokens"], load["bytes"]) == (2, 8, 2 * BLOCK)
    assert request_row(recording, "b")["swapped_bytes"] == 4 * BLOCK
    assert steps["stall_s"].sum() == 0.0


def test_the_step_waits_for_stores_of_its_victim(tmp_path: Path) -> None:
    _, recording = decide(make_trace(make_request("c", 1, 12), A, B), timed(5), tmp_path)

    # First blocks of a and b leave from 1 s to 3 s, their second ones from 3 s to 5 s. b is the
    # victim at 2 s: the step waits until its last block has left.
    steps = recording.steps
    assert steps["t_start_s"].to_list()[:5] == [0, 1, 2, 6, 7]
    assert steps["duration_s"].to_list()[:5] == [1, 1, 4, 1, 1]
    assert steps["stall_s"].to_list()[:5] == [0, 0, 3, 0, 0]
    assert steps["link_out_busy_s"].to_list()[:5] == [0, 1, 3, 0, 1]


def test_a_load_runs_beside_the_steps_and_its_event_says_what_it_costs(tmp_path: Path) -> None:
    steps, recording = decide(make_trace(make_request("c", 1, 12), A, B), timed(5), tmp_path)

    load = rows(recording, "load")[0]
    resume = rows(recording, "resume")[0]
    assert (load["t_s"], load["cost_s"], load["blocks"], load["tokens"]) == (8.0, 2.0, 2, 8)
    assert load["free_blocks_before"] == 1
    assert resume["t_s"] == 10.0
    between = recording.steps.slice(load["step"], 2)
    assert between["stall_s"].to_list() == [0, 0]
    assert between["link_in_busy_s"].to_list() == [1, 1]
    assert tokens_of(steps)[load["step"] : resume["step"]] == [{"c": 1}, {"c": 1}]


def test_with_nothing_else_to_run_a_load_is_waited_for(tmp_path: Path) -> None:
    _, recording = decide(make_trace(A, B), timed(), tmp_path)

    steps = recording.steps
    assert steps["duration_s"].to_list() == [1, 1, 4, 1, 1, 2, 1, 1]
    assert steps["stall_s"].to_list() == [0, 0, 3, 0, 0, 2, 0, 0]
    b = request_row(recording, "b")
    assert (b["preempted_s"], b["finish_s"]) == (8.0, 12.0)


def test_the_cost_of_a_victim_is_that_of_all_its_tokens_before_it_is_looked_up(
    tmp_path: Path,
) -> None:
    _, recording = decide(make_trace(A, B), timed(), tmp_path)

    (event,) = rows(recording, "preempt")
    assert event["cost_s"] >= event["recompute_est_s"]
    assert event["swap_est_s"] is not None


# --- Known faults of 0.26.0 -------------------------------------------------------------------


def test_one_failed_allocation_takes_all_victims_in_vllm_and_none_in_vain_by_default(
    tmp_path: Path,
) -> None:
    trace = make_trace(*[make_request(id, 6, 8) for id in "abcd"])
    taken = {}
    for compat in (None, COMPAT):
        settings = offload(8, async_scheduling=True, compat=compat)
        steps, recording = decide(trace, settings, tmp_path / str(compat))
        taken[compat] = [v for v in ids(steps, "preempted") if v]
        assert request_row(recording, "d")["status"] == "finished"

    # Step 3: every victim's blocks are fenced behind step 2, so that none of them helps. By default
    # the step takes nobody, and step 4 what it needs.
    assert taken[COMPAT][0] == ["d", "c", "b", "a"]
    assert taken[None] == [["d", "c"]]


def test_a_restored_request_in_the_way_of_a_more_important_one_runs_first(
    tmp_path: Path,
) -> None:
    more, less = {"priority": 0}, {"priority": 1}
    trace = make_trace(A | more, B | less, make_request("c", 3, 9, 5, **more))
    settings = offload(load_steps=8, policy="priority")

    steps, mended = decide(trace, settings, tmp_path / "a")
    _, kept = decide(trace, settings.with_(compat=COMPAT), tmp_path / "b")

    # c gave up its blocks at step 11 and needs three of four; b, restored at 13, holds two.
    assert steps[13]["running"] == ["b"]
    assert request_row(mended, "c")["status"] == "finished"
    assert kept.status == "stalled"


def test_a_lone_token_found_on_the_host_is_looked_up_for_ever_in_vllm_only(
    tmp_path: Path,
) -> None:
    first = make_request("first", 1, 3, 0, prefix=[7])
    lone = make_request("lone", 1, 2, 4, prefix=[7])
    trace = make_trace(first, lone, prefix_block_tokens=1)

    _, mended = decide(trace, offload(block_size=1), tmp_path / "a")
    _, kept = decide(trace, offload(block_size=1, compat=COMPAT), tmp_path / "b")

    assert [e["step"] for e in rows(mended, "load")] == [4]
    assert request_row(mended, "lone")["status"] == "finished"
    assert [e["step"] for e in rows(kept, "load")][:4] == [4, 5, 6, 7]
    assert request_row(kept, "lone")["status"] == "unfinished"


def test_the_last_token_of_an_ended_request_is_stored_uncomputed_in_vllm_only(
    tmp_path: Path,
) -> None:
    # 3 + 5 tokens fill two blocks, but the last one is never computed.
    trace = make_trace(make_request("a", 3, 5), make_request("long", 1, 9))
    stored = {}
    for compat in (None, COMPAT):
        _, recording = decide(trace, offload(5, compat=compat), tmp_path / str(compat))
        stored[compat] = recording.steps["host_used_blocks"].to_list()

    assert stored == {
        None: [0, 1, 1, 2, 2, 2, 2, 3, 3],
        COMPAT: [0, 1, 1, 2, 2, 3, 3, 4, 4],
    }


def test_a_victim_whose_last_token_was_in_flight_is_stored_from_blocks_it_lost_in_vllm(
    tmp_path: Path,
) -> None:
    # b is a victim at step 4, and ends with the outputs of step 3: its second block is stored then.
    trace = make_trace(make_request("a", 5, 6), make_request("b", 5, 4))

    steps, recording = decide(trace, offload(async_scheduling=True, compat=COMPAT), tmp_path)

    assert ids(steps, "preempted")[4] == ["b", "a"]
    assert steps[4]["finished"] == ["b"]
    assert recording.steps["host_used_blocks"].to_list() == [2, 2, 2, 2, 2, 3, 3, 4, 4, 4]


# --- On a load --------------------------------------------------------------------------------


def pressed_load() -> Workload:
    """60 requests of 50 to 250 prompt and 50 to 200 output tokens, at once."""
    rng = random.Random(3)
    return make_trace(
        *[make_request(f"r{i}", rng.randint(50, 250), rng.randint(50, 200)) for i in range(60)]
    )


def pressed(out: Path, mode: str, **changes: Any) -> Recording:
    settings = EngineSettings(
        kv_tokens=3_200, max_model_len=4096, max_num_seqs=32, preemption_mode=mode, **changes
    )
    result = simulate(pressed_load(), settings, out)
    assert (result.status, result.num_unfinished) == ("completed", 0)
    return open_recording(out)


@pytest.mark.parametrize(
    ("changes", "most"),
    [
        ({"offload_prompt_only": False}, 0.1),
        ({"offload_prompt_only": True}, 0.4),
        ({"offload_connector": "simple"}, 0.3),
        ({"offload_prompt_only": False, "async_scheduling": True}, 0.1),
    ],
    ids=["native, all", "native, prompts", "simple", "native, all, asynchronous"],
)
def test_offload_computes_a_share_of_what_recompute_does_again(
    changes: dict[str, Any], most: float, tmp_path: Path
) -> None:
    base = {"enable_prefix_caching": True}

    recomputed = pressed(tmp_path / "a", "recompute", **base)
    offloaded = pressed(tmp_path / "b", "offload", **base, **changes)

    again, less = (int(r.steps["recomputed_tokens"].sum()) for r in (recomputed, offloaded))
    steps = offloaded.steps
    assert again > 1_000
    assert steps["num_preempted"].sum() > 20
    assert less < most * again
    assert steps["restored_tokens"].sum() == offloaded.requests["restored_tokens"].sum() > 0


def test_a_recording_of_offload_opens_and_says_how_it_was_run(tmp_path: Path) -> None:
    recording = pressed(tmp_path / "out", "offload", offload_prompt_only=False)

    assert recording.complete
    assert recording.status == "completed"
    assert recording.meta.preemption_mode == "offload"
    assert recording.meta.settings["offload_connector"] == "native"
    assert set(recording.requests["status"].cast(str)) == {"finished"}
