"""Every lever that an operator has: what it is called, what it can be set to, and when it can do nothing.

A lever is a setting of the engine or a change of the load, under the name that changes are keyed by.
What a change does, a run says; which change is enough, `search.py` finds; its flag is in
`lever_flags.py`, its price in `lever_price.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from analyzer import lever_ladders as rungs
from analyzer.lever_facts import Facts
from analyzer.lever_flags import flag_line, flag_of, note_of
from analyzer.lever_ladders import Ladder
from traces.routing import ROUTERS

__all__ = [
    "GROUPS",
    "LEVERS",
    "Ladder",
    "Lever",
    "flag_line",
    "flag_of",
    "levers_of",
    "note_of",
]

GROUPS = (
    "Memory",
    "Machine",
    "Batch limits",
    "Admission and scheduling",
    "Preemption and host",
    "Load",
)
MODES = ("recompute", "swap", "offload", "cheapest")
VICTIMS = ("last", "fewest-computed", "most-blocks")


def _never(_: Facts) -> str:
    return ""


@dataclass(frozen=True)
class Lever:
    """One lever. name: its key in changes; kind: "whole", "fraction", "switch" or "choice" of words;
    unit: "" for none; help: one sentence; choices: values for a widget, low to high, the base's own among
    them; ladders: ways to go from the base, each searched by itself; idle: why it changes nothing at
    this base, "" where it may."""

    name: str
    label: str
    group: str
    kind: str
    unit: str
    help: str
    choices: Callable[[Facts], tuple[Any, ...]]
    ladders: Callable[[Facts], list[Ladder]]
    idle: Callable[[Facts], str] = _never

    def base(self, facts: Facts) -> Any:
        """What it is set to at the base, defaults filled in."""
        derived = {
            "num_gpu_blocks": facts.num_gpu_blocks,
            "max_num_seqs": facts.max_num_seqs,
            "max_num_batched_tokens": facts.max_num_batched_tokens,
            "max_model_len": facts.max_model_len,
            "link_gb_per_s": facts.link_gb_per_s,
            "rate_scale": 1.0,
            "replicas": 1,
            "router": ROUTERS[0],
        }
        if self.name == "victim" and facts.settings.get("victim") is None:
            return "priority" if facts.settings.get("policy") == "priority" else "last"
        return derived.get(self.name, facts.settings.get(self.name))


def _with_base(name: str, values: Callable[[Facts], tuple[Any, ...]]) -> Any:
    """Choices of a widget: the values and the base's own, sorted."""

    def choices(f: Facts) -> tuple[Any, ...]:
        return tuple(sorted({*values(f), LEVERS[name].base(f)}))

    return choices


def _words(*words: str) -> Callable[[Facts], tuple[Any, ...]]:
    return lambda _: words


def _switch(name: str) -> dict[str, Any]:
    return {
        "kind": "switch",
        "unit": "",
        "choices": lambda _: (False, True),
        "ladders": lambda f: [rungs.any_of((not f.settings[name],))],
    }


def _others(name: str, values: tuple[str, ...]) -> Callable[[Facts], list[Ladder]]:
    return lambda f: [rungs.any_of(tuple(v for v in values if v != LEVERS[name].base(f)))]


def _copies_nothing(f: Facts) -> str:
    mode = f.settings["preemption_mode"]
    return "" if mode in rungs.COPYING else f"in {mode} mode nothing is copied to the host"


def _swaps_nothing(f: Facts) -> str:
    mode = f.settings["preemption_mode"]
    if mode == "offload":
        return "offload always copies beside the steps"
    return "" if mode in ("swap", "cheapest") else f"in {mode} mode nothing is swapped"


def _pool_choices(f: Facts) -> tuple[Any, ...]:
    shares = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.05, 1.1, 1.15, 1.2, 1.25,
              1.3, 1.4, 1.5, 1.75, 2, 2.5, 3, 4, 6, 8)  # fmt: skip
    return tuple(max(2, round(f.num_gpu_blocks * s)) for s in shares)


def _shared_out(f: Facts) -> str:
    return "one replica shares nothing out"


def _closed(f: Facts) -> str:
    return "requests come as others leave (a closed loop), not at a rate" if f.rate_rps is None and f.is_closed_loop else _at_once(f)  # fmt: skip


def _at_once(f: Facts) -> str:
    return "" if f.span_s > 0 else "all requests arrive at once"


def _lever(name: str, label: str, group: int, **more: Any) -> Lever:
    return Lever(name=name, label=label, group=GROUPS[group], **more)


_ALL = (
    _lever(
        "num_gpu_blocks", "KV pool", 0, kind="whole", unit="blocks",
        help="KV blocks on each replica, vLLM's null block included.",
        choices=_with_base("num_gpu_blocks", _pool_choices), ladders=rungs.larger_pools,
    ),
    _lever(
        "gpu_memory_utilization", "GPU memory utilisation", 0, kind="fraction", unit="",
        help="Share of the device's memory that vLLM may use; what weights and activations leave is the pool.",
        choices=_with_base("gpu_memory_utilization", lambda _: tuple(i / 100 for i in range(50, 99))),
        ladders=rungs.higher_utilization,
    ),
    _lever(
        "kv_cache_dtype", "KV cache type", 0, kind="choice", unit="",
        help="fp8 stores a token's KV in half the bytes, so that twice as many fit.",
        choices=_words("auto", "fp8"), ladders=rungs.kv_dtypes,
    ),
    _lever(
        "weight_dtype", "Weight type", 0, kind="choice", unit="",
        help="Smaller weights leave more memory for KV, and are read faster.",
        choices=_words("auto", "fp8", "int4"), ladders=rungs.weight_dtypes,
    ),
    _lever(
        "block_size", "Block size", 0, kind="whole", unit="tokens",
        help="Tokens of a KV block: smaller ones waste less at a request's end.",
        choices=_with_base("block_size", lambda _: rungs.BLOCK_SIZES), ladders=rungs.block_sizes,
    ),
    _lever(
        "tensor_parallel_size", "Tensor parallel", 1, kind="whole", unit="GPUs",
        help="GPUs that share every layer: each holds a part of weights and KV.",
        choices=_with_base("tensor_parallel_size", lambda f: f.tensor_parallel_sizes),
        ladders=rungs.tensor_sizes,
    ),
    _lever(
        "pipeline_parallel_size", "Pipeline parallel", 1, kind="whole", unit="stages",
        help="Stages that the layers are dealt out to, each with GPUs of its own.",
        choices=_with_base("pipeline_parallel_size", lambda f: f.pipeline_parallel_sizes),
        ladders=rungs.pipeline_sizes,
    ),
    _lever(
        "device", "Device", 1, kind="choice", unit="",
        help="Another GPU, with its own memory, speed and link.",
        choices=lambda f: tuple(dict.fromkeys((*f.devices, f.settings["device"]))),
        ladders=rungs.bigger_devices,
    ),
    _lever(
        "max_num_seqs", "Most requests at once", 2, kind="whole", unit="requests",
        help="No more than so many run at a time; fewer leave each more room to grow.",
        choices=_with_base("max_num_seqs", lambda _: (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)),
        ladders=rungs.concurrency,
    ),
    _lever(
        "max_num_batched_tokens", "Token budget of a step", 2, kind="whole", unit="tokens",
        help="Most tokens a step computes: large ones finish prompts sooner, small ones hold decoding up less.",
        choices=_with_base("max_num_batched_tokens", lambda _: (256, 512, 1024, 2048, 4096, 8192, 16384, 32768)),
        ladders=rungs.batched_tokens,
    ),
    _lever(
        "max_model_len", "Longest request", 2, kind="whole", unit="tokens",
        help="Prompt and output together. It reserves nothing: vLLM takes blocks as tokens come.",
        choices=_with_base("max_model_len", lambda _: (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)),
        ladders=rungs.model_lengths,
    ),
    _lever(
        "watermark", "Watermark", 3, kind="fraction", unit="",
        help="Share of the pool that stays free when a request is admitted, for those that run to grow into.",
        choices=_with_base("watermark", lambda _: (0.0, *rungs.WATERMARKS)), ladders=rungs.watermarks,
    ),
    _lever(
        "scheduler_reserve_full_isl", "Full-prompt gate", 3,
        help="Admit a request only when its whole prompt fits now, not merely its first chunk.",
        **_switch("scheduler_reserve_full_isl"),
    ),
    _lever(
        "enable_chunked_prefill", "Chunked prefill", 3,
        help="Prompts may be computed in parts, beside the decoding of others.",
        **_switch("enable_chunked_prefill"),
    ),
    _lever(
        "async_scheduling", "Asynchronous scheduling", 3,
        help="A step is decided while the one before runs. vLLM has it on; it needs blocks a step earlier.",
        **_switch("async_scheduling"),
    ),
    _lever(
        "long_prefill_token_threshold", "Long-prefill threshold", 3, kind="whole", unit="tokens",
        help="Most tokens of one prompt in a step; 0: no limit.",
        choices=_with_base("long_prefill_token_threshold", lambda _: (0, 128, 256, 512, 1024, 2048, 4096)),
        ladders=rungs.thresholds,
    ),
    _lever(
        "enable_prefix_caching", "Prefix caching", 3,
        help="Equal beginnings of prompts, and what a preempted request had, are found again while they are not overwritten.",
        **_switch("enable_prefix_caching"),
    ),
    _lever(
        "preemption_mode", "Preemption mode", 4, kind="choice", unit="",
        help="What becomes of a preempted request's KV.",
        choices=_words(*MODES), ladders=_others("preemption_mode", MODES),
    ),
    _lever(
        "victim", "Victim rule", 4, kind="choice", unit="",
        help="Which running request is preempted.",
        choices=lambda f: VICTIMS + (("priority",) if f.settings["policy"] == "priority" else ()),
        ladders=_others("victim", VICTIMS),
    ),
    _lever(
        "host_gib", "Host memory for KV", 4, kind="fraction", unit="GiB",
        help="Room for swapped requests, or for the host's block cache of offload.",
        choices=_with_base("host_gib", lambda _: (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)),
        ladders=rungs.host_memory, idle=_copies_nothing,
    ),
    _lever(
        "copy_path", "Copy path", 4, kind="choice", unit="",
        help="How blocks cross the link: one by one, in one call, or neighbours together.",
        choices=_words("loop", "batch", "coalesced"), ladders=_others("copy_path", ("batch", "coalesced")),
        idle=_copies_nothing,
    ),
    _lever(
        "copy_mode", "Copy mode", 4, kind="choice", unit="",
        help="Whether a step waits for the copies of swaps.",
        choices=_words("blocking", "async"), ladders=_others("copy_mode", ("blocking", "async")), idle=_swaps_nothing,
    ),
    _lever(
        "link_gb_per_s", "Host link", 4, kind="fraction", unit="GB/s",
        help="Speed of large copies to and from the host, each way, in 1e9 bytes.",
        choices=_with_base("link_gb_per_s", lambda _: rungs.LINKS_GB_PER_S), ladders=rungs.links, idle=_copies_nothing,
    ),
    _lever(
        "rate_scale", "Arrival rate", 5, kind="fraction", unit="×",
        help="The same requests, arriving so many times as fast.",
        choices=_with_base("rate_scale", lambda _: tuple(round(i / 20, 2) for i in range(2, 61))),
        ladders=rungs.lower_rates, idle=_closed,
    ),
    _lever(
        "replicas", "Replicas", 5, kind="whole", unit="servers",
        help="Servers that share the requests, each with a pool of its own.",
        choices=lambda _: tuple(range(1, rungs.MOST_REPLICAS + 1)), ladders=rungs.replicas,
    ),
    _lever(
        "router", "Router", 5, kind="choice", unit="",
        help="How replicas share the requests out.",
        choices=_words(*ROUTERS), ladders=lambda _: [], idle=_shared_out,
    ),
)  # fmt: skip

LEVERS: Mapping[str, Lever] = {lever.name: lever for lever in _ALL}
LOAD = ("rate_scale", "replicas", "router")  # changes that are no setting of the engine


def levers_of(facts: Facts) -> list[Lever]:
    """The levers that this base has, in the order of the catalogue."""
    return [lv for lv in _ALL if lv.name in LOAD or lv.name in facts.settings]
