"""The first decision on which two logs differ, and how to show it.

Ours is the log of engine/decisions.py, theirs the one that vllm_side writes. Compared are, step by
step: running and waiting order, scheduled requests in order with tokens and computed tokens,
admissions with kind and cached tokens, victims in order with what they lost, block ids, block counts
after schedule() and after the outputs, finished and aborted ids in order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

FIELDS = (
    "step", "aborted", "running", "waiting", "scheduled", "admitted", "preempted", "new_blocks",
    "blocks", "blocks_end", "finished",
)  # fmt: skip
_COLUMNS = {
    "scheduled": ("id", "tokens", "computed_before"),
    "admitted": ("id", "kind", "cached_tokens", "tokens"),
    "preempted": ("id", "computed_tokens_lost", "blocks_held"),
}
_COUNTS = ("used", "free", "cached_used", "cached_free")
_CONTEXT = 2  # steps shown before the one that differs
_MOST_ROWS = 24


@dataclass(frozen=True)
class Difference:
    """Where two runs part (headline), and both sides of it."""

    headline: str
    detail: str

    def __str__(self) -> str:
        return f"{self.headline}\n{self.detail}"


def ours_compact(record: dict[str, Any]) -> dict[str, Any]:
    """A record of engine/decisions.py with the compared fields only, nested records as lists."""
    row = {name: record[name] for name in FIELDS}
    for name, keys in _COLUMNS.items():
        row[name] = [[entry[k] for k in keys] for entry in record[name]]
    for name in ("blocks", "blocks_end"):
        row[name] = [record[name][k] for k in _COUNTS]
    row["waiting"] = record.get("deferred", []) + record["waiting"]
    return row


def theirs_compact(record: dict[str, Any]) -> dict[str, Any]:
    """The same of a record of vllm_side; requests put aside are popped before those that wait."""
    row = {name: record[name] for name in FIELDS}
    row["waiting"] = record["deferred"] + record["waiting"]
    return row


def first_difference(ours: Path, theirs: Path, *, cut: bool = False) -> Difference | None:
    """The first step and the fields of it on which two logs differ, or None.

    cut: theirs broke off, so that nothing after its last record is compared.
    """
    before: list[dict[str, Any]] = []
    for mine, his in zip_longest(
        _records(ours, ours_compact), _records(theirs, theirs_compact)
    ):
        if his is None and cut:
            return None
        if mine is None or his is None:
            longer, other = ("vllm", "ours") if mine is None else ("ours", "vllm")
            step = (his or mine)["step"]
            head = f"{longer} takes another step ({step}) after {other} has ended"
            return Difference(head, _line(his or mine))
        if mine != his:
            return Difference(_headline(mine, his), _detail(before, mine, his))
        before = [*before[-_CONTEXT + 1 :], mine]
    return None


def _records(path: Path, compact: Any) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as handle:
        for line in handle:
            yield compact(json.loads(line))


def _headline(mine: dict[str, Any], his: dict[str, Any]) -> str:
    names = [name for name in FIELDS if mine[name] != his[name]]
    return f"step {his['step']} differs in {', '.join(names)}"


def _line(record: dict[str, Any]) -> str:
    """A step on one line."""
    tokens = sum(n for _, n, _ in record["scheduled"])
    parts = [
        f"step {record['step']}: {len(record['running'])} running, {len(record['waiting'])} waiting",
        f"{tokens} tokens",
        f"blocks {record['blocks']}",
    ]
    for name in ("admitted", "preempted", "finished", "aborted"):
        if record[name]:
            parts.append(f"{name} {json.dumps(record[name])}")
    return ", ".join(parts)


def _detail(before: list[dict[str, Any]], mine: dict[str, Any], his: dict[str, Any]) -> str:
    """The steps before, then each differing field with both sides, row under row."""
    lines = [f"  same up to  {_line(record)}" for record in before]
    for name in FIELDS:
        if mine[name] != his[name]:
            lines += ["", f"  {_title(name)}", *_rows(mine[name], his[name])]
        elif name in ("running", "waiting", "preempted") and mine[name]:
            lines += ["", f"  {name}, the same: {json.dumps(mine[name])}"]
    return "\n".join(lines)


def _title(name: str) -> str:
    if name in _COLUMNS:
        return f"{name} ({', '.join(_COLUMNS[name])})"
    if name in ("blocks", "blocks_end"):
        when = "after schedule()" if name == "blocks" else "after the outputs"
        return f"blocks {when} ({', '.join(_COUNTS)})"
    return name


def _rows(mine: Any, his: Any) -> list[str]:
    """Both sides beside each other, one entry a row, those that differ marked; long ones cut."""
    if isinstance(mine, dict):
        keys = list(dict.fromkeys((*his, *mine)))
        pairs = [(_blocks_cell(k, mine), _blocks_cell(k, his)) for k in keys]
    elif isinstance(mine, list):
        pairs = [(_cell(a), _cell(b)) for a, b in zip_longest(mine, his)]
    else:
        pairs = [(_cell(mine), _cell(his))]
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), 0)
    start = max(0, first - 3)
    shown = pairs[start : start + _MOST_ROWS]
    width = max(4, *(len(a) for a, _ in shown))
    lines = [f"      {'ours':<{width}}   vllm"]
    if start:
        lines.append(f"      ({start} the same before)")
    for a, b in shown:
        lines.append(f"    {'=' if a == b else '!'} {a:<{width}}   {b}")
    if len(pairs) > start + len(shown):
        lines.append(f"      ({len(pairs) - start - len(shown)} more)")
    return lines


def _cell(value: Any) -> str:
    """One entry; "-" where that side has none."""
    return "-" if value is None else json.dumps(value)


def _blocks_cell(key: str, side: dict[str, list[int]]) -> str:
    """A request's blocks, neighbouring ids drawn together: r1: 4-9 2."""
    if key not in side:
        return "-"
    runs: list[list[int]] = []
    for block in side[key]:
        if runs and block == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], block]
        else:
            runs.append([block])
    return f"{key}: " + " ".join("-".join(map(str, run)) for run in runs)
