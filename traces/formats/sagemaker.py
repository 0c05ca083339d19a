"""AWS SageMaker Data Capture: JSON lines with the request and the answer as text inside.

captureData.endpointInput.data and endpointOutput.data (JSON as text, plain or base64),
eventMetadata {eventId, inferenceTime (ISO, whole seconds)}. Token counts are in the answer's usage.
Quirks: inferenceTime has a resolution of one second.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import orjson

from traces.formats.json_records import records
from traces.formats.raw import Format, RawTrace, ReadOptions, Rows
from traces.formats.source import Source
from traces.formats.times import TEXT_UNIT


def sniff(source: Source) -> bool:
    return source.shape == "json" and source.has("captureData", "eventMetadata")


def read(source: Source, options: ReadOptions) -> RawTrace:
    rows = Rows(source, "SageMaker data capture", options.time_unit or TEXT_UNIT)
    for place, record in records(source):
        if not isinstance(record, dict) or not isinstance(record.get("captureData"), dict):
            raise source.error(
                place, "it is not a data capture record", "Correct or remove the line."
            )
        usage = _answer(record["captureData"].get("endpointOutput") or {}).get("usage") or {}
        metadata = record.get("eventMetadata") or {}
        rows.add(
            place,
            metadata.get("inferenceTime"),
            usage.get("prompt_tokens", usage.get("input_tokens")),
            usage.get("completion_tokens", usage.get("output_tokens")),
            request_id=metadata.get("eventId"),
        )
    return rows.trace(notes=("Times have a resolution of one second.",))


def _answer(output: dict[str, Any]) -> dict[str, Any]:
    """The answer's JSON, or nothing where it is no JSON object (its row then has no counts)."""
    data = output.get("data") or ""
    try:
        if output.get("encoding") == "BASE64":
            data = base64.b64decode(data)
        value = orjson.loads(data)
    except (binascii.Error, orjson.JSONDecodeError):
        return {}
    return value if isinstance(value, dict) else {}


FORMAT = Format("sagemaker", "AWS SageMaker data capture", sniff, read)
