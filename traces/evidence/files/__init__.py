"""Readers of whole sources: metrics, tables, statistics, notes, and steps written one a line.

Each is a module with `sniff(head, name) -> float` (0: certainly not mine, 1: certainly mine) and
`read(source) -> Found`. reading.py asks all of READERS; where none is at 0.5 or above, it is a log.
"""

from __future__ import annotations

from types import ModuleType

from traces.evidence.files import (
    bench,
    engine_steps,
    grafana,
    kv_events,
    notes,
    prometheus,
    query_range,
    steps,
    tables,
)

READERS: tuple[ModuleType, ...] = (
    prometheus,
    query_range,
    grafana,
    engine_steps,
    kv_events,
    bench,
    steps,
    tables,
    notes,
)
