"""The executor on a CUDA device: real graphs, real events, and two steps really in flight."""

from __future__ import annotations

import pytest
import torch

from engine.gpu.sampling import Sampling
from tests.gpu.executor_worlds import World, dense_tokens, prompt, tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
DRAWS = Sampling(temperature=1.1, top_p=0.95, seed=3)


def cuda_world(**options):
    model = tiny_model(torch.float32, window=5, device="cuda")
    return World(model, backend="triton_paged", block_size=16, **options)


def run(world, times=12):
    """Three requests, asynchronously scheduled: each step is submitted before the last is fetched."""
    for slot, name in enumerate("abc"):
        world.enter(name, slot)
    submitted = [world.submit(("a", 7), ("b", 3), ("c", 12))]
    padded = []
    for _ in range(times):
        submitted.append(world.submit(("a", 1), ("b", 1), ("c", 1)))
        padded.append(world.take(submitted.pop(0)).num_padded)
    padded.append(world.take(submitted.pop()).num_padded)
    return [world.sampled(name) for name in "abc"], padded


def test_graphs_are_captured_and_counted():
    world = cuda_world()

    assert world.executor.graph_sizes == (1, 2, 4, 6)
    assert world.executor.graph_bytes >= 0


@pytest.mark.parametrize("sampling", [Sampling(), DRAWS], ids=["greedy", "drawn"])
def test_graphs_and_launches_one_by_one_give_the_same_tokens(sampling):
    replayed, padded = run(cuda_world(sampling=sampling))
    eager, unpadded = run(cuda_world(sampling=sampling, cuda_graphs=False))

    assert replayed == eager
    assert padded == [None, *[1] * 12]
    assert unpadded == [None] * 13


def test_tokens_are_those_of_the_model_on_a_cpu_without_a_cache():
    tokens, _ = run(cuda_world())
    model = tiny_model(torch.float64, window=5)

    for name, got in zip("abc", tokens, strict=True):
        assert got == dense_tokens(model, prompt(name), 13)


def test_a_step_takes_time_on_the_device():
    world = cuda_world()
    world.enter("a", 0)

    assert 0.0 < world.step(("a", 7)).compute_s < 10.0
    assert 0.0 < world.step(("a", 1)).compute_s < 10.0


def test_a_backend_that_cannot_be_captured_is_named():
    model = tiny_model(torch.float32, device="cuda")
    with pytest.warns(UserWarning, match="gather_sdpa cannot be captured"):
        world = World(model, backend="gather_sdpa")

    assert world.executor.graph_sizes == ()
