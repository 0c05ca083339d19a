"""LLMServingSim's files: request logs of measured vLLM runs, and its workloads.

JSON lines. Request log: request_id, input_toks, output_toks, arrival_time (float s since 1970) and
queued_ts, scheduled_ts, first_token_ts, last_token_ts on another, monotonic clock: only arrival_time
is used. Workload: input_toks, output_toks, arrival_time_ns (integer ns from 0).
Source: github.com/casys-kaist/LLMServingSim.
"""

from __future__ import annotations

from traces.formats.columns import KINDS
from traces.formats.raw import Format, RawTrace, ReadOptions, raw_from_table
from traces.formats.source import Source
from traces.formats.tabular import load


def sniff(source: Source) -> bool:
    if not source.has("input_toks", "output_toks"):
        return False
    return source.has("arrival_time") or source.has("arrival_time_ns")


def read(source: Source, options: ReadOptions) -> RawTrace:
    nano = source.has("arrival_time_ns")
    columns = {
        "arrival_s": "arrival_time_ns" if nano else "arrival_time",
        "prompt_tokens": "input_toks",
        "output_tokens": "output_toks",
    }
    if source.has("request_id"):
        columns["request_id"] = "request_id"
    loaded = load(
        source, columns, KINDS, time_unit=options.time_unit or ("ns" if nano else "s")
    )
    raw = raw_from_table(source, "LLMServingSim", loaded, columns=columns)
    if source.has("first_token_ts"):
        raw = raw.with_notes(
            "Its measured times (queued, first token, last token) are not part of the workload."
        )
    return raw


FORMAT = Format("llmservingsim", "LLMServingSim request logs and workloads", sniff, read)
