"""guidellm's benchmarks.json, and inference-perf's per_request_lifecycle_metrics.json.

guidellm: benchmarks[].requests {successful, errored, incomplete}[] with request_start_time (float s
since 1970), prompt_tokens, output_tokens, info.timings. Quirks: errored rows lack tokens and
request_start_time (the timings hold it); the lists are empty when sampling was off, and the file is
then aggregates only. inference-perf: a list of {start_time, end_time, request, response,
info {input_tokens, output_tokens}, error}; start_time is a clock of the client machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from traces.formats.json_records import records
from traces.formats.raw import Format, RawTrace, ReadOptions, Rows
from traces.formats.source import Source

_LISTS = {"successful": None, "errored": "failed", "incomplete": "incomplete"}


def sniff(source: Source) -> bool:
    if source.shape != "json":
        return False
    return _is_guidellm(source) or _is_inference_perf(source)


def _is_guidellm(source: Source) -> bool:
    return source.has("benchmarks") and isinstance(source.first.get("benchmarks"), list)


def _is_inference_perf(source: Source) -> bool:
    return source.has("start_time", "end_time", "info", "response")


def read(source: Source, options: ReadOptions) -> RawTrace:
    if _is_inference_perf(source):
        return _read_inference_perf(source, options)
    rows = Rows(source, "guidellm", options.time_unit or "s")
    runs = 0
    for place, document in records(source):
        for n, benchmark in enumerate(document.get("benchmarks") or [], 1):
            runs += 1
            for at, aside, request in _requests(source, f"{place}, benchmark {n}", benchmark):
                _add(rows, at, aside, request, runs)
    if not rows.count:
        raise source.refuse(
            "it holds guidellm's aggregates, and its lists of requests are empty",
            "Run guidellm with request sampling on (it keeps the requests then), or give a request log.",
        )
    notes = (
        (f"The file holds {runs} benchmarks, replayed on their own dates.",) if runs > 1 else ()
    )
    return rows.trace(notes=notes, details={"runs": runs})


def _requests(
    source: Source, place: str, benchmark: Any
) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    groups = benchmark.get("requests") if isinstance(benchmark, dict) else None
    if isinstance(groups, list):  # older versions: one flat list
        groups = {"successful": groups}
    if not isinstance(groups, dict):
        raise source.error(
            place, "it has no requests object", "Give the JSON that guidellm wrote."
        )
    for group, aside in _LISTS.items():
        for i, request in enumerate(groups.get(group) or [], 1):
            if not isinstance(request, dict):
                raise source.error(
                    f"{place}, {group} {i}", "it is not an object", "Export it again."
                )
            yield f"{place}, {group} {i}", aside, request


def _add(rows: Rows, place: str, aside: str | None, request: dict[str, Any], run: int) -> None:
    info = request.get("info") or request.get("scheduler_info") or {}
    timings = info.get("timings") or info.get("request_timings") or {}
    rows.add(
        place,
        request.get("request_start_time") or timings.get("request_start"),
        request.get("prompt_tokens"),
        request.get("output_tokens"),
        request_id=request.get("request_id"),
        session_id=info.get("conversation_id"),
        aside=aside,
    )


def _read_inference_perf(source: Source, options: ReadOptions) -> RawTrace:
    rows = Rows(source, "inference-perf requests", options.time_unit or "s")
    for place, record in records(source):
        if not isinstance(record, dict):
            raise source.error(place, "it is not an object", "Export it again.")
        info = record.get("info") or {}
        rows.add(
            place,
            record.get("start_time"),
            info.get("input_tokens"),
            info.get("output_tokens"),
            aside="failed" if record.get("error") else None,
        )
    return rows.trace()


FORMAT = Format("guidellm", "guidellm and inference-perf requests", sniff, read)
