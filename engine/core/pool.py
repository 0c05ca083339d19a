"""The block pool: free block queue, reference counts and the prefix-cache index.

It knows blocks and hashes, and of a request only its row of the block table. It decides nothing.

The free queue is a ring through block 0 (the null block, which is never handed out): `block_next[0]`
is the head, where blocks are taken, `block_prev[0]` the tail. Freed blocks that carry no hash go to
the head, hashed ones to the tail, so what can still be hit lives longest.
Source: vllm-v1 semantics of 0.26.0, sections 3-5 of the project's reading (docs/scheduler.md).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.core.jit import inlined, kernel
from engine.core.state import _mix

_UNIQUE = np.uint64(0xA0761D6478BD642F)
_START = np.uint64(0x243F6A8885A308D3)


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
def _find(s: Any, h: Any) -> Any:
    """Place of hash h in the index, or of the empty cell where it would go."""
    mask = np.uint64(len(s.index) - 1)
    i = h & mask
    while s.index[i].block != 0 and s.index[i].key != h:
        i = (i + np.uint64(1)) & mask
    return np.int64(i)


@inlined
def lookup(s: Any, h: Any) -> Any:
    """First registered block with hash h, or 0."""
    return s.index[_find(s, h)].block


@kernel
def register(s: Any, b: Any, h: Any) -> None:
    """Give block b (held by somebody) the hash h and list it behind others with that hash."""
    i = _find(s, h)
    head = s.index[i].block
    s.blocks[b].same_next = 0
    if head == 0:
        s.index[i].key = h
        s.index[i].block = b
        s.blocks[b].same_prev = 0
        s.blocks[b].same_tail = b
    else:
        tail = s.blocks[head].same_tail
        s.blocks[tail].same_next = b
        s.blocks[b].same_prev = tail
        s.blocks[head].same_tail = b
    s.blocks[b].hash = h
    s.c[0].cached_used += 1


@kernel
def _erase(s: Any, i: Any) -> None:
    """Empty cell i of the index, moving later cells of the probe sequence up."""
    mask = len(s.index) - 1
    hole = i
    j = i
    while True:
        j = (j + 1) & mask
        if s.index[j].block == 0:
            break
        home = np.int64(s.index[j].key & np.uint64(mask))
        if ((j - home) & mask) >= ((j - hole) & mask):
            s.index[hole].key = s.index[j].key
            s.index[hole].block = s.index[j].block
            hole = j
    s.index[hole].block = 0


@kernel
def forget_hash(s: Any, b: Any) -> None:
    """Take block b out of the prefix index. The caller keeps the cached counts."""
    i = _find(s, s.blocks[b].hash)
    n, p = s.blocks[b].same_next, s.blocks[b].same_prev
    if p == 0:
        if n == 0:
            _erase(s, i)
        else:
            s.index[i].block = n
            s.blocks[n].same_prev = 0
            s.blocks[n].same_tail = s.blocks[b].same_tail
    else:
        s.blocks[p].same_next = n
        if n != 0:
            s.blocks[n].same_prev = p
        else:
            s.blocks[s.index[i].block].same_tail = p
    s.blocks[b].hash = np.uint64(0)


@kernel
def take_block(s: Any) -> Any:
    """The block at the head of the free queue, un-hashed, with one holder. There must be one."""
    b = s.blocks[0].next
    unlink_free(s, b)
    if s.blocks[b].hash != np.uint64(0):
        forget_hash(s, b)
        s.c[0].cached_free -= 1
        s.c[0].num_evicted += 1
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


@kernel
def free_row(s: Any, slot: Any, num_blocks: Any) -> Any:
    """Let go of a block-table row, last block first; returns how many became free.

    All unhashed blocks end up before the old head, the first freed (the row's last) in front; the
    hashed ones behind the old tail in the same order.
    """
    c = s.c[0]
    freed = 0
    after = 0  # where the next unhashed block is linked in: behind the previous one
    for i in range(num_blocks - 1, -1, -1):
        b = np.int64(s.table[slot, i])
        s.blocks[b].ref -= 1
        if s.blocks[b].ref != 0:
            continue
        freed += 1
        if s.blocks[b].hash == np.uint64(0):
            n = s.blocks[after].next
            s.blocks[after].next = b
            s.blocks[b].prev = after
            s.blocks[b].next = n
            s.blocks[n].prev = b
            c.num_free += 1
            after = b
        else:
            push_free(s, b, False)
            c.cached_used -= 1
            c.cached_free += 1
    return freed


@kernel
def block_key(s: Any, r: Any, index: Any, block_size: Any) -> Any:
    """Hash of the tokens of request r up to the end of its block `index`; never 0.

    Blocks covered by prefix segments hash to the chain of segments, so equal prefixes of different
    requests meet; every other block (the rest of a prompt, generated tokens) is the request's own.
    """
    q = s.requests[r]
    last = (index + 1) * block_size - 1
    if last < q.shared_tokens:
        lo, hi = q.seg_start, q.seg_start + q.num_segs - 1
        while lo < hi:
            mid = (lo + hi) // 2
            if s.segs[mid].end > last:
                hi = mid
            else:
                lo = mid + 1
        parent = _START
        begin = 0
        if lo > q.seg_start:
            parent = s.segs[lo - 1].chain
            begin = s.segs[lo - 1].end
        h = _mix(_mix(parent, s.segs[lo].id), np.uint64(last - begin + 1) << np.uint64(32))
    else:
        h = _mix(_mix(_UNIQUE, np.uint64(r)), np.uint64(index))
    if h == np.uint64(0):
        h = np.uint64(1)
    return h


@kernel
def register_full(s: Any, r: Any, num_tokens: Any, block_size: Any) -> None:
    """Register every block of request r that is full once its first num_tokens are computed."""
    q = s.requests[r]
    full = num_tokens // block_size
    for i in range(q.num_hashed, full):
        register(s, np.int64(s.table[q.slot, i]), block_key(s, r, i, block_size))
    if full > q.num_hashed:
        q.num_hashed = full


@kernel
def longest_hit(s: Any, r: Any, block_size: Any) -> Any:
    """Number of leading blocks of request r in the prefix cache, at most num_tokens - 1 tokens."""
    limit = (s.requests[r].num_tokens - 1) // block_size
    i = 0
    while i < limit and lookup(s, block_key(s, r, i, block_size)) != 0:
        i += 1
    return i
