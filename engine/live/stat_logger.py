"""vLLM's stat-logger plugin: telemetry at step resolution, for a server whose scheduler is its own.

Installed beside vLLM (pip install), it is loaded through the entry point group
`vllm.stat_logger_plugins` by every `vllm serve`, and records when KV_REPLAY_OUT (or `out` in vLLM's
additional_config) says where. Each data-parallel rank gets a folder. It runs in the API server's
process and sees what vLLM reports from there: counts and shares, no block and no victim. The
recording scheduler (vllm.py) sees those; where it is in use, this logger leaves the work to it.

No failure of it reaches vLLM: it is said once, and the server goes on without telemetry.
"""

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import platform
import time
import weakref
from collections.abc import Mapping
from typing import Any

import vllm
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, SchedulerStats

from engine import VERSION
from engine.live.metadata import engine_settings, model_name, server_name
from engine.live.samples import TRANSFERS, SampleTap, StatsWriter
from engine.live.settings import SECTION, load_settings, variable
from traces.errors import SettingsError
from traces.telemetry_schema import telemetry_metadata

log = logging.getLogger("vllm.kv_replay")  # vLLM prints what is below its own name

NEEDED = {
    SchedulerStats: ("num_running_reqs", "num_waiting_reqs", "kv_cache_usage"),
    FinishedRequestStats: ("request_id", "finish_reason", "e2e_latency", "queued_time"),
}
_BETTER = (
    "the recording scheduler (--scheduler-cls engine.live.vllm.RecordingScheduler) sees them"
)
MISSING = {
    "victims": f"statistics count preemptions and name no request; {_BETTER}",
    "causes of preemptions": f"statistics do not say whose need evicted a victim; {_BETTER}",
    "block ids": f"statistics hold the share of blocks in use, not which; {_BETTER}",
    "requests that have not ended": "vLLM reports a request when it ends",
    "recomputed_tokens": f"vLLM counts them nowhere; {_BETTER}",
    "num_swapped": "vLLM V1 does not swap",
    "host_usage_frac": "vLLM does not report how full its CPU cache is",
    **dict.fromkeys(
        ("prompt_tokens_total", "generation_tokens_total", "prompt_tokens_per_s",
         "generation_tokens_per_s", "prefix_query_tokens_total", "prefix_hit_tokens_total",
         "prefix_hit_frac", "external_hit_frac"),
        "it follows from the counts of the samples",
    ),
}  # fmt: skip
_DETAILS = ("duration_s", "num_context_requests", "context_tokens", "num_decode_requests", "decode_tokens")  # fmt: skip
_EXTERNAL = (
    "external_query_tokens",
    "external_hit_tokens",
    "external_resumed_query_tokens",
    "external_resumed_hit_tokens",
)
NOTES = (
    "vLLM reports a preemption with the victim's next token: late, and never where the victim is aborted first.",
    "vLLM counts a look-up in the prefix cache again for every failed attempt to admit.",
)


class TelemetryStatLogger(StatLoggerBase):
    """A stat logger of one engine that writes telemetry; does nothing where no directory is named."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._tap: SampleTap | None = None
        self._writer: StatsWriter | None = None
        self._start_s = 0.0
        try:
            self._begin(vllm_config, engine_index)
        except Exception as error:  # whatever it is, serving goes on
            self._failed(error)

    def _begin(self, config: Any, rank: int) -> None:
        if not _is_asked_for(config):
            log.info("KV Replay's stat logger is idle: set %s to a directory.", variable("out"))
            return
        if _records_itself(config):
            log.info("KV Replay's stat logger is idle: the scheduler records.")
            return
        if lacks := _lacking():
            log.warning(
                "KV Replay records no telemetry: vLLM %s has other statistics than expected (%s).",
                vllm.__version__,
                "; ".join(lacks),
            )
            return
        settings = load_settings(additional_config=config.additional_config)
        unix_s, self._start_s = time.time(), time.monotonic()
        pool = _pool_blocks(config)
        connected = config.kv_transfer_config is not None
        metadata = stats_metadata(config, rank, pool, unix_s)
        self._writer = StatsWriter(settings, metadata, rank, server_name(config), unix_s)
        self._tap = SampleTap(self._writer.inbox, rank, pool, connected)
        self._writer.start()
        atexit.register(_close_at_exit, weakref.ref(self))

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        """Note one engine step. Returns at once and raises nothing."""
        if self._tap is None or (scheduler_stats is None and iteration_stats is None):
            return
        try:
            since_s = 0.0
            if iteration_stats is not None:
                since_s = time.time() - iteration_stats.iteration_timestamp
            now_s = time.monotonic() - self._start_s
            self._tap.record(scheduler_stats, iteration_stats, now_s, since_s)
        except Exception as error:  # whatever it is, serving goes on
            self._failed(error)

    def log_engine_initialized(self) -> None:
        """vLLM's interface asks for it; the recording has begun already."""

    def close(self, timeout_s: float = 10.0) -> None:
        """Write what is left and the closing mark; waits at most timeout_s for the disk."""
        self._tap = None
        if self._writer is not None:
            self._writer.close("completed", timeout_s)

    def _failed(self, error: Exception) -> None:
        """Say it once and stop recording; vLLM goes on."""
        self._tap = None
        if isinstance(error, SettingsError):
            log.warning("KV Replay records no telemetry. %s", error)
        else:
            log.exception("KV Replay's stat logger failed; the server goes on without it.")
        if self._writer is not None:
            self._writer.close("stopped by a fault of the recorder", 0.0)


def _close_at_exit(logger: weakref.ref[TelemetryStatLogger]) -> None:
    if (found := logger()) is not None:
        found.close()


def _is_asked_for(config: Any) -> bool:
    """Whether somebody said where to record: a plugin that is only installed must not write files."""
    more = getattr(config, "additional_config", None)
    section = more.get(SECTION) if isinstance(more, Mapping) else None
    named = isinstance(section, Mapping) and "out" in section
    return bool(os.environ.get(variable("out"))) or named


def _records_itself(config: Any) -> bool:
    chosen = getattr(config.scheduler_config, "scheduler_cls", None)
    where = chosen if isinstance(chosen, str) else getattr(chosen, "__module__", "")
    return str(where).startswith("engine.live.")


def _lacking() -> list[str]:
    """Fields of vLLM's statistics that nothing can be recorded without, and that are not there."""
    return [
        f"{kind.__name__} has no field {name}"
        for kind, names in NEEDED.items()
        for name in names
        if name not in {f.name for f in dataclasses.fields(kind)}
    ]


def _pool_blocks(config: Any) -> int | None:
    """Usable blocks of the engine. vLLM's front end has the sum over all engines that it manages, so
    with several of them it is not known."""
    parallel, total = config.parallel_config, config.cache_config.num_gpu_blocks
    alone = parallel.data_parallel_size == 1 or getattr(
        parallel, "data_parallel_external_lb", False
    )
    return int(total) - 1 if total and alone else None


def stats_metadata(
    config: Any, rank: int, pool_blocks: int | None, unix_s: float
) -> dict[str, Any]:
    """The metadata document of one engine's telemetry. config: VllmConfig."""
    parallel = config.parallel_config
    servers = int(getattr(parallel, "_api_process_count", 1) or 1)
    notes = list(NOTES)
    if servers > 1:
        notes.append(
            f"{servers} API servers share the engine: this one saw the steps that were reported to it, and its own requests."
        )
    return telemetry_metadata(
        engine={"name": "vllm", "version": vllm.__version__},
        recorded_by="vLLM stat logger",
        sampling="steps",
        missing=_missing(config, pool_blocks),
        inferred={"used_blocks": "from the share in use and the pool's size"}
        if pool_blocks
        else {},
        start_unix_s=unix_s,
        model=model_name(config),
        block_size=int(config.cache_config.block_size),
        pool_blocks=pool_blocks,
        settings=_settings(config, pool_blocks),
        request_ids="hashed",
        notes=notes,
        live={
            "server": server_name(config),
            "data_parallel_rank": rank,
            "data_parallel_size": int(parallel.data_parallel_size),
            "api_server": int(getattr(parallel, "_api_process_rank", 0) or 0),
            "api_servers": servers,
        },
        software={"kv_replay": VERSION, "python": platform.python_version()},
    )


def _settings(config: Any, pool_blocks: int | None) -> dict[str, Any]:
    budget = config.scheduler_config.max_num_batched_tokens
    found = engine_settings(config, (pool_blocks or 0) + 1, budget)
    if pool_blocks is None:
        del found["num_gpu_blocks"]
    return found


def _missing(config: Any, pool_blocks: int | None) -> dict[str, str]:
    missing = dict(MISSING)
    if pool_blocks is None:
        missing["used_blocks"] = "vLLM's front end knows only the pool of all ranks together"
    if not config.observability_config.enable_logging_iteration_details:
        missing |= dict.fromkeys(
            _DETAILS, "vLLM sends it only with --enable-logging-iteration-details"
        )
    if config.kv_transfer_config is None:
        missing |= dict.fromkeys((*_EXTERNAL, *TRANSFERS), "no KV connector is configured")
    else:
        missing |= dict.fromkeys(TRANSFERS, "the connector reported no copy")
    return missing
