"""Tracing lines of engines and parts written in Rust: TGI's router, vllm.rs, Dynamo's block manager; and LMCache.

vllm.rs prints free blocks with their tokens and a share, so block size and pool follow. Older builds print the two
numbers of a swap-out in swapped order; the runner's line is the safe one for the blocks.
"""

from __future__ import annotations

from collections.abc import Mapping

from traces.evidence.grammars.grammar import (
    Derived,
    Grammar,
    Value,
    integer,
    number,
    percent,
    size,
    word,
)


def _all_requests_rate(values: Mapping[str, Value]) -> Derived | None:
    running, rate = values.get("num_running"), values.get("rate")
    if not isinstance(running, int) or not isinstance(rate, float):
        return None
    return Derived(
        {"generation_tokens_per_s": running * rate},
        "requests times the printed average of one",
    )


def _block_size(values: Mapping[str, Value]) -> Derived | None:
    blocks, tokens = values.get("free_blocks"), values.get("free_tokens")
    if not isinstance(blocks, int) or not isinstance(tokens, int) or not blocks:
        return None
    if tokens % blocks:
        return None
    return Derived({"block_size": tokens // blocks}, "free tokens over free blocks")


GRAMMARS: tuple[Grammar, ...] = (
    Grammar(
        "tgi-pool",
        "tgi",
        "tgi-router",
        "max batch total tokens",
        "text-generation-inference#1356; router",
        facts={"pool_tokens": integer(r"total tokens to (\d+)")},
        examples=(
            "2023-12-18T01:10:02.114420Z  INFO text_generation_router: router/src/main.rs:247: Setting max batch total tokens to 17440",
        ),
    ),
    Grammar(
        "tgi-out-of-blocks-client",
        "tgi",
        "tgi-router",
        "Out of available cache blocks",
        "text-generation-inference#1356; the same failure with the client's parameters",
        pattern=r"GenerateParameters",
        notice="out_of_blocks",
        merges=True,
        values={
            "asked_blocks": integer(r"asked (\d+)"),
            "free_blocks": integer(r"only (\d+) free"),
            "max_tokens": integer(r"max_new_tokens: Some\((\d+)\)"),
        },
        examples=(
            "2023-12-18T02:36:52.143255Z  ERROR generate{parameters=GenerateParameters { best_of: None, max_new_tokens: Some(180), details: false }}:generate:generate_stream:infer:send_error: text_generation_router::infer: router/src/infer.rs:581: Request failed during generation: Server error: Out of available cache blocks: asked 107, only 4 free blocks",
        ),
    ),
    Grammar(
        "tgi-out-of-blocks",
        "tgi",
        "tgi-router",
        "Out of available cache blocks",
        "text-generation-inference#1356; block manager",
        notice="out_of_blocks",
        merges=True,
        values={
            "asked_blocks": integer(r"asked (\d+)"),
            "free_blocks": integer(r"only (\d+) free"),
            "request": word(r"prefill\{id=(\d+)"),
        },
        examples=(
            "2023-12-18T02:36:52.142641Z  ERROR batch{batch_size=1}:prefill:prefill{id=7571 size=1}:prefill{id=7571 size=1}: text_generation_client: router/client/src/lib.rs:33: Server error: Out of available cache blocks: asked 107, only 4 free blocks",
        ),
    ),
    Grammar(
        "tgi-overloaded",
        "tgi",
        "tgi-router",
        "Model is overloaded",
        "router/src/infer.rs",
        notice="request_refused",
        values={"why": word(r"(Model is overloaded)")},
        examples=(
            "2023-12-18T02:36:52.143255Z  ERROR text_generation_router::infer: router/src/infer.rs:100: Model is overloaded",
        ),
    ),
    Grammar(
        "tgi-too-long",
        "tgi",
        "tgi-router",
        "`inputs` ",
        "router/src/validation.rs",
        pattern=r"must have less than|must be <=",
        notice="request_refused",
        values={
            "prompt_tokens": integer(r"(?:Given: |\bGiven )(\d+)"),
            "limit_tokens": integer(r"(?:less than|<=) (\d+)"),
        },
        examples=(
            "2023-12-18T02:36:52.1Z ERROR text_generation_router: `inputs` must have less than 1024 tokens. Given: 2030",
        ),
    ),
    Grammar(
        "vllm.rs-pool",
        "vllm.rs",
        "rust tracing",
        "GPU Kvcache: ",
        "xinfer PR#55; core/scheduler.rs",
        joins=True,
        sample={
            "kv_usage_frac": percent(r"free, used ([\d.]+)%"),
            "host_usage_frac": percent(r"CPU swap used ([\d.]+)%"),
        },
        extra={
            "free_blocks": integer(r"GPU Kvcache: (\d+) blocks"),
            "free_tokens": integer(r"\((\d+) tokens\) free"),
            "host_bytes": size(r"CPU swap used [\d.]+% \([\d.]+GB/([\d.]+)(G)B\)"),
        },
        facts={"kv_bytes": size(r"% \([\d.]+GB/([\d.]+)(G)B\); CPU")},
        derive_facts=_block_size,
        examples=(
            "2025-11-10T11:15:08.046898Z  INFO vllm_rs::core::scheduler: GPU Kvcache: 63 blocks (4032 tokens) free, used 79.8% (0.73GB/0.91GB); CPU swap used 0.0% (0.00GB/4.57GB)",
        ),
    ),
    Grammar(
        "vllm.rs-decoding",
        "vllm.rs",
        "rust tracing",
        " active request(s)",
        "xinfer PR#55; core/engine.rs",
        joins=True,
        sample={"num_running": integer(r"Decoding: (\d+) active")},
        extra={"rate": number(r"avg\. ([\d.]+) tokens/s")},
        derive=_all_requests_rate,
        examples=(
            "2025-11-10T11:15:08.046875Z  INFO vllm_rs::core::engine: Decoding: 3 active request(s), avg. 39 tokens/s per request",
        ),
    ),
    Grammar(
        "vllm.rs-swap-out",
        "vllm.rs",
        "rust tracing",
        "Swap out sequence ",
        "xinfer PR#55; core/block_manager.rs",
        notice="swap_out",
        merges=True,
        values={
            "request": word(r"sequence (\d+)"),
            "blocks": integer(r"\((\d+) blocks\)"),
        },
        examples=(
            "2025-11-10T11:15:33.736883Z  WARN vllm_rs::core::block_manager: Swap out sequence 21 (14 blocks) to CPU memory",
        ),
    ),
    Grammar(
        "vllm.rs-swap-in",
        "vllm.rs",
        "rust tracing",
        "Swap in sequence ",
        "core/block_manager.rs",
        notice="swap_in",
        merges=True,
        values={
            "request": word(r"sequence (\d+)"),
            "blocks": integer(r"\((\d+) blocks\)"),
        },
        examples=(
            "2025-11-10T11:15:40.218000Z  WARN vllm_rs::core::block_manager: Swap in sequence 21 (14 blocks) from CPU memory",
        ),
    ),
    Grammar(
        "vllm.rs-runner-out",
        "vllm.rs",
        "rust tracing",
        "need to swap out",
        "xinfer PR#55; runner",
        notice="swap_out",
        merges=True,
        values={"blocks": integer(r"message: (\d+) kv cache blocks")},
        examples=(
            "2025-11-10T11:15:33.736934Z  INFO runner: Received KVCacheSwap message: 14 kv cache blocks need to swap out!",
        ),
    ),
    Grammar(
        "vllm.rs-runner-in",
        "vllm.rs",
        "rust tracing",
        "need to swap in",
        "xinfer PR#55; runner",
        notice="swap_in",
        merges=True,
        values={"blocks": integer(r"message: (\d+) kv cache blocks")},
        examples=(
            "2025-11-10T11:15:40.218114Z  INFO runner: Received KVCacheSwap message: 14 kv cache blocks need to swap in!",
        ),
    ),
    Grammar(
        "vllm.rs-no-room",
        "vllm.rs",
        "rust tracing",
        " kvcache tokens, but your prompt requires ",
        "xinfer#278; server",
        notice="out_of_blocks",
        merges=True,
        values={
            "free_tokens": integer(r"Remaining (\d+) kvcache"),
            "asked_tokens": integer(r"requires (\d+) new tokens"),
        },
        examples=(
            "2026-04-01T02:59:00.655654Z ERROR vllm_rs::server::server: Stream generation failed: Remaining 40960 kvcache tokens, but your prompt requires 98304 new tokens, please request later!",
        ),
    ),
    Grammar(
        "vllm.rs-request",
        "vllm.rs",
        "rust tracing",
        "New request [Seq_id ",
        "xinfer PR#55; core/engine.rs",
        notice="request_received",
        values={
            "request": word(r"Seq_id (\d+)"),
            "prompt_tokens": integer(r", (\d+) tokens\]"),
        },
        examples=(
            "2025-11-10T11:15:11.336472Z  WARN vllm_rs::core::engine: [Stream] New request [Seq_id 21, 13 tokens] received! (session_id: None)",
        ),
    ),
    Grammar(
        "dynamo-pool",
        None,
        "rust tracing",
        "num_device_blocks=",
        "dynamo#4087; block_manager worker",
        facts={
            "pool_blocks": integer(r"num_device_blocks=(\d+)"),
            "block_size": integer(r"page_size=(\d+)"),
        },
        examples=(
            "2025-11-04T12:25:41.391681Z  INFO dynamo_llm::block_manager::distributed::worker: Initializing KvbmWorker with params: num_device_blocks=8297, page_size=16, dtype_width_bytes=2",
        ),
    ),
    Grammar(
        "dynamo-finish",
        None,
        "rust tracing",
        "request set to finish: ",
        "dynamo#4087; connector leader",
        notice="request_finished",
        values={
            "request": word(r"request_id=(\S+)"),
            "cached_tokens": integer(r"cached_gpu_tokens: (\d+)"),
            "cached_host_tokens": integer(r"cached_host_tokens: (\d+)"),
            "cached_disk_tokens": integer(r"cached_disk_tokens: (\d+)"),
        },
        examples=(
            "2025-11-04T12:26:52.371053Z  INFO _core::llm::block_manager::vllm::connector::leader::slot: request set to finish: cached_gpu_tokens: 0; cached_host_tokens: 0; cached_disk_tokens: 0 request_id=chatcmpl-0",
        ),
    ),
    Grammar(
        "lmcache-hit",
        None,
        "lmcache",
        "LMCache hit tokens: ",
        "LMCache PR#1361; vllm_v1_adapter.py",
        notice="connector",
        values={
            "request": word(r"Reqid: ([^\s,]+)"),
            "total_tokens": integer(r"Total tokens (\d+)"),
            "hit_tokens": integer(r"hit tokens: (\d+)"),
            "need_tokens": integer(r"need to load: (-?\d+)"),
        },
        examples=(
            "[2025-11-04 12:27:13,753] LMCache INFO: Reqid: cmpl-9-0, Total tokens 8891, LMCache hit tokens: 8704, need to load: 8704 (vllm_v1_adapter.py:1050:lmcache.integration.vllm.vllm_v1_adapter)",
        ),
    ),
)
