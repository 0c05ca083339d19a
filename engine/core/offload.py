"""Preemption mode `offload`: blocks are copied to the host as they fill, and found there again.

It is what vLLM 0.26.0 does through its KV connectors: at preemption nothing is copied; a victim that
is looked up again is restored from the host as far as its blocks are there. This module knows both
connectors of vLLM: the native one (stores when a block fills, prompt blocks only unless told
otherwise) and the simple one (eager: blocks known to be computed; lazy: cached blocks about to be
handed out). Three moments of a step: `plan` after the decision, `submit` when the step starts,
`complete` with its outputs. It decides who is restored from where, never who runs (admission.py).

A copy job is a store of one request (native) or of one step (simple), or a load of one request. The
native connector holds a store back until the next step starts, and on the modelled clock the simple one too,
which starts its stores at the end of a step. Where a rule needs a block that a job
still reads, the job is flushed: the step waits for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.core import events, pool
from engine.core.estimates import contended
from engine.core.host_cache import (
    find_host,
    hold_host,
    key_of,
    key_of_gpu_block,
    let_go_host,
    list_host,
    stored_host,
    take_host,
    touch_host,
)
from engine.core.jit import inlined, kernel
from engine.core.state import NONE, Clock, Kind, Offload, Status
from engine.cost_model import copy_time_s

_NATIVE, _EAGER, _LAZY = (
    np.int64(Offload.NATIVE),
    np.int64(Offload.EAGER),
    np.int64(Offload.LAZY),
)
_MODELLED, _STEP = np.int64(Clock.MODELLED), np.int64(Clock.STEP)
_LOADING, _FINISHED = np.int64(Status.LOADING), np.int64(Status.FINISHED)
_K_LOAD = np.int64(Kind.LOAD)
_STORE, _LOAD = np.int64(0), np.int64(1)
_HELD, _RUNNING = np.int64(0), np.int64(1)
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


# --- Jobs -------------------------------------------------------------------------------------


@kernel
def _new_job(s: Any, kind: Any, r: Any, state: Any) -> Any:
    """A row for a copy job, the youngest of those under way."""
    c = s.c[0]
    c.num_free_jobs -= 1
    j = np.int64(s.hosts[c.num_free_jobs].job_free)
    job = s.hosts[j]
    job.job_kind = kind
    job.job_request = r
    job.job_state = state
    job.job_made = c.step
    job.job_flush = 0
    job.job_age = 0
    job.job_head = 0
    job.job_tail = 0
    job.job_count = 0
    s.hosts[c.num_jobs].job_order = j
    c.num_jobs += 1
    if r != NONE:
        s.requests[r].num_jobs += 1
    return j


@kernel
def _add_item(s: Any, j: Any, host: Any, gpu: Any) -> None:
    """Have store j copy GPU block `gpu` to host block `host`."""
    job = s.hosts[j]
    s.hosts[host].gpu = gpu
    s.hosts[host].job_next = 0
    if job.job_head == 0:
        job.job_head = host
    else:
        s.hosts[job.job_tail].job_next = host
    job.job_tail = host
    job.job_count += 1


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
    _new_job(s, _LOAD, r, _HELD)


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
    j = _new_job(s, _STORE, r, _HELD)
    for place in range(q.next_store, full):
        key = key_of(s, rules, r, place)
        if find_host(s, key) == 0:
            b = take_host(s, key, c.guard)
            s.hosts[b].ref = _PENDING
            list_host(s, b)
            _add_item(s, j, b, np.int64(s.table[slot, place]))
    touch_host(s, rules, r, q.num_tokens // rules.block_size)
    q.next_store = full


@kernel
def _flush_overwritten(s: Any, rules: Any) -> None:
    """Flush stores of ended requests whose GPU blocks this step hands to somebody else."""
    c = s.c[0]
    some = False
    for k in range(c.num_jobs):
        job = s.hosts[s.hosts[k].job_order]
        if job.job_kind == _STORE and s.requests[job.job_request].status >= _FINISHED:
            some = True
    if not some:
        return
    for i in range(c.num_sched):
        q = s.requests[s.seats[i].sched_req]
        for place in range(s.seats[i].sched_new_from, q.num_blocks):
            s.blocks[s.table[q.slot, place]].taken_step = c.step
    for k in range(c.num_jobs):
        job = s.hosts[s.hosts[k].job_order]
        if job.job_kind == _LOAD and job.job_state == _HELD:
            q = s.requests[job.job_request]
            for place in range(q.num_blocks):
                s.blocks[s.table[q.slot, place]].taken_step = c.step
    for k in range(c.num_jobs):
        job = s.hosts[s.hosts[k].job_order]
        if job.job_kind == _STORE and s.requests[job.job_request].status >= _FINISHED:
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
        j = _new_job(s, _STORE, NONE, _HELD)
    for k in range(n):
        b = np.int64(s.table[q.slot, s.hosts[k].scratch])
        h = take_host(s, key_of(s, rules, r, np.int64(s.hosts[k].scratch)), _PENDING)
        s.hosts[h].ref = 1
        pool.touch(s, b)
        _add_item(s, j, h, b)
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
    j = _new_job(s, _STORE, NONE, _HELD)
    for k in range(n):
        b = np.int64(s.hosts[k].scratch)
        h = take_host(s, key_of_gpu_block(s, b), _PENDING)
        s.hosts[h].ref = 1
        pool.touch(s, b)
        _add_item(s, j, h, b)


# --- Copying ----------------------------------------------------------------------------------


@kernel
def submit(s: Any, rules: Any, cost: Any, start_s: Any) -> None:
    """Hand the copies of the step that starts at start_s to the links; flushed ones are waited for.

    A store waits for the next step: the native connector hands it over then, the simple one when the
    step that may fill its blocks has been computed, which the step clocks do not tell apart.
    """
    c = s.c[0]
    at_once = rules.offload != _NATIVE and rules.clock != _MODELLED
    for k in range(c.num_jobs):
        j = np.int64(s.hosts[k].job_order)
        job = s.hosts[j]
        flush = job.job_flush == 1
        if job.job_state == _RUNNING:
            flush = flush or _must_flush(s, rules, job)
        elif job.job_kind == _LOAD:
            _start_copy_in(s, rules, cost, j, start_s)
        elif job.job_age > 0 or flush or at_once:
            _start_copy_out(s, rules, cost, j, start_s)
            flush = flush or _must_flush(s, rules, job)
        else:
            job.job_age = 1
        if flush and job.job_state == _RUNNING:
            if rules.clock == _MODELLED:
                c.stall_until_s = max(c.stall_until_s, job.job_due)
            else:
                job.job_due = min(job.job_due, float(c.step))


@inlined
def _must_flush(s: Any, rules: Any, job: Any) -> Any:
    """Whether a victim of this step makes the copy urgent."""
    if rules.offload == _NATIVE:
        return s.requests[job.job_request].flush_step == s.c[0].step and job.job_kind == _STORE
    return s.c[0].num_preempted > 0 and job.job_since < s.c[0].step


@kernel
def _start_copy_out(s: Any, rules: Any, cost: Any, j: Any, start_s: Any) -> None:
    c = s.c[0]
    job = s.hosts[j]
    job.job_state = _RUNNING
    job.job_since = c.step
    c.stored_blocks_now += job.job_count
    if job.job_request != NONE and s.requests[job.job_request].status < _FINISHED:
        s.requests[job.job_request].swapped_bytes += job.job_count * rules.block_bytes
    if rules.clock != _MODELLED:
        job.job_due = float(c.step + rules.store_steps - 1)
        return
    runs = 1
    b = np.int64(job.job_head)
    while s.hosts[b].job_next != 0:
        n = np.int64(s.hosts[b].job_next)
        if s.hosts[n].gpu != s.hosts[b].gpu + 1:
            runs += 1
        b = n
    start = max(start_s, c.link_out_free_s)
    alone = copy_time_s(cost, job.job_count, runs, False)
    c.link_out_free_s = start + contended(start, c.link_in_free_s, alone, cost.contention_out)
    job.job_due = c.link_out_free_s


@kernel
def _start_copy_in(s: Any, rules: Any, cost: Any, j: Any, start_s: Any) -> None:
    c = s.c[0]
    job = s.hosts[j]
    r = np.int64(job.job_request)
    q = s.requests[r]
    job.job_state = _RUNNING
    job.job_since = c.step
    duration = 0.0
    start = start_s
    if rules.clock == _MODELLED:
        runs = 1
        for i in range(1, q.num_loading):
            p = q.load_from + i
            if s.table[q.slot, p] != s.table[q.slot, p - 1] + 1:
                runs += 1
        start = max(start_s, c.link_in_free_s, c.stall_until_s)  # flushes come first
        alone = copy_time_s(cost, q.num_loading, runs, True)
        duration = contended(start, c.link_out_free_s, alone, cost.contention_in)
        c.link_in_free_s = start + duration
        job.job_due = c.link_in_free_s
    else:
        job.job_due = float(c.step + rules.load_steps - 1)
    moved = q.num_loading * rules.block_bytes
    q.swapped_bytes += moved
    tokens = q.num_loading * rules.block_size
    i = events.note(s, _K_LOAD, r, start, q.num_loading, tokens, c.num_free)
    s.event_rows[i].bytes = moved
    if rules.clock != _STEP:
        s.event_rows[i].cost_s = duration


@kernel
def complete(s: Any, rules: Any, limit: Any) -> None:
    """Take note of copies that have ended by then: a time, or on the step clocks a step.

    Loads come first, as vLLM reports them; among equals in the order in which they were submitted.
    """
    c = s.c[0]
    if c.num_jobs == 0:
        return
    for kind in range(2):
        if rules.offload == _NATIVE and kind == 0:
            continue  # the native connector reports both kinds in one list
        for k in range(c.num_jobs):
            j = np.int64(s.hosts[k].job_order)
            job = s.hosts[j]
            if job.job_state != _RUNNING or job.job_due > limit:
                continue
            if rules.offload != _NATIVE and (job.job_kind == _STORE) == (kind == 0):
                continue
            if job.job_kind == _LOAD:
                _loaded(s, rules, np.int64(job.job_request))
            elif rules.offload == _NATIVE:
                b = np.int64(job.job_head)
                while b != 0:
                    stored_host(s, b)
                    b = np.int64(s.hosts[b].job_next)
            else:
                _stored_simple(s, np.int64(job.job_head))
            if job.job_request != NONE:
                q = s.requests[job.job_request]
                q.num_jobs -= 1
                # vLLM forgets a request whose last copy ends with it, and its last blocks too.
                if q.num_jobs == 0 and q.status >= _FINISHED:
                    forget_row(s, np.int64(job.job_request))
            job.job_state = NONE
            c.completed_now += 1
    kept = 0
    for k in range(c.num_jobs):
        j = np.int64(s.hosts[k].job_order)
        if s.hosts[j].job_state == NONE:
            s.hosts[c.num_free_jobs].job_free = j
            c.num_free_jobs += 1
        else:
            s.hosts[kept].job_order = j
            kept += 1
    c.num_jobs = kept


@kernel
def _loaded(s: Any, rules: Any, r: Any) -> None:
    """The blocks of request r are on the GPU: it may be admitted, or, if it has ended, let go."""
    q = s.requests[r]
    for i in range(q.num_loading):
        let_go_host(s, find_host(s, key_of(s, rules, r, q.load_from + i)))
    if rules.offload != _NATIVE:
        for i in range(q.num_loading):
            s.blocks[s.table[q.slot, q.load_from + i]].ref -= 1  # the request's own is left
    q.num_loading = 0
    if q.status == _LOADING:
        q.loaded = 1
    else:
        free_or_fence(s, rules, r)


@kernel
def _stored_simple(s: Any, head: Any) -> None:
    """List the written host blocks and let go of the GPU blocks they came from."""
    b = head
    while b != 0:
        list_host(s, b)
        b = np.int64(s.hosts[b].job_next)
    b = head
    while b != 0:
        let_go_host(s, b)
        b = np.int64(s.hosts[b].job_next)
    b = head
    after = np.int64(0)
    while b != 0:
        g = np.int64(s.hosts[b].gpu)
        s.blocks[g].storing = 0
        after = pool.release_after(s, g, after)
        b = np.int64(s.hosts[b].job_next)


# --- Letting go of GPU blocks -----------------------------------------------------------------


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
def _keep_row(s: Any, r: Any) -> None:
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


@kernel
def leave(s: Any, rules: Any, r: Any) -> None:
    """Request r is a victim. What its copies still read is flushed when the step starts (submit).

    vLLM 0.26.0 goes on taking the victim's blocks for its own until it is looked up again, and stores
    from them should it end before.
    """
    c = s.c[0]
    q = s.requests[r]
    if rules.offload == _NATIVE and rules.compat:
        _keep_row(s, r)
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
            _keep_row(s, r)
        if q.end_slot != NONE:
            s.requests[c.num_ended_now].ended_now = r
            c.num_ended_now += 1


@kernel
def settle(s: Any, rules: Any, cost: Any) -> None:
    """Let an idle engine's copies end, up to now: vLLM goes on stepping while any is under way."""
    c = s.c[0]
    c.num_sched = 0
    c.num_admitted = 0
    c.num_preempted = 0
    c.stall_until_s = 0.0
    plan(s, rules)
    submit(s, rules, cost, c.gpu_free_s)
    submit(s, rules, cost, c.gpu_free_s)
    complete(s, rules, c.now_s)
