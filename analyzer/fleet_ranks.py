"""Ranks of a fleet set side by side: a row of figures each, from their thinned series.

It knows which figures a rank has and how they are ordered; what they mean is in `fleet_grid.py`.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from analyzer.fleet_series import FleetSeries


def rank_table(series: FleetSeries) -> pl.DataFrame:
    """One row a rank, in the fleet's order; null where the rank says nothing.

    name, label (of its first member), members (how many are joined), known (how its usage is known),
    span_s (time that it covers), mean_used_frac, peak_used_frac, full_time_frac, used_tokens (mean),
    pool_tokens, mean_running, max_waiting, mean_waiting, num_preemptions, tokens_per_s (computed).
    """
    values = series.values
    covered = ~np.isnan(values["usage"]) | ~np.isnan(values["running"])
    span_s = covered.sum(axis=1) * series.grid.width_s
    used = series.used_tokens()
    rows = len(series.ranks)
    none = np.full(rows, np.nan)
    tokens = _sum(values["tokens"])
    return pl.DataFrame(
        {
            "name": [r.name for r in series.ranks],
            "label": [r.label for r in series.ranks],
            "members": [len(r.members) for r in series.ranks],
            "known": [r.facts.usage_is for r in series.ranks],
            "span_s": span_s,
            "mean_used_frac": _mean(values["usage"]),
            "peak_used_frac": _max(values["usage_max"]),
            "full_time_frac": _mean(values["full"]),
            "used_tokens": none if used is None else _mean(used),
            "pool_tokens": pl.Series([r.facts.pool_tokens for r in series.ranks], dtype=pl.Int64),
            "mean_running": _mean(values["running"]),
            "mean_waiting": _mean(values["waiting"]),
            "max_waiting": _max(values["waiting_max"]),
            "num_preemptions": _sum(values["preemptions"]),
            "tokens_per_s": np.divide(tokens, span_s, out=none.copy(), where=span_s > 0),
        }
    ).with_columns(pl.col(pl.Float64, pl.Float32).cast(pl.Float64).fill_nan(None))  # fmt: skip


def fullest_first(table: pl.DataFrame) -> list[int]:
    """Indices of ranks by mean usage, then by waiting; those that do not say it last."""
    return (
        table.with_row_index("at")
        .sort("mean_used_frac", "mean_waiting", descending=True, nulls_last=True, maintain_order=True)["at"]
        .to_list()
    )  # fmt: skip


def _all_nan(values: np.ndarray) -> np.ndarray:
    return np.isnan(values).all(axis=1)


def _mean(values: np.ndarray) -> np.ndarray:
    seen = (~np.isnan(values)).sum(axis=1)
    total = np.nansum(values, axis=1, dtype=np.float64)
    return np.divide(total, seen, out=np.full(len(values), np.nan), where=seen > 0)


def _max(values: np.ndarray) -> np.ndarray:
    filled = np.where(np.isnan(values), -np.inf, values).max(axis=1)
    return np.where(_all_nan(values), np.nan, filled)


def _sum(values: np.ndarray) -> np.ndarray:
    total = np.nansum(values, axis=1, dtype=np.float64)
    return np.where(_all_nan(values), np.nan, total)
