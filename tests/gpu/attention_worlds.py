"""Small worlds for attention: a pool full of NaN, requests in shuffled blocks, and the answer.

`dense` computes attention one token and one head at a time in NumPy's float64, from the requests'
own keys and values, and shares nothing with the backends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from engine.gpu.batch import AttentionBatch


@dataclass
class Shape:
    """A cache, as far as get_backend asks."""

    num_blocks: int = 64
    num_layers: int = 3
    block_size: int = 16
    num_kv_heads: int = 2
    head_dim: int = 16
    dtype: torch.dtype = torch.float32
    device: str = "cpu"


@dataclass
class World:
    """requests: (query tokens, attended tokens) each; keys, values: per request [L, Hkv, D]."""

    requests: list[tuple[int, int]]
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    batch: AttentionBatch
    scale: float

    def run(self, backend, window=0):
        """Write this step's keys and values, attend, and return the [T, H, D] that came out."""
        backend.prepare(self.batch)
        slots = self.batch.slot_mapping
        backend.write(self.key_cache, self.value_cache, self.key, self.value, slots)
        return backend.attend(
            self.query, self.key_cache, self.value_cache, self.batch, self.scale, window
        )


def caches(shape: Shape, layout: str, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The key and value views of one layer of a pool full of NaN, strided as that layout strides."""
    tail = (shape.block_size, shape.num_kv_heads, shape.head_dim)
    if layout == "block":
        pool = torch.full((shape.num_blocks, shape.num_layers, 2, *tail), float("nan"))
        pool = pool.to(shape.dtype)
        return pool[:, layer, 0], pool[:, layer, 1]
    pool = torch.full((2, shape.num_blocks, *tail), float("nan")).to(shape.dtype)
    return pool[0], pool[1]


def make_world(
    requests: list[tuple[int, int]],
    shape: Shape,
    *,
    group: int = 1,
    layout: str = "block",
    seed: int = 0,
    ids_seed: int = 0,
    pad_rows: int = 0,
    extra_columns: int = 0,
) -> World:
    """Requests of (query tokens, attended tokens) with one query token first; KV of the tokens
    before this step's is in the cache, in blocks whose ids ids_seed shuffles. Request i's contents
    depend on (seed, i) alone. pad_rows: padding requests of one query token and nothing to attend.
    """
    heads = (shape.num_kv_heads * group, shape.head_dim)
    kv_heads = (shape.num_kv_heads, shape.head_dim)
    key_cache, value_cache = caches(shape, layout, layer=1)
    ids = np.random.default_rng(ids_seed).permutation(shape.num_blocks).tolist()
    requests = list(requests) + [(1, 0)] * pad_rows
    width = max(-(-length // shape.block_size) for _, length in requests) + extra_columns
    table = torch.zeros((len(requests), width), dtype=torch.int32)
    keys, values, queries, slots = [], [], [], []
    for i, (n, length) in enumerate(requests):
        draw = torch.Generator().manual_seed(1000 * seed + i)
        keys.append(torch.randn((length, *kv_heads), generator=draw).to(shape.dtype))
        values.append(torch.randn((length, *kv_heads), generator=draw).to(shape.dtype))
        queries.append(torch.randn((n, *heads), generator=draw).to(shape.dtype))
        for place in range(length):
            if place % shape.block_size == 0:
                table[i, place // shape.block_size] = ids.pop()
            block, offset = int(table[i, place // shape.block_size]), place % shape.block_size
            if place < length - n:
                key_cache[block, offset] = keys[i][place]
                value_cache[block, offset] = values[i][place]
            else:
                slots.append(block * shape.block_size + offset)
        if length == 0:
            slots.extend([-1] * n)
    query_lens = np.array([n for n, _ in requests])
    batch = AttentionBatch(
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
        block_table=table,
        query_start=torch.tensor([0, *np.cumsum(query_lens)], dtype=torch.int32),
        seq_lens=torch.tensor([length for _, length in requests], dtype=torch.int32),
        query_lens_host=query_lens,
        seq_lens_host=np.array([length for _, length in requests]),
        num_decode=int((query_lens == 1).sum()),
        max_query_len=int(query_lens.max()),
        max_seq_len=max(length for _, length in requests),
    )
    filler = torch.full((1, *kv_heads), 7.0, dtype=shape.dtype)

    def new(of: list[torch.Tensor]) -> torch.Tensor:
        pairs = zip(requests, of, strict=True)
        return torch.cat([x[length - n :] if length else filler for (n, length), x in pairs])

    return World(
        requests, keys, values, torch.cat(queries), new(keys), new(values),
        key_cache, value_cache, batch, shape.head_dim**-0.5,
    )  # fmt: skip


def dense(world: World, window: int = 0) -> np.ndarray:
    """Attention [T, H, D] in float64 from the requests' keys and values; padding gives zeros."""
    query = world.query.double().numpy()
    out = np.zeros(query.shape)
    group = query.shape[1] // world.key_cache.shape[2]
    row = 0
    for (n, length), keys, values in zip(world.requests, world.keys, world.values, strict=True):
        k, v = keys.double().numpy(), values.double().numpy()
        for i in range(n):
            last = length - n + i
            first = max(0, last - window + 1) if window else 0
            for head in range(query.shape[1]) if length else ():
                seen = k[first : last + 1, head // group]
                scores = seen @ query[row, head] * world.scale
                weights = np.exp(scores - scores.max())
                out[row, head] = weights @ v[first : last + 1, head // group] / weights.sum()
            row += 1
    return out
