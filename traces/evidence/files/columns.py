"""What a column of a table is, by its name and unit: a fact, a value of a sample, a time, a step.

It knows how people head such tables ("fired_concurrency", "TTFT p50 (ms)", "p99 itl", "KV usage %", "gmu",
"tok/s") and reads a cell as a number. It knows no file format.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from traces.evidence.evidence import FACTS, Value
from traces.evidence.files.flags import flag_of, read_number
from traces.evidence.meant import is_meant
from traces.telemetry_schema import VALUE_NAMES, telemetry_table

_WHOLE = {c.name for c in telemetry_table("samples").columns if str(c.type) == "int64"}
_STATS = {
    "mean": "mean", "avg": "mean", "average": "mean", "median": "p50", "p50": "p50", "p90": "p90",
    "p95": "p95", "p99": "p99", "max": "max", "50th": "p50", "90th": "p90", "95th": "p95", "99th": "p99",
}  # fmt: skip
_LATENCIES = (
    ("ttft", r"ttft|first.?token"),
    ("itl", r"\bitl|inter.?token"),
    ("tpot", r"tpot|per.?output.?token"),
    ("e2e", r"e2el?\b|end.?to.?end|request.?latency|\blatency"),
    ("queue", r"queue.?(?:time|s\b|ms\b)|queued.?s"),
)
_SECONDS = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "sec": 1.0,
    "secs": 1.0,
    "seconds": 1.0,
    "min": 60.0,
}
# pattern of the whole name, after units and statistics are taken off -> target
_PLAIN: tuple[tuple[str, str], ...] = (
    (r"used", "used_blocks"),
    (r"(?:num |avg |peak )?(?:running|run)(?: (?:reqs?|requests|seqs?))?|num requests running|reqs? running|requests? running|batch size running", "num_running"),
    (r"(?:num )?(?:waiting|wait|queued?|pending|queue size|queue depth|queue length)(?: (?:reqs?|requests|seqs?))?|num requests waiting|reqs? (?:waiting|queued)|requests? (?:waiting|queued)", "num_waiting"),
    (r"(?:num )?swapped(?: (?:reqs?|requests))?", "num_swapped"),
    (r"(?:kv|gpu)?(?: ?kv)?(?: ?cache)? ?(?:usage|util|utilization|utilisation|occupancy|used)(?: (?:perc|pct|frac))?|kv cache perc|kv|kv perc|kv pct|kv cache pct|kv cache", "kv_usage_frac"),
    (r"(?:num )?(?:used|allocated|alloc|active) ?(?:blocks|blks)?|blocks used", "used_blocks"),
    (r"(?:num )?free ?(?:blocks|blks|num blocks)?|free", "free_blocks"),
    (r"(?:num |total |cumulative |n )?(?:preempt|preempted|preempts|preemptions?|evictions?|retracts?|retractions?|retracted)(?: (?:reqs?|requests|count|total))?", "preemptions"),
    (r"(?:num )?(?:sched|scheduled)(?: tokens?)?|num scheduled tokens|batched tokens|tokens in step", "iteration_tokens"),
    (r"(?:num )?computed(?: tokens?)?|num computed tokens", "computed_tokens"),
    (r"seq len|sequence length|num tokens", "seq_len"),
    (r"out|(?:num )?(?:output|generated)(?: tokens?)?(?: so far)?", "produced_tokens"),
    (r"(?:output|generation|gen|decode)(?: token)?(?: ?tokens?)? ?(?:throughput|rate|tps|toks?)|tps|toks?|tokens?|(?:output )?throughput(?: toks?)?", "generation_tokens_per_s"),
    (r"(?:prompt|prefill|input)(?: tokens?)? ?(?:throughput|rate|tps|toks?)", "prompt_tokens_per_s"),
    (r"(?:request|req)s?(?: ?(?:throughput|rate))?|rps achieved|goodput", "requests_per_s"),
    (r"(?:prefix )?(?:cache )?hit(?: rate| ratio)?", "prefix_hit_frac"),
    (r"(?:cpu|host)(?: kv)?(?: cache)? ?(?:usage|used|util\w*)(?: perc| pct)?", "host_usage_frac"),
    (r"(?:num )?(?:failed|failures|errors)(?: requests)?", "failed_requests"),
    (r"(?:duration|elapsed|wall|benchmark duration|run time|runtime)", "duration_s"),
    (r"(?:batch|batch size|bs|parallel|parallelism|num parallel|in flight|inflight|vus|threads|streams|conc|concurrent(?: (?:reqs?|requests|users|clients))?)", "clients"),
    (r"(?:step|iter|iteration|tick|i|iteration counter|step id)", "step"),
    (r"(?:t|time|timestamp|ts|date|datetime|clock|wall clock|time s|t s)", "time"),
    (r"(?:state|status|phase)", "state"),
    (r"(?:req|request|request id|req id|rid|seq|seq id)", "request"),
    (r"(?:rank|dp rank|engine|dp|replica|engine rank|worker)", "rank"),
    (r"(?:label|name|run|config|configuration|case|model|model gb class|setup|variant|test|scenario|gpu)", "label"),
)  # fmt: skip
SPECIAL = {
    "step", "time", "state", "request", "rank", "label", "free_blocks", "computed_tokens", "seq_len",
    "produced_tokens", "clients",
}  # fmt: skip


@dataclass(frozen=True)
class Column:
    """target: a fact, a value of a sample, or one of SPECIAL; factor: what a cell is multiplied by;
    unit_said: whether the name says its unit."""

    target: str
    factor: float = 1.0
    unit_said: bool = True

    def value(self, cell: object) -> Value | None:
        """The cell as the target has it, None where it is empty or no number."""
        if cell is None or isinstance(cell, bool | list | dict):
            return None
        if self.target in ("label", "state", "request", "time"):
            return str(cell).strip() or None
        number = read_cell(cell)
        if number is None:
            return None
        number *= self.factor
        if self.target in _WHOLE:
            return round(number)
        whole = float(number).is_integer() and self.target not in VALUE_NAMES
        return int(number) if whole else number


def guess_column(name: str) -> Column | None:
    """What a column of that name is; None where nothing is known of such names."""
    exact = flag_of(re.sub(r"\(.*?\)|\[.*?\]", "", name).strip())
    if exact is not None and exact.fact not in (
        "model",
        "version",
        "prompt_tokens",
        "client_caps",
    ):
        return Column(exact.fact)
    words = re.sub(r"[^a-z0-9%/]+", " ", _camel(name).lower().replace("%", " % ")).strip()
    words = re.sub(
        r"\b(?:tokens?|toks?|tok) ?(?:/|per) ?s(?:ec)?(?:ond)?s?\b|tps", "toks", words
    )
    words = re.sub(r"\b(req(?:uest)?s?) ?(?:/|per) ?s(?:ec)?(?:ond)?s?\b", r"\1 rate", words)
    stat = next((_STATS[w] for w in words.split() if w in _STATS), None)
    bare = " ".join(
        w for w in words.split() if w not in _STATS and w not in _SECONDS and w != "%"
    )
    unit = next((w for w in reversed(words.split()) if w in _SECONDS), None)
    for what, pattern in _LATENCIES:
        if re.search(pattern, words) and "toks" not in words:
            target = f"{what}_{stat or 'mean'}_s"
            return Column(target, _SECONDS.get(unit or "s", 1.0), unit is not None)
    if stat and (
        m := re.fullmatch(r"(prompt|input|output|generated)(?: (?:len\w*|tokens?|size))?", bare)
    ):
        return Column(f"{'prompt' if m[1] in ('prompt', 'input') else 'output'}_{stat}_tokens")
    if exact is not None:
        return Column(exact.fact if exact.fact not in ("model", "client_caps") else "label")
    for pattern, target in _PLAIN:
        if re.fullmatch(pattern, bare):
            factor = _SECONDS.get(unit, 1.0) if unit and target == "duration_s" else 1.0
            return Column(target, factor)
    return None


def _camel(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)


def read_cell(cell: object) -> float | None:
    """The number at the start of a cell: "1,234", "97.3 %", "12.5 ms", "480 (9 %)"; None: none."""
    if isinstance(cell, int | float):
        return float(cell) if is_meant(cell) else None
    text = str(cell).strip().strip("`*").replace("_", "")
    if re.match(r"[~≈<>]?\s*\d+,(?:\d{1,2}|\d{4,})(?!\d)", text):
        text = text.replace(
            ",", ".", 1
        )  # a comma before other than three digits is a decimal one
    m = re.match(
        r"[~≈<>]?\s*([-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?|[-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)\s*(%|[kK]\b)?",
        text,
    )
    if m is None:
        return None
    value = read_number(m[1].replace(",", ""))
    if value is None or not is_meant(value):
        return None
    scale = {"%": 0.01, "k": 1e3, "K": 1e3}.get(m[2] or "", 1.0)
    return round(value * scale, 12)


def is_known(target: str) -> bool:
    """Whether a sweep may hold it."""
    return target in FACTS or target in VALUE_NAMES
