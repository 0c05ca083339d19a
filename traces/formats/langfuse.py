"""Langfuse observations: the API's answer {data [...]}, an exported list, or JSON lines.

id, type (only GENERATION is a request), startTime (ISO), usageDetails {input, output} (older:
usage {input, output} or promptTokens, completionTokens), level ERROR for failures, sessionId,
traceId. Quirks: endTime may be null; input counts may be split (input, input_cached_tokens).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from traces.formats.json_records import records
from traces.formats.raw import Format, RawTrace, ReadOptions, Rows
from traces.formats.source import Source
from traces.formats.times import TEXT_UNIT

_KEYS = {"id", "traceId", "startTime", "type"}


def _observations(record: Any) -> list[Any]:
    if isinstance(record, dict) and isinstance(record.get("data"), list):
        return record["data"]
    return [record]


def sniff(source: Source) -> bool:
    if source.shape != "json":
        return False
    first = _observations(source.first)[:1]
    return bool(first) and isinstance(first[0], dict) and set(first[0]) >= _KEYS


def read(source: Source, options: ReadOptions) -> RawTrace:
    rows = Rows(source, "Langfuse observations", options.time_unit or TEXT_UNIT)
    others = 0
    for place, observation in _each(source):
        if observation.get("type") != "GENERATION":
            others += 1
            continue
        prompt, output = _usage(observation)
        rows.add(
            place,
            observation.get("startTime"),
            prompt,
            output,
            request_id=observation.get("id"),
            session_id=observation.get("sessionId") or observation.get("traceId"),
            aside="failed" if observation.get("level") == "ERROR" else None,
        )
    note = f"{others:,} observations are not generations and were left out." if others else ""
    return rows.trace().with_notes(note)


def _each(source: Source) -> Iterator[tuple[str, dict[str, Any]]]:
    for place, record in records(source):
        for i, observation in enumerate(_observations(record), 1):
            at = place if observation is record else f"{place}, observation {i}"
            if not isinstance(observation, dict):
                raise source.error(at, "it is not an object", "Export it again.")
            yield at, observation


def _usage(observation: dict[str, Any]) -> tuple[Any, Any]:
    for usage in (observation.get("usageDetails"), observation.get("usage")):
        if isinstance(usage, dict) and usage.get("input") is not None:
            cached = sum(
                v
                for k, v in usage.items()
                if k.startswith("input_cache") and isinstance(v, int)
            )
            return usage["input"] + cached, usage.get("output")
    return observation.get("promptTokens"), observation.get("completionTokens")


FORMAT = Format("langfuse", "Langfuse observations", sniff, read)
