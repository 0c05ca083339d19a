"""Vidur's processed traces and splitwise-sim's traces: re-based tables of arrivals and lengths.

Vidur: arrived_at (float s from 0), num_prefill_tokens, num_decode_tokens. splitwise-sim:
request_id, request_type, application_id, arrival_timestamp (s), batch_size, prompt_size, token_size.
Quirk: Vidur's arxiv_summarization has lengths only (num_total_tokens, pd_ratio) and no arrivals.
Source: github.com/microsoft/vidur, github.com/Mutinifni/splitwise-sim.
"""

from __future__ import annotations

from traces.formats.columns import KINDS
from traces.formats.raw import Format, RawTrace, ReadOptions, raw_from_table
from traces.formats.source import Source
from traces.formats.tabular import load

_VIDUR = {
    "arrival_s": "arrived_at",
    "prompt_tokens": "num_prefill_tokens",
    "output_tokens": "num_decode_tokens",
}
_SPLITWISE = {
    "request_id": "request_id",
    "arrival_s": "arrival_timestamp",
    "prompt_tokens": "prompt_size",
    "output_tokens": "token_size",
}


def _columns(source: Source) -> dict[str, str] | None:
    if not source.is_table:
        return None
    return next((c for c in (_VIDUR, _SPLITWISE) if source.has(*c.values())), None)


def sniff(source: Source) -> bool:
    return _columns(source) is not None


def read(source: Source, options: ReadOptions) -> RawTrace:
    columns = _columns(source) or _VIDUR
    loaded = load(source, columns, KINDS, time_unit=options.time_unit or "s")
    name = "Vidur processed trace" if columns is _VIDUR else "splitwise-sim trace"
    return raw_from_table(source, name, loaded, columns=columns)


FORMAT = Format("vidur", "Vidur processed traces, splitwise-sim traces", sniff, read)
