"""Samples of a log in columns, and fewer of them where there are too many to keep.

Of samples that follow each other, in one rank, one is kept: the fullest, with what it says. Counts of
the time between samples are added up over those that it stands for, rates are their mean, so that sums and
the highest usage stay what they were.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from traces.telemetry_laws import polars_schema
from traces.telemetry_schema import SAMPLES

MAX_SAMPLES = 131_072
ROWS_PER_CHUNK = 8192
# columns that say something of the time since the sample before: their sums are kept
SUMMED = (
    "interval_s", "num_preempted", "recomputed_tokens", "prompt_tokens", "prompt_computed_tokens",
    "prompt_cached_tokens", "prompt_external_tokens", "generation_tokens", "iteration_tokens",
    "prefix_lookups", "prefix_query_tokens", "prefix_hit_tokens", "resumed_lookups",
    "resumed_query_tokens", "resumed_hit_tokens", "external_query_tokens", "external_hit_tokens",
    "external_resumed_query_tokens", "external_resumed_hit_tokens", "load_bytes", "store_bytes",
    "load_s", "store_s", "store_failures", "num_finished",
)  # fmt: skip
MEANS = ("prompt_tokens_per_s", "generation_tokens_per_s")
GREATEST = ("max_ttft_s", "max_itl_s")
_APART = ("_server", "engine_rank", "_clock")
_SCHEMA = polars_schema(SAMPLES) | {
    "_clock": pl.Int32(),
    "_s": pl.Float64(),
    "_server": pl.Int32(),
}
_LINES = {"line": pl.Int64, "text": pl.String}


class SampleColumns:
    """Rows go in, a frame comes out. rows: the last ones, that may still gain values; num: all that came;
    each: one of so many is kept."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.rows: list[dict[str, Any]] = []
        self.num = 0
        self.each = 1
        self._texts: list[tuple[int, str]] = []
        self._chunks: list[pl.DataFrame] = []
        self._lines: list[pl.DataFrame] = []

    def add(self, row: dict[str, Any]) -> None:
        """One sample; its "line" is the number of its line."""
        self.rows.append(row)
        self.num += 1
        if len(self.rows) >= ROWS_PER_CHUNK:
            self._pack(self.rows[:-1], int(self.rows[-1]["line"]))
            self.rows = self.rows[-1:]

    def add_line(self, number: int, text: str) -> None:
        """The text of a line that a sample was read in."""
        self._texts.append((number, text))

    def finish(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """(samples, lines) in the order in which they came."""
        self._pack(self.rows, None)
        self.rows = []
        frame = pl.concat(self._chunks, how="diagonal") if self._chunks else pl.DataFrame()
        return frame, pl.concat(self._lines) if self._lines else pl.DataFrame(schema=_LINES)

    def note(self) -> str:
        """A sentence on what was left out, "" where nothing was."""
        if self.each == 1:
            return ""
        return (
            f"{self.num:,} samples were read; of {self.each} that follow each other the fullest one is kept, with "
            "their counts added up"
        )

    def _pack(self, rows: list[dict[str, Any]], before: int | None) -> None:
        """Put rows into columns, and the texts of lines before that number."""
        if not rows:
            return
        names = {name for row in rows for name in row}
        chunk = pl.DataFrame(rows, schema={n: t for n, t in _SCHEMA.items() if n in names})
        texts = [t for t in self._texts if before is None or t[0] < before]
        self._texts = self._texts[len(texts) :]
        lines = pl.DataFrame(texts, schema=_LINES, orient="row")
        if self.each > 1:
            chunk = thin(chunk, self.each)
            lines = _of(lines, chunk)
        self._chunks.append(chunk)
        self._lines.append(lines)
        if sum(c.height for c in self._chunks) > self.most:
            frame = thin(pl.concat(self._chunks, how="diagonal"), 2)
            self.each *= 2
            self._lines = [_of(pl.concat(self._lines), frame)]
            self._chunks = [frame]


def thin(frame: pl.DataFrame, each: int) -> pl.DataFrame:
    """One row for so many of a rank that follow each other."""
    apart = [c for c in _APART if c in frame.columns]
    names = frame.columns
    usage = pl.col("kv_usage_frac").fill_null(-1.0) if "kv_usage_frac" in names else pl.lit(0.0)
    place = pl.int_range(pl.len()).over(apart) if apart else pl.int_range(pl.len())
    grouped = (
        frame.with_row_index("_row")
        .with_columns((place // each).alias("_group"), usage.alias("_usage"))
        .group_by([*apart, "_group"], maintain_order=True)
    )
    kept = grouped.agg(_one(c) for c in ("_row", *names) if c not in apart)
    return kept.sort("_row").select(names)


def _one(name: str) -> pl.Expr:
    """How a column's values become one."""
    column = pl.col(name)
    if name in SUMMED:
        return pl.when(column.count() > 0).then(column.sum()).alias(name)
    if name in MEANS:
        return column.mean()
    if name in GREATEST:
        return column.max()
    if name == "inferred":
        return column.explode().drop_nulls().unique(maintain_order=True)
    return column.sort_by("_usage", "_row").last()


def _of(lines: pl.DataFrame, frame: pl.DataFrame) -> pl.DataFrame:
    return lines.join(frame.select("line"), on="line", how="semi", maintain_order="left")
