"""get_backend: what is chosen, and what a user is told where a backend cannot serve."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from engine.gpu.attention import (
    decode_bytes,
    flashinfer_paged,
    get_backend,
    triton_paged,
    varlen,
)
from engine.gpu.attention.need import Need
from tests.gpu.attention_worlds import Shape
from traces.errors import SettingsError

BF16 = Shape(dtype=torch.bfloat16, head_dim=64, device="cuda")


@pytest.fixture
def hopper(monkeypatch):
    """A device that says it is an H200; nothing is ever put on it."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))


def need(shape: Shape, num_heads: int = 4, max_num_seqs: int = 8) -> Need:
    return Need(shape, num_heads, (0,), max_num_seqs, 512)


def test_auto_on_a_cpu_is_gather_sdpa():
    backend = get_backend("auto", Shape(), 4)

    assert (backend.name, backend.graph_safe) == ("gather_sdpa", False)


def test_auto_on_cuda_is_triton_paged(hopper, monkeypatch):
    monkeypatch.setattr(
        triton_paged, "build", lambda need: SimpleNamespace(name="triton_paged")
    )

    assert get_backend("auto", BF16, 4).name == "triton_paged"


def test_auto_on_cuda_falls_back_with_a_warning_where_triton_paged_does_not_fit(hopper):
    shape = dataclasses.replace(BF16, dtype=torch.float64)

    with pytest.warns(UserWarning, match="falls back to gather_sdpa.*not float64"):
        assert get_backend("auto", shape, 4).name == "gather_sdpa"


def test_an_unknown_name_lists_the_backends():
    with pytest.raises(SettingsError) as caught:
        get_backend("xformers", Shape(), 4)

    assert str(caught.value) == (
        "there is no attention backend 'xformers'. "
        "Choose auto, triton_paged, gather_sdpa, flashinfer, torch_varlen."
    )


def test_query_heads_must_divide_among_the_key_heads():
    with pytest.raises(
        SettingsError, match=r"3 query heads and 2 key/value heads.*config\.json"
    ):
        get_backend("auto", Shape(), 3)


def test_a_backend_that_does_not_fit_says_why_and_what_does():
    with pytest.raises(SettingsError) as caught:
        get_backend("triton_paged", Shape(), 4)

    assert str(caught.value) == (
        "attention backend triton_paged cannot be used here: it runs on CUDA, not on cpu (for "
        "checking its arithmetic on a CPU, set TRITON_INTERPRET=1 before the start). "
        "What fits: gather_sdpa."
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"dtype": torch.float32}, None),
        ({"dtype": torch.float64}, "not float64"),
        ({"block_size": 8}, "block size 8 is no power of two of at least 16"),
        ({"block_size": 48}, "block size 48 is no power of two"),
        ({"head_dim": 80}, None),
        ({"head_dim": 320}, "head dimension 320 is over 256"),
    ],
)
def test_what_triton_paged_takes(change, reason, hopper):
    found = triton_paged.unfit(need(dataclasses.replace(BF16, **change)))

    assert (found is None) if reason is None else (reason in found)


def test_triton_paged_refuses_an_old_gpu_and_a_missing_triton(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (7, 5))
    assert "compute capability 7.5" in triton_paged.unfit(need(BF16))

    monkeypatch.setitem(sys.modules, "triton", None)
    assert "triton cannot be imported" in triton_paged.unfit(need(BF16))


def test_flashinfer_that_is_not_installed_is_named(hopper, monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", None)

    with pytest.raises(
        SettingsError, match=r"flashinfer cannot be imported.*What fits: triton_paged"
    ):
        get_backend("flashinfer", BF16, 4)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"dtype": torch.float32}, "not float32"),
        ({"head_dim": 80}, "head dimension 80 is none of 64, 128, 256"),
        ({"device": "cpu"}, "it runs on CUDA, not on cpu"),
        ({"block_size": 8}, None),
    ],
)
def test_what_flashinfer_takes(change, reason, hopper, monkeypatch):
    monkeypatch.setitem(sys.modules, "flashinfer", ModuleType("flashinfer"))

    found = flashinfer_paged.unfit(need(dataclasses.replace(BF16, **change)))

    assert (found is None) if reason is None else (reason in found)


@pytest.mark.parametrize(
    ("active", "major", "block_size", "reason"),
    [
        (None, 9, 16, "blocks of a multiple of 256 tokens, not 16"),
        (None, 9, 256, None),
        ("FA3", 9, 16, None),
        ("FA3", 8, 16, "FA3 takes a block table on compute capability 9.x alone"),
        ("FA4", 9, 16, "FA4 takes a block table on compute capability 10.x alone"),
        ("FA4", 10, 16, None),
        (None, 7, 256, "compute capability 7.0"),
    ],
)
def test_what_torch_varlen_takes_by_flash_attention_and_gpu(
    active, major, block_size, reason, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (major, 0))
    monkeypatch.setattr(varlen, "active_implementation", lambda: active)

    found = varlen.unfit(need(dataclasses.replace(BF16, block_size=block_size)))

    assert (found is None) if reason is None else (reason in found)


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"dtype": torch.float32}, "not float32"), ({"head_dim": 60}, "no multiple of 8"), ({"device": "cpu"}, "not on cpu")],
)  # fmt: skip
def test_what_else_torch_varlen_refuses(change, reason, hopper):
    assert reason in varlen.unfit(need(dataclasses.replace(BF16, block_size=256, **change)))


def test_decode_bytes_counts_keys_and_values_of_every_token():
    # 64 sequences of 2,048 tokens of Llama-3.1-8B: 17.2 GB over its 32 layers.
    assert decode_bytes([2048] * 64, 8, 128, torch.bfloat16) == 17_179_869_184 // 32
    assert decode_bytes([10, 3], 2, 16, torch.float32) == 13 * 2 * 2 * 16 * 4
    assert decode_bytes([10, 3], 2, 16, torch.float32, window=4) == 7 * 2 * 2 * 16 * 4
    assert decode_bytes(np.array([], dtype=np.int64), 2, 16, torch.float32) == 0
