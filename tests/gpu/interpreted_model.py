"""The model's fused kernels against plain torch in Triton's interpreter: run by test_model_fused.py.

TRITON_INTERPRET=1 has to be set before Triton is imported, hence a file and a process of its own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1 in the environment", allow_module_level=True)

from engine.gpu import fused_kernels
from engine.gpu.fused import gated, split_heads
from engine.gpu.rope import cos_sin
from tests.gpu import tiny
from tests.gpu.dense import DenseCache

# One rounding to the type, of values up to about 5; torch's way rounds a few times.
BOUNDS = {torch.float32: 2e-6, torch.float16: 1e-2, torch.bfloat16: 8e-2}
TYPES = list(BOUNDS)


def normal(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("normed", [False, True], ids=["plain", "normed"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "width"), [(4, 2, 16), (9, 3, 64), (7, 1, 24), (1, 1, 128)]
)
def test_heads_are_split_normed_and_turned_as_torch_does(dtype, normed, heads, kv_heads, width):
    joint = normal(5, heads + 2 * kv_heads, width, dtype=dtype)
    norms = (1 + normal(2, width, dtype=dtype) / 4).unbind(0) if normed else None
    frequencies = torch.logspace(0, -4, width // 2)
    cos, sin = cos_sin(torch.tensor([0, 1, 7, 500, 9000]), frequencies, 1.5, torch.float32)
    given = (joint, heads, kv_heads, norms, 1e-6, cos, sin)

    found = split_heads(*given, fused_kernels)

    for ours, expected in zip(found, split_heads(*given, None), strict=True):
        assert ours.dtype == dtype
        assert ours.is_contiguous()
        torch.testing.assert_close(ours, expected, atol=BOUNDS[dtype], rtol=0)
    assert torch.equal(found[2], joint[:, heads + kv_heads :])  # values go through untouched


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("width", [48, 1024, 1500])
def test_the_gate_is_silu_times_up(dtype, width):
    gate_up = normal(3, 2 * width, dtype=dtype)

    found = gated(gate_up, fused_kernels)

    assert found.dtype == dtype
    torch.testing.assert_close(found, gated(gate_up, None), atol=BOUNDS[dtype], rtol=0)


def test_no_tokens_launch_nothing():
    cos, sin = cos_sin(torch.zeros(0), torch.ones(8), 1.0, torch.float32)

    q, k, v = split_heads(torch.empty(0, 8, 16), 4, 2, None, 1e-6, cos, sin, fused_kernels)

    assert (q.shape, k.shape, v.shape) == ((0, 4, 16), (0, 2, 16), (0, 2, 16))
    assert gated(torch.empty(0, 96), fused_kernels).shape == (0, 48)


@pytest.mark.parametrize("family", ["llama3", "qwen3"])
def test_a_model_gives_the_same_logits_with_the_kernels(family: str, tmp_path: Path):
    model = tiny.tiny_model(tmp_path, family)
    tokens, positions = torch.arange(3, 12), torch.arange(9)
    expected = model(tokens, positions, DenseCache(model).attend)

    for layer in model.layers:
        layer.kernels = fused_kernels

    found = model(tokens, positions, DenseCache(model).attend)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
