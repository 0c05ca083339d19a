"""Latencies of requests and the gaps between their tokens."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from analyzer.latency import goodput, latency_summary, request_latency, token_gaps
from analyzer.stats import weighted_percentiles
from tests.builders import make_events, make_requests, make_steps
from tests.worlds import chunked_return, frames
from traces.errors import SettingsError


def requests_frame(*rows: dict[str, object]) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(make_requests(rows)))


FAST = {
    "request_id": "fast",
    "arrival_s": 1.0,
    "output_tokens": 5,
    "first_scheduled_s": 1.5,
    "first_token_s": 2.0,
    "finish_s": 4.0,
}
SHORT = {
    "request_id": "short",
    "arrival_s": 0.0,
    "output_tokens": 1,
    "first_scheduled_s": 0.0,
    "first_token_s": 3.0,
    "finish_s": 3.0,
}
CUT = {
    "request_id": "cut",
    "arrival_s": 0.0,
    "output_tokens": 2,
    "first_scheduled_s": 0.0,
    "first_token_s": 1.0,
}


def test_each_latency_is_counted_from_arrival() -> None:
    latency = request_latency(requests_frame(FAST))

    assert latency.row(0, named=True) == {
        "request_id": "fast",
        "status": "finished",
        "ttft_s": 1.0,
        "tpot_s": 0.5,
        "e2e_s": 3.0,
        "queue_s": 0.5,
        "max_itl_s": None,
    }


def test_one_output_token_has_no_time_per_output_token() -> None:
    assert request_latency(requests_frame(SHORT))["tpot_s"].to_list() == [None]


def test_a_request_that_did_not_finish_counts_in_no_figure() -> None:
    latency = request_latency(requests_frame(FAST, SHORT, CUT))

    figures = latency_summary(latency)

    assert latency["e2e_s"].to_list() == [3.0, 3.0, None]
    assert figures["ttft_s"] == {
        "mean": 2.0,
        "p50": 2.0,
        "p90": 2.8,
        "p99": pytest.approx(2.98),
    }
    assert figures["tpot_s"] == {"mean": 0.5, "p50": 0.5, "p90": 0.5, "p99": 0.5}


def test_without_finished_requests_there_is_no_figure() -> None:
    figures = latency_summary(request_latency(requests_frame(CUT)))

    assert figures["e2e_s"] == {"mean": None, "p50": None, "p90": None, "p99": None}


def test_goodput_counts_finished_requests_that_met_every_bound() -> None:
    latency = request_latency(requests_frame(FAST, SHORT, CUT))

    assert goodput(latency, {}, 4.0) == 0.5
    assert goodput(latency, {"ttft_s": 1.0}, 4.0) == 0.25
    assert goodput(latency, {"tpot_s": 0.4}, 4.0) == 0.25
    assert goodput(latency, {}, 0.0) is None


def test_an_unknown_bound_lists_those_that_there_are() -> None:
    with pytest.raises(
        SettingsError, match=r"ttft: no such bound\. Choose from ttft_s, tpot_s"
    ):
        goodput(request_latency(requests_frame(FAST)), {"ttft": 1.0}, 1.0)


def test_gaps_are_step_lengths_plus_one_long_gap_for_a_preemption() -> None:
    gaps = token_gaps(**frames(chunked_return()))

    expanded = sorted(np.repeat(gaps.lengths_s, gaps.weights).tolist())
    assert expanded == [1.0, 1.0, 1.0, 1.0, 1.0, 2.0, 5.0]
    assert (gaps.num_gaps, gaps.num_unplaced, gaps.total_s) == (7, 0, 12.0)
    assert gaps.summary() == {
        "mean": pytest.approx(12 / 7),
        "p50": 1.0,
        "p90": pytest.approx(3.2),
        "p99": pytest.approx(4.82),
    }


def test_a_preemption_before_the_first_token_makes_no_gap() -> None:
    steps = pl.DataFrame(pl.from_arrow(make_steps([1] * 6)))
    events = pl.DataFrame(
        pl.from_arrow(
            make_events(
                [
                    {
                        "step": 1,
                        "kind": "preempt",
                        "request_id": "a",
                        "mode_used": "recompute",
                        "tokens": 4,
                    },
                    {"step": 3, "kind": "resume", "request_id": "a"},
                ]
            )
        )
    )
    requests = requests_frame(
        {"request_id": "a", "output_tokens": 3, "first_token_s": 4.0, "finish_s": 6.0}
    )

    gaps = token_gaps(requests, events, steps)

    assert np.repeat(gaps.lengths_s, gaps.weights).tolist() == [1.0, 1.0]


def test_a_swapped_request_yields_in_the_step_that_it_resumes_in() -> None:
    steps = pl.DataFrame(pl.from_arrow(make_steps([1] * 6)))
    events = pl.DataFrame(
        pl.from_arrow(
            make_events(
                [
                    {
                        "step": 2,
                        "kind": "preempt",
                        "request_id": "a",
                        "mode_used": "swap",
                        "tokens": 4,
                    },
                    {"step": 4, "kind": "resume", "request_id": "a"},
                ]
            )
        )
    )
    requests = requests_frame(
        {"request_id": "a", "output_tokens": 4, "first_token_s": 1.0, "finish_s": 6.0}
    )

    gaps = token_gaps(requests, events, steps)

    assert sorted(np.repeat(gaps.lengths_s, gaps.weights).tolist()) == [1.0, 1.0, 3.0]
    assert gaps.num_unplaced == 0


def test_chunk_steps_of_two_preemptions_divide_by_the_tokens_lost() -> None:
    steps = pl.DataFrame(pl.from_arrow(make_steps([1] * 14)))
    rows = [
        {
            "step": 2,
            "kind": "preempt",
            "request_id": "a",
            "mode_used": "recompute",
            "tokens": 10,
        },
        {"step": 3, "kind": "resume", "request_id": "a"},
        {
            "step": 6,
            "kind": "preempt",
            "request_id": "a",
            "mode_used": "recompute",
            "tokens": 30,
        },
        {"step": 7, "kind": "resume", "request_id": "a"},
    ]
    events = pl.DataFrame(pl.from_arrow(make_events(rows)))
    # 13 steps after the first token, 2 of them away, 7 gaps: 4 chunk steps, 1 of the first, 3 of the second
    requests = requests_frame(
        {"request_id": "a", "output_tokens": 8, "first_token_s": 1.0, "finish_s": 14.0}
    )

    gaps = token_gaps(requests, events, steps)

    assert sorted(np.repeat(gaps.lengths_s, gaps.weights).tolist()) == [
        1.0,
        1.0,
        1.0,
        1.0,
        1.0,
        3.0,
        5.0,
    ]
    assert (gaps.num_unplaced, gaps.total_s) == (0, 13.0)


def test_weighted_percentiles_equal_those_of_the_repeated_sample() -> None:
    found = weighted_percentiles(
        np.array([3.0, 1.0, 2.0]), np.array([1, 2, 0]), (0.0, 0.5, 0.75, 1.0)
    )

    assert found == [1.0, 1.0, 2.0, 3.0]
