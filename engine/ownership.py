"""Who holds which block: the core's block table, looked at after every decision, to intervals.

It remembers what each request held and notes where that ends. Within one stay on the GPU a row of
the block table only grows, so one look costs what has changed. Blocks behind an asynchronous copy to
the host are their request's until the copy has ended.
"""

from __future__ import annotations

import numpy as np

from engine.core.state import NONE, State
from engine.recorder import SPAN


class _Stay:
    """Blocks of one request since it came onto the GPU: its row, the ids, and since which step."""

    __slots__ = ("blocks", "since", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.blocks = np.zeros(0, np.int32)
        self.since = np.zeros(0, np.int64)


class Ownership:
    """Intervals that are open. `look` once a step, after schedule() and before its outputs."""

    def __init__(self) -> None:
        self._stays: dict[int, _Stay] = {}
        self._last_step = 0

    def look(self, s: State, step: int) -> np.ndarray:
        """Take the block tables as they are in `step`; returns the intervals (SPAN) that ended before."""
        held = _holders(s)
        requests = s.requests.view(np.ndarray)
        slots, counts = requests["slot"][held], requests["num_blocks"][held]
        ended = [self._end(r) for r in set(self._stays).difference(held.tolist())]
        for r, slot, count in zip(held.tolist(), slots.tolist(), counts.tolist(), strict=True):
            stay = self._stays.get(r)
            if stay is not None and stay.slot != slot:
                ended.append(self._end(r))
                stay = None
            if stay is None:
                stay = self._stays[r] = _Stay(slot)
            known = len(stay.blocks)
            if count > known:
                stay.blocks = np.append(stay.blocks, s.table[slot, known:count])
                stay.since = np.append(stay.since, np.full(count - known, step))
        self._last_step = step
        return np.concatenate(ended) if ended else np.zeros(0, SPAN)

    def cut(self) -> np.ndarray:
        """End every open interval at the last look; what goes on starts again in the step after."""
        ended = [self._spans(r) for r in self._stays]
        for stay in self._stays.values():
            stay.since[:] = self._last_step + 1
        return np.concatenate(ended) if ended else np.zeros(0, SPAN)

    def _end(self, r: int) -> np.ndarray:
        spans = self._spans(r)
        del self._stays[r]
        return spans

    def _spans(self, r: int) -> np.ndarray:
        stay = self._stays[r]
        spans = np.empty(len(stay.blocks), SPAN)
        spans["block"] = stay.blocks
        spans["request"] = r
        spans["place"] = np.arange(len(spans))
        spans["first_step"] = stay.since
        spans["last_step"] = self._last_step
        return spans[spans["first_step"] <= self._last_step]


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
        )
    )
    return held[requests["slot"][held] != NONE]
