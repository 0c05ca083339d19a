"""Pool sizes from memory: how many KV blocks a device, or host memory, has room for.

It repeats vLLM's sum: what `gpu_memory_utilization` of the device leaves after weights, the profiled
activation peak, CUDA graphs and what the driver and libraries take. It does not know time.
"""

from __future__ import annotations

from engine.devices import DeviceSpec
from engine.models import ModelShape, check_tp, kv_bytes_per_block
from engine.stages import stage_shapes, stage_weights_bytes
from traces.errors import SettingsError

GIB = 2**30
# Driver, libraries and communicators. Source: "non_torch_memory=0.35GiB" in the profiling line of a
# 24 GB card, vLLM issue 10517.
NON_TORCH_BYTES = 0.35 * GIB
# Captured graphs. Derived: what is missing to the 41,408-token pool of Llama-3.1-8B on a 24 GB card.
CUDA_GRAPH_BYTES = 0.45 * GIB
# fp32 logits, their sorted copy, sort indices (int64), probabilities and running sum, per logit.
SAMPLER_BYTES_PER_LOGIT = 24
LARGE_DEVICE_BYTES = (
    70 * GIB
)  # above it vLLM's default token budget of a server is 8192, below 2048


def default_token_budget(device: DeviceSpec) -> int:
    """vLLM's default max_num_batched_tokens of an API server on that device."""
    return 8192 if device.memory_bytes >= LARGE_DEVICE_BYTES else 2048


def activation_peak_bytes(
    model: ModelShape, max_num_batched_tokens: int, max_num_seqs: int, tp: int = 1
) -> float:
    """Peak activation memory of vLLM's profile run on each GPU: the larger of MLP and sampler.

    MLP: gate, up and their product (3 ffn) plus residual, input and output (3 hidden), 16 bits.
    Source: 0.92 GiB for 9,000 tokens more of an 8B model (vLLM issue 10517, peaks 17.06 and 17.98
    GiB) is 107 KiB a token; this formula gives 108.
    """
    dense = 3 * model.ffn / tp if model.num_moe_layers < model.num_layers else 0.0
    routed = (
        model.experts_per_token * (3 * model.expert_ffn / tp + model.hidden)
        + 3 * model.shared_ffn / tp
    )
    widest = max(dense, routed if model.is_moe else 0.0)
    mlp = max_num_batched_tokens * (widest + 3 * model.hidden) * 2.0
    sampler = (
        min(max_num_seqs, max_num_batched_tokens) * model.vocab * float(SAMPLER_BYTES_PER_LOGIT)
    )
    return max(mlp, sampler)


def pool_blocks(
    model: ModelShape,
    device: DeviceSpec,
    *,
    gpu_memory_utilization: float = 0.92,
    tp: int = 1,
    kv_dtype: str = "auto",
    weight_dtype: str = "auto",
    block_size: int = 16,
    max_num_batched_tokens: int | None = None,
    max_num_seqs: int = 256,
    activation_reserve_bytes: float | None = None,
    pp: int = 1,
) -> int:
    """vLLM's num_gpu_blocks, null block included: nominal blocks (`models.py`) per GPU, floored.

    activation_reserve_bytes: everything besides weights and KV on each GPU; None: activation peak
    + CUDA graphs + non-torch memory. pp: pipeline stages; each holds the weights and the KV of its own
    layers, the last one the sampler's memory too, and the pool is that of the tightest stage. Source:
    vLLM 0.26, `get_kv_cache_configs`: num_blocks is the smallest among all workers.

    Raises: SettingsError that says how much is missing and which tp would fit.
    """
    if not 0 < gpu_memory_utilization <= 1:
        raise SettingsError(
            f"gpu_memory_utilization {gpu_memory_utilization!r} must be above 0 and at most 1. vLLM's default is 0.92."
        )
    budget = max_num_batched_tokens or default_token_budget(device)
    shapes = stage_shapes(model, pp)
    block_bytes = [kv_bytes_per_block(shape, block_size, kv_dtype, tp) for shape in shapes]

    def left(tp_: int) -> list[float]:
        """Bytes for KV on a GPU of each stage."""
        found = []
        weights = stage_weights_bytes(model, pp, tp_, weight_dtype)
        for i, shape in enumerate(shapes):
            reserve = activation_reserve_bytes
            if reserve is None:
                rows = max_num_seqs if i == pp - 1 else 0
                peak = activation_peak_bytes(shape, budget, rows, tp_)
                reserve = peak + CUDA_GRAPH_BYTES + NON_TORCH_BYTES
            found.append(device.memory_bytes * gpu_memory_utilization - weights[i] - reserve)
        return found

    def missing(tp_: int) -> float:
        """Bytes that the tightest stage lacks for two blocks; negative if it has them."""
        return max(2 * b - room for b, room in zip(block_bytes, left(tp_), strict=True))

    num_blocks = min(int(room // b) for b, room in zip(block_bytes, left(tp), strict=True))
    if num_blocks < 2:  # one is the null block
        fits = next((t for t in _valid_tps(model) if t > tp and missing(t) <= 0), None)
        way = f"Use tp {fits}" if fits else "Use more or larger GPUs"
        stages = f" in {pp} stages" if pp > 1 else ""
        raise SettingsError(
            f"{model.name} does not fit on {tp * pp} x {device.name}{stages}: weights, activations and one KV block need "
            f"{missing(tp) / GIB:.1f} GiB more per GPU than {gpu_memory_utilization:g} of its {device.memory_bytes / GIB:.1f} GiB. "
            f"{way}, a smaller weight_dtype, or a higher gpu_memory_utilization."
        )
    return num_blocks


def host_blocks(
    model: ModelShape,
    host_gib: float,
    *,
    tp: int = 1,
    kv_dtype: str = "auto",
    block_size: int = 16,
) -> int:
    """Host blocks in `host_gib` GiB of host memory, all GPUs' shares of a block counted; 0 for 0 GiB."""
    if not 0 <= host_gib < float("inf"):
        raise SettingsError(f"host memory {host_gib!r} GiB must be 0 or more.")
    return int(host_gib * GIB // (kv_bytes_per_block(model, block_size, kv_dtype, tp) * tp))


def _valid_tps(model: ModelShape) -> list[int]:
    fits = []
    for tp in (1, 2, 4, 8, 16):
        try:
            check_tp(model, tp)
        except SettingsError:
            continue
        fits.append(tp)
    return fits
