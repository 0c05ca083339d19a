"""What surrounds one preemption: the requests that ran, in order of admission, and the pool's use.

It knows lanes (`lanes.py`), the pool in `steps`, and which request was evicted for which. Of those
that ran it keeps the ones that the victim rule looked at last. It draws nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from analyzer.downsample import downsample
from analyzer.lanes import DECODE, PREFILL, RECOMPUTING, Lanes
from analyzer.lanes_picture import Bars, bars

Part = Literal["victim", "aggressor", "evicted too", ""]
MOST_LANES = 14
STEPS_AROUND = 60  # shown before and after, at least
_RUNS = (PREFILL, DECODE, RECOMPUTING)


@dataclass(frozen=True)
class Lane:
    """One request's lane. part: what it was in the event; row: of `requests`."""

    request_id: str
    part: Part
    row: int


@dataclass(frozen=True)
class Around:
    """A stretch of time around a preemption. at_s: when it was; back_s: when the victim ran again,
    None for never; lanes: first admitted first; bars: their intervals; blocks_x, blocks_y: used
    blocks as steps; num_running: requests that ran when it was evicted, itself included."""

    shown: tuple[float, float]
    at_s: float
    back_s: float | None
    lanes: tuple[Lane, ...]
    bars: Bars
    blocks_x: np.ndarray
    blocks_y: np.ndarray
    pool_blocks: int
    num_running: int


def stretch(
    row: Mapping[str, Any], steps: pl.DataFrame, wider: float = 1.0
) -> tuple[float, float]:
    """Seconds to show around a preemption: all of its time away, and as much before and after it,
    but no less than STEPS_AROUND steps. wider: times that. steps: the run's, not empty."""
    starts = steps["t_start_s"].to_numpy()
    at_s = float(row["t_s"])
    back_s = row["resume_s"] if row["resume_s"] is not None else at_s
    first = int(np.searchsorted(starts, at_s))
    last = int(np.searchsorted(starts, back_s))
    end_s = float(starts[-1] + steps["duration_s"][-1])
    before_s = at_s - starts[max(first - STEPS_AROUND, 0)]
    after_s = starts[min(last + STEPS_AROUND, len(starts) - 1)] - back_s
    margin_s = max(before_s, after_s, back_s - at_s, 1e-6) * wider
    return max(at_s - margin_s, 0.0), min(back_s + margin_s, max(end_s, at_s + 1e-6))


def around(
    row: Mapping[str, Any],
    lanes: Lanes,
    requests: pl.DataFrame,
    steps: pl.DataFrame,
    cascade: pl.DataFrame,
    pool_blocks: int,
    wider: float = 1.0,
) -> Around:
    """What surrounds a preemption. row: of a told table; cascade: the rows that share its cascade."""
    shown = stretch(row, steps, wider)
    at_s = float(row["t_s"])
    running, admitted_s = _running(lanes, at_s)
    ids = {str(row["request_id"]): "victim"}
    if row["cause_request_id"] is not None:
        ids.setdefault(str(row["cause_request_id"]), "aggressor")
    for also in cascade["request_id"].head(MOST_LANES // 2):
        ids.setdefault(str(also), "evicted too")
    named = _rows_of(requests, list(ids))
    own = {lane: request_id for request_id, r in named.items() if (lane := int(lanes.lane[r])) < lanes.num_lanes}  # fmt: skip
    chosen = list(own)
    last_first = running[np.argsort(-admitted_s, kind="stable")]
    chosen += [int(v) for v in last_first if int(v) not in own][: MOST_LANES - len(chosen)]
    order = {int(v): float(s) for v, s in zip(running, admitted_s, strict=True)}
    # the victim's stay ended in this very moment; who never ran here comes last
    chosen.sort(key=lambda v: (order.get(v, np.inf), lanes.arrival_s[v]))
    which = np.array(chosen, dtype=np.int64)
    rows = lanes.row[which]
    names = requests["request_id"].gather(rows)
    x, y = downsample(
        steps["t_start_s"].to_numpy(), steps["used_blocks"].to_numpy(), start=shown[0], end=shown[1], points=1_000
    )  # fmt: skip
    return Around(
        shown=shown,
        at_s=at_s,
        back_s=None if row["resume_s"] is None else float(row["resume_s"]),
        lanes=tuple(
            Lane(str(name), ids.get(str(name), ""), int(r))  # type: ignore[arg-type]  # parts above
            for name, r in zip(names, rows, strict=True)
        ),
        bars=bars(lanes, which, shown),
        blocks_x=x,
        blocks_y=y,
        pool_blocks=pool_blocks,
        num_running=len(running),
    )


def _running(lanes: Lanes, at_s: float) -> tuple[np.ndarray, np.ndarray]:
    """Lanes that ran until or through a moment, and since when each had (n,). The victims of the
    moment are among them: their stretch ends in it."""
    alive = lanes.alive((at_s, at_s))
    index, owner = lanes.intervals_of(alive)
    start, stop, phase = lanes.start_s[index], lanes.stop_s[index], lanes.phase[index]
    runs = np.isin(phase, _RUNS) & (start < at_s) & (stop >= at_s)
    since = np.full(len(alive), -np.inf)
    waited = ~np.isin(phase, _RUNS) & (stop <= at_s)
    np.maximum.at(since, owner[waited], stop[waited])
    # who was admitted on arrival never waited
    since = np.where(np.isinf(since), lanes.arrival_s[alive], since)
    kept = np.zeros(len(alive), dtype=bool)
    kept[owner[runs]] = True
    return alive[kept], since[kept]


def _rows_of(requests: pl.DataFrame, ids: list[str]) -> dict[str, int]:
    """Request id -> its row, for those that are listed."""
    frame = requests.lazy().select("request_id").with_row_index("row")
    found = frame.filter(pl.col("request_id").is_in(ids)).collect()
    return {str(i): int(r) for r, i in found.rows()}


def in_words(found: Around, phases: tuple[str, ...]) -> pl.DataFrame:
    """The drawn intervals as a table: request, part, state, from, to (s)."""
    names = [lane.request_id for lane in found.lanes]
    parts = [lane.part or "ran too" for lane in found.lanes]
    place = found.bars.place
    return pl.DataFrame(
        {
            "request": [names[i] for i in place],
            "part": [parts[i] for i in place],
            "state": [phases[p] for p in found.bars.phase],
            "from (s)": found.bars.start_s.round(3),
            "to (s)": found.bars.stop_s.round(3),
        }
    )
