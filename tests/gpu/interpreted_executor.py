"""Padded decodes with the kernels that graphs are for: run by test_executor_graphs.py.

TRITON_INTERPRET=1 has to be set before Triton is imported, hence a file and a process of its own.
"Replay" is here the captured function run again: the kernels see the padded buffers as they would
under a graph.
"""

from __future__ import annotations

import os

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1 in the environment", allow_module_level=True)

from tests.gpu.executor_worlds import World, dense_tokens, prompt, tiny_model


class RunAgain:
    def rehearse(self, run):
        run()

    def capture(self, run):
        return run

    def used_bytes(self):
        return 0


def test_padded_decodes_give_the_tokens_of_the_model_without_a_cache():
    torch.set_num_threads(1)
    model = tiny_model(torch.float32, window=5)
    world = World(
        model, backend="triton_paged", block_size=16, max_num_seqs=4, capturer=RunAgain()
    )
    for slot, name in enumerate("dabc"):
        world.enter(name, slot)
    world.step(("a", 7), ("b", 3), ("c", 9), ("d", 1))
    first = world.step(("c", 1), ("a", 1), ("d", 1))
    second = world.step(("a", 1), ("b", 1), ("c", 1), ("d", 1))

    assert (first.num_padded, second.num_padded) == (1, 0)
    assert torch.isnan(world.kv.blocks[0]).all()  # padding is written nowhere
    for name, num in (("a", 3), ("b", 2), ("c", 0), ("d", 3)):
        assert world.sampled(name) == dense_tokens(model, prompt(name), num), name
