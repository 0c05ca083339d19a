"""Traces that somebody wrote for themselves: one line a step, with names and numbers.

Read in: the trace of vllm PR#52530 ("step 12 sched=1 computed=1008 seq_len=1009 free=0 RUNNING preempt=0").
It knows "name=value" and "name: value" with blanks inside, a word for the state of the request, settings in a
comment line on top ("block_size=16 num_gpu_blocks=69 (1 null)"), several requests a step, and preemptions as a
counter or per step (they are a counter where they never fall). Used blocks follow from free ones and the pool.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from traces.evidence.evidence import Fact, Found, Line, Notice, SourceReport, Value
from traces.evidence.files import notes as user_notes
from traces.evidence.files.columns import Column, guess_column
from traces.evidence.meant import is_meant
from traces.evidence.source import Source

_PAIR = re.compile(r"([A-Za-z#][\w#/-]*)\s*[=:]\s*(-?\d+(?:\.\d+)?%?)(?![\w.:])")
_STEP = re.compile(r"\b(?:step|iter(?:ation)?|tick)\s*[#=:]?\s*(\d+)\b", re.IGNORECASE)
_TIME = re.compile(r"\b(?:t|time|elapsed)\s*[=:]\s*(\d+(?:\.\d+)?)\s*(ms|s)?\b", re.IGNORECASE)
_STATE = re.compile(r"\b(RUNNING|WAITING|PREEMPTED|SWAPPED|FINISHED(?:_\w+)?|EVICTED)\b")
_REQUEST = re.compile(
    r"\b(?:req(?:uest)?(?:_id)?|seq(?:_id)?|rid)\s*[=:#]\s*([\w-]+)", re.IGNORECASE
)
_POOL = re.compile(r"\bnum_gpu_blocks\s*[=:]\s*(\d+)(?:\s*\((\d+)\s*null\))?")
_COMMENT = re.compile(r"^\s*(?:#|//|--|;)")
MAX_STEPS = 200_000
Row = dict[str, Value | list[str] | None]


def sniff(head: str, name: str) -> float:
    """High where most lines are steps with two known names or more."""
    lines = [x for x in head.splitlines()[:400] if x.strip() and not _COMMENT.match(x)]
    if len(lines) < 2 or re.match(r"\s*(?:\{|\[\s*[\{\[])", lines[0]):
        return 0.0
    hits = sum(1 for x in lines if _STEP.search(x) and len(_known(x)) >= 2)
    logs = sum(1 for x in lines if re.search(r"\b(INFO|WARNING|DEBUG)\b.*\d\d:\d\d|\[TRT", x))
    return 0.97 if hits > 0.6 * len(lines) and logs < 0.1 * len(lines) else 0.0


@dataclass
class _Step:
    """What the lines of one step say."""

    index: int
    at: Line
    t_s: float | None = None
    values: dict[str, float] = field(default_factory=dict)
    states: list[str] = field(default_factory=list)
    requests: dict[str, float] = field(default_factory=dict)  # computed tokens by request
    produced: dict[str, float] = field(default_factory=dict)


def read(source: Source) -> Found:
    """A sample a step, facts of the comment lines, a notice for each preemption."""
    steps: list[_Step] = []
    comments: list[tuple[int, str]] = []
    num_lines = recognised = 0
    skipped: list[str] = []
    notes = ["The names are somebody's own; they were read as they are usually meant."]
    columns: dict[str, Column | None] = {}
    for number, line in source.lines():
        num_lines = number
        if not line.strip():
            continue
        if len(steps) >= MAX_STEPS:
            notes.append(f"Only the first {MAX_STEPS:,} steps were read.")
            break
        m = _STEP.search(line)
        if m is None or _COMMENT.match(line):
            if _COMMENT.match(line) or not steps:
                comments.append((number, line))
            else:
                skipped.append(line.strip()[:200])
            continue
        recognised += 1
        _read_step(steps, int(m[1]), line, source.line(number, line), columns)
    facts = _facts(source, comments)
    pool = _add_pool(source, comments, facts, steps)
    rows, found_notices = _samples(source, steps, pool)
    report = SourceReport(
        source.name,
        "steps",
        "step-trace",
        None,
        num_lines,
        recognised + sum(1 for f in facts if f.at),
        len(skipped),
        tuple(skipped[:5]),
        0.8,
        tuple(notes),
    )
    return Found(report, tuple(rows), tuple(facts), tuple(found_notices))


def _known(line: str) -> dict[str, float]:
    found = {}
    for key, value in _PAIR.findall(line):
        column = guess_column(key)
        if column is not None and column.target != "label":
            number = float(value.rstrip("%"))
            if is_meant(number):
                found[column.target] = number
    return found


def _read_step(
    steps: list[_Step], index: int, line: str, at: Line, columns: dict[str, Column | None]
) -> None:
    if not steps or steps[-1].index != index:
        steps.append(_Step(index, at))
    step = steps[-1]
    if (time := _TIME.search(line)) and step.t_s is None:
        step.t_s = float(time[1]) * (1e-3 if time[2] == "ms" else 1.0)
    step.at = replace(step.at, num_lines=at.number - step.at.number + 1)
    m = _REQUEST.search(line)
    who = m[1] if m else ""
    for key, text in _PAIR.findall(line):
        if key not in columns:
            columns[key] = guess_column(key)
        column = columns[key]
        if column is None:
            continue
        value = column.value(text)
        if not isinstance(value, int | float):
            continue
        if column.target == "computed_tokens":
            step.requests[who] = value
        elif column.target == "produced_tokens":
            step.produced[who] = value
        elif column.target == "iteration_tokens":
            step.values[column.target] = step.values.get(column.target, 0) + value
        else:
            step.values[column.target] = value
    if state := _STATE.search(line):
        step.states.append(state[1])


def _facts(source: Source, comments: list[tuple[int, str]]) -> list[Fact]:
    """Settings of the comment lines, with their lines."""
    facts: list[Fact] = []
    for number, line in comments:
        found = user_notes.read(Source.from_text(source.name, line.lstrip(" #/;-") or "-"))
        facts += [
            replace(f, at=source.line(number, line))
            for f in found.facts
            if f.name not in ("pool_blocks", "null_blocks", "version")
        ]
    return facts


def _add_pool(
    source: Source, comments: list[tuple[int, str]], facts: list[Fact], steps: list[_Step]
) -> int | None:
    """Usable blocks: as stated less the null block, else used and free ones, else the most free."""
    most_free = (
        round(max((s.values.get("free_blocks", 0.0) for s in steps), default=0.0)) or None
    )
    for number, line in comments:
        if m := _POOL.search(line):
            at, blocks = source.line(number, line), int(m[1])
            null = int(m[2]) if m[2] else (1 if most_free == blocks - 1 else 0)
            facts.append(Fact("pool_blocks", blocks - null, at))
            facts.append(Fact("null_blocks", null, at, inferred=m[2] is None))
            return blocks - null
    both = [s.values for s in steps if {"used_blocks", "free_blocks"} <= set(s.values)]
    if both:
        blocks = round(max(v["used_blocks"] + v["free_blocks"] for v in both))
        facts.append(
            Fact("pool_blocks", blocks, inferred=True, note="used and free blocks together")
        )
        return blocks
    if most_free:
        why = "the most blocks that were free; the pool has at least as many"
        facts.append(Fact("pool_blocks", most_free, inferred=True, note=why))
    return most_free


def _samples(
    source: Source, steps: list[_Step], pool: int | None
) -> tuple[list[Row], list[Notice]]:
    counts = [s.values["preemptions"] for s in steps if "preemptions" in s.values]
    is_counter = counts == sorted(counts)
    if max((s.values.get("kv_usage_frac", 0.0) for s in steps), default=0.0) > 1.5:
        for s in steps:
            if "kv_usage_frac" in s.values:
                s.values["kv_usage_frac"] /= 100  # per cent
    times = [s.t_s for s in steps if s.t_s is not None]
    timed = times == sorted(times) and max(times, default=0.0) < 1e9
    rows: list[Row] = []
    found: list[Notice] = []
    before: _Step | None = None
    for step in steps:
        row: Row = {
            "step": step.index,
            "source": source.name,
            "line": step.at.number,
            "num_lines": step.at.num_lines,
        }
        if timed and step.t_s is not None:
            row["t_s"] = step.t_s
        inferred: list[str] = []
        _copy(row, step.values)
        _write_blocks(row, inferred, step.values, pool)
        if step.states and "num_running" not in row:
            row["num_running"] = sum(s == "RUNNING" for s in step.states)
            row["num_waiting"] = sum(
                s in ("WAITING", "PREEMPTED", "EVICTED") for s in step.states
            )
            row["num_swapped"] = sum(s == "SWAPPED" for s in step.states)
            inferred += ["num_running", "num_waiting", "num_swapped"]
        if step.produced:
            row["generation_tokens_total"] = round(sum(step.produced.values()))
        gained = _preemptions(row, inferred, step, before, is_counter)
        lost = _lost(step, before)
        if gained or "PREEMPTED" in step.states:
            if lost:
                row["recomputed_tokens"] = lost
                inferred.append("recomputed_tokens")
            count = step.values.get("preemptions")
            said = {} if lost is None else {"tokens": lost}
            found.append(
                Notice(
                    "preemption",
                    step.at,
                    step.t_s if timed else None,
                    None,
                    None if count is None else int(count),
                    said,
                )
            )
        row["inferred"] = inferred
        rows.append(row)
        before = step
    return rows, found


def _copy(row: Row, values: Mapping[str, float]) -> None:
    for name in (
        "num_running",
        "num_waiting",
        "num_swapped",
        "used_blocks",
        "kv_usage_frac",
        "iteration_tokens",
    ):
        if name in values:
            row[name] = values[name] if name == "kv_usage_frac" else round(values[name])


def _write_blocks(
    row: Row, inferred: list[str], values: Mapping[str, float], pool: int | None
) -> None:
    if pool is None:
        return
    if "used_blocks" not in row and "free_blocks" in values:
        row["used_blocks"] = max(0, pool - round(values["free_blocks"]))
        inferred.append("used_blocks")
    used = row.get("used_blocks")
    if "kv_usage_frac" not in row and isinstance(used, int) and pool:
        row["kv_usage_frac"] = used / pool
        inferred.append("kv_usage_frac")


def _preemptions(
    row: Row, inferred: list[str], step: _Step, before: _Step | None, is_counter: bool
) -> int:
    """Preemptions of the step; writes counter and gain."""
    now = step.values.get("preemptions")
    if now is None:
        return 0
    if not is_counter:
        row["num_preempted"] = int(now)
        return int(now)
    row["preemptions_total"] = int(now)
    last = before.values.get("preemptions") if before else None
    if last is None:
        return 0
    row["num_preempted"] = int(now - last)
    inferred.append("num_preempted")
    return int(now - last)


def _lost(step: _Step, before: _Step | None) -> int | None:
    """Computed tokens that requests no longer have; None where the trace does not say computed."""
    if before is None or not step.requests:
        return None
    return round(sum(max(0.0, n - step.requests.get(w, n)) for w, n in before.requests.items()))
