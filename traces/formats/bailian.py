"""Qwen-Bailian "KVCache in the wild" traces: traceA, traceB, thinking, coder.

JSON lines: chat_id, parent_chat_id (-1: first turn), timestamp (float s from 0), input_length,
output_length, type, turn, hash_ids. An id stands for 16 tokens, rounded up, across the whole file.
Quirks: a parent may lie before the window, so a session can start at turn 3.
Source: github.com/alibaba-edu/qwen-bailian-usagetraces-anon.
"""

from __future__ import annotations

import polars as pl

from traces.formats.cells import INTEGER
from traces.formats.columns import KINDS
from traces.formats.raw import Format, RawTrace, ReadOptions, raw_from_table
from traces.formats.source import Source
from traces.formats.tabular import load

BLOCK_TOKENS = 16
_COLUMNS = {
    "arrival_s": "timestamp",
    "prompt_tokens": "input_length",
    "output_tokens": "output_length",
    "prefix_ids": "hash_ids",
    "chat": "chat_id",
    "parent": "parent_chat_id",
}


def sniff(source: Source) -> bool:
    return source.shape == "json" and source.has(*_COLUMNS.values())


def read(source: Source, options: ReadOptions) -> RawTrace:
    kinds = {**KINDS, "chat": INTEGER, "parent": INTEGER}
    loaded = load(source, _COLUMNS, kinds, time_unit=options.time_unit or "s")
    frame = loaded.frame
    roots, outside = _sessions(frame["chat"].to_list(), frame["parent"].to_list())
    frame = frame.with_columns(
        pl.col("chat").cast(pl.String).alias("request_id"), pl.Series("session_id", roots)
    ).drop("chat", "parent")
    raw = raw_from_table(
        source, "Qwen-Bailian", loaded, columns=_COLUMNS, prefix_block_tokens=BLOCK_TOKENS
    )
    note = f"{outside:,} turns follow a turn that lies before this file." if outside else ""
    return raw.with_frame(frame).with_notes(note)


def _sessions(chats: list[int | None], parents: list[int | None]) -> tuple[list[str], int]:
    """For each row the chat id of its first known turn, and how many parents are not in the file."""
    root: dict[int | None, int | None] = {}
    known = set(chats)
    outside = 0
    out = []
    for chat, parent in zip(chats, parents, strict=True):
        first = chat if parent is None or parent < 0 else root.get(parent, parent)
        outside += parent is not None and parent >= 0 and parent not in known
        root[chat] = first
        out.append(str(first))
    return out, outside


FORMAT = Format("bailian", "Qwen-Bailian usage traces", sniff, read)
