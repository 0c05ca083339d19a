"""Writing a decision down: who takes part in this step, with which tokens and blocks.

It changes rows and lists; whether there is room was asked before.
"""

from __future__ import annotations

from typing import Any

from engine.core import pool
from engine.core.jit import inlined, kernel


@inlined
def blocks_for(tokens: Any, rules: Any) -> Any:
    """Blocks that hold so many tokens of one request."""
    return (min(tokens, rules.max_model_len) + rules.block_size - 1) // rules.block_size


@inlined
def place(s: Any, r: Any, tokens: Any, new_from: Any) -> None:
    """Write request r into this step with that many tokens."""
    c = s.c[0]
    i = c.num_sched
    s.seats[i].sched_req = r
    s.seats[i].sched_tok = tokens
    s.seats[i].sched_new_from = new_from
    s.requests[r].sched_step = c.step
    c.num_sched = i + 1


@kernel
def unplace(s: Any, r: Any) -> Any:
    """Cancel request r's part of this step; returns the tokens it gives back."""
    c = s.c[0]
    i = 0
    while s.seats[i].sched_req != r:
        i += 1
    tokens = s.seats[i].sched_tok
    for k in range(i, c.num_sched - 1):
        s.seats[k].sched_req = s.seats[k + 1].sched_req
        s.seats[k].sched_tok = s.seats[k + 1].sched_tok
        s.seats[k].sched_new_from = s.seats[k + 1].sched_new_from
    c.num_sched -= 1
    return tokens


@inlined
def take_blocks(s: Any, r: Any, total: Any) -> None:
    """Extend the block-table row of request r to `total` blocks. There must be enough."""
    q = s.requests[r]
    for i in range(q.num_blocks, total):
        s.table[q.slot, i] = pool.take_block(s)
    if total > q.num_blocks:
        q.num_blocks = total


@inlined
def never_fits(s: Any, rules: Any, r: Any) -> Any:
    """Whether what is known of request r is more than the whole pool holds."""
    known = s.requests[r].num_tokens
    return (known + rules.block_size - 1) // rules.block_size > rules.num_blocks - 1


@inlined
def claim_slot(s: Any, r: Any) -> None:
    """Give request r a row of the block table. There must be one."""
    c = s.c[0]
    c.num_slots -= 1
    slot = s.slots[c.num_slots].free
    s.slots[slot].users = 1
    s.requests[r].slot = slot


@inlined
def note_admitted(s: Any, r: Any, cached_tokens: Any, restored_tokens: Any) -> None:
    """Note that this step let request r in, with so many tokens found, some of them on the host."""
    c = s.c[0]
    s.noted[c.num_admitted].admitted = r
    s.noted[c.num_admitted].admitted_cached = cached_tokens
    s.noted[c.num_admitted].admitted_restored = restored_tokens
    c.num_admitted += 1
