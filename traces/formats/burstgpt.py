"""BurstGPT 1 and 2 (Timestamp in whole seconds) and 3 (with Session ID and Elapsed time).

CSV with blanks in its names. Quirks: a one-second clock, so many requests share a time; Response
tokens 0 means that the request failed; version 3 starts at 19,440,110 s and leaves Session ID blank
on API rows. Without prefixes. Source: github.com/HPMLL/BurstGPT.
"""

from __future__ import annotations

import polars as pl

from traces.formats.columns import KINDS
from traces.formats.mooncake import tick_note
from traces.formats.raw import Format, RawTrace, ReadOptions, raw_from_table
from traces.formats.source import Source
from traces.formats.tabular import load

_COLUMNS = {
    "arrival_s": "Timestamp",
    "prompt_tokens": "Request tokens",
    "output_tokens": "Response tokens",
}


def sniff(source: Source) -> bool:
    return source.is_table and source.has(*_COLUMNS.values())


def read(source: Source, options: ReadOptions) -> RawTrace:
    columns = dict(_COLUMNS)
    if source.has("Session ID"):
        columns["session_id"] = "Session ID"
    loaded = load(source, columns, KINDS, time_unit=options.time_unit or "s")
    failed = pl.when(pl.col("output_tokens") == 0).then(pl.lit("failed (no response tokens)"))
    frame = loaded.frame.with_columns(failed.alias("aside"))
    raw = raw_from_table(source, "BurstGPT", loaded, columns=columns)
    raw = raw.with_frame(frame)
    return raw.with_notes(tick_note(frame["arrival_s"]))


FORMAT = Format("burstgpt", "BurstGPT 1, 2 and 3", sniff, read)
