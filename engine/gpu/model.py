"""A decoder of the Llama family over a flat batch of tokens, without padding and without a KV cache.

It knows the arithmetic of Llama 2 and 3, SmolLM2, Mistral, Qwen2, Qwen2.5 and Qwen3: RMS norm, rotary
embedding, grouped queries, SiLU MLP. Where keys and values go and what a token attends to is the
business of `attend`, which it calls once a layer. It reads no files (weights) and draws no tokens.

Legend: T tokens of the step, H query heads, Hkv KV heads, D head_dim, M rows that get a next token.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from engine.gpu.fused import gated, kernels_for, split_heads
from engine.gpu.model_config import ModelConfig
from engine.gpu.rope import attention_factor, cos_sin, inverse_frequencies

# attend(layer, q (T, H, D), k (T, Hkv, D), v (T, Hkv, D)) -> (T, H, D); all of them contiguous
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _parameter(shape: tuple[int, ...], like: torch.Tensor) -> torch.nn.Parameter:
    """Room for a weight; what is in it is undefined until it is loaded."""
    return torch.nn.Parameter(torch.empty(shape, dtype=like.dtype, device=like.device), False)


def add_linear(
    residual: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """residual + x @ weight.T (+ bias), rounded once: the sum is part of the matrix product."""
    y = torch.addmm(residual, x, weight.t())
    return y if bias is None else y + bias


class Layer(torch.nn.Module):
    """One decoder layer. qkv holds query, key and value rows in that order; gate_up gate, then up."""

    def __init__(self, config: ModelConfig, like: torch.Tensor) -> None:
        super().__init__()
        c = config
        self.config = config
        self.kernels = kernels_for(like.device, like.dtype)
        rows = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
        self.attention_norm = _parameter((c.hidden,), like)
        self.qkv = _parameter((rows, c.hidden), like)
        self.qkv_bias = _parameter((rows,), like) if c.qkv_bias else None
        self.query_norm = _parameter((c.head_dim,), like) if c.qk_norm else None
        self.key_norm = _parameter((c.head_dim,), like) if c.qk_norm else None
        self.out = _parameter((c.hidden, c.num_heads * c.head_dim), like)
        self.out_bias = _parameter((c.hidden,), like) if c.out_bias else None
        self.mlp_norm = _parameter((c.hidden,), like)
        self.gate_up = _parameter((2 * c.ffn, c.hidden), like)
        self.gate_up_bias = _parameter((2 * c.ffn,), like) if c.mlp_bias else None
        self.down = _parameter((c.hidden, c.ffn), like)
        self.down_bias = _parameter((c.hidden,), like) if c.mlp_bias else None

    def qkv_heads(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query (T, H, D), key and value (T, Hkv, D) of normed hidden x (T, hidden), turned."""
        c = self.config
        joint = F.linear(x, self.qkv, self.qkv_bias).view(x.shape[0], -1, c.head_dim)
        norms = (self.query_norm, self.key_norm) if c.qk_norm else None
        return split_heads(
            joint, c.num_heads, c.num_kv_heads, norms, c.rms_eps, cos, sin, self.kernels
        )

    def mlp(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden (T, hidden) with the MLP of its norm added."""
        c = self.config
        x = F.rms_norm(hidden, (c.hidden,), self.mlp_norm, c.rms_eps)
        gate_up = F.linear(x, self.gate_up, self.gate_up_bias)
        return add_linear(hidden, gated(gate_up, self.kernels), self.down, self.down_bias)


class CausalLM(torch.nn.Module):
    """Embedding, layers, last norm and head. `weights.load_model` fills one.

    scale: what scores are multiplied with. The parameters need no gradient and stay where they are.
    """

    def __init__(
        self, config: ModelConfig, *, dtype: torch.dtype, device: str | torch.device
    ) -> None:
        super().__init__()
        like = torch.empty(0, dtype=dtype, device=device)
        self.config = config
        self.scale: float = config.head_dim**-0.5
        self.dtype = dtype
        self.device = like.device
        self.embedding = _parameter((config.vocab, config.hidden), like)
        self.layers = torch.nn.ModuleList(Layer(config, like) for _ in range(config.num_layers))
        self.norm = _parameter((config.hidden,), like)
        self.head = (
            self.embedding
            if config.tied_embeddings
            else _parameter((config.vocab, config.hidden), like)
        )
        self.rope_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        self.rope_factor = attention_factor(config.rope)
        frequencies = inverse_frequencies(config.rope, config.head_dim).to(like.device)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """Normed hidden states (T, hidden) of token_ids (T,) at positions (T,), both of whole numbers.

        attend is called once a layer, in order, after rotation. Norms and rotation are computed in
        float32 (float64 for a float64 model), as Hugging Face's models do.
        """
        config = self.config
        cos, sin = cos_sin(positions, self.frequencies, self.rope_factor, self.rope_dtype)
        hidden = F.embedding(token_ids, self.embedding)
        for i, layer in enumerate(self.layers):
            x = F.rms_norm(hidden, (config.hidden,), layer.attention_norm, config.rms_eps)
            attended = attend(i, *layer.qkv_heads(x, cos, sin))
            hidden = add_linear(hidden, attended.flatten(1), layer.out, layer.out_bias)
            hidden = layer.mlp(hidden)
        return F.rms_norm(hidden, (config.hidden,), self.norm, config.rms_eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores (M, vocab) of the next token for hidden (M, hidden), in the model's dtype."""
        return F.linear(hidden, self.head)


def model_bytes(model: torch.nn.Module) -> int:
    """Bytes of the model's weights and buffers where they lie; a shared table counts once."""
    held = {t.data_ptr(): t for t in (*model.parameters(), *model.buffers())}
    return sum(t.numel() * t.element_size() for t in held.values())
