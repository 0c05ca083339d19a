"""Statistics that engines write as JSON, a step an object: vLLM's SchedulerStats, TensorRT-LLM's iterations.

Read in: shared `scheduler_stats_per_step.jsonl` (what a stat-logger plugin of vLLM 0.26 receives);
TensorRT-LLM's `/metrics` of trtllm-serve (kvCacheStats, inflightBatchingStats) and its log with a glog prefix;
Triton's in-flight records with spaced keys (tensorrtllm_backend#457).

Quirks: vLLM counts deferred requests apart from waiting ones (its gauge adds them), and reports a preemption with
the victim's next output token, so late, and never if it is aborted first; TensorRT-LLM's active requests hold
running and waiting ones; its paused requests are those that were paused in that iteration; usedNumBlocks held the
host pool too before mid-2026, which shows where used + free is more than the pool, or where more is used than was ever allocated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from traces.evidence.evidence import Fact, Found, Line, Notice, SourceReport, Value
from traces.evidence.files.jsons import JsonReading, first_value
from traces.evidence.files.stamps import SourceClock, find_stamp, unix_text
from traces.evidence.meant import is_meant, whole
from traces.evidence.source import Source

MAX_STEPS = 200_000
Row = dict[str, Value | list[str] | None]
_VLLM_KEYS = {"num_running_reqs", "num_waiting_reqs", "kv_cache_usage"}
_TRT_KEYS = {"kvCacheStats", "inflightBatchingStats", "numActiveRequests", "iterLatencyMS"}
_TRITON_KEYS = {"Active Request Count", "Max KV cache blocks", "Used KV cache blocks"}
_SPACED = {
    "Active Request Count": "active", "Scheduled Requests": "scheduled", "Paused Requests": "paused",
    "Context Requests": "context", "Generation Requests": "generation", "Total Context Tokens": "context_tokens",
    "Used KV cache blocks": "used", "Free KV cache blocks": "free", "Max KV cache blocks": "pool",
    "Tokens per KV cache block": "block_size", "Max Request Count": "slots", "Iteration Counter": "iteration",
}  # fmt: skip
_CAMEL = {
    "numActiveRequests": "active", "numQueuedRequests": "queued", "iter": "iteration",
    "maxNumActiveRequests": "slots", "iterLatencyMS": "ms", "numScheduledRequests": "scheduled",
    "numPausedRequests": "paused", "numContextRequests": "context", "numGenRequests": "generation",
    "numCtxTokens": "context_tokens", "usedNumBlocks": "used", "freeNumBlocks": "free",
    "maxNumBlocks": "pool", "allocTotalBlocks": "allocated", "tokensPerBlock": "block_size", "cacheHitRate": "hit_rate",
    "attentionDpRank": "rank", "rank": "rank",
}  # fmt: skip


def sniff(head: str, name: str) -> float:
    """1 for JSON with the keys of such statistics; 0 behind a log prefix, which the log reader knows."""
    if head.lstrip()[:1] not in ("{", "["):
        return 0.0
    value = first_value(head)
    if isinstance(value, dict):
        keys = set(value)
        return (
            1.0
            if any(len(k & keys) >= 2 for k in (_VLLM_KEYS, _TRT_KEYS, _TRITON_KEYS))
            else 0.0
        )
    return 0.9 if "num_running_reqs" in head or "kvCacheStats" in head else 0.0


@dataclass
class _Reading:
    source: Source
    clock: SourceClock = field(default_factory=SourceClock)
    rows: list[Row] = field(default_factory=list)
    facts: dict[tuple[str, int | None], Fact] = field(default_factory=dict)
    notices: list[Notice] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    engine: str | None = None
    zero: float | None = None
    host_counted: bool = False
    never_allocated: list[int] = field(
        default_factory=list
    )  # used blocks less all ever allocated
    unread: int = 0

    def fact(self, name: str, value: Value | None, at: Line, rank: int | None = None) -> None:
        if value is not None:
            self.facts.setdefault((name, rank), Fact(name, value, at, rank))


def read(source: Source) -> Found:
    """A sample for each step or iteration."""
    reading, r = JsonReading(source), _Reading(source)
    for number, value in reading.values():
        if len(r.rows) >= MAX_STEPS:
            r.notes.append(f"Only the first {MAX_STEPS:,} steps were read.")
            break
        for one in value if isinstance(value, list) else (value,):
            _read_value(r, one, source.line(number, ""))
    _take_host_away(r)
    if r.host_counted:
        r.notes.append(
            "Used blocks held the host pool too; they were counted again as pool less free."
        )
    if r.engine == "vllm":
        r.notes.append("A preemption is reported with the victim's next token: late, or never.")
    family = {"vllm": "v1-step-stats", "tensorrt-llm": "iteration-stats"}.get(
        r.engine or "", "steps"
    )
    report = SourceReport(
        source.name,
        "steps",
        family,
        r.engine,
        reading.num_lines,
        len(r.rows),
        r.unread + reading.num_skipped,
        tuple(reading.skipped),
        1.0 if r.rows else 0.3,
        (*reading.notes, *r.notes),
    )
    return Found(
        report,
        tuple(r.rows),
        tuple(r.facts.values()),
        tuple(r.notices),
        (),
        r.clock.first_time,
        r.clock.offset_s,
    )


def _read_value(r: _Reading, value: Any, at: Line) -> None:
    if not isinstance(value, dict):
        r.unread += 1
    elif "num_running_reqs" in value or "scheduler_stats" in value:
        r.engine = "vllm"
        stats = value.get("scheduler_stats")
        merged = {**value, **stats} if isinstance(stats, dict) else value
        r.rows.append(_vllm_row(r, merged, at))
    elif set(value) & (_TRT_KEYS | _TRITON_KEYS):
        r.engine = "tensorrt-llm"
        r.rows.append(_iteration_row(r, value, at))
    else:
        r.unread += 1


def _where(r: _Reading, at: Line) -> Row:
    return {"source": r.source.name, "line": at.number, "num_lines": 1}


def _vllm_row(r: _Reading, value: Mapping[str, Any], at: Line) -> Row:
    iteration = _map(value.get("iteration_stats"))
    prompt = _map(iteration.get("prompt_token_stats"))
    prefix = _map(value.get("prefix_cache_stats"))
    external = _map(value.get("connector_prefix_cache_stats"))
    waiting, deferred = (
        whole(value.get("num_waiting_reqs")),
        whole(value.get("num_skipped_waiting_reqs")),
    )
    row = _where(r, at) | {
        "t_s": _vllm_time(r, value, iteration),
        "step": whole(value.get("step")),
        "engine_rank": whole(value.get("engine_idx", value.get("engine_index"))),
        "num_running": whole(value.get("num_running_reqs")),
        "num_waiting": None if waiting is None else waiting + (deferred or 0),
        "num_waiting_capacity": waiting if deferred is not None else None,
        "num_deferred": deferred,
        "kv_usage_frac": _share(value.get("kv_cache_usage")),
        "num_preempted": whole(iteration.get("num_preempted_reqs")),
        "prompt_tokens": whole(prompt.get("total", iteration.get("num_prompt_tokens"))),
        "prompt_computed_tokens": whole(prompt.get("computed")),
        "prompt_cached_tokens": whole(prompt.get("local_cache_hit")),
        "prompt_external_tokens": whole(prompt.get("external_kv_transfer")),
        "generation_tokens": whole(iteration.get("num_generation_tokens")),
        "prefix_lookups": whole(prefix.get("requests")),
        "prefix_query_tokens": whole(prefix.get("queries")),
        "prefix_hit_tokens": whole(prefix.get("hits")),
        "resumed_lookups": whole(prefix.get("preempted_requests")),
        "resumed_query_tokens": whole(prefix.get("preempted_queries")),
        "resumed_hit_tokens": whole(prefix.get("preempted_hits")),
        "external_query_tokens": whole(external.get("queries")),
        "external_hit_tokens": whole(external.get("hits")),
        "external_resumed_query_tokens": whole(external.get("preempted_queries")),
        "external_resumed_hit_tokens": whole(external.get("preempted_hits")),
        "max_ttft_s": _most(iteration.get("time_to_first_tokens_iter")),
        "max_itl_s": _most(iteration.get("inter_token_latencies_iter")),
    }
    finished = iteration.get("finished_requests")
    if isinstance(finished, list):
        row["num_finished"] = len(finished)
    return _done(row, [])


def _vllm_time(
    r: _Reading, value: Mapping[str, Any], iteration: Mapping[str, Any]
) -> float | None:
    t, stamp = (
        value.get("t", value.get("t_s")),
        iteration.get("iteration_timestamp", value.get("timestamp")),
    )
    if isinstance(t, int | float) and t < 1e9:
        if r.clock.first_time is None and isinstance(stamp, int | float) and stamp > 1e9:
            r.clock.first_time, r.clock.offset_s = unix_text(stamp - t), 0.0
        return float(t)
    seconds = stamp if isinstance(stamp, int | float) else t
    if not isinstance(seconds, int | float):
        return None
    if seconds > 1e9:
        found = find_stamp(f"{seconds:.6f}")
        return r.clock.t_s(found) if found else None
    r.zero = seconds if r.zero is None else r.zero
    return max(0.0, seconds - r.zero)


def _iteration_row(r: _Reading, value: Mapping[str, Any], at: Line) -> Row:
    said: dict[str, Any] = {}
    for part in (
        value,
        _map(value.get("inflightBatchingStats")),
        _map(value.get("kvCacheStats")),
    ):
        for key, name in (*_CAMEL.items(), *_SPACED.items()):
            if key in part:
                said[name] = part[key]
    rank = whole(said.get("rank"))
    pool, free, used = (
        whole(said.get("pool")),
        whole(said.get("free")),
        whole(said.get("used")),
    )
    r.fact("pool_blocks", pool, at, rank)
    r.fact("block_size", whole(said.get("block_size")), at, rank)
    r.fact("max_num_seqs", whole(said.get("slots")), at, rank)
    inferred: list[str] = []
    if pool and free is not None and used is not None and used > pool - free:
        r.host_counted, used = True, pool - free
        inferred.append("used_blocks")
    allocated = whole(said.get("allocated"))
    if allocated and used is not None:
        r.never_allocated.append(used - allocated)
    running = whole(said.get("scheduled"))
    waiting = whole(said.get("queued"))
    active = whole(said.get("active"))
    if active is not None and running is not None:
        waiting = (waiting or 0) + max(0, active - running)
        inferred.append("num_waiting")
    row = _where(r, at) | {
        "t_s": _iteration_time(r, value),
        "step": whole(said.get("iteration")),
        "engine_rank": rank,
        "num_running": running if running is not None else active,
        "num_waiting": waiting,
        "num_preempted": whole(said.get("paused")),
        "num_context_requests": whole(said.get("context")),
        "context_tokens": whole(said.get("context_tokens")),
        "num_decode_requests": whole(said.get("generation")),
        "used_blocks": used,
        "prefix_hit_frac": _share(said.get("hit_rate")),
        "duration_s": said["ms"] / 1000 if isinstance(said.get("ms"), int | float) else None,
    }
    if pool and used is not None:
        row["kv_usage_frac"] = used / pool
        inferred.append("kv_usage_frac")
    paused = whole(said.get("paused"))
    if paused:
        t_s = row["t_s"] if isinstance(row["t_s"], float) else None
        r.notices.append(Notice("preemption", at, t_s, rank, None, {"requests": paused}))
    return _done(row, inferred)


def _take_host_away(r: _Reading) -> None:
    """Blocks that are used and were never allocated are the host pool: they are taken from pool and used.

    Blocks that are freed make the difference smaller, so its largest value is the size of the host pool, where the
    iterations begin soon after the start.
    """
    host = max(r.never_allocated, default=0)
    pools = {f.value for (n, _), f in r.facts.items() if n == "pool_blocks"}
    pool = next(iter(pools)) if len(pools) == 1 else None
    if host < 2 or not isinstance(pool, int) or host >= pool:
        return
    for row in r.rows:
        used = row.get("used_blocks")
        if isinstance(used, int):
            row["used_blocks"] = max(0, used - host)
            row["kv_usage_frac"] = max(0, used - host) / (pool - host)
            row["inferred"] = sorted({*(row["inferred"] or []), "used_blocks"})  # type: ignore[misc]  # a list of names
    why = f"{host:,} of {pool:,} blocks are used and were never allocated: the host pool is counted in"
    for key, fact in list(r.facts.items()):
        if key[0] == "pool_blocks":
            r.facts[key] = replace(fact, value=pool - host, inferred=True, note=why)
            r.facts["host_pool_blocks", key[1]] = replace(
                fact, name="host_pool_blocks", value=host, inferred=True, note=why
            )
    r.notes.append(
        f"{why[0].upper()}{why[1:]}; {pool - host:,} blocks are the device's, and used blocks are counted without it."
    )


def _iteration_time(r: _Reading, value: Mapping[str, Any]) -> float | None:
    text = value.get("timestamp", value.get("Timestamp"))
    if text is None:
        return None
    us = re.fullmatch(r"(\d\d)-(\d\d)-(\d{4}) (.*)", str(text))
    stamp = find_stamp(f"{us[3]}-{us[1]}-{us[2]} {us[4]}" if us else str(text))
    t_s = r.clock.t_s(stamp) if stamp is not None else None
    return None if t_s is None or t_s < 0 else t_s


def _done(row: Row, inferred: list[str]) -> Row:
    kept: Row = {k: v for k, v in row.items() if v is not None}
    kept["inferred"] = [n for n in inferred if n in kept]
    return kept


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _share(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 10:
        return None
    return float(value)


def _most(values: object) -> float | None:
    numbers = (
        [v for v in values if isinstance(v, int | float) and is_meant(v)]
        if isinstance(values, list)
        else []
    )
    return float(max(numbers)) if numbers else None
