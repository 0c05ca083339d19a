"""The flag line of a setting: what to paste behind `vllm serve MODEL`, and what has no such flag.

It knows vLLM 0.26.0's flags and this product's own. What a setting does is not known here. Source:
`vllm/engine/arg_utils.py` of that version.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analyzer.vllm_defaults import VLLM

NOT_IN_VLLM = f"not in vLLM {VLLM}"
SYNC = "--no-async-scheduling"
_VLLM = {
    "num_gpu_blocks": "--num-gpu-blocks-override",
    "gpu_memory_utilization": "--gpu-memory-utilization",
    "kv_cache_dtype": "--kv-cache-dtype",
    "tensor_parallel_size": "--tensor-parallel-size",
    "pipeline_parallel_size": "--pipeline-parallel-size",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "max_model_len": "--max-model-len",
    "watermark": "--watermark",
    "scheduler_reserve_full_isl": "--scheduler-reserve-full-isl",
    "enable_chunked_prefill": "--enable-chunked-prefill",
    "enable_prefix_caching": "--enable-prefix-caching",
    "async_scheduling": "--async-scheduling",
    "long_prefill_token_threshold": "--long-prefill-token-threshold",
    "block_size": "--block-size",
    "replicas": "--data-parallel-size",
}
# weight_dtype -> the flag of a server that reads 16-bit weights, or the checkpoint it needs
_WEIGHTS = {"fp8": "--quantization fp8", "int8": "--quantization int8_per_channel_weight_only",
            "int4": "--quantization awq_marlin", "mxfp4": "--quantization mxfp4",
            "bfloat16": "--dtype bfloat16", "float16": "--dtype float16", "float32": "--dtype float32"}  # fmt: skip
_OURS = {
    "num_gpu_blocks": "--num-gpu-blocks",
    "kv_cache_dtype": "--kv-dtype",
    "weight_dtype": "--weight-dtype",
    "tensor_parallel_size": "--tp",
    "pipeline_parallel_size": "--pp",
    "preemption_mode": "--preemption",
}
_OUR_SWITCHES = {
    "scheduler_reserve_full_isl": "--no-reserve-full-isl",
    "enable_chunked_prefill": "--no-chunked-prefill",
    "enable_prefix_caching": "--no-prefix-caching",
}
_NO_FLAG_OF_OURS = ("replicas", "router")
_NOTES = {
    "num_gpu_blocks": "overrides what vLLM measured: the memory must be there, or the server ends with out of memory",
    "gpu_memory_utilization": "vLLM checks it at the start and says so where the memory is not free",
    "device": "start the server on that device",
    "pipeline_parallel_size": "its times are a best case, a pipeline that is always full, and were held against no measured run "
    "(docs/cost-model.md): measure before you count on them",
    "replicas": "or as many servers behind a balancer; of a dense model, each has weights and a pool of its own",
    "router": "how a balancer shares requests out: no flag of the server",
    "rate_scale": "a limit in front of the server, or a part of the load elsewhere",
    "max_model_len": "vLLM refuses longer prompts and ends longer requests at that length",
    "victim": f"victim rules other than vLLM's own are {NOT_IN_VLLM}",
    "copy_path": f"how swapped blocks cross the link is {NOT_IN_VLLM}, which has no swap",
    "copy_mode": f"how a step waits for swapped blocks is {NOT_IN_VLLM}, which has no swap",
    "link_gb_per_s": "it is the machine's",
}
_MODES = {
    "swap": f"swap is {NOT_IN_VLLM}: its V0 had it, and the torch engine here runs it",
    "cheapest": f"cheapest of recompute and swap is {NOT_IN_VLLM}: the torch engine here runs it",
    "offload": "vLLM's CPU cache; with --async-scheduling (the default) 0.26.0 turns one failed allocation into many preemptions",
    "recompute": "what vLLM does without --kv-offloading-size",
}
_BY_VALUE = {
    "preemption_mode": _MODES,
    "weight_dtype": {
        "fp8": "made from 16-bit weights at the start",
        "int4": "needs an AWQ checkpoint of the model",
    },
}


def flag_of(name: str, value: Any, settings: Mapping[str, Any] | None = None) -> str:
    """vLLM's flag for a setting: '--max-num-seqs 128', '--no-enable-prefix-caching'; '' where it has none.

    settings: of the base and the other changes, for what hangs on them.
    """
    settings = settings or {}
    if name == "weight_dtype":
        return _WEIGHTS.get(value, "")
    if name == "preemption_mode":
        return _offloading(settings) if value == "offload" else ""
    if name == "host_gib":
        is_offload = settings.get("preemption_mode") == "offload"
        return _offloading({**settings, "host_gib": value}) if is_offload else ""
    if name == "victim":
        return "--scheduling-policy priority" if value == "priority" else ""
    flag = _VLLM.get(name)
    if flag is None or value is None:
        return ""
    if isinstance(value, bool):
        return flag if value else f"--no-{flag[2:]}"
    return f"{flag} {_text(value)}"


def flag_line(changes: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> str:
    """All flags of a change, to paste: '--kv-cache-dtype fp8 --max-num-seqs 64'; '' where there are none.

    What was found with the CPU cache and without asynchronous scheduling holds only so: vLLM has it on
    by default, and then preempts many for one failed allocation. So that is switched off at the end.
    """
    together = {**(settings or {}), **changes}
    flags = [
        flag_of(name, value, together).removesuffix(SYNC).strip()
        for name, value in changes.items()
    ]
    found = list(dict.fromkeys(f for f in flags if f))
    is_asked = changes.get("async_scheduling") is False
    if is_asked or (found and needs_sync(together)):
        found.append(SYNC)
    return " ".join(found)


def needs_sync(settings: Mapping[str, Any]) -> bool:
    """Whether what was simulated with these settings differs from what a server does that nobody told
    to schedule synchronously. Source: `AsyncScheduler` of vLLM 0.26.0, which defers frees beside a KV
    connector; mended later by its PR 49675. Without a connector the two preempt alike, within 2 %."""
    return settings.get("preemption_mode") == "offload" and not settings.get("async_scheduling")


def our_flags(changes: Mapping[str, Any]) -> str:
    """The same change as flags of `python -m engine simulate`; '' where there are none."""
    flags = []
    for name, value in changes.items():
        if name in _NO_FLAG_OF_OURS or value is None:
            continue
        if name in _OUR_SWITCHES:
            flags += [] if value else [_OUR_SWITCHES[name]]
        elif name == "async_scheduling":  # off unless it is asked for
            flags += ["--async-scheduling"] if value else []
        else:
            flag = _OURS.get(name, f"--{name.replace('_', '-')}")
            flags.append(f"{flag} {_text(value)}")
    return " ".join(flags)


def note_of(name: str, value: Any = None) -> str:
    """What has to be known beside the flag, or why there is none; '' for nothing."""
    if name in _BY_VALUE:
        return _BY_VALUE[name].get(value, "")
    if name == "host_gib":
        return "vLLM's size of its CPU cache; host memory for swap is " + NOT_IN_VLLM
    if name == "victim" and value in ("last", "priority"):
        return "vLLM's own rule"
    return _NOTES.get(name, "")


def routed(router: str) -> str:
    """How requests were shared out to replicas, in a note: what a run says holds for that rule."""
    return f"requests were shared out by the router rule {router}"


def is_in_vllm(name: str, value: Any, settings: Mapping[str, Any] | None = None) -> bool:
    """Whether a server of vLLM can be made to do this, by a flag, its own default, or from outside."""
    mode = (settings or {}).get("preemption_mode", "recompute")
    if name == "preemption_mode":
        return value in ("recompute", "offload")
    if name == "victim":
        return value in (None, "last", "priority")
    if name in ("copy_path", "copy_mode"):
        return False
    return name != "host_gib" or mode in ("recompute", "offload")


def _offloading(settings: Mapping[str, Any]) -> str:
    """The flags of vLLM's CPU cache; without asynchronous scheduling where the run had none."""
    flag = f"--kv-offloading-size {_text(settings.get('host_gib', 16.0))}"
    return flag if settings.get("async_scheduling") else f"{flag} {SYNC}"


def _text(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)
