"""Runs laid on one axis: by time, by step, or by the share of the work done.

Levels are averaged over each bucket of the common grid and counts are summed in it, so that nothing
between grid points is lost; where one of two runs does not exist there is no difference. It knows
`steps` and the times of first tokens, and judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from traces.errors import SettingsError

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
    ends = np.maximum.accumulate((steps["t_start_s"] + steps["duration_s"]).to_numpy())
    first = requests["first_token_s"].drop_nulls().to_numpy()
    row = np.searchsorted(ends, first - 1e-9 * np.maximum(1.0, np.abs(first)))
    firsts = (
        np.bincount(np.minimum(row, len(ends) - 1), minlength=len(ends)) if len(ends) else row
    )
    produced = steps["decode_tokens"].to_numpy() + firsts
    return np.concatenate([[0.0], np.cumsum(produced)]) / max(total_tokens, 1)


def axis_edges(
    steps: pl.DataFrame, requests: pl.DataFrame, by: str, total_tokens: int = 0
) -> np.ndarray:
    """Where each step begins on the axis, and where the last ends: [steps + 1], non-decreasing.

    Raises SettingsError for an unknown alignment.
    """
    if by == "time":
        last = steps.tail(1)
        end = last["t_start_s"] + last["duration_s"]
        return np.concatenate([steps["t_start_s"].to_numpy(), end.to_numpy()])
    if by == "step":
        index = steps["step"].to_numpy().astype(np.float64)
        return np.append(index, index[-1] + 1) if len(index) else index
    if by == "progress":
        return progress_edges(steps, requests, total_tokens)
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
    slack = 1e-9 * max(1.0, abs(float(grid[-1])))
    covered = (grid[:-1] >= edges[0] - slack) & (grid[1:] <= edges[-1] + slack)
    if not level:
        cuts = np.searchsorted(edges[:-1], grid, side="left")
        if grid[-1] >= edges[-1] - slack:
            cuts[-1] = len(values)
        found = np.diff(np.concatenate([[0.0], np.cumsum(values)])[cuts])
    else:
        area = np.concatenate([[0.0], np.cumsum(values * np.diff(edges))])
        found = np.diff(_interpolate(grid, edges, area)) / np.diff(grid)
    return np.where(covered, found, np.nan)


def _interpolate(x: np.ndarray, edges: np.ndarray, area: np.ndarray) -> np.ndarray:
    """np.interp, the steps of no width (no progress made) taken out first."""
    keep = np.append(True, np.diff(edges) > 0)
    return np.interp(x, edges[keep], area[keep])
