"""Whether a vLLM server would start with a pool: it wants room for one request of max_model_len.

It knows sizes after `resolve`. A simulation runs all the same: requests that do not fit are refused
one by one. Source: `check_enough_kv_cache_memory` in `vllm/v1/core/kv_cache_utils.py` of 0.26.0,
which counts the null block as room.
"""

from __future__ import annotations

import warnings

from engine.config import EngineSettings, resolve


def start_note(settings: EngineSettings, concurrency: int | None = None) -> str:
    """Why vLLM would refuse to start with these settings, and the longest max_model_len that it takes
    with every token of it in usable blocks; "" where it starts. Raises SettingsError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the run itself says them
        found = resolve(settings, concurrency=concurrency)
    length, size = found.rules.max_model_len, settings.block_size
    needed = -(-length // size)
    if needed <= found.num_gpu_blocks:
        return ""
    usable = found.num_gpu_blocks - 1
    return (
        f"vLLM would refuse to start: max_model_len {length:,} needs {needed:,} KV blocks of {size} tokens, "
        f"the pool has {usable:,}; set --max-model-len {usable * size} or less"
    )
