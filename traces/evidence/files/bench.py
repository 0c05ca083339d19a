"""Results of load tests: `vllm bench serve`, saved or as it prints them, and what has its keys, as rows of a sweep.

Read in: shared samples of vLLM 0.26 and 0.33, sglang's bench_serving (JSON lines, same keys), the reference on
telemetry, section 8. Quirks: `--append-result` writes several objects one after another; request_rate is "inf"
without a limit; percentiles are those that were asked for; `--save-detailed` adds lists a request, of which
lengths and the longest gap between tokens are taken (a preempted request shows as one long gap).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from traces.evidence.evidence import Fact, Found, SourceReport, Value
from traces.evidence.files.jsons import JsonReading, first_value
from traces.evidence.meant import is_meant
from traces.evidence.source import Source

_KEYS = {"request_throughput", "output_throughput", "total_input_tokens", "total_output_tokens"}
_PLAIN = (
    ("max_concurrency", "clients"),
    ("num_prompts", "num_requests"),
    ("completed", "num_requests"),
    ("failed", "failed_requests"),
    ("duration", "duration_s"),
    ("request_throughput", "requests_per_s"),
    ("output_throughput", "generation_tokens_per_s"),
    ("input_throughput", "prompt_tokens_per_s"),
    ("request_rate", "request_rate_per_s"),
    ("random_input_len", "prompt_tokens"),
    ("random_output_len", "output_tokens"),
)
_LATENCIES = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e", "e2e_latency": "e2e"}
_STATS = {"mean": "mean", "median": "p50", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "max": "max"}  # fmt: skip


_TITLE = re.compile(
    r"=+ *(?:Serving|Offline Throughput|Multi-turn)? ?Benchmark Result *=+", re.IGNORECASE
)
_PRINTED = re.compile(r"^\s*([A-Za-z][\w .'()/,-]*?)\s*:\s+(\S.*?)\s*$")
# what is printed -> key of a saved result
_SPOKEN = (
    (r"successful requests", "completed"),
    (r"failed requests", "failed"),
    (r"max(?:imum)? re\w+ concurrency", "max_concurrency"),
    (r"benchmark duration", "duration"),
    (r"total input tokens", "total_input_tokens"),
    (r"total generated tokens", "total_output_tokens"),
    (r"request throughput", "request_throughput"),
    (r"output token throughput", "output_throughput"),
    (r"input token throughput", "input_throughput"),
    (r"(?:traffic request rate|request rate configured)", "request_rate"),
)
_PRINTED_LATENCY = re.compile(
    r"(mean|median|p\d\d) (ttft|tpot|itl|e2el|e2e latency) \(ms\)", re.IGNORECASE
)


def sniff(head: str, name: str) -> float:
    """1 where the keys of such a result stand, or its printed title."""
    if _TITLE.search(head):
        return 0.95
    value = first_value(head)
    if isinstance(value, dict):
        return 1.0 if _is_result(value) else 0.0
    hits = sum(f'"{k}"' in head for k in _KEYS)  # a detailed one does not fit the head
    return 0.9 if head.lstrip()[:1] in ("{", "[") and hits >= 2 else 0.0


def read(source: Source) -> Found:
    """A row of a sweep for each result; facts of a single one."""
    reading = JsonReading(source)
    printed = _TITLE.search(source.head) is not None
    sweeps: list[dict[str, Value]] = []
    facts: list[Fact] = []
    unread = 0
    for number, value in _printed(reading) if printed else reading.values():
        if not _is_result(value):
            unread += 1
            continue
        sweeps.append(_row(value))
        at = source.line(number, "")
        if isinstance(model := value.get("model_id"), str) and not facts:
            facts.append(Fact("model", model, at))
    if len(sweeps) == 1:
        at = source.line(facts[0].at.number if facts and facts[0].at else 1, "")
        facts += [Fact(n, v, at) for n, v in sweeps[0].items() if _is_measured(n)]
    report = SourceReport(
        source.name,
        "bench",
        "bench-serve",
        None,
        reading.num_lines,
        len(sweeps),
        unread + reading.num_skipped,
        tuple(reading.skipped),
        1.0 if sweeps else 0.3,
        tuple(reading.notes),
    )
    return Found(report, (), tuple(facts), (), tuple(sweeps))


def _printed(reading: JsonReading) -> Iterator[tuple[int, dict[str, Value]]]:
    """Results as the tool prints them, each with the line of its title, under the keys of saved ones."""
    result: dict[str, Value] = {}
    at = 1
    for number, line in reading.source.lines():
        reading.num_lines = number
        if _TITLE.search(line):
            if result:
                yield at, result
            result, at = {}, number
        elif m := _PRINTED.match(line):
            _read_printed(result, m[1].lower(), m[2])
    if result:
        yield at, result


def _read_printed(result: dict[str, Value], name: str, text: str) -> None:
    number = _number(text.replace(",", ""))
    if number is None:
        return
    if latency := _PRINTED_LATENCY.fullmatch(name):
        result[f"{latency[1].lower()}_{latency[2].lower().replace(' ', '_')}_ms"] = number
        return
    for pattern, key in _SPOKEN:
        if re.match(pattern, name):
            result.setdefault(key, number)


def _is_result(value: Any) -> bool:
    """Whether two of the keys stand there as numbers (other tools nest statistics below them)."""
    return (
        isinstance(value, dict)
        and sum(isinstance(value.get(k), int | float) for k in _KEYS) >= 2
    )


def _is_measured(name: str) -> bool:
    return name.endswith(("_s", "_tokens")) and name not in (
        "duration_s",
        "generation_tokens_per_s",
    )


def _row(result: Mapping[str, Any]) -> dict[str, Value]:
    row: dict[str, Value] = {}
    label = result.get("label")
    if isinstance(label, str) and label:
        row["label"] = label
    for key, name in _PLAIN:
        value = _number(result.get(key))
        if value is not None and name not in row:
            row[name] = value
    completed = _number(result.get("completed"))
    for key, name in (("total_input_tokens", "prompt"), ("total_output_tokens", "output")):
        total = _number(result.get(key))
        if total is not None and completed:
            row[f"{name}_mean_tokens"] = total / completed
    for key, what in _LATENCIES.items():
        for word, stat in _STATS.items():
            ms = _number(result.get(f"{word}_{key}_ms"))
            if ms is not None:
                row[f"{what}_{stat}_s"] = ms / 1000
    row.update(_of_lists(result))
    return row


def _of_lists(result: Mapping[str, Any]) -> dict[str, Value]:
    """Lengths and the longest gap, where the result holds a list a request."""
    row: dict[str, Value] = {}
    for key, what in (("input_lens", "prompt"), ("output_lens", "output")):
        lengths = sorted(n for n in _numbers(result.get(key)) if n > 0)
        for stat, q in (("p50", 0.5), ("p95", 0.95), ("max", 1.0)):
            if lengths:
                row[f"{what}_{stat}_tokens"] = round(lengths[math.ceil(q * len(lengths)) - 1])
    itls = result.get("itls")
    gaps = [g for one in itls for g in _numbers(one)] if isinstance(itls, list) else []
    if gaps:
        row["itl_max_s"] = max(gaps)
    return row


def _numbers(values: object) -> Sequence[float]:
    if not isinstance(values, list):
        return ()
    return [float(v) for v in values if isinstance(v, int | float) and is_meant(v)]


def _number(value: object) -> int | float | None:
    """A finite number, also as text; None for "inf" and the like."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    if not is_meant(number):
        return None
    return int(number) if number.is_integer() else number
