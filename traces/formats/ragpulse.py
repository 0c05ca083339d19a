"""RAGPulse: JSON lines of a university's question answering, with segments instead of blocks.

timestamp (text of whole seconds), input_length, output_length, hash_ids (five lists of segment ids
in prompt order), session_id; the lengths of the segments are in five maps beside the trace
(1_sys_prompt.jsonl .. 5_web_search.jsonl). Quirks: an empty last line; the times are folded modulo
one week, so sorting interleaves two weeks; six to twelve tokens of a prompt are in no segment.
Source: github.com/flashserve/RAGPulse.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from traces.formats.json_records import records
from traces.formats.raw import Format, RawTrace, ReadOptions, Rows
from traces.formats.source import Source, inspect

SEGMENTS = ("sys_prompt", "passages_ids", "history", "web_search", "user_input")
_MAX_MAP_BYTES = 256 << 20
_WEEK_S = 604_800


def sniff(source: Source) -> bool:
    ids = source.first.get("hash_ids") if isinstance(source.first, dict) else None
    return source.has("timestamp", "input_length", "output_length") and isinstance(ids, dict)


def read(source: Source, options: ReadOptions) -> RawTrace:
    lengths = _segment_lengths(source.path)
    rows = Rows(source, "RAGPulse", options.time_unit or "s")
    before, folds = None, 0
    for place, record in records(source):
        if not isinstance(record, dict):
            raise source.error(
                place, "a record is not an object", "Correct or remove the line."
            )
        ids, tokens = _prefix(record.get("hash_ids") or {}, lengths)
        time = record.get("timestamp")
        rows.add(
            place,
            time,
            record.get("input_length"),
            record.get("output_length"),
            session_id=record.get("session_id"),
            prefix_ids=ids,
            prefix_tokens=tokens,
        )
        now = float(time) if time not in (None, "") else None
        if before is not None and now is not None:
            folds += before - now > _WEEK_S / 2
        before = now if now is not None else before
    return rows.trace().with_notes(
        ""
        if lengths
        else "The maps of segment lengths (1_sys_prompt.jsonl and so on) do not lie beside "
        "it: the shared segments are left out.",
        "The times are folded onto one week: sorting interleaves its weeks." if folds else "",
    )


def _prefix(ids: dict[str, Any], lengths: dict[int, int]) -> tuple[list[int], list[int]]:
    """Segment ids and lengths from the start of the prompt, up to one whose length is not known."""
    out: list[int] = []
    for segment in SEGMENTS:
        for i in ids.get(segment) or ():
            if i not in lengths:
                return out, [lengths[j] for j in out]
            out.append(i)
    return out, [lengths[j] for j in out]


def _segment_lengths(trace: Path) -> dict[int, int]:
    """Segment id -> tokens, from the maps beside the trace. Ids are unique over the five maps."""
    lengths: dict[int, int] = {}
    for path in sorted(trace.parent.glob("[1-5]_*.jsonl")):
        if path.stat().st_size > _MAX_MAP_BYTES:
            continue
        source = inspect(path)
        if source.shape != "json" or not source.has("token_length"):
            continue
        for _, record in records(source):
            key = next((k for k in record if k.endswith("_id")), None)
            if key is not None:
                lengths[int(record[key])] = int(record["token_length"])
    return lengths


FORMAT = Format("ragpulse", "RAGPulse", sniff, read)
