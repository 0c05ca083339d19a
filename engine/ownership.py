"""Who holds which block: the core's block table, looked at after every decision, to intervals.

It remembers what was held in each row of the block table and notes where that ends. Within one stay
on the GPU a row only grows, so one look costs what has changed. Blocks behind an asynchronous copy to
the host, and those that a step in flight may still write (core/fences.py), are their request's until
the copy has ended and the step has been processed.
"""

from __future__ import annotations

import numpy as np

from engine.core.copies import LOAD
from engine.core.state import NONE, State
from engine.recorder import SPAN


class _Stay:
    """Blocks of one request since it came onto the GPU: the ids, and since which step.

    until: the step behind which it waits since the request let go of it; 0: it has not.
    """

    __slots__ = ("blocks", "request", "since", "until")

    def __init__(self, request: int) -> None:
        self.request = request
        self.blocks = np.zeros(0, np.int32)
        self.since = np.zeros(0, np.int64)
        self.until = 0


class Ownership:
    """Intervals that are open. `look` once a step, after schedule() and before its outputs."""

    def __init__(self) -> None:
        self._stays: dict[int, _Stay] = {}  # by row of the block table
        self._last_step = 0

    def look(self, s: State, step: int) -> np.ndarray:
        """Take the block tables as they are in `step`; returns the intervals (SPAN) that ended before."""
        held = _holders(s)
        requests = s.requests.view(np.ndarray)
        rows = zip(
            requests["slot"][held].tolist(),
            held.tolist(),
            requests["num_blocks"][held].tolist(),
            strict=True,
        )
        now = {slot: (r, count, 0) for slot, r, count in rows}
        for slot, count, until in _fenced(s):
            now[slot] = (self._stays[slot].request, count, until)
        ended = [
            self._end(slot)
            for slot, stay in list(self._stays.items())
            if slot not in now
            or _is_another(stay, now[slot][0], now[slot][2])
            or _is_moved(stay, now[slot][1], s.table[slot])
        ]
        for slot, (r, count, until) in now.items():
            stay = self._stays.get(slot)
            if stay is None:
                stay = self._stays[slot] = _Stay(r)
            stay.until = until
            known = len(stay.blocks)
            if count > known:
                stay.blocks = np.append(stay.blocks, s.table[slot, known:count])
                stay.since = np.append(stay.since, np.full(count - known, step))
        self._last_step = step
        return np.concatenate(ended) if ended else np.zeros(0, SPAN)

    def cut(self) -> np.ndarray:
        """End every open interval at the last look; what goes on starts again in the step after."""
        ended = [self._spans(slot) for slot in self._stays]
        for stay in self._stays.values():
            stay.since[:] = self._last_step + 1
        return np.concatenate(ended) if ended else np.zeros(0, SPAN)

    def _end(self, slot: int) -> np.ndarray:
        spans = self._spans(slot)
        del self._stays[slot]
        return spans

    def _spans(self, slot: int) -> np.ndarray:
        stay = self._stays[slot]
        spans = np.empty(len(stay.blocks), SPAN)
        spans["block"] = stay.blocks
        spans["request"] = stay.request
        spans["place"] = np.arange(len(spans))
        spans["first_step"] = stay.since
        spans["last_step"] = self._last_step
        return spans[spans["first_step"] <= self._last_step]


def _is_another(stay: _Stay, request: int, until: int) -> bool:
    """Whether the row has been given back since, and is held anew."""
    return stay.request != request or (stay.until > 0 and stay.until != until)


def _is_moved(stay: _Stay, count: int, row: np.ndarray) -> bool:
    """Whether the same request has given its row back and got the same one again between two looks:
    copied out, and in again in the step in which that ended. Within one stay a row only grows."""
    known = len(stay.blocks)
    return count < known or not np.array_equal(row[:known], stay.blocks)


def _holders(s: State) -> np.ndarray:
    """Requests that have a row of the block table."""
    c = s.c[0]
    slots, requests = s.slots.view(np.ndarray), s.requests.view(np.ndarray)
    held = np.concatenate(
        (
            s.seats.view(np.ndarray)["running"][: c.num_running],
            slots["load"][: c.num_loads],
            slots["fence"][: c.num_fences],
            requests["deferred"][: c.num_deferred],
            _loaded_for(s),
        )
    )
    return held[requests["slot"][held] != NONE]


def _loaded_for(s: State) -> np.ndarray:
    """Requests into whose rows the host cache is copied; they may have been aborted since."""
    hosts = s.hosts.view(np.ndarray)
    jobs = hosts["job_order"][: s.c[0].num_jobs]
    return hosts["job_request"][jobs[hosts["job_kind"][jobs] == LOAD]]


def _fenced(s: State) -> list[tuple[int, int, int]]:
    """(row, blocks, step) of rows that were let go and wait for that step to be processed."""
    c, slots = s.c[0], s.slots.view(np.ndarray)
    ring = (c.fence_head + np.arange(c.num_step_fences)) % len(slots)
    waiting = slots[["fenced_slot", "fenced_blocks", "fenced_until"]][ring]
    return [(int(slot), int(count), int(until)) for slot, count, until in waiting.tolist()]
