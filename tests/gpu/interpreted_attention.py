"""triton_paged against gather_sdpa in Triton's interpreter: run by test_attention_triton.py.

TRITON_INTERPRET=1 has to be set before Triton is imported, and then holds for the whole process:
hence a file of its own, run in a process of its own. Sizes are the smallest that reach every branch.
"""

from __future__ import annotations

import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1 in the environment", allow_module_level=True)

import dataclasses

from engine.gpu.attention import get_backend
from engine.gpu.attention.gather import GatherSdpa
from engine.gpu.attention.need import Need
from engine.gpu.attention.triton_paged import Tiles, TritonPaged
from tests.gpu.attention_worlds import Shape, make_world

MIXED = [(1, 1), (1, 70), (2, 40), (7, 20)]
SMALL = Tiles(
    split=32,
    decode_tile=16,
    decode_warps=4,
    decode_stages=3,
    prefill_rows=16,
    prefill_tile=16,
    prefill_warps=4,
    prefill_stages=3,
)
# Largest differences seen in the interpreter: float32 4.9e-7, float16 8.8e-4, bfloat16 7.8e-3.
BOUNDS = {torch.float32: 3e-6, torch.float16: 4e-3, torch.bfloat16: 4e-2}


def make_backend(
    shape: Shape, group: int, tiles: Tiles = SMALL, max_num_seqs: int = 8
) -> TritonPaged:
    need = Need(shape, shape.num_kv_heads * group, (0,), max_num_seqs, 128)
    return TritonPaged(need, tiles)


def largest_error(requests, shape: Shape, group: int, window: int = 0, **world) -> float:
    """Of triton_paged against gather_sdpa in float64, on the same rounded inputs."""
    ours = make_world(requests, shape, group=group, **world)
    exact = make_world(
        requests, dataclasses.replace(shape, dtype=torch.float64), group=group, **world
    )
    for name in ("query", "key", "value"):
        setattr(exact, name, getattr(ours, name).double())
    exact.key_cache.copy_(ours.key_cache)
    exact.value_cache.copy_(ours.value_cache)
    wanted = exact.run(GatherSdpa(shape.block_size), window)
    out = ours.run(make_backend(shape, group), window)
    assert out.dtype == shape.dtype
    # The caches too: what was written, and NaN everywhere else.
    assert torch.equal(ours.key_cache.nan_to_num(9).double(), exact.key_cache.nan_to_num(9))
    assert torch.equal(ours.value_cache.nan_to_num(9).double(), exact.value_cache.nan_to_num(9))
    return (out.double() - wanted).abs().max().item()


@pytest.mark.parametrize("dtype", list(BOUNDS), ids=str)
@pytest.mark.parametrize("window", [0, 20])
def test_a_mixed_step_equals_gather_sdpa(dtype, window):
    heads = 2 if dtype == torch.float32 else 1

    assert (
        largest_error(MIXED, Shape(dtype=dtype, num_kv_heads=heads), 3, window) < BOUNDS[dtype]
    )


@pytest.mark.parametrize(("kv_heads", "group"), [(3, 1), (1, 4), (1, 7), (1, 8), (1, 17)])
def test_any_number_of_query_heads_a_group(kv_heads, group):
    shape = Shape(num_kv_heads=kv_heads)

    assert largest_error([(1, 20), (3, 18)], shape, group) < BOUNDS[torch.float32]


@pytest.mark.parametrize("head_dim", [24, 64, 80])
def test_head_dimensions_that_are_no_power_of_two_are_padded(head_dim):
    shape = Shape(head_dim=head_dim, num_kv_heads=1)

    assert largest_error([(1, 20), (3, 18)], shape, 2) < BOUNDS[torch.float32]


@pytest.mark.parametrize(("block_size", "layout"), [(16, "layer"), (32, "block")])
def test_block_sizes_and_layouts(block_size, layout):
    shape = Shape(block_size=block_size, num_kv_heads=1)

    error = largest_error([(1, 40), (3, 50)], shape, 2, layout=layout)

    assert error < BOUNDS[torch.float32]


@pytest.mark.parametrize("window", [1, 16, 33])
def test_a_window_within_and_over_several_splits(window):
    requests = [(1, 100), (1, 20), (9, 60)]

    assert largest_error(requests, Shape(num_kv_heads=1), 2, window) < BOUNDS[torch.float32]


def test_lengths_at_the_edges_of_tiles_and_splits():
    requests = [(1, n) for n in (15, 16, 17, 32, 33, 64, 65, 128)]
    shape = Shape(num_kv_heads=1)
    world = make_world(requests, shape, group=2)
    wanted = make_world(requests, shape, group=2).run(GatherSdpa(16))

    out = world.run(make_backend(shape, 2, max_num_seqs=12))

    assert (out - wanted).abs().max() < BOUNDS[torch.float32]


def test_padding_writes_nothing_and_gets_zeros():
    shape = Shape(num_kv_heads=1)
    world = make_world([(1, 3), (1, 50)], shape, pad_rows=2)

    out = world.run(make_backend(shape, 1))

    assert torch.equal(out[2:], torch.zeros(2, 1, 16))
    assert bool(out.isfinite().all())
    assert int((~world.key_cache.isnan()).sum()) == 53 * 16


def test_a_padded_prefill_gets_zeros():
    shape = Shape(num_kv_heads=1)
    world = make_world([(4, 20), (2, 0)], shape)

    out = world.run(make_backend(shape, 1))

    assert torch.equal(out[4:], torch.zeros(2, 1, 16))


def test_rows_past_the_last_request_get_zeros():
    shape = Shape(num_kv_heads=1)
    world = make_world([(1, 20)], shape)
    world.query = torch.cat([world.query, torch.ones(2, 1, 16)])

    out = world.run(make_backend(shape, 1))

    assert torch.equal(out[1:], torch.zeros(2, 1, 16))


def test_a_request_gets_the_same_bits_in_other_blocks_with_other_requests_and_bounds():
    shape = Shape(num_kv_heads=1, dtype=torch.bfloat16)
    alone = make_world([(1, 70)], shape, group=3)
    crowded = make_world([(1, 70), (1, 90), (3, 20)], shape, group=3, ids_seed=5)
    padded = make_world([(1, 70)], shape, group=3, ids_seed=9, pad_rows=4, extra_columns=2)
    padded.batch.max_seq_len = 128

    outs = [world.run(make_backend(shape, 3))[0] for world in (alone, crowded, padded)]

    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


def test_how_many_programs_share_the_splits_changes_no_bit():
    shape = Shape(num_kv_heads=1)
    outs = []
    for programs in (1, 3, 100):
        tiles = dataclasses.replace(SMALL, programs_per_sm=programs)
        backend = make_backend(shape, 2, tiles)
        outs.append(make_world([(1, 128)], shape, group=2).run(backend))

    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


def test_a_chunk_gets_the_same_bits_with_other_requests():
    shape = Shape(num_kv_heads=1)
    alone = make_world([(9, 37)], shape, group=3, seed=1)
    crowded = make_world([(9, 37), (4, 50)], shape, group=3, seed=1, ids_seed=5)

    ours = alone.run(make_backend(shape, 3))

    assert torch.equal(ours, crowded.run(make_backend(shape, 3))[:9])


def test_strided_queries_keys_and_values_are_taken_as_they_are():
    shape = Shape(num_kv_heads=2)
    requests = [(1, 20), (3, 10)]
    world, plain = (make_world(requests, shape, group=2) for _ in range(2))
    fused = torch.cat([world.query, world.key, world.value], dim=1)
    world.query, world.key, world.value = fused[:, :4], fused[:, 4:6], fused[:, 6:]

    assert torch.equal(world.run(make_backend(shape, 2)), plain.run(make_backend(shape, 2)))


def test_the_sizes_of_the_product_serve_requests_of_several_splits():
    shape = Shape(num_kv_heads=1, head_dim=64, num_blocks=100)
    requests = [(1, 600), (1, 256), (40, 200)]
    backend = get_backend("triton_paged", shape, 2, max_num_seqs=4, max_model_len=1024)
    wanted = make_world(requests, shape, group=2).run(GatherSdpa(16))

    out = make_world(requests, shape, group=2).run(backend)

    assert (out - wanted).abs().max() < BOUNDS[torch.float32]


def test_warming_up_touches_no_kv():
    shape = Shape(num_kv_heads=1)
    world = make_world([(1, 5)], shape)
    before = world.key_cache.nan_to_num(9).clone()

    get_backend("triton_paged", shape, 1, windows=(0, 20)).warm_up(
        world.key_cache, world.value_cache
    )

    assert torch.equal(world.key_cache.nan_to_num(9), before)
