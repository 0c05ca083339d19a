"""triton_paged: our own kernels for CUDA; sizes, workspace and launches.

Sizes are chosen once, from head dimension, dtype and the longest request; nothing that rounds
depends on the batch. It knows no model and owns no KV, only the workspace of the split decode.

Legend: R requests, T query tokens, H query heads, Hkv key/value heads, D head dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch

from engine.gpu.attention.interface import AttentionBackend
from engine.gpu.attention.need import Need, dtype_name, missing
from engine.gpu.batch import AttentionBatch
from traces.errors import InvariantError

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_MAX_HEAD_DIM = 256
_LOG2_E = 1 / math.log(2)
_LARGEST_GRID_YZ = 65535  # CUDA's bound on a grid's second and third dimension


@dataclass(frozen=True)
class Tiles:
    """Sizes of the kernels. They change speed, and by rounding the last bits, not meaning.

    split: tokens of a decode that one share sums at a time; decode_tile, prefill_tile: tokens of KV
    loaded at once; prefill_rows: query rows (token x head of a group) of a tile; programs_per_sm:
    decode programs aimed at. warps and stages as Triton's num_warps and num_stages.
    """

    split: int
    decode_tile: int
    decode_warps: int
    decode_stages: int
    prefill_rows: int
    prefill_tile: int
    prefill_warps: int
    prefill_stages: int
    programs_per_sm: int = 16


def choose_tiles(
    head_dim: int, item_bytes: int, max_model_len: int, shared_bytes: int
) -> Tiles:
    """Sizes for heads of head_dim elements of item_bytes and requests up to max_model_len tokens.

    shared_bytes: shared memory that one program may have. Decode: three programs a multiprocessor
    with two buffers of K and V each are 192 KiB in flight at D = 128, several times what the
    memory's latency asks for (H200: 4.8 TB/s x 0.7 us / 132 = 25 KiB). A request has at most 64
    splits, so that the workspace stays bounded. fp32 is multiplied outside the tensor cores, in
    small tiles: larger ones spill registers (seen in ptxas's report).
    """
    dim = max(16, _power_of_two(head_dim))
    row_bytes = dim * item_bytes
    tile = max(16, min(64, (16 << 10) // row_bytes))
    if item_bytes == 4:
        rows, prefill_tile, warps = (
            max(16, min(64, 4096 // dim)),
            max(16, min(32, 2048 // dim)),
            8,
        )
    else:
        rows, prefill_tile, warps = 128, tile, 8
        while rows > 64 and rows * row_bytes + 4 * tile * row_bytes > shared_bytes:
            rows, warps = rows // 2, 4
    buffers = max(1, min(2, shared_bytes // 3 // (2 * tile * row_bytes)))
    return Tiles(
        split=max(256, _power_of_two(-(-max_model_len // 64))),
        decode_tile=tile,
        decode_warps=4,
        # The block table's load and K's and V's, which wait for it, take two stages each buffer.
        decode_stages=1 + 2 * buffers,
        prefill_rows=rows,
        prefill_tile=prefill_tile,
        prefill_warps=warps,
        prefill_stages=3,
    )


def _power_of_two(n: int) -> int:
    """The smallest power of two that is no smaller than n."""
    return 1 << max(0, n - 1).bit_length()


def unfit(need: Need) -> str | None:
    """Why these kernels cannot serve, or None."""
    kv = need.kv
    if (reason := missing("triton")) is not None:
        return reason
    if kv.dtype not in _DTYPES:
        return f"it knows {', '.join(map(dtype_name, _DTYPES))}, not {dtype_name(kv.dtype)}"
    if kv.block_size < 16 or kv.block_size & (kv.block_size - 1):
        return f"block size {kv.block_size} is no power of two of at least 16"
    if kv.head_dim > _MAX_HEAD_DIM:
        return f"head dimension {kv.head_dim} is over {_MAX_HEAD_DIM}"
    if need.max_num_seqs > _LARGEST_GRID_YZ:
        return f"{need.max_num_seqs} requests a step are over {_LARGEST_GRID_YZ}"
    device = torch.device(kv.device)
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        if major < 8:
            return f"the GPU has compute capability {major}.{minor}; it needs 8.0"
    elif not _interpreted():
        return (
            f"it runs on CUDA, not on {device.type} (for checking its arithmetic on a CPU, set "
            "TRITON_INTERPRET=1 before the start)"
        )
    return None


def build(need: Need) -> TritonPaged:
    return TritonPaged(need)


def _interpreted() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)


def kernels() -> Any:
    """The module of the kernels: imported when they are first wanted, since that imports Triton."""
    return import_module("engine.gpu.attention.triton_kernels")


class TritonPaged(AttentionBackend):
    """Store kernel, split-KV decode with a reduction, and prefill by query tiles."""

    name = "triton_paged"
    graph_safe = True

    def __init__(self, need: Need, tiles: Tiles | None = None) -> None:
        kv = need.kv
        self._need = need
        self._num_sms, shared_bytes = _device_limits(torch.device(kv.device))
        self.tiles = tiles or choose_tiles(
            kv.head_dim, kv.dtype.itemsize, need.max_model_len, shared_bytes
        )
        self._max_splits = -(-need.max_model_len // self.tiles.split)
        parts = (need.max_num_seqs, need.num_heads, self._max_splits)
        if self._max_splits == 1:
            parts = (
                1,
                1,
                1,
            )  # never written: a request of one split goes straight to the output
        self._part_acc = torch.empty(
            (*parts, kv.head_dim), device=kv.device, dtype=torch.float32
        )
        self._part_stats = torch.empty((*parts, 2), device=kv.device, dtype=torch.float32)
        self._shape = {
            "BLOCK_SIZE": kv.block_size,
            "GROUP": need.num_heads // kv.num_kv_heads,
            "HEAD_DIM": kv.head_dim,
            "DIM": max(16, _power_of_two(kv.head_dim)),
        }
        self._widen = kv.dtype == torch.bfloat16 and _interpreted()

    @property
    def workspace_bytes(self) -> int:
        """Device memory that the split decode holds."""
        return 4 * (self._part_acc.numel() + self._part_stats.numel())

    def prepare(self, batch: AttentionBatch) -> None:
        """Checks the batch's bounds against the workspace; there is nothing else to do.

        Raises InvariantError where the batch is larger than what the backend was built for.
        """
        need = self._need
        # A bound may be looser than the pool, a request's tokens may not.
        longest = min(batch.max_seq_len, need.kv.num_blocks * need.kv.block_size)
        if batch.num_decode > need.max_num_seqs or longest > need.max_model_len:
            raise InvariantError(
                f"a step of {batch.num_decode} decodes up to {longest} tokens, but attention "
                f"was built for {need.max_num_seqs} up to {need.max_model_len}"
            )

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
        query = _rows_contiguous(query)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        covered = int(batch.query_lens_host.sum())
        if covered < query.shape[0]:
            out[covered:].zero_()
        if batch.num_decode:
            self._decode(query, key_cache, value_cache, batch, scale, window, out)
        if batch.num_decode < len(batch.query_lens_host):
            self._prefill(query, key_cache, value_cache, batch, scale, window, out)
        return out

    def warm_up(self, key_cache: torch.Tensor, value_cache: torch.Tensor) -> None:
        need, device = self._need, key_cache.device
        lens = np.array([1, 2])
        batch = AttentionBatch(
            slot_mapping=torch.full((3,), -1, dtype=torch.int64, device=device),
            block_table=torch.zeros((2, 1), dtype=torch.int32, device=device),
            query_start=torch.tensor([0, 1, 3], dtype=torch.int32, device=device),
            seq_lens=torch.zeros(2, dtype=torch.int32, device=device),
            query_lens_host=lens,
            seq_lens_host=np.zeros(2, np.int64),
            num_decode=1,
            max_query_len=2,
            max_seq_len=need.max_model_len,
        )
        shape = (need.kv.num_kv_heads, need.kv.head_dim)
        rows = torch.zeros((3, *shape), dtype=need.kv.dtype, device=device)
        query = torch.zeros((3, need.num_heads, shape[1]), dtype=need.kv.dtype, device=device)
        self.write(key_cache, value_cache, rows, rows, batch.slot_mapping)
        for window in sorted(set(need.windows)):
            self.attend(query, key_cache, value_cache, batch, 1.0, window)

    def shares(self, num_decode: int, max_seq_len: int) -> int:
        """Programs among which a request's splits are dealt: enough to fill the device, at least 4
        where there is so much to do, so that one long request does not wait for one program."""
        fill = -(
            -self._num_sms
            * self.tiles.programs_per_sm
            // (num_decode * self._need.kv.num_kv_heads)
        )
        return max(1, min(-(-max_seq_len // self.tiles.split), max(4, fill), _LARGEST_GRID_YZ))

    def _decode(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        batch: AttentionBatch,
        scale: float,
        window: int,
        out: torch.Tensor,
    ) -> None:
        tiles, shape, n = self.tiles, self._shape, batch.num_decode
        splits = {"SPLIT": tiles.split, "MAX_SPLITS": self._max_splits, "WINDOWED": window > 0}
        grid = (self._need.kv.num_kv_heads, self.shares(n, batch.max_seq_len), n)
        kernels().decode_kernel[grid](
            query, key_cache, value_cache, batch.block_table, batch.seq_lens, out,
            self._part_acc, self._part_stats, scale * _LOG2_E, window,
            *query.stride()[:2], *out.stride()[:2],
            *key_cache.stride()[:3], *value_cache.stride()[:3], batch.block_table.stride(0),
            **shape, **splits,
            ROWS=max(16, _power_of_two(shape["GROUP"])),
            TILE=tiles.decode_tile,
            WIDEN=self._widen,
            num_warps=tiles.decode_warps,
            num_stages=tiles.decode_stages,
            enable_fp_fusion=True,
        )  # fmt: skip
        if batch.max_seq_len > tiles.split:
            kernels().reduce_kernel[(self._need.num_heads, n)](
                self._part_acc, self._part_stats, batch.seq_lens, out, window, *out.stride()[:2],
                **splits,
                HEAD_DIM=shape["HEAD_DIM"], DIM=shape["DIM"], CHUNK=16, num_warps=4, enable_fp_fusion=True,
            )  # fmt: skip

    def _prefill(
        self,
        query: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        batch: AttentionBatch,
        scale: float,
        window: int,
        out: torch.Tensor,
    ) -> None:
        tiles, shape = self.tiles, self._shape
        rows = max(tiles.prefill_rows, _power_of_two(shape["GROUP"]))
        num_tiles = -(-batch.max_query_len // (rows // shape["GROUP"]))
        num_requests = len(batch.query_lens_host) - batch.num_decode
        grid = (self._need.kv.num_kv_heads, num_tiles, num_requests)
        kernels().prefill_kernel[grid](
            query, key_cache, value_cache, batch.block_table, batch.query_start, batch.seq_lens,
            out, scale * _LOG2_E, window, batch.num_decode,
            *query.stride()[:2], *out.stride()[:2],
            *key_cache.stride()[:3], *value_cache.stride()[:3], batch.block_table.stride(0),
            **shape,
            WINDOWED=window > 0,
            ROWS=rows,
            TILE=tiles.prefill_tile,
            WIDEN=self._widen,
            num_warps=tiles.prefill_warps,
            num_stages=tiles.prefill_stages,
            enable_fp_fusion=True,
        )  # fmt: skip


def store(
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> None:
    """AttentionBackend.write by one kernel, for any block size that is a whole number of tokens."""
    key, value = _rows_contiguous(key), _rows_contiguous(value)
    num_tokens, num_heads, head_dim = key.shape
    if num_tokens == 0:
        return
    kernels().store_kernel[(num_tokens,)](
        key, value, key_cache, value_cache, slot_mapping,
        *key.stride()[:2], *value.stride()[:2],
        *key_cache.stride()[:3], *value_cache.stride()[:3],
        BLOCK_SIZE=key_cache.shape[1],
        HEADS=num_heads,
        PADDED_HEADS=_power_of_two(num_heads),
        HEAD_DIM=head_dim,
        DIM=_power_of_two(head_dim),
        num_warps=4,
        enable_fp_fusion=True,
    )  # fmt: skip


def _device_limits(device: torch.device) -> tuple[int, int]:
    """(multiprocessors, bytes of shared memory one program may have); small ones off CUDA."""
    if device.type != "cuda":
        return 1, 96 << 10
    properties = torch.cuda.get_device_properties(device)
    shared = getattr(
        properties, "shared_memory_per_block_optin", properties.shared_memory_per_block
    )
    return properties.multi_processor_count, shared


def _rows_contiguous(x: torch.Tensor) -> torch.Tensor:
    """x itself if its last dimension is contiguous, else a copy that is."""
    return x if x.stride(-1) == 1 else x.contiguous()
