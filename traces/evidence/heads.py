"""What a record's own head says: when it was written, and by which ranks.

A head is what the engine itself puts before its words ("INFO 10-14 16:59:26 [loggers.py:123]",
"[2025-03-07 21:49:33 DP1 TP0]", "I0514 21:01:55.091004"); prefixes of collectors are off by now (records.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LEVEL = r"(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL|FATAL)"
_FRACTION = r"(?:[.,]\d+)?"
_HEAD = re.compile(
    rf"\b{_LEVEL}:? +(?P<a>(?:\d{{4}}-)?\d\d-\d\d \d\d:\d\d:\d\d{_FRACTION})"
    rf"|\[(?P<b>(?:\d{{4}}-\d\d-\d\d[ T])?\d\d:\d\d:\d\d{_FRACTION})(?P<ranks>(?: [A-Za-z]+\d{{1,6}})*)\]"
    rf"|^[IWEF](?P<c>\d{{4}} \d\d:\d\d:\d\d\.\d+) "
    rf"|\[(?P<d>\d\d/\d\d/\d{{4}}-\d\d:\d\d:\d\d)\]"
    rf"|^(?P<e>\d{{4}}-\d\d-\d\d[ T]\d\d:\d\d:\d\d{_FRACTION})"
    rf"|^(?P<f>\d\d:\d\d:\d\d{_FRACTION})\b"
    r"|^\[(?P<g>(?:DP|TP|PP|EP)\d{1,6}(?: (?:DP|TP|PP|EP)\d{1,6})*)\]"
)
_JSON_HEAD = re.compile(
    r"[Tt]imestamp\\?\"?(?:: ?| = )\\?\"?(\d[\d-]{7,9}[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?Z?)"
)
_MACHINE_RANK = re.compile(r"_DP(\d{1,6})(?!\d)|\bDP(\d{1,6})\b")


@dataclass(slots=True)
class Head:
    """What a record's own head says: stamp, data-parallel rank, tensor-parallel rank."""

    stamp: str | None = None
    dp: int | None = None
    tp: str | None = None


def read_head(text: str, process: str) -> Head:
    """The stamp and ranks that a record carries."""
    match = _HEAD.search(text, 0, 300)
    head = Head()
    if match is not None:
        g = match.groupdict()
        head.stamp = g["a"] or g["b"] or g["c"] or g["d"] or g["e"] or g["f"]
        for name in (g["ranks"] or g["g"] or "").split():
            if name.startswith("DP"):
                head.dp = int(name[2:])
            elif name.startswith("TP"):
                head.tp = name[2:]
    elif (match := _JSON_HEAD.search(text)) is not None:
        head.stamp = match[1]
    if process and (rank := _MACHINE_RANK.search(process)):
        head.dp = int(rank[1] or rank[2])
    return head
