"""What a block is in at a step: one state per cell, from its holder's and its own history.

It knows when a request had its first token, when it was preempted, and how many of its tokens had
been computed when it let a block go. A recording does not say block by block whether a free one can
still be hit in the prefix cache; that follows from whether it was full when it was let go (only full
blocks are hashed) and has not been handed out since. `cached_free_blocks` of `steps` counts the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import polars as pl

from analyzer.block_map import Cells, Ownership

_KIND = pl.col("kind").cast(pl.String)


class CellState(IntEnum):
    """One per cell; the values are what is drawn."""

    UNUSED = 0
    EMPTY = 1
    CACHED = 2
    PREFILL = 3
    DECODE = 4
    SHARED = 5
    FENCED = 6


WORDS = {
    CellState.UNUSED: "never used yet",
    CellState.EMPTY: "free",
    CellState.CACHED: "free, still in the prefix cache",
    CellState.PREFILL: "in use, prefill",
    CellState.DECODE: "in use, decode",
    CellState.SHARED: "shared by several requests",
    CellState.FENCED: "waits for its copy to the host",
}
SHORT = {
    CellState.UNUSED: "never used",
    CellState.EMPTY: "free",
    CellState.CACHED: "free, cached",
    CellState.PREFILL: "prefill",
    CellState.DECODE: "decode",
    CellState.SHARED: "shared",
    CellState.FENCED: "being copied out",
}


@dataclass(frozen=True, eq=False)
class Histories:
    """What cells need beside ownership. decode_row: [requests] first row with the first token
    behind it; cached: [n] whether an interval's content can be hit after it; let_go: [n] row from
    which its request is preempted and only a copy holds the block, beyond its last row for most."""

    decode_row: np.ndarray
    cached: np.ndarray
    let_go: np.ndarray


def histories(
    own: Ownership,
    steps: pl.DataFrame,
    events: pl.DataFrame,
    requests: pl.DataFrame,
    block_size_tokens: int,
    prefix_caching: bool,
) -> Histories:
    """Work out per request and interval what `states_of` asks for, once a recording."""
    per = _per_request(own, requests)
    starts = steps["t_start_s"].to_numpy()
    decode_row = np.searchsorted(starts, per["first_token_s"].to_numpy(), "left")
    preempted = _preemptions(own, steps, events)
    left_rows, left_tokens = preempted
    key = own.owner.astype(np.int64) * (own.num_steps + 2)
    place = np.searchsorted(left_rows, key + own.first + 1, "left")
    found = np.append(left_rows, np.iinfo(np.int64).max)[place]
    row = found - key  # of the next preemption of the same request; far away if there is none
    before_end = row <= own.last + 1
    let_go = np.where(before_end, row, own.num_steps + 1).astype(np.int32)
    tokens = np.where(
        before_end,
        np.append(left_tokens, 0)[place],
        per["computed_tokens"].to_numpy()[own.owner],
    )
    size = block_size_tokens
    cached = (
        (own.logical.astype(np.int64) + 1) * size <= tokens
        if prefix_caching and size
        else np.zeros(len(own), bool)
    )
    return Histories(decode_row, cached, let_go)


def _per_request(own: Ownership, requests: pl.DataFrame) -> pl.DataFrame:
    """By owner code: first_token_s (infinite: none), and tokens computed at the end. The last
    output token is never computed."""
    made = pl.col("prompt_tokens").fill_null(0) + pl.col("output_tokens").fill_null(0) - 1
    told = requests.unique("request_id", keep="first").select(
        "request_id", pl.col("first_token_s").fill_null(np.inf), computed_tokens=made
    )
    return (
        own.ids.to_frame()
        .join(told, on="request_id", how="left", maintain_order="left")
        .with_columns(
            pl.col("first_token_s").fill_null(np.inf), pl.col("computed_tokens").fill_null(0)
        )
    )


def _preemptions(
    own: Ownership, steps: pl.DataFrame, events: pl.DataFrame
) -> tuple[np.ndarray, np.ndarray]:
    """Keys (owner and row as one number), sorted, and the tokens each victim had computed."""
    codes = pl.DataFrame(
        {"request_id": own.ids, "owner": np.arange(len(own.ids), dtype=np.int64)}
    )
    rows = (
        events.filter(_KIND == "preempt")
        .select("request_id", "step", "tokens")
        .join(codes, on="request_id", how="inner")
    )
    row = np.searchsorted(steps["step"].to_numpy(), rows["step"].to_numpy(), "left")
    key = rows["owner"].to_numpy() * (own.num_steps + 2) + row
    order = np.argsort(key, kind="stable")
    return key[order], rows["tokens"].to_numpy()[order]


def states_of(cells: Cells, told: Histories) -> np.ndarray:
    """[b, t] state of each cell, uint8 of CellState."""
    own = cells.ownership
    if not len(own):
        return np.zeros(cells.latest.shape, np.uint8)
    latest, rows = cells.latest, cells.rows[None, :]
    free = np.where(told.cached[latest], CellState.CACHED, CellState.EMPTY)
    decode = rows >= told.decode_row[own.owner[latest]]
    used = np.where(decode, CellState.DECODE, CellState.PREFILL)
    used = np.where(rows >= told.let_go[latest], CellState.FENCED, used)
    if own.has_sharing:
        used = np.where(own.holders(cells.blocks, cells.rows) > 1, CellState.SHARED, used)
    state = np.where(cells.held, used, np.where(latest >= 0, free, CellState.UNUSED))
    return state.astype(np.uint8)
