"""Who holds which block when: ownership intervals, made ready to be asked about any block and step.

It knows `blocks`, and of `steps` and `requests` only order and times. An answer costs what is asked,
a binary search a cell, however many intervals there are; nothing of size blocks x steps is ever
made. Steps are counted by their row in `steps`. What a cell's state is called is in
`block_states.py`, what is measured in `block_measures.py`, colours in `block_colours.py`.

A block that several requests hold at once (a shared prefix) is shown as its longest present
holder's: who came first, until they go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

NOBODY = -1  # in arrays of interval indices: no interval; arrays have no None


@dataclass(frozen=True, eq=False)
class Ownership:
    """Intervals sorted by block and first step, [n] each, and who they belong to.

    ids: request ids by owner code, in order of arrival; block: from 1; owner: code; logical: place
    in the request's block table; first, last: rows of `steps`, last included. shown: [m] indices of
    the intervals that are ever shown, sorted as they are; shown_first: row from which each is shown,
    until its `last`. num_dropped: intervals that name no block of the pool or no step.
    """

    ids: pl.Series
    block: np.ndarray
    owner: np.ndarray
    logical: np.ndarray
    first: np.ndarray
    last: np.ndarray
    shown: np.ndarray
    shown_first: np.ndarray
    num_blocks: int
    num_steps: int
    num_dropped: int = 0

    def __len__(self) -> int:
        return len(self.block)

    @cached_property
    def has_sharing(self) -> bool:
        """Whether a block ever had two holders at a time."""
        same = self.block[1:] == self.block[:-1]
        latest = np.maximum.accumulate(self._key(self.block, self.last))[:-1]
        return bool((same & (self._key(self.block, self.first)[1:] <= latest)).any())

    def code(self, request_id: str) -> int | None:
        """The owner code of a request; None where it never held a block."""
        found = self.ids.index_of(request_id)
        return None if found is None or not self._has_blocks[found] else int(found)

    @cached_property
    def _has_blocks(self) -> np.ndarray:
        return np.bincount(self.owner, minlength=len(self.ids)) > 0

    @cached_property
    def _shown_key(self) -> np.ndarray:
        return self._key(self.block[self.shown], self.shown_first)

    @cached_property
    def _starts(self) -> np.ndarray:
        return self._key(self.block, self.first)

    @cached_property
    def _ends(self) -> np.ndarray:
        return np.sort(self._key(self.block, self.last))

    def _key(self, block: np.ndarray, row: np.ndarray) -> np.ndarray:
        """Blocks first, then steps, as one number."""
        return block.astype(np.int64) * (self.num_steps + 1) + row

    def at(self, blocks: np.ndarray, rows: np.ndarray) -> Cells:
        """The cells of these blocks [b] at these steps [t] (rows; -1: no step there)."""
        query = self._key(blocks[:, None], rows[None, :])
        place = np.searchsorted(self._shown_key, query, "right") - 1
        if not len(self.shown):
            nothing = np.full(query.shape, NOBODY, np.int64)
            return Cells(self, blocks, rows, nothing, nothing >= 0)
        latest = self.shown[np.maximum(place, 0)]
        known = (place >= 0) & (self.block[latest] == blocks[:, None]) & (rows >= 0)[None, :]
        latest = np.where(known, latest, NOBODY)
        held = known & (self.last[latest] >= rows[None, :])
        return Cells(self, blocks, rows, latest, held)

    def holders(self, blocks: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """How many requests hold each cell: [b, t]."""
        query = self._key(blocks[:, None], rows[None, :])
        began = np.searchsorted(self._starts, query, "right")
        ended = np.searchsorted(self._ends, query, "left")
        return np.where(rows[None, :] >= 0, began - ended, 0)

    def latest_holder(self, block: int, row: int) -> str | None:
        """Who holds a block at a step, or held it last before; None where nobody has yet."""
        latest = self.at(np.array([block]), np.array([row])).latest[0, 0]
        return None if latest == NOBODY else str(self.ids[int(self.owner[latest])])

    def of(self, owner: int) -> np.ndarray:
        """Indices of all intervals of an owner."""
        return np.flatnonzero(self.owner == owner)

    def alive(self, rows: np.ndarray) -> list[np.ndarray]:
        """For each of these steps the indices of all intervals then, by block."""
        if self.has_sharing:
            return [
                np.flatnonzero((self.first <= row) & (self.last >= row))
                for row in rows.tolist()
            ]
        cells = self.at(np.arange(1, self.num_blocks + 1), rows)
        return [cells.latest[cells.held[:, i], i] for i in range(len(rows))]


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells of blocks [b] and steps [t]. latest: [b, t] index of the interval that holds the cell,
    or was the last to hold the block before, NOBODY for a block never held; held: [b, t]."""

    ownership: Ownership
    blocks: np.ndarray
    rows: np.ndarray
    latest: np.ndarray
    held: np.ndarray

    @property
    def owner(self) -> np.ndarray:
        """[b, t] owner code, NOBODY where the block is free."""
        if not len(self.ownership):
            return self.latest
        return np.where(self.held, self.ownership.owner[self.latest], NOBODY)


def ownership_of(
    blocks: pl.DataFrame, steps: pl.DataFrame, requests: pl.DataFrame, pool_blocks: int
) -> Ownership:
    """Index a recording's `blocks`; pieces of an interval that was cut are joined.

    Takes some 0.5 s for each million intervals, once. Owner codes are by arrival and id, so that the
    same workload gives the same request the same code in every run.
    """
    ids, owner = _codes(requests, blocks["request_id"])
    numbers = steps["step"].to_numpy()
    first, last = _rows(numbers, blocks["first_step"], blocks["last_step"])
    block = blocks["block_id"].to_numpy()
    pool = pool_blocks or int(block.max(initial=0))
    good = (block >= 1) & (block <= pool) & (last >= first)
    columns = [
        block.astype(np.int32),
        owner,
        blocks["logical_index"].to_numpy(),
        first.astype(np.int32),
        last.astype(np.int32),
    ]
    dropped = int((~good).sum())
    if dropped:
        columns = [c[good] for c in columns]
    held, owner, logical, f, l_ = _sorted_and_joined(columns, len(numbers))
    shown, shown_first = _shown(held, f, l_, len(numbers))
    return Ownership(
        ids, held, owner, logical, f, l_, shown, shown_first, pool, len(numbers), dropped
    )


def _codes(requests: pl.DataFrame, request_id: pl.Series) -> tuple[pl.Series, np.ndarray]:
    """All request ids in order of arrival, those that only `blocks` knows last; and [n] the place in
    them of each interval's. A request's blocks mostly stand together: each run is looked up once."""
    runs = request_id.rename("id").rle().struct.unnest().rename({"value": "id"})
    known = requests.sort("arrival_s", "request_id", nulls_last=True)["request_id"].rename("id")
    held = runs["id"].unique()
    unknown = held.filter(~held.is_in(known.implode())).sort()
    ids = pl.concat([known, unknown])
    codes = pl.DataFrame({"id": ids, "code": np.arange(len(ids), dtype=np.int32)})
    found = runs.join(
        codes.unique("id", keep="first", maintain_order=True),
        on="id",
        how="left",
        maintain_order="left",
    )
    owner = np.repeat(found["code"].to_numpy(), found["len"].to_numpy())
    return ids.rename("request_id"), owner


def _rows(
    numbers: np.ndarray, first: pl.Series, last: pl.Series
) -> tuple[np.ndarray, np.ndarray]:
    """Steps as rows: of the first step at or after `first`, of the last at or before `last`."""
    f, l_ = first.to_numpy(), last.to_numpy()
    if not len(numbers):
        return np.zeros(len(f), np.int64), np.full(len(f), -1, np.int64)
    start, end = int(numbers[0]), int(numbers[-1])
    if end - start + 1 == len(numbers):  # no gap, as an engine writes them
        return np.clip(f - start, 0, len(numbers)), np.clip(l_ - start, -1, len(numbers) - 1)
    return np.searchsorted(numbers, f, "left"), np.searchsorted(numbers, l_, "right") - 1


def _order(keys: Sequence[np.ndarray]) -> np.ndarray:
    """Indices that sort by the keys, the first one first. One number is sorted where they fit in it."""
    packed = np.zeros(len(keys[0]), np.int64)
    bits = 0
    for key in keys:
        width = int(key.max(initial=0)).bit_length()
        packed = (packed << width) | key
        bits += width
    if bits > 63:
        return np.lexsort(tuple(reversed(keys)))
    return pl.Series(packed).arg_sort().to_numpy().astype(np.int64)  # as numpy takes by


def _sorted_and_joined(columns: list[np.ndarray], num_steps: int) -> list[np.ndarray]:
    """The columns (block, owner, logical, first, last) by block and first step, pieces joined."""
    block, owner, _, first, _ = columns
    columns = [c[o] for o in (_order([block, first, owner]),) for c in columns]
    if not len(block):
        return columns
    if _overlaps(columns, num_steps):  # pieces of two holders alternate: sort them apart
        block, owner, _, first, _ = columns
        order = _order([block, owner, first])
        joined = _joined([c[order] for c in columns])
        order = _order([joined[0], joined[3], joined[1]])
        return [c[order] for c in joined]
    return _joined(columns)


def _overlaps(columns: list[np.ndarray], num_steps: int) -> bool:
    block, _, _, first, last = columns
    latest = np.maximum.accumulate(block.astype(np.int64) * (num_steps + 1) + last)
    start = block.astype(np.int64) * (num_steps + 1) + first
    return bool((start[1:] <= latest[:-1]).any())


def _joined(columns: list[np.ndarray]) -> list[np.ndarray]:
    """Neighbouring rows that go on from each other, as one."""
    block, owner, logical, first, last = columns
    goes_on = (
        (block[1:] == block[:-1])
        & (owner[1:] == owner[:-1])
        & (logical[1:] == logical[:-1])
        & (first[1:] == last[:-1] + 1)
    )
    if not goes_on.any():
        return columns
    begins = np.append(True, ~goes_on)
    ends = np.append(~goes_on, True)
    return [block[begins], owner[begins], logical[begins], first[begins], last[ends]]


def _shown(
    block: np.ndarray, first: np.ndarray, last: np.ndarray, num_steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Which intervals are shown, and from which row on, so that each cell shows one holder."""
    if not len(block):
        return np.zeros(0, np.int32), np.zeros(0, np.int32)
    end = block.astype(np.int64) * (num_steps + 1) + last
    latest = np.append(-1, np.maximum.accumulate(end)[:-1])  # last cell shown before, any block
    shown = np.flatnonzero(end > latest).astype(np.int32)
    here = latest[shown] - block[shown].astype(np.int64) * (num_steps + 1)
    return shown, np.maximum(first[shown], here + 1).astype(np.int32)
