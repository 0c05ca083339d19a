"""AIBrix workload files: JSON lines of a time and the requests that are sent then.

timestamp (integer ms from 0), requests [{"Prompt Length", "Output Length", "prompt"?}] (newer:
prompt_length, output_length). Source: github.com/vllm-project/aibrix, benchmarks/generator.
"""

from __future__ import annotations

from traces.formats.json_records import records
from traces.formats.raw import Format, RawTrace, ReadOptions, Rows
from traces.formats.source import Source

_PROMPT, _OUTPUT = ("Prompt Length", "prompt_length"), ("Output Length", "output_length")


def sniff(source: Source) -> bool:
    if source.shape != "json" or not source.has("timestamp", "requests"):
        return False
    requests = source.first.get("requests")
    return isinstance(requests, list) and all(
        isinstance(r, dict) and any(k in r for k in _PROMPT) for r in requests
    )


def read(source: Source, options: ReadOptions) -> RawTrace:
    rows = Rows(source, "AIBrix workload", options.time_unit or "ms")
    for place, tick in records(source):
        requests = tick.get("requests") if isinstance(tick, dict) else None
        if not isinstance(requests, list):
            raise source.error(
                place, "it has no list of requests", "Correct or remove the line."
            )
        for i, request in enumerate(requests, 1):
            rows.add(
                f"{place}, request {i}",
                tick.get("timestamp"),
                next((request[k] for k in _PROMPT if k in request), None),
                next((request[k] for k in _OUTPUT if k in request), None),
                session_id=request.get("session_id"),
            )
    return rows.trace()


FORMAT = Format("aibrix", "AIBrix workloads", sniff, read)
