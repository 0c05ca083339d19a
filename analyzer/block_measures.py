"""How scattered blocks lie, and how often they change hands: series over a part of a run.

It knows ownership and `steps`. Scatter: a copy that takes neighbours together (`coalesced`) needs
one transfer per run of neighbouring blocks of a request, so runs are what a swap would pay. It is
looked at in a few steps, exactly; handovers are counted in all.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from analyzer.block_map import Ownership

_SCHEMA = ("row", "num_requests", "num_blocks", "num_runs", "max_runs", "num_islands")
LOOKS = 60  # steps in which runs are counted
LOOKED_AT = 1_200_000  # blocks looked at for it, at most: fewer looks in a large pool


def runs_at(own: Ownership, rows: np.ndarray) -> pl.DataFrame:
    """Runs of neighbouring blocks in each of these steps: row, num_requests (that hold any),
    num_blocks (a shared one counts for each holder), num_runs, max_runs (of one request),
    num_islands.

    A run: blocks that follow each other in a request's block table and, upwards, in memory: one
    coalesced copy. An island: blocks that are neighbours in memory in whatever order, as few pieces as
    there could be if copies were sorted by address.
    """
    return pl.DataFrame(
        [
            (row, *_runs(own, alive))
            for row, alive in zip(rows.tolist(), own.alive(rows), strict=True)
        ],
        schema=_SCHEMA,
        orient="row",
    ).cast(pl.Int64)


def _runs(own: Ownership, alive: np.ndarray) -> tuple[int, ...]:
    """num_requests to num_islands of intervals at one step, by block."""
    if not len(alive):
        return 0, 0, 0, 0, 0
    owner, block = own.owner[alive].astype(np.int64), own.block[alive].astype(np.int64)
    order = np.argsort((owner << 32) | own.logical[alive])
    begins, starts = _begins(owner[order], block[order])
    by_address = np.sort((owner << 32) | block)
    islands, _ = _begins(by_address >> 32, by_address & 0xFFFFFFFF)
    most = int(np.add.reduceat(begins.astype(np.int64), starts).max())
    return len(starts), len(alive), int(begins.sum()), most, int(islands.sum())


def _begins(owner: np.ndarray, block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """[n] whether a run begins at each block, taken in this order, and where requests begin."""
    other = np.append(True, owner[1:] != owner[:-1])
    apart = np.append(True, block[1:] != block[:-1] + 1)
    return other | apart, np.flatnonzero(other)


def looks(own: Ownership, first: int, last: int) -> np.ndarray:
    """Rows at which to count runs between two rows, both included, as many as time allows."""
    most = max(12, min(LOOKS, LOOKED_AT // max(own.num_blocks, 1)))
    return np.unique(np.linspace(first, last, most).round().astype(np.int64))


def request_runs(own: Ownership, owner: int, row: int) -> tuple[int, int]:
    """Blocks and runs of one request at a step."""
    mine = own.of(owner)
    mine = mine[(own.first[mine] <= row) & (own.last[mine] >= row)]
    block = own.block[mine][np.argsort(own.logical[mine], kind="stable")].astype(np.int64)
    return len(block), int(np.count_nonzero(np.diff(block) != 1)) + 1 if len(block) else 0


def handover_rows(own: Ownership) -> np.ndarray:
    """Rows, sorted, in which a block got another holder than it had last; the first holder of a
    block does not count."""
    again = (own.block[1:] == own.block[:-1]) & (own.owner[1:] != own.owner[:-1])
    return np.sort(own.first[1:][again])


def handovers_per_block(own: Ownership, first: int, last: int) -> np.ndarray:
    """[num_blocks + 1] how often each block got another holder between two rows, both included."""
    again = (own.block[1:] == own.block[:-1]) & (own.owner[1:] != own.owner[:-1])
    inside = again & (own.first[1:] >= first) & (own.first[1:] <= last)
    return np.bincount(own.block[1:][inside], minlength=own.num_blocks + 1)


def in_buckets(rows: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """How many of the sorted rows lie in each [cuts[i], cuts[i + 1])."""
    return np.diff(np.searchsorted(rows, cuts, "left"))


def hit_blocks(steps: pl.DataFrame, cuts: np.ndarray, block_size_tokens: int) -> np.ndarray:
    """Blocks found in the prefix cache in the rows of each [cuts[i], cuts[i + 1])."""
    upto = np.append(0, np.cumsum(steps["cached_tokens"].to_numpy(), dtype=np.int64))
    return np.diff(upto[np.clip(cuts, 0, steps.height)]) / max(block_size_tokens, 1)
