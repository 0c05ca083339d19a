"""What made a live recording, out of vLLM's configuration: the metadata of its parts.

Names of settings are EngineSettings' (vLLM's own), so that a recording can be replayed under them.
Host and paths are not written: the host is a short hash, a model's path is cut to its last part.
What vLLM does not say stays away; nothing is guessed.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from engine import VERSION
from engine.live.rows import NOT_RECORDED
from engine.live.settings import LiveSettings
from traces.run_folders import utc_stamp

_OFFLOADING = ("OffloadingConnector", "SimpleCPUOffloadConnector", "LMCacheConnector", "LMCacheMPConnector")  # fmt: skip
_CONNECTORS = {"OffloadingConnector": "native", "SimpleCPUOffloadConnector": "simple"}
_NUMBERS = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size")  # fmt: skip


def server_name(config: Any) -> str:
    """Six hex digits that all ranks of one server share: from vLLM's instance id without its rank."""
    instance = re.sub(r"_dp\d+$", "", str(getattr(config, "instance_id", "")))
    return hashlib.blake2b(instance.encode(), digest_size=3).hexdigest()


def data_parallel_rank(config: Any) -> int:
    parallel = config.parallel_config
    return int(
        getattr(parallel, "data_parallel_index", None)
        or getattr(parallel, "data_parallel_rank", 0)
        or 0
    )


def preemption_mode(config: Any) -> str:
    """ "offload" where a connector stores KV on the host, so that victims may be restored from there."""
    transfer = getattr(config, "kv_transfer_config", None)
    return "offload" if getattr(transfer, "kv_connector", None) in _OFFLOADING else "recompute"


def run_metadata(
    config: Any,
    kv_cache_config: Any,
    *,
    settings: LiveSettings,
    vllm_version: str,
    token_budget: int,
    hash_block: int | None,
    blind: Iterable[str],
    unix_s: float,
) -> dict[str, Any]:
    """The metadata document. config: VllmConfig; token_budget: most tokens of a step; hash_block:
    tokens of a prefix id, None where prefixes are not recorded; unix_s: time of the recording's 0."""
    num_gpu_blocks = int(config.cache_config.num_gpu_blocks)
    rank = data_parallel_rank(config)
    not_recorded = {*NOT_RECORDED, *blind}
    if hash_block is None:
        not_recorded |= {"requests.prefix_ids"}
    return {
        "executor": "vllm",
        "clock": "measured",
        "settings": {
            **engine_settings(config, num_gpu_blocks, token_budget),
            **_offload_settings(config, kv_cache_config),
        },
        "model": _model(config),
        "device": {"name": _or_none(_device_name)},
        "pool_blocks": num_gpu_blocks - 1,
        "host_pool_blocks": _host_blocks(config, kv_cache_config),
        "block_bytes": _block_bytes(config, kv_cache_config),
        "workload": {
            "name": f"live {model_name(config)} rank {rank}",
            "format": "vllm live",
            "estimated": False,
            "prefix_block_tokens": hash_block,
            "notes": [],
        },
        "seed": None,
        "not_recorded": sorted(not_recorded),
        "live": {
            "server": server_name(config),
            "data_parallel_rank": rank,
            "data_parallel_size": int(config.parallel_config.data_parallel_size),
            "tensor_parallel_size": int(config.parallel_config.tensor_parallel_size),
            "pipeline_parallel_size": int(config.parallel_config.pipeline_parallel_size),
            "started_utc": utc_stamp(unix_s),
            "started_unix_s": unix_s,
            "ids_hashed": settings.hash_ids,
            "prefix_ids_rekeyed": _hashes_can_be_guessed(config),
            "blocks_every_steps": settings.blocks,
            "kv_connector": getattr(config.kv_transfer_config, "kv_connector", None),
            "kv_cache_groups": len(kv_cache_config.kv_cache_groups),
            "speculative_tokens": int(getattr(config, "num_speculative_tokens", 0) or 0),
        },
        "software": {
            "kv_replay": VERSION,
            "vllm": vllm_version,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "pyarrow": pa.__version__,
        },
        "host": {"platform": sys.platform, "cpus": os.cpu_count(), "id": _host_id()},
        "vllm_baseline": vllm_version.split("+")[0],
    }


def engine_settings(config: Any, num_gpu_blocks: int, token_budget: int) -> dict[str, Any]:
    """The engine's settings under EngineSettings' names. config: VllmConfig."""
    s, cache = config.scheduler_config, config.cache_config
    return {
        "num_gpu_blocks": num_gpu_blocks,
        "block_size": int(cache.block_size),
        "gpu_memory_utilization": float(cache.gpu_memory_utilization),
        "max_num_seqs": int(s.max_num_seqs),
        "max_num_batched_tokens": int(token_budget),
        "max_model_len": int(config.model_config.max_model_len),
        "enable_prefix_caching": bool(cache.enable_prefix_caching),
        "enable_chunked_prefill": bool(s.enable_chunked_prefill),
        "long_prefill_token_threshold": int(getattr(s, "long_prefill_token_threshold", 0)),
        "policy": str(s.policy),
        "watermark": float(getattr(s, "watermark", 0.0)),
        "scheduler_reserve_full_isl": bool(getattr(s, "scheduler_reserve_full_isl", False)),
        "async_scheduling": bool(s.async_scheduling),
        "preemption_mode": preemption_mode(config),
        "tensor_parallel_size": int(config.parallel_config.tensor_parallel_size),
        "pipeline_parallel_size": int(config.parallel_config.pipeline_parallel_size),
        "kv_cache_dtype": str(cache.cache_dtype),
        "model": model_name(config),
    }


def _offload_settings(config: Any, kv_cache_config: Any) -> dict[str, Any]:
    """How vLLM's own CPU offload is set, where it is on."""
    transfer = config.kv_transfer_config
    connector = _CONNECTORS.get(getattr(transfer, "kv_connector", None) or "")
    if connector is None:
        return {}
    extra = transfer.kv_connector_extra_config or {}
    return {
        "offload_connector": connector,
        "offload_prompt_only": bool(extra.get("offload_prompt_only", True)),
        "lazy_offload": bool(extra.get("lazy_offload", False)),
        "num_host_blocks": _host_blocks(config, kv_cache_config),
    }


def model_name(config: Any) -> str:
    """Name on a hub as it is; of a path, the last part."""
    name = str(config.model_config.model).rstrip("/")
    is_path = name.startswith((".", "/", "~")) or name.count("/") > 1
    return name.rsplit("/", 1)[-1] if is_path else name


def _model(config: Any) -> dict[str, Any]:
    """Name, type and shape of the model, as far as its configuration says them."""
    found: dict[str, Any] = {"name": model_name(config)}
    text = getattr(config.model_config, "hf_text_config", None)
    kind = getattr(text, "model_type", None)
    found |= {"model_type": kind} if isinstance(kind, str) else {}
    for name in _NUMBERS:
        value = getattr(text, name, None)
        if isinstance(value, int):
            found[name] = value
    found["dtype"] = str(config.model_config.dtype).removeprefix("torch.")
    return found


def _block_bytes(config: Any, kv_cache_config: Any) -> int | None:
    """KV bytes of a block over all GPUs of the rank: of the group with most, for groups of layers
    share the pool, and a block belongs to one of them at a time."""

    def of_group(group: Any) -> int:
        spec = group.kv_cache_spec
        together = hasattr(spec, "kv_cache_specs")  # its pages are those of all its layers
        return int(spec.page_size_bytes) * (1 if together else len(group.layer_names))

    sizes = [of_group(g) for g in kv_cache_config.kv_cache_groups]
    return max(sizes) * int(config.parallel_config.tensor_parallel_size) if sizes else None


def _host_blocks(config: Any, kv_cache_config: Any) -> int | None:
    """Blocks that vLLM's own CPU offload may hold, where its size is set."""
    transfer = config.kv_transfer_config
    extra = getattr(transfer, "kv_connector_extra_config", None) or {}
    room, block = extra.get("cpu_bytes_to_use"), _block_bytes(config, kv_cache_config)
    return int(room) // block if room and block else None


def _hashes_can_be_guessed(config: Any) -> bool:
    """Whether somebody with a prompt could work out its block hashes: vLLM's first parent hash is
    random unless PYTHONHASHSEED is set, and xxhash is no cryptographic hash."""
    algorithm = str(getattr(config.cache_config, "prefix_caching_hash_algo", ""))
    return os.environ.get("PYTHONHASHSEED", "random") != "random" or "xxhash" in algorithm


def _host_id() -> str:
    return hashlib.blake2b(platform.node().encode(), digest_size=4).hexdigest()


def _device_name() -> str:
    from vllm.platforms import current_platform

    return str(current_platform.get_device_name())


def _or_none(ask: Callable[[], str]) -> str | None:
    try:
        return ask()
    except Exception:  # whatever a driver that is not there raises: the name is not needed
        return None
