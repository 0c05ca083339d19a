"""Phase B of a step: who is let in, and with a host cache, who is restored from it first.

Requests come in the order of the policy; the first that does not fit ends the phase (head-of-line
blocking). With a host cache some are put aside instead and looked at again in the next step, before
the others: those that are being restored, and those whose copies are not done.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.core import events, fences, offload, pool, prefix, queues
from engine.core.estimates import note_found
from engine.core.jit import inlined, kernel
from engine.core.placing import (
    blocks_for,
    claim_slot,
    never_fits,
    note_admitted,
    place,
    take_blocks,
)
from engine.core.preempt import run_again
from engine.core.state import NONE, Kind, Reason, Status

_WAITING, _RUNNING, _PREEMPTED = (
    np.int64(Status.WAITING),
    np.int64(Status.RUNNING),
    np.int64(Status.PREEMPTED),
)
_LOADING, _REFUSED = np.int64(Status.LOADING), np.int64(Status.REFUSED)
_K_ADMIT, _K_REFUSE = np.int64(Kind.ADMIT), np.int64(Kind.REFUSE)
_ZERO = np.int64(0)  # a number that reaches other functions: typed, not literal
_OUTGREW = np.int64(Reason.OUTGREW_POOL)
# What became of a request at the head of the queue.
_STOP, _DEFERRED, _GONE = np.int64(0), np.int64(1), np.int64(2)


@kernel
def admit(s: Any, rules: Any, budget: Any) -> None:
    """Phase B: waiting requests, in order, until one does not fit."""
    c = s.c[0]
    size = rules.block_size
    while c.num_waiting > 0 and budget > 0:
        if c.num_running + c.num_loads >= rules.max_num_seqs or c.num_slots == 0:
            return
        r = queues.wait_head(s, rules.priority)
        q = s.requests[r]
        if not rules.compat and never_fits(s, rules, r):
            queues.wait_remove(s, r, rules.priority)
            events.end_request(s, r, _REFUSED, _K_REFUSE, c.now_s, _OUTGREW)
            continue
        slot = s.slots[c.num_slots - 1].free
        hits, idle = _ZERO, _ZERO
        if rules.caching:
            hits, idle = prefix.find_hits(s, r, slot, size)
        new = q.num_tokens - hits * size
        if 0 < rules.long_prefill < new:
            new = rules.long_prefill
        if not rules.chunked and new > budget:
            return
        new = min(new, budget)
        watermark = rules.watermark_blocks if c.num_running > 0 else 0
        if rules.reserve_full:
            whole = max(blocks_for(q.num_tokens, rules) - hits, 0)
            if whole + idle + watermark > c.num_free:
                return
        total = blocks_for(hits * size + new, rules)
        if max(total - hits, 0) + idle + watermark > c.num_free:
            return
        free_before = c.num_free
        queues.wait_remove(s, r, rules.priority)
        claim_slot(s, r)
        for i in range(hits):
            pool.touch(s, np.int64(s.table[slot, i]))
        q.num_blocks = hits
        q.num_hashed = hits
        take_blocks(s, r, total)
        q.num_computed = hits * size
        q.cached_tokens += hits * size
        if rules.caching:
            prefix.register_full(s, r, min(hits * size + new, q.num_tokens), size)
        if q.num_preemptions > 0:
            note_found(s, r, hits)
            run_again(s, r, hits * size, free_before)
        else:
            q.status = _RUNNING
            s.seats[c.num_running].running = r
            c.num_running += 1
            events.note(s, _K_ADMIT, r, c.now_s, q.num_blocks, hits * size, free_before)
        place(s, r, new, _ZERO)
        note_admitted(s, r, hits * size, _ZERO)
        budget -= new


@kernel
def admit_or_restore(s: Any, rules: Any, budget: Any) -> None:
    """Phase B with a host cache: deferred and waiting requests, until one does not fit.

    Under first come first served all deferred ones come before all waiting ones; under the priority
    policy the more important head of both comes first.
    """
    c = s.c[0]
    old = c.num_deferred
    i = _ZERO
    while budget > 0 and c.num_running < rules.max_num_seqs and c.num_slots > 0:
        put_aside = i < old
        if c.num_waiting > 0 and (i == old or rules.priority):
            r = queues.wait_head(s, rules.priority)
            if put_aside:
                put_aside = s.requests[s.requests[i].deferred].rank < s.requests[r].rank
        elif i == old:
            break
        if put_aside:
            r = s.requests[i].deferred
        fate, tokens = _restore_or_run(s, rules, r, budget)
        if fate == _STOP:
            break
        budget -= tokens
        if put_aside:
            if fate == _GONE:
                s.requests[i].deferred = NONE
                s.requests[r].is_deferred = 0
            i += 1
        else:
            queues.wait_remove(s, r, rules.priority)
            if fate == _DEFERRED:
                s.requests[c.num_deferred].deferred = r
                s.requests[r].is_deferred = 1
                c.num_deferred += 1
    if c.num_running == 0 and not rules.compat:
        _untangle(s, rules, budget)
    _tidy_deferred(s, rules)


@kernel
def _untangle(s: Any, rules: Any, budget: Any) -> None:
    """Nobody runs. Restored requests hold blocks that the one at the head may wait for, for ever in vLLM
    0.26.0: let the first of them run that can, or else the last of them give its blocks back.
    """
    c = s.c[0]
    last = NONE
    for i in range(c.num_deferred):
        r = s.requests[i].deferred
        if r == NONE or s.requests[r].num_blocks == 0:
            continue
        if s.requests[r].status == _LOADING and not s.requests[r].loaded:
            return  # time will tell
        fate, _ = _restore_or_run(s, rules, r, budget)
        if fate == _GONE:
            s.requests[i].deferred = NONE
            s.requests[r].is_deferred = 0
            return
        last = r
    if last != NONE and c.num_jobs + c.num_step_fences == 0:
        fences.free_or_fence(s, rules, last)
        s.requests[last].num_computed = 0
        s.requests[last].prefilling = 0


@kernel
def _tidy_deferred(s: Any, rules: Any) -> None:
    """Close the gaps in the list of deferred requests; under the priority policy, sort it."""
    c = s.c[0]
    kept = 0
    for k in range(c.num_deferred):
        r = s.requests[k].deferred
        if r == NONE:
            continue
        at = kept
        if rules.priority:
            while at > 0 and s.requests[s.requests[at - 1].deferred].rank > s.requests[r].rank:
                s.requests[at].deferred = s.requests[at - 1].deferred
                at -= 1
        s.requests[at].deferred = r
        kept += 1
    c.num_deferred = kept


@kernel
def _restore_or_run(s: Any, rules: Any, r: Any, budget: Any) -> Any:
    """Try to let request r run, or to start its restoration; returns (its fate, tokens used)."""
    c = s.c[0]
    q = s.requests[r]
    size = rules.block_size
    if q.status == _LOADING:
        if not q.loaded:
            return _DEFERRED, _ZERO
        _restored(s, rules, r)
    if not rules.compat and never_fits(s, rules, r):
        events.end_request(s, r, _REFUSED, _K_REFUSE, c.now_s, _OUTGREW)
        offload.end_on_host(s, rules, r)
        fences.free_or_fence(s, rules, r)
        return _GONE, _ZERO
    hits, idle, on_host = _ZERO, _ZERO, _ZERO
    # vLLM asks whether anything is computed, and so looks a lone token up again for ever: it is always
    # computed again, to sample from.
    if q.num_computed == 0 if rules.compat else q.slot == NONE:
        fences.forget_row(s, r)  # before a free row is written to
        if rules.caching:
            hits, idle = prefix.find_hits(s, r, s.slots[c.num_slots - 1].free, size)
        on_host = offload.find_on_host(s, rules, r, hits)
        if on_host == offload.DEFER:
            return _DEFERRED, _ZERO
    computed = q.num_computed + hits * size
    new = _ZERO
    reserved = _ZERO
    if on_host > 0:
        reserved = _reserved_blocks(s, rules)
    else:
        new = q.num_tokens - computed
        if 0 < rules.long_prefill < new:
            new = rules.long_prefill
        if not rules.chunked and new > budget:
            return _STOP, _ZERO
        new = min(new, budget)
    held = q.num_blocks + hits
    spare = c.num_free - idle - (rules.watermark_blocks if c.num_running > 0 else 0)
    if rules.reserve_full and max(blocks_for(q.num_tokens, rules) - held, 0) > spare:
        return _STOP, _ZERO
    total = blocks_for(computed + on_host + new, rules)
    if max(total - held, 0) > spare - reserved:
        return _STOP, _ZERO
    free_before = c.num_free
    if q.slot == NONE:
        claim_slot(s, r)
        for i in range(hits):
            pool.touch(s, np.int64(s.table[q.slot, i]))
        q.num_blocks = hits
        q.num_hashed = hits
        q.gpu_hit_tokens = hits * size
        note_found(s, r, hits)
    take_blocks(s, r, total)
    q.num_computed = computed + on_host
    if on_host > 0:
        q.status = _LOADING
        q.loaded = 0
        q.prefilling = 1
        c.num_loading += 1
        offload.start_load(s, rules, r, hits, on_host // size)
        return _DEFERRED, _ZERO
    _run(s, rules, r, new, free_before)
    return _GONE, new


@kernel
def _restored(s: Any, rules: Any, r: Any) -> None:
    """The host's blocks of request r are here: it waits like others again, with them computed."""
    q = s.requests[r]
    if rules.caching:
        prefix.register_full(s, r, q.num_computed, rules.block_size)
    if q.num_computed == q.num_tokens:  # the last token is computed again, to sample from
        q.num_computed -= 1
    q.status = _PREEMPTED if q.num_preemptions > 0 else _WAITING
    q.loaded = 0
    s.c[0].num_loading -= 1


@kernel
def _run(s: Any, rules: Any, r: Any, new: Any, free_before: Any) -> None:
    """Append request r to the running queue and to this step."""
    c = s.c[0]
    q = s.requests[r]
    if rules.caching:
        known = min(q.num_computed + new, q.num_tokens)
        prefix.register_full(s, r, known, rules.block_size)
    q.prefilling = np.int64(q.num_computed + new < q.num_tokens)
    restored = q.num_computed - q.gpu_hit_tokens
    q.cached_tokens += q.gpu_hit_tokens
    q.restored_tokens += restored
    if q.num_preemptions > 0:
        run_again(s, r, q.gpu_hit_tokens, free_before)
    else:
        q.status = _RUNNING
        s.seats[c.num_running].running = r
        c.num_running += 1
        events.note(s, _K_ADMIT, r, c.now_s, q.num_blocks, q.gpu_hit_tokens, free_before)
    place(s, r, new, _ZERO)
    note_admitted(s, r, q.num_computed, restored)


@inlined
def _reserved_blocks(s: Any, rules: Any) -> Any:
    """Blocks that those who are still prefilling, or being restored, will need for what they know."""
    c = s.c[0]
    reserved = _ZERO
    for i in range(c.num_running):
        q = s.requests[s.seats[i].running]
        if q.prefilling:
            reserved += max(blocks_for(q.num_tokens, rules) - q.num_blocks, 0)
    for i in range(c.num_deferred):
        r = s.requests[i].deferred
        if r != NONE and s.requests[r].num_blocks > 0:
            q = s.requests[r]
            reserved += max(blocks_for(q.num_tokens, rules) - q.num_blocks, 0)
    return reserved
