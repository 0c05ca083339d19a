"""The settings of a case, by the names that the golden cases use, and vLLM's own objects for them.

It knows how to build vLLM's configuration without a GPU, a model or a network. It runs nothing.
"""

from __future__ import annotations

import functools
import importlib
import json
import tempfile
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

BLOCK_BYTES_PER_TOKEN = 2 * 1 * 16 * 2  # K and V, one head of 16 values, 2 bytes each


@dataclass(frozen=True)
class Settings:
    """One case. num_blocks counts the null block; cpu_blocks and the rest of its line: CPU offload.

    offload: None, "native" (OffloadingConnector) or "simple" (SimpleCPUOffloadConnector);
    load_steps, store_steps: how many steps a copy takes; clock: "step" or "latency", where a step
    takes latency_ms = (base, per computed token, per decoded token).
    """

    num_blocks: int = 65
    block_size: int = 16
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int = 131_072
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    policy: str = "fcfs"
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = False
    offload: str | None = None
    cpu_blocks: int = 0
    offload_prompt_only: bool = True
    lazy_offload: bool = False
    load_steps: int = 1
    store_steps: int = 1
    clock: str = "step"
    latency_ms: tuple[float, float, float] = (5.0, 0.05, 0.1)
    max_steps: int = 200_000
    livelock_steps: int = 5_000
    record_free_queue: bool = False  # kept in the golden files; not recorded here


def settings_from(document: dict[str, Any]) -> Settings:
    """Settings of a JSON object. Raises ValueError at a key that is not known."""
    known = {f.name for f in fields(Settings)}
    if unknown := sorted(set(document) - known):
        raise ValueError(
            f"unknown setting {unknown[0]!r}: known are {', '.join(sorted(known))}"
        )
    values = dict(document)
    if "latency_ms" in values:
        values["latency_ms"] = tuple(values["latency_ms"])
    return Settings(**values)


@functools.cache
def _model_directory() -> tempfile.TemporaryDirectory[str]:
    """A model without weights: the scheduler asks for its configuration only."""
    folder = tempfile.TemporaryDirectory(prefix="kv-replay-parity-")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "vocab_size": 32_000,
        "max_position_embeddings": 1 << 24,
        "torch_dtype": "float16",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (Path(folder.name) / "config.json").write_text(json.dumps(config))
    return folder


def _kv_transfer(s: Settings) -> Any:
    """vLLM's KVTransferConfig of the case's CPU offload, or None."""
    from vllm.config import KVTransferConfig

    if s.offload is None:
        return None
    room = s.cpu_blocks * s.block_size * BLOCK_BYTES_PER_TOKEN
    extra: dict[str, Any] = {"cpu_bytes_to_use": room}
    if s.offload == "native":
        connector = "OffloadingConnector"
        extra["offload_prompt_only"] = s.offload_prompt_only
    elif s.offload == "simple":
        connector = "SimpleCPUOffloadConnector"
        extra["lazy_offload"] = s.lazy_offload
    else:
        raise ValueError(f"offload {s.offload!r} is not known: native, simple or null")
    return KVTransferConfig(
        kv_connector=connector, kv_role="kv_both", kv_connector_extra_config=extra
    )


def vllm_config(s: Settings) -> Any:
    """vLLM's VllmConfig of the case."""
    from vllm.config import CacheConfig, DeviceConfig, ModelConfig, SchedulerConfig, VllmConfig

    config = VllmConfig(
        model_config=ModelConfig(
            model=_model_directory().name,
            skip_tokenizer_init=True,
            dtype="float16",
            max_model_len=s.max_model_len,
            seed=0,
        ),
        cache_config=CacheConfig(
            block_size=s.block_size, enable_prefix_caching=s.enable_prefix_caching
        ),
        scheduler_config=SchedulerConfig(
            max_num_seqs=s.max_num_seqs,
            max_num_batched_tokens=s.max_num_batched_tokens,
            max_model_len=s.max_model_len,
            is_encoder_decoder=False,
            enable_chunked_prefill=s.enable_chunked_prefill,
            long_prefill_token_threshold=s.long_prefill_token_threshold,
            policy=s.policy,
            watermark=s.watermark,
            scheduler_reserve_full_isl=s.scheduler_reserve_full_isl,
            async_scheduling=False,
        ),
        device_config=DeviceConfig(device="cpu"),
        kv_transfer_config=_kv_transfer(s),
    )
    # Set afterwards: VllmConfig asks the executor whether it can, and there is none.
    config.scheduler_config.async_scheduling = s.async_scheduling
    config.cache_config.num_gpu_blocks = s.num_blocks
    return config


def _kv_cache_config(s: Settings) -> Any:
    """One group of full-attention layers over one pool."""
    import torch
    from vllm.v1 import kv_cache_interface as kv

    spec = kv.FullAttentionSpec(
        block_size=s.block_size, num_kv_heads=1, head_size=16, dtype=torch.float16
    )
    tensor = kv.KVCacheTensor(size=spec.page_size_bytes * s.num_blocks, shared_by=["layer"])
    return kv.KVCacheConfig(
        num_blocks=s.num_blocks,
        kv_cache_tensors=[tensor],
        kv_cache_groups=[kv.KVCacheGroupSpec(["layer"], spec)],
    )


def scheduler_class(s: Settings, name: str | None) -> type:
    """vLLM's scheduler of the case, or the class of that dotted name."""
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.core.sched.scheduler import Scheduler

    if name is None:
        return AsyncScheduler if s.async_scheduling else Scheduler
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def make_scheduler(s: Settings, class_name: str | None = None) -> Any:
    """vLLM's scheduler as its engine core would build it for the case."""
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
    from vllm.v1.structured_output import StructuredOutputManager

    config, cache = vllm_config(s), _kv_cache_config(s)
    block_size, hash_block_size = resolve_kv_cache_block_sizes(cache, config)
    return scheduler_class(s, class_name)(
        vllm_config=config,
        kv_cache_config=cache,
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        hash_block_size=hash_block_size,
        log_stats=True,
    )


def block_hasher(s: Settings) -> Any:
    """What hashes a request's blocks; None where nothing looks at hashes (as the engine core has it)."""
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash

    if not s.enable_prefix_caching and s.offload is None:
        return None
    hash_function = get_hash_fn_by_name("sha256")
    init_none_hash(hash_function)
    return get_request_block_hasher(s.block_size, hash_function)
