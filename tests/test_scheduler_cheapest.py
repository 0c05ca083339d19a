"""Preemption mode `cheapest`: which of the two ways each victim takes, and what both were expected to cost.

Costs are SECONDS: a step takes 1 s and what its tokens need, and a block 1 s to copy each way. So the
victim of two blocks costs 4 s to swap, and 8 times a token's time to recompute.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.cheapest_vs_pure import (
    AT_MOST,
    CLEARLY,
    MACHINES,
    MODES,
    Cell,
    closed,
    run,
)
from engine.config import EngineSettings, Resolved, resolve
from engine.core.estimates import (
    expect_found,
    note_found,
    recompute_estimate_s,
    swap_estimate_s,
)
from engine.core.state import State, make_state
from engine.simulator import core_columns, simulate
from tests.engine_builders import SECONDS, make_request, make_settings, make_trace
from traces.errors import SettingsError
from traces.recording import open_recording
from traces.workload import Workload

# Two requests fill the pool; at step 2, a (9 tokens) needs a third block and b is the victim.
A, B = make_request("a", 7, 5), make_request("b", 7, 4)


def cheapest(blocks: int = 4, token_s: float = 1.0, **changes: Any) -> EngineSettings:
    """Settings under which a token takes token_s to compute; costs: parameters of the cost model."""
    costs = SECONDS | {"token_compute_s": token_s} | changes.pop("costs", {})
    base = {"preemption_mode": "cheapest", "num_host_blocks": 8, "clock": "modelled"}
    return make_settings(blocks, **{**base, "cost_overrides": costs, **changes})


def victims(workload: Workload, settings: EngineSettings, out: Path) -> list[dict[str, Any]]:
    """The preempt events of a run that finishes."""
    result = simulate(workload, settings, out)
    assert (result.status, result.num_unfinished) == ("completed", 0)
    events = open_recording(out).events.to_dicts()
    return [e for e in events if e["kind"] == "preempt"]


def estimates(event: dict[str, Any]) -> tuple[float, float]:
    return event["recompute_est_s"], event["swap_est_s"]


@pytest.mark.parametrize(
    ("token_s", "used", "recompute_s"),
    [(1.0, "swap", 8.0), (0.25, "recompute", 2.0), (0.5, "recompute", 4.0)],
    ids=["swap is cheaper", "recompute is cheaper", "a tie"],
)
def test_the_cheaper_way_is_taken_and_both_estimates_are_noted(
    token_s: float, used: str, recompute_s: float, tmp_path: Path
) -> None:
    (event, *_) = victims(make_trace(A, B), cheapest(token_s=token_s), tmp_path)

    assert (event["mode_asked"], event["mode_used"]) == ("cheapest", used)
    assert estimates(event) == pytest.approx((recompute_s, 4.0))
    assert event["cost_s"] == pytest.approx(min(recompute_s, 4.0))


@pytest.mark.parametrize(("link", "used"), [(10.0, "swap"), (0.1, "recompute")])
def test_a_fast_link_makes_it_swap_and_a_slow_one_recompute(
    link: float, used: str, tmp_path: Path
) -> None:
    costs = {"link_in_bytes_per_s": link, "link_out_bytes_per_s": link}

    (event, *_) = victims(make_trace(A, B), cheapest(costs=costs), tmp_path)

    assert event["mode_used"] == used


@pytest.mark.parametrize("host", [0, 1])
def test_a_full_host_makes_it_recompute_although_swap_was_cheaper(
    host: int, tmp_path: Path
) -> None:
    (event, *_) = victims(make_trace(A, B), cheapest(num_host_blocks=host), tmp_path)

    assert (event["mode_asked"], event["mode_used"]) == ("cheapest", "recompute")
    assert event["swap_est_s"] < event["recompute_est_s"]
    assert event["bytes"] == 0


def test_blocks_that_others_hold_too_tip_it_to_recompute(tmp_path: Path) -> None:
    shared = make_trace({**A, "prefix": [1]}, {**B, "prefix": [1]}, prefix_block_tokens=4)
    settings = cheapest(3, token_s=0.6, enable_prefix_caching=True)

    (hit, *_) = victims(shared, settings, tmp_path / "shared")
    (miss, *_) = victims(make_trace(A, B), cheapest(token_s=0.6), tmp_path / "private")

    # Of b's 8 tokens 4 lie in a's block, and a quarter of the other 4 is expected to survive.
    assert (hit["mode_used"], hit["recompute_est_s"]) == ("recompute", pytest.approx(1.8))
    assert (miss["mode_used"], miss["recompute_est_s"]) == ("swap", pytest.approx(4.8))


def test_a_shared_block_that_would_come_back_private_makes_swap_dearer(tmp_path: Path) -> None:
    shared = make_trace({**A, "prefix": [1]}, {**B, "prefix": [1]}, prefix_block_tokens=4)

    (event, *_) = victims(shared, cheapest(3, enable_prefix_caching=True), tmp_path)

    # 4 s of copies, and one block of three for the 2 tokens that b has made, in steps of 1 s.
    assert event["swap_est_s"] == pytest.approx(4.0 + 2 / 3)


def test_an_asynchronous_swap_costs_the_share_of_the_batch_that_waits(tmp_path: Path) -> None:
    (event, *_) = victims(make_trace(A, B), cheapest(copy_mode="async"), tmp_path)

    # Steps of 3 s, of which 1 s whoever runs. Out: one step, in which a waits and so nobody runs.
    # Back: one step in which b's two blocks of four lie idle.
    assert estimates(event) == pytest.approx((8.0, 1.5))


def test_pure_modes_note_the_same_estimates(tmp_path: Path) -> None:
    seen = {}
    for mode in ("recompute", "swap", "cheapest"):
        settings = cheapest(preemption_mode=mode)
        event = victims(make_trace(A, B), settings, tmp_path / mode)[0]
        seen[mode] = (*estimates(event), event["mode_used"])

    assert seen == {
        "recompute": (8.0, 4.0, "recompute"),
        "swap": (8.0, 4.0, "swap"),
        "cheapest": (8.0, 4.0, "swap"),
    }


def test_recomputed_tokens_that_ride_under_the_weight_read_cost_little(tmp_path: Path) -> None:
    costs = {"always_read_s": 100.0, "knee": 2.0}

    (event, *_) = victims(make_trace(A, B), cheapest(costs=costs), tmp_path)

    # sqrt(100^2 + 9^2) - sqrt(100^2 + 1^2): the step reads its weights anyway.
    assert event["recompute_est_s"] == pytest.approx(0.3992, abs=1e-3)
    assert event["mode_used"] == "recompute"


def victim_state(**changes: Any) -> tuple[State, Resolved]:
    """A request of five full cached blocks of eight, the first of which somebody else holds too."""
    settings = cheapest(8, **{"enable_prefix_caching": True, **changes})
    resolved = resolve(settings)
    state = make_state(
        core_columns(make_trace(make_request("a", 20, 4)), settings), resolved.rules
    )
    q = state.requests[0]
    q["slot"], q["num_blocks"], q["num_hashed"], q["num_computed"] = 0, 5, 5, 20
    state.table[0, :5] = np.arange(1, 6)
    state.blocks["ref"][1:6] = [2, 1, 1, 1, 1]
    return state, resolved


@pytest.mark.parametrize(
    ("copy_mode", "busy_until_s", "stall_until_s", "cost_s"),
    [
        ("blocking", 0.0, 0.0, 10.0),  # 5 s out and 5 s back
        ("blocking", 10.0, 0.0, 20.0),
        ("blocking", 10.0, 10.0, 10.0),  # another victim's copy is waited for anyway
        ("async", 0.0, 0.0, 5 + 5 * 5 / 8),  # 5 steps in which it alone waits, 5 with 5 of 8 blocks idle
        ("async", 10.0, 0.0, 15 + 5 * 5 / 8),
    ],
)  # fmt: skip
def test_the_queue_on_the_link_counts(
    copy_mode: str, busy_until_s: float, stall_until_s: float, cost_s: float
) -> None:
    state, resolved = victim_state(copy_mode=copy_mode)
    state.flight_row["duration_s"] = 1.0
    state.c["link_out_free_s"], state.c["stall_until_s"] = busy_until_s, stall_until_s

    assert swap_estimate_s(state, resolved.rules, resolved.cost, 0, 5) == pytest.approx(cost_s)


@pytest.mark.parametrize(
    ("threshold", "num_waiting", "cost_s"),
    [
        (0, 1, 16.0),
        (4, 0, 16.0),  # nobody waits to be let in
        (4, 1, 16 / (1 - 0.85 * 3 / 4)),  # four chunks: three quarters are left for later
        (60, 1, 16.0),  # one chunk
    ],
)
def test_returning_in_chunks_that_let_others_in_makes_recompute_dearer(
    threshold: int, num_waiting: int, cost_s: float
) -> None:
    state, resolved = victim_state(long_prefill_token_threshold=threshold)
    state.c["num_waiting"] = num_waiting

    cost = recompute_estimate_s(state, resolved.rules, resolved.cost, 16, 0)

    assert cost == pytest.approx(cost_s)


def test_a_quarter_of_its_own_blocks_is_expected_back_before_anything_was_seen() -> None:
    state, resolved = victim_state()
    rules = resolved.rules

    assert expect_found(state, rules, 0) == 8  # one shared block and one of four


@pytest.mark.parametrize(("hits", "tokens"), [(1, 5), (5, 16)], ids=["nothing", "everything"])
def test_the_expectation_follows_what_victims_found_again(hits: int, tokens: int) -> None:
    state, resolved = victim_state()
    rules = resolved.rules

    for _ in range(2_000):
        expect_found(state, rules, 0)
        note_found(state, 0, hits)

    # 133 blocks remembered beside the 64 of the start: shares of 0.08 and 0.76.
    assert expect_found(state, rules, 0) == tokens


def test_it_is_not_for_a_clock_without_seconds() -> None:
    with pytest.raises(SettingsError, match="cheapest compares seconds"):
        make_settings(preemption_mode="cheapest", clock="step")


def make_cell(seed: int) -> Cell:
    """A cell of the benchmark's kind in small: closed requests, machine, copies and cache by the seed."""
    rng = random.Random(seed)
    model, device = rng.choice(MACHINES)
    shortest, longest = rng.choice((50, 300)), rng.choice((200, 600))
    workload = closed(150, (shortest, 4 * shortest), (longest // 4, longest))
    settings = EngineSettings(
        kv_tokens=16 * (3 * shortest + longest),
        model=model,
        device=device,
        copy_path=rng.choice(("coalesced", "loop")),
        copy_mode=rng.choice(("blocking", "async")),
        enable_prefix_caching=rng.random() < 0.5,
        host_gib=rng.choice((2.0, 500.0)),
        max_model_len=4096,
        max_num_seqs=64,
    )
    one, two, three = (run(workload, settings.with_(preemption_mode=mode)) for mode in MODES)
    return Cell("closed", f"{model}, {device}", settings.copy_path, "", (one, two, three))


@pytest.mark.parametrize("seed", range(24))
def test_where_one_way_wins_clearly_cheapest_is_not_two_per_cent_behind(seed: int) -> None:
    cell = make_cell(seed)

    assert abs(cell.better_by) <= CLEARLY or cell.behind <= AT_MOST, cell


def test_each_way_wins_clearly_somewhere() -> None:
    wins = {
        cell.better_by > 0
        for cell in map(make_cell, range(24))
        if abs(cell.better_by) > CLEARLY
    }

    assert wins == {True, False}
