"""Taking a running request's blocks away: who, and by which of the two ways.

`recompute` drops the KV; the request goes to the front of the waiting queue and computes it again.
`swap` moves the computed tokens to host blocks; the request keeps them and waits among the swapped.
`cheapest` takes for each victim the way that costs the engine less (estimates.py), a tie recompute.
With the host full, a swap becomes a recompute, and the event says both what was asked and used.

A blocking copy is waited for by the step (`stall_until_s`); an asynchronous one fences the victim's
GPU blocks until it has ended: they are held, nobody's, and return in `release_copies`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.core import events, pool, prefix, queues
from engine.core.estimates import (
    contended,
    copy_cost_s,
    expect_found,
    recompute_estimate_s,
    swap_estimate_s,
)
from engine.core.jit import inlined, kernel
from engine.core.offload import leave
from engine.core.state import NONE, Clock, Kind, Mode, Status, Victim
from engine.cost_model import recompute_time_s

_LAST, _PRIORITY = np.int64(Victim.LAST), np.int64(Victim.PRIORITY)
_FEWEST, _MOST = np.int64(Victim.FEWEST_COMPUTED), np.int64(Victim.MOST_BLOCKS)
_RECOMPUTE, _SWAP = np.int64(Mode.RECOMPUTE), np.int64(Mode.SWAP)
_OFFLOAD, _CHEAPEST = np.int64(Mode.OFFLOAD), np.int64(Mode.CHEAPEST)
_PREEMPTED, _SWAPPED, _LOADING = (
    np.int64(Status.PREEMPTED),
    np.int64(Status.SWAPPED),
    np.int64(Status.LOADING),
)
_RUNNING = np.int64(Status.RUNNING)
_K_PREEMPT, _K_SWAP_OUT, _K_RESUME = (
    np.int64(Kind.PREEMPT),
    np.int64(Kind.SWAP_OUT),
    np.int64(Kind.RESUME),
)
_OUT, _IN = np.int64(0), np.int64(1)  # direction of a copy; typed, not literal
_STEP_CLOCK, _MEASURED = np.int64(Clock.STEP), np.int64(Clock.MEASURED)


@kernel
def choose_victim(s: Any, rules: Any) -> Any:
    """Place in the running queue of the request that the rule names; ties: the later one."""
    n = s.c[0].num_running
    if rules.victim == _LAST:
        return n - 1
    best = 0
    for i in range(1, n):
        a, b = s.requests[s.seats[i].running], s.requests[s.seats[best].running]
        if rules.victim == _PRIORITY:
            better = a.rank > b.rank
        elif rules.victim == _FEWEST:
            better = a.num_computed <= b.num_computed
        else:
            better = a.num_blocks >= b.num_blocks
        if better:
            best = i
    return best


@kernel
def free_blocks_of(s: Any, r: Any) -> Any:
    """Give back the blocks and the block-table row of request r; returns how many became free."""
    c = s.c[0]
    q = s.requests[r]
    if q.slot == NONE:
        return 0
    freed = pool.free_row(s, q.slot, q.num_blocks)
    s.slots[c.num_slots].free = q.slot
    c.num_slots += 1
    q.slot = NONE
    q.num_blocks = 0
    q.num_hashed = 0
    return freed


@kernel
def _forget_uncomputed(s: Any, rules: Any, r: Any) -> None:
    """Take blocks out of the prefix index that this cancelled step would have filled.

    vLLM 0.26.0 leaves them there, and a later request hits KV that was never computed (upstream
    PR 43569). `compat` keeps the fault.
    """
    q = s.requests[r]
    for i in range(q.num_computed // rules.block_size, q.num_hashed):
        prefix.forget(s, np.int64(s.table[q.slot, i]))
        s.c[0].cached_used -= 1
    q.num_hashed = min(q.num_hashed, q.num_computed // rules.block_size)


@kernel
def _start_swap_out(s: Any, rules: Any, cost: Any, r: Any, num_blocks: Any) -> Any:
    """Queue the copy of request r to the host; returns its duration."""
    c = s.c[0]
    q = s.requests[r]
    alone = copy_cost_s(s, rules, cost, q.slot, num_blocks, _OUT)
    start = max(c.now_s, c.gpu_free_s, c.link_out_free_s)
    duration = contended(start, c.link_in_free_s, alone, cost.contention_out)
    c.link_out_free_s = start + duration
    c.host_free -= num_blocks
    q.host_blocks = num_blocks
    # On the clock `measured` the executor says when an asynchronous copy has ended.
    q.ready_s = start + duration
    if rules.clock == _MEASURED and rules.copy_async:
        q.ready_s = np.inf
    q.swapped_bytes += num_blocks * rules.block_bytes
    i = events.note(s, _K_SWAP_OUT, r, start, num_blocks, q.num_computed, c.num_free)
    s.event_rows[i].bytes = num_blocks * rules.block_bytes
    s.event_rows[i].cost_s = duration
    return duration


@kernel
def preempt(s: Any, rules: Any, cost: Any, r: Any, cause: Any, was_scheduled: Any) -> None:
    """Make request r (already out of the running queue) a victim, for the need of `cause`."""
    c = s.c[0]
    q = s.requests[r]
    if was_scheduled and rules.caching and not rules.compat:
        _forget_uncomputed(s, rules, r)
    computed = q.num_computed
    move = (computed + rules.block_size - 1) // rules.block_size
    found = expect_found(s, rules, r) if rules.caching else 0
    recompute_est_s, swap_est_s = 0.0, 0.0
    if rules.clock != _STEP_CLOCK:
        recompute_est_s = recompute_estimate_s(s, rules, cost, computed, found)
        swap_est_s = swap_estimate_s(s, rules, cost, r, move)
    wanted = rules.mode == _SWAP or (rules.mode == _CHEAPEST and swap_est_s < recompute_est_s)
    swap = wanted and 0 < move <= c.host_free
    i = events.note(s, _K_PREEMPT, r, c.now_s, q.num_blocks, computed, c.num_free)
    e = s.event_rows[i]
    e.cause = cause
    e.mode_asked = rules.mode
    e.mode_used = _SWAP if swap else _OFFLOAD if rules.offload else _RECOMPUTE
    if rules.clock != _STEP_CLOCK:
        e.recompute_est_s = recompute_est_s
        e.swap_est_s = swap_est_s
        e.cost_s = recompute_time_s(cost, computed, 0)
        if swap:
            out_s = copy_cost_s(s, rules, cost, q.slot, move, _OUT)
            e.cost_s = out_s + copy_cost_s(s, rules, cost, q.slot, move, _IN)
    k = c.num_preempted
    s.noted[k].preempted = r
    s.noted[k].preempted_tokens = computed
    s.noted[k].preempted_blocks = q.num_blocks
    c.num_preempted = k + 1
    q.num_preemptions += 1
    q.preempted_at_s = c.now_s
    q.sched_step = NONE
    if swap:
        e.bytes = move * rules.block_bytes
        _swap_out(s, rules, cost, r, move)
    else:
        if rules.offload:
            leave(s, rules, r)
        else:
            free_blocks_of(s, r)
        q.num_computed = 0
        q.status = _PREEMPTED
        queues.wait_push(s, r, rules.priority, _IN)


@kernel
def _swap_out(s: Any, rules: Any, cost: Any, r: Any, num_blocks: Any) -> None:
    c = s.c[0]
    q = s.requests[r]
    _start_swap_out(s, rules, cost, r, num_blocks)
    q.status = _SWAPPED
    queues.swapped_push(s, r)
    if rules.copy_async:
        q.fenced = 1
        for i in range(q.num_blocks):
            if s.blocks[s.table[q.slot, i]].ref == 1:
                q.fenced += 1
        c.fenced_blocks += q.fenced - 1
        s.slots[c.num_fences].fence = r
        c.num_fences += 1
    else:
        c.stall_until_s = max(c.stall_until_s, q.ready_s)
        free_blocks_of(s, r)


@inlined
def drop_host_copy(s: Any, r: Any) -> None:
    """Give back the host blocks of request r."""
    q = s.requests[r]
    s.c[0].host_free += q.host_blocks
    q.host_blocks = 0


@kernel
def release_copies(s: Any, rules: Any) -> Any:
    """Take note of copies that have ended by now; returns how many requests run again.

    A copy out returns its fenced blocks. A copy in makes its request the last of the running queue.
    """
    c = s.c[0]
    kept = 0
    for k in range(c.num_fences):
        r = s.slots[k].fence
        q = s.requests[r]
        if q.ready_s > c.now_s:
            s.slots[kept].fence = r
            kept += 1
            continue
        c.fenced_blocks -= q.fenced - 1
        q.fenced = 0
        free_blocks_of(s, r)
        if q.status != _SWAPPED:
            drop_host_copy(s, r)
    c.num_fences = kept
    kept = 0
    resumed = 0
    for k in range(c.num_loads):
        r = s.slots[k].load
        q = s.requests[r]
        if q.ready_s > c.now_s:
            s.slots[kept].load = r
            kept += 1
            continue
        drop_host_copy(s, r)
        if q.status != _LOADING:  # aborted on the way
            free_blocks_of(s, r)
            continue
        if rules.caching:
            prefix.register_full(s, r, q.num_computed, rules.block_size)
        run_again(s, r, _OUT, c.num_free)
        resumed += 1
    c.num_loads = kept
    return resumed


@kernel
def run_again(s: Any, r: Any, cached_tokens: Any, free_before: Any) -> None:
    """Append request r, once a victim, to the running queue and note that it resumed."""
    c = s.c[0]
    q = s.requests[r]
    q.status = _RUNNING
    q.preempted_s += c.now_s - q.preempted_at_s
    s.seats[c.num_running].running = r
    c.num_running += 1
    events.note(s, _K_RESUME, r, c.now_s, q.num_blocks, cached_tokens, free_before)
