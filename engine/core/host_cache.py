"""The host's block cache: which blocks it holds, who reads or writes them, and in which order they go.

It is a second prefix cache, below the GPU's: a block is found by the hash of all tokens up to its
end. It knows keys, one ring of blocks that may be handed out (oldest first; never used ones are the
oldest) and a hash index. It does not know why a block is stored or loaded (offload.py).

A row of `s.hosts` holds three things that have nothing to do with each other: a host block, a cell of
the index and a copy job; one array costs a compiled function less than three.
Block 0 is the ring's head and never handed out.
Source: vLLM 0.26.0, `v1/kv_offload/cpu/manager.py` and `v1/simple_kv_offload/manager.py`, read and run.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.core.jit import inlined, kernel
from engine.core.prefix import shared_hash
from engine.core.state import mix

_FREE = np.uint64(0)
_OWN = np.uint64(0x452821E638D01377)


@kernel
def key_of(s: Any, rules: Any, r: Any, place: Any) -> Any:
    """Hash of the tokens of request r up to the end of its block `place`; never 0."""
    if place < s.requests[r].shared_tokens // rules.block_size:
        return shared_hash(s, r, place, rules.block_size)
    h = mix(mix(_OWN, np.uint64(r + 1)), np.uint64(place + 1))
    return h if h != _FREE else np.uint64(1)


@kernel
def key_of_gpu_block(s: Any, b: Any) -> Any:
    """The same hash, of what a block of the GPU's prefix cache holds."""
    block = s.blocks[b]
    if block.owner == 0:
        return block.key
    h = mix(mix(_OWN, np.uint64(block.owner)), block.key)
    return h if h != _FREE else np.uint64(1)


@kernel
def _cell(s: Any, h: Any) -> Any:
    """Place of hash h in the index, or of the empty cell where it would go."""
    mask = np.uint64(s.c[0].host_mask)
    i = h & mask
    while s.hosts[i].cell_block != 0 and s.hosts[i].cell_key != h:
        i = (i + np.uint64(1)) & mask
    return np.int64(i)


@inlined
def find_host(s: Any, h: Any) -> Any:
    """The host block that was listed first under hash h, or 0."""
    return s.hosts[_cell(s, h)].cell_block


@kernel
def list_host(s: Any, b: Any) -> None:
    """List host block b under its key, behind others with that key."""
    block = s.hosts[b]
    i = _cell(s, block.key)
    head = s.hosts[i].cell_block
    block.same_next = 0
    block.listed = 1
    s.c[0].host_filled += 1
    s.c[0].host_version += 1
    if head == 0:
        s.hosts[i].cell_key = block.key
        s.hosts[i].cell_block = b
        block.same_prev = 0
        block.same_tail = b
    else:
        tail = s.hosts[head].same_tail
        s.hosts[tail].same_next = b
        block.same_prev = tail
        s.hosts[head].same_tail = b


@kernel
def _erase(s: Any, i: Any) -> None:
    """Empty cell i of the index, moving later cells of the probe sequence up."""
    mask = s.c[0].host_mask
    hole = i
    j = i
    while True:
        j = (j + 1) & mask
        if s.hosts[j].cell_block == 0:
            break
        home = np.int64(s.hosts[j].cell_key & np.uint64(mask))
        if ((j - home) & mask) >= ((j - hole) & mask):
            s.hosts[hole].cell_key = s.hosts[j].cell_key
            s.hosts[hole].cell_block = s.hosts[j].cell_block
            hole = j
    s.hosts[hole].cell_block = 0


@kernel
def _unlist(s: Any, b: Any) -> None:
    """Take host block b out of the index."""
    block = s.hosts[b]
    n, p = block.same_next, block.same_prev
    i = _cell(s, block.key)
    if p == 0:
        if n == 0:
            _erase(s, i)
        else:
            s.hosts[i].cell_block = n
            s.hosts[n].same_prev = 0
            s.hosts[n].same_tail = block.same_tail
    else:
        s.hosts[p].same_next = n
        if n != 0:
            s.hosts[n].same_prev = p
        else:
            s.hosts[s.hosts[i].cell_block].same_tail = p
    block.listed = 0
    s.c[0].host_filled -= 1
    s.c[0].host_version += 1


@inlined
def _unlink(s: Any, b: Any) -> None:
    p, n = s.hosts[b].prev, s.hosts[b].next
    s.hosts[p].next = n
    s.hosts[n].prev = p
    s.c[0].host_free -= 1


@inlined
def _append(s: Any, b: Any) -> None:
    """Make host block b the youngest of those that may be handed out."""
    p = s.hosts[0].prev
    s.hosts[0].prev = b
    s.hosts[b].next = 0
    s.hosts[b].prev = p
    s.hosts[p].next = b
    s.c[0].host_free += 1


@kernel
def take_host(s: Any, key: Any, guard: Any) -> Any:
    """The oldest host block that may go and is not guarded, now under `key`. There must be one.

    Blocks whose `guard` is this number are passed over: what a store finds there already must stay.
    """
    b = s.hosts[0].next
    while s.hosts[b].guard == guard:
        b = s.hosts[b].next
    _unlink(s, b)
    if s.hosts[b].listed:
        _unlist(s, b)
    s.hosts[b].key = key
    s.c[0].host_version += 1
    return b


@inlined
def hold_host(s: Any, b: Any) -> None:
    """One more reader of host block b: it cannot be handed out."""
    if s.hosts[b].ref == 0:
        _unlink(s, b)
    s.hosts[b].ref += 1
    s.c[0].host_version += 1


@inlined
def let_go_host(s: Any, b: Any) -> None:
    """One reader less; without any, the block becomes the youngest that may go."""
    s.hosts[b].ref -= 1
    if s.hosts[b].ref == 0:
        _append(s, b)
    s.c[0].host_version += 1


@inlined
def stored_host(s: Any, b: Any) -> None:
    """The block has been written: it can be read, and may go, as the youngest."""
    s.hosts[b].ref = 0
    _append(s, b)
    s.c[0].host_version += 1


@kernel
def touch_host(s: Any, rules: Any, r: Any, num_blocks: Any) -> None:
    """Make the leading blocks of request r the youngest, its first block the youngest of all."""
    for place in range(num_blocks - 1, -1, -1):
        b = find_host(s, key_of(s, rules, r, place))
        if b != 0 and s.hosts[b].ref == 0:
            _unlink(s, b)
            _append(s, b)
    s.c[0].host_version += 1
