"""Runs laid on one axis: by time, by step, or by the share of the work done.

Levels are averaged over each bucket of the common grid and counts are summed in it, so that nothing
between grid points is lost; where one of two runs does not exist there is no difference. It knows
`steps` and the times of first tokens, and judges nothing.

`on_grid` looks at every value; `sums_on_grid` and `means_on_grid` give the same from a column's groups.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import polars as pl

from analyzer.column import Area, Column
from traces.errors import SettingsError

PIECE = 1 << 20  # steps looked at in one go
ALIGNMENTS = ("time", "step", "progress")
LEVELS = (
    "num_running",
    "num_waiting",
    "num_swapped",
    "used_blocks",
    "cached_free_blocks",
    "free_blocks",
    "host_used_blocks",
    "duration_s",
)


def progress_edges(
    steps: pl.DataFrame, requests: pl.DataFrame, total_tokens: int
) -> np.ndarray:
    """Share of `total_tokens` produced before each step and after the last: [steps + 1].

    A step produces a token for each decode token that it computes and for each first token that
    comes at its end.
    """
    return np.concatenate(list(_progress(steps, requests, total_tokens)))


def _progress(
    steps: pl.DataFrame, requests: pl.DataFrame, total_tokens: int
) -> Iterator[np.ndarray]:
    first = np.sort(requests["first_token_s"].drop_nulls().to_numpy())
    first = first - 1e-9 * np.maximum(1.0, np.abs(first))
    ended_s, produced, placed, done = -np.inf, 0, 0, 0
    yield np.zeros(1)
    for piece in steps.iter_slices(PIECE):
        ends = (piece["t_start_s"] + piece["duration_s"]).to_numpy()
        ends = np.maximum(np.maximum.accumulate(ends), ended_s)
        ended_s, done = float(ends[-1]), done + piece.height
        is_last = done == steps.height  # what comes after its end is counted in it, too
        upto = len(first) if is_last else int(np.searchsorted(first, ended_s, "right"))
        row = np.minimum(np.searchsorted(ends, first[placed:upto]), len(ends) - 1)
        firsts = np.bincount(row, minlength=len(ends))
        made = produced + np.cumsum(piece["decode_tokens"].to_numpy() + firsts)
        produced, placed = int(made[-1]), upto
        yield made / max(total_tokens, 1)


def axis_edges(
    steps: pl.DataFrame, requests: pl.DataFrame, by: str, total_tokens: int = 0
) -> np.ndarray:
    """Where each step begins on the axis, and where the last ends: [steps + 1], non-decreasing.

    Raises SettingsError for an unknown alignment.
    """
    pieces = list(axis_pieces(steps, requests, by, total_tokens))
    return np.concatenate(pieces) if pieces else np.empty(0)


def axis_pieces(
    steps: pl.DataFrame, requests: pl.DataFrame, by: str, total_tokens: int = 0
) -> Iterator[np.ndarray]:
    """`axis_edges` a piece at a time, for more steps than are held in memory."""
    if by == "progress":
        yield from _progress(steps, requests, total_tokens)
    elif by == "time":
        yield from (p["t_start_s"].to_numpy() for p in steps.iter_slices(PIECE))
        last = steps.tail(1)
        yield (last["t_start_s"] + last["duration_s"]).to_numpy()
    elif by == "step":
        for piece in steps.iter_slices(PIECE):
            yield piece["step"].to_numpy().astype(np.float64)
        yield steps.tail(1)["step"].to_numpy().astype(np.float64) + 1
    else:
        raise SettingsError(f"{by!r}: no such alignment. Choose from {', '.join(ALIGNMENTS)}.")


def align(
    a: tuple[pl.DataFrame, pl.DataFrame],
    b: tuple[pl.DataFrame, pl.DataFrame],
    *,
    by: str = "time",
    columns: Sequence[str] = ("used_blocks",),
    start: float | None = None,
    end: float | None = None,
    points: int = 600,
) -> pl.DataFrame:
    """Both runs on a grid of `points` buckets: x_start, x_end, and a_, b_, delta_ of each column.

    As `runs_on_grid`, with the delta (B - A), which is null where either is.
    """
    found = runs_on_grid(
        {"a": a, "b": b}, by=by, columns=columns, start=start, end=end, points=points
    )
    return found.select(
        "x_start",
        "x_end",
        *(
            column
            for name in columns
            for column in (
                pl.col(f"a_{name}"),
                pl.col(f"b_{name}"),
                (pl.col(f"b_{name}") - pl.col(f"a_{name}")).alias(f"delta_{name}"),
            )
        ),
    )


def runs_on_grid(
    runs: Mapping[str, tuple[pl.DataFrame, pl.DataFrame]],
    *,
    by: str = "time",
    columns: Sequence[str] = ("used_blocks",),
    start: float | None = None,
    end: float | None = None,
    points: int = 600,
) -> pl.DataFrame:
    """Runs on a grid of `points` buckets: x_start, x_end, and `<name>_<column>` of each run.

    runs: name -> (steps, requests). by: "time" in seconds since the start of the run, "step", or
    "progress", the share (0 to 1) of the output tokens of the run that produced most. Columns of
    LEVELS are means over the bucket, all others sums in it. A value is null where the run does not
    cover the whole bucket. Raises SettingsError for an unknown alignment.
    """
    total = max(int(requests["output_tokens"].sum()) for _, requests in runs.values())
    edges = [axis_edges(steps, requests, by, total) for steps, requests in runs.values()]
    low = (
        start if start is not None else min((float(e[0]) for e in edges if len(e)), default=0.0)
    )
    high = end if end is not None else max((float(e[-1]) for e in edges if len(e)), default=1.0)
    grid = np.linspace(low, high, points + 1)
    data: dict[str, pl.Series] = {"x_start": pl.Series(grid[:-1]), "x_end": pl.Series(grid[1:])}
    for column in columns:
        for (name, (steps, _)), run in zip(runs.items(), edges, strict=True):
            values = on_grid(
                run, steps[column].to_numpy().astype(np.float64), grid, column in LEVELS
            )
            data[f"{name}_{column}"] = pl.Series(values, dtype=pl.Float64, nan_to_null=True)
    return pl.DataFrame(data)


def on_grid(edges: np.ndarray, values: np.ndarray, grid: np.ndarray, level: bool) -> np.ndarray:
    """Mean (level) or sum of a run's values in each bucket of the grid; NaN where not covered.

    edges: [n + 1] for n values. A count belongs to the bucket in which its step begins.
    """
    if len(values) == 0:
        return np.full(len(grid) - 1, np.nan)
    if not level:
        upto = np.concatenate([[0.0], np.cumsum(values)])
        return _where_covered(edges, grid, np.diff(upto[_cuts(edges, grid)]))
    area = np.concatenate([[0.0], np.cumsum(values * np.diff(edges))])
    means = np.diff(_interpolate(grid, edges, area)) / np.diff(grid)
    return _where_covered(edges, grid, means)


def sums_on_grid(edges: np.ndarray, column: Column, grid: np.ndarray) -> np.ndarray:
    """As `on_grid` of a count."""
    if not len(column):
        return np.full(len(grid) - 1, np.nan)
    sums = np.diff(column.sums_to(_cuts(edges, grid))).astype(np.float64)
    return _where_covered(edges, grid, sums)


def means_on_grid(area: Area, grid: np.ndarray) -> np.ndarray:
    """As `on_grid` of a level."""
    if not len(area.column):
        return np.full(len(grid) - 1, np.nan)
    return _where_covered(area.edges, grid, np.diff(area.to(grid)) / np.diff(grid))


def _cuts(edges: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Row of the first step that begins at or after each place; all steps for a place at the end."""
    cuts = np.searchsorted(edges[:-1], grid, side="left")
    if grid[-1] >= edges[-1] - _slack(grid):
        cuts[-1] = len(edges) - 1
    return cuts


def _where_covered(edges: np.ndarray, grid: np.ndarray, found: np.ndarray) -> np.ndarray:
    slack = _slack(grid)
    covered = (grid[:-1] >= edges[0] - slack) & (grid[1:] <= edges[-1] + slack)
    return np.where(covered, found, np.nan)


def _slack(grid: np.ndarray) -> float:
    return 1e-9 * max(1.0, abs(float(grid[-1])))


def _interpolate(x: np.ndarray, edges: np.ndarray, area: np.ndarray) -> np.ndarray:
    """np.interp, the steps of no width (no progress made) taken out first."""
    keep = np.append(True, np.diff(edges) > 0)
    return np.interp(x, edges[keep], area[keep])
