"""The host's tier: which requests had blocks in host memory, as far as events say.

It knows swap_out, swap_in and what ends a request. Host block ids are not recorded, so requests are
stacked in the order in which they went. What a host cache holds (offload) belongs to nobody: there
only the number of blocks is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from analyzer.block_colours import lit_up, owner_index
from analyzer.block_map import Ownership
from analyzer.block_states import CellState

_KIND = pl.col("kind").cast(pl.String)
_ENDS = ("swap_in", "finish", "abort", "refuse")


@dataclass(frozen=True, eq=False)
class HostTier:
    """Stays in host memory by first row: owner code, blocks, first and last row, [n] each. used:
    [steps] host blocks in use, whoever's."""

    owner: np.ndarray
    blocks: np.ndarray
    first: np.ndarray
    last: np.ndarray
    used: np.ndarray

    @property
    def peak(self) -> int:
        return int(self.used.max(initial=0))

    def raster(
        self, rows: np.ndarray, height: int, lit: int | None = None
    ) -> tuple[np.ndarray, int]:
        """Palette indices [height, columns], lowest block first, and the blocks of the whole height.

        rows: [columns] row of `steps`, -1 where there is none; lit: owner code to light up.
        """
        top = max(self.peak, 1)
        middle = (np.arange(height) + 0.5) * top / height
        used = np.where(rows >= 0, self.used[np.maximum(rows, 0)], 0)
        index = np.where(
            middle[:, None] < used[None, :], CellState.CACHED, CellState.UNUSED
        ).astype(np.uint8)
        owner = self._owners(rows, middle)
        index = np.where(owner >= 0, owner_index(np.maximum(owner, 0)), index).astype(np.uint8)
        return (index if lit is None else lit_up(index, owner == lit)), top

    def _owners(self, rows: np.ndarray, middle: np.ndarray) -> np.ndarray:
        """[height, columns] owner code of the stack at that height, -1 above it."""
        there = np.flatnonzero(rows >= 0)
        left = np.searchsorted(rows[there], self.first, "left")
        many = np.searchsorted(rows[there], self.last, "right") - left
        stay = np.repeat(np.arange(len(many)), np.maximum(many, 0))
        if not len(stay):
            return np.full((len(middle), len(rows)), -1)
        nth = np.arange(len(stay)) - np.repeat(np.cumsum(many) - many, many)
        column = there[left[stay] + nth]
        order = np.argsort(column, kind="stable")  # stays keep their order in a column
        stay, column = stay[order], column[order]
        total = np.cumsum(self.blocks[stay])
        begins = np.searchsorted(column, column, "left")
        top = total - np.append(0, total)[begins]
        wide = int(top.max()) + 1
        query = np.arange(len(rows))[None, :] * wide + np.minimum(middle, wide - 1)[:, None]
        place = np.searchsorted(column * wide + top, query, "right")
        found = np.minimum(place, len(stay) - 1)
        inside = (place < len(stay)) & (column[found] == np.arange(len(rows))[None, :])
        return np.where(inside, self.owner[stay[found]], -1)


def host_tier(own: Ownership, steps: pl.DataFrame, events: pl.DataFrame) -> HostTier | None:
    """The host's tier of a run; None where no block ever was in it."""
    used = steps["host_used_blocks"].to_numpy()
    if not used.any():
        return None
    codes = pl.DataFrame(
        {"request_id": own.ids, "owner": np.arange(len(own.ids), dtype=np.int64)}
    )
    stays = (
        events.with_columns(kind=_KIND)
        .filter(pl.col("kind").is_in(["swap_out", *_ENDS]))
        .with_columns(
            end=pl.when(pl.col("kind").is_in(_ENDS))
            .then(pl.col("step"))
            .fill_null(strategy="backward")
            .over("request_id")
        )
        .filter((pl.col("kind") == "swap_out") & (pl.col("blocks") > 0))
        .join(codes, on="request_id", how="inner", maintain_order="left")
    )
    numbers = steps["step"].to_numpy()
    first = np.searchsorted(numbers, stays["step"].to_numpy(), "left")
    end = stays["end"].fill_null(int(numbers[-1]) + 1).to_numpy()
    last = np.searchsorted(numbers, end, "left") - 1
    order = np.argsort(first, kind="stable")
    return HostTier(
        stays["owner"].to_numpy()[order],
        stays["blocks"].to_numpy()[order],
        first[order],
        np.maximum(last, first)[order],
        used,
    )
