"""Metrics as text: one scrape or many, pasted with or without times between them.

Read in: the exposition format 0.0.4 and OpenMetrics 1.0; shared samples of vLLM 0.26.0; pastes in
vllm#48808 (a bare date line before each block), aibrix#1614 and miles PR#2012 (SGLang, four ranks).

Quirks it knows: HELP and TYPE lines are often left out, or only some lines were copied (grep); times stand
in lines of their own (`date`, "# scrape at 12:53:45", "2 minutes later", Unix seconds), before each line, or
behind each value (promtool: "=> 8 @[1772359200]"); without times a series that comes again starts the next scrape; a series that comes twice
in a row within a scrape is a duplicate (several processes behind one port), the last is taken; `_created`
is no count; label values hold commas, braces and quotes; exemplars follow " # {"; NaN is no value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from traces.evidence.evidence import Found, SourceReport
from traces.evidence.files.names import SHORT_NAMES, Named, look_up
from traces.evidence.files.series import Scrape, Scrapes, Series
from traces.evidence.files.stamps import SourceClock, Stamp, find_stamp
from traces.evidence.source import Source

MAX_KNOWN = 100_000
_VALUE = r"[-+]?(?:\d[\d_]*\.?\d*(?:[eE][-+]?\d+)?|\.\d+|NaN|nan|[Ii]nf)"
_SERIES = re.compile(
    r"(?P<name>[a-zA-Z_:][\w:.]*)?\s*(?:\{(?P<labels>.*)\})?\s*[\s=]\s*"
    rf"(?P<value>{_VALUE})(?:\s+(?P<time>-?\d+(?:\.\d+)?))?\s*$"
)
_LABEL = re.compile(r'([a-zA-Z_][\w.]*)\s*=\s*"((?:\\.|[^"\\])*)"')
_QUOTED_NAME = re.compile(r'^\s*"([^"]+)"\s*(?:,|$)')
_PROMTOOL = re.compile(r"(.*\S)\s+=>\s+(\S+)\s+@\[([\d.]+)\]\s*$")
_META = re.compile(r"\s*#\s*(HELP|TYPE|UNIT|EOF)\b")
_STARTS = re.compile(
    r"(?<![\w:])((?:vllm|sglang|tgi|trtllm|nv_trt_llm|dynamo|llm)[:_]\w+|\{\"(?:vllm|sglang):)"
)
_KNOWN = re.compile(
    r"^\s*(?:[^\n]{0,60}?[\s\]])?(?:vllm|sglang|trtllm)[:_]\w+(?:\{[^\n]*\})?\s+[-+\dNnIi.]"
    r"|^\s*(?:tgi|nv_trt_llm|dynamo_component|dynamo_frontend)_\w+(?:\{[^\n]*\})?\s+[-+\dNnIi.]",
    re.MULTILINE,
)
_BARE = re.compile(r"^\s*([a-z][a-z_]{8,})(?:\{[^\n]*\})?\s+[-+\dNnIi.]\S*\s*$")
_ANY = re.compile(r"^[a-zA-Z_:][\w:]*(?:\{[^\n]*\})?\s+[-+\dNnIi.][^\s]*$", re.MULTILINE)


def sniff(head: str, name: str) -> float:
    """1 where several series of an engine stand, 0.6 for one, less for metrics of something else."""
    known = len(_KNOWN.findall(head[:32_768]))
    lines = [x for x in head[:32_768].splitlines() if x.strip()]
    if known:
        others = sum(1 for x in lines if re.search(r"\b(INFO|WARNING|ERROR|DEBUG)\b", x))
        return 0.4 if others > known else (1.0 if known > 1 else 0.7)
    short = [m[1] for x in lines[:200] if (m := _BARE.match(x)) and _named(m[1]) is not None]
    if len(set(short)) >= 2 and 2 * len(short) >= len(lines):
        return 0.9  # names that were copied without their engine
    helps = len(re.findall(r"^# (?:HELP|TYPE) \w", head, re.MULTILINE))
    if helps >= 2 and len(_ANY.findall(head)) >= 1:
        return 0.8  # of some other software: it says so
    return 0.0


def _named(name: str) -> Named | None:
    """The metric of a name, also of one that was copied without its engine."""
    return look_up(name) or look_up(SHORT_NAMES.get(name.removesuffix("_total"), ""))


@dataclass
class _Reading:
    """Where the reader is: the scrape it fills, and what it has seen of it."""

    source: Source
    scrapes: Scrapes
    clock: SourceClock = field(default_factory=SourceClock)
    scrape: Scrape | None = None
    pending: float | None = None  # time of the next scrape, read in a line before it
    has_pending: bool = False
    times: int = 0
    known: dict[str, Series] = field(default_factory=dict)  # by the line before its value
    seen: set[str] = field(default_factory=set)
    families: set[str] = field(default_factory=set)
    family: str = ""
    num_lines: int = 0
    recognised: int = 0
    other_metrics: int = 0
    duplicates: int = 0
    skipped: list[str] = field(default_factory=list)
    num_skipped: int = 0

    def skip(self, text: str) -> None:
        self.num_skipped += 1
        if len(self.skipped) < 5:
            self.skipped.append(text.strip()[:200])


def read(source: Source) -> Found:
    """Samples (a row a rank and scrape), facts of the pool and of histograms."""
    r = _Reading(source, Scrapes(source.name))
    for number, line in source.lines():
        r.num_lines = number
        if line[:2] == "# " and _META.match(line):
            continue
        if not line.strip():
            continue
        _read_line(r, number, line)
    rows, facts = r.scrapes.finish()
    count = sum(1 for s in r.scrapes.scrapes if s.slots)
    timed = sum(1 for s in r.scrapes.scrapes if s.t_s is not None and s.slots)
    family = "prometheus-with-loose-timestamps" if r.times and count > 1 else "prometheus"
    report = SourceReport(
        source.name,
        "prometheus",
        family,
        r.scrapes.engine(),
        r.num_lines,
        r.recognised,
        r.num_skipped + r.other_metrics,
        tuple(r.skipped),
        1.0 if r.recognised else 0.5,
        tuple(_notes(r, count, timed)),
    )
    first = r.clock.at(r.scrapes.moved_s) if timed else None
    return Found(report, tuple(rows), tuple(facts), (), (), first, r.clock.offset_s)


def _read_line(r: _Reading, number: int, line: str) -> None:
    head, _, tail = line.rpartition(" ")
    known = r.known.get(head)
    if known is not None:  # the same series as in an earlier scrape
        try:
            value = float(tail)
        except ValueError:
            value = None
        if value is not None:
            _take_value(r, known, value, None, number, line)
            return
    stamp, text = _time_before(line)
    parsed = _parse(text)
    if parsed is None:
        alone = stamp or (find_stamp(line) if len(line) < 160 else None)
        if alone is not None and len(line) - (alone.end - alone.start) <= 100:
            _take_time(r, alone)
        elif not line.lstrip().startswith(("#", "$", ">", "```")):
            r.skip(line)
        return
    name, labels_text, value, time = parsed
    if stamp is not None:
        _take_time_of_line(r, stamp)
    named = _named(name)
    if named is None:
        r.other_metrics += 1
        if not r.recognised and len(r.skipped) < 5:
            r.skipped.append(line.strip()[:200])
        return
    series = r.scrapes.prepare(named, dict(_labels(labels_text)))
    if stamp is None and time is None and len(r.known) < MAX_KNOWN:
        r.known[head] = series
    _take_value(r, series, value, time, number, line)


def _take_value(
    r: _Reading, series: Series, value: float, time: float | None, number: int, line: str
) -> None:
    scrape = _scrape_for(r, series.name, series.named.base, number, time)
    if r.scrapes.add(scrape, series, value, number, line):
        r.recognised += 1
    else:
        r.other_metrics += 1


def _time_before(line: str) -> tuple[Stamp | None, str]:
    """A time that stands before a series in its line, and the line from the series on."""
    m = _STARTS.search(line)
    if m is None or m.start() == 0 or line[: m.start()].isspace():
        return None, line
    before = line[: m.start()]
    if before.lstrip().startswith("#"):
        return None, line
    return find_stamp(before), line[m.start() :]


def _parse(text: str) -> tuple[str, str, float, float | None] | None:
    """(name, labels as text, value, time or None) of a series, None where the line is none."""
    if m := _PROMTOOL.match(text):
        text = f"{m[1]} {m[2]} {float(m[3]) * 1000:.0f}"
    cut = text.find(" # {")
    m = _SERIES.match((text[:cut] if cut > 0 else text).strip())
    if m is None or not (m["name"] or m["labels"]):
        return None
    name, labels = m["name"] or "", m["labels"] or ""
    if not name:
        quoted = _QUOTED_NAME.match(labels)
        if quoted is None:
            return None
        name, labels = quoted[1], labels[quoted.end() :]
    if not re.search(r"[a-zA-Z]{2}", name):
        return None
    value = float(m["value"].replace("_", ""))
    return name, labels, value, float(m["time"]) if m["time"] else None


def _labels(text: str) -> Iterator[tuple[str, str]]:
    for key, value in _LABEL.findall(text):
        yield key, value.replace(r"\"", '"').replace(r"\n", "\n").replace("\\\\", "\\")


def _take_time(r: _Reading, stamp: Stamp) -> None:
    """A line with a time: the next series begin a scrape."""
    t_s = r.clock.t_s(stamp)
    if r.has_pending and stamp.relative == "before":
        return
    first = r.scrape if len(r.scrapes.scrapes) == 1 else None
    if stamp.relative == "before" and first is not None and first.t_s is None:
        first.t_s = 0.0  # "30 s later" counts from the scrape above it
    r.pending, r.has_pending = t_s, True
    r.times += 1


def _take_time_of_line(r: _Reading, stamp: Stamp) -> None:
    t_s = r.clock.t_s(stamp)
    if r.scrape is None or t_s != r.scrape.t_s:
        r.pending, r.has_pending = t_s, True


def _scrape_for(
    r: _Reading, series: str, family: str, number: int, time: float | None
) -> Scrape:
    """The scrape that this series belongs to, a new one where its time or its coming again says so."""
    again = series in r.seen
    copy = again and family == r.family and len(r.families) > 1
    t_s = _time_behind(r, time)
    if t_s is not None:
        new = r.scrape is None or r.scrape.t_s != t_s
        r.scrape = r.scrapes.at(t_s, number)
    elif new := (r.scrape is None or r.has_pending or (again and not copy)):
        r.scrape = r.scrapes.begin(r.pending if r.has_pending else None, number)
        r.pending, r.has_pending = None, False
    if new:
        r.seen, r.families = set(), set()
    elif copy:
        r.duplicates += 1
    r.seen.add(series)
    r.families.add(family)
    r.family = family
    assert r.scrape is not None
    return r.scrape


def _time_behind(r: _Reading, time: float | None) -> float | None:
    """t_s of the time behind a value (milliseconds; seconds in OpenMetrics); None: none, or not needed."""
    if time is None or r.times:
        return None
    stamp = find_stamp(f"{time / 1000 if time > 1e11 else time:.3f}")
    return r.clock.t_s(stamp) if stamp else None


def _notes(r: _Reading, count: int, timed: int) -> Iterator[str]:
    yield from r.scrapes.notes
    if not r.recognised and r.scrapes.engines:
        yield "No metric of the scheduler or of the pool is in it: it says nothing of pressure."
    elif not r.recognised:
        yield "These are metrics of other software: no name of a serving engine is among them."
    if count == 1:
        yield "One scrape: counters are totals since the server started, and nothing is said of rates."
    elif count > 1 and not timed:
        yield f"{count} scrapes without times: what happened between them is known, how fast is not."
    if r.duplicates:
        yield f"{r.duplicates} series came twice in a scrape; the last value was taken."
    engines = [e for e in r.scrapes.engines if e != "dynamo"]
    if len(engines) > 1:
        yield f"Metrics of several engines are in it: {', '.join(sorted(engines))}."
    if r.source.damage:
        yield r.source.damage
