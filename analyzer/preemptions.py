"""Every preemption as a row: who, why, what it cost, whom else it slowed down.

It knows `events` and `steps`. The four costs are kept apart, since they answer different questions:

- **direct cost** (`direct_cost_s`): what the mode used did cost alone, others left out. Recompute:
  what all lost tokens would take times the share of them that really was computed again; or, where a
  measured run's own steps tell the price of a token (`measured.py`), that price. Swap:
  time on the link of the copies that were made, out and back, by their own events; null where those
  tell no time. Offload: time on the link of what was loaded from the host cache, and the recompute
  of what was in neither cache; copies to the host are made as blocks fill, preempted or not, and are
  not in it. A blocking copy stops the engine for its time, an asynchronous one runs beside it:
  `stalled_s` is what the engine stood still for.
- **uncached cost** (`uncached_cost_s`): the recompute had nothing been found in any cache; null for
  swap.
- **estimates** (`recompute_est_s`, `swap_est_s`): engine time that either way was expected to cost
  when the victim was chosen; what mode cheapest compares (`choices`).
- **wasted work** (`recomputed_tokens`): tokens whose KV had been computed, was lost, and was not
  found in the prefix cache nor restored from the host on resumption. 0 for swap.
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

from dataclasses import dataclass

import numpy as np
import polars as pl

from analyzer.lifecycles import away_intervals, copies

_KIND = pl.col("kind").cast(pl.String)
_SWAP = pl.col("mode_used").cast(pl.String) == "swap"
_OFFLOAD = pl.col("mode_used").cast(pl.String) == "offload"
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
    "uncached_cost_s",
    "recompute_est_s",
    "swap_est_s",
    "resume_step",
    "resume_s",
    "away_s",
    "since_resume_s",
    "found_tokens",
    "restored_tokens",
    "recomputed_tokens",
    "stalled_s",
    "induced_s",
    "cascade_id",
    "cascade_size",
)


def preemptions(
    events: pl.DataFrame,
    steps: pl.DataFrame,
    *,
    cascade_steps: int = 4,
    token_s: float | None = None,
) -> pl.DataFrame:
    """One row a preemption, in event order, with COLUMNS.

    token_s: as from `measured.recompute_token_s`; None: costs of recomputing are the engine's estimates.

    tokens: computed tokens lost or moved; bytes: copied out; nth: 1 for a victim's first;
    stalled_s: of the step's stall, the share of its copies (0 for recompute);
    since_resume_s: time since it last came back (null for the first), short where it thrashes;
    found_tokens: of them, those in the GPU's prefix cache on resumption; restored_tokens: loaded
    from the host cache; resume_*, away_s and these, recomputed_tokens: null where it never ran again;
    cascade_id: preemptions no more than `cascade_steps` steps after the one before share one, from
    0; cascade_size: how many share it.
    """
    events, ids = _coded(events)
    table = _costs(events, token_s).with_columns(
        away_s=pl.col("resume_s") - pl.col("t_s"),
        since_resume_s=pl.col("t_s") - pl.col("resume_s").shift(1).over("request_id"),
        cascade_id=(pl.col("step").diff().fill_null(0) > cascade_steps).cum_sum(),
    )
    table = table.with_columns(cascade_size=pl.len().over("cascade_id"))
    if table.is_empty() or steps.is_empty():
        table = table.with_columns(stalled_s=0.0, induced_s=0.0)
    else:
        copies = _copy_delay(table, events, steps)
        induced = pl.Series(_recompute_delay(table, steps)) + copies["induced_s"]
        table = table.with_columns(copies["stalled_s"], induced_s=induced)
    return table.with_columns(request_id=ids.gather(table["request_id"])).select(COLUMNS)


def preemption_cost(events: pl.DataFrame, token_s: float | None = None) -> float | None:
    """Seconds that all preemptions cost directly (`direct_cost_s`, summed); 0 where there is none.
    token_s: as for `preemptions`.

    None where a preemption's cost is not known, since a sum of the others would be too low.
    """
    costs = _costs(_coded(events)[0], token_s)["direct_cost_s"]
    return None if costs.null_count() else float(costs.sum())


def _coded(events: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """The events that preemptions rest on, with numbers in place of request ids, which are found and
    joined much faster; and the id of each number."""
    own = events.with_columns(kind=_KIND).filter(
        pl.col("kind").is_in(["preempt", "resume", "swap_out", "swap_in", "load"])
    )
    ids = own["request_id"].unique(maintain_order=True)
    numbers = pl.DataFrame({"request_id": ids}).with_row_index("number")
    coded = own.join(numbers, on="request_id", how="left", maintain_order="left")
    return coded.with_columns(request_id="number").drop("number"), ids


def _costs(events: pl.DataFrame, token_s: float | None = None) -> pl.DataFrame:
    """The preempt events with nth, resume_*, what was found, restored and recomputed, direct costs.

    The share of tokens scales the whole estimate. That is exact for linear layers, and an
    approximation for attention: each recomputed token attends to all tokens before it, so the
    tokens at the end, which the cache is the likelier to lack, cost more than their share.
    A victim that never came back has computed nothing again. With `token_s` every token has that price.
    """
    own = events.with_columns(kind=_KIND).filter(pl.col("kind") == "preempt")
    away = away_intervals(events).select(
        "nth", "resume_step", "resume_s", "found_tokens", "restored_tokens"
    )
    copied = (
        copies(events, "swap_out", "swap_in", "load")
        .join(
            own.select("request_id", "mode_used", nth=away["nth"]),
            on=["request_id", "nth"],
            how="left",
            suffix="_of_victim",
        )
        # what a block is copied out for as it fills belongs to no preemption
        .filter(
            (pl.col("kind") == "load")
            | (pl.col("mode_used_of_victim").cast(pl.String) == "swap")
        )
        .group_by("request_id", "nth")
        .agg(
            copied_s=pl.when(pl.col("cost_s").count() == pl.len()).then(pl.col("cost_s").sum())
        )
    )
    kept = pl.col("found_tokens") + pl.col("restored_tokens")
    again = (pl.col("tokens") - kept).clip(lower_bound=0)
    # offload: only the estimate is told, in which tokens expected in the prefix cache are left out
    estimated = _OFFLOAD & pl.col("cost_s").is_null()
    table = (
        pl.concat([own, away], how="horizontal")
        .join(copied, on=["request_id", "nth"], how="left", maintain_order="left")
        .with_columns(
            recomputed_tokens=pl.when(pl.col("resume_step").is_not_null()).then(
                pl.when(_SWAP).then(0).otherwise(again)
            ),
            uncached_cost_s=pl.when(~(_SWAP | estimated)).then(
                pl.coalesce("cost_s", "recompute_est_s")
            ),
        )
    )
    if token_s is not None:
        by_tokens = pl.when(~_SWAP).then(pl.col("tokens") * token_s)
        estimated, table = pl.lit(False), table.with_columns(uncached_cost_s=by_tokens)
    told_s = pl.coalesce("uncached_cost_s", "recompute_est_s")
    told_of = pl.col("tokens") - pl.when(estimated).then(pl.col("found_tokens")).fill_null(0)
    share = pl.when(told_of > 0).then(pl.col("recomputed_tokens").fill_null(0) / told_of)
    recompute_s = told_s * share.fill_null(0.0)
    loaded_s = pl.when(pl.col("restored_tokens") > 0).then("copied_s").otherwise(0.0)
    return table.with_columns(
        direct_cost_s=pl.when(_SWAP)
        .then("copied_s")
        .when(_OFFLOAD)
        .then(recompute_s + loaded_s)
        .otherwise(recompute_s)
    )


@dataclass(frozen=True)
class Choices:
    """What mode cheapest chose. num_swapped, num_recomputed: victims by the way used; num_host_full:
    of the recomputed, those whose swap was estimated cheaper, so that the host had no room;
    used_est_s, other_est_s: estimates of the ways used and of the others, summed; None where one
    is not known.
    """

    num_swapped: int
    num_recomputed: int
    num_host_full: int
    used_est_s: float | None
    other_est_s: float | None


def choices(events: pl.DataFrame) -> Choices | None:
    """What mode cheapest chose in a run; None where no victim was asked to be preempted by it."""
    asked = events.filter(
        (_KIND == "preempt") & (pl.col("mode_asked").cast(pl.String) == "cheapest")
    )
    if asked.is_empty():
        return None
    recompute_s, swap_s = pl.col("recompute_est_s"), pl.col("swap_est_s")
    row = asked.select(
        swapped=_SWAP.sum(),
        full=(~_SWAP & (swap_s < recompute_s)).sum(),
        known=(recompute_s.is_not_null() & swap_s.is_not_null()).all(),
        used=pl.when(_SWAP).then(swap_s).otherwise(recompute_s).sum(),
        other=pl.when(_SWAP).then(recompute_s).otherwise(swap_s).sum(),
    ).row(0, named=True)
    sums = (row["used"], row["other"]) if row["known"] else (None, None)
    return Choices(
        int(row["swapped"]), asked.height - int(row["swapped"]), int(row["full"]), *sums
    )


def _recompute_delay(table: pl.DataFrame, steps: pl.DataFrame) -> np.ndarray:
    """Request-seconds by which recomputing lengthened steps of others, per row of `table`."""
    out = np.zeros(table.height)
    rows, begins, ends = _laid_out(table, steps)
    if not len(rows):
        return out
    number, again = _recomputing(steps)  # nothing else has a share
    own = steps.select(
        "prefill_tokens", "decode_tokens", "duration_s", "stall_s", "num_running"
    )[number]
    total = again + own["prefill_tokens"].to_numpy() + own["decode_tokens"].to_numpy()
    busy = np.maximum(own["duration_s"].to_numpy() - own["stall_s"].to_numpy(), 0.0)
    others = np.maximum(own["num_running"].to_numpy() - 1, 0)
    x, y = (
        np.concatenate([[0.0], np.cumsum(v)]) for v in (again, again / total * busy * others)
    )
    out[rows] = np.interp(ends, x, y) - np.interp(begins, x, y)
    return out


def _recomputing(steps: pl.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the steps that recomputed tokens, and how many each: of many steps these are few."""
    again = steps["recomputed_tokens"].to_numpy()
    rows = np.flatnonzero(again > 0)
    return rows, again[rows].astype(np.float64)


def _laid_out(
    table: pl.DataFrame, steps: pl.DataFrame
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of `table` that computed tokens again, and the first and last of all recomputed tokens
    of the run that were theirs: lost tokens are laid over the recomputed tokens of the steps from
    the resumption on, first come first served where several victims come back at once."""
    back = table["resume_step"]
    rows = np.flatnonzero(
        (back.is_not_null() & (table["recomputed_tokens"] > 0).fill_null(False)).to_numpy()
    )
    if not len(rows) or steps.is_empty():
        return rows[:0], np.empty(0), np.empty(0)
    rows = rows[np.argsort(back.to_numpy()[rows], kind="stable")]
    number, again = _recomputing(steps)
    upto = np.concatenate([[0.0], np.cumsum(again)])
    work = table["recomputed_tokens"].to_numpy()[rows].astype(np.float64)
    came = np.searchsorted(steps["step"].to_numpy(), back.to_numpy()[rows])
    earliest = upto[np.searchsorted(number, came)]
    done = np.cumsum(work)
    ends = done + np.maximum.accumulate(earliest - (done - work))
    return rows, ends - work, ends


def recompute_steps(table: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """again_first_step, again_last_step of each row of `table`: the steps between which its lost
    tokens were computed again, as `induced_s` counts them; null where none were, or the run ended
    before. table: as from `preemptions`."""
    first, last = (np.full(table.height, -1, dtype=np.int64) for _ in range(2))
    rows, begins, ends = _laid_out(table, steps)
    if len(rows):
        of_step, again = _recomputing(steps)
        upto = np.cumsum(again)
        inside = ends <= (upto[-1] if len(upto) else 0.0)
        number = steps["step"].to_numpy()[of_step]
        first[rows[inside]] = number[np.searchsorted(upto, begins[inside], side="right")]
        last[rows[inside]] = number[np.searchsorted(upto, ends[inside], side="left")]
    found = pl.DataFrame({"again_first_step": first, "again_last_step": last})
    return found.select(pl.when(pl.all() >= 0).then(pl.all()))


def _copy_delay(table: pl.DataFrame, events: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """stalled_s and induced_s of each row of `table`: how long its copies stopped the engine, and
    the request-seconds that others lost by that."""
    moved = pl.col("swap_out_bytes") + pl.col("swap_in_bytes")
    per_step = steps.filter(moved > 0).select(
        "step", "num_running", per_byte=pl.col("stall_s") / moved
    )
    # a request on its way in runs in that step already, and is not one of the others
    others = (
        pl.when(pl.col("kind") == "swap_in")
        .then(pl.col("num_running") - 1)
        .otherwise("num_running")
    )
    stalled = pl.col("bytes") * pl.col("per_byte")
    delays = (
        copies(events, "swap_out", "swap_in")
        .join(per_step, on="step", how="left")
        .group_by("request_id", "nth")
        .agg(
            stalled_s=stalled.sum(),
            induced_s=(stalled * others.clip(lower_bound=0)).sum(),
        )
    )
    return (
        table.select("request_id", "nth", "mode_used")
        .join(delays, on=["request_id", "nth"], how="left", maintain_order="left")
        .select(pl.when(_SWAP).then(pl.col("stalled_s", "induced_s")).fill_null(0.0))
    )


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
