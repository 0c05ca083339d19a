"""One to three runs on one axis, and sums over a part of it.

It knows the axis and where each run's steps lie on it. How a step becomes a place on the axis is
known in `align`; what is drawn over it in `timeline_rows`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
import polars as pl

from analyzer.align import LEVELS, means_on_grid, sums_on_grid
from analyzer.figures import Shade, XAxis
from analyzer.look import Side
from analyzer.run import Run, run_names

Alignment = Literal["time", "step", "progress"]
ALIGNMENTS: dict[Alignment, str] = {"time": "Time", "step": "Step", "progress": "Progress"}
CURSOR = 400  # places at which the cursor has readings
_AXES: dict[Alignment, tuple[str, str, str, float, str]] = {
    "time": ("Time since the start", "s", ",.3f", 1.0, "s"),
    "step": ("Scheduler step", "", ",.0f", 1.0, "step"),
    "progress": ("Output tokens produced, of all", "%", ",.2f", 100.0, "%"),
}


class Aligned:
    """One to three runs on one axis. runs: side -> run, A first; edges: side -> where each step
    begins and the last ends, in the axis' units; full: the whole axis; names: side -> run's name."""

    def __init__(self, runs: Mapping[Side, Run], by: Alignment) -> None:
        self.runs: dict[Side, Run] = dict(runs)
        self.by = by
        self.title, self.unit, self.hover, self.scale, self.per = _AXES[by]
        self.total_tokens = 0
        if by == "progress":
            outputs = [int(r.requests["output_tokens"].sum()) for r in self.runs.values()]
            self.total_tokens = max(outputs)
        self.edges: dict[Side, np.ndarray] = {
            side: run.edges(by, self.total_tokens, self.scale)
            for side, run in self.runs.items()
        }

    @property
    def names(self) -> dict[Side, str]:
        return run_names(self.runs)

    @cached_property
    def ends(self) -> dict[Side, float]:
        return {side: float(e[-1]) if len(e) else 0.0 for side, e in self.edges.items()}

    @property
    def full(self) -> tuple[float, float]:
        return 0.0, max(max(self.ends.values()), 1e-9)

    def clip(self, shown: tuple[float, float] | None) -> tuple[float, float]:
        """The asked part of the axis as far as it exists; all of it for None or an empty part."""
        low, high = self.full
        if shown is None:
            return self.full
        start, end = max(low, min(shown)), min(high, max(shown))
        return (start, end) if end > start else self.full

    def axis(self, shown: tuple[float, float]) -> XAxis:
        """The x axis, with the time after each shorter run set apart."""
        order = sorted(self.ends, key=lambda s: self.ends[s])
        shades = [
            Shade(self.ends[first], self.ends[then], f"{_and(order[: i + 1])} ended")
            for i, (first, then) in enumerate(pairwise(order))
        ]
        return XAxis(
            self.title, self.unit, shown, np.linspace(*shown, CURSOR), self.hover, shades
        )

    def in_buckets(
        self, columns: Sequence[str], shown: tuple[float, float], points: int
    ) -> pl.DataFrame:
        """Columns of all runs on a common grid: means of levels, sums of counts, as a_, b_, c_.

        x_start and x_end are in `align`'s units: times `scale` for the axis' own.
        """
        low, high = (v / self.scale for v in shown)
        grid = np.linspace(low, high, points + 1)
        data = {"x_start": pl.Series(grid[:-1]), "x_end": pl.Series(grid[1:])}
        for column in columns:
            for side in self.runs:
                values = self._on_grid(side, column, grid * self.scale)
                name = f"{side.lower()}_{column}"
                data[name] = pl.Series(values, dtype=pl.Float64, nan_to_null=True)
        return pl.DataFrame(data)

    def _on_grid(self, side: Side, column: str, grid: np.ndarray) -> np.ndarray:
        run, edges = self.runs[side], self.edges[side]
        if column not in LEVELS:
            return sums_on_grid(edges, run.column(column), grid)
        return means_on_grid(run.area(column, edges, self.by, self.total_tokens), grid)


@dataclass(frozen=True)
class RangeSums:
    """What happened in one run within the shown part of the axis; None: it was not recorded."""

    num_steps: int
    num_preemptions: int
    recomputed_tokens: int
    restored_tokens: int
    stall_s: float | None


def range_sums(pair: Aligned, shown: tuple[float, float]) -> dict[Side, RangeSums]:
    """Sums over the steps that begin in the shown part of the axis."""
    found: dict[Side, RangeSums] = {}
    for side, run in pair.runs.items():
        first, stop = inside(pair.edges[side][:-1], shown)
        preempted, recomputed, restored = (
            int(run.column(name).sum(first, stop))
            for name in ("num_preempted", "recomputed_tokens", "restored_tokens")
        )
        unseen = "steps.stall_s" in run.meta.not_recorded
        stall_s = None if unseen else run.column("stall_s").sum(first, stop)
        found[side] = RangeSums(max(stop - first, 0), preempted, recomputed, restored, stall_s)
    return found


def steps_shown(pair: Aligned, side: Side, shown: tuple[float, float]) -> tuple[int, int]:
    """First and last step (last included) of a run that begin in the shown part; (0, -1) if none."""
    first, stop = inside(pair.edges[side][:-1], shown)
    steps = pair.runs[side].steps["step"]
    return (int(steps[first]), int(steps[stop - 1])) if stop > first else (0, -1)


def inside(starts: np.ndarray, shown: tuple[float, float]) -> tuple[int, int]:
    first, stop = (
        np.searchsorted(starts, shown[0], "left"),
        np.searchsorted(starts, shown[1], "right"),
    )
    return int(first), int(stop)


def data_table(pair: Aligned, shown: tuple[float, float], stretches: int = 60) -> pl.DataFrame:
    """The shown range in equal stretches: means of blocks and queues, sums of preemptions."""
    table = pair.in_buckets(
        ("used_blocks", "num_running", "num_waiting", "num_preempted", "recomputed_tokens"),
        shown,
        stretches,
    )
    unit = f" ({pair.unit})" if pair.unit else ""
    names = {
        "used_blocks": "mean blocks in use",
        "num_running": "mean running",
        "num_waiting": "mean waiting",
        "num_preempted": "preemptions",
        "recomputed_tokens": "tokens recomputed",
    }
    return table.select(
        (pl.col("x_start") * pair.scale).round(3).alias(f"from{unit}"),
        (pl.col("x_end") * pair.scale).round(3).alias(f"to{unit}"),
        *(
            pl.col(f"{s.lower()}_{c}").round(1).alias(f"{said} · {s}")
            for c, said in names.items()
            for s in pair.runs
        ),
    )


def _and(names: Sequence[str]) -> str:
    """'A has', 'A and B have'."""
    return f"{' and '.join(names)} {'have' if len(names) > 1 else 'has'}"
