"""A log of every decision, one JSON record a step, with the parity harness's field names.

It looks at the core between phases and writes what it sees; it changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from engine.config import EngineSettings
from engine.core.state import State
from engine.simulator import simulate_by_step
from traces.errors import SettingsError
from traces.workload import Workload

_FIRST = b'{"step":'  # how every line of a log begins


def waiting_order(s: State) -> list[int]:
    """Requests of the waiting queue in the order in which they would be popped."""
    c = s.c[0]
    if c.heap_size:
        waiting = s.requests.heap[: c.heap_size]
        return [int(r) for r in waiting[np.argsort(s.requests["rank"][waiting])]]
    head = len(s.requests) - 1
    order = []
    r = int(s.requests[head]["wait_next"])
    while r != head:
        order.append(r)
        r = int(s.requests[r]["wait_next"])
    return order


def _blocks(s: State) -> dict[str, int]:
    c = s.c[0]
    usable = len(s.blocks) - 1
    return {
        "usable": usable,
        "used": usable - int(c.num_free),
        "free": int(c.num_free),
        "cached_used": int(c.cached_used),
        "cached_free": int(c.cached_free),
    }


def step_record(s: State, ids: np.ndarray) -> dict[str, Any]:
    """What the schedule() call just made decided."""
    c, seats, noted = s.c[0], s.seats, s.noted
    cached = {
        int(r): int(n)
        for r, n in zip(noted.admitted[: c.num_admitted], noted.admitted_cached, strict=False)
    }
    scheduled, new_blocks, admitted = [], {}, []
    for i in range(c.num_sched):
        r, n = int(seats.sched_req[i]), int(seats.sched_tok[i])
        q = s.requests[r]
        before = int(q.num_computed) - n
        scheduled.append({"id": ids[r], "tokens": n, "computed_before": before})
        first = 0 if r in cached else int(seats.sched_new_from[i])
        row = s.table[q.slot, first : q.num_blocks]
        if r in cached or len(row):
            new_blocks[ids[r]] = [int(b) for b in row]
        if r in cached:
            kind = "resumed" if q.num_preemptions else "new"
            admitted.append(
                {"id": ids[r], "kind": kind, "cached_tokens": cached[r], "tokens": n}
            )
    preempted = [
        {
            "id": ids[noted.preempted[k]],
            "computed_tokens_lost": int(noted.preempted_tokens[k]),
            "blocks_held": int(noted.preempted_blocks[k]),
        }
        for k in range(c.num_preempted)
    ]
    return {
        "step": int(c.step),
        "running": [ids[r] for r in seats.running[: c.num_running]],
        "waiting": [ids[r] for r in waiting_order(s)],
        "deferred": [ids[r] for r in s.requests.deferred[: c.num_deferred]],
        "swapped": [ids[r] for r in s.requests.swap_queue[: c.num_swapped]],
        "scheduled": scheduled,
        "admitted": admitted,
        "preempted": preempted,
        "aborted": [ids[r] for r in s.requests.aborted[: c.num_aborted]],
        "new_blocks": new_blocks,
        "blocks": _blocks(s),
        "finished": [],
    }


def write_decisions(
    workload: Workload,
    settings: EngineSettings,
    out_dir: str | Path,
    decisions: str | Path,
    *,
    overwrite: bool = False,
) -> str:
    """Run, record, and write one line a step to `decisions`; returns the run's status.

    Raises: SettingsError if the file cannot be written.
    """
    _refuse_to_replace(Path(decisions), overwrite)
    try:
        with Path(decisions).open("w", encoding="utf-8") as handle:
            return _write_all(
                handle, simulate_by_step(workload, settings, out_dir, overwrite=overwrite)
            )
    except OSError as error:
        raise SettingsError(
            f"{decisions}: cannot write the decisions ({error.strerror}). Give another file."
        ) from None


def _refuse_to_replace(path: Path, overwrite: bool) -> None:
    """Raise SettingsError where the file holds anything but an earlier log of decisions."""
    try:
        with path.open("rb") as handle:
            start = handle.read(len(_FIRST))
    except (OSError, ValueError):
        return  # nothing there, or it says so when it is opened to write
    if start and start != _FIRST and not overwrite:
        raise SettingsError(
            f"{path}: the file exists and is no log of decisions; it is left as it is. Give another --decisions file."
        )


def _write_all(handle: IO[str], phases: Iterator[tuple[str, State, np.ndarray]]) -> str:
    """One line a step; the run's status."""
    record: dict[str, Any] | None = None
    status = "completed"
    for phase, s, ids in phases:
        finished = [ids[r] for r in s.noted.finished[: s.c[0].num_finished]]
        if phase == "scheduled":
            _write(handle, record)
            record = step_record(s, ids)
        elif phase == "processed":
            assert record is not None
            record["finished"] += finished
            record["blocks_end"] = _blocks(s)
        elif phase != "drained":
            status = phase
        elif record is not None:
            record["finished"] += finished
    _write(handle, record)
    return status


def _write(handle: IO[str], record: dict[str, Any] | None) -> None:
    if record is not None:
        handle.write(json.dumps(record, separators=(",", ":")) + "\n")
