"""The engine settings that the panel offers: names, labels, help and what a person may choose.

What a setting does, and whether values fit together, is the engine's business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Kind = Literal["int", "float", "bool", "choice"]


@dataclass(frozen=True)
class Setting:
    """One engine setting. name: the engine's and vLLM's; optional: an empty field means None;
    choices: of kind "choice"; least, greatest: bounds of a number; notes: choice -> what to add to it."""

    name: str
    label: str
    kind: Kind
    help: str
    choices: tuple[Any, ...] = ()
    optional: bool = False
    least: float | None = None
    greatest: float | None = None
    step: float | None = None
    notes: Mapping[str, str] = field(default_factory=dict)


FIRST = (
    Setting(
        "model",
        "Model",
        "choice",
        "Shape of the model: sets KV bytes per token and the cost of a step.",
    ),
    Setting("device", "Device", "choice", "GPU preset: compute, memory and link speed."),
    Setting(
        "num_gpu_blocks",
        "Pool in blocks",
        "int",
        "`num_gpu_blocks`, the null block counted as vLLM does. Empty: from tokens or GPU memory.",
        optional=True,
        least=2,
        step=100,
    ),
    Setting(
        "kv_tokens",
        "Pool in tokens",
        "int",
        "Tokens that fit into the KV pool. Empty: from GPU memory. Blocks, where given, come first.",
        optional=True,
        least=16,
        step=1000,
    ),
)
POOL = (
    Setting(
        "gpu_memory_utilization",
        "GPU memory utilization",
        "float",
        "`gpu_memory_utilization`: what the pool is sized from when neither blocks nor tokens are given.",
        least=0.05,
        greatest=1.0,
        step=0.01,
    ),
    Setting(
        "block_size",
        "Block size (tokens)",
        "choice",
        "`block_size`: tokens per KV block.",
        choices=(1, 8, 16, 32, 64, 128),
    ),
    Setting(
        "watermark",
        "Watermark",
        "float",
        "Share of the pool that an admission must leave free.",
        least=0.0,
        greatest=0.9,
        step=0.01,
    ),
)
MACHINE = (
    Setting(
        "tensor_parallel_size",
        "Tensor parallel size",
        "choice",
        "`tensor_parallel_size`: GPUs that share each layer.",
        choices=(1, 2, 4, 8, 16),
    ),
    Setting(
        "kv_cache_dtype",
        "KV cache type",
        "choice",
        "`kv_cache_dtype`: auto keeps the model's own, fp8 halves it.",
        choices=("auto", "fp8"),
    ),
    Setting(
        "weight_dtype",
        "Weight type",
        "choice",
        "Type of the linear layers' weights: auto keeps the model's own.",
        choices=("auto", "fp8", "int8", "int4"),
    ),
    Setting(
        "pipeline_parallel_size",
        "Pipeline stages",
        "int",
        "`pipeline_parallel_size`: stages that the layers are dealt out to.",
        least=1,
        step=1,
    ),
    Setting(
        "link_gb_per_s",
        "Link bandwidth (GB/s)",
        "float",
        "Between GPU and host, each way, for large copies. Empty: the device's.",
        optional=True,
        least=0.1,
        step=1.0,
    ),
)
SCHEDULER = (
    Setting(
        "policy",
        "Policy",
        "choice",
        "Order of admission: first come first served, or by priority.",
        choices=("fcfs", "priority"),
    ),
    Setting(
        "max_num_seqs",
        "Max running requests",
        "int",
        "`max_num_seqs`.",
        optional=True,
        least=1,
        step=16,
    ),
    Setting(
        "max_num_batched_tokens",
        "Token budget per step",
        "int",
        "`max_num_batched_tokens`.",
        optional=True,
        least=1,
        step=512,
    ),
    Setting(
        "max_model_len",
        "Longest request (tokens)",
        "int",
        "`max_model_len`: prompt and output together. Empty: the model's.",
        optional=True,
        least=2,
        step=1024,
    ),
    Setting(
        "enable_prefix_caching",
        "Prefix caching",
        "bool",
        "`enable_prefix_caching`: reuse KV of equal prompt prefixes.",
    ),
    Setting(
        "enable_chunked_prefill",
        "Chunked prefill",
        "bool",
        "`enable_chunked_prefill`: a prompt may be computed over several steps.",
    ),
    Setting(
        "scheduler_reserve_full_isl",
        "Full-prompt gate",
        "bool",
        "`scheduler_reserve_full_isl`: a request is admitted only when its whole prompt fits, not its first chunk.",
    ),
    Setting(
        "long_prefill_token_threshold",
        "Long prefill threshold (tokens)",
        "int",
        "`long_prefill_token_threshold`: most prompt tokens of one request per step; 0 switches it off.",
        least=0,
        step=256,
    ),
    Setting(
        "async_scheduling",
        "Asynchronous scheduling",
        "bool",
        "`async_scheduling`: a step is scheduled before the last one's tokens are known.",
    ),
)
PREEMPTION = (
    Setting(
        "victim",
        "Victim rule",
        "choice",
        "Which running request loses its blocks. vLLM: last (priority under the priority policy).",
        choices=("last", "priority", "fewest-computed", "most-blocks"),
        optional=True,
        notes={"priority": "needs policy priority"},
    ),
    Setting(
        "host_gib",
        "Host memory (GiB)",
        "float",
        "Swap, cheapest: room for the KV of swapped requests; full: the victim is recomputed. Offload: capacity of the host cache; full: the block used longest ago goes.",
        least=0.0,
        step=1.0,
    ),
    Setting(
        "num_host_blocks",
        "Host memory in blocks",
        "int",
        "The same in blocks. Empty: from GiB.",
        optional=True,
        least=0,
        step=1000,
    ),
    Setting(
        "copy_path",
        "Copy path",
        "choice",
        "loop: one small copy per block and layer (vLLM V0); batch: one call for all; coalesced: one copy per block.",
        choices=("loop", "batch", "coalesced"),
    ),
    Setting(
        "copy_mode",
        "Copies",
        "choice",
        "Swap, cheapest. blocking: the step waits for copies; async: they overlap, freed blocks are fenced until done.",
        choices=("blocking", "async"),
    ),
)
OFFLOAD = (
    Setting(
        "offload_connector",
        "Connector",
        "choice",
        "vLLM's connectors that keep KV on the host. native: OffloadingConnector; simple: SimpleCPUOffloadConnector.",
        choices=("native", "simple"),
    ),
    Setting(
        "offload_prompt_only",
        "Prompt blocks only",
        "bool",
        "`offload_prompt_only` of the native connector: blocks of generated tokens are not copied out.",
    ),
    Setting(
        "lazy_offload",
        "Copy out late",
        "bool",
        "`lazy_offload` of the simple connector: a block is copied out when it is about to be given away, not when it fills.",
    ),
)
MODES: Mapping[str, str] = {
    "recompute": "its KV is dropped, and computed again when it returns (vLLM)",
    "swap": "its KV is copied to the host and back (vLLM V0)",
    "offload": "its KV is dropped, and loaded from a host cache to which every block was copied as it filled (vLLM with an offloading connector)",
    "cheapest": "recompute or swap, for each victim what is estimated to cost the engine less",
}
USUAL_PAIR = ("recompute", "swap")
# Beside FIRST, which is always in sight.
GROUPS: Mapping[str, Sequence[Setting]] = {
    "KV pool": POOL,
    "Preemption": PREEMPTION,
    "Offload": OFFLOAD,
    "Scheduler": SCHEDULER,
    "Machine": MACHINE,
}
ALL = (*FIRST, *(setting for group in GROUPS.values() for setting in group))
