"""What every attention backend does, and the bytes that a decode has to read.

A backend knows cache views and one step's AttentionBatch. It knows no model, no scheduler, and owns no
KV: the cache belongs to `kv_cache.KVCache`.

Legend: T tokens of the step, R requests, H query heads, Hkv key/value heads, D head dimension.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable

import torch

from engine.gpu.batch import AttentionBatch


class AttentionBackend(ABC):
    """Writes a step's keys and values into the cache and attends over what is there.

    name: as the user writes it; graph_safe: whether `write` and `attend` of a batch in which every
    request has one query token may be captured in a CUDA graph (no host synchronisation, launches
    that depend on shapes and on the batch's bounds alone).
    """

    name: str
    graph_safe: bool = False

    @abstractmethod
    def prepare(self, batch: AttentionBatch) -> None:
        """Do once a step what does not depend on the layer. Must be called whenever what is in the
        batch's tensors has changed; `attend` calls it itself for a batch object it has not seen.
        """

    @abstractmethod
    def write(
        self,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        """Put key and value [T, Hkv, D] where slot_mapping (T,) says; -1 writes nothing.

        Alters the caches [num_blocks, block_size, Hkv, D]. Slots of one step are distinct.
        """

    @abstractmethod
    def attend(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        batch: AttentionBatch,
        scale: float,
        window: int = 0,
    ) -> torch.Tensor:
        """Causal attention of query [T, H, D] over each request's cached tokens, [T, H, D].

        The last query token of a request stands at place seq_len - 1. A token attends to itself and
        to what came before it, and with a window > 0 only to the last `window` of these, itself
        included. The cache past a request's seq_len is never read into a result, whatever it holds.
        Tokens of a request with seq_len 0, and tokens past the last request, get zeros.
        """

    def warm_up(self, key_cache: torch.Tensor, value_cache: torch.Tensor) -> None:  # noqa: B027
        """Compile whatever the layers' windows will need, before anything is timed. Reads and writes
        no KV; does nothing where nothing is compiled.
        """


def decode_bytes(
    seq_lens: Iterable[int],
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    window: int = 0,
) -> int:
    """KV bytes that one layer's attention of a decode has to read: what GB/s are counted from.

    seq_lens: tokens attended to per request. Queries, outputs and block tables are left out (they
    are under 2 % from 64 tokens a request on).
    Source: sum over requests of min(seq_len, window) * 2 * Hkv * D * bytes.
    """
    per_token = 2 * num_kv_heads * head_dim * dtype.itemsize
    return sum(min(n, window) if window > 0 else n for n in map(int, seq_lens)) * per_token
