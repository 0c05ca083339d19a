"""Moving KV blocks between device and host: in what order, and when it is over.

Rules of order. A copy starts after all compute that was enqueued before it, so that a copy out reads what the
last step wrote and a copy in does not overwrite what it still reads. It starts after every earlier copy
of the other direction that touches one of its blocks, on either side; copies of one direction keep
their order. Where copies block, the next step waits for all of them; where they are asynchronous it waits for none,
because its blocks are fenced by the scheduler until `Copy.done()` was seen. Who fences too little reads
garbage: tests poison freed blocks to find that out.

It does not know requests, queues or policies (engine.core), nor how bytes are handed over
(copy_paths.py), nor streams (streams.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.gpu.copy_paths import STAGE_BELOW_BYTES, STAGING_BYTES, CopyPath
from engine.gpu.driver_copies import ManyCopies
from engine.gpu.kv_cache import BlockPool, HostPool, KVCache
from engine.gpu.streams import Copy, CpuLanes, CudaLanes, Hook, Lanes, State
from traces.errors import InvariantError, SettingsError

__all__ = ["Copier", "Copy", "HostBlocks"]


class Copier:
    """Copies blocks of `kv` to blocks of `host` and back.

    path: loop, batch or coalesced; asynchronous: steps do not wait for copies. before_copy: called with
    each copy before its bytes move, on its thread or stream (tests delay it). compute_stream: gives the
    stream that steps run on, None: torch's current one. stage_below_bytes, staging_bytes: when
    coalesced copies go through a slab (None: 1 MiB on CUDA, never on a CPU), and its size.

    batch_call: what hands many copies over at once. Used from one thread. Close it, or use it in a with.

    Raises: SettingsError for an unknown path, or asynchronous copies to memory that is not pinned.
    """

    def __init__(
        self,
        kv: KVCache,
        host: HostPool,
        path: str = "coalesced",
        asynchronous: bool = False,
        *,
        before_copy: Hook | None = None,
        compute_stream: Callable[[], Any] | None = None,
        stage_below_bytes: int | None = None,
        staging_bytes: int = STAGING_BYTES,
    ) -> None:
        cuda = kv.device.type == "cuda"
        if cuda and asynchronous and not host.pinned:
            raise SettingsError(
                "asynchronous copies need pinned host memory: with this host pool the host would wait for every "
                "copy. Pin it (HostPool(kv, n)), or choose blocking copies."
            )
        if (host.layout, host.shape) != (kv.layout, kv.shape):
            raise SettingsError(
                f"the host pool's blocks ({host.layout}, {host.shape}) are not the device's ({kv.layout}, {kv.shape})."
            )
        self.kv, self.host, self.asynchronous = kv, host, asynchronous
        many = ManyCopies(kv.device, pinned=host.pinned)
        self.path, self.batch_call = path, many.name
        below = stage_below_bytes
        if below is None:
            below = STAGE_BELOW_BYTES if cuda else 0
        self._paths = CopyPath(
            kv, host, path, many, stage_below_bytes=below, staging_bytes=staging_bytes
        )
        self._lanes: Lanes = (
            CudaLanes(kv.device, compute_stream, before_copy)
            if cuda
            else CpuLanes(asynchronous, before_copy)
        )
        self._copies: list[
            Copy
        ] = []  # not known to be over, in the order in which they were asked for
        self._by_block = {d: _LastCopies(kv, host) for d in ("out", "in")}
        self._since_step: list[Copy] = []
        self._closed = False

    def copy_out(self, gpu_blocks: Any, host_blocks: Any) -> Copy:
        """Copy gpu_blocks[i] to host_blocks[i]; both (n,) ids."""
        return self._copy("out", gpu_blocks, host_blocks)

    def copy_in(self, host_blocks: Any, gpu_blocks: Any) -> Copy:
        """Copy host_blocks[i] to gpu_blocks[i]; both (n,) ids."""
        return self._copy("in", gpu_blocks, host_blocks)

    def _copy(self, direction: str, gpu_blocks: Any, host_blocks: Any) -> Copy:
        if self._closed:
            raise InvariantError(f"a copy {direction} after the copier was closed")
        gpu = checked_ids(gpu_blocks, self.kv, "GPU")
        host = checked_ids(host_blocks, self.host, "host")
        if len(gpu) != len(host):
            raise InvariantError(
                f"copy {direction}: {len(gpu)} GPU blocks, {len(host)} host blocks"
            )
        plan = self._paths.plan(gpu, host, out=direction == "out")
        copy = self._lanes.new(
            direction, len(gpu), len(gpu) * self.kv.block_bytes, plan.num_runs
        )
        other = self._by_block["in" if direction == "out" else "out"].last(gpu, host)
        self._copies.append(copy)
        self._lanes.start(copy, plan, () if other is None else (other,))
        self._by_block[direction].note(gpu, host, copy)
        self._since_step.append(copy)
        return copy

    def order_step(self) -> None:
        """Call before a step's compute is enqueued: blocking copies come before it."""
        if not self.asynchronous:
            for copy in self._since_step:
                copy.wait_on_compute()
        self._since_step.clear()

    def after_step(self) -> None:
        """Call when a step's compute is enqueued: copies asked for from now on start after it.

        Forgets copies that are over. One that failed is kept until somebody was told; close() tells.
        """
        self._copies = [
            copy for copy in self._copies if copy.state() in (State.RUNNING, State.FAILED)
        ]

    def close(self) -> None:
        """Wait for every copy, stop the threads. Raises what stopped a copy, if anything did."""
        if self._closed:
            return
        self._closed = True
        self._lanes.close()
        for copy in self._copies:
            if copy.state() is not State.FAILED_AND_TOLD:
                copy.wait()
        self._copies.clear()

    def __enter__(self) -> Copier:
        return self

    def __exit__(self, kind: Any, fault: Any, trace: Any) -> None:
        try:
            self.close()
        except Exception:  # whatever stopped a copy, on any thread or stream
            if fault is None:  # an error on its way out is the one to be seen
                raise


def checked_ids(ids: Any, pool: BlockPool, kind: str) -> np.ndarray:
    """Block ids as (n,) int64. Raises InvariantError where one is not in the pool or named twice."""
    got = np.ascontiguousarray(ids, dtype=np.int64).ravel()
    if len(got) == 0:
        raise InvariantError(f"a copy of no {kind} blocks")
    if got.min() < 0 or got.max() >= pool.num_blocks:
        bad = got[(got < 0) | (got >= pool.num_blocks)]
        raise InvariantError(f"{kind} blocks {bad.tolist()} are not among {pool.num_blocks}")
    if len(np.unique(got)) != len(got):
        raise InvariantError(f"{kind} blocks {got.tolist()} name one block twice in one copy")
    return got


class _LastCopies:
    """For each block of both pools, the number of the last copy of one direction that touched it.

    Copies of a direction end in their order, so that waiting for the youngest is enough.
    """

    def __init__(self, kv: BlockPool, host: BlockPool) -> None:
        self._gpu = np.zeros(kv.num_blocks, np.int64)
        self._host = np.zeros(host.num_blocks, np.int64)
        self._copies: dict[int, Copy] = {}
        self._next = 1

    def note(self, gpu: np.ndarray, host: np.ndarray, copy: Copy) -> None:
        """`copy` is the last of its direction that touches these blocks."""
        self._gpu[gpu] = self._next
        self._host[host] = self._next
        self._copies[self._next] = copy
        self._next += 1
        for n in [n for n, c in self._copies.items() if c.state() is State.ENDED]:
            del self._copies[n]

    def last(self, gpu: np.ndarray, host: np.ndarray) -> Copy | None:
        """The youngest copy that touches one of these blocks, if it has not ended well by now."""
        return self._copies.get(int(max(self._gpu[gpu].max(), self._host[host].max())))


class HostBlocks:
    """Which blocks of a host pool are free; hands out ascending runs, so that copies are few and long."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 0:
            raise SettingsError(f"num_host_blocks {num_blocks} must be 0 or more.")
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self._free = np.ones(num_blocks, bool)

    def allocate(self, num_blocks: int) -> np.ndarray | None:
        """num_blocks ids (n,), ascending, or None where so many are not free.

        The shortest run that holds them all; where none does, the longest runs first.
        """
        if num_blocks < 1:
            raise InvariantError(f"{num_blocks} host blocks asked for")
        if num_blocks > self.num_free:
            return None
        edges = np.flatnonzero(np.diff(np.concatenate(([False], self._free, [False]))))
        first, length = edges[::2], np.diff(edges)[::2]
        fits = np.flatnonzero(length >= num_blocks)
        if len(fits):
            start = first[fits[np.argmin(length[fits])]]
            ids = np.arange(start, start + num_blocks)
        else:
            order = np.argsort(-length, kind="stable")
            runs = [np.arange(first[i], first[i] + length[i]) for i in order]
            ids = np.sort(np.concatenate(runs)[:num_blocks])
        self._free[ids] = False
        self.num_free -= num_blocks
        return ids

    def free(self, ids: Any) -> None:
        """Give blocks back. Raises InvariantError where one is unknown, free already or named twice."""
        got = np.ascontiguousarray(ids, dtype=np.int64).ravel()
        known = (got >= 0) & (got < self.num_blocks)
        if not known.all():
            raise InvariantError(
                f"host blocks {got[~known].tolist()} are not among {self.num_blocks}"
            )
        twice = self._free[got]
        if twice.any() or len(np.unique(got)) != len(got):
            raise InvariantError(
                f"host blocks {got[twice].tolist() or got.tolist()} are given back twice"
            )
        self._free[got] = True
        self.num_free += len(got)
