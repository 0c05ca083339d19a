"""SwissAI serving trace (OSDI'26): JSON lines of one request each.

id, created_at and finished_at (ISO, ms, Z), status DEFAULT or ERROR, model, reported_token_input,
reported_token_output (-1: not reported), model_parameters. Quirks: not sorted; a third of the rows
lack token counts; max_tokens may be the text "null". The buckets edition adds token_count and
bucket_ids, whose length is not documented: they are not used.
Source: huggingface.co/datasets/eth-easl/swissai-serving-trace.
"""

from __future__ import annotations

import polars as pl

from traces.formats.columns import KINDS
from traces.formats.raw import Format, RawTrace, ReadOptions, raw_from_table
from traces.formats.source import Source
from traces.formats.tabular import load

_COLUMNS = {
    "arrival_s": "created_at",
    "prompt_tokens": "reported_token_input",
    "output_tokens": "reported_token_output",
    "request_id": "id",
    "status": "status",
}


def sniff(source: Source) -> bool:
    return source.has("created_at", "reported_token_input", "reported_token_output")


def read(source: Source, options: ReadOptions) -> RawTrace:
    columns = {r: c for r, c in _COLUMNS.items() if source.has(c)}
    loaded = load(source, columns, KINDS, time_unit=options.time_unit)
    frame = loaded.frame
    if "status" in frame.columns:
        failed = pl.when(pl.col("status").str.to_uppercase() == "ERROR").then(
            pl.lit("failed (status ERROR)")
        )
        frame = frame.with_columns(failed.alias("aside")).drop("status")
    raw = raw_from_table(source, "SwissAI serving trace", loaded, columns=columns)
    return raw.with_frame(frame)


FORMAT = Format("swissai", "SwissAI serving trace", sniff, read)
