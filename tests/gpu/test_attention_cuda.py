"""Every backend on a CUDA device against gather_sdpa in float64 on the CPU. Skipped without one."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from engine.gpu.attention import get_backend
from engine.gpu.attention.gather import GatherSdpa
from tests.gpu.attention_worlds import Shape, World, make_world
from traces.errors import SettingsError

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
REQUESTS = [(1, 1), (1, 16), (1, 700), (1, 2049), (5, 5), (130, 400), (64, 1000)]
BOUNDS = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}


def on_cuda(world: World) -> World:
    """The same world on the device, its caches strided as they were."""
    pool = world.key_cache._base.cuda()  # the whole pool: both caches are views of it
    moved = {
        name: torch.as_strided(pool, cache.shape, cache.stride(), cache.storage_offset())
        for name in ("key_cache", "value_cache")
        for cache in [getattr(world, name)]
    }
    tensors = {name: getattr(world, name).cuda() for name in ("query", "key", "value")}
    fields = ("slot_mapping", "block_table", "query_start", "seq_lens")
    batch = dataclasses.replace(
        world.batch, **{name: getattr(world.batch, name).cuda() for name in fields}
    )
    return dataclasses.replace(world, **moved, **tensors, batch=batch)


def exact(
    world: World, shape: Shape, group: int, window: int, requests=REQUESTS
) -> torch.Tensor:
    twin = make_world(requests, dataclasses.replace(shape, dtype=torch.float64), group=group)
    for name in ("query", "key", "value"):
        setattr(twin, name, getattr(world, name).double())
    twin.key_cache.copy_(world.key_cache)
    twin.value_cache.copy_(world.value_cache)
    return twin.run(GatherSdpa(shape.block_size), window)


@pytest.mark.parametrize("window", [0, 300])
@pytest.mark.parametrize("dtype", list(BOUNDS), ids=str)
@pytest.mark.parametrize(("head_dim", "group"), [(64, 3), (128, 4), (256, 1), (80, 8)])
@pytest.mark.parametrize("name", ["triton_paged", "gather_sdpa", "flashinfer", "torch_varlen"])
def test_a_mixed_step_equals_gather_sdpa_in_float64(name, head_dim, group, dtype, window):
    block_size = 256 if name == "torch_varlen" else 16
    shape = Shape(400, 2, block_size, 2, head_dim, dtype)
    device = dataclasses.replace(shape, device="cuda")
    try:
        backend = get_backend(name, device, 2 * group, windows=(window,), max_model_len=4096)
    except SettingsError as refusal:
        pytest.skip(str(refusal))
    world = make_world(REQUESTS, shape, group=group)
    wanted = exact(world, shape, group, window)

    out = on_cuda(world).run(backend, window)

    assert (out.cpu().double() - wanted).abs().max() < BOUNDS[dtype]


def test_a_captured_decode_reads_the_tables_of_the_replay():
    shape = Shape(400, 2, 16, 2, 128, torch.bfloat16)
    device = dataclasses.replace(shape, device="cuda")
    backend = get_backend("triton_paged", device, 8, max_model_len=4096)
    first = on_cuda(make_world([(1, 1), (1, 2049)], shape, group=4))
    second = on_cuda(make_world([(1, 700), (1, 2049)], shape, group=4, seed=3, ids_seed=4))
    caches = {"key_cache": second.key_cache, "value_cache": second.value_cache}
    step = dataclasses.replace(first, **caches)
    first.batch.max_seq_len = second.batch.max_seq_len = 4096
    step.run(backend)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step.run(backend)
    # Only now: what was run so far wrote the first step's keys into the second one's pool.
    plain = second.run(backend)
    for name in ("query", "key", "value"):
        getattr(step, name).copy_(getattr(second, name))
    for name in ("slot_mapping", "block_table", "seq_lens"):
        getattr(step.batch, name).copy_(getattr(second.batch, name))

    graph.replay()

    assert torch.equal(out, plain)


def test_a_pool_over_two_to_the_31_elements_is_addressed():
    shape = Shape(17_000, 4, 16, 8, 128, torch.bfloat16)  # 17,000 x 4 x 2 x 16 x 1,024 elements
    needed = shape.num_blocks * shape.num_layers * 2 * 16 * 1024 * 2
    if torch.cuda.mem_get_info()[0] < 1.2 * needed:
        pytest.skip(f"needs {needed / 2**30:.1f} GiB of device memory")
    pool = torch.zeros(17_000, 4, 2, 16, 8, 128, dtype=torch.bfloat16, device="cuda")
    small = make_world([(1, 40), (9, 33)], Shape(8, 4, 16, 8, 128, torch.bfloat16), group=4)
    wanted = exact(small, Shape(8, 4, 16, 8, 128, torch.bfloat16), 4, 0, [(1, 40), (9, 33)])
    world = on_cuda(small)
    shift = shape.num_blocks - 8
    pool[shift:, 3, 0], pool[shift:, 3, 1] = world.key_cache, world.value_cache
    world.batch.block_table += shift
    world.batch.slot_mapping += shift * 16
    world.key_cache, world.value_cache = pool[:, 3, 0], pool[:, 3, 1]
    device = dataclasses.replace(shape, device="cuda")

    out = world.run(get_backend("triton_paged", device, 32, max_model_len=4096))

    assert pool.numel() > 2**31
    assert (out.cpu().double() - wanted).abs().max() < BOUNDS[torch.bfloat16]
