"""A KV cache without blocks, for tests of the model alone: one growing tensor a layer."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from engine.gpu.model import Attend, CausalLM


class DenseCache:
    """Keys and values of one sequence; `attend` is what the model calls. Keeps the calls it got."""

    def __init__(self, model: CausalLM) -> None:
        self.windows, self.scale = model.config.windows, model.scale
        self.keys: list[torch.Tensor | None] = [None] * model.config.num_layers
        self.values: list[torch.Tensor | None] = [None] * model.config.num_layers
        self.calls: list[int] = []

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        self.calls.append(layer)
        before_k, before_v = self.keys[layer], self.values[layer]
        keys = k if before_k is None else torch.cat((before_k, k))
        values = v if before_v is None else torch.cat((before_v, v))
        self.keys[layer], self.values[layer] = keys, values
        key_at = torch.arange(len(keys))
        query_at = key_at[len(keys) - len(q) :, None]
        seen = key_at <= query_at
        if self.windows[layer]:
            seen &= key_at > query_at - self.windows[layer]
        query, key, value = (t.transpose(0, 1)[None] for t in (q, keys, values))
        out = F.scaled_dot_product_attention(
            query, key, value, attn_mask=seen, enable_gqa=True, scale=self.scale
        )
        return out[0].transpose(0, 1)


def side_by_side(caches: list[DenseCache], lengths: list[int]) -> Attend:
    """What the model calls for a flat batch in which cache i has lengths[i] query tokens."""

    def attend(layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        parts = zip(caches, q.split(lengths), k.split(lengths), v.split(lengths), strict=True)
        return torch.cat([cache.attend(layer, *qkv) for cache, *qkv in parts])

    return attend
