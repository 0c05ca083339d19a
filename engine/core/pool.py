"""The block pool: free block queue and reference counts.

It knows blocks and, of a request, only its row of the block table. It decides nothing.

The free queue is a ring through block 0 (the null block, which is never handed out): `next` of block
0 is the head, where blocks are taken, `prev` the tail. Freed blocks that are in the prefix cache go
to the tail, all others to the head, so what can still be hit lives longest.
Source: vLLM 0.26.0, read and run; docs/scheduler.md tells it section by section.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.core.jit import inlined, kernel
from engine.core.prefix import forget


@inlined
def unlink_free(s: Any, b: Any) -> None:
    """Take block b out of the free queue, wherever it stands."""
    p, n = s.blocks[b].prev, s.blocks[b].next
    s.blocks[p].next = n
    s.blocks[n].prev = p
    s.c[0].num_free -= 1


@inlined
def push_free(s: Any, b: Any, at_head: Any) -> None:
    """Put block b at the head or the tail of the free queue."""
    if at_head:
        n = s.blocks[0].next
        s.blocks[0].next = b
        s.blocks[b].prev = 0
        s.blocks[b].next = n
        s.blocks[n].prev = b
    else:
        p = s.blocks[0].prev
        s.blocks[0].prev = b
        s.blocks[b].next = 0
        s.blocks[b].prev = p
        s.blocks[p].next = b
    s.c[0].num_free += 1


@kernel
def take_block(s: Any) -> Any:
    """The block at the head of the free queue, out of the prefix cache, with one holder. There must be one."""
    b = s.blocks[0].next
    unlink_free(s, b)
    if s.blocks[b].key != np.uint64(0):
        forget(s, b)
        s.c[0].cached_free -= 1
    s.blocks[b].ref = 1
    return b


@inlined
def touch(s: Any, b: Any) -> None:
    """One more holder of a cached block; an idle one leaves the free queue."""
    if s.blocks[b].ref == 0:
        unlink_free(s, b)
        s.c[0].cached_free -= 1
        s.c[0].cached_used += 1
    s.blocks[b].ref += 1


@inlined
def release_after(s: Any, b: Any, after: Any) -> Any:
    """One holder of block b less; returns `after` as it is for the next block to be released.

    A block outside the prefix cache that becomes free is linked in behind `after` (0: at the head), a cached one
    goes to the tail.
    """
    s.blocks[b].ref -= 1
    if s.blocks[b].ref == 0:
        if s.blocks[b].key == np.uint64(0):
            n = s.blocks[after].next
            s.blocks[after].next = b
            s.blocks[b].prev = after
            s.blocks[b].next = n
            s.blocks[n].prev = b
            s.c[0].num_free += 1
            after = b
        else:
            push_free(s, b, False)
            s.c[0].cached_used -= 1
            s.c[0].cached_free += 1
    return after


@kernel
def free_row(s: Any, slot: Any, num_blocks: Any) -> Any:
    """Let go of a block-table row, last block first; returns how many became free.

    All blocks outside the prefix cache end up before the old head, the first freed (the row's last) in front; the
    cached ones behind the old tail in the same order.
    """
    before = s.c[0].num_free
    after = np.int64(0)
    for i in range(num_blocks - 1, -1, -1):
        after = release_after(s, np.int64(s.table[slot, i]), after)
    return s.c[0].num_free - before
