"""Latency of requests: TTFT, TPOT, E2E, queue time, gaps between tokens, goodput.

It knows times of `requests`, and rebuilds gaps between tokens from `steps` and `events`, since a
recording holds no time per token. It judges nothing (`compare.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from analyzer.lifecycles import away_intervals
from analyzer.stats import SUMMARY_KEYS, summarize_sample, weighted_percentiles
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


@dataclass(frozen=True)
class TokenGaps:
    """All gaps between neighbouring output tokens of finished requests.

    lengths_s [n] each occur weights [n] times; num_gaps: how many there are by the output token
    counts; total_s: their sum by first and last token, so mean_s is exact; num_unplaced: gaps by
    count less gaps by weight, 0 where the reconstruction is exact.
    """

    lengths_s: np.ndarray
    weights: np.ndarray
    num_gaps: int
    total_s: float

    @property
    def num_unplaced(self) -> int:
        return self.num_gaps - int(self.weights.sum())

    def summary(self) -> dict[str, float | None]:
        """mean, p50, p90, p99; None where there is no gap."""
        if self.num_gaps == 0 or not self.weights.any():
            return dict.fromkeys(SUMMARY_KEYS)
        p50, p90, p99 = weighted_percentiles(self.lengths_s, self.weights, (0.5, 0.9, 0.99))
        return {"mean": self.total_s / self.num_gaps, "p50": p50, "p90": p90, "p99": p99}


def token_gaps(requests: pl.DataFrame, events: pl.DataFrame, steps: pl.DataFrame) -> TokenGaps:
    """Gaps between tokens, rebuilt: a request in decode yields one token at the end of each step.

    Between the step of its first and the step of its last token, each step that a request runs in
    gives one gap, as long as the distance between the ends of two steps. A preemption at step p
    with resumption at step r gives one gap from the end of step p - 1 to the end of the step that
    yields again. That is r, or later where lost tokens are computed again in chunks: the number of
    chunk steps is what remains of the request's steps when its tokens and its time away are taken
    out, and with several preemptions it is divided by the tokens that each lost.

    Exact: the mean; all gaps of requests never preempted; the gap of a single preemption. Not
    exact: how chunk steps divide over several preemptions of one request, and steps in which a
    running request got no token for want of budget (two gaps are then counted for one of their
    sum; `num_unplaced` is less than 0 by as many).
    """
    done = requests.filter(
        (pl.col("status").cast(pl.String) == "finished")
        & (pl.col("output_tokens") > 1)
        & pl.col("first_token_s").is_not_null()
    ).select("request_id", "first_token_s", "finish_s", gaps=pl.col("output_tokens") - 1)
    if done.is_empty() or steps.is_empty():
        return TokenGaps(np.empty(0), np.empty(0, np.int64), 0, 0.0)
    ends = np.maximum.accumulate((steps["t_start_s"] + steps["duration_s"]).to_numpy())
    done = done.with_columns(
        first=_step_of(ends, done["first_token_s"]), last=_step_of(ends, done["finish_s"])
    )
    pauses = _pauses(done, events, steps["step"].to_numpy())
    away, back = pauses["away"].to_numpy(), pauses["yields"].to_numpy()
    n = len(ends)
    running = _spans(done["first"].to_numpy() + 1, done["last"].to_numpy() + 1, n) - _spans(
        away, back + 1, n
    )
    lengths = np.diff(ends, prepend=ends[0])
    return TokenGaps(
        lengths_s=np.concatenate([lengths, ends[back] - ends[away - 1]]),
        weights=np.concatenate([np.maximum(running, 0), np.ones(len(away), np.int64)]),
        num_gaps=int(done["gaps"].sum()),
        total_s=float((done["finish_s"] - done["first_token_s"]).sum()),
    )


def _step_of(ends: np.ndarray, times: pl.Series) -> pl.Series:
    """Row of the step that ends at each time (times are such ends, up to rounding)."""
    t = times.to_numpy()
    row = np.searchsorted(ends, t - 1e-9 * np.maximum(1.0, np.abs(t)))
    return pl.Series(np.minimum(row, len(ends) - 1))


def _spans(starts: np.ndarray, stops: np.ndarray, n: int) -> np.ndarray:
    """How many of the spans [start, stop) cover each of n rows."""
    change = np.bincount(starts, minlength=n + 2) - np.bincount(stops, minlength=n + 2)
    return np.cumsum(change)[:n]


def _pauses(done: pl.DataFrame, events: pl.DataFrame, step_ids: np.ndarray) -> pl.DataFrame:
    """Rows of `steps` between which a decoding request gave no token: away, yields (both included)."""
    pauses = (
        away_intervals(events)
        .drop_nulls("resume_step")
        .join(done, on="request_id", how="inner", maintain_order="left")
    )
    pauses = pauses.with_columns(
        away=pl.Series(np.searchsorted(step_ids, pauses["preempt_step"].to_numpy())),
        back=pl.Series(np.searchsorted(step_ids, pauses["resume_step"].to_numpy())),
    ).filter((pl.col("away") > pl.col("first")) & (pl.col("back") <= pl.col("last")))
    lost = (
        pl.when(pl.col("mode_used").cast(pl.String) == "recompute")
        .then(pl.col("tokens") - pl.col("restored_tokens"))
        .otherwise(0)
        .clip(lower_bound=0)
        + 1e-6  # so that pauses that lost nothing still divide what remains
    )
    chunks = (
        pl.col("last")
        - pl.col("first")
        - (pl.col("back") - pl.col("away")).sum()
        - pl.col("gaps").first()
    )
    upto = chunks.clip(lower_bound=0) * (lost.cum_sum() / lost.sum())
    limit = pl.min_horizontal(pl.col("away").shift(-1).fill_null(2**62) - 1, pl.col("last"))
    return pauses.with_columns(upto=upto.round().cast(pl.Int64).over("request_id")).select(
        "away",
        yields=pl.min_horizontal(
            pl.col("back") + pl.col("upto") - pl.col("upto").shift(1, fill_value=0), limit
        ).over("request_id"),
    )
