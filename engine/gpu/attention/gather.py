"""gather_sdpa: copy each request's blocks together, then torch's scaled_dot_product_attention.

The reference for the other backends, and what runs on a CPU; any device and any dtype torch can
multiply. One attention call per request: its result depends on nothing but its own length and
contents, so neither block ids, nor the other requests, nor padding change a bit of it (on one
device, with one number of threads). It knows nothing about speed on a GPU.

Legend: T tokens of the step, R requests, N gathered blocks, H query heads, Hkv key/value heads,
G = H / Hkv, D head dimension, n query tokens and L attended tokens of one request.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from engine.gpu.attention.interface import AttentionBackend
from engine.gpu.attention.need import Need
from engine.gpu.attention.tables import listed_blocks
from engine.gpu.batch import AttentionBatch

# A prefill's scores are masked in slabs of at most this many places, so that long chunks over long
# contexts do not ask for a mask of n x L at once.
_MASK_PLACES = 1 << 22


class _Request(NamedTuple):
    """Where one request's queries and gathered tokens lie: query rows q0 to q1, first gathered row
    `at`, and seq_len tokens from there."""

    q0: int
    q1: int
    at: int
    seq_len: int


class _Plan(NamedTuple):
    """What does not depend on the layer. blocks (N,): ids to gather; requests: those with something
    to compute; covered: whether every row of the output belongs to one of them."""

    blocks: torch.Tensor
    requests: list[_Request]
    covered: bool


def unfit(need: Need) -> str | None:
    """Never refuses: it is the reference."""
    return None


def build(need: Need) -> GatherSdpa:
    return GatherSdpa(need.kv.block_size)


class GatherSdpa(AttentionBackend):
    """Gather by block table, then SDPA per request."""

    name = "gather_sdpa"
    graph_safe = False

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._batch: AttentionBatch | None = None
        self._plan: _Plan | None = None
        self._slots: tuple[Any, ...] | None = None
        self._masks: dict[tuple[int, int, int, int, int, torch.dtype], torch.Tensor] = {}
        self._rooms: list[torch.Tensor | None] = [None, None]

    def prepare(self, batch: AttentionBatch) -> None:
        self._batch = batch
        self._plan = _plan(batch, self._block_size)
        self._slots = None
        self._masks.clear()

    def write(
        self,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        seen = self._slots
        if seen is None or seen[0] is not slot_mapping or self._batch is None:
            seen = (slot_mapping, *_places(slot_mapping, self._block_size))
            # Kept for the step's other layers only if prepare() will say when the step is over.
            if self._batch is not None and self._batch.slot_mapping is slot_mapping:
                self._slots = seen
        _, kept, where = seen
        if kept is not None:
            key, value = key[kept], value[kept]
        key_cache.index_put_(where, key)
        value_cache.index_put_(where, value)

    def attend(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        batch: AttentionBatch,
        scale: float,
        window: int = 0,
    ) -> torch.Tensor:
        if batch is not self._batch:
            self.prepare(batch)
        plan = self._plan
        assert plan is not None
        keys = self._gather(0, key_cache, plan.blocks)
        values = self._gather(1, value_cache, plan.blocks)
        out = torch.empty_like(query) if plan.covered else torch.zeros_like(query)
        for request in plan.requests:
            if request.q1 - request.q0 == 1:
                _decode(request, query, keys, values, scale, window, out)
            else:
                self._prefill(request, query, keys, values, scale, window, out)
        return out

    def _gather(self, which: int, cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
        """The blocks' tokens one after another, [N * block_size, Hkv, D], in a buffer that is kept."""
        shape = (blocks.numel(), *cache.shape[1:])
        size = blocks.numel() * cache[0].numel()
        room = self._rooms[which]
        if (
            room is None
            or room.numel() < size
            or room.dtype != cache.dtype
            or room.device != cache.device
        ):
            room = torch.empty(size + size // 4, dtype=cache.dtype, device=cache.device)
            self._rooms[which] = room
        gathered = room[:size].view(shape)
        torch.index_select(cache, 0, blocks, out=gathered)
        return gathered.view(-1, *cache.shape[2:])

    def _prefill(
        self,
        r: _Request,
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        scale: float,
        window: int,
        out: torch.Tensor,
    ) -> None:
        """Rows q0 to q1 of `out`, in slabs of query rows. A slab's boundaries depend on n and L."""
        num_rows = r.q1 - r.q0
        slab = max(16, _MASK_PLACES // r.seq_len)
        for a in range(0, num_rows, slab):
            b = min(a + slab, num_rows)
            first = r.seq_len - num_rows + a  # place in the request of the slab's first query
            last = first + (b - a)
            low = max(0, first - window + 1) if window > 0 else 0
            mask = self._mask(first, b - a, low, last, window, query)
            _grouped(
                query[r.q0 + a : r.q0 + b],
                keys[r.at + low : r.at + last],
                values[r.at + low : r.at + last],
                mask,
                scale,
                out[r.q0 + a : r.q0 + b],
            )

    def _mask(
        self, first: int, rows: int, low: int, high: int, window: int, query: torch.Tensor
    ) -> torch.Tensor:
        """0 where the query at first + i may see the token at low + j, else -inf; kept for the step."""
        key = (first, rows, low, high, window, query.dtype)
        mask = self._masks.get(key)
        if mask is None:
            q = torch.arange(first, first + rows, device=query.device)[:, None]
            k = torch.arange(low, high, device=query.device)[None, :]
            hidden = k > q
            if window > 0:
                hidden |= k <= q - window
            mask = torch.zeros(hidden.shape, dtype=query.dtype, device=query.device)
            mask.masked_fill_(hidden, float("-inf"))
            self._masks[key] = mask
        return mask


def _plan(batch: AttentionBatch, block_size: int) -> _Plan:
    """Which blocks to copy together, and where each request's queries and tokens then are."""
    lens = np.asarray(batch.seq_lens_host, dtype=np.int64)
    query_lens = np.asarray(batch.query_lens_host, dtype=np.int64)
    num_blocks = -(-lens // block_size)
    first_block = np.cumsum(num_blocks) - num_blocks
    ends = np.cumsum(query_lens)
    blocks = listed_blocks(batch, num_blocks).to(torch.int64)
    requests = [
        _Request(int(end - n), int(end), int(at) * block_size, int(length))
        for end, n, at, length in zip(ends, query_lens, first_block, lens, strict=True)
        if n > 0 and length > 0
    ]
    covered = sum(r.q1 - r.q0 for r in requests) == batch.slot_mapping.numel()
    return _Plan(blocks, requests, covered)


def _places(
    slot_mapping: torch.Tensor, block_size: int
) -> tuple[torch.Tensor | None, tuple[Any, ...]]:
    """Rows that are written (None: all) and (block, offset) of each."""
    kept = None
    if bool((slot_mapping < 0).any()):
        kept = torch.nonzero(slot_mapping >= 0).flatten()
        slot_mapping = slot_mapping[kept]
    block = torch.div(slot_mapping, block_size, rounding_mode="floor")
    return kept, (block, slot_mapping - block * block_size)


def _decode(
    r: _Request,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    scale: float,
    window: int,
    out: torch.Tensor,
) -> None:
    """One query token: its G heads of a group are the rows of one small attention, without a mask."""
    num_heads, head_dim = query.shape[1:]
    num_kv_heads = keys.shape[1]
    low = max(0, r.seq_len - window) if window > 0 else 0
    q = query[r.q0].view(1, num_kv_heads, num_heads // num_kv_heads, head_dim)
    k = keys[r.at + low : r.at + r.seq_len].transpose(0, 1).unsqueeze(0)
    v = values[r.at + low : r.at + r.seq_len].transpose(0, 1).unsqueeze(0)
    result = scaled_dot_product_attention(q, k, v, scale=scale)
    out[r.q0] = result.reshape(num_heads, head_dim)


def _grouped(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    scale: float,
    out: torch.Tensor,
) -> None:
    """out [n, H, D] of query [n, H, D] over keys [L, Hkv, D]: the G heads of a group are the batch,
    and K and V are shared by stride 0 instead of being copied G times."""
    rows, num_heads, head_dim = query.shape
    num_kv_heads = keys.shape[1]
    group = num_heads // num_kv_heads
    q = query.view(rows, num_kv_heads, group, head_dim).permute(2, 1, 0, 3)
    k = keys.transpose(0, 1).expand(group, -1, -1, -1)
    v = values.transpose(0, 1).expand(group, -1, -1, -1)
    result = scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    out.view(rows, num_kv_heads, group, head_dim).copy_(result.permute(2, 1, 0, 3))
