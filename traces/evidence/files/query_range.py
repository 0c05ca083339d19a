"""Answers of a Prometheus server (query, query_range) and Grafana's data frames, as JSON.

Read in: shared answers made with Prometheus 2.42. It takes matrix and vector results, several answers in one
file, one a line, or bare lists of series; an answer of which a script kept the query beside ("query" or "expr").

Quirks: values are text and may be "NaN" or "+Inf"; points that are missing are absent; the result of rate() has
no name, so that it can be placed only where the query is kept; a colon may have become "_"; series of several
queries may be sampled at different times; an error is an answer too ({"status":"error"}).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from traces.evidence.evidence import Found, SourceReport
from traces.evidence.files.jsons import JsonReading, first_value
from traces.evidence.files.names import Named, Use, look_up
from traces.evidence.files.series import Scrapes, Series
from traces.evidence.files.stamps import unix_text
from traces.evidence.meant import is_meant
from traces.evidence.source import Source

_METRIC = re.compile(r"[a-zA-Z_:][\w:]*")
_RATE = re.compile(r"\bi?rate\s*\(")


def sniff(head: str, name: str) -> float:
    """1 for an answer of Prometheus, whatever is in it."""
    text = head.lstrip()
    if text[:1] not in ("{", "["):
        return 0.0
    value = first_value(text)
    if isinstance(value, dict):
        keys = set(value)
        if "resultType" in keys or {"metric", "values"} <= keys or {"metric", "value"} <= keys:
            return 1.0
        if value.get("status") == "error" and "errorType" in keys:
            return 1.0
        data = value.get("data")
        if isinstance(data, dict) and "result" in data:
            return 1.0
        if _frames(value):
            return 0.9
    return 0.95 if re.search(r'"resultType"\s*:\s*"(?:matrix|vector)"', head) else 0.0


@dataclass
class _Reading:
    source: Source
    scrapes: Scrapes
    first: float | None = None
    recognised: int = 0
    unread: int = 0
    nameless: int = 0
    errors: list[str] = field(default_factory=list)
    points: list[tuple[float, Series, float, int]] = field(default_factory=list)


def read(source: Source) -> Found:
    """A sample a rank and time; counters become gains and rates, as in a scrape."""
    reading = JsonReading(source)
    r = _Reading(source, Scrapes(source.name))
    for number, value in reading.values():
        for one, query in _series(r, value, ""):
            _read_series(r, one, query, number)
    r.points.sort(key=lambda p: p[0])
    r.first = r.points[0][0] if r.points else None
    for time, series, value, number in r.points:
        scrape = r.scrapes.at(round(time - (r.first or 0.0), 3), number)
        if r.scrapes.add(scrape, series, value, number, ""):
            r.recognised += 1
    rows, facts = r.scrapes.finish()
    report = SourceReport(
        source.name,
        "prometheus",
        "query-range",
        r.scrapes.engine(),
        reading.num_lines,
        r.recognised,
        r.unread + reading.num_skipped,
        tuple(reading.skipped),
        1.0 if rows else 0.4,
        tuple(_notes(r, reading)),
    )
    first = unix_text(r.first) if r.first is not None and r.first > 1e9 else None
    return Found(report, tuple(rows), tuple(facts), (), (), first, 0.0 if first else None)


def _series(r: _Reading, value: Any, query: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The series of an answer, each with the query that was kept beside it."""
    if isinstance(value, list):
        for one in value:
            yield from _series(r, one, query)
        return
    if not isinstance(value, dict):
        return
    query = str(value.get("query") or value.get("expr") or query)
    if value.get("status") == "error":
        r.errors.append(str(value.get("error", "no reason given"))[:200])
        return
    if "metric" in value and ("values" in value or "value" in value):
        yield value, query
        return
    yield from ((s, query) for s in _frames(value))
    for key in ("data", "response", "result", "results", "answers", "queries"):
        if isinstance(value.get(key), dict | list):
            yield from _series(r, value[key], query)
    for key, inner in value.items():  # {"vllm:num_requests_running": {...answer...}, ...}
        if (
            isinstance(inner, dict)
            and ("resultType" in inner or "data" in inner)
            and key != "data"
        ):
            yield from _series(r, inner, key)


def _frames(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Series of Grafana's data frames: {"results": {"A": {"frames": [{schema, data}]}}}."""
    results = value.get("results")
    found: list[dict[str, Any]] = []
    frames: list[Any] = list(value["frames"]) if isinstance(value.get("frames"), list) else []
    if isinstance(results, dict):
        for one in results.values():
            frames += one.get("frames", []) if isinstance(one, dict) else []
    for frame in frames:
        try:
            fields, columns = frame["schema"]["fields"], frame["data"]["values"]
            for f, column in zip(fields[1:], columns[1:], strict=False):
                labels = dict(f.get("labels") or {})
                labels.setdefault("__name__", f.get("name", ""))
                times = [t / 1000 for t in columns[0]]
                found.append(
                    {"metric": labels, "values": list(zip(times, column, strict=False))}
                )
        except (KeyError, TypeError, IndexError):
            continue
    return found


def _read_series(r: _Reading, series: Mapping[str, Any], query: str, number: int) -> None:
    metric = series["metric"] if isinstance(series["metric"], dict) else {}
    labels = {str(k): str(v) for k, v in metric.items() if k != "__name__"}
    named = _named(str(metric.get("__name__", "")), query)
    prepared = r.scrapes.prepare(named, labels) if named is not None else None
    points = series.get("values", [series.get("value")])
    if prepared is None:
        r.nameless += 1
        r.unread += len(points) if isinstance(points, list) else 1
        return
    for point in points if isinstance(points, list) else []:
        try:
            time, value = float(point[0]), float(point[1])
        except (TypeError, ValueError, IndexError):
            r.unread += 1
            continue
        if not is_meant(time):
            r.unread += 1
            continue
        r.points.append((time, prepared, value, number))


def _named(name: str, query: str) -> Named | None:
    if name and (named := look_up(name)) is not None:
        return named
    for word in _METRIC.findall(query):
        named = look_up(word)
        if named is None:
            continue
        if not _RATE.search(query):
            return named if name or "(" not in query else None
        columns = [u.rate for u in named.uses if u.rate]
        uses = tuple(Use(column=c, weight=3) for c in columns)
        return Named(named.engine, f"rate of {named.base}", "", uses) if uses else None
    return None


def _notes(r: _Reading, reading: JsonReading) -> Iterator[str]:
    yield from reading.notes
    yield from r.scrapes.notes
    for error in r.errors[:3]:
        yield f"Prometheus answered with an error: {error}."
    if r.nameless:
        yield (
            f"{r.nameless} series have no name that is known (rate() takes it away): keep the query beside the "
            "answer, or ask for the metric itself."
        )
    if r.recognised:
        yield "Values are those of the server's sampling; what happened between two of them is not in it."
