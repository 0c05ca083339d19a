"""LiteLLM: StandardLoggingPayload (JSON, JSON lines) and exports of the table LiteLLM_SpendLogs.

startTime (float s since 1970 in payloads, a date in the table), prompt_tokens, completion_tokens,
status, session_id, trace_id. Quirks: lines are in completion order; a failure has 0 tokens;
completionStartTime equals endTime when the answer was not streamed.
"""

from __future__ import annotations

import polars as pl

from traces.formats.cells import TEXT
from traces.formats.columns import KINDS
from traces.formats.raw import Format, RawTrace, ReadOptions, raw_from_table
from traces.formats.source import Source
from traces.formats.tabular import load

_NEEDED = {
    "arrival_s": "startTime",
    "prompt_tokens": "prompt_tokens",
    "output_tokens": "completion_tokens",
}


def sniff(source: Source) -> bool:
    return source.has(*_NEEDED.values()) and (source.has("call_type") or source.has("endTime"))


def read(source: Source, options: ReadOptions) -> RawTrace:
    columns = dict(_NEEDED)
    for role, names in {
        "request_id": ("id", "request_id"),
        "status": ("status",),
        "session_id": ("session_id",),
        "trace": ("trace_id",),
    }.items():
        name = next((n for n in names if source.has(n)), None)
        if name:
            columns[role] = name
    loaded = load(source, columns, {**KINDS, "trace": TEXT}, time_unit=options.time_unit)
    frame = loaded.frame
    if "status" in frame.columns:
        failed = pl.when(pl.col("status").str.to_lowercase() == "failure").then(
            pl.lit("failed")
        )
        frame = frame.with_columns(failed.alias("aside")).drop("status")
    texts = [c for c in ("session_id", "trace") if c in frame.columns]
    if texts:
        named = pl.coalesce([pl.when(pl.col(c) != "").then(pl.col(c)) for c in texts])
        frame = frame.with_columns(named.alias("session_id")).drop("trace", strict=False)
    raw = raw_from_table(source, "LiteLLM", loaded, columns=columns)
    return raw.with_frame(frame)


FORMAT = Format("litellm", "LiteLLM payloads and spend logs", sniff, read)
