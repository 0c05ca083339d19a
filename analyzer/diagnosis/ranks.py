"""How unevenly data-parallel ranks are loaded, and how many that wait would fit elsewhere.

Shares are of requests where they are counted, and of usage, which is what binds. Cached blocks that can be
evicted are room: usage leaves them out where the engine's does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.diagnosis.pool import Pool
from analyzer.diagnosis.series import Series
from traces.evidence.evidence import Line

BUSY_FRAC, IDLE_FRAC = 0.85, 0.5
STRAY = 4  # where others have so many samples, a rank of one sample is a line that was spoilt; idle ones print more


@dataclass(frozen=True)
class Imbalance:
    """At the last snapshot: busiest: rank; usage, running, waiting: by rank; shares: of running requests on
    the busiest, snapshot by snapshot; idle: ranks that run and queue nothing; held_frac: of the pool, one
    request on the busiest; balanced_frac: usage where all shared evenly; fit_elsewhere: waiting requests
    that the others have room for."""

    busiest: int
    usage: dict[int, float]
    running: dict[int, int]
    waiting: dict[int, int]
    running_by_snapshot: tuple[tuple[int, ...], ...]
    waiting_by_snapshot: tuple[tuple[int, ...], ...]
    shares: tuple[float, ...]
    idle: tuple[int, ...]
    held_frac: float | None
    balanced_frac: float | None
    fit_elsewhere: int
    lines: tuple[Line, ...]

    @property
    def uneven(self) -> bool:
        """One rank near full or queueing while at least half of the others have half of their pool free and no
        queue. Where nobody says how full pools are: half of its running at most."""
        queue = self.waiting.get(self.busiest, 0)
        if not (self.usage.get(self.busiest, 0.0) >= BUSY_FRAC or queue > 0):
            return False
        others = [r for r in self.usage if r != self.busiest]
        known = any(self.usage.values())
        least = self.running[self.busiest] / 2
        free = [
            r
            for r in others
            if self.waiting[r] == 0
            and (self.usage[r] <= IDLE_FRAC if known else self.running[r] <= least)
        ]
        return bool(others) and 2 * len(free) >= len(others)


def _last(values: np.ndarray) -> float:
    known = values[np.isfinite(values)]
    return float(known[-1]) if len(known) else 0.0


def find_imbalance(ranks: Sequence[Series], pool: Pool) -> Imbalance | None:
    """The load of the ranks at the last snapshot, or None for fewer than two."""
    most = max((len(s) for s in ranks), default=0)
    ranks = [s for s in ranks if len(s) > 1 or most < STRAY]
    if len(ranks) < 2 or not any(s.has("num_running") for s in ranks):
        return None
    ids = [int(s.rank or 0) for s in ranks]
    usage = {r: _last(s.usage) for r, s in zip(ids, ranks, strict=True)}
    running = {r: int(_last(s.running)) for r, s in zip(ids, ranks, strict=True)}
    waiting = {r: int(_last(s.waiting)) for r, s in zip(ids, ranks, strict=True)}
    queueing = [r for r in ids if waiting[r] > 0 and usage[r] >= IDLE_FRAC]
    busiest = max(queueing or ids, key=lambda r: (usage[r], waiting[r], running[r]))
    by_snapshot = _snapshots(ranks, "running")
    held = usage[busiest] / running[busiest] if running[busiest] else None
    total = sum(running.values()) + sum(waiting.values())
    room = sum(int((1 - usage[r]) / held) if held else 0 for r in ids if r != busiest)
    if held and held > 0.5:  # one long session says nothing of those that wait: one each
        room = sum(1 for r in ids if r != busiest and usage[r] < IDLE_FRAC) * waiting[busiest]
    return Imbalance(
        busiest,
        usage,
        running,
        waiting,
        by_snapshot,
        _snapshots(ranks, "waiting"),
        tuple(max(row) / sum(row) if sum(row) else 0.0 for row in by_snapshot),
        tuple(r for r in ids if not running[r] and not waiting[r]),
        held,
        held * math.ceil(total / len(ids)) if held and held <= 0.5 else None,
        min(waiting[busiest], room),
        tuple(line for s in ranks for line in s.lines(len(s) - 1)),
    )


def _snapshots(ranks: Sequence[Series], name: str) -> tuple[tuple[int, ...], ...]:
    """The values of all ranks, snapshot by snapshot, where all have as many; else the last only."""
    columns = [getattr(s, name) for s in ranks]
    if len({len(c) for c in columns}) != 1:
        return (tuple(int(_last(c)) for c in columns),)
    rows = np.nan_to_num(np.stack(columns, axis=1))
    return tuple(tuple(int(x) for x in row) for row in rows)
