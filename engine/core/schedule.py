"""One scheduling step: who runs, with how many tokens, and who loses its blocks.

The order of the phases is vLLM 0.26.0's V1 scheduler: grow the running requests, in running order;
then, only if nothing was preempted, let waiting ones in. Between the two stands what vLLM has not:
swapped requests come back. A waiting request never preempts anyone.
Known faults of 0.26.0 are mended unless `rules.compat`: a request that can never fit is refused
(there it waits for ever), and a cancelled step leaves nothing in the prefix index (preempt.py).
Docs: docs/scheduler.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.core import events, fences, offload, prefix, queues
from engine.core.admission import admit, admit_or_restore
from engine.core.estimates import contended, copy_cost_s, note_found
from engine.core.jit import kernel
from engine.core.placing import (
    blocks_for,
    claim_slot,
    never_fits,
    note_admitted,
    place,
    take_blocks,
    unplace,
)
from engine.core.preempt import (
    choose_victim,
    drop_host_copy,
    free_blocks_of,
    preempt,
    release_copies,
    run_again,
)
from engine.core.state import Clock, Kind, Mode, Reason, Status, Victim

_PRIORITY = np.int64(Victim.PRIORITY)
_CHEAPEST, _MEASURED = np.int64(Mode.CHEAPEST), np.int64(Clock.MEASURED)
_RUNNING, _LOADING, _REFUSED = (
    np.int64(Status.RUNNING),
    np.int64(Status.LOADING),
    np.int64(Status.REFUSED),
)
_WAITING, _PREEMPTED = np.int64(Status.WAITING), np.int64(Status.PREEMPTED)
_SWAPPED, _ABORTED = np.int64(Status.SWAPPED), np.int64(Status.ABORTED)
_K_ADMIT, _K_SWAP_IN = np.int64(Kind.ADMIT), np.int64(Kind.SWAP_IN)
_K_REFUSE, _K_ABORT = np.int64(Kind.REFUSE), np.int64(Kind.ABORT)
_ZERO, _IN = np.int64(0), np.int64(1)  # numbers that reach other functions: typed, not literal
_OUTGREW = np.int64(Reason.OUTGREW_POOL)


@kernel
def schedule(s: Any, rules: Any, cost: Any) -> None:
    """Decide one step at time `now_s` and do it; the step's arrays say what was decided."""
    c = s.c[0]
    c.num_sched = 0
    c.num_admitted = 0
    c.num_preempted = 0
    c.num_returned = 0
    c.waited_for_fence = 0
    c.stall_until_s = 0.0
    if c.num_fences + c.num_loads > 0:
        c.num_returned = release_copies(s, rules)
    budget = _grow(s, rules, cost)
    full = c.num_preempted > 0 or c.waited_for_fence
    if not full and c.num_swapped > 0:
        budget = _swap_in(s, rules, cost, budget)
        full = c.num_swapped > 0
    if rules.offload:
        if not full:
            admit_or_restore(s, rules, budget)
        offload.plan(s, rules)
    elif not full:
        admit(s, rules, budget)


@kernel
def _grow(s: Any, rules: Any, cost: Any) -> Any:
    """Phase A: tokens and blocks for the running requests; returns the budget left."""
    c = s.c[0]
    budget = rules.token_budget
    i = _ZERO
    while i < c.num_running and budget > 0:
        r = s.seats[i].running
        q = s.requests[r]
        if (
            q.placeholders > 0
            and q.num_computed + 2 - q.placeholders >= q.prompt + q.max_tokens
        ):
            i += 1  # its last token is already in flight
            continue
        new = q.num_tokens + q.placeholders - q.num_computed
        if 0 < rules.long_prefill < new:
            new = rules.long_prefill
        new = min(new, budget, rules.max_model_len - q.num_computed - 1)
        if new <= 0:
            i += 1
            continue
        before = q.num_blocks
        if q.num_computed + new > before * rules.block_size:
            total = blocks_for(q.num_computed + new, rules)
            if total - before > c.num_free:
                i, budget, fits = _make_room(s, rules, cost, i, total - before, budget)
                if not fits:
                    if q.status != _RUNNING or rules.offload:
                        break  # it was its own victim, or the victim cannot be had yet
                    i += 1  # its blocks are on their way: it skips this step
                    continue
            take_blocks(s, r, total)
        if rules.caching:
            known = min(q.num_computed + new, q.num_tokens)
            if known >= (q.num_hashed + 1) * rules.block_size:
                prefix.register_full(s, r, known, rules.block_size)
        place(s, r, new, before)
        budget -= new
        i += 1
    return budget


@kernel
def _make_room(s: Any, rules: Any, cost: Any, i: Any, need: Any, budget: Any) -> Any:
    """Preempt until `need` blocks are free for the request at place i of the running queue.

    Returns its place now, the budget now, and whether they are free. They are not when the request
    was its own victim, or when enough blocks are fenced behind copies: taking more victims would
    not bring blocks any sooner.
    """
    c = s.c[0]
    r = s.seats[i].running
    while need > c.num_free:
        if c.fenced_blocks > 0 and need <= c.num_free + c.fenced_blocks:
            c.waited_for_fence = 1
            return i, budget, False
        at = choose_victim(s, rules)
        victim = s.seats[at].running
        # Its blocks would come only with the outputs of the step in flight. vLLM 0.26.0 takes victim
        # after victim all the same (upstream PR 49675).
        if rules.offload and not rules.compat and fences.is_fenced(s, rules, victim):
            return i, budget, False
        was_scheduled = s.requests[victim].sched_step == c.step
        queues.run_remove_at(s, at)
        if was_scheduled:
            budget += unplace(s, victim)
        # vLLM steps back only for a victim already scheduled; a skipped one in front of i makes it
        # pass over the next request once. Our own victim rules do not copy that.
        if was_scheduled or (rules.victim > _PRIORITY and at < i):
            i -= 1
        preempt(s, rules, cost, victim, r, was_scheduled)
        if victim == r:
            return i, budget, False
    return i, budget, True


@kernel
def _swap_in(s: Any, rules: Any, cost: Any, budget: Any) -> Any:
    """Bring swapped requests back, in order, while blocks, seats and budget last."""
    c = s.c[0]
    while c.num_swapped > 0 and budget > 0:
        if c.num_running + c.num_loads >= rules.max_num_seqs or c.num_slots == 0:
            break
        r = s.requests[0].swap_queue
        q = s.requests[r]
        if never_fits(s, rules, r):
            queues.swapped_remove(s, r)
            if not q.fenced:
                drop_host_copy(s, r)
            events.end_request(s, r, _REFUSED, _K_REFUSE, c.now_s, _OUTGREW)
            continue
        if q.fenced:
            break  # its copy out has not ended
        new = q.num_tokens + q.placeholders - q.num_computed
        if 0 < rules.long_prefill < new:
            new = rules.long_prefill
        new = min(new, budget, rules.max_model_len - q.num_computed - 1)
        if new <= 0:
            break
        watermark = rules.watermark_blocks if c.num_running > 0 else 0
        total = blocks_for(max(q.num_tokens, q.num_computed + new), rules)
        if total + watermark > c.num_free:
            break
        free_before = c.num_free
        if rules.mode == _CHEAPEST and rules.caching:
            hits, _ = prefix.find_hits(s, r, s.slots[c.num_slots - 1].free, rules.block_size)
            note_found(s, r, hits)  # what a recompute would have been spared
        queues.swapped_remove(s, r)
        claim_slot(s, r)
        take_blocks(s, r, total)
        _start_swap_in(s, rules, cost, r, free_before)
        if rules.copy_async:
            q.status = _LOADING
            s.slots[c.num_loads].load = r
            c.num_loads += 1
        else:
            drop_host_copy(s, r)
            if rules.caching:
                known = min(q.num_computed + new, q.num_tokens)
                prefix.register_full(s, r, known, rules.block_size)
            run_again(s, r, _ZERO, free_before)
            place(s, r, new, _ZERO)
            note_admitted(s, r, _ZERO, _ZERO)
            budget -= new
    return budget


@kernel
def _start_swap_in(s: Any, rules: Any, cost: Any, r: Any, free_before: Any) -> None:
    """Queue the copy of request r from the host into its new blocks."""
    c = s.c[0]
    q = s.requests[r]
    alone = copy_cost_s(s, rules, cost, q.slot, q.host_blocks, _IN)
    start = max(c.now_s, c.gpu_free_s, c.link_in_free_s)
    duration = contended(start, c.link_out_free_s, alone, cost.contention_in)
    c.link_in_free_s = start + duration
    q.ready_s = start + duration
    if rules.clock == _MEASURED and rules.copy_async:
        q.ready_s = np.inf
    moved = q.host_blocks * rules.block_bytes
    q.swapped_bytes += moved
    if not rules.copy_async:
        c.stall_until_s = max(c.stall_until_s, start + duration)
    i = events.note(s, _K_SWAP_IN, r, start, q.host_blocks, q.num_computed, free_before)
    s.event_rows[i].bytes = moved
    s.event_rows[i].cost_s = duration


@kernel
def abort(s: Any, rules: Any, r: Any) -> Any:
    """Take request r out of whatever queue it is in; returns whether it was in one."""
    q = s.requests[r]
    status = q.status
    if status in (_PREEMPTED, _SWAPPED, _LOADING):
        q.preempted_s += s.c[0].now_s - q.preempted_at_s
    if status == _RUNNING:
        queues.run_remove_at(s, queues.run_place(s, r))
    elif q.is_deferred:
        _drop_deferred(s, r)
    elif status == _LOADING:
        pass  # its blocks come back when the copy has ended
    elif status == _SWAPPED:
        queues.swapped_remove(s, r)
        if not q.fenced:
            drop_host_copy(s, r)
    elif status in (_WAITING, _PREEMPTED):
        queues.wait_remove(s, r, rules.priority)
    else:
        return False
    if rules.offload:
        offload.end_on_host(s, rules, r)
    events.end_request(s, r, _ABORTED, _K_ABORT, s.c[0].now_s, _ZERO)
    if rules.offload:
        if q.num_loading == 0:  # else its blocks come back when the copy has ended
            fences.free_or_fence(s, rules, r)
    elif status == _RUNNING:
        free_blocks_of(s, r)
    return True


@kernel
def _drop_deferred(s: Any, r: Any) -> None:
    """Take request r out of the deferred ones."""
    c = s.c[0]
    i = 0
    while s.requests[i].deferred != r:
        i += 1
    for k in range(i, c.num_deferred - 1):
        s.requests[k].deferred = s.requests[k + 1].deferred
    c.num_deferred -= 1
    s.requests[r].is_deferred = 0
    if s.requests[r].status == _LOADING:
        c.num_loading -= 1
