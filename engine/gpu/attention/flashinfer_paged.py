"""flashinfer: FlashInfer's paged kernels, where the package is installed.

Written against flashinfer-python 0.7.2's wrappers (NHD pages; the strides of key and value pages
must be equal, which both cache layouts keep). A plan is made once a step for each pair of scale and
window that a layer asks for. Kernels are compiled when first used unless a package of built ones is
installed beside it. It knows no model and owns no KV, only FlashInfer's workspaces.

Legend: R requests, T query tokens, H query heads, Hkv key/value heads, D head dimension.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch

from engine.gpu.attention.interface import AttentionBackend
from engine.gpu.attention.need import Need, dtype_name, missing
from engine.gpu.attention.tables import listed_blocks
from engine.gpu.attention.triton_paged import store
from engine.gpu.batch import AttentionBatch

_DTYPES = (torch.bfloat16, torch.float16)
_HEAD_DIMS = (64, 128, 256)
_WORKSPACE_BYTES = 256 << 20  # the size that FlashInfer's own examples take is 128 MiB


def unfit(need: Need) -> str | None:
    """Why FlashInfer cannot serve, or None."""
    kv = need.kv
    for module in ("flashinfer", "triton"):  # Triton stores the keys and values
        if (reason := missing(module)) is not None:
            return reason
    if kv.dtype not in _DTYPES:
        return f"it knows {', '.join(map(dtype_name, _DTYPES))}, not {dtype_name(kv.dtype)}"
    if kv.head_dim not in _HEAD_DIMS:
        return f"head dimension {kv.head_dim} is none of {', '.join(map(str, _HEAD_DIMS))}"
    device = torch.device(kv.device)
    if device.type != "cuda":
        return f"it runs on CUDA, not on {device.type}"
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        return f"the GPU has compute capability {major}.{minor}; it needs 8.0"
    return None


def build(need: Need) -> FlashInfer:
    return FlashInfer(need)


class _Pages(NamedTuple):
    """The step's pages as FlashInfer wants them. indptr, last_len: host int32; blocks: device int32;
    decode_blocks: how many of these are the decodes'; query_indptr: of the prefills, host int32;
    empty: query rows that get zeros."""

    indptr: torch.Tensor
    last_len: torch.Tensor
    blocks: torch.Tensor
    decode_blocks: int
    query_indptr: torch.Tensor
    empty: torch.Tensor | None


class FlashInfer(AttentionBackend):
    """The decode wrapper for requests of one query token, the prefill wrapper for the others."""

    name = "flashinfer"
    graph_safe = False

    def __init__(self, need: Need) -> None:
        self._need = need
        self._library: Any = import_module("flashinfer")
        self._planned: dict[tuple[float, int], tuple[Any, Any]] = {}
        self._wrappers: dict[tuple[float, int], tuple[Any, Any]] = {}
        self._workspaces = [
            torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=need.kv.device)
            for _ in range(2)
        ]
        self._batch: AttentionBatch | None = None
        self._pages: _Pages | None = None

    def prepare(self, batch: AttentionBatch) -> None:
        self._batch = batch
        self._pages = _pages(batch, self._need.kv.block_size)
        self._planned.clear()

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
        pages = self._pages
        assert pages is not None
        decode, prefill = self._plan(batch, pages, scale, window)
        n, end = batch.num_decode, int(batch.query_lens_host.sum())
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        caches = (key_cache, value_cache)
        if decode is not None:
            decode.run(query[:n], caches, out=out[:n])
        if prefill is not None:
            prefill.run(query[n:end], caches, out=out[n:end])
        out[end:].zero_()
        if pages.empty is not None:
            out[pages.empty] = 0
        return out

    def _plan(
        self, batch: AttentionBatch, pages: _Pages, scale: float, window: int
    ) -> tuple[Any, Any]:
        """(decode wrapper, prefill wrapper) planned for this step, None where there is nothing."""
        key = (scale, window)
        if key in self._planned:
            return self._planned[key]
        if key not in self._wrappers:
            # Plans live in the wrapper's own integer workspace; the float workspace is scratch of one
            # run, and runs of a stream follow each other, so that all layers share it.
            self._wrappers[key] = (
                self._library.BatchDecodeWithPagedKVCacheWrapper(
                    self._workspaces[0], "NHD", use_tensor_cores=True
                ),
                self._library.BatchPrefillWithPagedKVCacheWrapper(self._workspaces[1], "NHD"),
            )
        kv, n = self._need.kv, batch.num_decode
        shape = (self._need.num_heads, kv.num_kv_heads, kv.head_dim, kv.block_size)
        common = {
            "sm_scale": scale,
            "window_left": window - 1 if window > 0 else -1,
            "q_data_type": kv.dtype,
            "kv_data_type": kv.dtype,
        }
        decode, prefill = self._wrappers[key]
        if n:
            decode.plan(
                pages.indptr[: n + 1],
                pages.blocks[: pages.decode_blocks],
                pages.last_len[:n],
                *shape,
                **common,
            )
        if n < pages.last_len.numel():
            prefill.plan(
                pages.query_indptr,
                pages.indptr[n:] - pages.decode_blocks,
                pages.blocks[pages.decode_blocks :],
                pages.last_len[n:],
                *shape,
                causal=True,
                **common,
            )
        wanted = (decode if n else None, prefill if n < pages.last_len.numel() else None)
        self._planned[key] = wanted
        return wanted


def _pages(batch: AttentionBatch, block_size: int) -> _Pages:
    """A request with nothing to attend stands with one token of its first block, since FlashInfer
    wants one, and its rows are put to zero afterwards."""
    true_lens = np.asarray(batch.seq_lens_host, dtype=np.int64)
    query_lens = np.asarray(batch.query_lens_host, dtype=np.int64)
    lens = np.maximum(true_lens, query_lens)
    num_blocks = -(-lens // block_size)
    indptr = np.concatenate([[0], np.cumsum(num_blocks)])
    empty_rows = np.flatnonzero(np.repeat(true_lens == 0, query_lens))
    starts = np.concatenate([[0], np.cumsum(query_lens[batch.num_decode :])])
    device = batch.block_table.device
    return _Pages(
        indptr=torch.from_numpy(indptr.astype(np.int32)),
        last_len=torch.from_numpy((lens - (num_blocks - 1) * block_size).astype(np.int32)),
        blocks=listed_blocks(batch, num_blocks),
        decode_blocks=int(indptr[batch.num_decode]),
        query_indptr=torch.from_numpy(starts.astype(np.int32)),
        empty=torch.from_numpy(empty_rows).to(device) if empty_rows.size else None,
    )
