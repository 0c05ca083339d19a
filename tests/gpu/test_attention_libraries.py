"""flashinfer and torch_varlen, which no CPU runs: what they tell their libraries, by fakes.

The fakes have the libraries' documented arguments and compute attention from these alone, so that a
wrong page, length or window shows. That the libraries do the same has to be seen on a GPU.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from engine.gpu.attention import flashinfer_paged, varlen
from engine.gpu.attention.need import Need
from tests.gpu.attention_worlds import Shape, dense, make_world


def need(shape: Shape, num_heads: int = 4) -> Need:
    return Need(shape, num_heads, (0,), 8, 512)


def attend_densely(query, key_cache, value_cache, pages, lens, query_lens, scale, window_left):
    """What a library would compute, from its own arguments: pages per request, lengths, window."""
    out, row = torch.zeros_like(query), 0
    for ids, length, n in zip(pages, lens, query_lens, strict=True):
        k = key_cache[ids].flatten(0, 1)[:length].double()
        v = value_cache[ids].flatten(0, 1)[:length].double()
        group = query.shape[1] // k.shape[1]
        for i in range(n):
            last = length - n + i
            first = max(0, last - window_left) if window_left >= 0 else 0
            seen = slice(first, last + 1)
            keys, values = (x[seen].repeat_interleave(group, 1) for x in (k, v))
            scores = torch.einsum("hd,lhd->hl", query[row].double(), keys) * scale
            out[row] = torch.einsum("hl,lhd->hd", scores.softmax(-1), values).to(out.dtype)
            row += 1
    return out


class FakeWrapper:
    """FlashInfer's wrappers by their documented arguments (0.7.2), computed densely."""

    made: list[FakeWrapper]

    def __init__(self, workspace, layout, use_tensor_cores=False):
        assert layout == "NHD"
        self.plans = 0
        FakeWrapper.made.append(self)

    def _keep(self, indptr, indices, last_page_len, *shape, **options):
        assert indptr.dtype == indices.dtype == last_page_len.dtype == torch.int32
        assert indptr[0] == 0
        assert indptr[-1] == len(indices)
        assert bool((last_page_len >= 1).all())
        self.plans += 1
        bounds = indptr.tolist()
        pairs = list(itertools.pairwise(bounds))
        self.pages = [indices[a:b].long() for a, b in pairs]
        self.shape, self.options = shape, options
        page = shape[3]
        self.lens = [
            (b - a - 1) * page + int(n) for (a, b), n in zip(pairs, last_page_len, strict=True)
        ]

    def run(self, q, caches, out):
        window_left, scale = self.options["window_left"], self.options["sm_scale"]
        out.copy_(
            attend_densely(
                q, *caches, self.pages, self.lens, self.query_lens, scale, window_left
            )
        )


class FakeDecode(FakeWrapper):
    def plan(self, indptr, indices, last_page_len, *shape, **options):
        self._keep(indptr, indices, last_page_len, *shape, **options)
        self.query_lens = [1] * len(self.lens)


class FakePrefill(FakeWrapper):
    def plan(self, qo_indptr, indptr, indices, last_page_len, *shape, causal, **options):
        assert causal
        self._keep(indptr, indices, last_page_len, *shape, **options)
        self.query_lens = torch.diff(qo_indptr).tolist()


@pytest.fixture
def fake_flashinfer(monkeypatch):
    module = ModuleType("flashinfer")
    module.BatchDecodeWithPagedKVCacheWrapper = FakeDecode
    module.BatchPrefillWithPagedKVCacheWrapper = FakePrefill
    monkeypatch.setitem(sys.modules, "flashinfer", module)
    monkeypatch.setattr(flashinfer_paged, "_WORKSPACE_BYTES", 64)
    monkeypatch.setattr(flashinfer_paged, "store", store_by_loop)
    FakeWrapper.made = []


def store_by_loop(key_cache, value_cache, key, value, slot_mapping):
    for token, slot in enumerate(slot_mapping.tolist()):
        if slot >= 0:
            block, offset = divmod(slot, key_cache.shape[1])
            key_cache[block, offset], value_cache[block, offset] = key[token], value[token]


STEPS = [
    [(1, 1), (1, 16), (1, 37), (5, 5), (7, 40)],
    [(1, 20), (1, 5)],
    [(9, 33)],
    [(1, 20), (1, 0), (3, 9), (2, 0)],
]


@pytest.mark.parametrize("window", [0, 6])
@pytest.mark.parametrize("requests", STEPS)
def test_flashinfer_is_told_of_every_page_and_length(requests, window, fake_flashinfer):
    shape = Shape(dtype=torch.float64)
    world = make_world(requests, shape, group=2)

    out = world.run(flashinfer_paged.FlashInfer(need(shape)), window)

    assert np.abs(out.numpy() - dense(world, window)).max() < 1e-12


def test_flashinfer_plans_once_a_step_for_all_layers_of_a_window(fake_flashinfer):
    shape = Shape(dtype=torch.float64)
    backend = flashinfer_paged.FlashInfer(need(shape))
    for seed in range(2):
        world = make_world([(1, 20), (3, 9)], shape, group=2, seed=seed)
        backend.prepare(world.batch)
        for window in (0, 4, 0, 4):
            caches = (world.key_cache.nan_to_num(), world.value_cache.nan_to_num())
            backend.attend(world.query, *caches, world.batch, world.scale, window)

    assert [wrapper.plans for wrapper in FakeWrapper.made] == [2, 2, 2, 2]


@pytest.mark.parametrize("active", [None, "FA3"])
@pytest.mark.parametrize("window", [0, 6])
@pytest.mark.parametrize("requests", STEPS)
def test_torch_varlen_is_told_of_every_page_and_length(requests, window, active, monkeypatch):
    monkeypatch.setattr(varlen, "active_implementation", lambda: active)
    monkeypatch.setattr(varlen, "store", store_by_loop)
    shape = Shape(dtype=torch.float64)
    world = make_world(requests, shape, group=2)
    backend = varlen.TorchVarlen()
    seen = {}

    def fake(
        query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None,
        window_size=(-1, -1), enable_gqa=False, seqused_k=None, block_table=None, num_splits=None,
    ):  # fmt: skip
        seen.update(cu_seq_k=cu_seq_k, num_splits=num_splits, max_q=max_q, max_k=max_k)
        assert enable_gqa
        assert window_size[1] == 0
        lens, query_lens = seqused_k.tolist(), torch.diff(cu_seq_q).tolist()
        pages = [row.long() for row in block_table]
        some = [max(length, n) for length, n in zip(lens, query_lens, strict=True)]
        return attend_densely(query, key, value, pages, some, query_lens, scale, window_size[0])

    backend._attend = fake

    out = world.run(backend, window)

    assert np.abs(out.numpy() - dense(world, window)).max() < 1e-12
    assert (seen["num_splits"], seen["max_k"]) == (1, max(length for _, length in requests))
    if active == "FA3":
        assert seen["cu_seq_k"] is None
    else:
        assert seen["cu_seq_k"].tolist() == np.cumsum([0, *(n for _, n in requests)]).tolist()


def test_torch_varlen_calls_torchs_own_function_by_its_signature():
    from torch.nn.attention.varlen import varlen_attn

    world = make_world([(1, 4)], Shape())
    call = inspect.signature(varlen_attn).bind
    backend = varlen.TorchVarlen()
    backend._attend = lambda *args, **kwargs: call(*args, **kwargs) and args[0]

    backend.prepare(world.batch)
    out = backend.attend(world.query, world.key_cache, world.value_cache, world.batch, 0.5)

    assert out.shape == (1, 2, 16)
