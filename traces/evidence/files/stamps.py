"""Times as people and tools write them between scrapes and in tables, read into seconds.

It knows ISO dates, the output of `date` (several locales' order, 12 hours too), `watch`'s header, bare
times of day, Unix seconds and milliseconds, month/day/year, and words such as "t = +30 s" and "2 minutes
later". It does not guess a zone that is not written: then the offset is None.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = r"(?P<month>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*\.?"
_CLOCK = r"(?P<h>\d{1,2}):(?P<m>\d\d)(?::(?P<s>\d\d)(?P<f>[.,]\d+)?)?(?:\s?(?P<half>[AaPp])\.?[Mm]\.?)?"
_ZONE = r"(?:\s?(?P<zone>Z|[+-]\d\d:?\d\d|UTC|GMT|[A-Z]{3,4})(?![A-Za-z]))?"
_FORMS = (
    re.compile(r"(?P<year>\d{4})[-/.](?P<mon>\d\d)[-/.](?P<day>\d\d)[T _]" + _CLOCK + _ZONE),
    re.compile(_MONTH + r"\s+(?P<day>\d{1,2}),?\s+" + _CLOCK + _ZONE + r"\s+(?P<year>\d{4})"),
    re.compile(r"(?P<day>\d{1,2})[ -]" + _MONTH + r"[ -](?P<year>\d{4})[, ]+" + _CLOCK + _ZONE),
    re.compile(_MONTH + r"\s+(?P<day>\d{1,2}),?\s+(?P<year>\d{4}),?\s+" + _CLOCK + _ZONE),
    re.compile(r"(?P<mon>\d\d)[/-](?P<day>\d\d)[/-](?P<year>\d{4}),?[ T]" + _CLOCK + _ZONE),
)
_TIME_OF_DAY = re.compile(
    r"(?<![\d:.-])" + _CLOCK.replace("(?::(?P<s>", ":(?:(?P<s>") + r"(?![\d:])"
)
_EPOCH = re.compile(r"(?<![\d.])(1[3-9]\d{8})(\d{3}|\d{6}|\d{9})?(\.\d+)?(?![\d])")
_SPAN = r"(?P<n>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?)\b"
_SINCE_START = re.compile(r"\bt\s*=?\s*\+?\s*" + _SPAN, re.IGNORECASE)
_LATER = re.compile(
    rf"(?:\bafter\s+{_SPAN.replace('?P<n>', '?P<n1>').replace('?P<unit>', '?P<u1>')}"
    rf"|{_SPAN}\s+later|\+\s*{_SPAN.replace('?P<n>', '?P<n2>').replace('?P<unit>', '?P<u2>')})",
    re.IGNORECASE,
)
_OFFSETS_H = {
    "Z": 0.0, "UTC": 0.0, "GMT": 0.0, "CET": 1.0, "CEST": 2.0, "EST": -5.0, "EDT": -4.0, "CDT": -5.0,
    "MST": -7.0, "MDT": -6.0, "PST": -8.0, "PDT": -7.0, "JST": 9.0, "KST": 9.0, "MSK": 3.0,
}  # fmt: skip
DAY_S = 86_400.0


@dataclass(frozen=True)
class Stamp:
    """seconds: since 1970 as the clock was written (offset not applied), since midnight where dated is
    False, since the start or the stamp before where relative says so ("start", "before"); offset_s: UTC
    offset, None where it is not written; text: the time in one form ("2026-05-28 12:53:45", with Z or an
    offset where it is known, "12:53:45"), start and end: its place in the line."""

    seconds: float
    text: str
    start: int
    end: int
    dated: bool = True
    offset_s: float | None = None
    relative: str = ""


def find_stamp(line: str) -> Stamp | None:
    """The first time in a line, dated ones first; None where there is none."""
    for form in _FORMS:
        if (m := form.search(line)) and (stamp := _dated(m)):
            return stamp
    if m := _EPOCH.search(line):
        digits = 10 ** len(m[2] or "")
        seconds = int(m[1] + (m[2] or "")) / digits + float(m[3] or 0)
        return Stamp(seconds, _iso(seconds), m.start(), m.end(), offset_s=0.0)
    if (m := _TIME_OF_DAY.search(line)) and (seconds := _seconds_of_day(m)) is not None:
        return Stamp(seconds, m[0], m.start(), m.end(), dated=False)
    if m := _SINCE_START.search(line):
        return Stamp(_span(m["n"], m["unit"]), m[0], m.start(), m.end(), False, None, "start")
    if m := _LATER.search(line):
        n, unit = (m["n1"] or m["n"] or m["n2"]), (m["u1"] or m["unit"] or m["u2"])
        return Stamp(_span(n, unit), m[0], m.start(), m.end(), False, None, "before")
    return None


def unix_text(seconds: float) -> str:
    """A Unix time as a reader writes it: "2026-05-28T12:53:45Z"."""
    return _iso(seconds)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _dated(m: re.Match[str]) -> Stamp | None:
    parts = m.groupdict()
    month = (
        _MONTHS.index(parts["month"].lower()) + 1
        if parts.get("month")
        else int(parts.get("mon") or 0)
    )
    of_day = _seconds_of_day(m)
    try:
        day = datetime(int(parts["year"]), month, int(parts["day"]), tzinfo=UTC)
    except ValueError:
        return None
    if of_day is None:
        return None
    offset = _offset_s(parts.get("zone"))
    seconds = day.timestamp() + of_day
    return Stamp(seconds, _text(seconds, offset), m.start(), m.end(), True, offset)


def _text(seconds: float, offset_s: float | None) -> str:
    """A date as it is shown: with its offset where that is known."""
    if offset_s == 0:
        return _iso(seconds)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")
    if offset_s is None:
        return text
    minutes = round(abs(offset_s) / 60)
    return f"{text.replace(' ', 'T')}{'-' if offset_s < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"


def _seconds_of_day(m: re.Match[str]) -> float | None:
    hours, minutes, seconds = int(m["h"]), int(m["m"]), int(m["s"] or 0)
    half = (m["half"] or "").lower()
    if half:
        hours = hours % 12 + (12 if half == "p" else 0)
    if hours > 23 or minutes > 59 or seconds > 60:
        return None
    fraction = float("0." + m["f"][1:]) if m["f"] else 0.0
    return hours * 3600.0 + minutes * 60.0 + seconds + fraction


def _offset_s(zone: str | None) -> float | None:
    if not zone:
        return None
    if zone in _OFFSETS_H:
        return _OFFSETS_H[zone] * 3600.0
    if zone[0] in "+-":
        hours, minutes = int(zone[1:3]), int(zone[-2:])
        return (-1 if zone[0] == "-" else 1) * (hours * 3600.0 + minutes * 60.0)
    return None


def _span(n: str, unit: str) -> float:
    unit = unit.lower()
    scale = 1e-3 if unit == "ms" else {"s": 1.0, "m": 60.0, "h": 3600.0}[unit[0]]
    return float(n) * scale


class SourceClock:
    """The clock of one source: turns its stamps into t_s, 0 at the first one.

    first_time: what t_s = 0 is, as written; offset_s: UTC offset where it is written. Bare times of day
    that fall by more than half a day have passed midnight.
    """

    def __init__(self) -> None:
        self.first_time: str | None = None
        self.offset_s: float | None = None
        self._zero: float | None = None
        self._dated = False
        self._last = 0.0
        self._days = 0.0

    def t_s(self, stamp: Stamp) -> float | None:
        """Seconds since the first stamp; None where this stamp cannot be put on that clock."""
        if stamp.relative:
            now = stamp.seconds + (self._last if stamp.relative == "before" else 0.0)
            self._last = now
            return now
        if self._zero is None:
            self._zero, self._dated = stamp.seconds, stamp.dated
            self.first_time, self.offset_s = stamp.text, stamp.offset_s
        elif stamp.dated != self._dated:
            return None
        now = stamp.seconds - self._zero + self._days
        if self.offset_s is not None and stamp.offset_s is not None:
            now -= stamp.offset_s - self.offset_s
        if not stamp.dated and now < self._last - DAY_S / 2:
            self._days += DAY_S
            now += DAY_S
        self._last = now
        return round(now, 6)

    def at(self, t_s: float) -> str | None:
        """What the clock shows at t_s, as text; None where nothing was dated or timed."""
        if self._zero is None:
            return None
        if self._dated:
            return _text(self._zero + t_s, self.offset_s)
        of_day = (self._zero + t_s) % DAY_S
        return f"{int(of_day // 3600):02}:{int(of_day // 60 % 60):02}:{int(of_day % 60):02}"
