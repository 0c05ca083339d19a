"""Counting KV blocks from measured memory, with a device that exists on paper."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from engine.gpu.memory_profile import (
    MemoryProfile,
    MemorySnapshot,
    profile_memory,
    start_profile,
)
from traces.errors import SettingsError

MIB = 2**20


class PaperDevice:
    """1,000 MiB, of which a context outside torch takes 100 from the start."""

    name = "cuda:0 (Paper 1000)"

    def __init__(self) -> None:
        self.outside = 100
        self.allocated = 0
        self.cached = 0
        self.peak = 0

    def allocate(self, mib: int) -> None:
        self.allocated += mib
        self.peak = max(self.peak, self.allocated)

    def release(self, mib: int) -> None:
        self.allocated -= mib
        self.cached += mib

    def take(self) -> MemorySnapshot:
        reserved = self.allocated + self.cached
        free = 1000 - self.outside - reserved
        return MemorySnapshot(
            *(n * MIB for n in (free, 1000, self.allocated, reserved, self.peak))
        )

    def settle(self) -> None:
        self.cached = 0

    def reset_peak(self) -> None:
        self.peak = self.allocated


def profile(
    device: PaperDevice, run: Callable[[], object], share: float = 0.8, weights: int = 300
) -> MemoryProfile:
    start = start_profile(device, share)
    device.allocate(weights)
    return profile_memory(
        device,
        start,
        run,
        block_bytes=2 * MIB,
        gpu_memory_utilization=share,
        max_num_batched_tokens=512,
        reserve_bytes=10 * MIB,
    )


def test_blocks_are_what_weights_peak_libraries_and_reserve_leave_of_the_share() -> None:
    device = PaperDevice()

    def run() -> None:
        device.allocate(150)
        device.release(150)
        device.outside += 41  # a library makes itself a workspace

    got = profile(device, run)

    assert got.requested_bytes == 800 * MIB
    assert got.weights_bytes == 300 * MIB
    assert got.activation_peak_bytes == 150 * MIB
    assert got.non_torch_bytes == 41 * MIB
    assert got.kv_bytes == 299 * MIB
    assert got.num_blocks == 149
    assert "KV 0.292 (149 blocks)" in str(got)


def test_the_peak_of_loading_weights_is_not_counted_as_activations() -> None:
    device = PaperDevice()
    start = start_profile(device, 0.8)
    device.allocate(500)  # a loader holds two copies for a moment
    device.release(200)

    got = profile_memory(
        device,
        start,
        lambda: None,
        block_bytes=MIB,
        gpu_memory_utilization=0.8,
        max_num_batched_tokens=512,
    )

    assert got.activation_peak_bytes == 0
    assert got.num_blocks == 500


def test_a_share_larger_than_what_is_free_is_refused_before_anything_is_loaded() -> None:
    with pytest.raises(SettingsError, match=r"set --gpu-memory-utilization to 0\.9 or less"):
        start_profile(PaperDevice(), 0.95)


@pytest.mark.parametrize("share", [0, -0.5, 1.01, float("nan")])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(SettingsError, match="must be above 0 and at most 1"):
        start_profile(PaperDevice(), share)


def test_no_room_for_a_block_says_where_the_memory_went() -> None:
    with pytest.raises(SettingsError, match=r"no room for one KV block.*0\.771 GiB of weights"):
        profile(PaperDevice(), lambda: None, weights=789)


def test_a_step_that_runs_out_of_memory_names_the_token_budget() -> None:
    def run() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(SettingsError, match="a step of 512 tokens does not fit"):
        profile(PaperDevice(), run)


def test_memory_that_others_give_back_meanwhile_spoils_the_sum() -> None:
    device = PaperDevice()

    def run() -> None:
        device.outside = 0

    with pytest.raises(SettingsError, match="give the pool's size with --num-gpu-blocks"):
        profile(device, run, weights=0)
