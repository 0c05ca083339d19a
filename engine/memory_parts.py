"""What the memory of one device goes to: weights, activations, graphs, the KV pool.

It repeats the sum of `memory.py` term by term, for the device that has least room for KV. It knows no time.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import EngineSettings, resolve
from engine.memory import CUDA_GRAPH_BYTES, NON_TORCH_BYTES, activation_peak_bytes
from engine.models import kv_bytes_per_block
from engine.stages import stage_shapes, stage_weights_bytes


@dataclass(frozen=True)
class MemoryParts:
    """Bytes of one device: of the pipeline stage that has least room for KV, one of its tensor-parallel group.

    device_bytes: all of it; allowed_bytes: what gpu_memory_utilization lets vLLM use; weights, activation
    (peak of the profile run), graph, other (driver and libraries): what is taken before KV; kv_bytes: the
    pool, null block included; was_given: the pool was named, not derived, so that the sum need not come
    out. num_gpu_blocks, block_size, num_devices: of one replica.
    """

    device: str
    device_bytes: float
    allowed_bytes: float
    weights_bytes: float
    activation_bytes: float
    graph_bytes: float
    other_bytes: float
    kv_bytes: float
    was_given: bool
    num_gpu_blocks: int
    block_size: int
    num_devices: int

    @property
    def spare_bytes(self) -> float:
        """Allowed, and used for nothing; negative where a given pool is larger than our sum leaves."""
        return self.allowed_bytes - self.taken_bytes - self.kv_bytes

    @property
    def taken_bytes(self) -> float:
        """All that is taken before KV."""
        return self.weights_bytes + self.activation_bytes + self.graph_bytes + self.other_bytes


def memory_parts(settings: EngineSettings) -> MemoryParts:
    """The parts under these settings. Raises SettingsError, as `resolve` does."""
    told = resolve(settings)
    tp, pp = settings.tensor_parallel_size, settings.pipeline_parallel_size
    budget, seqs = told.rules.token_budget, told.rules.max_num_seqs
    weights = stage_weights_bytes(told.model, pp, tp, settings.weight_dtype)
    stages = []
    for i, shape in enumerate(stage_shapes(told.model, pp)):
        peak = activation_peak_bytes(shape, budget, seqs if i == pp - 1 else 0, tp)
        block = kv_bytes_per_block(shape, settings.block_size, settings.kv_cache_dtype, tp)
        stages.append((weights[i], peak, float(told.num_gpu_blocks * block)))
    weight, peak, kv = max(stages, key=sum)
    return MemoryParts(
        told.device.name,
        told.device.memory_bytes,
        told.device.memory_bytes * settings.gpu_memory_utilization,
        weight,
        peak,
        CUDA_GRAPH_BYTES,
        NON_TORCH_BYTES,
        kv,
        settings.num_gpu_blocks is not None or settings.kv_tokens is not None,
        told.num_gpu_blocks,
        settings.block_size,
        tp * pp,
    )
