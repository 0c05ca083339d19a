"""Copy jobs between GPU and host cache: made, put on the links, flushed, completed.

A copy job is a store of one request (native) or of one step (simple), or a load of one request. The
native connector holds a store back until the next step starts, and on the modelled clock the simple one too,
which starts its stores at the end of a step. Where a rule needs a block that a job
still reads, the job is flushed: the step waits for it.

It knows how long a copy takes and what ends with it, not why blocks are copied (offload.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.core import events, pool
from engine.core.estimates import contended
from engine.core.fences import forget_row, free_or_fence
from engine.core.host_cache import find_host, key_of, let_go_host, list_host, stored_host
from engine.core.jit import inlined, kernel
from engine.core.state import NONE, Clock, Kind, Offload, Status
from engine.cost_model import copy_time_s

_NATIVE = np.int64(Offload.NATIVE)
_MODELLED, _STEP = np.int64(Clock.MODELLED), np.int64(Clock.STEP)
_LOADING, _FINISHED = np.int64(Status.LOADING), np.int64(Status.FINISHED)
_K_LOAD = np.int64(Kind.LOAD)
STORE, LOAD = np.int64(0), np.int64(1)
HELD, _RUNNING = np.int64(0), np.int64(1)


@kernel
def new_job(s: Any, kind: Any, r: Any, state: Any) -> Any:
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
def add_item(s: Any, j: Any, host: Any, gpu: Any) -> None:
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
        elif job.job_kind == LOAD:
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
        return s.requests[job.job_request].flush_step == s.c[0].step and job.job_kind == STORE
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
            if rules.offload != _NATIVE and (job.job_kind == STORE) == (kind == 0):
                continue
            if job.job_kind == LOAD:
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
