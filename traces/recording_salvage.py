"""What can still be said about requests whose row was lost with a killed writer.

It derives request rows from events and steps only, and leaves null whatever those do not hold
(priority, first token). It does not know where the tables came from.
"""

from __future__ import annotations

import polars as pl

from traces.recording_laws import polars_type
from traces.schema import REQUESTS

_ENDS = {"finish": "finished", "abort": "aborted", "refuse": "refused"}


def rebuild_requests(
    events: pl.DataFrame, steps: pl.DataFrame, known: pl.Series
) -> pl.DataFrame:
    """Request rows, in order of first event, for ids that events name and `known` lacks.

    Columns of the contract's `requests`; priority, first_token_s, max_itl_s and
    recomputed_tokens are null, for events do not carry them. output_tokens is null until finished.
    Times of a finish are the end of its step where that step is still there.
    """
    kind = pl.col("kind").cast(pl.String)
    own = (
        events.filter(~pl.col("request_id").is_in(known.implode()))
        .join(
            steps.select("step", end_s=pl.col("t_start_s") + pl.col("duration_s")),
            on="step",
            how="left",
        )
        .with_columns(kind=kind, end_s=pl.coalesce("end_s", "t_s"))
    )

    def total(column: str, *kinds: str) -> pl.Expr:
        return pl.col(column).filter(pl.col("kind").is_in(kinds)).sum()

    def at(column: str, *kinds: str) -> pl.Expr:
        return pl.col(column).filter(pl.col("kind").is_in(kinds)).first()

    rows = own.group_by("request_id", maintain_order=True).agg(
        prompt_tokens=at("tokens", "arrive").replace(0, None),
        arrival_s=pl.coalesce(at("t_s", "arrive"), pl.col("t_s").min()),
        output_tokens=at("tokens", "finish"),
        first_scheduled_s=at("t_s", "admit"),
        finish_s=at("end_s", "finish", "abort"),
        num_preemptions=(pl.col("kind") == "preempt").sum(),
        cached_tokens=total("tokens", "admit", "resume"),
        restored_tokens=total("tokens", "load"),
        swapped_bytes=total("bytes", "swap_out", "swap_in", "load"),
        arrival_step=at("step", "arrive"),
        preempted_s=_away_s(),
        status=at("kind", *_ENDS).replace_strict(
            _ENDS, default="unfinished", return_dtype=pl.String
        ),
    )
    return rows.select(
        pl.col(c.name).cast(polars_type(c))
        if c.name in rows.columns
        else pl.lit(None, polars_type(c)).alias(c.name)
        for c in REQUESTS.columns
    )


def _away_s() -> pl.Expr:
    """Time between preemptions and the resumptions that followed, summed; the last may be open."""
    gone = pl.col("t_s").filter(pl.col("kind") == "preempt")
    back = pl.col("t_s").filter(pl.col("kind") == "resume")
    pairs = pl.min_horizontal(gone.len(), back.len())
    return back.head(pairs).sum() - gone.head(pairs).sum()
