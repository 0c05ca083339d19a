"""Every preemption as a row: who, why, what it cost, whom else it slowed down.

It knows `events` and `steps`. The four costs are kept apart, since they answer different questions:

- **direct cost** (`direct_cost_s`): what the mode used costs alone, by the model of the run: the
  recompute of the lost tokens, or both copies. `other_mode_s` is the same for the other mode.
- **wasted work** (`recomputed_tokens`): tokens whose KV had been computed, was lost, and was not
  found in the prefix cache on resumption. 0 for swap.
- **time away** (`away_s`): from the preemption until the victim ran again.
- **induced delay** (`induced_s`): request-seconds by which *other* running requests were delayed.
  Recompute: of each step that computes the lost tokens again, the share of its duration (stalls
  excluded) that those tokens have of all its tokens, times the other requests that ran in it.
  Swap: the stall of the steps that started the victim's copies, by its share of the bytes started,
  times the other requests that ran in them; asynchronous copies that nobody waits for in the step
  that starts them induce nothing. Waiting requests that the freed blocks let in, or that
  the return kept out, are not counted: that would need another run, which is what Compare is for.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from analyzer.lifecycles import away_intervals

_KIND = pl.col("kind").cast(pl.String)
COLUMNS = (
    "step",
    "t_s",
    "request_id",
    "nth",
    "cause_request_id",
    "mode_asked",
    "mode_used",
    "tokens",
    "blocks",
    "bytes",
    "free_blocks_before",
    "direct_cost_s",
    "other_mode_s",
    "resume_step",
    "resume_s",
    "away_s",
    "since_resume_s",
    "restored_tokens",
    "recomputed_tokens",
    "induced_s",
    "cascade_id",
    "cascade_size",
)


def preemptions(
    events: pl.DataFrame, steps: pl.DataFrame, *, cascade_steps: int = 4
) -> pl.DataFrame:
    """One row a preemption, in event order, with COLUMNS.

    tokens: computed tokens lost or moved; bytes: copied out; nth: 1 for a victim's first;
    since_resume_s: time since it last came back (null for the first), short where it thrashes;
    resume_*, away_s, restored_tokens, recomputed_tokens: null where it never ran again;
    cascade_id: preemptions no more than `cascade_steps` steps after the one before share one, from
    0; cascade_size: how many share it.
    """
    own = events.with_columns(kind=_KIND).filter(pl.col("kind") == "preempt")
    away = away_intervals(events).select("nth", "resume_step", "resume_s", "restored_tokens")
    swap = pl.col("mode_used").cast(pl.String) == "swap"
    table = pl.concat([own, away], how="horizontal").with_columns(
        direct_cost_s="cost_s",
        other_mode_s=pl.when(swap).then("recompute_est_s").otherwise("swap_est_s"),
        away_s=pl.col("resume_s") - pl.col("t_s"),
        since_resume_s=pl.col("t_s") - pl.col("resume_s").shift(1).over("request_id"),
        recomputed_tokens=pl.when(pl.col("resume_step").is_not_null()).then(
            pl.when(swap)
            .then(0)
            .otherwise(pl.col("tokens") - pl.col("restored_tokens"))
            .clip(lower_bound=0)
        ),
        cascade_id=(pl.col("step").diff().fill_null(0) > cascade_steps).cum_sum(),
    )
    table = table.with_columns(cascade_size=pl.len().over("cascade_id"))
    return table.with_columns(induced_s=_induced(table, events, steps)).select(COLUMNS)


def _induced(table: pl.DataFrame, events: pl.DataFrame, steps: pl.DataFrame) -> pl.Series:
    """Induced delay of each row of `table`, as the module's docstring defines it."""
    if table.is_empty() or steps.is_empty():
        return pl.Series("induced_s", [0.0] * table.height, dtype=pl.Float64)
    recompute = _recompute_delay(table, steps)
    copies = _copy_delay(table, events, steps)
    return pl.Series("induced_s", recompute + copies)


def _recompute_delay(table: pl.DataFrame, steps: pl.DataFrame) -> np.ndarray:
    """Request-seconds by which recomputing lengthened steps of others, per row of `table`.

    Lost tokens are laid over the recomputed tokens of the steps from the resumption on, first come
    first served where several victims come back at once.
    """
    out = np.zeros(table.height)
    back = table["resume_step"]
    rows = np.flatnonzero(
        (back.is_not_null() & (table["recomputed_tokens"] > 0).fill_null(False)).to_numpy()
    )
    if not len(rows):
        return out
    rows = rows[np.argsort(back.to_numpy()[rows], kind="stable")]
    again = steps["recomputed_tokens"].to_numpy().astype(np.float64)
    total = again + steps["prefill_tokens"].to_numpy() + steps["decode_tokens"].to_numpy()
    share = np.divide(again, total, out=np.zeros_like(again), where=total > 0)
    busy = np.maximum(steps["duration_s"].to_numpy() - steps["stall_s"].to_numpy(), 0.0)
    others = np.maximum(steps["num_running"].to_numpy() - 1, 0)
    upto_tokens = np.concatenate([[0.0], np.cumsum(again)])
    upto_delay = np.concatenate([[0.0], np.cumsum(share * busy * others)])
    work = table["recomputed_tokens"].to_numpy()[rows].astype(np.float64)
    earliest = upto_tokens[np.searchsorted(steps["step"].to_numpy(), back.to_numpy()[rows])]
    done = np.cumsum(work)
    ends = done + np.maximum.accumulate(earliest - (done - work))
    grown = np.append(
        np.flatnonzero(again > 0), len(again)
    )  # np.interp needs increasing tokens
    x, y = upto_tokens[grown], upto_delay[grown]
    out[rows] = np.interp(ends, x, y) - np.interp(ends - work, x, y)
    return out


def _copy_delay(table: pl.DataFrame, events: pl.DataFrame, steps: pl.DataFrame) -> np.ndarray:
    """Request-seconds that others stalled for the copies of each row of `table`."""
    per_step = steps.select(
        "step",
        per_byte=pl.when(pl.col("swap_out_bytes") + pl.col("swap_in_bytes") > 0).then(
            pl.col("stall_s") / (pl.col("swap_out_bytes") + pl.col("swap_in_bytes"))
        ),
        num_running="num_running",
    )
    copies = (
        events.with_columns(kind=_KIND)
        .filter(pl.col("kind").is_in(["preempt", "swap_out", "swap_in"]))
        .with_columns(nth=(pl.col("kind") == "preempt").cum_sum().over("request_id"))
        .filter(pl.col("kind") != "preempt")
        .join(per_step, on="step", how="left")
    )
    # a request on its way in runs in that step already, and is not one of the others
    others = (
        pl.when(pl.col("kind") == "swap_in")
        .then(pl.col("num_running") - 1)
        .otherwise("num_running")
    )
    delays = copies.group_by("request_id", "nth").agg(
        copy_s=(pl.col("bytes") * pl.col("per_byte") * others.clip(lower_bound=0)).sum()
    )
    joined = table.select("request_id", "nth").join(
        delays, on=["request_id", "nth"], how="left", maintain_order="left"
    )
    return np.asarray(joined["copy_s"].fill_null(0.0).to_numpy())


def top_victims(table: pl.DataFrame, limit: int = 10) -> pl.DataFrame:
    """Requests preempted most: request_id, num_preemptions, recomputed_tokens, bytes, away_s, induced_s.

    table: as from `preemptions`. Ties by time away, then id.
    """
    return _top(table, "request_id", limit)


def top_aggressors(table: pl.DataFrame, limit: int = 10) -> pl.DataFrame:
    """Requests whose need of blocks evicted others most; columns as for `top_victims`, the sums
    being those of their victims. Preemptions of a request by itself are left out."""
    others = table.filter(
        pl.col("cause_request_id").is_not_null()
        & (pl.col("cause_request_id") != pl.col("request_id"))
    )
    return _top(others, "cause_request_id", limit).rename({"cause_request_id": "request_id"})


def _top(table: pl.DataFrame, key: str, limit: int) -> pl.DataFrame:
    sums = [pl.col(c).sum() for c in ("recomputed_tokens", "bytes", "away_s", "induced_s")]
    return (
        table.group_by(key)
        .agg(pl.len().alias("num_preemptions"), *sums)
        .sort("num_preemptions", "away_s", key, descending=[True, True, False])
        .head(limit)
    )


def cascades(table: pl.DataFrame) -> pl.DataFrame:
    """Cascades of two or more preemptions: cascade_id, first_step, last_step, start_s,
    num_preemptions, num_victims, recomputed_tokens, bytes; the largest first."""
    return (
        table.filter(pl.col("cascade_size") > 1)
        .group_by("cascade_id")
        .agg(
            first_step=pl.col("step").min(),
            last_step=pl.col("step").max(),
            start_s=pl.col("t_s").min(),
            num_preemptions=pl.len(),
            num_victims=pl.col("request_id").n_unique(),
            recomputed_tokens=pl.col("recomputed_tokens").sum(),
            bytes=pl.col("bytes").sum(),
        )
        .sort("num_preemptions", "cascade_id", descending=[True, False])
    )
