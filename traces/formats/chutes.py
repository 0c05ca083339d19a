"""Chutes metadata ("A Year in LLM Serving"): Parquet, or CSV cut from it.

invocation_id, function_name, user_id, started_at, completed_at (timestamps counted from
1970-01-01), it and ot (input and output tokens as 32-bit floats, nullable), ct, ttft. Quirks:
inputs up to 15.4 million tokens; completed_at may be null.
Source: huggingface.co/datasets/harvardMadsys/chutes_metadata.
"""

from __future__ import annotations

from traces.formats.columns import KINDS
from traces.formats.raw import Format, RawTrace, ReadOptions, raw_from_table
from traces.formats.source import Source
from traces.formats.tabular import load

_COLUMNS = {
    "arrival_s": "started_at",
    "prompt_tokens": "it",
    "output_tokens": "ot",
    "request_id": "invocation_id",
}


def sniff(source: Source) -> bool:
    return source.has(*_COLUMNS.values())


def read(source: Source, options: ReadOptions) -> RawTrace:
    loaded = load(source, _COLUMNS, KINDS, time_unit=options.time_unit)
    return raw_from_table(source, "Chutes metadata", loaded, columns=_COLUMNS)


FORMAT = Format("chutes", "Chutes metadata", sniff, read)
