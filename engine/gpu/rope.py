"""Rotary position embedding: how fast each pair of a head turns, and turning it.

It knows the plain form and three that stretch it to longer contexts (linear, llama3, yarn). Halves are
split, not interleaved: element i turns with element i + D/2, as Hugging Face checkpoints have it.
It does not know the model or the cache.

Legend: T tokens, H heads, D head_dim.
"""

from __future__ import annotations

import math

import torch

from engine.gpu.model_config import RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians per token of each pair, (D/2,) float32, on the CPU.

    They are rounded to float32 in every dtype of the model: checkpoints were trained with that.
    Source: RoFormer (arXiv 2104.09864) eq. 15; linear: arXiv 2306.15595; llama3: the Llama 3.1
    release; yarn: arXiv 2309.00071 sections 3.2 and 3.3.
    """
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    plain = 1.0 / (rope.theta**pairs)
    if rope.divisors:
        return plain / torch.tensor(rope.divisors, dtype=torch.float32)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    if rope.kind == "yarn":
        return _yarn(rope, plain, head_dim)
    return plain


def _llama3(rope: RopeConfig, plain: torch.Tensor) -> torch.Tensor:
    """Long waves are stretched, short ones kept, those between blended by how often they turn."""
    turns = rope.original_len * plain / (2 * math.pi)  # in the original context
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    kept = kept.clamp(0.0, 1.0)
    return kept * plain + (1 - kept) * plain / rope.factor


def _yarn(rope: RopeConfig, plain: torch.Tensor, head_dim: int) -> torch.Tensor:
    """As llama3, but blended by the pair's index between the two that turn beta_fast and beta_slow times."""

    def pair_that_turns(times: float) -> float:
        return (
            head_dim
            * math.log(rope.original_len / (times * 2 * math.pi))
            / (2 * math.log(rope.theta))
        )

    low, high = pair_that_turns(rope.beta_fast), pair_that_turns(rope.beta_slow)
    if rope.truncate:
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, head_dim - 1.0)
    if low == high:
        high += 0.001
    index = torch.arange(head_dim // 2, dtype=torch.float32)
    stretched = ((index - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - stretched) * plain + stretched * plain / rope.factor


def attention_factor(rope: RopeConfig) -> float:
    """What cosine and sine are multiplied with: 1 but for yarn (arXiv 2309.00071 eq. 22)."""
    if rope.kind != "yarn":
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    return 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0


def cos_sin(
    positions: torch.Tensor, frequencies: torch.Tensor, factor: float, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine, (T, 1, D/2) each, of positions (T,), in dtype (float32 or float64)."""
    angle = positions.to(dtype)[:, None] * frequencies.to(dtype)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    return (cos, sin) if factor == 1.0 else (cos * factor, sin * factor)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x (T, H, D) turned by cos, sin (T, 1, D/2): contiguous, in x's dtype, computed in that of cos."""
    first, second = x.to(cos.dtype).chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)
