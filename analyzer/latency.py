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
OVERLOAD_QUEUE_FRAC = 0.5
OVERLOAD_MIN_REQUESTS = 20  # fewer tell nothing of a trend
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


def overload_wait_s(requests: pl.DataFrame) -> float | None:
    """Mean wait before a request first runs, where the load outruns the engine; else None.

    It does where requests wait for at least OVERLOAD_QUEUE_FRAC of their time and those that came
    in the last quarter wait over twice as long as those of the first: the queue only grows.
    """
    waits = request_latency(requests.sort("arrival_s", maintain_order=True)).drop_nulls(
        "queue_s"
    )
    quarter = waits.height // 4
    if waits.height < OVERLOAD_MIN_REQUESTS:
        return None
    queue = waits["queue_s"].to_numpy()
    mean_s, e2e_s = float(queue.mean()), waits["e2e_s"].mean()
    grows = queue[-quarter:].mean() > 2 * queue[:quarter].mean()
    if not isinstance(e2e_s, float) or mean_s < OVERLOAD_QUEUE_FRAC * e2e_s or not grows:
        return None
    return mean_s


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
