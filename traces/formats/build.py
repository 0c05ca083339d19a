"""From the rows of a file to the Workload of those that can be replayed.

Knows windows and unique ids. Knows no file format.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import polars as pl

from traces.errors import WorkloadError
from traces.formats.figures import Figures, aside_reasons, dropped, figures, nothing_left
from traces.formats.raw import RawTrace
from traces.workload import ReadReport, Workload, make_workload

WORKLOAD_ROLES = (
    "request_id",
    "prompt_tokens",
    "output_tokens",
    "priority",
    "prefix_ids",
    "prefix_tokens",
    "session_id",
    "arrival_step",
    "abort_step",
    "abort_s",
)


def to_workload(
    raw: RawTrace, name: str, window_s: tuple[float, float | None] | None = None
) -> Workload:
    """The Workload of the rows that can be replayed. Raises WorkloadError when none is left.

    window_s: only arrivals in [start, end) seconds after the first, so that a part of a very large
    trace costs only its own memory.
    """
    reasons = aside_reasons(name, raw)
    seen = figures(raw)
    keep = reasons.is_null()
    if not keep.any():
        raise WorkloadError(name, "", *nothing_left(raw.frame.height, dropped(reasons)))
    rows = raw.frame.filter(keep)
    if window_s is not None:
        rows = _windowed(rows, name, window_s)
    if "request_id" in rows.columns:
        rows, note = _unique_ids(rows)
        raw = raw.with_notes(note)
    report = ReadReport(
        format=raw.format,
        rows_read=raw.frame.height,
        dropped=dropped(reasons),
        out_of_order=seen.out_of_order,
        duplicate_timestamps=seen.duplicate_timestamps,
        first_s=seen.first_s,
        time_unit=raw.time_unit,
        columns=raw.columns,
        notes=(*raw.notes, *_order_note(seen)),
    )
    columns = {r: rows[r] for r in ("arrival_s", *WORKLOAD_ROLES) if r in rows.columns}
    return make_workload(
        columns,
        name=name,
        report=report,
        prefix_block_tokens=raw.prefix_block_tokens,
        estimated=raw.estimated,
    )


def _windowed(
    rows: pl.DataFrame, name: str, window_s: tuple[float, float | None]
) -> pl.DataFrame:
    start, end = window_s
    since = pl.col("arrival_s") - pl.col("arrival_s").min()
    keep = since >= start if end is None else (since >= start) & (since < end)
    cut = rows.filter(keep)
    if cut.is_empty():
        span = float(np.ptp(rows["arrival_s"].to_numpy()))
        until = "the end" if end is None else f"{end:g} s"
        raise WorkloadError(
            name,
            "",
            f"no request arrives between {start:g} s and {until}",
            f"The trace spans 0 to {span:g} s: choose a window inside it.",
        )
    return cut


def _order_note(seen: Figures) -> Iterable[str]:
    if seen.out_of_order:
        yield f"{seen.out_of_order:,} rows stood before an earlier arrival: sorted by arrival, ties kept in file order."


def _unique_ids(rows: pl.DataFrame) -> tuple[pl.DataFrame, str]:
    """Ids made unique (missing ones numbered, repeated ones given a suffix), and a note if so."""
    ids = rows["request_id"].cast(pl.String)
    if ids.null_count() == 0 and ids.n_unique() == len(ids):
        return rows, ""
    number = pl.int_range(pl.len()).cast(pl.String)
    filled = pl.coalesce(pl.col("request_id").cast(pl.String), pl.lit("row-") + number)
    rows = rows.with_columns(filled.alias("request_id"))
    repeat = pl.int_range(pl.len()).over("request_id")
    fresh = (
        pl.when(repeat == 0)
        .then("request_id")
        .otherwise(pl.col("request_id") + pl.lit("#") + (repeat + 1).cast(pl.String))
    )
    rows = rows.with_columns(fresh.alias("request_id"))
    if rows["request_id"].n_unique() < rows.height:
        rows = rows.with_columns(
            (pl.col("request_id") + pl.lit("@") + number).alias("request_id")
        )
    return rows, "Request ids were missing or repeated: they were made unique with a suffix."
