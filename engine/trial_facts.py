"""What a base run is made of, in plain values, so that changes to it can be thought of.

It knows settings, models and devices. It does not know what a change is for, and runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from engine.config import EngineSettings, resolve
from engine.devices import known_devices, load_device
from engine.models import KV_DTYPE_BYTES, WEIGHT_DTYPE_BYTES, check_tp
from engine.stages import check_pp
from traces.errors import SettingsError

SIZES = (1, 2, 4, 8, 16)
SMALLER_WEIGHTS = ("fp8", "int4")
SMALLER_KV = ("fp8",)


def machine_facts(settings: EngineSettings, concurrency: int | None = None) -> dict[str, Any]:
    """The fields of the analyzer's `Facts` that settings, model and device decide.

    concurrency: of a closed loop. Raises SettingsError.
    """
    found = resolve(settings, concurrency=concurrency)
    model, device, rules = found.model, found.device, found.rules
    weights = WEIGHT_DTYPE_BYTES[
        model.weight_dtype if settings.weight_dtype == "auto" else settings.weight_dtype
    ]
    kv = KV_DTYPE_BYTES[settings.kv_cache_dtype]
    memory = {name: load_device(name, warn=False).memory_bytes for name in known_devices()}
    return {
        "settings": asdict(settings),
        "num_gpu_blocks": found.num_gpu_blocks,
        "block_bytes": found.block_bytes,
        "max_num_seqs": rules.max_num_seqs,
        "max_num_batched_tokens": rules.token_budget,
        "max_model_len": rules.max_model_len,
        "num_gpus": settings.tensor_parallel_size * settings.pipeline_parallel_size,
        "device": device.name,
        "gpu_memory_bytes": device.memory_bytes,
        "devices": dict(sorted(memory.items(), key=lambda item: (item[1], item[0]))),
        "weight_dtypes": tuple(d for d in SMALLER_WEIGHTS if WEIGHT_DTYPE_BYTES[d] < weights),
        "kv_dtypes": tuple(d for d in SMALLER_KV if KV_DTYPE_BYTES[d] < kv),
        "tensor_parallel_sizes": _that_fit(lambda n: check_tp(model, n)),
        "pipeline_parallel_sizes": _that_fit(lambda n: check_pp(model, n)),
        "link_gb_per_s": device.link_in_bytes_per_s / 1e9,
    }


def _that_fit(check: Callable[[int], object]) -> tuple[int, ...]:
    """The sizes that a check lets pass."""
    fit = []
    for size in SIZES:
        try:
            check(size)
        except SettingsError:
            continue
        fit.append(size)
    return tuple(fit)
