"""What levers start from: the settings of a run, the machine it is on, and the lengths it is asked.

It holds plain values. What the machine's are, the engine says (`engine/trial_facts.py`); what a lever
makes of them is in `levers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from traces.workload import Workload


@dataclass(frozen=True, eq=False)
class Facts:
    """The base that changes are made to.

    settings: every setting of the base by its name; num_gpu_blocks: of the base, null block included;
    block_bytes: of a block over all GPUs; max_num_seqs, max_num_batched_tokens, max_model_len: as they
    come out; num_gpus: of one replica; device, gpu_memory_bytes: of each; devices: preset -> memory in
    bytes, ascending; weight_dtypes, kv_dtypes: smaller ones than the base's, larger first;
    tensor_parallel_sizes, pipeline_parallel_sizes: all that the model can be split into;
    link_gb_per_s: of the host link, in 1e9 bytes; prompt_tokens, total_tokens: of each request, (n,),
    int64, total with its output; span_s: first to last arrival; is_closed_loop: who arrives is decided
    by who leaves; max_running: most requests that ran at once in the base, None before it has run.
    """

    settings: Mapping[str, Any]
    num_gpu_blocks: int
    block_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    num_gpus: int
    device: str
    gpu_memory_bytes: float
    devices: Mapping[str, float]
    weight_dtypes: tuple[str, ...]
    kv_dtypes: tuple[str, ...]
    tensor_parallel_sizes: tuple[int, ...]
    pipeline_parallel_sizes: tuple[int, ...]
    link_gb_per_s: float
    prompt_tokens: np.ndarray
    total_tokens: np.ndarray
    span_s: float
    is_closed_loop: bool
    max_running: int | None = None

    @property
    def block_size(self) -> int:
        return int(self.settings["block_size"])

    @property
    def num_requests(self) -> int:
        return len(self.total_tokens)

    @property
    def longest_tokens(self) -> int:
        """Tokens of the longest request, its output included."""
        return int(self.total_tokens.max())

    @property
    def rate_rps(self) -> float | None:
        """Arrivals per second; None where all come at once or the loop is closed."""
        if self.is_closed_loop or self.span_s <= 0:
            return None
        return self.num_requests / self.span_s

    def block_bytes_with(self, changes: Mapping[str, Any]) -> float:
        """Bytes of a block over all GPUs under changes."""
        half = 0.5 if "kv_cache_dtype" in changes and self.kv_dtypes else 1.0
        size = changes.get("block_size", self.block_size) / self.block_size
        return float(self.block_bytes * half * size)

    def blocks_of(self, tokens: np.ndarray) -> np.ndarray:
        """Blocks that so many tokens take, elementwise. (n,), int64."""
        return -(-tokens // self.block_size)

    def blocks_of_all(self) -> int:
        """A pool, null block included, in which all that may run at once has room to its end."""
        blocks = np.sort(self.blocks_of(self.total_tokens))
        return int(blocks[-self.max_num_seqs :].sum()) + 1


def facts_of(workload: Workload, machine: Mapping[str, Any]) -> Facts:
    """Facts of a workload on a machine. machine: as from `engine.trial_facts.machine_facts`."""
    prompt = workload.table["prompt_tokens"].to_numpy()
    output = workload.table["output_tokens"].to_numpy()
    return Facts(
        **machine,
        prompt_tokens=prompt,
        total_tokens=prompt + output,
        span_s=workload.span_s,
        is_closed_loop=workload.concurrency is not None,
    )
