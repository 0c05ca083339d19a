"""Giving GPU blocks back where steps overlap and copies still read them.

A row of the block table has users: its request, and whoever still has to read it after the request let
go. Blocks that a step in flight may write come back only when that step has been processed.
"""

from __future__ import annotations

from typing import Any

from engine.core import pool
from engine.core.jit import inlined, kernel
from engine.core.state import NONE


@inlined
def release_slot(s: Any, slot: Any) -> None:
    """One user less of a row of the block table."""
    s.slots[slot].users -= 1
    if s.slots[slot].users == 0:
        s.slots[s.c[0].num_slots].free = slot
        s.c[0].num_slots += 1


@inlined
def is_fenced(s: Any, rules: Any, r: Any) -> Any:
    """Whether a step in flight may still write the blocks of request r.

    With overlapping steps and a connector that fills blocks, vLLM gives such blocks back only when
    that step's outputs are there.
    """
    return rules.async_scheduling and s.requests[r].last_seq > s.c[0].processed_seq


@kernel
def free_or_fence(s: Any, rules: Any, r: Any) -> None:
    """Give back the blocks and the block-table row of request r, now or behind the step in flight."""
    c = s.c[0]
    q = s.requests[r]
    if q.slot == NONE:
        return
    if is_fenced(s, rules, r):
        f = s.slots[(c.fence_head + c.num_step_fences) % len(s.slots)]
        f.fenced_slot = q.slot
        f.fenced_blocks = q.num_blocks
        f.fenced_until = c.sched_seq
        c.num_step_fences += 1
    else:
        pool.free_row(s, q.slot, q.num_blocks)
        release_slot(s, q.slot)
    q.slot = NONE
    q.num_blocks = 0
    q.num_hashed = 0


@kernel
def drain_fences(s: Any) -> None:
    """Give back blocks whose step has been processed, in the order in which they were let go."""
    c = s.c[0]
    while c.num_step_fences > 0 and s.slots[c.fence_head].fenced_until <= c.processed_seq:
        f = s.slots[c.fence_head]
        pool.free_row(s, f.fenced_slot, f.fenced_blocks)
        release_slot(s, f.fenced_slot)
        c.fence_head = (c.fence_head + 1) % len(s.slots)
        c.num_step_fences -= 1


@inlined
def keep_row(s: Any, r: Any) -> None:
    """Keep the block-table row of request r for a last store."""
    q = s.requests[r]
    q.end_slot = q.slot
    q.end_blocks = q.num_blocks
    s.slots[q.slot].users += 1


@kernel
def forget_row(s: Any, r: Any) -> None:
    """Request r is looked up again: its old row is of no more use."""
    q = s.requests[r]
    if q.end_slot != NONE:
        release_slot(s, q.end_slot)
        q.end_slot = NONE
