"""How many KV blocks a device has room for: measured, in vLLM's order and with vLLM's sum.

A share of the device's memory (gpu_memory_utilization) is asked for. What weights, the activation peak
of a step with the whole token budget, the growth of memory outside torch (libraries, kernels) and CUDA
graphs take is measured; the rest is KV. The module knows bytes; `engine.memory` makes the same sum
from a model's shape where there is no device.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from engine.gpu.host_memory import gib
from traces.errors import SettingsError


class MemorySnapshot(NamedTuple):
    """A device's memory at one moment, in bytes: free and total of the device, allocated to tensors,
    reserved by torch's allocator, and the most that was allocated since the last reset."""

    free_bytes: int
    total_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    peak_bytes: int

    @property
    def non_torch_bytes(self) -> int:
        """Used on the device and not by this process's torch: libraries, context, other processes."""
        return self.total_bytes - self.free_bytes - self.reserved_bytes


class MemorySource(Protocol):
    """Where snapshots come from. settle() ends what is under way and gives unused memory back."""

    name: str

    def take(self) -> MemorySnapshot: ...
    def settle(self) -> None: ...
    def reset_peak(self) -> None: ...


class CudaMemory:
    """The memory of one CUDA device as driver and allocator report it."""

    def __init__(self, device: Any) -> None:
        self.device = torch.device(device)
        self.name = f"{self.device} ({torch.cuda.get_device_name(self.device)})"

    def take(self) -> MemorySnapshot:
        free, total = torch.cuda.mem_get_info(self.device)
        return MemorySnapshot(
            free,
            total,
            torch.cuda.memory_allocated(self.device),
            torch.cuda.memory_reserved(self.device),
            torch.cuda.max_memory_allocated(self.device),
        )

    def settle(self) -> None:
        torch.cuda.synchronize(self.device)
        gc.collect()
        torch.cuda.empty_cache()

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)


class MemoryProfile(NamedTuple):
    """Where the requested bytes go. kv_bytes: what is left for blocks, num_blocks of them."""

    total_bytes: int
    requested_bytes: int
    weights_bytes: int
    activation_peak_bytes: int
    non_torch_bytes: int
    reserve_bytes: int
    kv_bytes: int
    num_blocks: int

    def __str__(self) -> str:
        return (
            f"{gib(self.requested_bytes)} of {gib(self.total_bytes)} GiB: weights {gib(self.weights_bytes)}, "
            f"activation peak {gib(self.activation_peak_bytes)}, outside torch {gib(self.non_torch_bytes)}, "
            f"reserve {gib(self.reserve_bytes)}, KV {gib(self.kv_bytes)} ({self.num_blocks:,} blocks)"
        )


def start_profile(source: MemorySource, gpu_memory_utilization: float) -> MemorySnapshot:
    """The memory before the weights are loaded; refuses at once what can never be had.

    Raises: SettingsError for a share that is none, or one larger than what is free.
    """
    share = gpu_memory_utilization
    if not 0 < share <= 1:
        raise SettingsError(
            f"gpu_memory_utilization {share!r} must be above 0 and at most 1. vLLM's default is 0.92."
        )
    source.settle()
    source.reset_peak()
    start = source.take()
    wanted = int(start.total_bytes * share)
    if start.free_bytes + start.reserved_bytes < wanted:
        fits = int(100 * (start.free_bytes + start.reserved_bytes) / start.total_bytes) / 100
        raise SettingsError(
            f"gpu_memory_utilization {share:g} asks for {gib(wanted)} GiB of {source.name}, of which only "
            f"{gib(start.free_bytes)} of {gib(start.total_bytes)} GiB are free. End what else uses it, or set "
            f"--gpu-memory-utilization to {fits:g} or less."
        )
    return start


def profile_memory(
    source: MemorySource,
    start: MemorySnapshot,
    run: Callable[[], object],
    *,
    block_bytes: int,
    gpu_memory_utilization: float,
    max_num_batched_tokens: int,
    reserve_bytes: int = 0,
) -> MemoryProfile:
    """Run one full step and count the blocks that fit beside what it needs.

    source, start: as start_profile used and returned them; run: computes a step of
    max_num_batched_tokens tokens, without KV, logits and sampling included; the weights are loaded.
    block_bytes: KV bytes of one block; reserve_bytes: kept for what comes later (CUDA graphs).

    Raises: SettingsError where the step or one block does not fit, or somebody else gave memory back
    meanwhile, so that the sum would be wrong.
    Source: vLLM's Worker.determine_available_memory (requested - weights - torch peak - growth outside torch).
    """
    source.settle()
    loaded = source.take()
    source.reset_peak()
    try:
        run()
    except torch.OutOfMemoryError as fault:
        raise SettingsError(
            f"a step of {max_num_batched_tokens:,} tokens does not fit on {source.name} beside "
            f"{gib(loaded.allocated_bytes)} GiB of weights. Lower --max-num-batched-tokens or --max-num-seqs."
        ) from fault
    peak = source.take().peak_bytes
    source.settle()
    after = source.take()
    if after.free_bytes + after.reserved_bytes > start.free_bytes + start.reserved_bytes:
        raise SettingsError(
            f"{source.name}: free memory grew while it was measured, so another program gave some back. "
            "Start again once it is quiet, or give the pool's size with --num-gpu-blocks."
        )
    weights = loaded.allocated_bytes - start.allocated_bytes
    activation = peak - loaded.allocated_bytes
    outside = max(0, after.non_torch_bytes - start.non_torch_bytes)
    requested = int(start.total_bytes * gpu_memory_utilization)
    left = requested - weights - activation - outside - reserve_bytes
    profile = MemoryProfile(
        start.total_bytes,
        requested,
        weights,
        activation,
        outside,
        reserve_bytes,
        max(0, left),
        max(0, left) // block_bytes,
    )
    if profile.num_blocks < 1:
        raise SettingsError(
            f"{source.name} has no room for one KV block of {block_bytes:,} bytes: {gib(weights)} GiB of weights, "
            f"{gib(activation)} GiB of activations of {max_num_batched_tokens:,} tokens, {gib(outside)} GiB outside "
            f"torch and {gib(reserve_bytes)} GiB in reserve, of {gib(requested)} GiB requested. Raise "
            "--gpu-memory-utilization, lower --max-num-batched-tokens, or take a smaller model or --dtype."
        )
    return profile
