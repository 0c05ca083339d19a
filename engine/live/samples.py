"""Statistics of vLLM's engine steps as rows of telemetry, and their way to the disk.

It looks at vLLM's SchedulerStats and IterationStats by the names of their fields and imports nothing
of vLLM, so that it can be tried without. What a vLLM does not have stays null. The tables are in
traces/telemetry_schema.py; the thread that writes them is the recorder's own (writer.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from engine.live.settings import LiveSettings
from engine.live.writer import Inbox, Writer
from traces.schema import Table
from traces.telemetry_files import fill_table
from traces.telemetry_schema import FINISHED_REQUESTS, SAMPLES

SAMPLE_COLUMNS = (
    "sample", "t_s", "interval_s", "engine_rank", "num_ranks", "step", "inferred",
    "kv_usage_frac", "used_blocks", "num_running", "num_waiting", "num_waiting_capacity",
    "num_deferred", "num_preempted", "preemptions_total", "prompt_tokens",
    "prompt_computed_tokens", "prompt_cached_tokens", "prompt_external_tokens",
    "generation_tokens", "iteration_tokens", "duration_s", "num_context_requests",
    "context_tokens", "num_decode_requests", "decode_tokens", "prefix_lookups",
    "prefix_query_tokens", "prefix_hit_tokens", "resumed_lookups", "resumed_query_tokens",
    "resumed_hit_tokens", "external_query_tokens", "external_hit_tokens",
    "external_resumed_query_tokens", "external_resumed_hit_tokens", "load_bytes", "store_bytes",
    "load_s", "store_s", "store_failures", "num_finished", "max_ttft_s", "max_itl_s",
)  # fmt: skip
FINISHED_COLUMNS = (
    "request_id", "engine_rank", "t_s", "arrival_s", "prompt_tokens", "output_tokens",
    "max_tokens", "cached_tokens", "e2e_s", "queued_s", "prefill_s", "decode_s",
    "num_preemptions", "reason",
)  # fmt: skip
# telemetry's column -> counter of vLLM's offloading connector
TRANSFERS = {
    "load_bytes": "vllm:kv_offload_load_bytes",
    "store_bytes": "vllm:kv_offload_store_bytes",
    "load_s": "vllm:kv_offload_load_time",
    "store_s": "vllm:kv_offload_store_time",
    "store_failures": "vllm:kv_offload_allocation_failure",
}
_WHOLE = 1e-6  # how far usage * pool may be from a whole number of blocks
_NOTHING_INFERRED: tuple[str, ...] = ()
_USED_INFERRED = ("used_blocks",)


class SampleTap:
    """Turns what a stat logger is given into rows of `inbox`; one engine, one thread.

    pool_blocks: usable blocks of the engine, None where they are unknown; connected: whether vLLM
    has a KV connector. Times are on the clock of `now_s`, 0 at the start.
    """

    def __init__(
        self, inbox: Inbox, rank: int, pool_blocks: int | None, connected: bool
    ) -> None:
        self._inbox = inbox
        self._rank = rank
        self._pool = pool_blocks
        self._connected = connected
        self._sample = 0
        self._last_s: float | None = None
        self._preemptions = 0

    def record(self, scheduler: Any, iteration: Any, now_s: float, since_s: float) -> None:
        """One call of a stat logger. scheduler, iteration: vLLM's statistics or None; now_s: time of
        the call; since_s: time between the step's outputs and the call."""
        t_s = max(now_s - max(since_s, 0.0), self._last_s or 0.0)
        interval_s = None if self._last_s is None else t_s - self._last_s
        self._last_s = t_s
        preempted = getattr(iteration, "num_preempted_reqs", 0)
        self._preemptions += preempted
        used = self._used_blocks(scheduler)
        finished = getattr(iteration, "finished_requests", None) or ()
        details = getattr(scheduler, "iteration_details", None)
        step = None if details is None or details.is_dummy else details.iteration_index
        inferred = _NOTHING_INFERRED if used is None else _USED_INFERRED
        self._inbox.step(
            (
                *(self._sample, t_s, interval_s, self._rank, 1, step, inferred),
                *_queues(scheduler, used),
                *(preempted, self._preemptions),
                *_work(iteration),
                *_details(details),
                *_lookups(getattr(scheduler, "prefix_cache_stats", None)),
                *_external(getattr(scheduler, "connector_prefix_cache_stats", None)),
                *self._transfers(scheduler),
                len(finished),
                *_felt(iteration),
            )
        )
        self._sample += 1
        for request in finished:
            self._inbox.request(_finished(request, self._rank, t_s))

    def _used_blocks(self, scheduler: Any) -> int | None:
        """Blocks in use, out of the share and the pool; never a number that is not whole.

        A pool that does not fit is forgotten: what was given is then another number.
        """
        if scheduler is None or self._pool is None:
            return None
        blocks = float(scheduler.kv_cache_usage) * self._pool
        used = round(blocks)
        if abs(blocks - used) > _WHOLE * max(self._pool, 1):
            self._pool = None
            return None
        return used

    def _transfers(self, scheduler: Any) -> tuple[Any, ...]:
        if not self._connected or scheduler is None:
            return (None,) * len(TRANSFERS)
        stats = getattr(scheduler, "kv_connector_stats", None)
        data = stats.get("data") if isinstance(stats, Mapping) else None
        if not isinstance(data, Mapping):
            return (None,) * len(TRANSFERS)
        return tuple(
            kind(sum(data[name].values())) if name in data else None
            for kind, name in zip(
                (int, int, float, float, int), TRANSFERS.values(), strict=True
            )
        )


def _queues(scheduler: Any, used: int | None) -> tuple[Any, ...]:
    """kv_usage_frac, used_blocks, num_running, num_waiting, of them for room and deferred."""
    if scheduler is None:
        return (None,) * 6
    waiting = scheduler.num_waiting_reqs
    deferred = getattr(scheduler, "num_skipped_waiting_reqs", None)
    return (
        scheduler.kv_cache_usage,
        used,
        scheduler.num_running_reqs,
        waiting + (deferred or 0),
        None if deferred is None else waiting,
        deferred,
    )


def _work(iteration: Any) -> tuple[Any, ...]:
    """prompt_tokens, of them computed, cached, external; generation_tokens, iteration_tokens.

    vLLM gives no iteration statistics for a step without output: nothing came out of it.
    """
    if iteration is None:
        return (0, 0, 0, 0, 0, 0)
    generated = iteration.num_generation_tokens
    prompt = getattr(iteration, "prompt_token_stats", None)
    if prompt is None:
        total = getattr(iteration, "num_prompt_tokens", None)
        return (total, None, None, None, generated, None)
    return (
        prompt.total,
        prompt.computed,
        prompt.local_cache_hit,
        prompt.external_kv_transfer,
        generated,
        prompt.computed + generated,
    )


def _details(details: Any) -> tuple[Any, ...]:
    if details is None:
        return (None,) * 5
    return (
        details.elapsed_ms / 1e3,
        details.num_ctx_requests,
        details.num_ctx_tokens,
        details.num_generation_requests,
        details.num_generation_tokens,
    )


def _lookups(stats: Any) -> tuple[Any, ...]:
    if stats is None:
        return (None,) * 6
    return (
        stats.requests,
        stats.queries,
        stats.hits,
        getattr(stats, "preempted_requests", None),
        getattr(stats, "preempted_queries", None),
        getattr(stats, "preempted_hits", None),
    )


def _external(stats: Any) -> tuple[Any, ...]:
    found = _lookups(stats)
    return found[1:3] + found[4:]


def _felt(iteration: Any) -> tuple[float | None, float | None]:
    """Longest time to first token and longest gap that the step's outputs ended."""
    first = getattr(iteration, "time_to_first_tokens_iter", None)
    gaps = getattr(iteration, "inter_token_latencies_iter", None)
    return (
        max(max(first), 0.0) if first else None,
        max(max(gaps), 0.0) if gaps else None,
    )


def _finished(request: Any, rank: int, t_s: float) -> tuple[Any, ...]:
    e2e_s = _time(request.e2e_latency)
    return (
        request.request_id,
        rank,
        t_s,
        None if e2e_s is None else max(t_s - e2e_s, 0.0),
        request.num_prompt_tokens,
        request.num_generation_tokens,
        getattr(request, "max_tokens_param", None),
        getattr(request, "num_cached_tokens", None),
        e2e_s,
        _time(request.queued_time),
        _time(request.prefill_time),
        _time(request.decode_time),
        getattr(request, "num_preemptions", None),
        str(request.finish_reason),
    )


def _time(value: float) -> float | None:
    """A length of time; vLLM's are differences of stamps that a request may never have got."""
    return value if 0.0 <= value < 1e8 else None


def _sane(spec: Table, columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The columns with null for numbers that cannot be: not finite, negative or beyond 64 bits."""

    def sane(value: Any) -> Any:
        if isinstance(value, (int, float)) and not 0 <= value < 1 << 63:
            return None
        return value

    return {
        name: [sane(v) for v in values] if spec.column(name).nullable else values
        for name, values in columns.items()
    }


def samples_table(rows: Iterable[tuple[Any, ...]]) -> pa.Table:
    """Rows of SAMPLE_COLUMNS as an Arrow table of `samples`."""
    columns = dict(zip(SAMPLE_COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    return fill_table(SAMPLES, _sane(SAMPLES, columns), len(columns["sample"]))


def finished_table(rows: Iterable[tuple[Any, ...]], name: Callable[[str], str]) -> pa.Table:
    """Rows of FINISHED_COLUMNS as an Arrow table, the ids as `name` gives them."""
    columns = dict(zip(FINISHED_COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    columns["request_id"] = [None if i is None else name(i) for i in columns["request_id"]]
    return fill_table(FINISHED_REQUESTS, _sane(FINISHED_REQUESTS, columns), len(columns["t_s"]))


class StatsWriter(Writer):
    """The recorder's writer for telemetry: its samples are the inbox's steps. Ids are always hashed."""

    kind = "stats"
    main = SAMPLES.name
    lost = ((SAMPLES.name, "lost_steps"), (FINISHED_REQUESTS.name, "lost_requests"))

    def __init__(
        self,
        settings: LiveSettings,
        metadata: Mapping[str, Any],
        rank: int,
        server: str,
        unix_s: float,
    ) -> None:
        super().__init__(
            replace(settings, hash_ids=True, blocks=0), metadata, rank, server, unix_s
        )
        self._specs = (SAMPLES, FINISHED_REQUESTS)

    def _drain(self) -> None:
        box = self.inbox
        self._take(
            box.requests, FINISHED_REQUESTS.name, lambda rows: finished_table(rows, self._name)
        )
        self._take(box.steps, SAMPLES.name, samples_table)
