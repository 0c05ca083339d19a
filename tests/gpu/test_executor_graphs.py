"""Decode by replay: sizes, padding, and the same tokens as without graphs.

There is no CUDA here: `recorded_graphs` replays recorded operations on recorded memory. What it
cannot show is whether CUDA can capture what is launched; that needs a device.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.gpu.graphs import DecodeGraphs, bucket_sizes
from engine.gpu.sampling import Sampling
from tests.gpu.executor_worlds import PROMPTS, World, dense_tokens, prompt, tiny_model
from tests.gpu.recorded_graphs import MaskedAttention, RecordingCapturer


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def graph_world(**options):
    capturer = RecordingCapturer()
    world = World(backend=MaskedAttention(), capturer=capturer, **options)
    return world, capturer


@pytest.mark.parametrize(
    ("max_num_seqs", "sizes"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (20, (1, 2, 4, 8, 16, 20)),
        (32, (1, 2, 4, 8, 16, 24, 32)),
    ],
)
def test_sizes_are_1_2_4_8_and_every_eighth_up_to_the_most_requests(max_num_seqs, sizes):
    assert bucket_sizes(max_num_seqs) == sizes


def test_no_size_is_over_512():
    sizes = bucket_sizes(4096)

    assert (len(sizes), sizes[-2:]) == (67, (504, 512))


class Nothing:
    def rehearse(self, size):
        pass

    def run(self, size):
        pass


def test_sizes_are_rehearsed_and_captured_largest_first():
    capturer = RecordingCapturer()
    graphs = DecodeGraphs(Nothing(), (1, 2, 4), capturer)

    assert capturer.calls == [
        ("rehearse", 4), ("capture", 4), ("rehearse", 2), ("capture", 2), ("rehearse", 1), ("capture", 1),
    ]  # fmt: skip
    assert graphs.memory_bytes == 3000
    assert [graphs.size_for(n) for n in (1, 2, 3, 4, 5)] == [1, 2, 4, 4, None]


def test_replayed_decodes_give_the_tokens_of_the_model_without_a_cache():
    world, capturer = graph_world()
    for slot, name in enumerate("dabc"):
        world.enter(name, slot)
    world.step(("a", 7), ("b", 3), ("c", 12), ("d", 1))
    padded = [world.step(*((name, 1) for name in names)).num_padded for names in
              ("abc", "c", "dcba", "ab", "cad")]  # fmt: skip

    assert world.executor.graph_sizes == (1, 2, 4, 6)
    assert padded == [1, 0, 0, 0, 1]
    assert capturer.replays == 5
    for name, num in (("a", 5), ("b", 4), ("c", 5), ("d", 3)):
        assert world.sampled(name) == dense_tokens(world.model, prompt(name), num), name


def test_mixed_steps_and_more_requests_than_the_largest_size_run_without_a_graph():
    world, capturer = graph_world(max_num_seqs=6)
    world.enter("a", 0)
    world.enter("c", 1)
    outputs = [
        world.step(("a", 7)),
        world.step(("c", 11), ("a", 1)),
        world.step(("c", 1), ("a", 1)),
    ]

    assert [o.num_padded for o in outputs] == [None, None, 0]
    assert capturer.replays == 1
    assert world.sampled("a") == dense_tokens(world.model, prompt("a"), 3)
    assert world.sampled("c") == dense_tokens(world.model, prompt("c"), 1)


def test_a_row_that_gets_no_token_keeps_its_known_ones_in_a_replay():
    world, capturer = graph_world()
    world.enter("c", 0)
    for _ in range(12):
        world.step(("c", 1))  # a prompt one token at a time: eleven of them sample nothing
    world.decode("c", 4)

    assert capturer.replays == 16
    assert world.sampled("c") == dense_tokens(world.model, prompt("c"), 5)


def test_capturing_leaves_the_cache_of_requests_alone():
    world, _ = graph_world()
    blocks = world.kv.blocks

    assert torch.isnan(blocks[1:]).all()


def test_replays_read_what_an_asynchronous_step_sampled_and_follow_moves():
    world, capturer = graph_world()
    world.enter("a", 0)
    world.enter("b", 3)
    world.step(("a", 7), ("b", 3))
    submitted = [world.submit(("a", 1), ("b", 1))]
    for _ in range(4):
        submitted.append(world.submit(("b", 1), ("a", 1)))
        world.take(submitted.pop(0))
    world.take(submitted.pop())
    known = world.leave("a")
    world.enter("a", 5, known)
    world.step(("a", len(known)))
    world.decode("ba", 3)

    assert capturer.replays == 8
    assert world.sampled("a") == dense_tokens(world.model, prompt("a"), 10)
    assert world.sampled("b") == dense_tokens(world.model, prompt("b"), 9)


def test_replayed_draws_are_those_without_a_graph():
    sampling = Sampling(temperature=1.2, top_k=30, seed=4)
    world, _ = graph_world(sampling=sampling)
    world.enter("a", 1)
    world.enter("b", 0)
    world.enter("d", 4)
    world.step(("a", 7), ("b", 3), ("d", 1))
    world.decode("abd", 5)

    for name in "abd":
        want = dense_tokens(tiny_model(), prompt(name), 6, sampling, key=ord(name))
        assert world.sampled(name) == want


def test_a_window_holds_in_a_replay():
    model = tiny_model(window=5)
    world, _ = graph_world(model=model)
    world.enter("c", 0)
    world.step(("c", 12))
    world.decode("c", 6)

    assert world.sampled("c") == dense_tokens(model, prompt("c"), 7)


def random_part(world, random, name):
    """One token of a request that decodes, a chunk of what is left of one that does not."""
    row = world.rows[name]
    left = len(row.tokens) + row.in_flight - row.computed
    return name, int(random.integers(1, left + 1))


@pytest.mark.parametrize("graphs", [False, True], ids=["launched", "replayed"])
@pytest.mark.parametrize("seed", range(4))
def test_any_schedule_gives_each_request_its_own_tokens(seed, graphs):
    random = np.random.default_rng(seed)
    world = graph_world(shuffle=seed)[0] if graphs else World(shuffle=seed)
    waiting = {name: prompt(name) for name in "abcd"}
    answers, submitted = {}, []
    while waiting or world.rows:
        still = set()
        if random.random() < 0.2 or any(
            len(row.tokens) + row.in_flight == PROMPTS[name] + 10
            for name, row in world.rows.items()
        ):
            while submitted:
                world.take(submitted.pop(0))
            for name in list(world.rows):
                if len(world.rows[name].tokens) == PROMPTS[name] + 10:
                    answers[name] = world.leave(name)
                elif random.random() < 0.2:
                    waiting[name] = world.leave(name)
                elif random.random() < 0.3:
                    world.move(name)
                    still.add(name)
        for name in list(waiting):
            taken = {row.slot for row in world.rows.values()}
            if random.random() < 0.4:
                slot = int(random.choice(sorted(set(range(6)) - taken)))
                world.enter(name, slot, waiting.pop(name))
        parts = [random_part(world, random, name) for name in world.rows if name not in still]
        if parts:
            random.shuffle(parts)
            submitted.append(world.submit(*((name, int(num)) for name, num in parts)))
        if len(submitted) == 2:
            world.take(submitted.pop(0))

    for name, tokens in answers.items():
        assert tokens[PROMPTS[name] :] == dense_tokens(world.model, prompt(name), 10), name
    assert sorted(answers) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("fail_at", [0, 2])
def test_a_capture_that_fails_is_said_and_decode_goes_on_without_graphs(fail_at):
    capturer = RecordingCapturer(fail_at=fail_at)
    with pytest.warns(
        UserWarning, match="without CUDA graphs.*not permitted when stream is capturing"
    ):
        world = World(backend=MaskedAttention(), capturer=capturer)
    world.enter("a", 0)
    world.step(("a", 7))
    outputs = world.step(("a", 1))

    assert outputs.num_padded is None
    assert world.executor.graph_sizes == ()
    assert world.executor.graph_bytes == 0
    assert world.sampled("a") == dense_tokens(world.model, prompt("a"), 2)


def test_nothing_is_captured_where_graphs_are_off_or_there_is_no_cuda():
    world, capturer = graph_world(cuda_graphs=False)

    assert capturer.calls == []
    assert world.executor.graph_sizes == World().executor.graph_sizes == ()


def test_the_triton_kernels_take_padding_in_the_executor():
    pytest.importorskip("triton", reason="Triton is not installed")
    file = "tests/gpu/interpreted_executor.py"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", file],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert "1 passed" in run.stdout
