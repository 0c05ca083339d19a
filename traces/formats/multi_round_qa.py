"""CSV that LMCache's multi-round-qa.py writes (also AIBrix and the vLLM production stack).

prompt_tokens, generation_tokens (floats), ttft, generation_time, user_id, question_id, launch_time,
finish_time (float s since 1970). Quirks: rows in completion order; two requests of one user share a
long history, but no ids say which tokens.
"""

from __future__ import annotations

from traces.formats.columns import KINDS
from traces.formats.raw import Format, RawTrace, ReadOptions, raw_from_table
from traces.formats.source import Source
from traces.formats.tabular import load

_COLUMNS = {
    "arrival_s": "launch_time",
    "prompt_tokens": "prompt_tokens",
    "output_tokens": "generation_tokens",
    "session_id": "user_id",
}


def sniff(source: Source) -> bool:
    return source.is_table and source.has(*_COLUMNS.values())


def read(source: Source, options: ReadOptions) -> RawTrace:
    loaded = load(source, _COLUMNS, KINDS, time_unit=options.time_unit or "s")
    raw = raw_from_table(source, "multi-round-qa", loaded, columns=_COLUMNS)
    return raw.with_notes(
        "Requests of one user share their history, but no ids say how much: no prefix is assumed."
    )


FORMAT = Format("multi_round_qa", "multi-round-qa benchmark CSV", sniff, read)
