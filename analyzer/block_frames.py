"""Snapshots of the pool, one after the other: what the player shows, small enough to send at once.

It knows how many cells and frames a browser is given, and packs them. A cell is a block, or one of
so many where the pool is larger than MOST_CELLS. Frames lie cell by cell, so that a block's owner,
which rarely changes from frame to frame, packs well.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analyzer.block_colours import NOT_THERE, ColourBy, lit_up, painted
from analyzer.block_picture import BlockRun, rows_at, short
from analyzer.block_states import states_of

MOST_CELLS = 10_000
MOST_FRAMES = 240
CELLS_TIMES_FRAMES = 1_000_000
CLOSE_UP = 40  # steps on either side of the one that is looked at


@dataclass(frozen=True, eq=False)
class Frames:
    """Snapshots of one run. x: [f] places on the axis; step: [f] step number, -1 where none runs;
    per_cell: blocks that a cell stands for, of which it shows one; state: [cells, f] of CellState or
    NOT_THERE; index: [cells, f] palette index, None where it follows from state and owner; owner: [cells, f] 1 + place in `codes` of who holds the block or held it
    last, 0 for nobody; codes, labels: of those owners; used, running: [f] of the whole pool."""

    x: np.ndarray
    step: np.ndarray
    num_blocks: int
    per_cell: float
    first_blocks: np.ndarray
    index: np.ndarray | None
    state: np.ndarray
    owner: np.ndarray
    codes: np.ndarray
    labels: Sequence[str]
    used: np.ndarray
    running: np.ndarray

    @property
    def num_bytes(self) -> int:
        """Of the packed planes."""
        return sum(len(text) for text in self.packed().values() if isinstance(text, str))

    def packed(self) -> dict[str, Any]:
        """For the browser: planes as zlib in base64, the rest as lists."""
        wide = next(t for t in ("<u1", "<u2", "<u4") if len(self.codes) <= np.iinfo(t).max)
        owner = self.owner.astype(wide)
        return {
            "cells": len(self.first_blocks),
            "blocks": self.num_blocks,
            "perCell": self.per_cell,
            "block": _base64(self.first_blocks.astype("<i4")),
            "steps": self.step.tolist(),
            "used": self.used.tolist(),
            "running": self.running.tolist(),
            "index": None if self.index is None else _base64(self.index),
            "state": _base64(self.state),
            "owner": _base64(owner),
            "ownerBytes": owner.itemsize,
            "codes": _base64(self.codes.astype("<i4")),
            "labels": list(self.labels),
        }


def frames(
    run: BlockRun,
    edges: np.ndarray,
    shown: tuple[float, float],
    by: ColourBy = "owner",
    lit: str | None = None,
    x: np.ndarray | None = None,
    in_steps: bool = False,
) -> Frames:
    """Snapshots of a run at these places of the axis; x: None for `frame_places` of the shown part.

    edges: [steps + 1] where steps begin; in_steps: the axis counts steps, and ages do too.
    """
    own = run.own
    n = min(max(own.num_blocks, 1), MOST_CELLS)
    blocks = 1 + ((np.arange(n) + 0.5) * max(own.num_blocks, 1) / n).astype(np.int64)
    x = frame_places(edges, shown, n) if x is None else x
    rows = rows_at(edges, x)
    cells = own.at(blocks, rows)
    state = states_of(cells, run.told)
    index = painted(cells, state, by, None if in_steps else run.starts_s)
    code = own.code(lit) if lit is not None else None
    if code is not None:
        index = lit_up(index, _lit(run, code, rows, n))
    follows = code is None and by != "age"
    last = (
        np.where(cells.latest >= 0, own.owner[cells.latest], -1) if len(own) else cells.latest
    )
    codes, owner = np.unique(last, return_inverse=True)
    if len(codes) and codes[0] == -1:
        codes = codes[1:]
    else:
        owner = owner + 1
    there = rows >= 0
    now = np.maximum(rows, 0)
    state = np.where(there[None, :], state, NOT_THERE).astype(np.uint8)
    counts = {c: run.steps[c].to_numpy() for c in ("step", "used_blocks", "num_running")}
    return Frames(
        x,
        np.where(there, counts["step"][now], -1),
        own.num_blocks,
        max(own.num_blocks, 1) / n,
        blocks,
        None if follows else index,
        state,
        owner.reshape(cells.latest.shape),
        codes,
        short(own.ids[codes]).to_list(),
        np.where(there, counts["used_blocks"][now], 0),
        np.where(there, counts["num_running"][now], 0),
    )


def frame_places(edges: np.ndarray, shown: tuple[float, float], num_cells: int) -> np.ndarray:
    """Where frames lie: a frame a step where the shown part has few, else evenly spaced."""
    most = int(np.clip(CELLS_TIMES_FRAMES // max(num_cells, 1), 30, MOST_FRAMES))
    starts = edges[:-1]
    first, stop = (
        np.searchsorted(starts, shown[0], "left"),
        np.searchsorted(starts, shown[1], "left"),
    )
    if 0 < stop - first <= most:
        return np.unique(starts[first:stop])
    return np.linspace(*shown, most, endpoint=False)


def close_up(edges: np.ndarray, row: int) -> np.ndarray:
    """Where the steps around one row begin."""
    return np.unique(edges[:-1][max(0, row - CLOSE_UP) : row + CLOSE_UP + 1])


def _lit(run: BlockRun, code: int, rows: np.ndarray, num_cells: int) -> np.ndarray:
    """[cells, f] whether the request holds any block of the cell."""
    own = run.own
    mine = own.of(code)
    held = (own.first[mine, None] <= rows[None, :]) & (own.last[mine, None] >= rows[None, :])
    cell = (own.block[mine].astype(np.int64) - 1) * num_cells // max(own.num_blocks, 1)
    which, frame = np.nonzero(held & (rows >= 0)[None, :])
    lit = np.zeros((num_cells, len(rows)), bool)
    lit[cell[which], frame] = True
    return lit


def _base64(plane: np.ndarray) -> str:
    return base64.b64encode(zlib.compress(np.ascontiguousarray(plane).tobytes(), 3)).decode()
