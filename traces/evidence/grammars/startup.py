"""Start-up lines of vLLM, both engines: pool, memory, limits, flags, and why it did not start.

The printed "GPU KV cache size" of a hybrid model is derived (concurrency times length). V1's block counts hold
the null block, which is never handed out; an override there leaves one block less.
"""

from __future__ import annotations

from collections.abc import Mapping

from traces.evidence.grammars.grammar import (
    Derived,
    Field,
    Grammar,
    Value,
    constant,
    integer,
    number,
    size,
    switch,
    word,
)

_Q = r"['\"]?"


def argument(name: str, value: str) -> str:
    """Pattern of one argument, as 'name': value or name=value."""
    return rf"(?<![\w]){_Q}{name}{_Q}(?:: |=){value}"


# arguments as "non-default args", Namespace(...) and an engine's config print them
ARGUMENTS: dict[str, Field] = {
    "model": word(argument("(?:model|model_tag)", r"'([^']+)'")),
    "max_model_len": integer(argument("(?:max_model_len|max_seq_len)", r"(\d+)")),
    "max_num_seqs": integer(argument("max_num_seqs", r"(\d+)")),
    "max_num_batched_tokens": integer(argument("max_num_batched_tokens", r"(\d+)")),
    "gpu_memory_utilization": number(argument("gpu_memory_utilization", r"([\d.]+)")),
    "tensor_parallel_size": integer(argument("tensor_parallel_size", r"(\d+)")),
    "data_parallel_size": integer(argument("data_parallel_size", r"(\d+)")),
    "block_size": integer(argument("block_size", r"(\d+)")),
    "kv_bytes": integer(argument("kv_cache_memory(?:_bytes)?", r"(\d+)")),
    "enable_prefix_caching": switch(argument("enable_prefix_caching", "(True|False)")),
    "enable_chunked_prefill": switch(
        argument("(?:enable_chunked_prefill|chunked_prefill_enabled)", "(True|False)")
    ),
    "kv_cache_dtype": word(argument("kv_cache_dtype", r"'?(\w+)")),
    "policy": word(argument("scheduling_policy", r"'(\w+)'")),
    "log_stats": Field(
        argument("disable_log_stats", "(True|False)"), lambda m: m[1] == "False"
    ),
    "preemption_mode": word(argument("preemption_mode", r"'(\w+)'")),
}


def _tokens_of_full_pool(values: Mapping[str, Value]) -> Derived | None:
    blocks = values.get("override_blocks")
    if not isinstance(blocks, int):
        return None
    return Derived(
        {"pool_blocks": blocks - 1, "null_blocks": 1},
        f"of {blocks} blocks one is the null block of V1, never handed out",
    )


def _version_of_flags(text: str, process: str) -> str:
    return "v1-apiserver" if process.startswith("APIServer") else ""


GRAMMARS: tuple[Grammar, ...] = (
    Grammar(
        "v0-blocks",
        "vllm",
        "v0-startup",
        "# GPU blocks: ",
        "vllm#10517; gpu_executor.py, llm_engine.py",
        facts={
            "pool_blocks": integer(r"# GPU blocks: (\d+)"),
            "host_pool_blocks": integer(r"# CPU blocks: (\d+)"),
        },
        examples=(
            "INFO 11-26 14:40:31 gpu_executor.py:113] # GPU blocks: 1952, # CPU blocks: 2048",
        ),
    ),
    Grammar(
        "v0-blocks-worded",
        "vllm",
        "v0-startup",
        " blocks: ",
        "executor_base.py, 0.7 and 0.8",
        pattern=r"# (?:cuda|rocm|hpu|npu|xpu|tpu) blocks: \d",
        facts={
            "pool_blocks": integer(r"# (?:cuda|rocm|hpu|npu|xpu|tpu) blocks: (\d+)"),
            "host_pool_blocks": integer(r"# CPU blocks: (\d+)"),
        },
        examples=(
            "INFO 03-01 10:00:00 [executor_base.py:112] # cuda blocks: 27102, # CPU blocks: 2048",
        ),
    ),
    Grammar(
        "override-v1",
        "vllm",
        "v1-startup",
        "Overriding num_gpu_blocks=",
        "kv_cache_utils.py",
        pattern=r"kv_cache_utils",
        notice="override",
        values={
            "from_blocks": integer(r"num_gpu_blocks=(\d+)"),
            "to_blocks": integer(r"num_gpu_blocks_override=(\d+)"),
        },
        facts={"available_pool_blocks": integer(r"num_gpu_blocks=(\d+)")},
        extra={"override_blocks": integer(r"num_gpu_blocks_override=(\d+)")},
        derive_facts=_tokens_of_full_pool,
        examples=(
            "INFO 11-29 15:50:38 [kv_cache_utils.py:2115] Overriding num_gpu_blocks=10240 with num_gpu_blocks_override=480",
        ),
    ),
    Grammar(
        "override-v0",
        "vllm",
        "v0-startup",
        "Overriding num_gpu_blocks=",
        "vllm#5578; gpu_executor.py, worker.py",
        notice="override",
        values={
            "from_blocks": integer(r"num_gpu_blocks=(\d+)"),
            "to_blocks": integer(r"num_gpu_blocks_override=(\d+)"),
        },
        facts={
            "available_pool_blocks": integer(r"num_gpu_blocks=(\d+)"),
            "pool_blocks": integer(r"num_gpu_blocks_override=(\d+)"),
        },
        examples=(
            "INFO 06-16 21:23:44 gpu_executor.py:89] Overriding num_gpu_blocks=120841 with num_gpu_blocks_override=8192",
        ),
    ),
    Grammar(
        "cache-size",
        "vllm",
        "v1-startup",
        "KV cache size: ",
        "kv_cache_utils.py (0.8 and later)",
        pattern=r"KV cache size: [\d,]+ tokens",
        facts={"pool_tokens": integer(r"KV cache size: ([\d,]+) tokens")},
        examples=(
            "INFO 07-28 06:12:37 [kv_cache_utils.py:716] GPU KV cache size: 626,192 tokens",
        ),
    ),
    Grammar(
        "concurrency",
        "vllm",
        "",
        "Maximum concurrency for ",
        "gpu_executor.py, kv_cache_utils.py",
        facts={
            "max_concurrency": number(r"per request: ([\d.,]+)x"),
            "max_concurrency_tokens": integer(r"concurrency for ([\d,]+) tokens"),
        },
        examples=(
            "INFO 07-28 06:12:37 [kv_cache_utils.py:720] Maximum concurrency for 131,072 tokens per request: 4.78x",
            "INFO 11-26 14:40:31 gpu_executor.py:117] Maximum concurrency for 20000 tokens per request: 1.56x",
        ),
    ),
    Grammar(
        "aggregated-blocks",
        "vllm",
        "v1-startup",
        "num_gpu_blocks is: ",
        "loggers.py, several ranks",
        facts={"data_parallel_size": integer(r"(\d+) Engines: vllm cache_config_info")},
        examples=(
            "INFO 11-29 15:50:38 [loggers.py:200] 2 Engines: vllm cache_config_info with initialization after num_gpu_blocks is: 20480",
        ),
    ),
    Grammar(
        "v0-profile",
        "vllm",
        "v0-startup",
        "Memory profiling results: ",
        "vllm#10517; worker.py",
        facts={
            "device_bytes": size(r"total_gpu_memory=([\d.]+)(GiB)"),
            "kv_bytes": size(r"kv_cache_size=([\d.]+)(GiB)"),
            "gpu_memory_utilization": number(r"gpu_memory_utilization=([\d.]+)"),
        },
        extra={
            "peak": size(r"peak_torch_memory=([\d.]+)(GiB)"),
            "before": size(r"initial_memory_usage=([\d.]+)(GiB)"),
        },
        derive_facts=lambda v: (
            Derived(
                {"activation_bytes": int(v["peak"]) - int(v["before"])},
                "peak memory less the memory before the profile run",
            )
            if "peak" in v and "before" in v and float(v["peak"]) > float(v["before"])
            else None
        ),
        examples=(
            "INFO 12-02 10:12:29 worker.py:232] Memory profiling results: total_gpu_memory=23.58GiB initial_memory_usage=15.34GiB peak_torch_memory=17.06GiB memory_usage_post_profile=15.35GiB non_torch_memory=0.35GiB kv_cache_size=3.81GiB gpu_memory_utilization=0.90",
        ),
    ),
    Grammar(
        "v0-profile-share",
        "vllm",
        "v0-startup",
        "the current vLLM instance can use",
        "worker.py, 0.6.5 to 0.8",
        facts={
            "device_bytes": size(r"total_gpu_memory \(([\d.]+)(GiB)\)"),
            "gpu_memory_utilization": number(r"gpu_memory_utilization \(([\d.]+)\)"),
        },
        examples=(
            "the current vLLM instance can use total_gpu_memory (23.58GiB) x gpu_memory_utilization (0.90) = 21.22GiB",
        ),
    ),
    Grammar(
        "v0-profile-parts",
        "vllm",
        "v0-startup",
        "reserved for KV Cache is",
        "worker.py, 0.6.5 to 0.8",
        facts={
            "weights_bytes": size(r"model weights take ([\d.]+)(GiB)"),
            "activation_bytes": size(r"activation peak memory takes ([\d.]+)(GiB)"),
            "kv_bytes": size(r"reserved for KV Cache is ([\d.]+)(GiB)"),
        },
        examples=(
            "model weights take 14.99GiB; non_torch_memory takes 0.07GiB; PyTorch activation peak memory takes 1.19GiB; the rest of the memory reserved for KV Cache is 4.97GiB.",
        ),
    ),
    Grammar(
        "weights-took",
        "vllm",
        "",
        "oading ",
        "model_runner.py, gpu_model_runner.py",
        pattern=r"(?:Loading model weights took|Model loading took) [\d.]+ ?G",
        facts={"weights_bytes": size(r"took ([\d.]+) ?(Gi?B)")},
        examples=(
            "INFO 12-02 10:12:21 model_runner.py:1077] Loading model weights took 14.9888 GB",
            "INFO 08-14 09:27:11 [gpu_model_runner.py:2800] Model loading took 16.92 GiB and 3.2 seconds",
        ),
    ),
    Grammar(
        "available-memory",
        "vllm",
        "v1-startup",
        "vailable KV cache memory: ",
        "vllm#50722; gpu_worker.py",
        facts={"kv_bytes": size(r"vailable KV cache memory: ([\d.]+) (GiB)")},
        examples=(
            "INFO 08-14 09:27:40 [gpu_worker.py:563] Available KV cache memory: 43.40 GiB",
        ),
    ),
    Grammar(
        "memory-suggestion",
        "vllm",
        "v1-startup",
        "Desired GPU memory utilization is (",
        "vllm#50722; gpu_worker.py",
        pattern=r"weight",
        notice="suggestion",
        values={
            "kv_bytes": integer(r"--kv-cache-memory=(\d+)` \([\d.]+ GiB\) to fully"),
            "fits_kv_bytes": integer(r"--kv-cache-memory=(\d+)` \([\d.]+ GiB\) to fit"),
        },
        facts={
            "device_bytes": size(r"Free memory on device \([\d.]+/([\d.]+) (GiB)\)"),
            "gpu_memory_utilization": number(r"utilization is \(([\d.]+)"),
            "weights_bytes": size(r"usage is ([\d.]+) (GiB) for weight"),
            "activation_bytes": size(r"([\d.]+) (GiB) for peak activation"),
            "kv_bytes": size(r"kv cache memory in use is ([\d.]+) (GiB)"),
            "kv_bytes_available": integer(r"--kv-cache-memory=(\d+)` \([\d.]+ GiB\) to fully"),
        },
        examples=(
            "INFO 08-14 09:28:01 [gpu_worker.py:857] Free memory on device (77.78/79.33 GiB) on startup. Desired GPU memory utilization is (0.85, 67.43 GiB). Actual usage is 16.92 GiB for weight, 5.66 GiB for peak activation, 0.13 GiB for non-torch memory, and 1.34 GiB for CUDAGraph memory. Replace gpu_memory_utilization config with `--kv-cache-memory=46421742490` (43.23 GiB) to fit into requested memory, or `--kv-cache-memory=57542425088` (53.59 GiB) to fully utilize gpu memory. Current kv cache memory in use is 43.4 GiB.",
        ),
    ),
    Grammar(
        "too-small-v0",
        "vllm",
        "v0-startup",
        "larger than the maximum number of tokens that can be stored in KV cache",
        "vllm#10517; worker.py",
        notice="too_small",
        values={
            "max_model_len": integer(r"max seq len \((\d+)\)"),
            "pool_tokens": integer(r"KV cache \((\d+)\)"),
        },
        facts={
            "starts": constant("larger than", False),
            "pool_tokens": integer(r"KV cache \((\d+)\)"),
            "max_model_len": integer(r"max seq len \((\d+)\)"),
        },
        examples=(
            "ValueError: The model's max seq len (29000) is larger than the maximum number of tokens that can be stored in KV cache (23648). Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when initializing the engine.",
        ),
    ),
    Grammar(
        "too-small-v1",
        "vllm",
        "v1-startup",
        "To serve at least one request with the model",
        "kv_cache_utils.py",
        notice="too_small",
        values={
            "max_model_len": integer(r"max seq len \((\d+)\)"),
            "needed_bytes": size(r"([\d.]+) (GiB) KV cache is needed"),
            "kv_bytes": size(r"KV cache memory \(([\d.]+) (GiB)\)"),
            "fits_tokens": integer(r"maximum model length is (\d+)"),
        },
        facts={
            "starts": constant("To serve", False),
            "max_model_len": integer(r"max seq len \((\d+)\)"),
            "kv_bytes": size(r"KV cache memory \(([\d.]+) (GiB)\)"),
        },
        examples=(
            "ValueError: To serve at least one request with the model's max seq len (131072), (16.00 GiB KV cache is needed, which is larger than the available KV cache memory (9.58 GiB). Based on the available memory, the estimated maximum model length is 78416. Try increasing `gpu_memory_utilization`",
        ),
    ),
    Grammar(
        "too-few-states",
        "vllm",
        "v1-startup",
        "exceeds available Mamba cache blocks",
        "kaito#2319, vllm PR#38270; gpu_model_runner.py, hybrid models",
        notice="too_small",
        values={
            "max_num_seqs": integer(r"max_num_seqs \(([\d,]+)\)"),
            "state_blocks": integer(r"Mamba cache blocks \(([\d,]+)\)"),
        },
        facts={
            "starts": constant("exceeds", False),
            "max_num_seqs": integer(r"max_num_seqs \(([\d,]+)\)"),
        },
        examples=(
            "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (614). Each decode request requires one Mamba cache block",
        ),
    ),
    Grammar(
        "no-memory",
        "vllm",
        "",
        "No available memory for the cache blocks",
        "kv_cache_utils.py, worker.py",
        notice="too_small",
        facts={"starts": constant("No available", False)},
        examples=(
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
        ),
    ),
    Grammar(
        "engine-config",
        "vllm",
        "",
        "LLM engine ",
        "llm_engine.py, core.py",
        pattern=r"Initializing an? (?:V1 )?LLM engine",
        family_of=lambda text, process: "v1-startup" if "V1 LLM" in text else "v0-startup",
        facts={"version": word(r"LLM engine \(v?([\w.+-]+)\)"), **ARGUMENTS},
        examples=(
            "INFO 11-26 14:40:02 llm_engine.py:249] Initializing an LLM engine (v0.6.4.post1) with config: model='/models/chat-8b', speculative_config=None, tokenizer='/models/chat-8b', dtype=torch.bfloat16, max_seq_len=20000, tensor_parallel_size=1, pipeline_parallel_size=1, enforce_eager=False, kv_cache_dtype=auto, enable_prefix_caching=False, chunked_prefill_enabled=False)",
            "INFO 11-29 15:50:38 [core.py:77] Initializing a V1 LLM engine (v0.26.0) with config: model='/models/a', dtype=torch.bfloat16, max_seq_len=4096, tensor_parallel_size=2, data_parallel_size=1, kv_cache_dtype=auto, enable_prefix_caching=True",
        ),
    ),
    Grammar(
        "server-version",
        "vllm",
        "",
        "API server version ",
        "api_server.py",
        facts={"version": word(r"API server version v?(\d[\w.+-]*)")},
        examples=("INFO 07-28 06:12:01 [api_server.py:1774] vLLM API server version 0.10.0",),
    ),
    Grammar(
        "version-banner",
        "vllm",
        "",
        "version ",
        "utils.py, 0.12 and later",
        pattern=r"▀|█.*version \d",
        facts={"version": word(r"version (\d[\w.+-]*)")},
    ),
    Grammar(
        "arguments",
        "vllm",
        "",
        "args: ",
        "api_server.py, utils.py",
        pattern=r"non-default args: \{|args: Namespace\(",
        family_of=_version_of_flags,
        facts=ARGUMENTS,
        extra={"override_blocks": integer(argument("num_gpu_blocks_override", r"(\d+)"))},
        examples=(
            "INFO 04-15 09:33:51 [utils.py:233] non-default args: {'model_tag': '/models/hybrid-31b', 'tensor_parallel_size': 2, 'max_num_seqs': 64, 'enable_prefix_caching': False}",
        ),
    ),
    Grammar(
        "hybrid-block-size",
        "vllm",
        "",
        "Setting attention block size to ",
        "config of hybrid models: attention pages as large as state pages",
        facts={"block_size": integer(r"block size to (\d+) tokens")},
        examples=(
            "INFO 08-14 09:27:00 [config.py:390] Setting attention block size to 784 tokens to ensure that attention page size is >= mamba page size.",
        ),
    ),
    Grammar(
        "offload-blocks",
        "vllm",
        "v1-startup",
        " CPU blocks (",
        "SimpleCPUOffloadScheduler",
        facts={"host_pool_blocks": integer(r"Allocating (\d+) CPU blocks")},
        examples=(
            "INFO 08-14 09:27:41 [scheduler.py:90] SimpleCPUOffloadScheduler: Allocating 4096 CPU blocks (8.00 GB, mode=eager)",
        ),
    ),
    Grammar(
        "rollout-sampling",
        None,
        "",
        "kwargs: {",
        "rllm#93; a rollout worker's sampling parameters",
        pattern=r"'max_tokens': \d",
        facts={
            "sequences_per_request": integer(r"'n': (\d+)"),
            "output_tokens": integer(r"'max_tokens': (\d+)"),
        },
        examples=(
            "kwargs: {'n': 8, 'logprobs': 1, 'max_tokens': 32768, 'detokenize': False, 'temperature': 0.6}",
        ),
    ),
    Grammar(
        "length-limit",
        "vllm",
        "",
        "Using max model len ",
        "model.py",
        facts={"max_model_len": integer(r"Using max model len (\d+)")},
        examples=("INFO 04-15 09:34:02 [model.py:1678] Using max model len 262144",),
    ),
    Grammar(
        "chunked-prefill",
        "vllm",
        "",
        "Chunked prefill is enabled with",
        "scheduler.py",
        facts={
            "max_num_batched_tokens": integer(r"max_num_batched_tokens=(\d+)"),
            "enable_chunked_prefill": constant("enabled", True),
        },
        examples=(
            "INFO 09-21 14:13:20 [scheduler.py:252] Chunked prefill is enabled with max_num_batched_tokens=2048.",
        ),
    ),
)
