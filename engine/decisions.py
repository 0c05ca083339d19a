"""A log of every decision, one JSON record a step, with the parity harness's field names.

It looks at the core between phases and writes what it sees; it changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from engine.config import EngineSettings
from engine.core.state import State
from engine.simulator import simulate_by_step
from traces.errors import SettingsError
from traces.workload import Workload

if TYPE_CHECKING:
    from engine.recorded_times import RecordedTimes

_FIRST = b'{"step":'  # how every line of a log begins


def waiting_order(s: State) -> list[int]:
    """Requests of the waiting queue in the order in which they would be popped."""
    requests = _plain(s.requests)
    heap_size = int(s.c[0].heap_size)
    if heap_size:
        waiting = requests["heap"][:heap_size]
        return waiting[np.argsort(requests["rank"][waiting])].tolist()
    following = requests["wait_next"]
    head = len(requests) - 1
    order = []
    r = int(following[head])
    while r != head:
        order.append(r)
        r = int(following[r])
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
    c, seats, noted = _plain(s.c)[0], _plain(s.seats), _plain(s.noted)
    requests = _plain(s.requests)
    new = noted[: c["num_admitted"]]
    cached = dict(zip(new["admitted"].tolist(), new["admitted_cached"].tolist(), strict=True))
    row = seats[: c["num_sched"]]
    who = row["sched_req"]
    q = requests[who]
    tokens = row["sched_tok"].tolist()
    names = ids[who].tolist()
    before = (q["num_computed"] - row["sched_tok"]).tolist()
    scheduled = [
        {"id": i, "tokens": n, "computed_before": b}
        for i, n, b in zip(names, tokens, before, strict=True)
    ]
    again = q["num_preemptions"].tolist()
    slots, held, first = q["slot"], q["num_blocks"], row["sched_new_from"]
    new_blocks, admitted = {}, []
    for k in np.flatnonzero((held > first) | np.isin(who, new["admitted"])).tolist():
        r = int(who[k])
        blocks = s.table[slots[k], 0 if r in cached else first[k] : held[k]].tolist()
        if r in cached or blocks:
            new_blocks[names[k]] = blocks
        if r in cached:
            kind = "resumed" if again[k] else "new"
            admitted.append(
                {"id": names[k], "kind": kind, "cached_tokens": cached[r], "tokens": tokens[k]}
            )
    victims = noted[: c["num_preempted"]]
    preempted = [
        {"id": i, "computed_tokens_lost": lost, "blocks_held": blocks}
        for i, lost, blocks in zip(
            ids[victims["preempted"]].tolist(),
            victims["preempted_tokens"].tolist(),
            victims["preempted_blocks"].tolist(),
            strict=True,
        )
    ]
    return {
        "step": int(c["step"]),
        "running": ids[seats["running"][: c["num_running"]]].tolist(),
        "waiting": ids[waiting_order(s)].tolist(),
        "deferred": ids[requests["deferred"][: c["num_deferred"]]].tolist(),
        "swapped": ids[requests["swap_queue"][: c["num_swapped"]]].tolist(),
        "scheduled": scheduled,
        "admitted": admitted,
        "preempted": preempted,
        "aborted": ids[requests["aborted"][: c["num_aborted"]]].tolist(),
        "new_blocks": new_blocks,
        "blocks": _blocks(s),
        "finished": [],
    }


def _plain(records: Any) -> np.ndarray:
    """The same memory without attribute access, which costs more than all the rest of a record."""
    return records.view(np.ndarray)


def write_decisions(
    workload: Workload,
    settings: EngineSettings,
    out_dir: str | Path,
    decisions: str | Path,
    *,
    overwrite: bool = False,
    blocks: bool = False,
    times: RecordedTimes | None = None,
) -> str:
    """Run, record, and write one line a step to `decisions`; returns the run's status.

    Raises: SettingsError if the file cannot be written.
    """
    _refuse_to_replace(Path(decisions), overwrite)
    try:
        with Path(decisions).open("w", encoding="utf-8") as handle:
            phases = simulate_by_step(
                workload, settings, out_dir, overwrite=overwrite, blocks=blocks, times=times
            )
            return _write_all(handle, phases)
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
