"""How full the block pool was: series per step, and shares over steps and over time.

It knows `steps` (used + free is the pool) and nothing about single requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

_POOL = pl.col("used_blocks") + pl.col("free_blocks")
FULL_PERCENT = 98  # a pool is called full from this many per cent of its blocks on


def occupancy_series(steps: pl.DataFrame) -> pl.DataFrame:
    """One row a step: how the pool divides, in blocks, and used_frac (0 to 1).

    Columns: step, t_start_s, duration_s, used_blocks (fenced ones included), fenced_blocks,
    cached_blocks (free, but still a prefix-cache hit), empty_blocks (free and without content),
    used_frac (null for a pool of no blocks). used + cached + empty = pool.
    """
    return steps.select(
        "step",
        "t_start_s",
        "duration_s",
        "used_blocks",
        "fenced_blocks",
        cached_blocks=pl.col("cached_free_blocks"),
        empty_blocks=pl.col("free_blocks") - pl.col("cached_free_blocks"),
        used_frac=_share("used_blocks"),
    )


@dataclass(frozen=True)
class Occupancy:
    """Shares of the pool, 0 to 1; None where there is no step (or, over time, no duration).

    peak_used_frac: largest share in use at any step; full_steps_frac: share of steps with at least
    98 % in use; full_time_frac: share of time; mean_*_frac: means over steps or weighted by step
    duration; peak_step: first step at the peak.
    """

    peak_used_frac: float | None
    peak_step: int | None
    full_steps_frac: float | None
    full_time_frac: float | None
    mean_used_steps_frac: float | None
    mean_used_time_frac: float | None
    mean_cached_time_frac: float | None


def occupancy_summary(steps: pl.DataFrame | pl.LazyFrame) -> Occupancy:
    """Shares over all given steps; a lazy frame is read in one streamed pass."""
    used, cached = _share("used_blocks"), _share("cached_free_blocks")
    full = pl.col("used_blocks").cast(pl.Int64) * 100 >= FULL_PERCENT * _POOL.cast(pl.Int64)
    duration = pl.col("duration_s")
    total = duration.sum()
    row = (
        steps.lazy()
        .select(
            total_s=total,
            peak=used.max(),
            peak_step=pl.col("step")
            .filter(pl.col("used_blocks") == pl.col("used_blocks").max())
            .first(),
            full_steps=full.mean(),
            full_time=(full * duration).sum() / total,
            mean_steps=used.mean(),
            mean_time=(used * duration).sum() / total,
            cached_time=(cached * duration).sum() / total,
        )
        .collect(engine="streaming")
        .row(0, named=True)
    )
    if row["peak"] is None:
        return Occupancy(None, None, None, None, None, None, None)
    timed = row["total_s"] > 0
    return Occupancy(
        peak_used_frac=row["peak"],
        peak_step=row["peak_step"],
        full_steps_frac=row["full_steps"],
        full_time_frac=row["full_time"] if timed else None,
        mean_used_steps_frac=row["mean_steps"],
        mean_used_time_frac=row["mean_time"] if timed else None,
        mean_cached_time_frac=row["cached_time"] if timed else None,
    )


def _share(column: str) -> pl.Expr:
    """Share of the pool, null where the pool has no blocks. Columns divide exactly: 49/49 is 1."""
    return pl.when(_POOL > 0).then(pl.col(column) / _POOL)
