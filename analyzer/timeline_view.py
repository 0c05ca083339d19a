"""A part of the axis -> the runs' columns as lines, bars, areas and readings.

It knows how many points a screen can show. Which columns go into which row is known in
`timeline_rows`, how columns are thinned in `downsample`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from analyzer.aligned import CURSOR, Aligned, inside
from analyzer.column import Column
from analyzer.downsample import sums_in_buckets, thin
from analyzer.figures import Readings
from analyzer.look import Role, Side
from analyzer.marks import Band, Line, Look, Mark

POINTS = 900  # of a line: least and greatest value of every second or third pixel
BUCKETS = 150  # of bars and areas


class View:
    """The runs' columns over the shown part, as lines, bars, areas and readings."""

    def __init__(self, pair: Aligned, shown: tuple[float, float], which: Sequence[str]) -> None:
        self.pair = pair
        self.which = which
        self.shown = shown
        self.cursor = np.linspace(*shown, CURSOR)
        self.holding = {side: self._holding(side) for side in pair.runs}

    def _holding(self, side: Side) -> np.ndarray:
        """Row of the step that runs at each place of the cursor; -1 where none does."""
        edges = self.pair.edges[side]
        row = np.searchsorted(edges, self.cursor, "right") - 1
        return np.where(row < len(edges) - 1, row, -1)

    def column(self, side: Side, name: str) -> Column:
        return self.pair.runs[side].column(name)

    def any(self, side: Side, column: str) -> bool:
        """Whether the column is ever more than 0 in this run."""
        return self.pair.runs[side].ever(column)

    def line(
        self,
        side: Side,
        column: str,
        label: str,
        *,
        look: Look = "main",
        factor: float = 1.0,
        role: Role | None = None,
    ) -> Line:
        """A column as a line, extremes kept."""
        start, end = self.shown
        x, y = thin(
            self.pair.edges[side][:-1],
            self.column(side, column),
            start=start,
            end=min(end, self.pair.ends[side]),
            points=POINTS,
        )
        return Line(f"{label} · {side}", x, (y * factor).astype(np.float32), side, look, role)

    def lines(self, column: str, label: str, factor: float = 1.0) -> list[Mark]:
        return [self.line(side, column, label, factor=factor) for side in self.pair.runs]

    def at_cursor(self, side: Side, column: str, factor: float = 1.0) -> np.ndarray:
        """The column's value in the step at each place of the cursor; NaN where no step is."""
        row = self.holding[side]
        values = self.column(side, column).values
        if not len(values):
            return np.full(len(row), np.nan)
        return np.where(row >= 0, values[row].astype(np.float64) * factor, np.nan)

    def readings(
        self, name: str, column: str, unit: str, format_: str = ",.0f", factor: float = 1.0
    ) -> Readings:
        values = {str(side): self.at_cursor(side, column, factor) for side in self.pair.runs}
        return Readings(name, values, unit, format_)

    def sums(self, side: Side, column: str) -> pl.DataFrame:
        start, end = self.shown
        return sums_in_buckets(
            self.pair.edges[side][:-1],
            self.column(side, column),
            start=start,
            end=end,
            buckets=BUCKETS,
        )

    def in_buckets(self, columns: Sequence[str], points: int) -> pl.DataFrame:
        return self.pair.in_buckets(columns, self.shown, points)

    def num_steps(self, side: Side) -> int:
        """Steps that begin in the shown part."""
        first, stop = inside(self.pair.edges[side][:-1], self.shown)
        return stop - first

    @property
    def is_dense(self) -> bool:
        """Whether the shown part has more steps than a line can have points."""
        return max(self.num_steps(side) for side in self.pair.runs) > POINTS

    def mean(
        self, column: str, label: str, *, look: Look = "main", factor: float = 1.0,
        role: Role | None = None,
    ) -> list[Mark]:  # fmt: skip
        """A column's mean over each stretch of the shown part, a line per side."""
        table = self.in_buckets([column], points=BUCKETS * 2)
        x = table["x_start"].to_numpy() * self.pair.scale
        marks: list[Mark] = []
        for side in self.pair.runs:
            y = table[f"{side.lower()}_{column}"].to_numpy() * factor
            keep = np.isfinite(y)
            if keep.any():
                said = f"{label} · {side}"
                marks.append(Line(said, x[keep], y[keep].astype(np.float32), side, look, role))
        return marks

    def band(self, side: Side, column: str, label: str) -> Band:
        """Least and greatest value of a column in each stretch of the shown part; a step that
        began before a stretch and lasts into it counts in it."""
        starts = self.pair.edges[side][:-1]
        cuts_x = np.linspace(*self.shown, BUCKETS * 2, endpoint=False)
        cuts_x = cuts_x[cuts_x < self.pair.ends[side]]
        found = self.column(side, column)
        if not len(found) or not len(cuts_x):
            return Band(label, np.empty(0), np.empty(0), np.empty(0), side)
        first = np.searchsorted(starts, cuts_x, "left")
        stop = np.append(first[1:], np.searchsorted(starts, self.shown[1], "left"))
        holding = np.clip(np.searchsorted(starts, cuts_x, "right") - 1, 0, None)
        low, high = found.values[holding], found.values[holding]
        some = stop > first
        low[some] = np.minimum(low[some], found.least_in(first[some], stop[some]))
        high[some] = np.maximum(high[some], found.greatest_in(first[some], stop[some]))
        return Band(label, cuts_x, low, high, side)

    def longest_steps(self, side: Side) -> Line:
        """The longest step of each stretch of the shown part, faint."""
        starts = self.pair.edges[side][:-1]
        first, stop = inside(starts, self.shown)
        cuts = np.unique(np.linspace(first, stop, BUCKETS, endpoint=False).astype(np.int64))
        if stop <= first:
            cuts = cuts[:0]
        stops = np.append(cuts[1:], stop)[: len(cuts)]
        longest = self.column(side, "duration_s").greatest_in(cuts, stops)
        return Line(
            f"longest step · {side}",
            starts[cuts],
            longest.astype(np.float32) * 1e3,
            side,
            "faint",
        )

    def bucket_of_cursor(self, starts: np.ndarray) -> np.ndarray:
        return np.clip(np.searchsorted(starts, self.cursor, "right") - 1, 0, len(starts) - 1)
