"""The prefix cache: which full blocks can be found again, and by whom.

A block that lies inside prefix segments can be hit by any request with the same prefix: it stands in
a hash index, behind earlier blocks with the same hash. Every other full block (the rest of a prompt,
generated tokens) holds tokens that only its own request has, so only that request can hit it, after a
preemption: it stands in the request's own list, and no hash is computed for it. Both give what
vLLM's one hash map gives: of equal blocks the one registered first.

`key` of a block is 0 outside the cache, else its hash, or 1 + its place in its request (`owner`).
A block is registered when it is scheduled to become full, before it is computed, as in vLLM.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.core.jit import kernel
from engine.core.state import mix

_START = np.uint64(0x243F6A8885A308D3)
_FREE = np.uint64(0)


@kernel
def _find(s: Any, h: Any) -> Any:
    """Place of hash h in the index, or of the empty cell where it would go."""
    mask = np.uint64(len(s.index) - 1)
    i = h & mask
    while s.index[i].block != 0 and s.index[i].key != h:
        i = (i + np.uint64(1)) & mask
    return np.int64(i)


@kernel
def _register_shared(s: Any, b: Any, h: Any) -> None:
    """List block b under the hash h, behind others with that hash."""
    i = _find(s, h)
    head = s.index[i].block
    block = s.blocks[b]
    block.key = h
    block.owner = 0
    block.same_next = 0
    if head == 0:
        s.index[i].key = h
        s.index[i].block = b
        block.same_prev = 0
        block.same_tail = b
    else:
        tail = s.blocks[head].same_tail
        s.blocks[tail].same_next = b
        block.same_prev = tail
        s.blocks[head].same_tail = b


@kernel
def _register_own(s: Any, b: Any, r: Any, place: Any) -> None:
    """Append block b, which holds block `place` of request r, to the request's own list."""
    q = s.requests[r]
    block = s.blocks[b]
    block.key = np.uint64(place + 1)
    block.owner = r + 1
    block.same_next = 0
    block.same_prev = q.own_tail
    if q.own_tail == 0:
        q.own_head = b
    else:
        s.blocks[q.own_tail].same_next = b
    q.own_tail = b


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
def forget(s: Any, b: Any) -> None:
    """Take block b out of the prefix cache. The caller keeps the cached counts."""
    block = s.blocks[b]
    n, p = block.same_next, block.same_prev
    if block.owner > 0:
        q = s.requests[block.owner - 1]
        if p == 0:
            q.own_head = n
        else:
            s.blocks[p].same_next = n
        if n == 0:
            q.own_tail = p
        else:
            s.blocks[n].same_prev = p
    else:
        i = _find(s, block.key)
        if p == 0:
            if n == 0:
                _erase(s, i)
            else:
                s.index[i].block = n
                s.blocks[n].same_prev = 0
                s.blocks[n].same_tail = block.same_tail
        else:
            s.blocks[p].same_next = n
            if n != 0:
                s.blocks[n].same_prev = p
            else:
                s.blocks[s.index[i].block].same_tail = p
    block.key = _FREE


@kernel
def shared_hash(s: Any, r: Any, place: Any, block_size: Any) -> Any:
    """Hash of the tokens of request r up to the end of its block `place`, inside its segments."""
    q = s.requests[r]
    last = (place + 1) * block_size - 1
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
    h = mix(mix(parent, s.segs[lo].id), np.uint64(last - begin + 1) << np.uint64(32))
    return h if h != _FREE else np.uint64(1)


@kernel
def register_full(s: Any, r: Any, num_tokens: Any, block_size: Any) -> None:
    """Register every block of request r that is full once its first num_tokens are computed."""
    q = s.requests[r]
    full = num_tokens // block_size
    shared = q.shared_tokens // block_size
    for place in range(q.num_hashed, full):
        b = np.int64(s.table[q.slot, place])
        if place < shared:
            _register_shared(s, b, shared_hash(s, r, place, block_size))
        else:
            _register_own(s, b, r, place)
        s.c[0].cached_used += 1
    if full > q.num_hashed:
        q.num_hashed = full


@kernel
def find_hits(s: Any, r: Any, slot: Any, block_size: Any) -> Any:
    """Write the cached leading blocks of request r into row `slot`; returns (hits, idle hits).

    At most num_tokens - 1 tokens: the last one must be computed to sample. Idle ones have no holder.
    """
    q = s.requests[r]
    limit = min((q.num_tokens - 1) // block_size, s.table.shape[1])
    shared = min(q.shared_tokens // block_size, limit)
    hits = 0
    while hits < shared:
        b = s.index[_find(s, shared_hash(s, r, hits, block_size))].block
        if b == 0:
            break
        s.table[slot, hits] = b
        hits += 1
    if hits == shared and q.own_head != 0:
        for i in range(shared, limit):
            s.table[slot, i] = 0
        b = q.own_head
        while b != 0:  # oldest registration first
            place = np.int64(s.blocks[b].key) - 1
            if place < limit and s.table[slot, place] == 0:
                s.table[slot, place] = b
            b = s.blocks[b].same_next
        while hits < limit and s.table[slot, hits] != 0:
            hits += 1
    idle = 0
    for i in range(hits):
        if s.blocks[s.table[slot, i]].ref == 0:
            idle += 1
    return hits, idle
