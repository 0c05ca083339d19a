"""NVIDIA Dynamo request traces: JSON lines, one event each, often as .gz.

schema "dynamo.request.trace.v1", event_type request_end (tool and payload events are not requests),
request {request_id, input_tokens, output_tokens, request_received_ms (since 1970), replay
{trace_block_size, input_length, input_sequence_hashes}}, agent_context {session_id}. Quirks: a row may
be wrapped in {"event": ...}; hashes use all 64 bits, beyond what a float holds; ids cover the prompt
rounded up, across the whole file.
"""

from __future__ import annotations

from typing import Any

from traces.formats.cells import id_number
from traces.formats.json_records import records
from traces.formats.raw import Format, RawTrace, ReadOptions, Rows
from traces.formats.source import Source

_SCHEMA = "dynamo.request.trace"


def _event(record: Any) -> dict[str, Any]:
    if isinstance(record, dict) and isinstance(record.get("event"), dict):
        record = record["event"]
    return record if isinstance(record, dict) else {}


def sniff(source: Source) -> bool:
    return source.shape == "json" and str(_event(source.first).get("schema", "")).startswith(
        _SCHEMA
    )


def read(source: Source, options: ReadOptions) -> RawTrace:
    rows = Rows(source, "Dynamo request trace", options.time_unit or "ms")
    blocks: set[int] = set()
    others = 0
    for place, record in records(source):
        event = _event(record)
        request = event.get("request")
        if event.get("event_type") != "request_end" or not isinstance(request, dict):
            others += 1
            continue
        replay = request.get("replay") or {}
        hashes = replay.get("input_sequence_hashes") or []
        if hashes:
            blocks.add(int(replay.get("trace_block_size") or 0))
        rows.add(
            place,
            request.get("request_received_ms"),
            request.get("input_tokens", replay.get("input_length")),
            request.get("output_tokens"),
            request_id=request.get("request_id"),
            session_id=(event.get("agent_context") or {}).get("session_id"),
            prefix_ids=[id_number(h) for h in hashes],
        )
    if len(blocks) > 1 or 0 in blocks:
        said = ", ".join(map(str, sorted(blocks)))
        raise source.error(
            "", f"its rows use different block sizes ({said})", "Split the file by block size."
        )
    note = f"{others:,} events are not ends of requests and were left out." if others else ""
    return rows.trace(prefix_block_tokens=next(iter(blocks), None)).with_notes(note)


FORMAT = Format("dynamo", "NVIDIA Dynamo request traces", sniff, read)
