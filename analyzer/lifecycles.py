"""What state each request was in, from when to when: the rows of swim lanes.

It knows the order of `events` and three times of `requests`; it does not know costs.
"""

from __future__ import annotations

from typing import Any

import polars as pl

STATES = ("queued", "prefill", "decode", "preempted", "swapped")
_KIND = pl.col("kind").cast(pl.String)
_OPENS = {"arrive": "queued", "admit": "running", "resume": "running", "preempt": "preempted"}
_CLOSES = ("finish", "abort", "refuse")


def away_intervals(events: pl.DataFrame) -> pl.DataFrame:
    """One row a preemption, in event order: when the victim went and when it ran again.

    Columns: request_id, nth (1 for its first), preempt_step, preempt_s, mode_used, tokens (lost or
    moved), resume_step, resume_s, found_tokens (in the GPU's prefix cache on resumption),
    restored_tokens (loaded from the host cache before it); the last four are null where it never
    ran again.
    """
    nth = pl.int_range(1, pl.len() + 1).over("request_id")
    gone, back = (
        events.filter(_KIND.eq(kind)).with_columns(nth=nth) for kind in ("preempt", "resume")
    )
    gone = gone.select(
        "request_id", "nth", "mode_used", "tokens", preempt_step="step", preempt_s="t_s"
    )
    back = back.select(
        "request_id", "nth", resume_step="step", resume_s="t_s", found_tokens="tokens"
    )
    loaded = (
        copies(events, "load")
        .group_by("request_id", "nth")
        .agg(restored_tokens=pl.col("tokens").sum())
    )
    key: dict[str, Any] = {
        "on": ["request_id", "nth"], "how": "left", "maintain_order": "left",
    }  # fmt: skip
    restored = pl.when(pl.col("resume_step").is_not_null()).then(
        pl.col("restored_tokens").fill_null(0)
    )
    return (
        gone.join(back, **key)
        .join(loaded, **key)
        .select(
            "request_id",
            "nth",
            "preempt_step",
            "preempt_s",
            "mode_used",
            "tokens",
            "resume_step",
            "resume_s",
            "found_tokens",
            restored_tokens=restored,
        )
    )


def copies(events: pl.DataFrame, *kinds: str) -> pl.DataFrame:
    """The events of these kinds of copies, each with the nth preemption of its request; those before
    a first preemption are left out."""
    marked = events.with_columns(kind=_KIND)
    if not marked["kind"].is_in(kinds).any():
        return marked.head(0).with_columns(nth=pl.lit(0, dtype=pl.Int64))
    return (
        marked.filter(pl.col("kind").is_in(["preempt", *kinds]))
        .with_columns(
            nth=(pl.col("kind") == "preempt").cum_sum().over("request_id").cast(pl.Int64)
        )
        .filter((pl.col("kind") != "preempt") & (pl.col("nth") > 0))
    )


def lifecycles(events: pl.DataFrame, requests: pl.DataFrame, end_s: float) -> pl.DataFrame:
    """Intervals without gaps per request: request_id, state, start_s, end_s, is_open.

    States: queued until first admitted; prefill until the first output token and decode after it;
    preempted (KV dropped on the GPU) or swapped (KV in host memory, or on its way back) until resumed. Time
    spent computing lost KV again after a resumption counts as the state that it serves.
    end_s: end of the run, which closes what is still open (is_open is then true). Rows are ordered
    by request (first event first) and time; intervals of no length are left out.
    """
    times = requests.select("request_id", "first_token_s", "finish_s")
    changes = (
        events.with_columns(kind=_KIND)
        .with_row_index("row")
        .filter(pl.col("kind").is_in([*_OPENS, *_CLOSES]))
        .join(times, on="request_id", how="left", maintain_order="left")
        .with_columns(
            t_s=pl.when(pl.col("kind").is_in(["finish", "abort"]))
            .then(pl.coalesce("finish_s", "t_s"))
            .otherwise("t_s"),
            first=pl.col("row").min().over("request_id"),
        )
        .with_columns(next_s=pl.col("t_s").shift(-1).over("request_id"))
        .filter(~pl.col("kind").is_in(_CLOSES))
    )
    intervals = changes.select(
        "request_id",
        "first",
        "first_token_s",
        state=pl.when(
            (pl.col("kind") == "preempt") & (pl.col("mode_used").cast(pl.String) == "swap")
        )
        .then(pl.lit("swapped"))
        .otherwise(pl.col("kind").replace_strict(_OPENS, return_dtype=pl.String)),
        start_s="t_s",
        is_open=pl.col("next_s").is_null(),
        end_s=pl.col("next_s").fill_null(end_s),
    )
    return _split_running(intervals)


def _split_running(intervals: pl.DataFrame) -> pl.DataFrame:
    """Running intervals cut at the first token into prefill and decode."""
    running = pl.col("state") == "running"
    cut = pl.col("first_token_s").fill_null(float("inf")).clip("start_s", "end_s")
    before = intervals.filter(running).with_columns(
        state=pl.lit("prefill"), end_s=cut, is_open=pl.col("is_open") & (cut == pl.col("end_s"))
    )
    after = intervals.filter(running).with_columns(state=pl.lit("decode"), start_s=cut)
    tidy = pl.concat([intervals.filter(~running), before, after])
    return (
        tidy.filter(pl.col("end_s") > pl.col("start_s"))
        .sort("first", "start_s", maintain_order=True)
        .select(
            "request_id", pl.col("state").cast(pl.Enum(STATES)), "start_s", "end_s", "is_open"
        )
    )
