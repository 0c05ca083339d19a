"""What the metrics of serving engines are called, and which value of a sample each one is.

Names are compared without their quirks: ":" and "_" after the engine's prefix are the same (a scraper
that does not take UTF-8 names gets `vllm_` for `vllm:`), `_total` at the end may be absent (OpenMetrics
types, Grafana), `_created` is a time and never a count. It knows no file format.

Sources: vLLM 0.26.0 and 0.4 to 0.10 (`gpu_cache_usage_perc`, `cpu_cache_usage_perc`, throughput gauges),
SGLang 0.5.23 (metrics collector), TGI 3 (router), Triton's TensorRT-LLM backend (custom metrics),
TensorRT-LLM 1.3 (`trtllm_`), FastDeploy 2.2 (`fastdeploy:`), Dynamo 0.5 to 1.4 (component and frontend metrics).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")


@dataclass(frozen=True)
class Use:
    """What becomes of a series.

    column: of the sample, for a gauge or a counter; delta: column for what a counter gained since the
    scrape before; rate: column for that per second; fact: name of a fact; histogram: what the facts of a
    histogram are called ("ttft"); how: series of one rank that differ in other labels are added ("sum"),
    averaged ("mean") or are copies ("max"); where: labels that the series must have; weight: of two
    series for one column the heavier one is taken.
    """

    column: str = ""
    delta: str = ""
    rate: str = ""
    fact: str = ""
    histogram: str = ""
    how: str = "sum"
    where: Mapping[str, str] = field(default_factory=dict)
    weight: int = 1

    @property
    def is_counter(self) -> bool:
        return bool(self.delta or self.rate)


def _gauge(column: str, how: str = "sum", weight: int = 1, **where: str) -> Use:
    return Use(column=column, how=how, weight=weight, where=where)


def _counter(total: str = "", delta: str = "", rate: str = "", **where: str) -> Use:
    return Use(column=total, delta=delta, rate=rate, where=where)


def _fact(name: str, **where: str) -> Use:
    return Use(fact=name, how="max", where=where)


def _histogram(what: str) -> Use:
    return Use(histogram=what)


_PROMPT = _counter("prompt_tokens_total", "prompt_tokens", "prompt_tokens_per_s")
_GENERATION = _counter(
    "generation_tokens_total", "generation_tokens", "generation_tokens_per_s"
)

_VLLM: dict[str, tuple[Use, ...]] = {
    "num_requests_running": (_gauge("num_running"),),
    "num_requests_waiting": (_gauge("num_waiting"),),
    "num_requests_swapped": (_gauge("num_swapped"),),
    "num_requests_waiting_by_reason": (
        _gauge("num_waiting_capacity", reason="capacity"),
        _gauge("num_deferred", reason="deferred"),
    ),
    "kv_cache_usage_perc": (_gauge("kv_usage_frac", "mean", 2),),
    "gpu_cache_usage_perc": (_gauge("kv_usage_frac", "mean"),),
    "cpu_cache_usage_perc": (_gauge("host_usage_frac", "mean"),),
    "gpu_prefix_cache_hit_rate": (_gauge("prefix_hit_frac", "mean"),),
    "avg_prompt_throughput_toks_per_s": (_gauge("prompt_tokens_per_s", weight=2),),
    "avg_generation_throughput_toks_per_s": (_gauge("generation_tokens_per_s", weight=2),),
    "num_preemptions": (_counter("preemptions_total", "num_preempted"),),
    "prompt_tokens": (_PROMPT,),
    "generation_tokens": (_GENERATION,),
    "prompt_tokens_by_source": (
        _counter("", "prompt_computed_tokens", source="local_compute"),
        _counter("", "prompt_cached_tokens", source="local_cache_hit"),
        _counter("", "prompt_external_tokens", source="external_kv_transfer"),
    ),
    "prefix_cache_queries": (_counter("prefix_query_tokens_total", "prefix_query_tokens"),),
    "prefix_cache_hits": (_counter("prefix_hit_tokens_total", "prefix_hit_tokens"),),
    "gpu_prefix_cache_queries": (_counter("prefix_query_tokens_total", "prefix_query_tokens"),),
    "gpu_prefix_cache_hits": (_counter("prefix_hit_tokens_total", "prefix_hit_tokens"),),
    "external_prefix_cache_queries": (_counter("", "external_query_tokens"),),
    "external_prefix_cache_hits": (_counter("", "external_hit_tokens"),),
    "request_success": (_counter("", "num_finished"),),
    "iteration_tokens_sum": (_counter("", "iteration_tokens"),),
    "iteration_tokens_total_sum": (_counter("", "iteration_tokens"),),
    "kv_offload_load_bytes": (_counter("", "load_bytes"),),
    "kv_offload_store_bytes": (_counter("", "store_bytes"),),
    "kv_offload_load_time": (_counter("", "load_s"),),
    "kv_offload_store_time": (_counter("", "store_s"),),
    "kv_offload_allocation_failure": (_counter("", "store_failures"),),
    "cache_config_info": (Use(fact="cache_config", how="max"),),
    "time_to_first_token_seconds": (_histogram("ttft"),),
    "inter_token_latency_seconds": (_histogram("itl"),),
    "time_per_output_token_seconds": (_histogram("itl"),),
    "request_time_per_output_token_seconds": (_histogram("tpot"),),
    "e2e_request_latency_seconds": (_histogram("e2e"),),
    "request_queue_time_seconds": (_histogram("queue"),),
    "request_prompt_tokens": (_histogram("prompt"),),
    "request_generation_tokens": (_histogram("output"),),
}

_SGLANG: dict[str, tuple[Use, ...]] = {
    "num_running_reqs": (_gauge("num_running", "max"),),
    "num_queue_reqs": (_gauge("num_waiting", "max"),),
    "num_requests_running": (_gauge("num_running", "max", 0),),  # before 0.4
    "num_requests_waiting": (_gauge("num_waiting", "max", 0),),
    "num_decode_prealloc_queue_reqs": (_gauge("prealloc_requests", "max"),),
    "token_usage": (_gauge("kv_usage_frac", "max", 2),),
    "full_token_usage": (_gauge("kv_usage_frac", "max"),),
    "num_used_tokens": (_gauge("used_tokens", "max"),),
    "kv_used_tokens": (_gauge("used_tokens", "max"),),
    "kv_evictable_tokens": (_gauge("evictable_tokens", "max"),),
    "gen_throughput": (_gauge("generation_tokens_per_s", "max", 2),),
    "hicache_host_used_tokens": (_gauge("host_used_tokens", "max"),),
    "hicache_host_total_tokens": (_gauge("host_total_tokens", "max"),),
    "max_total_num_tokens": (_fact("pool_tokens"),),
    "page_size": (_fact("block_size"),),
    "num_pages": (_fact("pool_blocks"),),
    "context_len": (_fact("max_model_len"),),
    "max_running_requests": (_fact("max_num_seqs"),),
    "num_retracted_requests": (Use("preemptions_total", "num_preempted", how="max"),),
    "prompt_tokens": (_PROMPT,),
    "generation_tokens": (_GENERATION,),
    "cached_tokens": (_counter("", "prompt_cached_tokens"),),
    "num_requests": (_counter("", "num_finished"),),
    "time_to_first_token_seconds": (_histogram("ttft"),),
    "inter_token_latency_seconds": (_histogram("itl"),),
    "e2e_request_latency_seconds": (_histogram("e2e"),),
    "queue_time_seconds": (_histogram("queue"),),
    "prompt_tokens_histogram": (_histogram("prompt"),),
    "generation_tokens_histogram": (_histogram("output"),),
}

_TGI: dict[str, tuple[Use, ...]] = {
    "queue_size": (_gauge("num_waiting"),),
    "batch_current_size": (_gauge("num_running"),),
    "batch_current_max_tokens": (_gauge("reserved_tokens"), _fact("reserved_tokens")),
    "request_success": (_counter("", "num_finished"),),
    "request_input_length_sum": (_PROMPT,),
    "request_generated_tokens_sum": (_GENERATION,),
    "request_input_length": (_histogram("prompt"),),
    "request_generated_tokens": (_histogram("output"),),
    "request_queue_duration": (_histogram("queue"),),
    "request_duration": (_histogram("e2e"),),
}

_TRITON: dict[str, tuple[Use, ...]] = {
    "request_metrics": (
        _gauge("active_requests", "max", request_type="active"),
        _gauge("num_running", "max", request_type="scheduled"),
        _gauge("num_context_requests", "max", request_type="context"),
        _gauge("num_waiting", "max", 2, request_type="waiting"),
        _fact("max_num_seqs", request_type="max"),
    ),
    "kv_cache_block_metrics": (
        _gauge("used_blocks", "max", kv_cache_block_type="used"),
        _gauge("free_blocks", "max", kv_cache_block_type="free"),
        _gauge("kv_usage_frac", "max", kv_cache_block_type="fraction"),
        _fact("pool_blocks", kv_cache_block_type="max"),
        _fact("block_size", kv_cache_block_type="tokens_per"),
    ),
    "inflight_batcher_metrics": (
        _gauge("num_preempted", "max", inflight_batcher_specific_metric="paused_requests"),
        _gauge(
            "num_decode_requests", "max", inflight_batcher_specific_metric="generation_requests"
        ),
        _gauge(
            "context_tokens", "max", inflight_batcher_specific_metric="total_context_tokens"
        ),
    ),
}

_TRTLLM: dict[str, tuple[Use, ...]] = {
    "num_requests_running": (_gauge("num_running"),),
    "num_requests_waiting": (_gauge("num_waiting"),),
    "kv_cache_utilization": (_gauge("kv_usage_frac", "mean"),),
    "kv_cache_host_utilization": (_gauge("host_usage_frac", "mean"),),
    "kv_cache_used_blocks": (_gauge("used_blocks"),),
    "kv_cache_free_blocks": (_gauge("free_blocks"),),
    "kv_cache_max_blocks": (_fact("pool_blocks"),),
    "kv_cache_tokens_per_block": (_fact("block_size"),),
    "kv_cache_hit_rate": (_gauge("prefix_hit_frac", "mean"),),
    "num_paused_requests": (_gauge("num_preempted"),),
    "num_context_requests": (_gauge("num_context_requests"),),
    "num_generation_requests": (_gauge("num_decode_requests"),),
    "total_context_tokens": (_gauge("context_tokens"),),
    "prompt_tokens": (_PROMPT,),
    "generation_tokens": (_GENERATION,),
    "request_success": (_counter("", "num_finished"),),
    "time_to_first_token_seconds": (_histogram("ttft"),),
    "time_per_output_token_seconds": (_histogram("tpot"),),
    "e2e_request_latency_seconds": (_histogram("e2e"),),
    "request_queue_time_seconds": (_histogram("queue"),),
}

_FASTDEPLOY: dict[str, tuple[Use, ...]] = {
    "num_requests_running": (_gauge("num_running"),),
    "num_requests_waiting": (_gauge("num_waiting"),),
    "gpu_cache_usage_perc": (_gauge("kv_usage_frac", "mean"),),
    "free_gpu_block_num": (_gauge("free_blocks"),),
    "max_gpu_block_num": (_fact("pool_blocks"),),
    "max_batch_size": (_fact("max_num_seqs"),),
    "prompt_tokens": (_PROMPT,),
    "generation_tokens": (_GENERATION,),
    "request_success": (_counter("", "num_finished"),),
    "time_to_first_token_seconds": (_histogram("ttft"),),
    "time_per_output_token_seconds": (_histogram("itl"),),
    "e2e_request_latency_seconds": (_histogram("e2e"),),
    "request_queue_time_seconds": (_histogram("queue"),),
    "request_prompt_tokens": (_histogram("prompt"),),
    "request_generation_tokens": (_histogram("output"),),
}

_DYNAMO: dict[str, tuple[Use, ...]] = {
    "kvstats_active_blocks": (_gauge("used_blocks", weight=0),),
    "kvstats_total_blocks": (_fact("pool_blocks"),),
    "total_blocks": (_fact("pool_blocks"),),
    "kvstats_gpu_cache_usage_percent": (_gauge("kv_usage_frac", "mean", 0),),
    "gpu_cache_usage_percent": (_gauge("kv_usage_frac", "mean", 0),),
    "kvstats_gpu_prefix_cache_hit_rate": (_gauge("prefix_hit_frac", "mean", 0),),
    "kv_blocks_active": (_gauge("used_blocks", weight=0),),
    "kv_blocks_total": (_fact("pool_blocks"),),
    "requests_active_slots": (_gauge("num_running", weight=0),),
    "requests_total_slots": (_fact("max_num_seqs"),),
    "num_requests_waiting": (_gauge("num_waiting", weight=0),),
    "model_total_kv_blocks": (_fact("pool_blocks"),),
    "model_max_num_seqs": (_fact("max_num_seqs"),),
    "model_max_num_batched_tokens": (_fact("max_num_batched_tokens"),),
    "model_context_length": (_fact("max_model_len"),),
    "model_kv_cache_block_size": (_fact("block_size"),),
    "time_to_first_token_seconds": (_histogram("ttft"),),
    "inter_token_latency_seconds": (_histogram("itl"),),
    "request_duration_seconds": (_histogram("e2e"),),
    "input_sequence_tokens": (_histogram("prompt"),),
    "output_sequence_tokens": (_histogram("output"),),
}

# (prefix, engine, names); longer prefixes first
ENGINES: tuple[tuple[str, str, dict[str, tuple[Use, ...]]], ...] = (
    ("dynamo_component_", "dynamo", _DYNAMO),
    ("dynamo_frontend_", "dynamo", _DYNAMO),
    ("nv_trt_llm_", "tensorrt-llm", _TRITON),
    ("trtllm_", "tensorrt-llm", _TRTLLM),
    ("fastdeploy_", "fastdeploy", _FASTDEPLOY),
    ("sglang_", "sglang", _SGLANG),
    ("vllm_", "vllm", _VLLM),
    ("tgi_", "tgi", _TGI),
    ("llm_", "dynamo", _DYNAMO),
)


@dataclass(frozen=True)
class Named:
    """A name of a metric, taken apart: engine; base: name without prefix, `_total` and histogram part;
    part: "", "_bucket", "_sum" or "_count"; uses: what it is good for, () where nothing is known."""

    engine: str
    base: str
    part: str
    uses: tuple[Use, ...]


def look_up(name: str) -> Named | None:
    """The metric of that name, None where no engine is known to have such names."""
    plain = name.strip().replace(":", "_")
    for prefix, engine, names in ENGINES:
        if plain.startswith(prefix):
            return _take_apart(plain[len(prefix) :], engine, names)
    return None


def _take_apart(rest: str, engine: str, names: Mapping[str, tuple[Use, ...]]) -> Named:
    if rest.endswith("_created"):
        return Named(engine, rest, "", ())
    if rest in names and not rest.endswith(HISTOGRAM_PARTS):
        return Named(engine, rest, "", _plain(names[rest]))
    for part in HISTOGRAM_PARTS:
        base = rest.removesuffix(part)
        if base == rest:
            continue
        of_histogram = tuple(u for u in names.get(base, ()) if u.histogram)
        return Named(engine, base, part, (*of_histogram, *_plain(names.get(rest, ()))))
    base = rest.removesuffix("_total")
    return Named(engine, base, "", _plain(names.get(base, ())))


def _plain(uses: tuple[Use, ...]) -> tuple[Use, ...]:
    return tuple(u for u in uses if not u.histogram)


# Names without a prefix, as people shorten them when they copy a few lines or name a panel.
SHORT_NAMES = {
    **{n: "vllm:" + n for n in _VLLM},
    **{n: "sglang:" + n for n in _SGLANG if n not in _VLLM},
}
