"""Preemption mode `offload`: blocks are copied to the host as they fill, and found there again.

It is what vLLM 0.26.0 does through its KV connectors: at preemption nothing is copied; a victim that
is looked up again is restored from the host as far as its blocks are there. This module knows both
connectors of vLLM: the native one (stores when a block fills, prompt blocks only unless told
otherwise) and the simple one (eager: blocks known to be computed; lazy: cached blocks about to be
handed out). Three moments of a step: `plan` after the decision, then in copies.py `submit` when the
step starts and `complete` with its outputs. It decides who is restored from where, never who runs (admission.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.core import pool
from engine.core.copies import HELD, LOAD, STORE, add_item, complete, new_job, submit
from engine.core.fences import forget_row, free_or_fence, keep_row
from engine.core.host_cache import (
    find_host,
    hold_host,
    key_of,
    key_of_gpu_block,
    let_go_host,
    list_host,
    take_host,
    touch_host,
)
from engine.core.jit import kernel
from engine.core.state import NONE, Offload, Status

_NATIVE, _EAGER = np.int64(Offload.NATIVE), np.int64(Offload.EAGER)
_LOADING, _FINISHED = np.int64(Status.LOADING), np.int64(Status.FINISHED)
_PENDING = np.int64(-1)  # ref of a host block that is being written (native)
DEFER = np.int64(-1)  # answer to "how much is there": ask again in the next step


# --- Looking up -------------------------------------------------------------------------------


@kernel
def find_on_host(s: Any, rules: Any, r: Any, hits: Any) -> Any:
    """Tokens of request r that the host can restore behind its `hits` blocks in the GPU's cache.

    DEFER where that is not known yet: its own copies run, or somebody else reads or writes a block
    of it. Looking up makes the request's blocks the youngest (native) or holds them (simple).
    """
    if rules.offload == _NATIVE:
        if s.requests[r].num_jobs > 0:
            return DEFER
        c = s.c[0]
        full = s.requests[r].num_tokens // rules.block_size
        same = c.memo_request == r and c.memo_hits == hits and c.memo_full == full
        if not same or c.memo_version != c.host_version:
            c.memo_answer = _find_native(s, rules, r, hits, full)
            touch_host(s, rules, r, full)
            c.memo_request, c.memo_hits, c.memo_full = r, hits, full
            c.memo_version = c.host_version
        return c.memo_answer
    return _find_simple(s, rules, r, hits)


@kernel
def _find_native(s: Any, rules: Any, r: Any, hits: Any, full: Any) -> Any:
    defer, shared = False, False
    found = np.int64(0)
    while hits + found < full:
        b = find_host(s, key_of(s, rules, r, hits + found))
        if b == 0:
            break
        if s.hosts[b].ref == _PENDING:
            defer = True
        elif s.hosts[b].ref > 0 and rules.caching:
            shared = True  # it will soon be in the GPU's cache: no second copy
        found += 1
    if found > 0 and (defer or shared):
        return DEFER
    return found * rules.block_size


@kernel
def _find_simple(s: Any, rules: Any, r: Any, hits: Any) -> Any:
    q = s.requests[r]
    release_pins(s, rules, r)
    most = (q.num_tokens - 1) // rules.block_size  # the last token must be computed
    found = np.int64(0)
    while hits + found < most:
        b = find_host(s, key_of(s, rules, r, hits + found))
        if b == 0:
            break
        hold_host(s, b)
        found += 1
    q.load_from, q.num_pinned = hits, found
    return found * rules.block_size


@kernel
def release_pins(s: Any, rules: Any, r: Any) -> None:
    """Let go of host blocks that a look-up held for a restore that did not come about."""
    q = s.requests[r]
    for i in range(q.num_pinned):
        let_go_host(s, find_host(s, key_of(s, rules, r, q.load_from + i)))
    q.num_pinned = 0


@kernel
def start_load(s: Any, rules: Any, r: Any, hits: Any, num_blocks: Any) -> None:
    """Have the next step copy num_blocks blocks of request r behind its first `hits` from the host.

    Those that it holds with their content already (a lone token, looked up again) are left out.
    """
    q = s.requests[r]
    if rules.offload == _NATIVE:
        q.next_store = hits + num_blocks
        while num_blocks > 0 and s.blocks[s.table[q.slot, hits]].key != np.uint64(0):
            hits += 1
            num_blocks -= 1
        for i in range(num_blocks):
            hold_host(s, find_host(s, key_of(s, rules, r, hits + i)))
    else:  # its host blocks are held since the look-up
        q.num_pinned = 0
        for i in range(num_blocks):
            s.blocks[s.table[q.slot, hits + i]].ref += 1
    q.load_from = hits
    q.num_loading = num_blocks
    new_job(s, LOAD, r, HELD)


# --- What to store ----------------------------------------------------------------------------


@kernel
def plan(s: Any, rules: Any) -> None:
    """Decide what this step stores, once it is known who runs. Call before tokens are advanced."""
    c = s.c[0]
    if rules.offload == _NATIVE:
        for i in range(c.num_sched):
            r = s.seats[i].sched_req
            q = s.requests[r]
            tokens = min(q.num_computed + s.seats[i].sched_tok, q.num_tokens)
            _store_native(s, rules, r, tokens, q.slot)
        for i in range(c.num_ended_now):
            r = s.requests[i].ended_now
            q = s.requests[r]
            if q.end_slot == NONE:
                continue
            # vLLM takes the last token for computed, which it is not.
            tokens = q.num_tokens if rules.compat else min(q.num_computed, q.num_tokens)
            tokens = min(tokens, q.end_blocks * rules.block_size)
            _store_native(s, rules, r, tokens, q.end_slot)
            forget_row(s, r)
        _flush_overwritten(s, rules)
    elif rules.offload == _EAGER:
        _plan_eager(s, rules)
    else:
        _plan_lazy(s, rules)
    c.num_ended_now = 0


@kernel
def _store_native(s: Any, rules: Any, r: Any, tokens: Any, slot: Any) -> None:
    """Store the full blocks of request r that are not on the host, all of them or none."""
    c = s.c[0]
    q = s.requests[r]
    if rules.prompt_only:
        tokens = min(tokens, q.prompt)
    full = tokens // rules.block_size
    if full <= q.next_store:
        return
    c.guard += 1
    missing, kept = 0, 0
    for place in range(q.next_store, full):
        b = find_host(s, key_of(s, rules, r, place))
        if b == 0:
            missing += 1
        else:
            s.hosts[b].guard = c.guard
            if s.hosts[b].ref == 0:
                kept += 1
    if missing == 0:
        q.next_store = full
        return
    if missing > c.host_free - kept:
        c.store_failures += 1
        return
    j = new_job(s, STORE, r, HELD)
    for place in range(q.next_store, full):
        key = key_of(s, rules, r, place)
        if find_host(s, key) == 0:
            b = take_host(s, key, c.guard)
            s.hosts[b].ref = _PENDING
            list_host(s, b)
            add_item(s, j, b, np.int64(s.table[slot, place]))
    touch_host(s, rules, r, q.num_tokens // rules.block_size)
    q.next_store = full


@kernel
def _flush_overwritten(s: Any, rules: Any) -> None:
    """Flush stores of ended requests whose GPU blocks this step hands to somebody else."""
    c = s.c[0]
    some = False
    for k in range(c.num_jobs):
        job = s.hosts[s.hosts[k].job_order]
        if job.job_kind == STORE and s.requests[job.job_request].status >= _FINISHED:
            some = True
    if not some:
        return
    for i in range(c.num_sched):
        q = s.requests[s.seats[i].sched_req]
        for place in range(s.seats[i].sched_new_from, q.num_blocks):
            s.blocks[s.table[q.slot, place]].taken_step = c.step
    for k in range(c.num_jobs):
        job = s.hosts[s.hosts[k].job_order]
        if job.job_kind == LOAD and job.job_state == HELD:
            q = s.requests[job.job_request]
            for place in range(q.num_blocks):
                s.blocks[s.table[q.slot, place]].taken_step = c.step
    for k in range(c.num_jobs):
        job = s.hosts[s.hosts[k].job_order]
        if job.job_kind == STORE and s.requests[job.job_request].status >= _FINISHED:
            b = job.job_head
            while b != 0:
                if s.blocks[s.hosts[b].gpu].taken_step == c.step:
                    job.job_flush = 1
                b = s.hosts[b].job_next


@kernel
def _plan_eager(s: Any, rules: Any) -> None:
    """One store for all blocks that are known to be computed and not on the host.

    In the order in which vLLM lists the batch: new requests, running ones, resumed ones.
    """
    c = s.c[0]
    first_admitted = c.num_sched - c.num_admitted
    j = np.int64(NONE)
    for want in range(3):
        low, high = first_admitted, c.num_sched
        if want == 1:
            low, high = 0, first_admitted
        for i in range(low, high):
            r = s.seats[i].sched_req
            resumed = s.requests[r].num_preemptions > 0
            if want == 1 or (want == 2) == resumed:
                if want == 2:
                    s.requests[r].next_store = 0
                j = _store_eager(s, rules, r, j)


@kernel
def _store_eager(s: Any, rules: Any, r: Any, j: Any) -> Any:
    """Add the blocks of request r that are not on the host to store j; returns j."""
    c = s.c[0]
    q = s.requests[r]
    ready = (q.num_computed - q.placeholders) // rules.block_size
    room = c.host_free
    n = 0
    place = q.next_store
    while place < min(ready, q.num_blocks):
        b = np.int64(s.table[q.slot, place])
        block = s.blocks[b]
        if (
            block.key != np.uint64(0)
            and not block.storing
            and find_host(s, key_of(s, rules, r, place)) == 0
        ):
            if n >= room:
                break
            block.storing = 1
            s.hosts[n].scratch = place
            n += 1
        place += 1
    q.next_store = place
    if n > 0 and j == NONE:
        j = new_job(s, STORE, NONE, HELD)
    for k in range(n):
        b = np.int64(s.table[q.slot, s.hosts[k].scratch])
        h = take_host(s, key_of(s, rules, r, np.int64(s.hosts[k].scratch)), _PENDING)
        s.hosts[h].ref = 1
        pool.touch(s, b)
        add_item(s, j, h, b)
    return j


@kernel
def _plan_lazy(s: Any, rules: Any) -> None:
    """One store for cached GPU blocks near the head of the free queue, which will go soon.

    vLLM remembers how far it looked and goes on from there while that block stays free.
    """
    c = s.c[0]
    blocks = 2 * ((rules.token_budget + rules.block_size - 1) // rules.block_size)
    if c.lazy_cursor != 0 and s.blocks[c.lazy_cursor].ref > 0:
        c.lazy_cursor = 0
    room = c.host_free
    b = np.int64(s.blocks[c.lazy_cursor].next)
    n, covered = 0, 0
    while b != 0 and covered < blocks and n < room:
        c.lazy_cursor = b
        if s.blocks[b].key != np.uint64(0) and find_host(s, key_of_gpu_block(s, b)) == 0:
            s.hosts[n].scratch = b
            n += 1
        covered += 1
        b = np.int64(s.blocks[b].next)
    if n == 0:
        return
    j = new_job(s, STORE, NONE, HELD)
    for k in range(n):
        b = np.int64(s.hosts[k].scratch)
        h = take_host(s, key_of_gpu_block(s, b), _PENDING)
        s.hosts[h].ref = 1
        pool.touch(s, b)
        add_item(s, j, h, b)


@kernel
def leave(s: Any, rules: Any, r: Any) -> None:
    """Request r is a victim. What its copies still read is flushed when the step starts (submit).

    vLLM 0.26.0 goes on taking the victim's blocks for its own until it is looked up again, and stores
    from them should it end before.
    """
    c = s.c[0]
    q = s.requests[r]
    if rules.offload == _NATIVE and rules.compat:
        keep_row(s, r)
    free_or_fence(s, rules, r)
    q.prefilling = 0
    q.flush_step = c.step


@kernel
def end_on_host(s: Any, rules: Any, r: Any) -> None:
    """Request r has ended: let go of what was held for it and remember to store its last blocks."""
    c = s.c[0]
    q = s.requests[r]
    if rules.offload != _NATIVE:
        release_pins(s, rules, r)
    elif q.status != _LOADING:
        if q.slot != NONE:
            keep_row(s, r)
        if q.end_slot != NONE:
            s.requests[c.num_ended_now].ended_now = r
            c.num_ended_now += 1


@kernel
def plan_idle(s: Any, rules: Any) -> None:
    """Make the stores that `settle` will start, so that an executor can see them before."""
    c = s.c[0]
    c.num_sched = 0
    c.num_admitted = 0
    c.num_preempted = 0
    plan(s, rules)
    c.idle_planned = 1


@kernel
def settle(s: Any, rules: Any, cost: Any) -> None:
    """Let an idle engine's copies end, up to now: vLLM goes on stepping while any is under way."""
    c = s.c[0]
    if not c.idle_planned:
        plan_idle(s, rules)
    c.idle_planned = 0
    c.stall_until_s = 0.0
    submit(s, rules, cost, c.gpu_free_s)
    submit(s, rules, cost, c.gpu_free_s)
    complete(s, rules, c.now_s)
