"""Lines of SGLang, old and new: prefill and decode batches, retractions, the pool at the start.

Usage on a prefill line is the state before the batch. Before 0.4 the hit rate was a running average. Each
tensor-parallel rank may print the same event: copies are put together by the reader (a rank's name stands in the
line's head).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from traces.evidence.grammars.grammar import (
    Derived,
    Field,
    Grammar,
    Value,
    constant,
    integer,
    number,
    number_of,
    percent,
    size,
    word,
)

_USAGES = re.compile(r"(?:(?:full|swa) )?token[ _]?usage: ?([\d.]+)|mamba usage: ?([\d.]+)")


# of the pools that a hybrid model has (full, window, state) the fullest binds
def _fullest(m: re.Match[str]) -> float | None:
    said = [number_of(a or b) for a, b in _USAGES.findall(m.string)]
    return max((u for u in said if u is not None), default=None)


USAGE = Field(r"(?:token[ _]?|mamba )usage: ?[\d.]+", _fullest)


_DECODE: dict[str, Field] = {
    "num_running": integer(r"#running-req: ?(\d+)"),
    "kv_usage_frac": USAGE,
    "generation_tokens_per_s": number(r"gen ?throughput ?\(token/s\): ?([\d.]+)"),
    "num_waiting": integer(r"#queue-req: ?(\d+)"),
}
_QUEUES: dict[str, Field] = {
    "used_tokens": integer(r"#(?:full )?token: ?(\d+)"),
    "prealloc": integer(r"#prealloc-req: ?(\d+)"),
    "retracted": integer(r"#retracted-req: ?(\d+)"),
}


def _outside(values: Mapping[str, Value]) -> Derived | None:
    """A decode server behind a prefill server keeps those that wait for room in queues of their own."""
    apart = [v for n in ("prealloc", "retracted") if isinstance(v := values.get(n), int)]
    if not apart:
        return None
    queue = values.get("num_waiting", 0)
    total = sum(apart) + (queue if isinstance(queue, int) else 0)
    return Derived({"num_waiting": total}, "queued, waiting for room (prealloc) and retracted")


def _family(text: str, process: str) -> str:
    old = "batch. " in text or "Decode out of memory" in text
    return "sglang-2024/25" if old else "sglang"


GRAMMARS: tuple[Grammar, ...] = (
    Grammar(
        "sglang-decode",
        "sglang",
        "sglang",
        "Decode batch",
        "sglang#6778, #26248; scheduler metrics",
        pattern=r"#running-req|token usage",
        family_of=_family,
        sample=_DECODE,
        extra=_QUEUES,
        derive=_outside,
        examples=(
            "[2025-05-07 10:00:01 TP0] Decode batch. #running-req: 45, #token: 398122, token usage: 0.96, gen throughput (token/s): 812.31, #queue-req: 12",
            "[2026-01-07 10:00:01 DP1 TP0] Decode batch, #running-req: 4, #full token: 9000, full token usage: 0.31, #swa token: 1200, swa token usage: 0.05, cuda graph: True, gen throughput (token/s): 312.31, #queue-req: 0",
        ),
    ),
    Grammar(
        "sglang-prefill",
        "sglang",
        "sglang",
        "Prefill batch",
        "sglang#1612; scheduler metrics",
        pattern=r"#new-seq|#new-token",
        family_of=_family,
        sample={
            "num_context_requests": integer(r"#new-seq: ?(\d+)"),
            "context_tokens": integer(r"#new-token: ?(\d+)"),
            "prefix_hit_tokens": integer(r"#cached-token: ?(\d+)"),
            "prefix_hit_frac": percent(r"cache hit rate: ([\d.]+)%"),
            "kv_usage_frac": USAGE,
            "num_running": integer(r"#running-req: ?(\d+)"),
            "num_waiting": integer(r"#queue-req: ?(\d+)"),
            "prompt_tokens_per_s": number(r"input ?throughput ?\(token/s\): ?([\d.]+)"),
        },
        examples=(
            "[16:43:29 TP0] Prefill batch. #new-seq: 4, #new-token: 8192, #cached-token: 291, cache hit rate: 2.76%, token usage: 0.04, #running-req: 1, #queue-req: 38",
            "[2025-11-07 10:00:01] Prefill batch, #new-seq: 1, #new-token: 2062, #cached-token: 0, token usage: 0.10, #running-req: 0, #queue-req: 0, input throughput (token/s): 5120.4, cuda graph: False",
        ),
    ),
    Grammar(
        "sglang-batch",
        "sglang",
        "sglang",
        "#running-req:",
        "sglang PR#22614; lines that were copied without their first words",
        pattern=r"token[ _]?usage:",
        family_of=_family,
        sample=_DECODE,
        extra=_QUEUES,
        derive=_outside,
        examples=(
            "[DP3] #running-req: 2, #token: 91520, token_usage: 0.57, #prealloc-req: 4, #transfer-req: 0, #retracted-req: 1, gen throughput (token/s): 61.02, #queue-req: 0",
        ),
    ),
    Grammar(
        "sglang-reduced-limit",
        "sglang",
        "sglang",
        "max_running_requests was reduced from",
        "sglang#30160; model_runner.py",
        facts={"max_num_seqs": integer(r"to (\d+)")},
        examples=(
            "[2026-05-07 10:00:01 TP0] max_running_requests was reduced from requested 96 to 40",
        ),
    ),
    Grammar(
        "sglang-state-cap",
        "sglang",
        "sglang",
        " by the mamba state cache",
        "model_runner.py, at the start",
        facts={
            "max_num_seqs": integer(r"max_running_requests is capped to (\d+)"),
            "state_slots": integer(r"max_mamba_cache_size=(\d+)"),
            "state_slots_per_request": integer(r"(\d+) state slots per request"),
        },
        examples=(
            "[2026-05-07 10:00:01 TP0] max_running_requests is capped to 12 by the mamba state cache (max_mamba_cache_size=64, 5 state slots per request). To raise it: increase --mamba-full-memory-ratio or --max-mamba-cache-size, or halve the state size with --mamba-ssm-dtype bfloat16.",
        ),
    ),
    Grammar(
        "sglang-retract",
        "sglang",
        "sglang",
        "#retracted_reqs: ",
        "sglang#4184; scheduler.py update_running_batch",
        family_of=_family,
        notice="retract",
        count=integer(r"#retracted_reqs: ?(\d+)"),
        values={
            "ratio_before": number(r"#new_token_ratio: ?([\d.]+)"),
            "ratio_after": number(r"#new_token_ratio: [\d.]+ ?-> ?([\d.]+)"),
            "aborted": integer(r"#aborted_retracted_reqs: ?(\d+)"),
            "gained_tokens": integer(r"#new_tokens_gained: ?(\d+)"),
        },
        examples=(
            "[2025-03-07 21:49:33 TP13] Decode out of memory happened. #retracted_reqs: 1, #new_token_ratio: 0.1474 -> 0.1845",
            "[2025-11-07 21:49:33 TP0] KV cache pool is full. Retract requests. #retracted_reqs: 3, #new_token_ratio: 0.6000 -> 0.7100",
        ),
    ),
    Grammar(
        "sglang-pool",
        "sglang",
        "sglang",
        "max_total_num_token",
        "sglang#7133, #30160; scheduler.py, at the start",
        pattern=r"max_total_num_tokens?=\d",
        facts={
            "pool_tokens": integer(r"max_total_num_tokens?=(\d+)"),
            "max_num_batched_tokens": integer(r"chunked_prefill_size=(\d+)"),
            "max_num_seqs": integer(r"max_running_requests=(\d+)"),
            "max_model_len": integer(r"context_len=(\d+)"),
        },
        examples=(
            "[2025-05-07 10:00:01 TP0] max_total_num_tokens=412672, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, context_len=131072, available_gpu_mem=4.22 GB",
        ),
    ),
    Grammar(
        "sglang-window-pools",
        "sglang",
        "sglang",
        "liding window memory pool",
        "model_runner.py, at the start",
        pattern=r"swa_layer_tokens=\d",
        facts={
            "pool_tokens": integer(r"full_layer_tokens=(\d+)"),
            "window_pool_tokens": integer(r"swa_layer_tokens=(\d+)"),
        },
        examples=(
            "[2025-11-07 10:00:01 TP0] Use sliding window memory pool. full_layer_tokens=412672, swa_layer_tokens=82534",
        ),
    ),
    Grammar(
        "sglang-allocated",
        "sglang",
        "sglang",
        "KV Cache is allocated",
        "memory_pool.py",
        pattern=r"#tokens: \d",
        facts={
            "pool_tokens": integer(r"#tokens: ?(\d+)"),
            "kv_cache_dtype": word(r"dtype: torch\.(\w+)"),
        },
        extra={
            "k": size(r"K size: ([\d.]+) (G)B"),
            "v": size(r"V size: ([\d.]+) (G)B"),
        },
        examples=(
            "[2025-05-07 10:00:01 TP0] KV Cache is allocated. dtype: torch.bfloat16, #tokens: 412672, K size: 25.19 GB, V size: 25.19 GB",
        ),
    ),
    Grammar(
        "sglang-weights",
        "sglang",
        "sglang",
        "Load weight end",
        "model_runner.py",
        facts={"weights_bytes": size(r"mem usage=([\d.]+) (G)B")},
        examples=(
            "[2025-05-07 10:00:01 TP0] Load weight end. type=LlamaForCausalLM, dtype=torch.bfloat16, avail mem=62.10 GB, mem usage=14.99 GB.",
        ),
    ),
    Grammar(
        "sglang-args",
        "sglang",
        "sglang",
        "server_args=ServerArgs(",
        "launch_server.py",
        facts={
            "model": word(r"model_path='([^']+)'"),
            "gpu_memory_utilization": number(r"mem_fraction_static=([\d.]+)"),
            "max_num_seqs": integer(r"max_running_requests=(\d+)"),
            "pool_tokens": integer(r"max_total_tokens=(\d+)"),
            "max_num_batched_tokens": integer(r"chunked_prefill_size=(\d+)"),
            "max_model_len": integer(r"context_length=(\d+)"),
            "tensor_parallel_size": integer(r"\btp_size=(\d+)"),
            "data_parallel_size": integer(r"\bdp_size=(\d+)"),
            "block_size": integer(r"page_size=(\d+)"),
            "kv_cache_dtype": word(r"kv_cache_dtype='(\w+)'"),
            "policy": word(r"schedule_policy='(\w+)'"),
        },
        examples=(
            "[2025-05-07 10:00:01] server_args=ServerArgs(model_path='/models/a', context_length=None, mem_fraction_static=0.88, max_running_requests=64, max_total_tokens=None, chunked_prefill_size=8192, schedule_policy='fcfs', page_size=1, tp_size=2, dp_size=1, kv_cache_dtype='auto')",
        ),
    ),
    Grammar(
        "sglang-pool-exhausted",
        "sglang",
        "sglang",
        "out of memory. Try to lower your batch size",
        "mem_cache/common.py: an allocation that must not fail",
        notice="out_of_blocks",
        also="fatal",
        values={
            "what": word(r"((?:Prefill|Decode) out of memory)"),
            "asked_tokens": integer(r"[Tt]ry(?:ing)? to allocate (\d+) tokens"),
            "free_tokens": integer(r"[Aa]vailable(?: tokens|_tokens)?[:=] ?(\d+)"),
        },
        examples=(
            "RuntimeError: Prefill out of memory. Try to lower your batch size. Try to allocate 8192 tokens. Available tokens: 512",
        ),
    ),
    Grammar(
        "sglang-no-memory",
        "sglang",
        "sglang",
        "Please try to increase --mem-fraction-static",
        "model_runner.py",
        notice="too_small",
        facts={"starts": constant("Not enough memory", False)},
        examples=(
            "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
        ),
    ),
    Grammar(
        "sglang-too-long",
        "sglang",
        "sglang",
        " is longer than the model's context length",
        "tokenizer_manager.py",
        notice="request_refused",
        values={
            "prompt_tokens": integer(r"input \((\d+) tokens\)"),
            "limit_tokens": integer(r"context length \((\d+) tokens\)"),
        },
        examples=(
            "ValueError: The input (41877 tokens) is longer than the model's context length (32768 tokens).",
        ),
    ),
    Grammar(
        "sglang-alone",
        "sglang",
        "sglang",
        "No space left for only one request",
        "sglang PR#14948, PR#19881; schedule_batch.py retract_decode",
        notice="alone_out_of_room",
        also="fatal",
        values={"what": word(r"(No space left for only one request)")},
        examples=(
            "AssertionError: No space left for only one request, self.token_to_kv_pool_allocator.available_size()=0",
        ),
    ),
    Grammar(
        "sglang-exceeds",
        "sglang",
        "sglang",
        "exceeds the maximum allowed length",
        "sglang PR#22597; scheduler.py",
        notice="request_refused",
        values={
            "prompt_tokens": integer(r"Input length \((\d+) tokens\)"),
            "limit_tokens": integer(r"allowed length \((\d+) tokens\)"),
        },
        examples=(
            "Input length (52000 tokens) exceeds the maximum allowed length (41994 tokens). Use a shorter input or enable --allow-auto-truncate.",
        ),
    ),
    Grammar(
        "sglang-longer-than-pool",
        "sglang",
        "sglang",
        "longer than the KV cache pool size",
        "scheduler.py",
        notice="request_refused",
        values={"why": word(r"(Request length is longer than the KV cache pool size)")},
        examples=(
            "[2025-05-07 10:00:01 TP0] Request length is longer than the KV cache pool size or the max context length. Truncated. len(req.origin_input_ids)=41877",
        ),
    ),
)
