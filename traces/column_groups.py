"""What is known of a column of `steps` in groups of neighbouring rows: least, greatest and summed value.

All groups but the last have as many rows. They are made of a whole column (`Groups.of`), or of stretches
of it that come in any order from several threads while they are checked (`GroupsInMaking`), which saves
looking at a long column once more. It knows arrays; what they answer is known in `analyzer.column`.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MOST_GROUPS = 50_000
LEAST_GROUP = 64
PIECE = 1 << 20  # values looked at in one go; a multiple of every group's size


def group_size(num_values: int) -> int:
    """A power of two, so that there are at most MOST_GROUPS groups."""
    size = LEAST_GROUP
    while num_values > size * MOST_GROUPS:
        size *= 2
    return size


@dataclass(frozen=True)
class Groups:
    """What is known of each group of a column. least, greatest: [groups]; upto: [groups + 1], the sum of
    all values before each group, and of all."""

    least: np.ndarray
    greatest: np.ndarray
    upto: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> Groups:
        """Look at all values once, a piece at a time."""
        size = group_size(len(values))
        made = GroupsInMaking(len(values), values.dtype, size)
        for at in range(0, len(values), PIECE):
            made.add(Stretch.of(values[at : at + PIECE], at, size))
        return made.groups()

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.least, self.greatest, self.upto

    def save(self, path: Path) -> None:
        """Raises OSError."""
        with path.open("wb") as file:
            np.savez(file, *self.arrays)

    @classmethod
    def load(cls, path: Path) -> Groups:
        """As they were saved. Raises OSError, ValueError, KeyError or EOFError."""
        with np.load(path, allow_pickle=False) as file:
            return cls(*(file[f"arr_{i}"] for i in range(3)))


@dataclass(frozen=True)
class Stretch:
    """Of some rows, what their values add to each group in which they lie. first: the first such group;
    least, greatest, sums: [groups that they touch]."""

    first: int
    least: np.ndarray
    greatest: np.ndarray
    sums: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray, at: int, size: int) -> Stretch:
        """values: [n], at least one, from row `at` of the column on; size: rows of a group."""
        first = at // size
        starts = np.arange(first * size - at, len(values), size)
        starts[0] = 0
        kind = _summed_as(values.dtype)
        least, greatest = (of.reduceat(values, starts) for of in (np.minimum, np.maximum))
        if not (least.any() or greatest.any()):
            return cls(first, least, greatest, np.zeros(len(starts), kind))
        with np.errstate(invalid="ignore"):  # numbers that a check is still to refuse
            return cls(first, least, greatest, np.add.reduceat(values, starts, dtype=kind))


class GroupsInMaking:
    """The groups of a column of so many values, from stretches that together are all of it."""

    def __init__(self, num_values: int, kind: np.dtype, size: int) -> None:
        num = -(-num_values // size)
        limits = np.finfo(kind) if kind.kind == "f" else np.iinfo(kind)
        ends = (np.inf, -np.inf) if kind.kind == "f" else (limits.max, limits.min)
        self._least, self._greatest = (np.full(num, end, kind) for end in ends)
        self._sums = np.zeros(num, _summed_as(kind))
        self._adding = threading.Lock()

    def add(self, stretch: Stretch) -> None:
        """Raises ValueError for rows beyond the last."""
        here = slice(stretch.first, stretch.first + len(stretch.sums))
        with self._adding:
            for of, known, new in (
                (np.minimum, self._least, stretch.least),
                (np.maximum, self._greatest, stretch.greatest),
                (np.add, self._sums, stretch.sums),
            ):
                of(known[here], new, out=known[here])

    def groups(self) -> Groups:
        """When all stretches were added."""
        upto = np.concatenate([np.zeros(1, self._sums.dtype), np.cumsum(self._sums)])
        return Groups(self._least, self._greatest, upto)


def _summed_as(kind: np.dtype) -> np.dtype:
    return np.dtype(np.float64 if kind.kind == "f" else np.int64)
