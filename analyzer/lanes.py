"""Swim lanes: what every request was in, from when to when, built for millions of requests.

It knows no names of requests (`request_table.py` does) and draws nothing. `lifecycles.py` says the
same of few requests in words; here lanes are numbers, ordered by arrival, and recomputing and
restoring are told apart from what they serve. How events become intervals is in `lane_pieces.py`.

Left out rather than guessed: a request whose arrival is unknown, an interval whose end comes before
its start (a clock that went back), an event without a time or of a request that is not listed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from analyzer.lane_pieces import (
    DECODE,
    PHASES,
    PREEMPTED,
    PREFILL,
    QUEUED,
    RECOMPUTING,
    RESTORING,
    SUFFERED,
    SWAPPED,
    base_of,
    between_of,
    end_of_run,
    merged,
    plain,
    troubled,
)

__all__ = [
    "DECODE",
    "PHASES",
    "PREEMPTED",
    "PREFILL",
    "QUEUED",
    "RECOMPUTING",
    "RESTORING",
    "SUFFERED",
    "SWAPPED",
    "Lanes",
    "LeftOut",
    "build_lanes",
]


@dataclass(frozen=True)
class LeftOut:
    """What could not be drawn: requests without an arrival, intervals that end before they start,
    events without a time or of a request that is not listed."""

    num_requests: int
    num_intervals: int
    num_events: int

    def words(self) -> str:
        """'Left out: 3 requests without an arrival time', '' where nothing was."""
        said = [
            _many(
                self.num_requests,
                "request without an arrival time",
                "requests without an arrival time",
            ),
            _many(
                self.num_intervals,
                "stretch that ends before it starts (a clock that went back)",
                "stretches that end before they start (a clock that went back)",
            ),
            _many(
                self.num_events,
                "event without a time or of a request that is not listed",
                "events without a time or of a request that is not listed",
            ),
        ]
        found = "; ".join(s for s in said if s)
        return f"Left out: {found}." if found else ""


def _many(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}" if count else ""


@dataclass(frozen=True)
class Lanes:
    """All lanes of a run, n of them by arrival, with m intervals.

    row [n]: of the lane in `requests`; lane [rows of requests]: the other way, n where a request has
    no lane; arrival_s, end_s [n]; is_open [n]: it had not ended when the run did; first [n + 1]:
    lane i's intervals are first[i]:first[i + 1], in order of time; phase [m] index into PHASES;
    start_s, stop_s [m]; end_of_run_s.
    """

    row: np.ndarray
    lane: np.ndarray
    arrival_s: np.ndarray
    end_s: np.ndarray
    is_open: np.ndarray
    first: np.ndarray
    phase: np.ndarray
    start_s: np.ndarray
    stop_s: np.ndarray
    end_of_run_s: float
    left_out: LeftOut

    @property
    def num_lanes(self) -> int:
        return len(self.row)

    @cached_property
    def suffered_s(self) -> np.ndarray:
        """Seconds that each lane was preempted, swapped, on its way back or computed again. [n]."""
        which = np.flatnonzero(np.isin(self.phase, SUFFERED))
        lane = np.searchsorted(self.first, which, "right") - 1
        length = self.stop_s[which] - self.start_s[which]
        return np.bincount(lane, weights=length, minlength=self.num_lanes)

    @cached_property
    def queued_s(self) -> np.ndarray:
        """Seconds that each lane was queued. [n]."""
        which = np.flatnonzero(self.phase == QUEUED)
        lane = np.searchsorted(self.first, which, "right") - 1
        length = self.stop_s[which] - self.start_s[which]
        return np.bincount(lane, weights=length, minlength=self.num_lanes)

    def waits(
        self, lanes: np.ndarray, shown: tuple[float, float]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Seconds that each lane suffered, and was queued, within a stretch of time."""
        if len(lanes) == self.num_lanes and shown[0] <= 0 and shown[1] >= self.end_of_run_s:
            return self.suffered_s, self.queued_s
        seconds = self.seconds_in(lanes, shown)
        return seconds[:, SUFFERED].sum(axis=1), seconds[:, QUEUED]

    @cached_property
    def usual_life_s(self) -> float:
        """How long the longest tenth of the lanes lasts at least; 0 without lanes."""
        life = self.end_s - self.arrival_s
        return float(np.quantile(life, 0.9)) if len(life) else 0.0

    def alive(self, shown: tuple[float, float]) -> np.ndarray:
        """Lanes that touch a stretch of time, by arrival."""
        stop = int(np.searchsorted(self.arrival_s, shown[1], "right"))
        return np.flatnonzero(self.end_s[:stop] >= shown[0])

    def intervals_of(self, lanes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Index of every interval of these lanes, and which of them (0, 1, ...) each belongs to."""
        sizes = self.first[lanes + 1] - self.first[lanes]
        owner = np.repeat(np.arange(len(lanes)), sizes)
        if (
            len(lanes) and lanes[-1] - lanes[0] == len(lanes) - 1
        ):  # neighbours: no need to gather
            return np.arange(self.first[lanes[0]], self.first[lanes[-1] + 1]), owner
        begin = np.cumsum(sizes) - sizes
        return np.arange(len(owner)) - np.repeat(begin - self.first[lanes], sizes), owner

    def seconds_in(self, lanes: np.ndarray, shown: tuple[float, float]) -> np.ndarray:
        """Seconds that each lane spent in each phase within a stretch of time. [lanes, phases]."""
        index, owner = self.intervals_of(lanes)
        inside = np.minimum(self.stop_s[index], shown[1]) - np.maximum(
            self.start_s[index], shown[0]
        )
        cell = owner * len(PHASES) + self.phase[index]
        total = np.bincount(
            cell, weights=np.maximum(inside, 0.0), minlength=len(lanes) * len(PHASES)
        )
        return total.reshape(len(lanes), len(PHASES))


def build_lanes(events: pl.DataFrame, steps: pl.DataFrame, requests: pl.DataFrame) -> Lanes:
    """All lanes of a run. events, steps, requests: its tables.

    Queued from the arrival until first scheduled, prefill until the first output token, decode until
    the last one. Preempted from a preemption that drops the KV, swapped from one that keeps it in host
    memory, both until resumed; restoring is the end of that (or of queueing) from where a copy from
    the host began, and of a resumed request until that copy was done. Recomputing lasts from the
    resumption until the step in which as many tokens were computed again as it had lost and not
    found in any cache, first come first served: exact where one request returns at a time.
    """
    end_of_run_s = end_of_run(steps, requests)
    between, num_lost = between_of(events, requests)
    base = base_of(requests, between, end_of_run_s)
    parts = [plain(base, between), troubled(base, between, steps)]
    num_backwards = sum(int((part.stop < part.start).sum()) for part in parts)
    first, phase, start_s, stop_s = merged([part.drawn() for part in parts], len(base.row))
    return Lanes(
        row=base.row,
        lane=base.lane,
        arrival_s=base.arrival_s,
        end_s=base.end_s,
        is_open=base.is_open,
        first=first,
        phase=phase,
        start_s=start_s,
        stop_s=stop_s,
        end_of_run_s=end_of_run_s,
        left_out=LeftOut(requests.height - len(base.row), num_backwards, num_lost),
    )
