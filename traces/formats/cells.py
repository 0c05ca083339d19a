"""What stands in a cell: counts, times, ids and text, as numbers.

Knows how tables and JSON write them. Knows neither files nor formats.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

import polars as pl

from traces.formats import times
from traces.formats.source import Source
from traces.formats.times import TimePlan

# Counts above this are no counts; they also would not fit what follows.
MAX_COUNT = 2**62
_U64 = 2**64
TIME, COUNT, INTEGER, TEXT, IDS, NUMBER = "time", "count", "integer", "text", "ids", "number"


def id_list(source: Source, place: str, column: str, value: Any) -> list[int] | None:
    """Ids as unsigned 64-bit numbers; text ids (and "1|2|3") are hashed or split."""
    if value is None:
        return None
    if isinstance(value, str):
        return split_ids(value)
    if not isinstance(value, list):
        raise source.error(
            f"{place}, {column}", f"{value!r} is not a list of ids", "Give a list, or 1|2|3."
        )
    return [id_number(v) for v in value]


def split_ids(text: str) -> list[int]:
    """Ids written as "1|2|3", "[1, 2, 3]" or "1 2 3"."""
    return [id_number(v) for v in re.split(r"[|,;\s]+", text.strip("[] \t")) if v]


def id_number(value: Any) -> int:
    """An id as an unsigned 64-bit number: itself, wrapped if negative; text is hashed."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value % _U64
    text = str(value).strip()
    if text.lstrip("-").isdigit():
        return int(text) % _U64
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def convert(
    role: str,
    dtype: Any,
    kind: str,
    plan: TimePlan | None,
    sample: pl.DataFrame,
    decimal_comma: bool,
    *,
    thorough: bool,
) -> list[pl.Expr]:
    column = pl.col(role)
    if kind == TEXT:
        return [column.cast(pl.String).alias(role)]
    if kind == IDS:
        return [_ids(column, dtype).alias(role)]
    if kind == TIME and plan is not None and plan.is_text:
        if dtype == pl.Time:
            return [column.cast(pl.Int64).alias(role)]  # ns since midnight
        if dtype.is_temporal():
            return [column.cast(pl.Datetime("ns")).dt.epoch("ns").alias(role)]
        forms = times.TEXT_FORMATS if thorough else plan.formats
        clean = thorough or times.needs_cleaning(sample[role])
        out = times.text_to_ns(
            column, [*plan.formats, *forms] if thorough else forms, clean=clean
        )
        return [out.alias(role), (out.is_null() & _given(column)).alias(f"{role}?")]
    if dtype == pl.Duration:
        return [column.dt.total_nanoseconds().alias(role)]
    if dtype.is_decimal():
        return [column.cast(pl.Float64).alias(role)]
    if dtype == pl.String:
        text = column.str.strip_chars()
        if thorough:
            text = _plain_number(text.str.strip_chars("\"'"), decimal_comma)
        target = (
            pl.Int64
            if not thorough and (kind != TIME or (plan and plan.integers))
            else pl.Float64
        )
        out = text.cast(target, strict=False)
        return [out.alias(role), (out.is_null() & _given(column)).alias(f"{role}?")]
    if dtype.is_numeric():
        return [column.alias(role)]
    if dtype == pl.Null:
        return [column.cast(pl.Int64).alias(role)]
    out = column.cast(pl.Float64, strict=False)
    return [out.alias(role), (column.is_not_null()).alias(f"{role}?")]


def _plain_number(text: pl.Expr, decimal_comma: bool) -> pl.Expr:
    """Numbers without thousands separators, with a point before the decimals."""
    if decimal_comma:
        both = text.str.contains(r"\..*,")
        return (
            pl.when(both)
            .then(text.str.replace_all(".", "", literal=True))
            .otherwise(text)
            .str.replace(",", ".", literal=True)
        )
    grouped = text.str.contains(r"^[+-]?\d{1,3}(,\d{3})+(\.\d*)?$")
    return pl.when(grouped).then(text.str.replace_all(",", "", literal=True)).otherwise(text)


def _given(column: pl.Expr) -> pl.Expr:
    low = column.str.strip_chars().str.to_lowercase()
    return column.is_not_null() & ~low.is_in(["", "null", "none", "n/a", "na", "-", "nan"])


def _ids(column: pl.Expr, dtype: Any) -> pl.Expr:
    """Lists of unsigned ids from text, lists of text, or lists of numbers (negative ones wrap)."""
    if dtype == pl.String:
        return column.map_elements(split_ids, return_dtype=pl.List(pl.UInt64))
    if isinstance(dtype, pl.List) and dtype.inner == pl.String:
        return column.map_elements(
            lambda ids: [id_number(v) for v in ids], return_dtype=pl.List(pl.UInt64)
        )
    if isinstance(dtype, pl.List) and dtype.inner.is_signed_integer():
        return column.list.eval(pl.element().cast(pl.Int64).reinterpret(signed=False))
    return column.cast(pl.List(pl.UInt64), strict=True)


def shown(value: Any) -> str:
    """A value in quotes, cut where it is long, so that a message stays one sentence."""
    text = str(value)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def whole_numbers(source: Source, column: pl.Series, name: str) -> pl.Series:
    """Int64 from "21073.0" and the like. Raises WorkloadError for 1.5, inf and absurd sizes."""
    if column.dtype.is_integer():
        if column.dtype == pl.UInt64:
            return column.cast(pl.Int64, strict=False).fill_null(MAX_COUNT)
        return column.cast(pl.Int64)
    if column.dtype == pl.Null:
        return column.cast(pl.Int64)
    column = column.cast(pl.Float64).fill_nan(None)
    bad = ((column != column.round()) | (column.abs() > MAX_COUNT)).fill_null(False).arg_true()
    if len(bad):
        row = int(bad[0])
        raise source.error(
            f"row {row + 1}, column {name}",
            f"{column[row]:g} is not a whole number of tokens",
            "Map the right column, or correct the row.",
        )
    return column.cast(pl.Int64)
