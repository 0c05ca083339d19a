"""OpenTelemetry GenAI spans: OTLP/JSON (one request a line, or one document) and the flattened form.

OTLP: resourceSpans[].scopeSpans[].spans[] with startTimeUnixNano (text of integer ns) and attributes
as a list of {key, value {intValue text, ...}}. Flattened: {trace_id, spans [{span_id,
parent_span_id, start_time (ISO), attributes {...}}]}. Token counts are
gen_ai.usage.{prompt,input}_tokens and gen_ai.usage.{completion,output}_tokens. Quirks: completion
order; ids in hex or, from protobuf's own JSON, in base64; a gateway's span can wrap the engine's
span of the same request, and then only the inner one is replayed.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from traces.formats.json_records import records
from traces.formats.raw import Format, RawTrace, ReadOptions, Rows
from traces.formats.source import Source
from traces.formats.times import TEXT_UNIT

_PROMPT = (
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.prompt_tokens",
    "llm.usage.prompt_tokens",
    "llm.token_count.prompt",
)
_OUTPUT = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.usage.completion_tokens",
    "llm.token_count.completion",
)
_SESSION = ("gen_ai.conversation.id", "session.id", "exgentic.session.id")


@dataclass(frozen=True)
class _Span:
    place: str
    trace_id: str
    span_id: str
    parent_id: str
    start: Any
    attributes: dict[str, Any]
    failed: bool

    def first(self, names: tuple[str, ...]) -> Any:
        return next(
            (self.attributes[n] for n in names if self.attributes.get(n) is not None), None
        )

    @property
    def is_request(self) -> bool:
        return self.first(_PROMPT) is not None and self.first(_OUTPUT) is not None

    @property
    def is_llm(self) -> bool:
        return any(k.startswith(("gen_ai.", "llm.")) for k in self.attributes)


def sniff(source: Source) -> bool:
    if source.shape != "json":
        return False
    return source.has("resourceSpans") or source.has("batches") or _is_flat(source)


def _is_flat(source: Source) -> bool:
    spans = source.first.get("spans") if isinstance(source.first, dict) else None
    return isinstance(spans, list) and source.has("trace_id")


def read(source: Source, options: ReadOptions) -> RawTrace:
    flat = _is_flat(source)
    spans = list(_flat_spans(source) if flat else _otlp_spans(source))
    asked = [s for s in spans if s.is_llm or s.is_request]
    if not any(s.is_request for s in asked):
        raise source.refuse(
            f"none of its {len(spans):,} spans carries token counts"
            + (" (only message texts)" if asked else ""),
            "Record spans with gen_ai.usage.input_tokens and gen_ai.usage.output_tokens, as vLLM's own tracing does.",
        )
    outer = _wrappers(asked)
    rows = Rows(
        source, "OpenTelemetry spans", options.time_unit or (TEXT_UNIT if flat else "ns")
    )
    for span in asked:
        rows.add(
            span.place,
            span.start,
            span.first(_PROMPT),
            span.first(_OUTPUT),
            request_id=span.attributes.get("gen_ai.request.id") or span.span_id or None,
            session_id=span.first(_SESSION),
            aside="span around another request span"
            if (span.trace_id, span.span_id) in outer
            else ("failed" if span.failed else None),
        )
    other = len(spans) - len(asked)
    note = f"{other:,} spans are not of model requests and were left out." if other else ""
    return rows.trace().with_notes(note)


def _wrappers(spans: list[_Span]) -> set[tuple[str, str]]:
    """Request spans that are an ancestor of another request span of their trace."""
    parents = {(s.trace_id, s.span_id): s.parent_id for s in spans}
    requests = {(s.trace_id, s.span_id) for s in spans if s.is_request}
    outer: set[tuple[str, str]] = set()
    for trace, span in requests:
        seen: set[str] = set()
        up = parents.get((trace, span), "")
        while up and up not in seen and (trace, up) not in outer:
            seen.add(up)
            if (trace, up) in requests:
                outer.add((trace, up))
            up = parents.get((trace, up), "")
    return outer


def _otlp_spans(source: Source) -> Iterator[_Span]:
    for place, request in records(source):
        if not isinstance(request, dict):
            raise source.error(place, "it is not an OTLP export request", "Export it again.")
        for resource in request.get("resourceSpans") or request.get("batches") or []:
            scopes = (
                resource.get("scopeSpans") or resource.get("instrumentationLibrarySpans") or []
            )
            for scope in scopes:
                for i, span in enumerate(scope.get("spans") or [], 1):
                    yield _otlp_span(f"{place}, span {i}", span)


def _otlp_span(place: str, span: dict[str, Any]) -> _Span:
    attributes = {
        a.get("key"): _any_value(a.get("value")) for a in span.get("attributes") or []
    }
    return _Span(
        place,
        hex_id(span.get("traceId")),
        hex_id(span.get("spanId")),
        hex_id(span.get("parentSpanId")),
        span.get("startTimeUnixNano"),
        {str(k): v for k, v in attributes.items()},
        (span.get("status") or {}).get("code") in (2, "STATUS_CODE_ERROR"),
    )


def _any_value(value: Any) -> Any:
    """What an OTLP AnyValue holds; integers come as text."""
    if not isinstance(value, dict):
        return value
    for key in ("intValue", "doubleValue", "stringValue", "boolValue"):
        if key in value:
            return value[key]
    return None


def hex_id(text: Any) -> str:
    """A span or trace id in hex, whether it was written in hex or in base64."""
    text = str(text or "")
    if len(text) in (12, 24):  # 8 or 16 bytes in base64; in hex they are 16 or 32 digits
        try:
            return base64.b64decode(text, validate=True).hex()
        except (binascii.Error, ValueError):
            return text
    return text.lower()


def _flat_spans(source: Source) -> Iterator[_Span]:
    for place, trace in records(source):
        spans = trace.get("spans") if isinstance(trace, dict) else None
        if not isinstance(spans, list):
            raise source.error(
                place, "it is not a trace with a list of spans", "Export it again."
            )
        for i, span in enumerate(spans, 1):
            yield _Span(
                f"{place}, span {i}",
                str(span.get("trace_id") or trace.get("trace_id") or ""),
                str(span.get("span_id") or ""),
                str(span.get("parent_span_id") or ""),
                span.get("start_time"),
                span.get("attributes") or {},
                (span.get("status") or {}).get("code") in (2, "ERROR", "STATUS_CODE_ERROR"),
            )


FORMAT = Format("otel", "OpenTelemetry GenAI spans", sniff, read)
