"""Latencies of requests, from arrival on."""

from __future__ import annotations

import polars as pl
import pytest

from analyzer.latency import goodput, latency_summary, request_latency
from tests.builders import make_requests
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
