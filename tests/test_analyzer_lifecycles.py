"""Swim lanes: which state each request was in, from when to when."""

from __future__ import annotations

import polars as pl

from analyzer.lifecycles import away_intervals, lifecycles
from tests.builders import make_events, make_requests
from tests.worlds import chunked_return, frames


def lanes(
    events: list[dict[str, object]], requests: list[dict[str, object]], end_s: float
) -> list[tuple[object, ...]]:
    tables = (
        pl.DataFrame(pl.from_arrow(t)) for t in (make_events(events), make_requests(requests))
    )
    return lifecycles(*tables, end_s).rows()


def test_a_request_is_queued_then_in_prefill_then_in_decode() -> None:
    world = frames(chunked_return())

    rows = lifecycles(world["events"], world["requests"], 9.0).rows()

    assert rows == [
        ("a", "prefill", 0.0, 1.0, False),
        ("a", "decode", 1.0, 6.0, False),
        ("b", "queued", 0.5, 1.0, False),
        ("b", "prefill", 1.0, 2.0, False),
        ("b", "decode", 2.0, 3.0, False),
        ("b", "preempted", 3.0, 6.0, False),
        ("b", "decode", 6.0, 9.0, False),
    ]


def test_a_swapped_request_is_swapped_until_it_resumes() -> None:
    rows = lanes(
        [
            {"step": 0, "kind": "arrive", "request_id": "a"},
            {"step": 0, "kind": "admit", "request_id": "a"},
            {"step": 2, "kind": "preempt", "request_id": "a", "mode_used": "swap"},
            {"step": 2, "kind": "swap_out", "request_id": "a"},
            {"step": 5, "kind": "swap_in", "request_id": "a"},
            {"step": 6, "kind": "resume", "request_id": "a"},
        ],
        [{"request_id": "a", "first_token_s": 1.0}],
        8.0,
    )

    assert rows == [
        ("a", "prefill", 0.0, 1.0, False),
        ("a", "decode", 1.0, 2.0, False),
        ("a", "swapped", 2.0, 6.0, False),
        ("a", "decode", 6.0, 8.0, True),
    ]


def test_what_is_open_at_the_end_is_closed_there_and_says_so() -> None:
    rows = lanes(
        [
            {"step": 0, "kind": "arrive", "request_id": "a"},
            {"step": 1, "kind": "arrive", "request_id": "b"},
            {"step": 2, "kind": "admit", "request_id": "a"},
            {"step": 3, "kind": "refuse", "request_id": "b"},
        ],
        [{"request_id": "a"}, {"request_id": "b", "status": "refused"}],
        4.0,
    )

    assert rows == [
        ("a", "queued", 0.0, 2.0, False),
        ("a", "prefill", 2.0, 4.0, True),
        ("b", "queued", 1.0, 3.0, False),
    ]


def test_each_preemption_is_paired_with_the_resumption_that_followed() -> None:
    rows = [
        {
            "step": 1,
            "kind": "preempt",
            "request_id": "a",
            "mode_used": "recompute",
            "tokens": 3,
        },
        {"step": 1, "kind": "preempt", "request_id": "b", "mode_used": "swap", "tokens": 9},
        {"step": 2, "kind": "resume", "request_id": "a", "tokens": 1},
        {
            "step": 4,
            "kind": "preempt",
            "request_id": "a",
            "mode_used": "recompute",
            "tokens": 5,
        },
    ]

    away = away_intervals(pl.DataFrame(pl.from_arrow(make_events(rows))))

    assert away.select(
        "request_id", "nth", "preempt_step", "resume_step", "found_tokens"
    ).rows() == [
        ("a", 1, 1, 2, 1),
        ("b", 1, 1, None, None),
        ("a", 2, 4, None, None),
    ]
