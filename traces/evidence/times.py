"""Time stamps of logs: read in any form, put on one clock, and written back in the form they had.

A stamp may lack its zone, its year or its date. Seconds of a stamp are counted from a fixed day, so that
stamps of one form can be subtracted; `Clock` adds the years and midnights that a form does not say, and
`Clocks` chooses one clock where a source has several (a container's and the log's own, say) and finds how far the
others are from it. Nothing is interpolated: a record without a stamp has no time.

It knows no grammar and no engine.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from statistics import median_low

EPOCH = datetime(2000, 1, 1)
SOME_YEAR = 2001  # of dates that say none; its "02-29" is the day after "02-28"
DAY_S, YEAR_S = 86_400.0, 365 * 86_400.0
QUARTER_S = 900.0  # no zone is finer
MAX_PAIRS = 99
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_CLOCK = r"(?P<H>[01]\d|2[0-3]):(?P<M>[0-5]\d):(?P<S>[0-5]\d|60)(?P<frac>[.,]\d{1,9})?"


@dataclass(frozen=True)
class Form:
    """One way to write a time. has: what it says besides the time of day: "date", "year", "zone"."""

    name: str
    pattern: re.Pattern[str]
    write: Callable[[datetime, re.Match[str]], str]
    has: frozenset[str]


def _form(name: str, pattern: str, layout: str, *has: str) -> Form:
    def write(t: datetime, m: re.Match[str]) -> str:
        return t.strftime(layout)

    return Form(name, re.compile(pattern), write, frozenset(has))


def _write_zoned(t: datetime, m: re.Match[str]) -> str:
    return t.strftime(f"%Y-%m-%d{m['sep']}%H:%M:%S") + "{frac}" + m["zone"]


def _write_iso(t: datetime, m: re.Match[str]) -> str:
    return t.strftime(f"%Y-%m-%d{m['sep']}%H:%M:%S")


def _write_syslog(t: datetime, m: re.Match[str]) -> str:
    return f"{_MONTHS[t.month - 1]} {t.day:2d} {t:%H:%M:%S}"


_ISO = r"(?P<Y>\d{4})[-/](?P<m>[01]\d)[-/](?P<d>[0-3]\d)(?P<sep>[T ])" + _CLOCK
FORMS: tuple[Form, ...] = (
    Form(
        "zoned",
        re.compile(_ISO + r" ?(?P<zone>Z|UTC|[+-]\d\d:?\d\d)"),
        _write_zoned,
        frozenset({"date", "year", "zone"}),
    ),
    Form("dated", re.compile(_ISO), _write_iso, frozenset({"date", "year"})),
    _form(
        "us",
        r"(?P<m>[01]\d)/(?P<d>[0-3]\d)/(?P<Y>\d{4})-" + _CLOCK,
        "%m/%d/%Y-%H:%M:%S",
        "date",
        "year",
    ),
    _form(
        "us-dash",
        r"(?P<m>[01]\d)-(?P<d>[0-3]\d)-(?P<Y>\d{4}) " + _CLOCK,
        "%m-%d-%Y %H:%M:%S",
        "date",
        "year",
    ),
    _form("monthday", r"(?P<m>[01]\d)-(?P<d>[0-3]\d) " + _CLOCK, "%m-%d %H:%M:%S", "date"),
    Form(
        "syslog",
        re.compile(rf"(?P<b>{'|'.join(_MONTHS)}) (?P<d>[ 0-3]?\d) {_CLOCK}"),
        _write_syslog,
        frozenset({"date"}),
    ),
    _form("glog", r"(?P<m>[01]\d)(?P<d>[0-3]\d) " + _CLOCK, "%m%d %H:%M:%S", "date"),
    _form("time", _CLOCK, "%H:%M:%S"),
)


@dataclass(frozen=True, slots=True)
class Stamp:
    """One time as it was written. seconds: since EPOCH in its own zone (years and days as far as it says
    them); offset_s: its zone, None where it says none; form: name of its Form."""

    form: str
    seconds: float
    offset_s: float | None
    text: str


@lru_cache(maxsize=256)
def parse_stamp(text: str) -> Stamp | None:
    """The stamp that `text` is, or None."""
    text = text.strip()
    for form in FORMS:
        match = form.pattern.fullmatch(text)
        if match is None:
            continue
        at = _datetime(match)
        if at is None:
            continue
        zone = match.groupdict().get("zone")
        offset_s = None if zone is None else _zone_s(zone)
        return Stamp(form.name, (at - EPOCH).total_seconds(), offset_s, text)
    return None


def _datetime(m: re.Match[str]) -> datetime | None:
    """The date and time of a match; None for the 31st of February."""
    g = m.groupdict()
    month = _MONTHS.index(g["b"]) + 1 if g.get("b") else int(g.get("m") or EPOCH.month)
    day = int(g.get("d") or EPOCH.day)
    second = int(g["S"])
    fraction = float("0." + g["frac"][1:]) if g.get("frac") else 0.0
    year = int(g["Y"]) if g.get("Y") else SOME_YEAR
    late = timedelta()
    if (month, day) == (2, 29) and not g.get("Y"):
        day, late = 28, timedelta(days=1)
    try:
        at = datetime(year, month, day, int(g["H"]), int(g["M"]), min(second, 59))
    except ValueError:
        return None
    return at + late + timedelta(seconds=fraction + max(0, second - 59))


def _zone_s(zone: str) -> float:
    if zone in ("Z", "UTC"):
        return 0.0
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    return (hours * 3600.0 + minutes * 60.0) * (-1 if zone[0] == "-" else 1)


def from_unix(seconds: float) -> str:
    """A Unix time as a stamp of the zoned form."""
    return datetime.fromtimestamp(int(seconds // 1), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def shift(first_time: str | None, t_s: float, digits: int = 0) -> str:
    """The time `t_s` after first_time, in the form first_time is written in.

    digits: digits of the seconds' fraction, which is cut, not rounded, as clocks show it. Where there is no
    first_time (or it is no time), seconds from the start: "at 12.5 s".
    """
    text = (first_time or "").strip()
    for form in FORMS:
        match = form.pattern.fullmatch(text)
        if match is None:
            continue
        start = _datetime(match)
        if start is None:
            continue
        at = start + timedelta(seconds=t_s + 1e-6)
        fraction = f".{at.microsecond:06d}"[: digits + 1] if digits else ""
        written = form.write(at, match)
        return (
            written.replace("{frac}", fraction) if "{frac}" in written else written + fraction
        )
    return f"at {t_s:.{max(digits, 1)}f} s"


_TURNS_S = {
    f.name: 0.0 if "year" in f.has else YEAR_S if "date" in f.has else DAY_S for f in FORMS
}


@dataclass
class Clock:
    """Seconds of one form's stamps, never a year or a midnight back; `backward` counts smaller steps back."""

    form: str
    last_s: float | None = None
    turns_s: float = 0.0
    backward: int = 0

    def seconds(self, stamp: Stamp) -> float:
        """Seconds of a stamp, with the years or days added that passed unsaid."""
        now = stamp.seconds + self.turns_s
        if self.last_s is not None:
            back = self.last_s - now
            turn = _TURNS_S[stamp.form]
            if turn and back > turn / 2:
                self.turns_s += turn
                now += turn
            elif turn and back < -turn / 2 and self.turns_s:
                now -= turn  # a late record from before midnight
            elif back > 1:
                self.backward += 1
        self.last_s = now if self.last_s is None else max(self.last_s, now)
        return now


@dataclass(slots=True)
class Time:
    """When a record was written: seconds on the clock of that name."""

    clock: str
    seconds: float


@dataclass
class Clocks:
    """All clocks of a source. A clock's name is where the stamp stood ("outer", "own") and its form."""

    clocks: dict[str, Clock] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    zones: dict[str, set[float | None]] = field(default_factory=dict)
    texts: dict[str, Stamp] = field(default_factory=dict)
    _same: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    _near: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    _last: Time | None = None

    def read(self, outer: str | None, own: str | None) -> Time | None:
        """The time of a record that carries these stamps; the outer one goes before the own."""
        times = []
        for where, text in (("outer", outer), ("own", own)):
            stamp = parse_stamp(text) if text else None
            if stamp is not None:
                times.append(self._note(where, stamp))
        if not times:
            return None
        if len(times) == 2:
            self._pair(self._same, times[0], times[1])
        if self._last is not None and self._last.clock != times[0].clock:
            self._pair(self._near, self._last, times[0])
        self._last = times[0]
        return times[0]

    def _note(self, where: str, stamp: Stamp) -> Time:
        name = f"{where} {stamp.form}"
        clock = self.clocks.get(name)
        if clock is None:
            clock = self.clocks[name] = Clock(stamp.form)
        seconds = clock.seconds(stamp)
        if stamp.offset_s is not None:
            seconds -= stamp.offset_s  # zoned clocks count in UTC
        self.seen[name] += 1
        if name in self.zones:
            self.zones[name].add(stamp.offset_s)
        else:
            self.zones[name] = {stamp.offset_s}
        first = self.texts.get(name)
        if first is None or stamp.seconds < first.seconds:
            self.texts[name] = stamp
        return Time(name, seconds)

    def _pair(self, into: dict[tuple[str, str], list[float]], a: Time, b: Time) -> None:
        pairs = into.get((a.clock, b.clock))
        if pairs is None:
            pairs = into[a.clock, b.clock] = []
        if len(pairs) < MAX_PAIRS:
            pairs.append(b.seconds - a.seconds)

    def main(self, counts: Counter[str]) -> str | None:
        """The clock that the samples are put on: the outer one where most records carry it, else the
        one that most carry. counts: records of interest by the clock of their Time."""
        if not counts:
            return None
        best = max(counts.values())
        able = [c for c in counts if counts[c] * 2 >= best]
        return min(able, key=lambda c: (not c.startswith("outer"), -counts[c], c))

    def distance_s(self, clock: str, main: str) -> float | None:
        """Seconds to add to a time of `clock` to have it on `main`; None where nothing tells."""
        if clock == main:
            return 0.0
        for pairs in (self._same, self._near):
            found = [-d for d in pairs.get((main, clock), ())] + pairs.get((clock, main), [])
            if found:
                return round(median_low(sorted(found)) / QUARTER_S) * QUARTER_S
        return None

    def own_offset_s(self, main: str) -> tuple[str, float] | None:
        """(name of another clock, seconds it is ahead of main) where one record carries both.

        Where one of the two says no year, the zone is what the time of day tells: -11 h to +13 h.
        """
        for a, b in self._same:
            if main not in (a, b):
                continue
            other = b if a == main else a
            ahead = -(self.distance_s(other, main) or 0.0)
            if abs(ahead) > DAY_S:
                ahead = (ahead + 11 * 3600) % DAY_S - 11 * 3600
            if ahead:
                return other, ahead
        return None

    def offset_s(self, main: str) -> float | None:
        """UTC offset of a clock, where its stamps say one and the same."""
        zones = self.zones.get(main, set())
        return None if len(zones) != 1 else next(iter(zones))

    def write(self, main: str, seconds: float) -> str:
        """A time of the main clock in the form of that clock's stamps, without fraction."""
        stamp = self.texts[main]
        own = stamp.seconds - (stamp.offset_s or 0.0)
        return shift(stamp.text, seconds - own)
