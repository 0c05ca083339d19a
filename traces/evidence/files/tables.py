"""Tables that people make: sweeps (a run a row) and time series (a time or step a row).

Read in: the CSVs of tt-xla PR#5874 and tandemn-system#11, tables in threads. It takes CSV with any of the usual
separators, Markdown tables, JSON lists and JSON lines of flat objects; columns are guessed by name and unit
(columns.py), and what is guessed is said. A table with a time or a step and a value of a sample is a series;
else each row is a run. Times without a unit are seconds, unless they are too large for that.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from traces.evidence.evidence import Fact, Found, SourceReport, Value
from traces.evidence.files import notes as user_notes
from traces.evidence.files.columns import (
    SPECIAL,
    Column,
    guess_column,
    is_known,
    read_cell,
)
from traces.evidence.files.jsons import JsonReading, first_value
from traces.evidence.files.stamps import SourceClock, find_stamp
from traces.evidence.source import Source
from traces.telemetry_schema import VALUE_NAMES

MAX_ROWS = 200_000
Row = dict[str, Value | list[str] | None]
_SERIES_VALUES = {
    "num_running", "num_waiting", "num_swapped", "kv_usage_frac", "used_blocks", "free_blocks",
    "generation_tokens_per_s", "prompt_tokens_per_s", "preemptions", "iteration_tokens",
}  # fmt: skip
_PANEL_VALUES = {"num_running", "num_waiting", "kv_usage_frac"}
_RULE = re.compile(r"^\s*\|?\s*:?-{2,}:?\s*(?:\|\s*:?-{2,}:?\s*)*\|?\s*$")
MAX_ROW_CHARS = 2048  # of a line in the head: longer ones are no rows
_PAIR = re.compile(r"([A-Za-z][\w.%-]*)\s*=\s*([^\s,;]+)")
_MOST_LATENCY_S = 200.0  # a larger one without a unit is in milliseconds
_REQUEST_COLUMNS = re.compile(
    r"request_?id|user_?id|session|question_id|arrival|launch_time|hash_ids|timestamp,\s*(?:input|context)",
    re.IGNORECASE,
)


def sniff(head: str, name: str) -> float:
    """By how many columns are known: three or more are a table of ours, two of two as well."""
    names = _header(head)
    if len(names) < 2:
        return 0.0
    known = {n: c for n in names if (c := guess_column(n)) is not None}
    targets = {c.target for c in known.values()}
    said = len(targets - {"label", "time", "step", "rank", "request", "state"})
    if said == 1 and "time" in targets and len(names) == 2 and targets & _PANEL_VALUES:
        return 0.6  # one panel of a dashboard
    if _REQUEST_COLUMNS.search(",".join(names)) or said < 2:
        return 0.3 if said == 1 and {"time", "step"} & targets and len(names) <= 3 else 0.0
    share = len(known) / len(names)
    return min(0.95, 0.5 + 0.5 * share) if share >= 0.3 else 0.3


def _header(head: str) -> list[str]:
    """The columns of the first table in a head, [] where there is none."""
    text = head.lstrip()
    if text[:1] in ("{", "["):
        value = first_value(text)
        flat = isinstance(value, dict) and not any(
            isinstance(v, dict | list) for v in value.values()
        )
        return list(value) if flat else []
    lines = [x[:MAX_ROW_CHARS] for x in text.splitlines()[:200]]
    if names := _pair_names(lines):
        return names
    for above, line in pairwise(lines):
        if _is_markdown_rule(line):
            return _cells(above, "|")
    rows = [
        x
        for x in lines[:60]
        if x.strip() and not x.lstrip().startswith(("#", "*", ">", "sep="))
    ]
    rows = [x for x in rows if not _RULE.match(x) and not re.fullmatch(r"[-=+ ]{3,}", x)]
    if not rows:
        return []
    mark = _mark_of(rows)
    cells = _cells(rows[0], mark)
    words = sum(bool(re.search(r"[A-Za-z]", c)) for c in cells)
    if mark.isspace() and mark != "\t" and not _is_blank_table(rows, mark):
        return []
    return cells if len(cells) >= 2 and words >= 2 else []


def _is_blank_table(rows: list[str], mark: str) -> bool:
    """Whether rows set with blanks are as long as their header, and are numbers below words."""
    names, *below = [_cells(x, mark) for x in rows[:20]]
    return (
        bool(below)
        and all(re.match(r"[A-Za-z%(]", n) for n in names)
        and sum(len(c) == len(names) for c in below) > 0.7 * len(below)
        and sum(read_cell(c) is not None for row in below for c in row)
        > 0.6 * sum(map(len, below))
    )


def _is_markdown_rule(line: str) -> bool:
    return "|" in line and _RULE.match(line) is not None


def _pair_names(lines: list[str]) -> list[str]:
    """The names where each line is "name=value" of the same names, [] where it is not so."""
    written = [x for x in lines if x.strip() and not x.lstrip().startswith("#")]
    rows = [pairs for x in written if (pairs := _PAIR.findall(x))]  # titles stand between
    if len(rows) < 2 or len(rows[0]) < 3 or len(rows) < 0.7 * len(written):
        return []
    names = [n for n, _ in rows[0]]
    same = sum([n for n, _ in row] == names for row in rows)
    return names if same > 0.8 * len(rows) else []


def _separator(line: str) -> str:
    """ "|", a tab, ";" or ",", else blanks (two or more; single ones where all cells are words)."""
    if line.count("|") >= 2:
        return "|"
    mark = max("\t;,", key=line.count)
    if line.count(mark):
        return mark
    return "  " if re.search(r"\S\s{2,}\S+ \S", line.strip()) else " "


def _mark_of(rows: list[str]) -> str:
    """The separator of a table: of its header, and for blanks of the rows below it too."""
    mark = _separator(rows[0])
    if mark == "  ":
        below = [
            x for x in rows[1:] if not _RULE.match(x) and not re.fullmatch(r"[-=+ ]{3,}", x)
        ]
        if below and len(below[0].split()) == len(rows[0].split()):
            return " "
    return mark


def _cells(line: str, mark: str) -> list[str]:
    if mark == "|":
        return [c.strip().strip("*`") for c in line.strip().strip("|").split("|")]
    if mark in ("  ", " "):
        cells = re.split(r"\s{2,}" if mark == "  " else r"\s+", line.strip())
        return cells if len(cells) >= 3 else []
    return [c.strip() for c in next(csv.reader([line], delimiter=mark), [])]


@dataclass
class _Table:
    """columns: name -> what it is; rows: (line, line's text, name -> cell)."""

    columns: dict[str, Column | None] = field(default_factory=dict)
    prose: list[tuple[int, str]] = field(default_factory=list)  # around a Markdown table
    num_lines: int = 0
    num_rows: int = 0
    num_skipped: int = 0
    skipped: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read(source: Source) -> Found:
    """Sweeps or samples of the table's rows."""
    table = _Table()
    rows = list(_rows(source, table))
    _set_units(table, rows)
    targets = {c.target for c in table.columns.values() if c}
    snapshot = "rank" in targets and bool(targets & _PANEL_VALUES) and "clients" not in targets
    series = snapshot or (bool(targets & {"time", "step"}) and bool(targets & _SERIES_VALUES))
    told = "; ".join(f"{n} = {c.target}" for n, c in table.columns.items() if c)
    unknown = [n for n, c in table.columns.items() if c is None]
    notes = [f"Columns were read as: {told}."]
    if unknown:
        notes.append(f"Columns that nothing is known of: {', '.join(unknown[:12])}.")
    notes += table.notes
    first: str | None = None
    offset: float | None = None
    samples: list[Row] = []
    sweeps: list[Mapping[str, Value]] = []
    facts: list[Fact] = []
    if series:
        clock = SourceClock()
        samples = _samples(source, table, rows, clock)
        facts += _pool(table, rows)
        first, offset = clock.first_time, clock.offset_s
    else:
        sweeps, facts = _sweeps(source, table, rows)
    facts += _said_around(source, table)
    report = SourceReport(
        source.name,
        "table",
        "series" if series else "sweep",
        None,
        table.num_lines,
        len(rows),
        table.num_skipped,
        tuple(table.skipped),
        0.8,
        tuple(notes),
    )
    return Found(report, tuple(samples), tuple(facts), (), tuple(sweeps), first, offset)


def _said_around(source: Source, table: _Table) -> list[Fact]:
    """What the sentences before and after a table state."""
    found: list[Fact] = []
    for number, line in table.prose[:200]:
        if line.count("|") < 2:
            about = user_notes.read(Source.from_text(source.name, line))
            found += [replace(f, at=source.line(number, line)) for f in about.facts]
    return found


def _rows(source: Source, table: _Table) -> Iterator[tuple[int, Mapping[str, Any]]]:
    head = source.head.lstrip()
    if head[:1] in ("{", "["):
        yield from _json_rows(source, table)
        return
    lines = source.head.splitlines()[:200]
    pairs = bool(_pair_names(lines))
    markdown = not pairs and any(_is_markdown_rule(x) for x in lines)
    names: list[str] = []
    above, mark = "", "|"
    for number, line in source.lines():
        table.num_lines = number
        if markdown and _is_markdown_rule(line):
            names = _cells(above, "|")
            table.columns |= {n: guess_column(n) for n in names}
        elif (
            line.strip()
            and not _RULE.match(line)
            and not line.lstrip().startswith(("#", "sep="))
        ):
            if pairs:
                row = dict(_PAIR.findall(line))
                table.columns |= {n: guess_column(n) for n in row if n not in table.columns}
            elif not names and not markdown:
                mark = _mark_of(
                    [x for x in lines if x.strip() and not x.lstrip().startswith(("#", "sep="))]
                )
                names = _cells(line, mark)
                table.columns = {n: guess_column(n) for n in names}
                row = None
            else:
                row = _row_of(line, names, mark)
            if row:
                table.num_rows += 1
                yield number, row
            elif row is not None and markdown:
                table.prose.append((number, line))
            elif row is not None and not markdown:
                table.num_skipped += 1
                table.skipped = [*table.skipped, line.strip()[:200]][:5]
        above = line
        if table.num_rows >= MAX_ROWS:
            table.notes.append(f"Only the first {MAX_ROWS:,} rows were read.")
            return


def _row_of(line: str, names: list[str], mark: str) -> dict[str, str]:
    """The cells of a row by column, {} where the line is none (a header above its rule, prose)."""
    cells = _cells(line, mark) if mark != "|" or line.count("|") >= 2 else []
    if len(cells) < 2 or not names or len(cells) > len(names) + 1:
        return {}
    return dict(zip(names, cells, strict=False))


def _json_rows(source: Source, table: _Table) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reading = JsonReading(source)
    for number, value in reading.values():
        if not isinstance(value, dict) or table.num_rows >= MAX_ROWS:
            table.num_skipped += 1
            continue
        for name in value:
            if name not in table.columns:
                table.columns[name] = guess_column(name)
        table.num_rows += 1
        yield number, value
    table.num_lines = reading.num_lines
    table.num_skipped += reading.num_skipped
    table.skipped = reading.skipped
    table.notes += reading.notes


def _set_units(table: _Table, rows: list[tuple[int, Mapping[str, Any]]]) -> None:
    """Latencies without a unit that would be minutes long are milliseconds; shares above 1.5 or of a
    column that says so are per cent."""
    for name, column in table.columns.items():
        if column is not None and column.target.endswith("_frac"):
            cells = [str(r.get(name, "")) for _, r in rows]
            shares = [v for c in cells if isinstance(v := column.value(c), int | float)]
            written = any("%" in c for c in cells)
            named = re.search(r"%|pct|percent", name, re.IGNORECASE)
            if not written and (max(shares, default=0.0) > 1.5 or named):
                table.columns[name] = Column(column.target, 0.01)
        if column is None or column.unit_said:
            continue
        values = [v for _, r in rows if isinstance(v := column.value(r.get(name)), int | float)]
        if values and max(values) > _MOST_LATENCY_S:
            table.columns[name] = Column(column.target, 1e-3)
            table.notes.append(f"{name} has no unit; its numbers are read as milliseconds.")


def _values(table: _Table, row: Mapping[str, Any]) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, column in table.columns.items():
        if column is None or column.target in found:
            continue
        value = column.value(row.get(name))
        if value is not None and not (isinstance(value, int | float) and value < 0):
            found[column.target] = value
    return found


def _sweeps(
    source: Source, table: _Table, rows: list[tuple[int, Mapping[str, Any]]]
) -> tuple[list[Mapping[str, Value]], list[Fact]]:
    sweeps: list[Mapping[str, Value]] = []
    for _, row in rows:
        values = _values(table, row)
        kept = {k: v for k, v in values.items() if is_known(k)}
        if set(kept) - {"label"}:
            sweeps.append(kept)
    facts = []
    for name in (
        "pool_tokens",
        "max_model_len",
        "block_size",
        "prompt_tokens",
        "output_tokens",
    ):
        said = {s[name] for s in sweeps if name in s}
        if len(said) == 1:
            at = source.line(rows[0][0], "")
            note = "the same in every row of the table"
            facts.append(Fact(name, said.pop(), at, inferred=True, note=note))
    return sweeps, facts


def _samples(
    source: Source, table: _Table, rows: list[tuple[int, Mapping[str, Any]]], clock: SourceClock
) -> list[Row]:
    counts: dict[Value | None, list[int]] = {}
    values = [(n, _values(table, r)) for n, r in rows]
    for _, v in values:
        if isinstance(v.get("preemptions"), int):
            counts.setdefault(v.get("rank"), []).append(v["preemptions"])  # type: ignore[arg-type]
    is_counter = all(c == sorted(c) for c in counts.values())
    zero: float | None = None
    last: dict[Value | None, Mapping[str, Value]] = {}
    samples: list[Row] = []
    for number, v in values:
        row: Row = {k: x for k, x in v.items() if k in VALUE_NAMES and k not in SPECIAL}
        row |= {"source": source.name, "line": number, "num_lines": 1}
        inferred: list[str] = []
        if isinstance(v.get("step"), int):
            row["step"] = v["step"]
        if isinstance(v.get("rank"), int):
            row["engine_rank"] = v["rank"]
        t_s, zero = _time(v.get("time"), zero, clock)
        row["t_s"] = t_s
        now, old = v.get("preemptions"), last.get(v.get("rank"), {}).get("preemptions")
        if isinstance(now, int):
            row["preemptions_total" if is_counter else "num_preempted"] = now
            if is_counter and isinstance(old, int):
                row["num_preempted"] = now - old
                inferred.append("num_preempted")
        last[v.get("rank")] = v
        row["inferred"] = inferred
        samples.append({k: x for k, x in row.items() if x is not None})
    return samples


def _pool(table: _Table, rows: list[tuple[int, Mapping[str, Any]]]) -> list[Fact]:
    """The pool, where a series has used and free blocks."""
    sums: list[float] = []
    for _, row in rows:
        v = _values(table, row)
        used, free = v.get("used_blocks"), v.get("free_blocks")
        if isinstance(used, int | float) and isinstance(free, int | float):
            sums.append(used + free)
    if not sums:
        return []
    note = "used and free blocks together"
    return [Fact("pool_blocks", round(max(sums)), inferred=True, note=note)]


def _time(
    cell: Value | None, zero: float | None, clock: SourceClock
) -> tuple[float | None, float | None]:
    """t_s of a cell: a date, a time of day, Unix seconds, or seconds from anywhere."""
    if cell is None:
        return None, zero
    text = str(cell)
    try:
        seconds = float(text)
    except ValueError:
        stamp = find_stamp(text)
        t_s = clock.t_s(stamp) if stamp is not None else None
        return (t_s if t_s is None or t_s >= 0 else None), zero
    if 1.3e9 < seconds < 2.2e9 or seconds > 1e12:
        stamp = find_stamp(text)
        if stamp is not None:
            return clock.t_s(stamp), zero
    zero = seconds if zero is None else zero
    return max(0.0, seconds - zero), zero
