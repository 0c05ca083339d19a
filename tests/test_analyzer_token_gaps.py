"""Gaps between tokens, on runs whose tokens can be counted on a drawing."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from analyzer.stats import weighted_percentiles
from analyzer.token_gaps import TokenGaps, token_gaps
from tests.builders import make_events, make_requests, make_steps
from tests.worlds import chunked_return, frames


def frame(table: Any) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(table))


def gaps_of(
    steps: int, events: list[dict[str, Any]], decode: list[int], *requests: dict[str, Any]
) -> TokenGaps:
    """Gaps in a run of one-second steps with so many decode tokens each."""
    return token_gaps(
        frame(make_requests(requests)),
        frame(make_events(events)),
        frame(make_steps([1] * steps, decode_tokens=decode)),
    )


def expanded(gaps: TokenGaps) -> list[float]:
    return sorted(np.repeat(gaps.lengths_s, gaps.weights).tolist())


def away(
    request_id: str, mode: str, gone: int, back: int, tokens: int = 4
) -> list[dict[str, Any]]:
    """A preemption and the resumption that followed it."""
    return [
        {
            "step": gone,
            "kind": "preempt",
            "request_id": request_id,
            "mode_used": mode,
            "tokens": tokens,
        },
        {"step": back, "kind": "resume", "request_id": request_id},
    ]


def test_gaps_are_step_lengths_plus_one_long_gap_for_a_preemption() -> None:
    gaps = token_gaps(**frames(chunked_return()))

    assert expanded(gaps) == [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 5.0]
    assert (gaps.num_gaps, gaps.num_unplaced, gaps.total_s) == (7, 0, 12.0)
    assert gaps.summary() == {
        "mean": pytest.approx(12 / 7),
        "p50": 1.0,
        "p90": pytest.approx(3.2),
        "p99": pytest.approx(4.82),
    }


def test_a_preemption_before_the_first_token_makes_no_gap() -> None:
    a = {"request_id": "a", "output_tokens": 3, "first_token_s": 4.0, "finish_s": 6.0}

    gaps = gaps_of(6, away("a", "recompute", 1, 3), [0, 0, 0, 0, 1, 1], a)

    assert expanded(gaps) == [1.0, 1.0]


def test_a_swapped_request_yields_in_the_step_that_it_resumes_in() -> None:
    a = {"request_id": "a", "output_tokens": 4, "first_token_s": 1.0, "finish_s": 6.0}

    gaps = gaps_of(6, away("a", "swap", 2, 4), [0, 1, 0, 0, 1, 1], a)

    assert expanded(gaps) == [1.0, 1.0, 3.0]
    assert gaps.num_unplaced == 0


def test_chunk_steps_of_two_preemptions_divide_by_the_tokens_lost() -> None:
    # 13 steps after the first token, 2 of them away, 7 gaps: 4 chunk steps without a token,
    # 1 for the return that lost 10 tokens, 3 for the one that lost 30
    a = {"request_id": "a", "output_tokens": 8, "first_token_s": 1.0, "finish_s": 14.0}
    events = away("a", "recompute", 2, 3, tokens=10) + away("a", "recompute", 6, 7, tokens=30)

    gaps = gaps_of(14, events, [0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1], a)

    assert expanded(gaps) == [1.0, 1.0, 1.0, 1.0, 1.0, 3.0, 5.0]
    assert (gaps.num_unplaced, gaps.total_s) == (0, 13.0)


def test_a_running_request_that_waits_has_one_long_gap() -> None:
    # both in decode from step 1 on; one gets no token in step 2, and one none in steps 4 and 5
    a = {"request_id": "a", "output_tokens": 6, "first_token_s": 1.0, "finish_s": 7.0}
    b = {"request_id": "b", "output_tokens": 5, "first_token_s": 1.0, "finish_s": 7.0}

    gaps = gaps_of(7, [], [0, 2, 1, 2, 1, 1, 2], a, b)

    assert expanded(gaps) == [1.0] * 7 + [2.0, 3.0]
    assert gaps.num_unplaced == 0


def test_requests_that_did_not_finish_have_no_gaps() -> None:
    a = {"request_id": "a", "output_tokens": 3, "first_token_s": 1.0, "finish_s": 3.0}
    cut = {"request_id": "cut", "output_tokens": 2, "first_token_s": 1.0}

    gaps = gaps_of(3, [], [0, 2, 1], a, cut)

    assert expanded(gaps) == [1.0, 1.0]


def test_without_a_second_token_there_is_no_gap() -> None:
    gaps = gaps_of(
        1,
        [],
        [0],
        {"request_id": "a", "output_tokens": 1, "first_token_s": 1.0, "finish_s": 1.0},
    )

    assert gaps.summary() == {"mean": None, "p50": None, "p90": None, "p99": None}


def test_weighted_percentiles_equal_those_of_the_repeated_sample() -> None:
    found = weighted_percentiles(
        np.array([3.0, 1.0, 2.0]), np.array([1, 2, 0]), (0.0, 0.5, 0.75, 1.0)
    )

    assert found == [1.0, 1.0, 2.0, 3.0]
