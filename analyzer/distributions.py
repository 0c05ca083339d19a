"""How long requests took, all of them: shares below a time, and percentiles, per run.

It knows the latencies of finished requests and the gaps between tokens, thinned to so many points
that a curve can be drawn. What a percentile's difference is worth is said in `compare.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from analyzer.latency import request_latency
from analyzer.look import Side
from analyzer.stats import SUMMARY_KEYS, summarize_sample
from analyzer.token_gaps import token_gaps

METRICS = {
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "itl_s": "Gap between tokens",
    "e2e_s": "E2E",
    "queue_s": "Queueing",
}
POINTS = 800


@dataclass(frozen=True, eq=False)
class Curve:
    """Share of a run's values that are at most x. x_s [k], in order; share [k], 0 to 1; summary: mean,
    p50, p90, p99, None without values; num: values; of: what is counted, in words."""

    x_s: np.ndarray
    share: np.ndarray
    summary: Mapping[str, float | None]
    num: int
    of: str


def curve(
    metric: str, requests: pl.DataFrame, events: pl.DataFrame, steps: pl.DataFrame
) -> Curve:
    """The distribution of one of METRICS over finished requests, or over all gaps between their
    tokens. requests, events, steps: a run's tables."""
    if metric == "itl_s":
        gaps = token_gaps(requests, events, steps)
        order = np.argsort(gaps.lengths_s)
        some = order[gaps.weights[order] > 0]
        upto = np.cumsum(gaps.weights[some])
        total = int(upto[-1]) if len(upto) else 0
        at = np.unique(np.searchsorted(upto, _places(total)))
        x, share = gaps.lengths_s[some][at], upto[at] / max(total, 1)
        return Curve(x, share, gaps.summary(), total, "gaps between tokens")
    latency = request_latency(requests).filter(pl.col("status").cast(pl.String) == "finished")
    values = latency[metric].drop_nulls().to_numpy()
    values = np.sort(values[np.isfinite(values)])
    at = np.unique(_places(len(values)) - 1)
    return Curve(
        values[at],
        (at + 1) / max(len(values), 1),
        summarize_sample(values),
        len(values),
        "finished requests",
    )


def _places(total: int) -> np.ndarray:
    """Ranks 1 to total: at most POINTS over all of them, as many again over the last hundredth."""
    if not total:
        return np.empty(0, np.int64)
    body = np.linspace(1, total, min(POINTS, total))
    tail = np.linspace(max(1, total * 0.99), total, min(POINTS // 2, total))
    return np.unique(np.concatenate([body, tail]).astype(np.int64))


def percentiles_table(curves: Mapping[Side, Mapping[str, Curve]]) -> pl.DataFrame:
    """All percentiles in seconds: figure, and a column a run. curves: side -> metric -> curve."""
    sides = list(curves)
    metrics = list(next(iter(curves.values())))
    columns: dict[str, list[str] | list[float | None]] = {
        "figure": [f"{METRICS[m]} {key}" for m in metrics for key in SUMMARY_KEYS]
    }
    for side in sides:
        columns[side] = [curves[side][m].summary[key] for m in metrics for key in SUMMARY_KEYS]
    return pl.DataFrame(columns)
