"""The model on a GPU: its kernels against plain torch, and random weights drawn there."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from engine.gpu.model import CausalLM
from engine.gpu.weights import load_model
from tests.gpu import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def causal_logits(model: CausalLM) -> torch.Tensor:
    """Logits of 33 tokens that attend among themselves, without a cache."""

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        query, key, value = (t.transpose(0, 1)[None] for t in (q, k, v))
        out = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True, scale=model.scale
        )
        return out[0].transpose(0, 1)

    tokens = torch.arange(33, device=model.device)
    with torch.inference_mode():
        return model.logits(model(tokens, tokens, attend))


@pytest.mark.parametrize(("dtype", "bound"), [("float32", 1e-4), ("bfloat16", 0.4)])
@pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3"])
def test_the_kernels_give_the_logits_of_the_cpu(
    family: str, dtype: str, bound: float, tmp_path: Path
) -> None:
    directory = tiny.llama_dir(tmp_path, family)
    on_gpu = load_model(directory, dtype=dtype, device="cuda")
    on_cpu = load_model(directory, dtype="float64")

    assert on_gpu.layers[0].kernels is not None
    found = causal_logits(on_gpu).cpu().double()
    torch.testing.assert_close(found, causal_logits(on_cpu), atol=bound, rtol=0)


def test_a_model_in_float64_runs_without_the_kernels(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path, "qwen3")
    on_gpu = load_model(directory, dtype="float64", device="cuda")

    assert on_gpu.layers[0].kernels is None
    expected = causal_logits(load_model(directory, dtype="float64"))
    torch.testing.assert_close(causal_logits(on_gpu).cpu(), expected, atol=1e-9, rtol=0)


def test_random_weights_are_drawn_on_the_device_by_their_seed(tmp_path: Path) -> None:
    directory = tiny.llama_dir(tmp_path, "llama3")

    one, two = (load_model(directory, random_seed=3, device="cuda") for _ in range(2))

    assert one.embedding.is_cuda
    assert one.dtype == torch.bfloat16
    assert torch.equal(one.embedding, two.embedding)
    assert torch.isfinite(causal_logits(one)).all()
