"""gather_sdpa: equal to a dense computation, blind to everything but the request itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.gpu.attention.gather import GatherSdpa
from tests.gpu.attention_worlds import Shape, dense, make_world

MIXED = [(1, 1), (1, 16), (1, 37), (5, 5), (7, 40), (17, 33)]
# Largest differences seen over 8 seeds: float64 1.1e-15, float32 5.0e-7, float16 1.1e-3, bfloat16 7.9e-3.
BOUNDS = {
    torch.float64: 1e-14,
    torch.float32: 3e-6,
    torch.float16: 4e-3,
    torch.bfloat16: 4e-2,
}


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", list(BOUNDS), ids=str)
@pytest.mark.parametrize(("kv_heads", "group"), [(3, 3), (2, 1), (1, 4)])
@pytest.mark.parametrize("window", [0, 1, 20])
def test_a_mixed_step_equals_dense_attention(dtype, kv_heads, group, window):
    shape = Shape(num_kv_heads=kv_heads, dtype=dtype)
    world = make_world(MIXED, shape, group=group)

    out = world.run(GatherSdpa(16), window)

    assert np.abs(out.double().numpy() - dense(world, window)).max() < BOUNDS[dtype]


@pytest.mark.parametrize("layout", ["block", "layer"])
@pytest.mark.parametrize("block_size", [4, 16, 32])
def test_any_block_size_and_layout_equals_dense_attention(layout, block_size):
    shape = Shape(block_size=block_size, dtype=torch.float64, num_blocks=80)
    world = make_world(MIXED, shape, group=2, layout=layout)

    out = world.run(GatherSdpa(block_size))

    assert np.abs(out.numpy() - dense(world)).max() < 1e-14


def test_a_long_prefill_is_cut_into_slabs_without_a_trace(monkeypatch):
    shape = Shape(dtype=torch.float64)
    world = make_world([(90, 150), (50, 50)], shape, group=2)
    whole = world.run(GatherSdpa(16), window=33)
    monkeypatch.setattr("engine.gpu.attention.gather._MASK_PLACES", 1)

    slabs = world.run(GatherSdpa(16), window=33)

    assert (slabs - whole).abs().max() < 1e-14
    assert np.abs(slabs.numpy() - dense(world, 33)).max() < 1e-14


@pytest.mark.parametrize("dtype", list(BOUNDS), ids=str)
def test_a_request_gets_the_same_bits_in_other_blocks_with_other_requests_and_padding(dtype):
    shape = Shape(dtype=dtype)
    alone = make_world([(1, 37)], shape, group=3)
    crowded = make_world(
        [(1, 37), (1, 90), (1, 5), (9, 60)],
        shape,
        group=3,
        ids_seed=5,
        pad_rows=0,
        extra_columns=3,
    )
    padded = make_world([(1, 37)], shape, group=3, ids_seed=9, pad_rows=4)

    outs = [world.run(GatherSdpa(16))[0] for world in (alone, crowded, padded)]

    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


def test_a_chunk_gets_the_same_bits_in_other_blocks_with_other_requests():
    shape = Shape()
    alone = make_world([(9, 37)], shape, group=3, seed=1)
    crowded = make_world([(9, 37), (20, 90)], shape, group=3, seed=1, ids_seed=5)

    assert torch.equal(alone.run(GatherSdpa(16)), crowded.run(GatherSdpa(16))[:9])


def test_padding_writes_nothing_and_gets_zeros():
    shape = Shape(dtype=torch.float64)
    world = make_world([(1, 3)], shape, pad_rows=2)

    out = world.run(GatherSdpa(16))

    assert torch.equal(out[1:], torch.zeros(2, 2, 16, dtype=torch.float64))
    assert int((~world.key_cache.isnan()).sum()) == 3 * 2 * 16
    assert int((~world.value_cache.isnan()).sum()) == 3 * 2 * 16


def test_a_step_of_padding_alone_gives_zeros_and_leaves_the_pool_alone():
    world = make_world([], Shape(), pad_rows=2, extra_columns=1)

    out = world.run(GatherSdpa(16))

    assert torch.equal(out, torch.zeros(2, 2, 16))
    assert bool(world.key_cache.isnan().all())


def test_one_object_serves_steps_of_different_size_and_reads_nothing_of_the_last():
    backend = GatherSdpa(16)
    shape = Shape(dtype=torch.float64)
    steps = [make_world(requests, shape, seed=n) for n, requests in enumerate(
        [[(1, 100), (30, 60)], [(1, 2)], MIXED, [(64, 64)]]
    )]  # fmt: skip

    errors = [np.abs(world.run(backend).numpy() - dense(world)).max() for world in steps]

    assert max(errors) < 1e-14


def test_a_batch_changed_in_place_is_read_again_after_prepare():
    backend = GatherSdpa(16)
    shape = Shape(dtype=torch.float64)
    first, second = (
        make_world([(1, 20)], shape),
        make_world([(1, 20)], shape, seed=3, ids_seed=4),
    )
    first.run(backend)
    first.batch.block_table.copy_(second.batch.block_table)
    first.batch.slot_mapping.copy_(second.batch.slot_mapping)
    second.batch = first.batch

    out = second.run(backend)

    assert np.abs(out.numpy() - dense(second)).max() < 1e-14
