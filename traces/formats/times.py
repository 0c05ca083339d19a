"""Arrival times as files write them, turned into seconds.

Knows units, their usual magnitudes, and the text forms of dates. The unit of a bare number is a
guess (`guess_unit`) that is always shown and can always be given instead. Times are kept relative
to the first row, so that nanoseconds since the epoch lose nothing in a float.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

UNITS: dict[str, float] = {
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "ns": 1e-9,
    "min": 60.0,
    "h": 3600.0,
}
TEXT_UNIT = "date and time"
_SLOWEST_REQUESTS_PER_S = 0.01  # an integer clock that would mean fewer is not in seconds

_SUFFIXES = (
    ("ns", ("_ns", "ns)", "[ns]", "unixnano", "nanos", "nanoseconds")),
    ("us", ("_us", "us)", "[us]", "micros", "microseconds")),
    ("ms", ("_ms", "ms)", "[ms]", "millis", "milliseconds")),
    ("s", ("_s", "(s)", "[s]", "_sec", "_secs", "_seconds", "(seconds)")),
)

# Zoned forms first: a form without a zone cannot match a text that has one.
_DAY = ("%Y-%m-%d", "%Y/%m/%d")
TEXT_FORMATS: tuple[str, ...] = (
    *(f"{d} %H:%M:%S%.f%#z" for d in _DAY),
    *(f"{d} %H:%M:%S%.f" for d in _DAY),
    *(f"{d} %H:%M" for d in _DAY),
    "%Y%m%d %H%M%S%.f%#z",
    "%Y%m%d %H%M%S%.f",
    "%m/%d/%Y %I:%M:%S%.f %p",
    "%m/%d/%Y %I:%M %p",
    "%m/%d/%Y %H:%M:%S%.f",
    "%m/%d/%Y %H:%M",
    "%d.%m.%Y %H:%M:%S%.f",
    "%d %b %Y %H:%M:%S%.f%#z",
    "%d %b %Y %H:%M:%S%.f",
)
_DAY_FIRST = ("%d/%m/%Y %H:%M:%S%.f", "%d/%m/%Y %H:%M")


def unit_in_name(column: str) -> str | None:
    """The unit that a column's name says, or None."""
    low = column.strip().lower()
    for unit, endings in _SUFFIXES:
        if low.endswith(endings):
            return unit
    return None


def guess_unit(values: np.ndarray, column: str = "") -> tuple[str, str]:
    """(unit, why) for bare numbers in file order: from the name, the epoch's magnitude, the rate."""
    named = unit_in_name(column)
    if named:
        return named, f"the column is called {column}"
    values = values[np.isfinite(values)]
    if not len(values):
        return "s", "there is no number to judge by"
    low, high = float(np.min(values)), float(np.max(values))
    for unit, start, stop in (
        ("s", 8e8, 8e9),
        ("ms", 8e11, 8e12),
        ("us", 8e14, 8e15),
        ("ns", 8e17, 8e18),
    ):
        if start <= low and high < stop:
            return unit, f"{low:.0f} is a date of our time in {unit} since 1970"
    if not np.all(values == np.floor(values)):
        return "s", "the numbers have fractions"
    span = high - low
    for unit in ("s", "ms", "us", "ns"):
        seconds = span * UNITS[unit]
        if seconds <= 0 or len(values) / seconds >= _SLOWEST_REQUESTS_PER_S:
            return unit, f"{len(values):,} requests then arrive within {seconds:,.6g} s"
    return "ns", "no larger unit gives a request every 100 s"


@dataclass(frozen=True)
class TimePlan:
    """How a column of times is to be read: formats for text, else a unit; why, for the user.

    integers: keep them whole, they do not fit a float; zoned: the dates say their zone.
    """

    unit: str
    why: str
    formats: tuple[str, ...] = ()
    integers: bool = False
    zoned: bool = False

    @property
    def is_text(self) -> bool:
        return bool(self.formats)


def plan_text(sample: pl.Series) -> TimePlan | None:
    """The text forms that occur in a sample, most frequent first, or None where none does."""
    clean = sample.to_frame("t").select(normalised(pl.col("t")))["t"].drop_nulls()
    clean = clean.filter(clean != "")
    hits = {f: _parses(clean, f) for f in (*TEXT_FORMATS, *_DAY_FIRST)}
    if max(hits.values(), default=0) == 0:
        return None
    why = "dates and times as text"
    if any(hits[f] < hits[g] for f, g in zip(_US_FORMATS, _DAY_FIRST, strict=True)):
        hits.update(dict.fromkeys(_US_FORMATS, 0))
        why = "dates with the day before the month"
    else:
        if any(hits[f] for f in _DAY_FIRST):
            why = "dates read as month/day/year"
        hits.update(dict.fromkeys(_DAY_FIRST, 0))
    order = sorted((f for f in hits if hits[f]), key=lambda f: -hits[f])
    return TimePlan(TEXT_UNIT, why, tuple(order), zoned="%#z" in order[0])


_US_FORMATS = ("%m/%d/%Y %H:%M:%S%.f", "%m/%d/%Y %H:%M")


def _parses(clean: pl.Series, form: str) -> int:
    got = clean.to_frame("t").select(_parse_one(pl.col("t"), form).is_not_null().sum())
    return int(got.item())


def normalised(column: pl.Expr) -> pl.Expr:
    """Text of a time with T, Z, UTC, commas and weekdays written one way; a time alone is of 1970-01-01."""
    return (
        column.str.strip_chars()
        .str.replace(r"^(\d{4}[-/]?\d\d[-/]?\d\d)[Tt](\d)", "${1} ${2}")
        .str.replace(r"\s*(?:[Zz]|UTC|GMT)$", "+00:00")
        .str.replace(r",\s*", " ")
        .str.replace(r"(\d)\s+([+-]\d\d:?\d\d)$", "${1}${2}")
        .str.replace(r"(\.\d{9})\d+", "${1}")
        .str.replace(r"^(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]* ", "")
        .str.replace(r"^(\d{1,2}:\d\d(?::\d\d(?:\.\d+)?)?)$", "1970-01-01 ${1}")
        .str.replace(r"^(\d{4}[-/]\d\d[-/]\d\d)$", "${1} 00:00:00")
    )


def _parse_one(text: pl.Expr, form: str) -> pl.Expr:
    parsed = text.str.to_datetime(
        form, time_unit="ns", strict=False, exact=True, ambiguous="null"
    )
    return parsed.dt.epoch("ns")


def text_to_ns(column: pl.Expr, formats: Sequence[str], *, clean: bool = True) -> pl.Expr:
    """Nanoseconds since 1970 (int64), null where no form fits."""
    text = normalised(column) if clean else column
    return pl.coalesce([_parse_one(text, f) for f in formats])


def needs_cleaning(sample: pl.Series) -> bool:
    """Whether `normalised` would change a text of the sample (it costs a third of a large read)."""
    changed = sample.to_frame("t").select((normalised(pl.col("t")) != pl.col("t")).any())
    return bool(changed.item())


def zoned(text: Any) -> bool:
    """Whether a text of a time says its zone."""
    import re

    return bool(re.search(r"(?:[Zz]|UTC|GMT|\d[+-]\d\d:?\d\d)\s*$", str(text).strip()))


def relative_ns(ns: pl.Series) -> tuple[np.ndarray, float]:
    """(seconds since the first row, the first row in seconds since 1970) from int64 nanoseconds."""
    values, first = _since_first(ns)
    return values / 1e9, first / 10**9


def as_written(epoch_s: float, is_zoned: bool) -> float:
    """What a date says in seconds: since 1970, or without a zone its time of day."""
    return epoch_s if is_zoned else round(epoch_s % 86_400, 9)


def relative_numbers(numbers: pl.Series, unit: str) -> tuple[np.ndarray, float]:
    """(seconds since the first row, the first row in seconds) from a column of numbers."""
    values, first = _since_first(numbers)
    if unit in ("ms", "us", "ns"):  # a division is exact where a product with 1e-3 is not
        per_second = {"ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
        return values / per_second, first / per_second
    return values * UNITS[unit], first * UNITS[unit]


def _since_first(column: pl.Series) -> tuple[np.ndarray, float]:
    """Differences to the first non-null value as float64 (nan for null), and that value."""
    known = column.drop_nulls()
    if known.is_empty():
        return np.full(len(column), np.nan), 0.0
    first = known[0]
    return (column - first).cast(pl.Float64).fill_null(float("nan")).to_numpy(), first
