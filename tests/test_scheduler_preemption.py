"""Preemption by recompute: who loses its blocks, what that costs, and when it comes back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine_builders import decide, make_request, make_settings, make_trace, tokens_of
from traces.recording import Recording

# Two requests fill the pool; at step 2, a (9 tokens) needs a third block and b is the victim.
A, B = make_request("a", 7, 5), make_request("b", 7, 4)


def rows(recording: Recording, kind: str) -> list[dict[str, Any]]:
    events = recording.events.to_dicts()
    return [e for e in events if e["kind"] == kind]


def test_the_last_running_request_is_the_victim_and_loses_everything(tmp_path: Path) -> None:
    steps, recording = decide(make_trace(A, B), make_settings(), tmp_path)

    assert [s["preempted"] for s in steps[:3]] == [
        [], [], [{"id": "b", "computed_tokens_lost": 8, "blocks_held": 2}],
    ]  # fmt: skip
    (event,) = rows(recording, "preempt")
    assert event["cause_request_id"] == "a"
    assert (event["mode_asked"], event["mode_used"]) == ("recompute", "recompute")
    assert (event["tokens"], event["blocks"], event["free_blocks_before"]) == (8, 2, 0)


def test_a_victim_goes_to_the_front_of_the_waiting_queue(tmp_path: Path) -> None:
    trace = make_trace(A, B, make_request("c", 4, 1, arrival=1))

    steps, _ = decide(trace, make_settings(), tmp_path)

    assert steps[1]["waiting"] == ["c"]
    assert steps[2]["waiting"] == ["b", "c"]


def test_nothing_is_admitted_in_a_step_that_preempted(tmp_path: Path) -> None:
    trace = make_trace(A, B, make_request("c", 4, 1, arrival=2))

    steps, _ = decide(trace, make_settings(), tmp_path)

    assert steps[2]["blocks"]["free"] == 1  # enough for c
    assert steps[2]["admitted"] == []


def test_a_victim_that_does_not_fit_blocks_everyone_behind_it(tmp_path: Path) -> None:
    trace = make_trace(A, B, make_request("c", 4, 1, arrival=2))

    steps, _ = decide(trace, make_settings(), tmp_path)

    # b needs 3 blocks for its 9 tokens until a ends; c would have fitted at step 3.
    assert [s["running"] for s in steps[3:6]] == [["a"], ["a"], ["b", "c"]]
    assert tokens_of(steps)[5] == {"b": 9, "c": 4}


def test_recomputed_tokens_are_those_computed_before(tmp_path: Path) -> None:
    _, recording = decide(make_trace(A, B), make_settings(), tmp_path)

    # b comes back with 9 known tokens, 8 of which had been computed.
    assert recording.steps["recomputed_tokens"].to_list()[5] == 8
    assert recording.steps["decode_tokens"].to_list()[5] == 1
    by_id = {r["request_id"]: r for r in recording.requests.to_dicts()}
    assert (by_id["b"]["num_preemptions"], by_id["b"]["recomputed_tokens"]) == (1, 8)
    assert by_id["a"]["recomputed_tokens"] == 0


def test_with_the_prefix_cache_a_victim_finds_what_was_not_overwritten(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 7, 3), make_request("b", 7, 4))

    steps, _ = decide(trace, make_settings(enable_prefix_caching=True), tmp_path)

    # b's two full blocks are cached; a took the one at the tail of b first, block 4.
    assert steps[2]["new_blocks"] == {"a": [4]}
    assert steps[3]["admitted"] == [
        {"id": "b", "kind": "resumed", "cached_tokens": 4, "tokens": 5}
    ]


def test_a_request_alone_may_be_its_own_victim(tmp_path: Path) -> None:
    trace = make_trace(make_request("a", 15, 4))

    steps, recording = decide(trace, make_settings(), tmp_path)

    # At step 2 its 17th token would need a fifth block: it can never run again.
    assert steps[2]["preempted"][0]["id"] == "a"
    assert rows(recording, "preempt")[0]["cause_request_id"] == "a"
    assert recording.requests["status"].cast(str).to_list() == ["refused"]


# Pool of 6: a holds 1 block (3 tokens), b 3 (12), c 2 (7). At step 1, b needs a fourth.
RULES = {
    "last": ("fcfs", "c", {"a": 1, "b": 1}),
    "fewest-computed": ("fcfs", "a", {"b": 1, "c": 1}),
    "most-blocks": ("fcfs", "b", {"a": 1}),
    "priority": ("priority", "c", {"a": 1, "b": 1}),
}


@pytest.mark.parametrize("rule", sorted(RULES))
def test_each_victim_rule_names_its_victim(rule: str, tmp_path: Path) -> None:
    policy, victim, tokens = RULES[rule]
    trace = make_trace(
        make_request("a", 3, 6), make_request("b", 12, 6), make_request("c", 7, 6, priority=1)
    )

    steps, _ = decide(trace, make_settings(blocks=6, policy=policy, victim=rule), tmp_path)

    assert steps[0]["blocks"]["free"] == 0
    assert [p["id"] for p in steps[1]["preempted"]] == [victim]
    assert tokens_of(steps)[1] == tokens
    assert victim not in steps[1]["running"]


def test_under_priority_a_victim_already_scheduled_gives_its_tokens_back(
    tmp_path: Path,
) -> None:
    trace = make_trace(
        make_request("low", 2, 6, priority=9),
        make_request("b", 12, 6, arrival=1, priority=0),
        make_request("c", 7, 6, arrival=1, priority=0),
    )

    steps, _ = decide(trace, make_settings(blocks=6, policy="priority"), tmp_path)

    # Step 2: low is first in running order and scheduled; then b needs a block, and low loses it.
    assert [p["id"] for p in steps[2]["preempted"]] == ["low"]
    assert tokens_of(steps)[2] == {"b": 1, "c": 1}
    assert "low" in steps[1]["running"]


@pytest.mark.parametrize(
    ("abort", "where"), [(1, "running"), (2, "running"), (3, "waiting"), (4, "waiting")]
)
def test_an_abort_takes_a_request_out_of_its_queue(
    abort: int, where: str, tmp_path: Path
) -> None:
    trace = make_trace(A, {**B, "abort": abort})

    steps, recording = decide(trace, make_settings(), tmp_path)

    assert "b" in steps[abort - 1][where]
    assert steps[abort]["aborted"] == ["b"]
    assert all("b" not in s["running"] + s["waiting"] for s in steps[abort:])
    by_id = {r["request_id"]: r for r in recording.requests.to_dicts()}
    assert (by_id["b"]["status"], by_id["b"]["finish_s"]) == ("aborted", float(abort))
    assert steps[-1]["blocks_end"]["used"] == 0


def test_an_abort_before_the_first_schedule_leaves_no_trace_in_the_pool(tmp_path: Path) -> None:
    trace = make_trace(A, make_request("w", 16, 1, arrival=1, abort=2))

    steps, recording = decide(trace, make_settings(), tmp_path)

    assert steps[1]["waiting"] == ["w"]
    by_id = {r["request_id"]: r for r in recording.requests.to_dicts()}
    assert (by_id["w"]["status"], by_id["w"]["first_scheduled_s"]) == ("aborted", None)
    assert by_id["a"]["status"] == "finished"
