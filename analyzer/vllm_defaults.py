"""Which settings of a run differ from what vLLM does when nobody sets them, as its flags.

It knows vLLM 0.26.0's defaults of the settings that a recording names. It does not know what a
setting does. Source: the flags' help of that version and `SchedulerConfig`'s choices by device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from traces.recording import Meta

VLLM = "0.26.0"
LARGE_DEVICE_BYTES = 70 * 2**30  # from here on, A100 left out, a server's batches are larger
# setting -> flag, default
_FLAGS: Mapping[str, tuple[str, Any]] = {
    "block_size": ("--block-size", 16),
    "gpu_memory_utilization": ("--gpu-memory-utilization", 0.92),
    "max_num_seqs": ("--max-num-seqs", None),
    "max_num_batched_tokens": ("--max-num-batched-tokens", None),
    "max_model_len": ("--max-model-len", None),
    "enable_prefix_caching": ("--enable-prefix-caching", True),
    "enable_chunked_prefill": ("--enable-chunked-prefill", True),
    "long_prefill_token_threshold": ("--long-prefill-token-threshold", 0),
    "policy": ("--scheduling-policy", "fcfs"),
    "watermark": ("--watermark", 0.0),
    "scheduler_reserve_full_isl": ("--scheduler-reserve-full-isl", True),
    "async_scheduling": ("--async-scheduling", True),
    "tensor_parallel_size": ("--tensor-parallel-size", 1),
    "pipeline_parallel_size": ("--pipeline-parallel-size", 1),
    "kv_cache_dtype": ("--kv-cache-dtype", "auto"),
}
# what vLLM has no flag for -> what it does
_OURS: Mapping[str, Any] = {"preemption_mode": "recompute", "victim": None, "compat": None}
_COPIES = ("copy_path", "copy_mode", "link_gb_per_s", "host_gib", "num_host_blocks")
_OFFLOAD = ("offload_connector", "offload_prompt_only", "lazy_offload")


@dataclass(frozen=True)
class Changed:
    """A setting that differs. name: vLLM's flag, or the setting's name where vLLM has none;
    value, default: as text, default "" where there is no usual value; is_flag: vLLM knows it."""

    name: str
    value: str
    default: str
    is_flag: bool

    def __str__(self) -> str:
        said = f"{self.name} {self.value}".rstrip()
        return f"{said} (default {self.default})" if self.default else said


def changed_settings(meta: Meta) -> list[Changed]:
    """The settings of a run that differ from vLLM's defaults; what it does not say is left out."""
    settings = meta.settings
    found = []
    for name, (flag, usual) in _FLAGS.items():
        value = settings.get(name)
        known = _by_device(name, meta) if usual is None else (usual,)
        if value is None or not known or value in known:
            continue
        found.append(_as_flag(flag, value, known))
    found += [
        Changed(name, _text(settings[name]), _text(usual) if usual else "", False)
        for name, usual in _OURS.items()
        if settings.get(name) not in (None, usual)
    ]
    return found + _of_copies(settings)


def _as_flag(flag: str, value: Any, known: tuple[Any, ...]) -> Changed:
    """A switch as vLLM spells it: --no-... where it is off."""
    if isinstance(value, bool):
        return Changed(flag if value else f"--no-{flag[2:]}", "", _text(known[0]), True)
    return Changed(flag, _text(value), " or ".join(map(_text, known)), True)


def _by_device(name: str, meta: Meta) -> tuple[Any, ...]:
    """Defaults that depend on device or model; all that may hold where the device is not known."""
    if name == "max_model_len":
        model = meta.get("model")
        length = model.get("max_model_len") if isinstance(model, Mapping) else None
        return (length,) if isinstance(length, int) and length > 0 else ()
    large, small = {"max_num_seqs": (1024, 256), "max_num_batched_tokens": (8192, 2048)}[name]
    device = meta.get("device")
    memory = device.get("memory_bytes") if isinstance(device, Mapping) else None
    if not isinstance(memory, int | float) or not isinstance(device, Mapping):
        return (large, small)
    is_large = memory >= LARGE_DEVICE_BYTES and "a100" not in str(device.get("name")).lower()
    return (large,) if is_large else (small,)


def _of_copies(settings: Mapping[str, Any]) -> list[Changed]:
    """How KV goes to the host, in the modes that take it there."""
    mode = settings.get("preemption_mode")
    names: tuple[str, ...] = ()
    if mode in ("swap", "cheapest"):
        names = _COPIES
    elif mode == "offload":
        names = (*_OFFLOAD, *(n for n in _COPIES if n != "copy_mode"))
    if settings.get("num_host_blocks") is not None:
        names = tuple(n for n in names if n != "host_gib")
    return [
        Changed(n, _text(settings[n]), "", False) for n in names if settings.get(n) is not None
    ]


def _text(value: Any) -> str:
    """As one types it: no thousands separators."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)
