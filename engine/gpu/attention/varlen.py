"""torch_varlen: torch's own paged `varlen_attn`, over whichever flash attention is active.

Written against torch 2.13 (torch.nn.attention.varlen). What page sizes it takes depends on the
implementation behind it: the built-in FlashAttention 2 wants blocks of a multiple of 256 tokens; 3
(Hopper) and 4 (Blackwell), installed and activated by torch.nn.attention.activate_flash_attention_impl,
take small ones. It knows no model and owns nothing.

Legend: R requests, T query tokens, H query heads, Hkv key/value heads, D head dimension.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import torch

from engine.gpu.attention.interface import AttentionBackend
from engine.gpu.attention.need import Need, dtype_name, missing
from engine.gpu.attention.triton_paged import store
from engine.gpu.batch import AttentionBatch

_VARLEN = "torch.nn.attention.varlen"
_DTYPES = (torch.bfloat16, torch.float16)
_MAX_HEAD_DIM = 256
_FA2_PAGE = 256  # tokens: flash-attn's own check of paged caches
# The one generation of GPUs on which each implementation takes a block table.
# Source: torch 2.13, torch/nn/attention/_fa3.py and _fa4.py.
_PAGED_ON = {"FA3": 9, "FA4": 10}


def unfit(need: Need) -> str | None:
    """Why torch's varlen_attn cannot serve, or None."""
    kv = need.kv
    for module in (_VARLEN, "triton"):  # Triton stores the keys and values
        if (reason := missing(module)) is not None:
            return reason
    if kv.dtype not in _DTYPES:
        return f"it knows {', '.join(map(dtype_name, _DTYPES))}, not {dtype_name(kv.dtype)}"
    if kv.head_dim > _MAX_HEAD_DIM or kv.head_dim % 8:
        return f"head dimension {kv.head_dim} is no multiple of 8 up to {_MAX_HEAD_DIM}"
    device = torch.device(kv.device)
    if device.type != "cuda":
        return f"it runs on CUDA, not on {device.type}"
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        return f"the GPU has compute capability {major}.{minor}; it needs 8.0"
    active = active_implementation()
    if active in _PAGED_ON and major != _PAGED_ON[active]:
        return (
            f"{active} takes a block table on compute capability {_PAGED_ON[active]}.x alone, and "
            f"the GPU has {major}.{minor}"
        )
    if active not in _PAGED_ON and kv.block_size % _FA2_PAGE:
        return (
            f"the flash attention built into torch wants blocks of a multiple of {_FA2_PAGE} tokens, "
            f"not {kv.block_size} (activate FA3 or FA4 for small blocks)"
        )
    return None


def active_implementation() -> str | None:
    """The flash attention that was activated in place of the built-in one, or None."""
    attention = import_module("torch.nn.attention")
    current = getattr(attention, "current_flash_attention_impl", None)
    name: str | None = current() if current is not None else None
    return name


def build(need: Need) -> TorchVarlen:
    return TorchVarlen()


class TorchVarlen(AttentionBackend):
    """One varlen_attn call for decodes and prefills together, without split KV."""

    name = "torch_varlen"
    graph_safe = False

    def __init__(self) -> None:
        self._attend: Any = import_module(_VARLEN).varlen_attn
        self._batch: AttentionBatch | None = None
        self._key_start: torch.Tensor | None = None
        self._empty: torch.Tensor | None = None

    def prepare(self, batch: AttentionBatch) -> None:
        self._batch = batch
        device = batch.seq_lens.device
        # The built-in implementation wants the prefix sum of the lengths beside them; the others
        # refuse it where there is a block table.
        self._key_start = None
        if active_implementation() not in _PAGED_ON:
            starts = np.concatenate([[0], np.cumsum(batch.seq_lens_host)]).astype(np.int32)
            self._key_start = torch.from_numpy(starts).to(device)
        lens = np.asarray(batch.seq_lens_host)
        rows = np.flatnonzero(np.repeat(lens == 0, np.asarray(batch.query_lens_host)))
        self._empty = torch.from_numpy(rows).to(device) if rows.size else None

    def write(
        self,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        slot_mapping: torch.Tensor,
    ) -> None:
        store(key_cache, value_cache, key, value, slot_mapping)

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
        covered = int(batch.query_lens_host.sum())
        out = self._attend(
            query[:covered],
            key_cache,
            value_cache,
            batch.query_start,
            self._key_start,
            batch.max_query_len,
            batch.max_seq_len,
            scale=scale,
            window_size=(window - 1, 0) if window > 0 else (-1, 0),
            enable_gqa=True,
            seqused_k=batch.seq_lens,
            block_table=batch.block_table,
            num_splits=1,
        )
        if self._empty is not None:
            out[self._empty] = 0
        if covered < query.shape[0]:
            out = torch.cat([out, out.new_zeros(query.shape[0] - covered, *query.shape[1:])])
        result: torch.Tensor = out
        return result
