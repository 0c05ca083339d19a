"""Lines of TensorRT-LLM and of Triton's backend for it: in-flight statistics, pool, policy, pauses.

Used blocks are what requests hold, not what is reserved for them: under GUARANTEED_NO_EVICT the rest of prompt and
max_tokens is kept free. Before June 2026 the iteration statistics counted host blocks as used.
"""

from __future__ import annotations

from collections.abc import Mapping

from traces.evidence.grammars.grammar import (
    Derived,
    Grammar,
    Value,
    integer,
    number,
    size,
    word,
)


def _key(name: str) -> str:
    """Pattern of a JSON key's number."""
    return rf'\\?"{name}\\?": ?"?(\d+)'


def _usage(values: Mapping[str, Value]) -> Derived | None:
    found: dict[str, Value] = {}
    used, pool = values.get("used_blocks"), values.get("pool_blocks")
    if isinstance(used, int) and isinstance(pool, int) and pool > 0:
        found["kv_usage_frac"] = used / pool
    active, scheduled = values.get("active"), values.get("num_running")
    if isinstance(active, int) and isinstance(scheduled, int) and active >= scheduled:
        found["num_waiting"] = active - scheduled
    note = "usage: used blocks over the pool's; waiting: active requests less scheduled ones"
    return Derived(found, note) if found else None


GRAMMARS: tuple[Grammar, ...] = (
    Grammar(
        "triton-inflight",
        "tensorrt-llm",
        "triton-inflight-json",
        "Active Request Count",
        "tensorrtllm_backend#457; model_instance_state.cc",
        sample={
            "step": integer(_key("Iteration Counter")),
            "num_running": integer(_key("Scheduled Requests")),
            "num_context_requests": integer(_key("Context Requests")),
            "num_decode_requests": integer(_key("Generation Requests")),
            "context_tokens": integer(_key("Total Context Tokens")),
            "used_blocks": integer(_key("Used KV cache blocks")),
        },
        extra={
            "active": integer(_key("Active Request Count")),
            "paused": integer(_key("Paused Requests")),
            "pool_blocks": integer(_key("Max KV cache blocks")),
        },
        facts={
            "pool_blocks": integer(_key("Max KV cache blocks")),
            "block_size": integer(_key("Tokens per KV cache block")),
            "max_num_seqs": integer(_key("Max Request Count")),
        },
        derive=_usage,
        examples=(
            'I0514 21:02:12.292292 160 model_instance_state.cc:813] {"Active Request Count":4,"Iteration Counter":112540,"Max Request Count":16,"Runtime CPU Memory Usage":404,"Timestamp":"05-14-2024 21:02:12","Context Requests":0,"Generation Requests":1,"MicroBatch ID":0,"Paused Requests":0,"Scheduled Requests":1,"Total Context Tokens":0,"Free KV cache blocks":137,"Max KV cache blocks":157,"Tokens per KV cache block":128,"Used KV cache blocks":20}',
        ),
    ),
    Grammar(
        "trtllm-statistics",
        "tensorrt-llm",
        "trtllm-iteration-json",
        "kvCacheStats",
        "TensorRT-LLM#3376; executor iteration statistics",
        pattern=r"usedNumBlocks",
        sample={
            "step": integer(_key("iter")),
            "num_running": integer(_key("numScheduledRequests")),
            "num_waiting": integer(_key("numQueuedRequests")),
            "num_context_requests": integer(_key("numContextRequests")),
            "num_decode_requests": integer(_key("numGenRequests")),
            "context_tokens": integer(_key("numCtxTokens")),
            "duration_s": number(r'"iterLatencyMS": ?([\d.]+)', 1e-3),
            "used_blocks": integer(_key("usedNumBlocks")),
        },
        extra={
            "pool_blocks": integer(_key("maxNumBlocks")),
            "paused": integer(_key("numPausedRequests")),
        },
        facts={
            "pool_blocks": integer(_key("maxNumBlocks")),
            "block_size": integer(_key("tokensPerBlock")),
            "max_num_seqs": integer(_key("maxNumActiveRequests")),
        },
        derive=lambda v: _usage({k: x for k, x in v.items() if k != "active"}),
        examples=(
            '[TensorRT-LLM][INFO] {"iter": 12, "iterLatencyMS": 14.2, "numActiveRequests": 4, "numQueuedRequests": 3, "kvCacheStats": {"maxNumBlocks": 512, "freeNumBlocks": 12, "usedNumBlocks": 500, "tokensPerBlock": 64}, "inflightBatchingStats": {"numScheduledRequests": 4, "numContextRequests": 0, "numGenRequests": 4, "numPausedRequests": 1, "numCtxTokens": 0}}',
        ),
    ),
    Grammar(
        "trtllm-iter",
        "tensorrt-llm",
        "trtllm-iteration",
        "num_scheduled_requests",
        "pyexecutor print_iter_log",
        sample={
            "step": integer(r"\biter = (\d+)"),
            "engine_rank": integer(r"(?<!global_)\brank = (\d+)"),
            "num_running": integer(r"num_scheduled_requests(?::| =) (\d+)"),
            "duration_s": number(r"host_step_time = ([\d.]+) ?ms", 1e-3),
            "num_context_requests": integer(r"'num_ctx_requests': (\d+)"),
            "context_tokens": integer(r"'num_ctx_tokens': (\d+)"),
            "decode_tokens": integer(r"'num_generation_tokens': (\d+)"),
            "kv_usage_frac": number(r"kv_cache_util = ([\d.]+)"),
            "prefix_hit_frac": number(r"kv_hit_rate = ([\d.]+)"),
        },
        extra={"paused": integer(r"num_paused_requests = (\d+)")},
        examples=(
            "[08/04/2026-19:08:13] [TRT-LLM] [I] [_torch][RANK 0] iter = 812, global_rank = 0, rank = 0, num_scheduled_requests = 60, kv_cache_util = 0.125, kv_hit_rate = 0.4, currank_total_requests = 1/8, host_step_time = 12.5ms, prev_device_step_time = 11.9ms, timestamp = 2026-08-04 19:08:13, states = {'num_ctx_requests': 0, 'num_ctx_tokens': 0, 'num_generation_tokens': 60, 'cached_kv_tokens': 63821}",
            "[07/15/2025-04:22:41] [TRT-LLM] [RANK 0] [I] iter = 1120, global_rank = 0, rank = 0, currank_total_requests = 0/0, host_step_time = 12.31ms, prev_device_step_time = 11.9ms, timestamp = 2025-07-15 04:22:41, num_scheduled_requests: 32, states = {'num_ctx_requests': 1, 'num_ctx_tokens': 812, 'num_generation_tokens': 31}",
        ),
    ),
    Grammar(
        "trtllm-pause",
        "tensorrt-llm",
        "trtllm",
        "Pause generation only request",
        "TensorRT-LLM PR#10664; llmRequest.h",
        notice="preemption",
        values={"request": word(r"request_id ?: ?(\d+)")},
        examples=(
            "[TensorRT-LLM][WARNING] Pause generation only request ,request_id :31 , change it as context init state, which may degrade performance",
        ),
    ),
    Grammar(
        "trtllm-pool",
        "tensorrt-llm",
        "trtllm",
        "in paged KV cache",
        "TensorRT-LLM#224, #2268; kvCacheManager",
        facts={
            "pool_tokens": integer(
                r"(?:[Mm]ax tokens in paged KV cache[:( ]+|Using )(\d+)(?: tokens in paged)?"
            ),
            "kv_bytes": size(r"Allocated ([\d.]+) (GiB) for max tokens"),
        },
        examples=(
            "[TensorRT-LLM][INFO] [MemUsageChange] Allocated 60.22 GiB for max tokens in paged KV cache (493952).",
            "[TensorRT-LLM][INFO] Max tokens in paged KV cache: 20096. Allocating 2634022912 bytes.",
        ),
    ),
    Grammar(
        "trtllm-blocks",
        "tensorrt-llm",
        "trtllm",
        "umber of blocks in KV cache primary pool",
        "kvCacheManager",
        facts={"pool_blocks": integer(r"primary pool: (\d+)")},
        examples=("[TensorRT-LLM][INFO] Number of blocks in KV cache primary pool: 7718",),
    ),
    Grammar(
        "trtllm-window-blocks",
        "tensorrt-llm",
        "trtllm",
        "primaryBlocks=",
        "kvCacheManager, 0.20 and later",
        facts={
            "pool_blocks": integer(r"primaryBlocks=(\d+)"),
            "host_pool_blocks": integer(r"second\w*Blocks=(\d+)"),
        },
        examples=(
            "[TensorRT-LLM][INFO] [windowSize=32768] {.primaryBlocks=7718, .secondayBlocks=0}",
        ),
    ),
    Grammar(
        "trtllm-block-size",
        "tensorrt-llm",
        "trtllm",
        "umber of tokens per block",
        "kvCacheManager",
        facts={"block_size": integer(r"tokens per block: (\d+)")},
        examples=("[TensorRT-LLM][INFO] Number of tokens per block: 64.",),
    ),
    Grammar(
        "trtllm-policy",
        "tensorrt-llm",
        "trtllm",
        "apacity Scheduler Policy: ",
        "trtGptModelInflightBatching",
        facts={"policy": word(r"Policy: (\w+)")},
        examples=("[TensorRT-LLM][INFO] Capacity Scheduler Policy: GUARANTEED_NO_EVICT",),
    ),
    Grammar(
        "trtllm-limits",
        "tensorrt-llm",
        "trtllm",
        "TRTGptModel max",
        "trtGptModelInflightBatching",
        facts={
            "max_num_seqs": integer(r"maxNumSequences: (\d+)"),
            "max_num_batched_tokens": integer(r"maxNumTokens: (\d+)"),
            "max_model_len": integer(r"maxSequenceLen: (\d+)"),
        },
        examples=("[TensorRT-LLM][INFO] TRTGptModel maxNumSequences: 16",),
    ),
)
