"""A column of a run's steps that answers for any stretch of steps without looking at all of them.

Steps are taken in groups of equal size; of each group the least, the greatest and the summed value are
known. A stretch is then its whole groups and, value by value, what is left at its two ends: extremes
and sums of counts are those of the values themselves, sums of real numbers are so to rounding. It
knows arrays and groups, and nothing of recordings.
"""

from __future__ import annotations

import numpy as np

from traces import column_groups
from traces.column_groups import Groups, group_size

__all__ = ["Area", "Column", "Groups", "area_of_groups", "group_size"]


class Column:
    """values: [n], as they are on disk or in memory; never altered. groups: as from `Groups.of`."""

    def __init__(self, values: np.ndarray, groups: Groups | None = None) -> None:
        self.values = values
        self.size = group_size(len(values))
        self.groups = Groups.of(values) if groups is None else groups

    def __len__(self) -> int:
        return len(self.values)

    @property
    def greatest(self) -> float:
        """The greatest value; 0 where there is none."""
        return float(self.groups.greatest.max(initial=0))

    def sums_to(self, rows: np.ndarray) -> np.ndarray:
        """Sum of all values before each row. rows: within 0 and the number of values."""
        return _sums_to(self.values, self.groups.upto, self.size, rows)

    def sum(self, first: int, stop: int) -> float:
        """Sum of the values in [first, stop)."""
        low, high = self.sums_to(np.array([first, max(first, stop)]))
        return float(high - low) if high.dtype.kind == "f" else int(high - low)

    def least_in(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Least value of each stretch [first, stop), none of them empty."""
        return self._extreme(np.minimum, self.groups.least, first, stop)

    def greatest_in(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """Greatest value of each stretch [first, stop), none of them empty."""
        return self._extreme(np.maximum, self.groups.greatest, first, stop)

    def rows_of_extremes(self, first: np.ndarray, stop: np.ndarray) -> np.ndarray:
        """First rows of the least and of the greatest value of each stretch, none empty: [2, m]."""
        return np.stack(
            [
                self._first_rows(self.least_in(first, stop), self.groups.least, first, stop),
                self._first_rows(self.greatest_in(first, stop), self.groups.greatest, first, stop),
            ]
        )  # fmt: skip

    def _first_rows(
        self, sought: np.ndarray, of_group: np.ndarray, first: np.ndarray, stop: np.ndarray
    ) -> np.ndarray:
        """First row of each stretch that holds the value sought there, its extreme: [m]."""
        low, high = -(-first // self.size), stop // self.size  # the whole groups
        whole = low < high
        head = _first_equal(self.values, first, np.where(whole, low * self.size, stop), sought)
        group = _first_equal(of_group, low, np.where(whole, high, low), sought)
        start = group * self.size
        inner = _first_equal(
            self.values, start, np.where(group < 0, start, start + self.size), sought
        )
        tail = _first_equal(self.values, np.where(whole, high * self.size, stop), stop, sought)
        return np.where(head >= 0, head, np.where(inner >= 0, inner, tail))

    def _extreme(
        self, of: np.ufunc, of_group: np.ndarray, first: np.ndarray, stop: np.ndarray
    ) -> np.ndarray:
        low, high = -(-first // self.size), stop // self.size
        whole = low < high
        head = np.where(whole, low * self.size, stop)
        found = np.empty(len(first), self.values.dtype)
        known = np.zeros(len(first), bool)

        def take(which: np.ndarray, values: np.ndarray) -> None:
            both = of(found[which], values)
            found[which] = np.where(known[which], both, values)
            known[which] = True

        if whole.any():
            pairs = np.column_stack([low[whole], high[whole]]).ravel()
            padded = np.append(of_group, of_group[-1])  # an index for a stretch that ends there
            take(whole, of.reduceat(padded, pairs)[::2])
        for start, end in ((first, head), (np.where(whole, high * self.size, stop), stop)):
            some = end > start
            if some.any():
                lengths = (end - start)[some]
                values = self.values[_rows(start[some], lengths)]
                take(some, of.reduceat(values, np.cumsum(lengths) - lengths))
        return found


class Area:
    """The column's values times the widths of its steps on an axis, summed up to any place on it.

    edges: [n + 1], non-decreasing, for n values. upto: as from `area_of_groups`.
    """

    def __init__(
        self, column: Column, edges: np.ndarray, upto: np.ndarray | None = None
    ) -> None:
        self.column, self.edges = column, edges
        self.upto = area_of_groups(column.values, edges) if upto is None else upto

    def to(self, x: np.ndarray) -> np.ndarray:
        """Area under the column from its first edge to each x; outside of the edges it is level."""
        values, edges, size = self.column.values, self.edges, self.column.size
        x = np.clip(x, edges[0], edges[-1])
        row = np.searchsorted(edges, x, "right") - 1  # the one of its steps that has a width
        row = np.minimum(row, len(values) - 1)
        start = row // size * size
        rows = _rows(start, row - start)
        part = _sums_of_runs(values[rows] * (edges[rows + 1] - edges[rows]), row - start)
        return self.upto[row // size] + part + values[row] * (x - edges[row])


def area_of_groups(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Area under all values before each group, and under all: [groups + 1]."""
    sums: list[np.ndarray] = []
    done = 0
    for piece, starts in _pieces(values, group_size(len(values))):
        widths = np.diff(edges[done : done + len(piece) + 1])
        sums.append(np.add.reduceat(piece * widths, starts))
        done += len(piece)
    return np.concatenate([np.zeros(1), np.cumsum(np.concatenate([np.empty(0), *sums]))])


def _pieces(values: np.ndarray, size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The values a piece at a time, each with where its groups start."""
    many = column_groups.PIECE
    return [
        (piece, np.arange(0, len(piece), size))
        for piece in (values[i : i + many] for i in range(0, len(values), many))
    ]


def _sums_to(values: np.ndarray, upto: np.ndarray, size: int, rows: np.ndarray) -> np.ndarray:
    start = rows // size * size
    return upto[rows // size] + _sums_of_runs(
        values[_rows(start, rows - start)].astype(upto.dtype), rows - start
    )


def _rows(first: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """first[0], first[0] + 1, ... so many rows as lengths[0] says, then those of first[1]."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(first - before, lengths) + np.arange(int(lengths.sum()))


def _first_equal(
    values: np.ndarray, first: np.ndarray, stop: np.ndarray, sought: np.ndarray
) -> np.ndarray:
    """First row in each stretch [first, stop) that holds its value, -1 where none does: [m]. A NaN that is
    sought is any NaN."""
    lengths = stop - first
    rows = _rows(first, lengths)
    held, wanted = values[rows], np.repeat(sought, lengths)
    is_it = held == wanted
    if held.dtype.kind == "f":
        is_it |= np.isnan(held) & np.isnan(wanted)
    hits = np.flatnonzero(is_it)[::-1]  # of those of one stretch the first is written last
    found = np.full(len(first), -1, np.int64)
    found[np.repeat(np.arange(len(first)), lengths)[hits]] = rows[hits]
    return found


def _sums_of_runs(values: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Sums of neighbours, so many as each length says; a run may be empty."""
    found = np.zeros(len(lengths), values.dtype)
    some = lengths > 0
    if some.any():
        starts = (np.cumsum(lengths) - lengths)[some]
        found[some] = np.add.reduceat(values, starts)
    return found
