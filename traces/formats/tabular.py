"""Columns out of CSV, JSON lines, JSON and Parquet files, as numbers, with exact faults.

Knows how counts, times, ids and text are written in cells. Files are read lazily with polars: only
the columns asked for, decompressed on the way, so millions of rows need no more memory than their
numbers. What polars cannot read strictly is read again record by record, to name the row at fault.
"""

from __future__ import annotations

import glob
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from polars.exceptions import PanicException, PolarsError

from traces.errors import WorkloadError
from traces.formats import times
from traces.formats.cells import (
    COUNT,
    IDS,
    INTEGER,
    NUMBER,
    TEXT,
    TIME,
    convert,
    id_list,
    shown,
    whole_numbers,
)
from traces.formats.json_records import nested_value, records
from traces.formats.source import Source, reading, utf8_copy
from traces.formats.times import TimePlan

SAMPLE_ROWS = 1_000


@dataclass(frozen=True)
class Loaded:
    """Columns by role, in file order; arrival_s relative to origin_s, in seconds.

    epoch_s: for dates, the same origin in seconds since 1970.
    """

    frame: pl.DataFrame
    origin_s: float
    plan: TimePlan | None
    epoch_s: float | None = None


def load(
    source: Source,
    columns: Mapping[str, str],
    kinds: Mapping[str, str],
    *,
    time_unit: str | None = None,
) -> Loaded:
    """The named columns of a file. columns: role -> column; kinds: role -> TIME, COUNT, ...

    A role of kind TIME must be called arrival_s. Blank lines are skipped. A cell that is not what
    its kind says raises WorkloadError with its row and column.
    """
    try:
        if source.shape == "json":
            lazy = _scan_json(source, columns, kinds)
        elif source.shape == "parquet":
            lazy = pl.scan_parquet(source.path, glob=False)
        else:
            lazy = _scan_csv(source)
    except (PolarsError, OSError, PanicException) as e:
        raise _table_error(source, e) from e
    picked = lazy.select([_field(source, c).alias(r) for r, c in columns.items()])
    frame, plan = _collect(source, picked, columns, kinds, time_unit)
    return _finish(source, frame, columns, kinds, plan)


def _field(source: Source, column: str) -> pl.Expr:
    """A column, or in Parquet a field of a struct by its dotted name."""
    if source.shape != "parquet" or column not in source.fields:
        return pl.col(column)
    first, *rest = column.split(".")
    out = pl.col(first)
    for name in rest:
        out = out.struct.field(name)
    return out


def _scan_csv(source: Source) -> pl.LazyFrame:
    old_mac = "\r" in source.head and "\n" not in source.head
    if source.encoding not in ("utf-8", "utf-8-sig") or old_mac:
        try:
            with utf8_copy(source) as copy, reading(source):
                return _csv(copy.name, source).collect().lazy()
        except (PolarsError, PanicException) as e:
            raise _table_error(source, e) from e
    return _csv(source.path, source)


def _csv(path: str | Path, source: Source) -> pl.LazyFrame:
    return pl.scan_csv(
        path,
        separator=source.delimiter,
        skip_lines=source.skip_lines,
        infer_schema=False,
        with_column_names=_strip_names,
        glob=False,  # a file may be called a*b.csv
    )


def _strip_names(names: list[str]) -> list[str]:
    """Column names without blanks around them; a repeated name is marked, as polars marks it."""
    out: list[str] = []
    for n in (n.strip().strip("\ufeff").lstrip("# ") for n in names):
        out.append(n if n not in out else f"{n}_duplicated_{out.count(n)}")
    return out


def _scan_json(
    source: Source, columns: Mapping[str, str], kinds: Mapping[str, str]
) -> pl.LazyFrame:
    """Typed by the first record; where a record differs in type, everything as text instead."""
    wanted = {c: _json_type(source.first.get(c), kinds[r]) for r, c in columns.items()}
    if any(kinds[r] == IDS and source.first.get(c) is None for r, c in columns.items()):
        wanted |= {c: pl.List(pl.UInt64) for r, c in columns.items() if kinds[r] == IDS}
    dotted = any(c not in source.first and "." in c for c in columns.values())
    odd_ids = any(
        kinds[r] == IDS and not isinstance(source.first.get(c), list | str | None)
        for r, c in columns.items()
    )
    if source.lines and source.encoding == "utf-8" and not dotted and not odd_ids:
        try:
            one = glob.escape(str(source.path))  # it would take a*b.jsonl for a pattern
            return pl.scan_ndjson(one, schema=wanted).collect(engine="streaming").lazy()
        except (PolarsError, OSError, PanicException):
            pass  # the slow way below reads what is odd and names what is wrong
    return _json_as_text(source, columns, kinds)


def _json_type(value: Any, kind: str) -> Any:
    if kind == IDS and isinstance(value, list):
        return (
            pl.List(pl.UInt64)
            if all(isinstance(v, int) and v >= 0 for v in value)
            else pl.List(pl.String)
        )
    if value is None and kind in (COUNT, INTEGER, NUMBER):
        return pl.Float64
    if kind == TEXT or isinstance(value, bool) or not isinstance(value, int | float):
        return pl.String
    # A float takes whole numbers and fractions alike; what it would round stays an integer.
    return pl.Int64 if isinstance(value, int) and 2**53 < abs(value) < 2**63 else pl.Float64


def _json_as_text(
    source: Source, columns: Mapping[str, str], kinds: Mapping[str, str]
) -> pl.LazyFrame:
    cells: dict[str, list[Any]] = {c: [] for c in columns.values()}
    ids = {columns[r] for r, k in kinds.items() if k == IDS and r in columns}
    for place, record in records(source):
        if not isinstance(record, dict):
            raise source.error(
                place,
                f"a {_kind_of(record)} stands where a record should",
                "Give one JSON object a request.",
            )
        for c, out in cells.items():
            value = nested_value(record, c)
            out.append(id_list(source, place, c, value) if c in ids else _as_text(value))
    types = {c: pl.List(pl.UInt64) if c in ids else pl.String for c in cells}
    return pl.DataFrame(cells, schema=types).lazy()


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return repr(value)


def _kind_of(value: Any) -> str:
    return {type(None): "null", list: "list", str: "text", int: "number", float: "number"}.get(
        type(value), type(value).__name__
    )


def _collect(
    source: Source,
    picked: pl.LazyFrame,
    columns: Mapping[str, str],
    kinds: Mapping[str, str],
    time_unit: str | None,
) -> tuple[pl.DataFrame, TimePlan | None]:
    """Numbers where they parse at once; `role?` columns mark cells that held something else."""
    try:
        comma = source.shape == "csv" and source.delimiter == ";"
        schema = picked.collect_schema()
        sample = picked.head(SAMPLE_ROWS).collect()
        plan = _plan(source, sample, columns, kinds, time_unit)
        exprs: list[pl.Expr] = []
        for role in columns:
            exprs += convert(
                role, schema[role], kinds[role], plan, sample, comma, thorough=False
            )
        # an empty line of a CSV is nothing; a JSON record without known keys is counted by readers
        blank = pl.all_horizontal(pl.all().is_null()) & pl.lit(source.shape != "json")
        frame = picked.filter(~blank).select(exprs).collect(engine="streaming")
        doubtful = [r for r in columns if f"{r}?" in frame.columns and frame[f"{r}?"].any()]
        if doubtful:
            plan = _plan_of_all(picked, columns, kinds, plan)
            again = [
                e
                for r in columns
                for e in convert(r, schema[r], kinds[r], plan, sample, comma, thorough=True)
            ]
            frame = picked.filter(~blank).select(again).collect(engine="streaming")
            for role in doubtful:
                _raise_first_bad(
                    source, picked.filter(~blank), frame, role, columns[role], kinds[role]
                )
    except (PolarsError, OSError, PanicException) as e:
        raise _table_error(source, e) from e
    return frame.select(list(columns)), plan


def _plan(
    source: Source,
    sample: pl.DataFrame,
    columns: Mapping[str, str],
    kinds: Mapping[str, str],
    time_unit: str | None,
) -> TimePlan | None:
    role = next((r for r in columns if kinds[r] == TIME), None)
    if role is None:
        return None
    column = sample[role]
    if column.dtype == pl.Duration:
        return TimePlan("ns", "durations", integers=True)
    if column.dtype.is_temporal():
        zone = getattr(column.dtype, "time_zone", None)
        return TimePlan(times.TEXT_UNIT, "dates and times", ("typed",), zoned=zone is not None)
    numbers = column
    if column.dtype == pl.String:
        text = column.str.strip_chars()
        numbers = text.cast(pl.Float64, strict=False)
        given = text.is_not_null() & (text != "")
        if numbers.filter(given).null_count() * 2 > int(given.sum()):
            plan = times.plan_text(column)
            if plan is not None:
                return plan
    return TimePlan(
        time_unit or "", "given by the caller" if time_unit else "", integers=_whole(column)
    )


def _plan_of_all(
    picked: pl.LazyFrame,
    columns: Mapping[str, str],
    kinds: Mapping[str, str],
    plan: TimePlan | None,
) -> TimePlan | None:
    """The plan for dates as text from every row: the sample may not tell the day from the month."""
    if plan is None or not plan.is_text:
        return plan
    role = next(r for r in columns if kinds[r] == TIME)
    column = picked.select(role).collect()[role]
    return (times.plan_text(column) if column.dtype == pl.String else None) or plan


def _whole(column: pl.Series) -> bool:
    """Whether a sample holds integers that a float cannot (ns since 1970)."""
    if column.dtype != pl.String:
        return column.dtype.is_integer()
    text = column.str.strip_chars().drop_nulls()
    numbers = text.filter(text != "").cast(pl.Int64, strict=False)
    return numbers.null_count() == 0 and bool((numbers.abs() > 2**53).any())


def _raise_first_bad(
    source: Source, picked: pl.LazyFrame, frame: pl.DataFrame, role: str, column: str, kind: str
) -> None:
    bad = frame[f"{role}?"].arg_true()
    if not len(bad):
        return
    row = int(bad[0])
    cell = picked.select(role).slice(row, 1).collect().item()
    what = {TIME: "a time", COUNT: "a number of tokens", INTEGER: "a whole number"}.get(
        kind, "a number"
    )
    raise source.error(
        f"row {row + 1}, column {column}",
        f"{shown(cell)} is not {what}",
        "Correct or remove that row, or map another column.",
    )


def _table_error(source: Source, e: BaseException) -> WorkloadError:
    """What polars says of a broken table, with the line where it can be found."""
    text = " ".join(str(e).split())
    if (
        "unexpected end of file" in text
        or "zstd" in text.lower()
        or "incomplete" in text.lower()
        or "gzip header" in text
    ):
        fault = f"the {source.compression or 'file'} data is damaged or cut off"
        return source.error("", fault, "Copy or download the file again.")
    if source.shape == "csv" and "could not parse" in text:
        return source.error(
            "", "a quote is opened in it and never closed", "Close or remove the quote."
        )
    if source.shape == "csv":
        place, fault = _ragged_row(source)
        if fault:
            return source.error(place, fault, "Correct that row, or export the table again.")
    return source.error(
        "", f"the table cannot be read ({text[:200]})", "Export it again, or convert it to CSV."
    )


def _ragged_row(source: Source) -> tuple[str, str]:
    """The first row with more cells than the header, or text that is no UTF-8."""
    import csv

    width = len(source.columns)
    try:
        with source.open_text() as f:
            for row, cells in enumerate(csv.reader(f, delimiter=source.delimiter)):
                if len(cells) > width:
                    return (
                        f"row {row}",
                        f"it has {len(cells)} cells where the header has {width}",
                    )
    except UnicodeDecodeError:
        return "", "it is not text in UTF-8"
    except (csv.Error, EOFError, OSError) as e:
        return "", f"the CSV is damaged ({e})"
    return "", ""


def _finish(
    source: Source,
    frame: pl.DataFrame,
    columns: Mapping[str, str],
    kinds: Mapping[str, str],
    plan: TimePlan | None,
) -> Loaded:
    """Whole counts, relative times. Raises WorkloadError for fractions, NaN and infinite times."""
    if frame.is_empty():
        raise source.error(
            "", "it has a header but no rows", "Check the export and its filters."
        )
    out: list[pl.Series] = []
    origin, epoch = 0.0, None
    for role in columns:
        column = frame[role]
        if kinds[role] == TIME:
            column, origin, epoch, plan = _times(source, column, columns[role], plan)
        elif kinds[role] in (COUNT, INTEGER):
            column = whole_numbers(source, column, columns[role])
        out.append(column.alias(role))
    return Loaded(pl.DataFrame(out), origin, plan, epoch)


def _times(
    source: Source, column: pl.Series, name: str, plan: TimePlan | None
) -> tuple[pl.Series, float, float | None, TimePlan]:
    """(seconds since the first row, what the first row says, the same since 1970 for dates, plan)."""
    assert plan is not None
    epoch = None
    if plan.is_text:
        rel, epoch = times.relative_ns(column)
        origin = times.as_written(epoch, plan.zoned)
    else:
        if column.dtype.is_float():
            infinite = column.is_infinite().fill_null(False).arg_true()
            if len(infinite):
                row = int(infinite[0])
                raise source.error(
                    f"row {row + 1}, column {name}",
                    f"{column[row]} is not a time",
                    "Correct or remove the row.",
                )
            column = column.fill_nan(None)
        if not plan.unit:
            unit, why = times.guess_unit(column.drop_nulls().cast(pl.Float64).to_numpy(), name)
            plan = TimePlan(unit, why, integers=plan.integers)
        rel, origin = times.relative_numbers(column, plan.unit)
    series = pl.Series(np.asarray(rel, dtype=np.float64)).fill_nan(None)
    return series, origin, epoch, plan
