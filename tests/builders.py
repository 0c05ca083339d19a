"""Small recordings made by hand: a test states the columns it is about, the rest is filled in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from traces.recording import Recording, open_recording, write_recording
from traces.schema import BLOCKS, EVENTS, REQUESTS, SCHEMA_VERSION, STEPS, Table

POOL = 10


def make_meta(pool: int = POOL, **changes: Any) -> dict[str, Any]:
    """Metadata as an engine writes it; keyword arguments replace top-level entries."""
    meta: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "executor": "simulator",
        "clock": "modelled",
        "settings": {
            "num_gpu_blocks": pool + 1,
            "block_size": 4,
            "preemption_mode": "recompute",
            "policy": "fcfs",
        },
        "pool_blocks": pool,
        "host_pool_blocks": 0,
        "block_bytes": 1024,
        "workload": {
            "name": "hand",
            "format": "hand",
            "digest": "d" * 32,
            "num_requests": 0,
            "notes": [],
        },
        "seed": 0,
        "software": {"kv_replay": "0"},
    }
    return {**meta, **changes}


def _table(
    spec: Table, columns: Mapping[str, Iterable[Any]], defaults: Mapping[str, Any]
) -> pa.Table:
    columns = {k: list(v) for k, v in columns.items()}
    unknown = set(columns) - set(spec.names)
    if unknown:
        raise KeyError(f"{spec.name} has no column {sorted(unknown)}")
    rows = max((len(v) for v in columns.values()), default=0)
    arrays = []
    for c in spec.columns:
        fill = defaults.get(
            c.name, None if c.nullable else ("" if pa.types.is_string(c.type) else 0)
        )
        arrays.append(pa.array(columns.get(c.name, [fill] * rows), type=c.type))
    return pa.table(arrays, schema=spec.arrow)


def make_steps(used: Iterable[int], pool: int = POOL, **columns: Iterable[Any]) -> pa.Table:
    """`steps` with the given used blocks; one second a step from 0 unless told otherwise."""
    used = list(used)
    durations = list(columns.get("duration_s", [1.0] * len(used)))
    starts = [sum(durations[:i]) for i in range(len(used))]
    filled: dict[str, Iterable[Any]] = {
        "step": range(len(used)),
        "t_start_s": starts,
        "duration_s": durations,
        "used_blocks": used,
        "free_blocks": [pool - u for u in used],
        **columns,
    }
    return _table(STEPS, filled, {})


def make_events(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """`events` from dicts; t_s defaults to the step number."""
    rows = list(rows)
    columns = {
        name: [
            r.get(name, r["step"] * 1.0 if name == "t_s" else _event_default(name))
            for r in rows
        ]
        for name in EVENTS.names
    }
    return _table(EVENTS, columns, {})


def _event_default(name: str) -> Any:
    return None if EVENTS.column(name).nullable else 0


def make_requests(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """`requests` from dicts; status is finished where finish_s is given, else unfinished."""
    rows = list(rows)
    columns: dict[str, list[Any]] = {n: [] for n in REQUESTS.names}
    for row in rows:
        unknown = set(row) - set(REQUESTS.names)
        if unknown:
            raise KeyError(f"requests has no column {sorted(unknown)}")
        ended = "finished" if row.get("finish_s") is not None else "unfinished"
        for c in REQUESTS.columns:
            default = ended if c.name == "status" else (None if c.nullable else 0)
            columns[c.name].append(row.get(c.name, default))
    return _table(REQUESTS, columns, {})


def make_blocks(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """`blocks` from dicts with all columns."""
    rows = list(rows)
    return _table(BLOCKS, {n: [r[n] for r in rows] for n in BLOCKS.names}, {})


def write(
    root: Path,
    steps: pa.Table | None = None,
    events: pa.Table | None = None,
    requests: pa.Table | None = None,
    blocks: pa.Table | None = None,
    meta: Mapping[str, Any] | None = None,
    **options: Any,
) -> Path:
    """Write a recording of these tables, empty ones where none is given; returns its folder."""
    tables = {
        "steps": make_steps([]) if steps is None else steps,
        "events": make_events([]) if events is None else events,
        "requests": make_requests([]) if requests is None else requests,
    }
    if blocks is not None:
        tables["blocks"] = blocks
    root.mkdir(parents=True, exist_ok=True)
    return write_recording(root, tables, make_meta() if meta is None else meta, **options)


def record(root: Path, **tables: Any) -> Recording:
    """Write and open a recording of these tables."""
    return open_recording(write(root, **tables))
