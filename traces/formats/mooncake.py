"""Mooncake traces: FAST'25 conversation, synthetic and toolagent, and the arXiv one.

JSON lines: timestamp (integer ms from 0), input_length, output_length, hash_ids. An id stands for a
block of 512 tokens, ids cover the prompt rounded up, and hold across the whole file. Quirks:
conversation and toolagent tick every 3 s, so many requests share a time.
Source: github.com/kvcache-ai/Mooncake, FAST25-release.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from traces.formats.columns import KINDS
from traces.formats.raw import Format, RawTrace, ReadOptions, raw_from_table
from traces.formats.source import Source
from traces.formats.tabular import load

BLOCK_TOKENS = 512
_KEYS = ("timestamp", "input_length", "output_length")
_COLUMNS = {
    "arrival_s": "timestamp",
    "prompt_tokens": "input_length",
    "output_tokens": "output_length",
    "prefix_ids": "hash_ids",
    "session_id": "session_id",  # flux-traces adds it
}
_FOREIGN = ("chat_id", "parent_chat_id", "block_size")


def sniff(source: Source) -> bool:
    if source.shape != "json" or not source.has(*_KEYS) or any(source.has(k) for k in _FOREIGN):
        return False
    return isinstance(source.first.get("hash_ids", []), list) and isinstance(
        source.first.get("timestamp"), int
    )


def read(source: Source, options: ReadOptions) -> RawTrace:
    columns = {r: c for r, c in _COLUMNS.items() if source.has(c)}
    loaded = load(source, columns, KINDS, time_unit=options.time_unit or "ms")
    block, note = _block(loaded.frame)
    raw = raw_from_table(source, "Mooncake", loaded, columns=columns, prefix_block_tokens=block)
    return raw.with_notes(note, tick_note(loaded.frame["arrival_s"]))


def _block(frame: pl.DataFrame) -> tuple[int | None, str]:
    """512, unless the ids of the file fit only another length (tools write such files too)."""
    if "prefix_ids" not in frame.columns or not frame["prefix_ids"].list.len().sum():
        return None, "There are no prefix ids: nothing is known to be shared."
    block = fitting_block(frame)
    if block == BLOCK_TOKENS:
        return block, ""
    if block is not None:
        return block, f"The ids fit blocks of {block} tokens, not Mooncake's {BLOCK_TOKENS}."
    return BLOCK_TOKENS, (
        f"Some rows have another number of ids than their prompt has blocks of {BLOCK_TOKENS} tokens."
    )


def fitting_block(frame: pl.DataFrame) -> int | None:
    """The block length by which every row with ids has as many as its prompt fills, rounded up."""
    n = frame["prefix_ids"].list.len().fill_null(0).to_numpy()
    tokens = frame["prompt_tokens"].fill_null(0).to_numpy()
    some = n > 0
    for block in (BLOCK_TOKENS, 16, 32, 64, 128, 256, 1024):
        if some.any() and np.all(n[some] == -(-tokens[some] // block)):
            return block
    return None


def tick_note(arrivals: pl.Series) -> str:
    """A note where most requests share their time with another and the clock is coarse."""
    ticks = arrivals.drop_nulls().unique().sort()
    if len(ticks) < 2 or len(ticks) * 2 > len(arrivals):
        return ""
    gap = float(ticks.diff().median() or 0.0)  # type: ignore[arg-type]
    return (
        f"The clock ticks about every {gap:.3g} s and {len(arrivals) - len(ticks):,} requests share a tick: "
        "replayed as recorded they arrive in bursts; spread them within the tick to avoid that."
    )


FORMAT = Format("mooncake", "Mooncake FAST'25 and arXiv traces", sniff, read)
