"""Which pieces a copy of blocks is made of, and how they are handed over: loop, batch, coalesced.

loop: one copy for each layer's K and V of each block, one call each. batch: the same pieces in one call.
coalesced: one copy for each run of blocks that are neighbours on both sides; where runs are short, blocks
are gathered into a slab on the device and cross the link in runs of the host's side only. Layout
"layer" has no memory in which neighbouring layers of a block meet: a run is 2 L pieces there.

It moves bytes on whatever stream or thread it is called; order and time are swap.py's business.

Legend: n blocks of a copy, N blocks of a pool, L layers, F words of a fragment (kv_cache.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from engine.cost_params import COPY_PATHS
from engine.gpu.kv_cache import BlockPool
from traces.errors import SettingsError

MIB = 2**20
# A copy of 1 MiB takes 20 us on a 53 GB/s link, several times what handing it over costs.
STAGE_BELOW_BYTES = MIB
STAGING_BYTES = 32 * MIB


class Runs(NamedTuple):
    """Runs of blocks that are neighbours on both sides, in ascending host ids: (r,) first ids, lengths."""

    device: np.ndarray
    host: np.ndarray
    length: np.ndarray


def runs_of(device_ids: np.ndarray, host_ids: np.ndarray) -> Runs:
    """The fewest runs that cover the pairs (device_ids[i], host_ids[i]), in whatever order they come."""
    order = np.argsort(host_ids, kind="stable")
    g, h = device_ids[order], host_ids[order]
    first = np.ones(len(h), bool)
    first[1:] = (np.diff(h) != 1) | (np.diff(g) != 1)
    starts = np.flatnonzero(first)
    return Runs(g[starts], h[starts], np.diff(np.append(starts, len(h))))


class Plan(NamedTuple):
    """One transfer, ready to be made. num_runs: separate copies that cross the link."""

    num_runs: int
    run: Callable[[], None]


class Piece(NamedTuple):
    """One side of a transfer: a pool and the first ids (r,) of the runs in it."""

    pool: BlockPool
    first: np.ndarray


# (destination, source, lengths (r,) in blocks, whether each fragment is a copy of its own)
Many = Callable[[Piece, Piece, np.ndarray, bool], None]


class CopyPath:
    """Plans transfers between two pools along one path.

    device, host: the pools; many: hands over many copies at once; stage_below_bytes: pieces shorter than
    that are worth a slab (0: never), staging_bytes: its size.

    Raises: SettingsError for an unknown path.
    """

    def __init__(
        self,
        device: BlockPool,
        host: BlockPool,
        path: str,
        many: Many,
        *,
        stage_below_bytes: int,
        staging_bytes: int,
    ) -> None:
        if path not in COPY_PATHS:
            raise SettingsError(
                f"copy path {path!r} is not known. Choose one of {', '.join(COPY_PATHS)}."
            )
        self.device, self.host, self.path = device, host, path
        self._many = many
        self._by_fragment = path != "coalesced" or device.layout == "layer"
        self._stage_below = stage_below_bytes if path == "coalesced" else 0
        self._slab_blocks = staging_bytes // device.block_bytes

    def plan(self, device_ids: np.ndarray, host_ids: np.ndarray, *, out: bool) -> Plan:
        """The transfer of device_ids[i] to host_ids[i] (out), or the other way."""
        if self.path == "coalesced":
            runs = runs_of(device_ids, host_ids)
            host_runs = runs_of(np.arange(len(host_ids)), np.sort(host_ids))
            if self._stages(runs, host_runs):
                return self._staged(device_ids, host_ids, out)
        else:
            runs = Runs(device_ids, host_ids, np.ones(len(host_ids), np.int64))
        return self._direct(runs, out)

    def _direct(self, runs: Runs, out: bool) -> Plan:
        """Every run straight across."""
        sides = Piece(self.host, runs.host), Piece(self.device, runs.device)
        dst, src = sides if out else sides[::-1]
        split, lengths = self._by_fragment, runs.length
        hand_over = one_by_one if self.path == "loop" else self._many
        pieces = len(lengths) * (2 * self.device.shape.num_layers if split else 1)
        return Plan(pieces, lambda: hand_over(dst, src, lengths, split))

    def _stages(self, runs: Runs, host_runs: Runs) -> bool:
        """Whether a pass over device memory pays: pieces are short, and the host's side has half as many."""
        blocks = int(runs.length.sum())
        piece = self.device.block_bytes
        if self._by_fragment:
            piece = self.device.shape.fragment_bytes
        short = blocks * piece < self._stage_below * len(runs.length)
        return self._slab_blocks > 0 and short and 2 * len(host_runs.length) <= len(runs.length)

    def _staged(self, device_ids: np.ndarray, host_ids: np.ndarray, out: bool) -> Plan:
        """Gather into the slab and copy host runs; or copy host runs and scatter. A slabful at a time."""
        order = np.argsort(host_ids, kind="stable")
        g, h = device_ids[order], host_ids[order]
        parts = [
            (g[i : i + self._slab_blocks], h[i : i + self._slab_blocks])
            for i in range(0, len(h), self._slab_blocks)
        ]
        runs = [runs_of(np.arange(len(ids)), ids) for _, ids in parts]
        split = self._by_fragment
        pieces = sum(len(r.length) for r in runs)
        pieces *= 2 * self.device.shape.num_layers if split else 1

        def run() -> None:
            for (ids, _), r in zip(parts, runs, strict=True):
                slab = slab_of(self.device, len(ids))
                where = to_device(ids, self.device.device)
                host, staged = Piece(self.host, r.host), Piece(slab, r.device)
                if out:
                    gather(self.device, where, slab)
                    self._many(host, staged, r.length, split)
                else:
                    self._many(staged, host, r.length, split)
                    scatter(slab, where, self.device)

        return Plan(pieces, run)


def views(piece: Piece, lengths: np.ndarray, split: bool) -> list[Any]:
    """The contiguous memory of each run, in order; split: of each fragment of each run."""
    words = piece.pool.words
    whole = [
        words[i : i + n] for i, n in zip(piece.first.tolist(), lengths.tolist(), strict=True)
    ]
    return [part for run in whole for part in run.unbind(1)] if split else whole


def pointers(piece: Piece, split: bool) -> np.ndarray:
    """Addresses of what `views` lists, (r,) or (r * 2 L,) uint64."""
    words = piece.pool.words
    block, fragment, _ = (step * words.element_size() for step in words.stride())
    first = np.uint64(words.data_ptr()) + piece.first.astype(np.uint64) * np.uint64(block)
    if not split:
        return first
    inner = np.arange(words.shape[1], dtype=np.uint64) * np.uint64(fragment)
    return (first[:, None] + inner).ravel()


def piece_bytes(pool: BlockPool, lengths: np.ndarray, split: bool) -> np.ndarray:
    """Sizes of what `views` lists, (r,) or (r * 2 L,) uint64."""
    if not split:
        return lengths.astype(np.uint64) * np.uint64(pool.block_bytes)
    each = lengths.astype(np.uint64) * np.uint64(pool.shape.fragment_bytes)
    return np.repeat(each, 2 * pool.shape.num_layers)


def one_by_one(dst: Piece, src: Piece, lengths: np.ndarray, split: bool) -> None:
    """A call a piece."""
    pairs = zip(views(dst, lengths, split), views(src, lengths, split), strict=True)
    for to, of in pairs:
        to.copy_(of, non_blocking=True)


def in_one_call(dst: Piece, src: Piece, lengths: np.ndarray, split: bool) -> None:
    """One call of torch for all pieces; between devices it makes the copies one after the other in C++."""
    torch._foreach_copy_(
        views(dst, lengths, split), views(src, lengths, split), non_blocking=True
    )


def slab_of(pool: BlockPool, num_blocks: int) -> BlockPool:
    """Room for that many blocks on the pool's device, from the allocator of the stream it is used on."""
    memory = torch.empty(num_blocks * pool.block_bytes, dtype=torch.uint8, device=pool.device)
    return BlockPool(num_blocks, pool.shape, pool.layout, memory)


def gather(pool: BlockPool, ids: Any, slab: BlockPool) -> None:
    """Copy the blocks `ids` (n,) of the pool to the n blocks of the slab."""
    of, axis = _flat(pool)
    torch.index_select(of, axis, ids, out=_flat(slab)[0])


def scatter(slab: BlockPool, ids: Any, pool: BlockPool) -> None:
    """Copy the n blocks of the slab to the blocks `ids` (n,) of the pool."""
    to, axis = _flat(pool)
    to.index_copy_(axis, ids, _flat(slab)[0])


def _flat(pool: BlockPool) -> tuple[Any, int]:
    """The pool's words as they lie in memory, and the axis that counts blocks."""
    if pool.layout == "block":
        return pool.words.flatten(1), 0
    return pool.words.transpose(0, 1), 1


def to_device(ids: np.ndarray, device: Any) -> Any:
    """Block ids (n,) int64 where the blocks are, without waiting for the device."""
    here = torch.from_numpy(np.ascontiguousarray(ids))
    if device.type == "cpu":
        return here
    return here.pin_memory().to(device, non_blocking=True)
