"""Splitting requests over replicas: every rule on requests few enough to route by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from traces.errors import SettingsError
from traces.routing import ROUTERS, ServiceModel, assign, split
from traces.workload import ReadReport, Workload, make_workload

# 10 prompt tokens and one output token a second: a prompt of 10 and 4 tokens stay for 5 s.
SLOW = ServiceModel(prefill_tokens_per_s=10.0, tpot_s=1.0)


def asked(arrival_s: list[float], **columns: Any) -> Workload:
    """Requests of 10 prompt and 4 output tokens unless told otherwise."""
    options = {
        k: columns.pop(k) for k in ("concurrency", "prefix_block_tokens") if k in columns
    }
    filled = {
        "arrival_s": [float(t) for t in arrival_s],
        "prompt_tokens": [10] * len(arrival_s),
        "output_tokens": [4] * len(arrival_s),
        **columns,
    }
    return make_workload(filled, name="hand", report=ReadReport("hand"), **options)


def test_round_robin_goes_round() -> None:
    assert assign(asked([0, 1, 2, 3, 4]), 3).tolist() == [0, 1, 2, 0, 1]


def test_every_request_is_in_one_replica_with_its_own_time() -> None:
    work = asked([0.0, 0.5, 1.0, 7.0, 8.0, 9.0, 9.5])

    for rule in ROUTERS:
        parts = split(work, 3, rule)
        together = sorted(
            (t, i) for p in parts for t, i in p.table.select("arrival_s", "request_id").rows()
        )

        assert together == sorted(work.table.select("arrival_s", "request_id").rows())
        assert [p.name for p in parts] == [f"hand [replica {k} of 3]" for k in (1, 2, 3)]


def test_more_replicas_than_requests_leave_some_empty() -> None:
    parts = split(asked([0.0, 1.0]), 4, "least-tokens")

    assert [len(p) for p in parts] == [1, 1, 0, 0]


def test_least_requests_counts_requests_and_not_their_size() -> None:
    # Long prompts at 0 and 2 s; replica 0 holds 1 long, replica 1 1 short, then again.
    work = asked([0, 0, 2, 2], prompt_tokens=[1_000, 10, 1_000, 10])

    assert assign(work, 2, "least-requests", SLOW).tolist() == [0, 1, 0, 1]


def test_least_tokens_keeps_away_from_the_replica_with_the_long_prompt() -> None:
    work = asked([0, 0, 2, 2], prompt_tokens=[1_000, 10, 1_000, 10])

    # 1,000 against 10, so the third goes to replica 1; then 1,000 against 1,010 and what came out.
    assert assign(work, 2, "least-tokens", SLOW).tolist() == [0, 1, 1, 0]


def test_output_tokens_that_came_so_far_count() -> None:
    # At 6 s replica 0 holds 10 + 5 tokens, as its prefill ended at 1 s; replica 1 holds 14 that are
    # in their prefill until 7.2 s.
    work = asked([0, 5.8, 6.0], prompt_tokens=[10, 14, 10], output_tokens=[50, 50, 4])

    assert assign(work, 2, "least-tokens", SLOW).tolist() == [0, 1, 1]


def test_a_request_that_left_is_outstanding_no_more() -> None:
    # Both of the first leave at 5 s but for the second, which wants 40 tokens.
    work = asked([0, 0, 5.0], output_tokens=[4, 40, 4])

    assert assign(work, 2, "least-requests", SLOW).tolist() == [0, 1, 0]


def test_an_aborted_request_leaves_when_it_is_aborted() -> None:
    work = asked([0, 0, 2.0], output_tokens=[40, 4, 4], abort_s=[1.5, None, None])

    assert assign(work, 2, "least-requests", SLOW).tolist() == [0, 1, 0]


def test_equal_replicas_take_turns() -> None:
    far_apart = asked([0, 100, 200, 300])

    for rule in ROUTERS:
        assert assign(far_apart, 2, rule, SLOW).tolist() == [0, 1, 0, 1]


def test_prefix_affinity_follows_the_prefix() -> None:
    work = asked(
        [0, 100, 200, 300],
        prompt_tokens=[16, 16, 32, 16],
        prefix_ids=[[1, 2], [5], [1, 2, 3, 4], [5]],
        prefix_block_tokens=8,
    )

    assert assign(work, 3, "prefix-affinity", SLOW).tolist() == [0, 1, 0, 1]


def test_a_prefix_shorter_than_half_of_the_prompt_does_not_decide() -> None:
    work = asked(
        [0, 100],
        prompt_tokens=[17, 17],
        prefix_ids=[[1], [1]],
        prefix_block_tokens=8,
    )

    assert assign(work, 2, "prefix-affinity", SLOW).tolist() == [0, 1]


def test_a_full_replica_is_passed_over_whatever_it_has() -> None:
    # Replica 0 holds 1,000 tokens of the prefix, replica 1 10: over twice that and the prompt.
    work = asked(
        [0, 0, 1],
        prompt_tokens=[1_000, 10, 16],
        output_tokens=[400, 400, 4],
        prefix_ids=[[1, 2], [], [1, 2]],
        prefix_block_tokens=8,
    )

    assert assign(work, 2, "prefix-affinity", SLOW).tolist() == [0, 1, 1]


def test_without_prefixes_a_session_stays_where_it_was() -> None:
    work = asked([0, 100, 200, 300], session_id=["a", "b", "b", "a"])

    assert assign(work, 2, "prefix-affinity", SLOW).tolist() == [0, 1, 1, 0]


def test_a_closed_loop_is_shared_out_and_its_requests_come_as_others_leave() -> None:
    # Two at once: the third comes when the first leaves, at 2 s, whose replica is then empty.
    work = asked([0, 0, 0], output_tokens=[1, 40, 1], concurrency=2)

    assert assign(work, 2, "least-requests", SLOW).tolist() == [0, 1, 0]
    assert [p.concurrency for p in split(asked([0] * 9, concurrency=5), 3)] == [2, 2, 1]
    assert [p.concurrency for p in split(asked([0] * 9, concurrency=2), 3)] == [1, 1, 1]


def test_the_same_question_has_the_same_answer() -> None:
    rng = np.random.default_rng(1)
    work = asked(
        np.cumsum(rng.exponential(0.2, 400)).tolist(),
        prompt_tokens=rng.integers(1, 2_000, 400),
        output_tokens=rng.integers(1, 300, 400),
        prefix_ids=[[int(i)] for i in rng.integers(0, 9, 400)],
        prefix_block_tokens=512,
    )

    for rule in ROUTERS:
        first, again = (assign(work, 5, rule) for _ in range(2))
        assert first.tolist() == again.tolist()
        assert set(first.tolist()) == {0, 1, 2, 3, 4}


def test_long_requests_are_spread_by_tokens_better_than_by_turn() -> None:
    # Every fourth prompt is long: going round puts all of them on one replica.
    work = asked(
        [i * 0.1 for i in range(200)],
        prompt_tokens=[8_000 if i % 4 == 0 else 100 for i in range(200)],
    )

    def tokens(rule: str) -> list[int]:
        return [int(p.table["prompt_tokens"].sum()) for p in split(work, 4, rule)]

    assert tokens("round-robin") == [400_000, 5_000, 5_000, 5_000]
    assert max(tokens("least-tokens")) < 120_000


@pytest.mark.parametrize(
    ("replicas", "rule", "said"),
    [
        (0, "round-robin", "a whole number from 1 to 1,024, not 0"),
        (2_000, "round-robin", "not 2000"),
        (True, "round-robin", "not True"),
        (
            2,
            "random",
            "Choose one of round-robin, least-requests, least-tokens, prefix-affinity",
        ),
    ],
)
def test_what_cannot_be_is_said(replicas: Any, rule: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        split(asked([0.0]), replicas, rule)


def test_a_service_that_takes_no_time_is_refused() -> None:
    with pytest.raises(SettingsError, match="tpot_s must be a positive number"):
        ServiceModel(tpot_s=0.0)
