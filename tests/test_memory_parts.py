"""What the memory of a device goes to, held against the pool that is derived from it."""

from __future__ import annotations

import pytest

from engine.config import EngineSettings
from engine.memory_parts import memory_parts
from traces.errors import SettingsError

BLOCK = 2**21  # 16 tokens of an 8B model with 8 KV heads: 128 KiB a token
CARD = EngineSettings(
    model="llama-3.1-8b", device="rtx-4090", max_num_seqs=256, max_num_batched_tokens=2_048
)


def test_a_derived_pool_leaves_less_than_a_block_of_what_is_allowed() -> None:
    parts = memory_parts(CARD)

    assert parts.num_gpu_blocks == 2_635
    assert parts.kv_bytes == 2_635 * BLOCK
    assert parts.device_bytes == 25_254_407_700
    assert parts.allowed_bytes == pytest.approx(0.92 * 25_254_407_700)
    assert parts.weights_bytes == pytest.approx(16.06e9, rel=0.01)  # 8.03 G parameters
    assert 0 <= parts.spare_bytes < BLOCK
    assert not parts.was_given


def test_a_given_pool_need_not_come_out() -> None:
    small, large = (memory_parts(CARD.with_(num_gpu_blocks=n)) for n in (2_589, 2_700))

    assert small.was_given
    assert small.spare_bytes == pytest.approx(memory_parts(CARD).spare_bytes + 46 * BLOCK)
    assert large.spare_bytes < 0


def test_two_devices_hold_half_the_weights_and_half_of_each_block() -> None:
    one, two = memory_parts(CARD), memory_parts(CARD.with_(tensor_parallel_size=2))

    assert two.weights_bytes == pytest.approx(one.weights_bytes / 2)
    assert two.kv_bytes == two.num_gpu_blocks * BLOCK / 2
    assert two.num_devices == 2
    assert 0 <= two.spare_bytes < BLOCK


def test_of_pipeline_stages_the_tightest_is_told() -> None:
    parts = memory_parts(CARD.with_(pipeline_parallel_size=2))

    assert parts.num_devices == 2
    assert parts.kv_bytes == parts.num_gpu_blocks * BLOCK / 2  # 16 of 32 layers
    assert 0 <= parts.spare_bytes < BLOCK


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(SettingsError, match="does not fit"):
        memory_parts(CARD.with_(model="llama-3.1-70b"))
