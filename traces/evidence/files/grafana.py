"""CSV that Grafana exports from a panel: a column a series, or a row a point.

Read in: exports of Grafana 9 to 11. The first column is Time (text, or Unix milliseconds); headers are series
("vllm:num_requests_running{engine=\"0\"}"), legends ("Running", "engine 0"), or "Value #A" beside columns of
labels; the older form has the columns Series, Time, Value. Cells may carry units ("97.3%", "1.2 K", "350 tok/s").
Where a header only says a rank or "Value", the panel's title is taken from the file's name
("KV cache usage-data-2026-05-28 12_53_45.csv"). "sep=;" may stand on top.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from traces.evidence.evidence import Found, SourceReport
from traces.evidence.files.columns import guess_column, read_cell
from traces.evidence.files.names import SHORT_NAMES, Named, Use, look_up
from traces.evidence.files.series import Scrapes
from traces.evidence.files.stamps import SourceClock, find_stamp
from traces.evidence.source import Source
from traces.telemetry_schema import VALUE_NAMES

_LABEL = re.compile(r'([\w.]+)\s*=\s*"([^"]*)"')
_TITLE = re.compile(r"^(.*?)-data(?:-as)?-.*$|^(.*?)\.csv$", re.IGNORECASE)
_RANK = re.compile(
    r"\b(?:engine|rank|dp|replica|worker)[ _=#:-]*\"?(\d+)\b|^\s*(\d{1,3})\s*$", re.IGNORECASE
)
_VALUE = re.compile(r"^Value(?: #\w+)?$", re.IGNORECASE)
_LABEL_COLUMNS = {"engine", "dp_rank", "model_name", "instance", "pod", "job", "namespace", "reason", "source", "__name__"}  # fmt: skip


def sniff(head: str, name: str) -> float:
    """High for a header with Time and series, or Series, Time and Value."""
    names = _header(head)
    low = [n.lower() for n in names]
    if len(names) < 2 or "time" not in low[:2]:
        return 0.0
    if low[:3] == ["series", "time", "value"]:
        return 0.98
    if any(_VALUE.match(n) for n in names):
        return 0.97
    if any("{" in n or look_up(n) is not None for n in names[1:]):
        return 0.97
    title = _title(name)
    ranks = all(_RANK.search(n) for n in names[1:])
    return 0.97 if ranks and title and _place("", title) is not None else 0.0


def _title(name: str) -> str:
    """The panel's title in the name of an exported file."""
    m = _TITLE.match(name.rsplit("/", 1)[-1])
    return (m[1] or m[2] or "") if m else ""


def _header(head: str) -> list[str]:
    lines = [x for x in head.splitlines()[:3] if x.strip() and not x.startswith("sep=")]
    if not lines or lines[0].lstrip()[:1] in ("{", "["):
        return []
    return [c.strip() for c in next(csv.reader([lines[0]], delimiter=_mark(lines[0])), [])]


def _mark(line: str) -> str:
    bare = re.sub(r'"[^"]*"', "", line)
    return max(",;\t", key=bare.count)


@dataclass
class _Reading:
    source: Source
    scrapes: Scrapes
    clock: SourceClock = field(default_factory=SourceClock)
    title: str = ""
    num_lines: int = 0
    recognised: int = 0
    unread: int = 0
    unknown: dict[str, None] = field(default_factory=dict)
    columns: dict[str, tuple[Named, Mapping[str, str]] | None] = field(default_factory=dict)


def read(source: Source) -> Found:
    """A sample a rank and time."""
    r = _Reading(source, Scrapes(source.name), title=_title(source.name))
    names: list[str] = []
    mark = ","
    for number, line in source.lines():
        r.num_lines = number
        if not line.strip() or (not names and line.startswith("sep=")):
            continue
        if not names:
            mark = _mark(line)
            names = [c.strip() for c in next(csv.reader([line], delimiter=mark), [])]
            continue
        cells = next(csv.reader([line], delimiter=mark), [])
        _read_row(r, dict(zip(names, cells, strict=False)), number)
    rows, facts = r.scrapes.finish()
    report = SourceReport(
        source.name,
        "table",
        "grafana",
        r.scrapes.engine() or None,
        r.num_lines,
        r.recognised,
        r.unread,
        (),
        0.9 if rows else 0.3,
        tuple(_notes(r)),
    )
    first = r.clock.at(r.scrapes.moved_s)
    return Found(report, tuple(rows), tuple(facts), (), (), first, r.clock.offset_s)


def _read_row(r: _Reading, row: Mapping[str, str], number: int) -> None:
    time = next((v for k, v in row.items() if k.lower() == "time"), "")
    stamp = find_stamp(time)
    t_s = r.clock.t_s(stamp) if stamp is not None else None
    if t_s is None:
        r.unread += 1
        return
    series = row.get("Series", row.get("series"))
    labels = {k: v for k, v in row.items() if k in _LABEL_COLUMNS and v}
    for name, cell in row.items():
        if name.lower() in ("time", "series") or name in _LABEL_COLUMNS:
            continue
        value = read_cell(cell)
        head = series if series is not None else name
        if labels.get("__name__") and _VALUE.match(name):
            head = labels["__name__"]
        found = _column(r, head)
        if value is None or found is None:
            continue
        named, own = found
        more = {k: v for k, v in labels.items() if k != "__name__"}
        series_of = r.scrapes.prepare(named, {**more, **own})
        if r.scrapes.add(r.scrapes.at(t_s, number), series_of, value, number, ""):
            r.recognised += 1


def _column(r: _Reading, head: str) -> tuple[Named, Mapping[str, str]] | None:
    if head not in r.columns:
        r.columns[head] = _place(head, r.title)
        if r.columns[head] is None:
            r.unknown[head] = None
    return r.columns[head]


def _place(head: str, title: str) -> tuple[Named, Mapping[str, str]] | None:
    """Which metric a header is: by its own name, else by its legend, else by the panel's title."""
    name, _, rest = head.partition("{")
    labels = dict(_LABEL.findall(rest))
    name = labels.pop("__name__", name).strip()
    named = look_up(name) or look_up(SHORT_NAMES.get(name, ""))
    if named is not None:
        return named, labels
    if m := _RANK.search(head):
        labels.setdefault("engine", m[1] or m[2])
    legend = re.sub(r"[-–:,|]?\s*" + _RANK.pattern, " ", name, flags=re.IGNORECASE).strip(" -")
    for text in (legend, title):
        if not text or _VALUE.match(text):
            continue
        named = look_up(text) or look_up(SHORT_NAMES.get(text.strip(), ""))
        if named is not None:
            return named, labels
        column = guess_column(text)
        if column is not None and column.target == "preemptions":
            return Named("", text, "", (Use("preemptions_total", "num_preempted"),)), labels
        if column is not None and column.target in VALUE_NAMES:
            how = "mean" if column.target.endswith("_frac") else "sum"
            return Named("", text, "", (Use(column=column.target, how=how),)), labels
    return None


def _notes(r: _Reading) -> Iterator[str]:
    yield from r.scrapes.notes
    said = [f"{k} = {v[0].base}" for k, v in r.columns.items() if v is not None]
    if said:
        yield f"Series were read as: {'; '.join(said[:12])}."
    if r.unknown:
        yield f"Series that nothing is known of: {', '.join(list(r.unknown)[:8])}."
    if r.source.damage:
        yield r.source.damage
