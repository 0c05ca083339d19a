"""Requests over several simulated replicas: who takes which, decided on what the replicas hold then.

`route` steps one simulator a replica through the same virtual time and asks a Router (traces/routing.py)
at each arrival; `simulate_fleet` records the replicas, each with the requests that it was given. A
replica that computes a step is seen as it will be when that step has ended, so that the router looks
ahead by less than one step; it knows no output length in advance. Closed loops are routed by the
estimate of traces/routing.py, since there an arrival waits for a departure anywhere.

The core takes arrivals from its table of requests, in order. Each replica has a table with room for
all requests, filled one by one; until a row is filled, its arrival is the time up to which is stepped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.config import EngineSettings, Resolved, resolve
from engine.core.jit import kernel
from engine.core.loop import Code, begin, finish
from engine.core.state import REQUEST, State, Status, make_state
from engine.simulator import Progress, SimulationResult, core_columns, simulate
from traces.errors import SettingsError
from traces.routing import Router, assign, pieces
from traces.workload import ReadReport, Workload, make_workload

REPLICA = "rank-{:02d}"
_FIRST_ENDED = int(Status.FINISHED)  # this status and those after it: the request has ended
_ROUTING_FRAC = 0.4  # of the progress: routing steps through the whole run once, too
_FLUSH, _DRAINED, _MORE = int(Code.FLUSH), int(Code.DRAINED), int(Code.MORE)

Report = Callable[[float, str], None]


@dataclass(frozen=True)
class FleetRun:
    """Replicas that were simulated together. replica_of: (N,), the replica of each request; results:
    of each replica, None where it was given no request; status: completed, cancelled, or the first
    other one."""

    path: Path
    replica_of: np.ndarray
    results: tuple[SimulationResult | None, ...]
    status: str


def simulate_fleet(
    workload: Workload,
    settings: EngineSettings,
    num_replicas: int,
    rule: str,
    out_dir: str | Path,
    *,
    replica_of: np.ndarray | None = None,
    each: Sequence[EngineSettings] | None = None,
    report: Report | None = None,
    cancelled: Callable[[], bool] | None = None,
    overwrite: bool = False,
) -> FleetRun:
    """Route the requests, simulate each replica, and record them in `out_dir`/rank-00, ...

    replica_of: (N,) where they went already, instead of a rule; each: settings of each replica, where they
    differ. report: called with the share done and
    a few words. Raises SettingsError, RecordingError.
    """
    out = Path(out_dir)
    told = report or (lambda done, text: None)
    stop = cancelled or (lambda: False)
    routed = 0.0
    if replica_of is None:
        routed = 0.0 if rule == "round-robin" else _ROUTING_FRAC
        replica_of = route(
            workload,
            settings,
            num_replicas,
            rule,
            report=lambda done, text: told(routed * done, text),
            cancelled=stop,
        )
    if replica_of is None:
        return FleetRun(out, np.empty(0, np.int32), (), "cancelled")
    results: list[SimulationResult | None] = []
    status = "completed"
    done = 0
    for k, piece in enumerate(pieces(workload, replica_of, num_replicas)):
        if not len(piece):
            results.append(None)
            continue

        result = simulate(
            piece,
            settings if each is None else each[k],
            out / REPLICA.format(k),
            progress=_of_piece(
                told, routed, done, len(piece), len(workload), f"{k + 1} of {num_replicas}"
            ),
            cancelled=stop,
            overwrite=overwrite,
        )
        results.append(result)
        done += len(piece)
        if result.status != "completed" and status == "completed":
            status = result.status
        if status == "cancelled":
            break
    return FleetRun(out, replica_of, tuple(results), status)


def _of_piece(
    told: Report, routed: float, done: int, share: int, total: int, which: str
) -> Callable[[Progress], None]:
    """The progress of one replica's run as that of the whole."""

    def progress(p: Progress) -> None:
        frac = (done + p.fraction_finished * share) / total
        told(routed + (1 - routed) * frac, f"replica {which}, {p.steps:,} steps")

    return progress


def route(
    workload: Workload,
    settings: EngineSettings,
    num_replicas: int,
    rule: str,
    *,
    report: Report | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> np.ndarray | None:
    """The replica of each request, (N,) int32, by a rule that sees what the replicas hold; None where
    it was cancelled. Raises SettingsError."""
    if settings.clock == "measured":
        raise SettingsError(
            "the clock measured has the times of one recording, and other splits have none. Use the modelled clock."
        )
    if rule == "round-robin" or workload.concurrency is not None or num_replicas == 1:
        return assign(workload, num_replicas, rule)
    router = Router(workload, num_replicas, rule)
    resolved = resolve(settings)
    columns = core_columns(workload, settings)
    whole = make_state(columns, resolved.rules)
    replicas = [_Replica(whole, columns, resolved) for _ in range(num_replicas)]
    chosen = np.empty(len(workload), np.int32)
    arrivals = whole.requests["arrival_s"]
    look_every = max(1, len(workload) // 200)
    for row in range(len(workload)):
        now_s = float(arrivals[row])
        for replica in replicas:
            replica.advance(now_s)
        k = router.choose(
            row, [r.num_requests() for r in replicas], [r.kv_tokens() for r in replicas]
        )
        replicas[k].add(row)
        chosen[row] = k
        if row % look_every == 0:
            if cancelled is not None and cancelled():
                return None
            if report is not None:
                report(row / len(workload), f"routed {row:,} of {len(workload):,} requests")
    return chosen


def warm_up_router() -> float:
    """Compile what routing steps replicas with, or load it; returns the seconds it took."""
    rows = {"arrival_s": [0.0, 1.0], "prompt_tokens": [1, 1], "output_tokens": [1, 1]}
    workload = make_workload(rows, name="warm-up", report=ReadReport("warm-up"))
    started = time.perf_counter()
    route(workload, EngineSettings(num_gpu_blocks=4), 2, "least-tokens")
    return time.perf_counter() - started


@kernel
def run_until(s: Any, rules: Any, cost: Any, until_s: Any, num_filled: Any) -> None:
    """Run all steps that begin before a time. num_filled: rows of the table that hold a request."""
    c = s.c[0]
    while c.now_s < until_s:
        busy = c.num_running + c.num_waiting + c.num_swapped + c.num_loads + c.num_deferred
        if busy + c.arrivals_now + c.num_aborted + c.num_in_flight == 0:
            if c.next_arrival >= num_filled:
                return
            if s.requests[c.next_arrival].arrival_s >= until_s:
                return
        code = begin(s, rules, cost)
        if code == _FLUSH:  # nobody reads the rows
            c.num_step_rows = 0
            c.num_event_rows = 0
            continue
        if code == _MORE:
            code = finish(s, rules)
        if code != _MORE and code != _DRAINED:
            return


class _Replica:
    """One simulator that is given requests as they are routed to it."""

    def __init__(
        self, whole: State, columns: dict[str, np.ndarray], resolved: Resolved
    ) -> None:
        self._whole = whole.requests
        self._rules, self._cost = resolved.rules, resolved.cost
        last = len(whole.requests) - 1
        # Untouched pages of zeros cost no memory: only rows that are filled do.
        requests: Any = np.zeros(last + 1, REQUEST).view(np.recarray)
        requests[last] = whole.requests[last]
        self._state = make_state(columns, resolved.rules)._replace(
            requests=requests, segs=whole.segs
        )
        c = self._state.c.view(np.ndarray)
        c["num_aborts"] = 0
        self._requests: Any = requests.view(np.ndarray)
        # Views of single columns: reading a field through a record takes ten times as long.
        self._now_s, self._ended, self._in_flight = (
            c["now_s"],
            c["num_ended"],
            c["num_in_flight"],
        )
        self._next_abort, self._num_aborts = c["next_abort"], c["num_aborts"]
        self._status, self._tokens = self._requests["status"], self._requests["num_tokens"]
        self._arrival_s = self._requests["arrival_s"]
        self._filled = 0
        self._first_open = 0  # all rows before it have ended

    def advance(self, until_s: float) -> None:
        """Run all steps that begin before that time."""
        if self._now_s[0] >= until_s or (
            self._ended[0] == self._filled and not self._in_flight[0]
        ):
            return
        if self._filled < len(self._requests) - 1:
            self._arrival_s[self._filled] = until_s
        run_until(self._state, self._rules, self._cost, until_s, self._filled)

    def add(self, row: int) -> None:
        """Give it the request of that row of the workload, which arrives now."""
        at = self._filled
        self._requests[at] = self._whole[row]
        self._filled += 1
        if not np.isnan(self._requests[at]["abort_s"]):
            self._note_abort(at)

    def _note_abort(self, at: int) -> None:
        """Put the request into the list of aborts to come, by time and then by arrival."""
        order, abort_s = self._requests["abort_order"], self._requests["abort_s"]
        first, end = int(self._next_abort[0]), int(self._num_aborts[0])
        place = first + int(
            np.searchsorted(abort_s[order[first:end]], abort_s[at], side="right")
        )
        order[place + 1 : end + 1] = order[place:end].copy()
        order[place] = at
        self._num_aborts[0] = end + 1

    def num_requests(self) -> int:
        """Requests that were given to it and have not ended."""
        return self._filled - int(self._ended[0])

    def kv_tokens(self) -> int:
        """Known tokens of the requests that were given to it and have not ended."""
        first, filled = self._first_open, self._filled
        is_open = self._status[first:filled] < _FIRST_ENDED
        if first < filled and not is_open[0]:
            opened = np.flatnonzero(is_open)
            self._first_open = first + (int(opened[0]) if len(opened) else filled - first)
        return int(self._tokens[first:filled][is_open].sum())
