"""Long series made short enough to draw, without losing a spike, an edge value or a count.

A series holds its value from its x until the next one (scheduler state: draw it with steps, "hv").
The size of what comes back depends on `points` alone. It knows arrays, and columns whose groups answer
for long stretches (`thin`, `sums_in_buckets`), and nothing of recordings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import polars as pl
from tsdownsample import MinMaxDownsampler

from analyzer.column import Column


def downsample(
    x: np.ndarray,
    y: np.ndarray,
    *,
    start: float | None = None,
    end: float | None = None,
    points: int = 3_000,
) -> tuple[np.ndarray, np.ndarray]:
    """At most points + 2 pairs (x, y) of a series within [start, end], extremes kept.

    x: [n] non-decreasing, y: [n] without NaN; neither is altered. Where the window starts between
    two values, the value that holds there comes first, at `start`; the last value is repeated at
    `end`, unless the series starts after it. start, end: None for the first and the last x.
    """
    return _within(x, y, start, end, lambda a, b: a + _extremes(x[a:b], y[a:b], points))


def thin(
    x: np.ndarray,
    column: Column,
    *,
    start: float | None = None,
    end: float | None = None,
    points: int = 3_000,
) -> tuple[np.ndarray, np.ndarray]:
    """As `downsample`, of a column: first and last value of the window, and the least and greatest of
    each of (points - 2) / 2 equal stretches between them, whatever lies in between unread."""
    return _within(
        x, column.values, start, end, lambda a, b: _extreme_rows(x, column, a, b, points)
    )


def _within(
    x: np.ndarray,
    y: np.ndarray,
    start: float | None,
    end: float | None,
    choose: Callable[[int, int], np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """The pairs of the rows that `choose` takes of the window's, completed at the window's ends."""
    if len(x) == 0:
        return np.empty(0, np.float64), np.empty(0, y.dtype)
    low = float(x[0]) if start is None else start
    high = float(x[-1]) if end is None else end
    first, stop = np.searchsorted(x, low, side="left"), np.searchsorted(x, high, side="right")
    rows = choose(int(first), int(stop)) if stop > first else np.empty(0, np.int64)
    xs, ys = x[rows].astype(np.float64), y[rows]
    if first > 0 and (first == len(x) or x[first] > low) and high >= low:
        xs, ys = np.insert(xs, 0, low), np.insert(ys, 0, y[first - 1])
    if len(xs) and xs[-1] < high:
        xs, ys = np.append(xs, high), np.append(ys, y[stop - 1])
    return xs, ys


def _extreme_rows(
    x: np.ndarray, column: Column, first: int, stop: int, points: int
) -> np.ndarray:
    """Rows of [first, stop) to draw, at most `points`, in order."""
    points = max(points, 8)
    if stop - first <= points:
        return np.arange(first, stop)
    places = np.linspace(x[first], x[stop - 1], (points - 2) // 2 + 1)[1:-1]
    inner = first + np.searchsorted(x[first:stop], places, side="left")
    bounds = np.unique(np.concatenate([[first], inner, [stop]]))  # an empty stretch is none
    found = column.rows_of_extremes(bounds[:-1], bounds[1:]).ravel()
    return np.unique(np.concatenate([[first], found, [stop - 1]]))


def _extremes(x: np.ndarray, y: np.ndarray, points: int) -> np.ndarray:
    """Indices of at most `points` values: first and last, and least and greatest of each bin."""
    points = max(points, 8)
    if len(x) <= points:
        return np.arange(len(x))
    size = (points - 2) // 2 * 2
    kept = MinMaxDownsampler().downsample(
        np.ascontiguousarray(x, np.float64), np.ascontiguousarray(y), n_out=size
    )
    return np.unique(np.concatenate([[0], kept.astype(np.int64), [len(x) - 1]]))


def downsample_steps(
    steps: pl.DataFrame,
    columns: list[str],
    *,
    start_s: float | None = None,
    end_s: float | None = None,
    points: int = 3_000,
) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
    """Column -> (t_start_s, values) of that column, each downsampled on its own.

    Each series keeps its own extremes, so that the kept times differ between columns.
    """
    x = steps["t_start_s"].to_numpy()
    return {
        c: downsample(x, steps[c].to_numpy(), start=start_s, end=end_s, points=points)
        for c in columns
    }


def bucket_sums(
    x: np.ndarray, counts: np.ndarray, *, start: float, end: float, buckets: int = 300
) -> pl.DataFrame:
    """Sums of counts in equal buckets of [start, end]: start, end, total; a rare event stays seen.

    x: [n] non-decreasing. A bucket holds start <= x < end, the last one x = end too, so that the
    totals add up to all counts in the window.
    """
    edges = np.linspace(start, end, buckets + 1)
    upto = np.concatenate([[0], np.cumsum(counts)])
    cuts = np.searchsorted(x, edges, side="left")
    cuts[-1] = np.searchsorted(x, end, side="right")
    return pl.DataFrame({"start": edges[:-1], "end": edges[1:], "total": np.diff(upto[cuts])})


def sums_in_buckets(
    x: np.ndarray, column: Column, *, start: float, end: float, buckets: int = 300
) -> pl.DataFrame:
    """As `bucket_sums`, of a column."""
    edges = np.linspace(start, end, buckets + 1)
    cuts = np.searchsorted(x, edges, side="left")
    cuts[-1] = np.searchsorted(x, end, side="right")
    return pl.DataFrame(
        {"start": edges[:-1], "end": edges[1:], "total": np.diff(column.sums_to(cuts))}
    )
