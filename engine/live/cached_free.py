"""Cached free blocks of vLLM's pool, counted as they come and go.

It wraps methods of vLLM's free queue and pool on their instances; each calls straight through.
"""

from __future__ import annotations

from typing import Any


class CachedFree:
    """How many free blocks can still be hit in the prefix cache, kept up to date cheaply.

    vLLM puts freed blocks without a hash in front of its free queue and those with one at its end,
    and takes from the front. So it is enough to count the blocks without a hash: they come with
    prepend_n and go first. Looks through the queue once, at the start and after a reset.
    """

    def __init__(self, pool: Any) -> None:
        self._queue = queue = pool.free_block_queue
        self._unhashed = self._look()
        prepend_n, popleft_n, popleft = queue.prepend_n, queue.popleft_n, queue.popleft

        def noted_prepend_n(blocks: Any) -> Any:
            self._unhashed += len(blocks)
            return prepend_n(blocks)

        def noted_popleft_n(n: int) -> Any:
            self._unhashed = self._unhashed - n if self._unhashed > n else 0
            return popleft_n(n)

        def noted_popleft() -> Any:
            self._unhashed = max(0, self._unhashed - 1)
            return popleft()

        queue.prepend_n, queue.popleft_n = noted_prepend_n, noted_popleft_n
        queue.popleft = noted_popleft
        for name in ("reset_prefix_cache", "evict_blocks"):
            self._look_after(pool, name)

    def _look(self) -> int:
        return sum(b.block_hash is None for b in self._queue.get_all_free_blocks())

    def _look_after(self, pool: Any, name: str) -> None:
        """Count anew after calls that take hashes from blocks which stay in the queue."""
        inner = getattr(pool, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            result = inner(*args, **kwargs)
            self._unhashed = self._look()
            return result

        setattr(pool, name, noted)

    def count(self, free: int) -> int:
        """Cached ones among `free` free blocks."""
        return max(0, free - self._unhashed)
