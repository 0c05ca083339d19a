"""A Workload: requests as they were asked, one row a request, whatever file they came from.

It knows columns, order, checks, slicing and summary figures. It does not know file formats
(`formats/`), how to invent requests (`synthetic.py`) or what an engine does with them.

Prefixes. `prefix_ids` lists the hashes of the leading segments of the prompt; equal ids at equal
places, behind equal ids, mean equal tokens. A segment is `prefix_block_tokens` long, or, where
segments differ in length, as long as the same place of `prefix_tokens` says. What the segments do
not cover is unique to the request; a segment that runs past the prompt's end is cut there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl

from traces.errors import WorkloadError

MAX_TOKENS = 100_000_000  # a longer request is a unit error, not a request
_YEAR_S = 31_557_600.0
MAX_SPAN_S = 1_000 * _YEAR_S  # a longer workload is a slip in a rate

WORKLOAD_SCHEMA: dict[str, Any] = {
    "request_id": pl.String,
    "arrival_s": pl.Float64,  # since the first arrival; the earliest row is 0.0
    "prompt_tokens": pl.Int64,
    "output_tokens": pl.Int64,
    "priority": pl.Int64,  # smaller is more important, as in vLLM
    "prefix_ids": pl.List(pl.UInt64),  # empty: no known prefix
    "prefix_tokens": pl.List(pl.UInt32),  # empty: every segment has prefix_block_tokens
    "session_id": pl.String,  # nullable
    "arrival_step": pl.Int64,  # nullable: only step-indexed traces have it
    "abort_step": pl.Int64,  # nullable
    "abort_s": pl.Float64,  # nullable, since the first arrival
}
NULLABLE = ("session_id", "arrival_step", "abort_step", "abort_s")


@dataclass(frozen=True)
class ReadReport:
    """What a reader did with a file.

    format: its name; rows_read: rows or records that it holds; dropped: reason -> rows set aside;
    out_of_order: rows whose time is before the row above; duplicate_timestamps: requests less
    distinct arrival times; first_s: first time as the file counts it, in seconds (time of day in
    seconds for dated text without a zone is left to the reader's note); time_unit: "s", "ms", ...;
    columns: role -> column used, where a mapping was guessed; notes: sentences for the user.
    """

    format: str
    rows_read: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    out_of_order: int = 0
    duplicate_timestamps: int = 0
    first_s: float | None = None
    time_unit: str = "s"
    columns: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Workload:
    """Requests in order of arrival (ties keep the order of the file).

    table: columns of WORKLOAD_SCHEMA; prefix_block_tokens: length of a prefix segment, None where
    there are none or each says its own; concurrency: None, or for a closed loop the number of
    requests that are in the system at once (arrival_s is then all 0 and the run decides);
    estimated: made from telemetry, not recorded.
    """

    table: pl.DataFrame
    name: str
    report: ReadReport
    prefix_block_tokens: int | None = None
    concurrency: int | None = None
    estimated: bool = False

    def __len__(self) -> int:
        return self.table.height

    @property
    def digest(self) -> str:
        """32 hex digits that name the requests: same rows in the same order, same digest."""
        h = hashlib.blake2b(digest_size=16)
        for name in WORKLOAD_SCHEMA:
            column = self.table[name]
            if isinstance(column.dtype, pl.List):
                h.update(column.list.len().fill_null(0).to_numpy().tobytes())
                column = column.explode(empty_as_null=False, keep_nulls=False)
            if column.dtype == pl.String:
                h.update("\x1f".join(v or "" for v in column.to_list()).encode())
            else:
                h.update(column.is_null().to_numpy().tobytes())
                h.update(column.fill_null(0).to_numpy().tobytes())
        h.update(repr((self.prefix_block_tokens, self.concurrency)).encode())
        return h.hexdigest()

    @property
    def span_s(self) -> float:
        """Seconds between the first and the last arrival."""
        return float(self.table["arrival_s"].max() or 0.0) if len(self) else 0.0  # type: ignore[arg-type]

    def window(self, start_s: float, end_s: float | None) -> Workload:
        """Requests that arrive in [start_s, end_s), re-based to 0. Raises WorkloadError if none."""
        keep = pl.col("arrival_s") >= start_s
        if end_s is not None:
            keep &= pl.col("arrival_s") < end_s
        cut = self.table.filter(keep)
        if cut.is_empty():
            shown = "the end" if end_s is None else f"{end_s:g} s"
            raise WorkloadError(
                self.name,
                "",
                f"no request arrives between {start_s:g} s and {shown}",
                f"The trace spans 0 to {self.span_s:g} s: choose a window inside it.",
            )
        base = float(cut["arrival_s"][0])
        cut = cut.with_columns(pl.col("arrival_s") - base, pl.col("abort_s") - base)
        return replace(
            self,
            table=cut,
            name=f"{self.name} [{start_s:g}:{'' if end_s is None else f'{end_s:g}'}]",
        )

    def head(self, n: int) -> Workload:
        """The first n requests; all of them where there are no more."""
        n = min(n, len(self))
        return replace(self, table=self.table.head(n), name=f"{self.name} [first {n:,}]")

    def scale_rate(self, factor: float) -> Workload:
        """The same requests, arriving `factor` times as fast. Raises WorkloadError."""
        if not (factor > 0 and np.isfinite(factor)):
            raise WorkloadError(
                self.name,
                "rate scale",
                f"{factor!r} is not a positive number",
                "Give a factor such as 0.5 or 2.",
            )
        if factor == 1:
            return self
        aborts = self.table["abort_s"].max()
        last = max(self.span_s, 0.0 if aborts is None else float(aborts))  # type: ignore[arg-type]
        if not last / factor <= MAX_SPAN_S:
            raise WorkloadError(
                self.name,
                "rate scale",
                f"at {factor:g} times the rate it would last {last / factor / _YEAR_S:,.0f} years",
                "Give a larger factor, such as 0.5 or 2.",
            )
        return replace(
            self,
            table=self.table.with_columns(
                pl.col("arrival_s") / factor, pl.col("abort_s") / factor
            ),
            name=f"{self.name} x{factor:g}",
        )

    def spread_ticks(self, seed: int = 0) -> Workload:
        """Arrivals that share one clock tick, spread at random within that tick.

        For clocks coarser than the arrivals (Mooncake conversation: 3 s). The tick is the distance
        to the next distinct time (for the last: the median distance). Order within a tick is kept.
        """
        t = self.table["arrival_s"].to_numpy()
        ticks, index = np.unique(t, return_inverse=True)
        if len(ticks) < 2:
            return self
        gaps = np.diff(ticks)
        width = np.append(gaps, np.median(gaps))
        u = np.random.default_rng(seed).random(len(t))
        order = np.lexsort((u, index))  # within a tick, offsets in the order of the rows
        spread = ticks[index] + u[order] * width[index]
        table = self.table.with_columns(pl.Series("arrival_s", spread - spread[0]))
        return replace(self, table=table, name=f"{self.name} (spread)")


def make_workload(
    columns: Mapping[str, Any],
    *,
    name: str,
    report: ReadReport,
    prefix_block_tokens: int | None = None,
    concurrency: int | None = None,
    estimated: bool = False,
) -> Workload:
    """A checked Workload from columns in file order; needs arrival_s and both token counts.

    Sorts by arrival (stable), re-bases times to 0, fills what is missing. Counts inversions and
    duplicate times into the report unless the reader already did. Alters nothing it is given.

    Raises: WorkloadError with file, row, fault and remedy.
    """
    frame = pl.DataFrame({k: columns[k] for k in columns})
    n = frame.height
    if n == 0:
        raise WorkloadError(
            name,
            "",
            "no request is left to replay",
            "Check the file, its filters and the rows that were dropped.",
        )
    fill: list[Any] = []
    for col, dtype in WORKLOAD_SCHEMA.items():
        if col in frame.columns:
            fill.append(pl.col(col).cast(dtype, strict=True))
        elif col == "request_id":
            fill.append(pl.int_range(pl.len()).cast(pl.String).alias(col))
        elif col == "priority":
            fill.append(pl.lit(0, dtype=pl.Int64).alias(col))
        elif isinstance(dtype, pl.List):
            fill.append(pl.lit(pl.Series([[]], dtype=dtype)).first().alias(col))
        else:
            fill.append(pl.lit(None, dtype=dtype).alias(col))
    table = frame.select(fill)
    table = table.with_columns(
        pl.col("priority").fill_null(0), pl.col("prefix_ids", "prefix_tokens").fill_null([])
    )
    _check_rows(table, name, numbered="request_id" not in frame.columns)
    del frame
    times = table["arrival_s"].to_numpy()
    steps = np.diff(times)
    report = replace(
        report,
        out_of_order=report.out_of_order or int((steps < 0).sum()),
        duplicate_timestamps=report.duplicate_timestamps or n - len(np.unique(times)),
        first_s=report.first_s if report.first_s is not None else float(times.min()),
        rows_read=report.rows_read or n,
    )
    base = float(times.min())
    if (steps < 0).any():
        table = table.sort("arrival_s", maintain_order=True)
    table = table.with_columns(pl.col("arrival_s") - base, pl.col("abort_s") - base)
    return Workload(table, name, report, prefix_block_tokens, concurrency, estimated)


def _check_rows(table: pl.DataFrame, name: str, *, numbered: bool) -> None:
    """Raise WorkloadError at the first row that no engine could be asked to run.

    numbered: the request ids were just counted up, so they are unique.
    """

    def first(mask: pl.Series) -> int | None:
        hit = mask.fill_null(True).arg_true()
        return int(hit[0]) if len(hit) else None

    checks = (
        (
            "arrival_s",
            ~table["arrival_s"].is_finite(),
            "is not a finite time",
            "Correct or remove the row.",
        ),
        (
            "prompt_tokens",
            table["prompt_tokens"] < 1,
            "has a prompt of less than one token",
            "Remove the row, or map the right column to prompt tokens.",
        ),
        (
            "output_tokens",
            table["output_tokens"] < 1,
            "asks for less than one output token",
            "Rows that failed or produced nothing cannot be replayed: remove them.",
        ),
        (
            "prompt_tokens",
            table["prompt_tokens"] > MAX_TOKENS,
            f"has a prompt of more than {MAX_TOKENS:,} tokens",
            "Check which column holds the prompt length, and its unit.",
        ),
        (
            "output_tokens",
            table["output_tokens"] > MAX_TOKENS,
            f"asks for more than {MAX_TOKENS:,} output tokens",
            "Check which column holds the output length, and its unit.",
        ),
    )
    for column, bad, fault, remedy in checks:
        row = first(bad)
        if row is not None:
            value = table[column][row]
            raise WorkloadError(
                name, f"row {row + 1}, {column}", f"{value!r}: the request {fault}", remedy
            )
    refuse_early_aborts(table, name)
    if numbered:
        return
    dup = table["request_id"].is_duplicated()
    row = first(dup | table["request_id"].is_null())
    if row is not None:
        raise WorkloadError(
            name,
            f"row {row + 1}, request_id",
            f"the id {table['request_id'][row]!r} is missing or occurs more than once",
            "Make request ids unique, or leave the column out and rows are numbered.",
        )


def refuse_early_aborts(table: pl.DataFrame, name: str, keep: pl.Series | None = None) -> None:
    """Raise WorkloadError at the first row (of those in the mask `keep`) whose abort cannot be.

    Of times only. A step-indexed trace is a script of calls for an engine: there an abort that comes
    before its request finds nothing to abort, as in vLLM, and is no fault.
    """
    faults: list[tuple[str, pl.Series, str]] = []
    if {"abort_s", "arrival_s"} <= set(table.columns):
        abort_s = table["abort_s"].cast(pl.Float64)
        faults = [
            ("abort_s", abort_s < table["arrival_s"], "is aborted before it arrives"),
            ("abort_s", ~abort_s.is_finite(), "has no finite time of its abort"),
        ]
    for column, bad, fault in faults:
        hit = (bad.fill_null(False) if keep is None else bad.fill_null(False) & keep).arg_true()
        if len(hit):
            row = int(hit[0])
            raise WorkloadError(
                name,
                f"row {row + 1}, {column}",
                f"{table[column][row]!r}: the request {fault}",
                "Correct or remove the row, or check the unit of the abort.",
            )


def token_summary(values: np.ndarray) -> dict[str, float]:
    """min, p50, p90, p99, max, mean, sum of token counts; linear percentiles. Empty: {}."""
    if len(values) == 0:
        return {}
    p50, p90, p99 = np.percentile(values, [50, 90, 99])
    return {
        "min": float(values.min()),
        "p50": float(p50),
        "p90": float(p90),
        "p99": float(p99),
        "max": float(values.max()),
        "mean": float(values.mean()),
        "sum": float(values.sum()),
    }
