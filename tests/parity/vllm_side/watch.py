"""Looks at vLLM's scheduler and block pool, and calls straight through: it changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

_hash_of = attrgetter("_block_hash")
_holders_of = attrgetter("ref_cnt")
_SCAN_EVERY = 64  # counts between two scans of a large pool
_SMALL = 256  # blocks; smaller pools are scanned every time


class CachedBlocks:
    """How many blocks of a pool hold cached tokens, in use and free.

    Counted where vLLM's BlockPool changes it, because a scan of thousands of blocks twice a step
    takes longer than the scheduler; now and then a scan checks the sums.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._used, self._free = self._scan()
        self._asked = 0
        self._insert = pool._insert_block_hash
        self._remove = pool._remove_cached_block_hashes
        self._touch = pool.touch
        self._give_back = pool.free_blocks
        pool._insert_block_hash = self._noted_insert
        pool._remove_cached_block_hashes = self._noted_remove
        pool.touch = self._noted_touch
        pool.free_blocks = self._noted_free

    def counts(self) -> tuple[int, int]:
        """(in use, free). Raises RuntimeError where a scan finds others."""
        self._asked += 1
        if len(self._pool.blocks) <= _SMALL or self._asked % _SCAN_EVERY == 0:
            seen = self._scan()
            if seen != (self._used, self._free):
                raise RuntimeError(
                    f"counted {(self._used, self._free)} cached, the pool has {seen}"
                )
        return self._used, self._free

    def _scan(self) -> tuple[int, int]:
        hashes = list(map(_hash_of, self._pool.blocks))
        used = list(itertools.compress(hashes, map(_holders_of, self._pool.blocks)))
        cached_used = len(used) - used.count(None)
        return cached_used, len(hashes) - hashes.count(None) - cached_used

    def _add(self, block: Any, count: int) -> None:
        if block.ref_cnt:
            self._used += count
        else:
            self._free += count

    def _noted_insert(self, key: Any, block: Any, num_tokens: int | None) -> None:
        had = block._block_hash is not None
        self._insert(key, block, num_tokens)
        if not had and block._block_hash is not None:
            self._add(block, 1)

    def _noted_remove(self, block: Any) -> Any:
        if block._block_hash is not None:
            self._add(block, -1)
        return self._remove(block)

    def _noted_touch(self, blocks: Sequence[Any]) -> None:
        taken = sum(b.ref_cnt == 0 and b._block_hash is not None for b in blocks)
        self._used += taken
        self._free -= taken
        self._touch(blocks)

    def _noted_free(self, ordered_blocks: Iterable[Any]) -> None:
        blocks = list(ordered_blocks)
        self._give_back(blocks)
        freed = sum(b.ref_cnt == 0 and b._block_hash is not None for b in blocks)
        self._used -= freed
        self._free += freed


class Watch:
    """Looks at vLLM's scheduler: its queues, its pool, and each preemption as it happens."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        self._pool = scheduler.kv_cache_manager.block_pool
        self._cached = CachedBlocks(self._pool)
        self._preempt = scheduler._preempt_request
        self.preempted: list[list[Any]] = []
        scheduler._preempt_request = self._noted_preemption

    def _noted_preemption(self, request: Any, timestamp: float) -> None:
        held = self._scheduler.kv_cache_manager.get_blocks(request.request_id).blocks[0]
        self.preempted.append([request.request_id, request.num_computed_tokens, len(held)])
        self._preempt(request, timestamp)

    def blocks(self) -> list[int]:
        """Used, free, and of each how many hold cached tokens."""
        free = self._pool.get_num_free_blocks()
        used = self._pool.num_gpu_blocks - 1 - free
        return [used, free, *self._cached.counts()]

    def decided(self, step: int, running_before: set[str], output: Any) -> dict[str, Any]:
        """The record of the schedule() call that just returned `output`."""
        scheduler = self._scheduler
        tokens = output.num_scheduled_tokens
        known = scheduler.requests
        admitted = [
            [
                r.request_id,
                "resumed" if r.num_preemptions else "new",
                r.num_computed_tokens - tokens[r.request_id],
                tokens[r.request_id],
            ]
            for r in scheduler.running
            if r.request_id not in running_before
        ]
        victims, self.preempted = self.preempted, []
        return {
            "step": step,
            "running": [r.request_id for r in scheduler.running],
            "waiting": [r.request_id for r in scheduler.waiting],
            "deferred": [r.request_id for r in scheduler.skipped_waiting],
            "scheduled": [[i, n, known[i].num_computed_tokens - n] for i, n in tokens.items()],
            "admitted": admitted,
            "preempted": victims,
            "new_blocks": _new_blocks(output),
            "blocks": self.blocks(),
            "finished": [],
        }


def _new_blocks(output: Any) -> dict[str, list[int]]:
    """Request -> blocks it got in this step; its whole table where it was admitted."""
    new = {d.req_id: list(d.block_ids[0]) for d in output.scheduled_new_reqs}
    cached = output.scheduled_cached_reqs
    for request_id, ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
        if ids is not None:
            new[request_id] = list(ids[0])
    return new
