"""aiperf's profile_export.jsonl: one record a request.

metadata {request_start_ns, ... (integer ns since 1970), benchmark_phase, was_cancelled,
conversation_id}, metrics {input_sequence_length, output_sequence_length, usage_prompt_tokens, ...:
{value, unit}}, error. Quirks: completion order; a failed record has only error_isl; warm-up records
stand among the others; the client's and the server's counts differ: the client's are taken, the
server's where the client has none.
"""

from __future__ import annotations

from typing import Any

from traces.formats.json_records import records
from traces.formats.raw import Format, RawTrace, ReadOptions, Rows
from traces.formats.source import Source

_PROMPT = ("input_sequence_length", "usage_prompt_tokens")
_OUTPUT = ("output_sequence_length", "usage_completion_tokens")


def sniff(source: Source) -> bool:
    if source.shape != "json" or not source.has("metadata", "metrics"):
        return False
    metadata = source.first.get("metadata")
    return isinstance(metadata, dict) and "request_start_ns" in metadata


def read(source: Source, options: ReadOptions) -> RawTrace:
    rows = Rows(source, "aiperf records", options.time_unit or "ns")
    for place, record in records(source):
        metadata, metrics = _parts(source, place, record)
        rows.add(
            place,
            metadata.get("request_start_ns"),
            _metric(metrics, _PROMPT),
            _metric(metrics, _OUTPUT),
            request_id=metadata.get("x_request_id"),
            session_id=metadata.get("x_correlation_id") or metadata.get("conversation_id"),
            aside=_why_aside(metadata, record.get("error")),
        )
    return rows.trace(columns={"prompt_tokens": _PROMPT[0], "output_tokens": _OUTPUT[0]})


def _parts(source: Source, place: str, record: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    metadata = record.get("metadata") if isinstance(record, dict) else None
    if not isinstance(metadata, dict):
        raise source.error(place, "the record has no metadata", "Correct or remove the line.")
    return metadata, record.get("metrics") or {}


def _metric(metrics: dict[str, Any], names: tuple[str, ...]) -> Any:
    for name in names:
        value = metrics.get(name)
        if isinstance(value, dict) and value.get("value") is not None:
            return value["value"]
    return None


def _why_aside(metadata: dict[str, Any], error: Any) -> str | None:
    if metadata.get("benchmark_phase", "profiling") != "profiling":
        return "warm-up"
    if error:
        return "failed"
    return "cancelled" if metadata.get("was_cancelled") else None


FORMAT = Format("aiperf", "aiperf profile_export.jsonl", sniff, read)
