"""Lines of vLLM's V1 engine while it runs: statistics every 10 s, iterations, connector metrics, requests' limits.

`Preemptions:` is not printed by the versions up to 0.26 (a fault of theirs), so its absence says nothing. Prompt
throughput counts computed tokens of first admissions only. A line at DEBUG is an idle engine's.
"""

from __future__ import annotations

from traces.evidence.grammars.grammar import Grammar, integer, number, percent, word


def _family(text: str, process: str) -> str:
    return "v1-apiserver" if process.startswith("APIServer") else "v1-engine"


GRAMMARS: tuple[Grammar, ...] = (
    Grammar(
        "v1-iteration",
        "vllm",
        "v1-iteration",
        "iteration elapsed time",
        "loggers.py, --enable-logging-iteration-details",
        pattern=r"context requests|Iteration\(",
        sample={
            "engine_rank": integer(r"Engine (\d+): Iteration"),
            "step": integer(r"Iteration\((\d+)\)"),
            "num_context_requests": integer(r"(\d+) context requests"),
            "context_tokens": integer(r"(\d+) context tokens"),
            "num_decode_requests": integer(r"(\d+) generation requests"),
            "decode_tokens": integer(r"(\d+) generation tokens"),
            "duration_s": number(r"elapsed time: ([\d.]+) ms", 1e-3),
            "kv_usage_frac": percent(r"GPU KV cache usage: ([\d.]+)%"),
        },
        examples=(
            "INFO 09-21 14:13:30 [loggers.py:182] Engine 000: Iteration(4182): 2 context requests, 2017 context tokens, 31 generation requests, 31 generation tokens, iteration elapsed time: 41.70 ms, GPU KV cache usage: 98.7%",
        ),
    ),
    Grammar(
        "v1-stats",
        "vllm",
        "v1-engine",
        (
            "Waiting: ",
            "GPU KV cache usage: ",
            "Avg prompt throughput: ",
            "Prefix cache hit rate: ",
        ),
        "vllm#18115, #27073; loggers.py",
        pattern=r"(?:Running|Waiting): \d+ reqs|KV cache usage: [\d.]+%|throughput: [\d.]+ tokens/s|cache hit rate: [\d.]+%",
        family_of=_family,
        sample={
            "engine_rank": integer(r"Engine (\d+): "),
            "num_ranks": integer(r"(\d+) Engines Aggregated", "Engines Aggr"),
            "prompt_tokens_per_s": number(r"prompt throughput: ([\d.]+)"),
            "generation_tokens_per_s": number(r"generation throughput: ([\d.]+)"),
            "num_running": integer(r"Running: (\d+)"),
            "num_waiting": integer(r"Waiting: (\d+)"),
            "num_deferred": integer(r"Deferred: (\d+)"),
            "num_preempted": integer(r"Preemptions: (\d+)"),
            "kv_usage_frac": percent(r"GPU KV cache usage: ([\d.]+)%"),
            "prefix_hit_frac": percent(r"Prefix cache hit rate: ([\d.]+)%"),
            "external_hit_frac": percent(r"External prefix cache hit rate: ([\d.]+)%"),
        },
        examples=(
            "INFO 09-21 14:13:30 [loggers.py:310] Engine 000: Avg prompt throughput: 410.0 tokens/s, Avg generation throughput: 31.0 tokens/s, Running: 31 reqs, Waiting: 10 reqs, Deferred: 3 reqs, GPU KV cache usage: 98.7%, Prefix cache hit rate: 24.0%",
            "INFO 09-21 14:13:30 [loggers.py:310] Engine 001: Avg prompt throughput: 410.0 tokens/s, Avg generation throughput: 31.0 tokens/s, Running: 31 reqs, Waiting: 7 reqs, Preemptions: 12, GPU KV cache usage: 98.7%, Prefix cache hit rate: 24.0%, External prefix cache hit rate: 55.3%, MM cache hit rate: 62.5%",
            "INFO 09-21 14:13:30 [loggers.py:310] 2 Engines Aggregated: Avg prompt throughput: 820.0 tokens/s, Avg generation throughput: 62.0 tokens/s, Running: 59 reqs, Waiting: 14 reqs, GPU KV cache usage: 98.7%, Prefix cache hit rate: 24.0%",
        ),
    ),
    Grammar(
        "v1-dump",
        "vllm",
        "v1-engine",
        "SchedulerStats(",
        "LMCache#1844; dump_input.py, when a step fails",
        pattern=r"kv_cache_usage=[\d.e-]+",
        sample={
            "num_running": integer(r"num_running_reqs=(\d+)"),
            "num_waiting": integer(r"num_waiting_reqs=(\d+)"),
            "kv_usage_frac": number(r"[( ]kv_cache_usage=([\d.]+(?:e-?\d+)?)"),
        },
        examples=(
            "(EngineCore_DP0 pid=356) ERROR 10-21 10:17:30 [dump_input.py:79] Dumping scheduler stats: SchedulerStats(num_running_reqs=46, num_waiting_reqs=67, step_counter=0, current_wave=0, kv_cache_usage=0.28077918125095114, prefix_cache_stats=PrefixCacheStats(reset=False, requests=0, queries=0, hits=0))",
        ),
    ),
    Grammar(
        "v1-transfer",
        "vllm",
        "v1-engine",
        "KV Transfer metrics: ",
        "metrics.py of the connectors",
        joins=True,
        sample={
            "store_bytes": integer(r"kv_offload_store_bytes=([\d.e+]+)"),
            "load_bytes": integer(r"kv_offload_load_bytes=([\d.e+]+)"),
            "store_s": number(r"kv_offload_store_time=([\d.e+-]+)"),
            "load_s": number(r"kv_offload_load_time=([\d.e+-]+)"),
            "store_failures": integer(r"kv_offload_allocation_failure=([\d.e+]+)"),
        },
        examples=(
            "INFO 09-21 14:13:30 [metrics.py:103] KV Transfer metrics: vllm:kv_offload_store_bytes=989855744, vllm:kv_offload_store_time=0.05499198577777796, vllm:kv_offload_load_bytes=44040192, vllm:kv_offload_load_time=0.002",
        ),
    ),
    Grammar(
        "v1-cannot-store",
        "vllm",
        "v1-engine",
        "cannot store chunks",
        "kv_connector/v1/offloading",
        notice="cannot_store",
        values={"request": word(r"Request (\S+?):")},
        examples=(
            "WARNING 09-21 14:13:30 [scheduler.py:400] Request cmpl-12: cannot store chunks",
        ),
    ),
    Grammar(
        "v1-resumed-instrumented",
        "vllm",
        "v1-engine",
        "has been resumed",
        "LMCache PR#1361 (instrumented build)",
        notice="resume",
        merges=True,
        values={"request": word(r"[Pp]reempted request (\S+) has been resumed")},
        examples=(
            "INFO 11-04 12:27:13 [scheduler.py:495] Preempted request cmpl-9-0 has been resumed!",
        ),
    ),
    Grammar(
        "v1-resumed-computed",
        "vllm",
        "v1-engine",
        " computed tokens",
        "LMCache PR#1361 (instrumented build)",
        pattern=r"Resumed request \S+ has",
        notice="resume",
        merges=True,
        values={
            "request": word(r"Resumed request (\S+) has"),
            "computed_tokens": integer(r"has (\d+) computed"),
        },
        examples=(
            "INFO 11-04 12:27:13 [scheduler.py:558] Resumed request cmpl-9-0 has 8704 computed tokens",
        ),
    ),
    Grammar(
        "v1-preempting",
        "vllm",
        "v1-engine",
        "reempt",
        "instrumented builds; ascend scheduler",
        pattern=r"[Pp]reempt(?:ing|ed) (?:request|req)\b|[Rr]equest [\w.-]+ (?:is|was|has been) preempted",
        notice="preemption",
        values={
            "request": word(r"[Rr]eq(?:uest)?[ :=]+'?([\w-]+)"),
            "computed_tokens": integer(r"(\d+) computed"),
        },
        examples=("DEBUG 11-04 12:27:13 [scheduler.py:495] Preempting request cmpl-9-0",),
    ),
)
