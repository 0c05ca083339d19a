"""A part of a run's swim lanes, worked out for so many pixels: strips, counts, lanes in detail.

It knows sizes of pictures, and no Plotly, page or name of a request. What comes back is as large as
the picture, whatever the number of requests.

Strips: requests that touch the shown time, by arrival, in equal buckets; each strip's height divides
into the phases that its requests are in at that time. With one request a strip it is a plain lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.lanes import (
    DECODE,
    PHASES,
    PREEMPTED,
    PREFILL,
    QUEUED,
    RECOMPUTING,
    RESTORING,
    SUFFERED,
    SWAPPED,
    Lanes,
)
from analyzer.look import Side

COLUMNS = 900  # pixels of a picture; a screen shows about as many
STRIPS = 40
SKY_COLUMNS = 600
SKY_ROWS = 120
STRIP_PX = 10  # of the picture, which is drawn at half its height
HOVER_COLUMNS = 75
COUNT_COLUMNS = 300
MOST_BARS = 2_500  # of all detail lanes of a side
STACK = (DECODE, PREFILL, RECOMPUTING, RESTORING, SWAPPED, PREEMPTED, QUEUED)  # lowest first
NOBODY = len(PHASES)  # palette index of empty ground


@dataclass(frozen=True, eq=False)
class Strips:
    """Lanes of one run in buckets. mean [strips, phases, columns]: requests in each phase, averaged
    over a column's time; bounds [strips + 1]: strip i holds the shown lanes bounds[i]:bounds[i + 1];
    lanes: those lanes, by arrival; shown: the time."""

    mean: np.ndarray
    bounds: np.ndarray
    lanes: np.ndarray
    shown: tuple[float, float]

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.bounds)

    def counts(self, columns: int) -> np.ndarray:
        """Requests in each phase over time. [phases, columns]; columns divides the picture's."""
        total = self.mean.sum(axis=0)
        return np.asarray(total.reshape(len(PHASES), columns, -1).mean(axis=2))

    def seconds(self) -> np.ndarray:
        """Seconds that all requests together spent in each phase of the shown time. [phases]."""
        width = (self.shown[1] - self.shown[0]) / self.mean.shape[2]
        return np.asarray(self.mean.sum(axis=(0, 2), dtype=np.float64) * width)

    def shares(self, columns: int) -> np.ndarray:
        """Share of each strip's requests in each phase. [strips, phases, columns], 0 to 1."""
        parts = self.mean.reshape(*self.mean.shape[:2], columns, -1).mean(axis=3)
        return np.asarray(parts / np.maximum(self.sizes, 1)[:, None, None])

    def index(self, strip_px: int = STRIP_PX) -> np.ndarray:
        """The picture: [strips * strip_px, columns] palette indices, the first arrival on top.

        What a preemption brings has at least one pixel wherever it happened.
        """
        share = self.mean / np.maximum(self.sizes, 1)[:, None, None]
        edge = np.rint(np.cumsum(share[:, STACK, :], axis=1) * strip_px)
        level = np.arange(strip_px)[None, :, None]
        picture = np.full((len(share), strip_px, share.shape[2]), NOBODY, np.uint8)
        for place in reversed(range(len(STACK))):
            picture[level < edge[:, place, None, :]] = STACK[place]
        for phase in SUFFERED:
            seen = (picture == phase).any(axis=1)
            unseen = (share[:, phase, :] > 0) & ~seen
            strip, column = np.nonzero(unseen)
            top = np.clip(edge[strip, -1, column].astype(np.int64) - 1, 0, strip_px - 1)
            picture[strip, top, column] = phase
        return picture[:, ::-1].reshape(-1, share.shape[2])


def strips(
    lanes: Lanes,
    shown: tuple[float, float],
    *,
    num_strips: int = STRIPS,
    columns: int = COLUMNS,
) -> Strips:
    """The lanes that touch a stretch of time, in at most so many strips of equal size."""
    alive = lanes.alive(shown)
    num = max(min(num_strips, len(alive)), 1)
    bounds = np.linspace(0, len(alive), num + 1).astype(np.int64)
    index, owner = lanes.intervals_of(alive)
    strip = np.repeat(np.arange(num), np.diff(bounds))
    row = strip[owner] * len(PHASES) + lanes.phase[index]
    mean = _mean_in_cells(
        row, lanes.start_s[index], lanes.stop_s[index], shown, num * len(PHASES), columns
    )
    return Strips(mean.reshape(num, len(PHASES), columns), bounds, alive, shown)


def _mean_in_cells(
    row: np.ndarray,
    start: np.ndarray,
    stop: np.ndarray,
    shown: tuple[float, float],
    rows: int,
    columns: int,
) -> np.ndarray:
    """How many intervals of each row hold each column on average. [rows, columns], float32.

    An interval adds its length within the first and the last column that it touches, and 1 to all
    columns between, which a running sum fills in.
    """
    scale = columns / (shown[1] - shown[0])
    left = np.clip((start - shown[0]) * scale, 0.0, columns)
    right = np.clip((stop - shown[0]) * scale, 0.0, columns)
    inside = right > left
    if not inside.all():
        row, left, right = row[inside], left[inside], right[inside]
    first = np.minimum(left.astype(np.int64), columns - 1)
    last = np.minimum(right.astype(np.int64), columns - 1)
    base = row * columns
    size = rows * columns
    spans = first < last
    within = np.where(spans, first + 1 - left, right - left)
    found = np.bincount(base + first, weights=within, minlength=size)
    base, first, last, right = base[spans], first[spans], last[spans], right[spans]
    found += np.bincount(base + last, weights=right - last, minlength=size)
    change = np.bincount(base + first + 1, minlength=size).astype(np.float64)
    change -= np.bincount(base + last, minlength=size)
    whole = np.cumsum(change.reshape(rows, columns), axis=1)
    return (found.reshape(rows, columns) + whole).astype(np.float32)


# ---- all requests by arrival ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Skyline:
    """One request a column, standing on its arrival: upward runs the time since then.

    x [columns]: middle of each column, in seconds; lanes [columns]: the lane drawn there; seconds
    [columns, phases]: how long it was in each phase in all; life_s [columns]; index [rows, columns of
    the picture]: palette, the highest on top; top_s: height of the picture; width_s: of a column;
    num_arrivals: in the shown time; num_cut: columns that are higher than the picture.
    """

    x: np.ndarray
    lanes: np.ndarray
    seconds: np.ndarray
    life_s: np.ndarray
    index: np.ndarray
    top_s: float
    width_s: float
    num_arrivals: int
    num_cut: int
    shown: tuple[float, float]


def skyline(
    lanes: Lanes,
    shown: tuple[float, float],
    *,
    columns: int = SKY_COLUMNS,
    rows: int = SKY_ROWS,
    top_s: float | None = None,
) -> Skyline:
    """The requests that arrived in a stretch of time, one a column: of several the one that was
    preempted longest, else the one that lasted longest.

    top_s: height of the picture, None to fit: a few requests that lasted far longer are cut.
    """
    begin, end = (int(i) for i in np.searchsorted(lanes.arrival_s, shown))
    width = (shown[1] - shown[0]) / columns
    arrival = lanes.arrival_s[begin:end]
    column = np.minimum(((arrival - shown[0]) / width).astype(np.int64), columns - 1)
    life = lanes.end_s[begin:end] - arrival
    suffered = lanes.suffered_s[begin:end]
    rank = np.where(suffered > 0, suffered + life.max(initial=0.0), life)
    which = begin + _greatest(rank, column)
    life = lanes.end_s[which] - lanes.arrival_s[which]
    top = sky_top(life) if top_s is None else top_s
    index, owner = lanes.intervals_of(which)
    since = lanes.arrival_s[which][owner]
    mean = _mean_in_cells(
        owner * len(PHASES) + lanes.phase[index],
        lanes.start_s[index] - since,
        lanes.stop_s[index] - since,
        (0.0, top),
        len(which) * len(PHASES),
        rows,
    ).reshape(len(which), len(PHASES), rows)
    mean[:, list(SUFFERED)] *= 100.0  # seen wherever it happened
    colour = np.where(mean.any(axis=1), mean.argmax(axis=1), NOBODY).astype(np.uint8)
    picture = np.full((columns, rows), NOBODY, np.uint8)
    picture[column[which - begin]] = colour
    return Skyline(
        x=shown[0] + (column[which - begin] + 0.5) * width,
        lanes=which,
        seconds=lanes.seconds_in(which, (-np.inf, np.inf)),
        life_s=life,
        index=picture.T[::-1],
        top_s=top,
        width_s=width,
        num_arrivals=end - begin,
        num_cut=int((life > top).sum()),
        shown=shown,
    )


def sky_top(life_s: np.ndarray) -> float:
    """Height for requests that last so long: all of them, unless a few last far longer."""
    if not len(life_s):
        return 1.0
    return float(max(min(life_s.max(), 1.5 * np.quantile(life_s, 0.995)), 1e-9))


def _greatest(rank: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The first place of the greatest rank in each group. group: sorted; [groups that occur]."""
    if not len(rank):
        return np.empty(0, np.int64)
    begins = np.flatnonzero(np.diff(group, prepend=-1))
    most = np.repeat(np.maximum.reduceat(rank, begins), np.diff(begins, append=len(rank)))
    tops = np.flatnonzero(rank == most)
    return tops[np.flatnonzero(np.diff(group[tops], prepend=-1))]


# ---- lanes in detail ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Bars:
    """Intervals of a few lanes as they are drawn. place: which of the lanes (0, 1, ...); phase;
    start_s, stop_s; is_open: it had not ended when the run did; num_hidden: shorter ones that were
    left out as there are too many. All [k]."""

    place: np.ndarray
    phase: np.ndarray
    start_s: np.ndarray
    stop_s: np.ndarray
    is_open: np.ndarray
    num_hidden: int


def bars(
    lanes: Lanes, which: np.ndarray, shown: tuple[float, float], most: int = MOST_BARS
) -> Bars:
    """Intervals of these lanes within a stretch of time; above `most`, the longest, what a
    preemption brings before all others.

    which [lanes]: the number of lanes stands for a request that the run does not have.
    """
    there = np.flatnonzero(which < lanes.num_lanes)
    index, owner = lanes.intervals_of(which[there])
    owner = there[owner]
    start, stop = lanes.start_s[index], lanes.stop_s[index]
    inside = np.flatnonzero((start <= shown[1]) & (stop >= shown[0]))
    if len(inside) > most:
        rank = np.where(np.isin(lanes.phase[index[inside]], SUFFERED), 1e12, 0.0)
        rank += stop[inside] - start[inside]
        kept = np.sort(inside[np.argpartition(-rank, most)[:most]])
    else:
        kept = inside
    lane = which[owner[kept]]
    return Bars(
        place=owner[kept],
        phase=lanes.phase[index[kept]],
        start_s=start[kept],
        stop_s=stop[kept],
        is_open=lanes.is_open[lane] & (stop[kept] >= lanes.end_s[lane]),
        num_hidden=len(inside) - len(kept),
    )


def worth_a_look(
    runs: Mapping[Side, Lanes],
    same: Mapping[Side, np.ndarray],
    shown: tuple[float, float],
    limit: int,
    chosen: int | None = None,
) -> tuple[np.ndarray, str]:
    """At most `limit` requests to draw in detail, by arrival, and in words why these.

    Requests are numbered in a way that all runs share: same[side] [requests] is the lane of each, the
    number of lanes for one that the run does not have. chosen: a request to draw with its neighbours.
    Where more touch the shown time: the neighbours of the chosen one, else those that spent most of
    it preempted, swapped or on their way back, in all runs together, then those queued longest.
    """
    num = len(next(iter(same.values())))
    touches = np.zeros(num, dtype=bool)
    waited, queued = np.zeros(num), np.zeros(num)
    arrival = np.full(num, np.inf)
    for side, lanes in runs.items():
        alive = lanes.alive(shown)
        request = np.full(lanes.num_lanes + 1, num)
        request[same[side]] = np.arange(num)
        who = request[alive]
        touches[who] = True
        suffered, waiting = lanes.waits(alive, shown)
        waited[who] += suffered
        queued[who] += waiting
        arrival[who] = np.minimum(arrival[who], lanes.arrival_s[alive])
    found = np.flatnonzero(touches)
    found = found[np.argsort(arrival[found], kind="stable")]
    if len(found) <= limit:
        return found, f"all {len(found):,} requests"
    of = f"{limit} of {len(found):,}"
    if chosen is not None and touches[chosen]:
        at = int(np.flatnonzero(found == chosen)[0])
        begin = min(max(at - limit // 2, 0), len(found) - limit)
        return found[begin : begin + limit], f"{of}: around the chosen one"
    order = np.lexsort((arrival[found], -queued[found], -waited[found]))[:limit]
    why = "preempted longest" if waited.any() else "queued longest"
    return found[np.sort(order)], f"{of}: {why}"


def phases_in_words(names: Sequence[str], counts: np.ndarray) -> str:
    """'decode up to 41, queued up to 112': the most requests in each phase. counts [phases, columns]."""
    tops = counts.max(axis=1) if counts.size else np.zeros(len(names))
    return ", ".join(
        f"{name} up to {top:,.0f}" for name, top in zip(names, tops, strict=True) if top >= 0.5
    )
