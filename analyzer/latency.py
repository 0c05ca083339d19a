"""Latency of requests: TTFT, TPOT, E2E, queue time, goodput.

It knows times of `requests`. Gaps between tokens are in `token_gaps.py`; what is better or worse is
said in `compare.py`.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from analyzer.stats import summarize_sample
from traces.errors import SettingsError

REQUEST_METRICS = ("ttft_s", "tpot_s", "e2e_s", "queue_s")
GOODPUT_BOUNDS = (*REQUEST_METRICS, "max_itl_s")


def request_latency(requests: pl.DataFrame) -> pl.DataFrame:
    """One row a request, in the given order; a time is null until it is known.

    Columns: request_id, status, ttft_s (arrival to first token), e2e_s (arrival to last token,
    finished requests only), tpot_s ((e2e - ttft) / (n - 1), null for one token), queue_s (arrival
    to first scheduled), max_itl_s (as recorded).
    """
    done = pl.col("status").cast(pl.String) == "finished"
    frame = requests.select(
        "request_id",
        "status",
        "output_tokens",
        ttft_s=pl.col("first_token_s") - pl.col("arrival_s"),
        e2e_s=pl.when(done).then(pl.col("finish_s") - pl.col("arrival_s")),
        queue_s=pl.col("first_scheduled_s") - pl.col("arrival_s"),
        max_itl_s="max_itl_s",
    )
    gaps = pl.when(pl.col("output_tokens") > 1).then(pl.col("output_tokens") - 1)
    return frame.with_columns(tpot_s=(pl.col("e2e_s") - pl.col("ttft_s")) / gaps).select(
        "request_id", "status", *REQUEST_METRICS, "max_itl_s"
    )


def latency_summary(latency: pl.DataFrame) -> dict[str, dict[str, float | None]]:
    """mean, p50, p90, p99 of each metric over finished requests; None where there is no value.

    latency: as from `request_latency`.
    """
    done = latency.filter(pl.col("status").cast(pl.String) == "finished")
    return {m: summarize_sample(done[m].drop_nulls().to_numpy()) for m in REQUEST_METRICS}


def goodput(
    latency: pl.DataFrame, bounds: Mapping[str, float], duration_s: float
) -> float | None:
    """Finished requests per second that met every bound; None where the run has no duration.

    bounds: metric -> largest value allowed, in seconds; a request without a value (TPOT of one
    token) meets it. Show the number with its bounds. Raises SettingsError for unknown metrics.
    """
    unknown = sorted(set(bounds) - set(GOODPUT_BOUNDS))
    if unknown:
        raise SettingsError(
            f"{', '.join(unknown)}: no such bound. Choose from {', '.join(GOODPUT_BOUNDS)}."
        )
    if duration_s <= 0:
        return None
    met = [pl.col("status").cast(pl.String) == "finished"]
    met += [(pl.col(m) <= limit).fill_null(True) for m, limit in bounds.items()]
    return latency.filter(met).height / duration_s
