"""After the decision: what a step computes, and what its outputs change.

`advance` runs right after schedule(): it counts the step's tokens and hands it to the executor.
`process` runs when the outputs are there: sampled tokens are known, requests end. With asynchronous
scheduling that is after the next schedule(), so two steps can be in flight.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.core import events, prefix, queues
from engine.core.copies import complete
from engine.core.fences import drain_fences, free_or_fence
from engine.core.jit import inlined, kernel
from engine.core.offload import end_on_host
from engine.core.preempt import drop_host_copy, free_blocks_of
from engine.core.state import Clock, Kind, Status

_ZERO = np.int64(0)
_MODELLED = np.int64(Clock.MODELLED)
_RUNNING, _PREEMPTED = np.int64(Status.RUNNING), np.int64(Status.PREEMPTED)
_SWAPPED, _FINISHED, _K_FINISH = (
    np.int64(Status.SWAPPED),
    np.int64(Status.FINISHED),
    np.int64(Kind.FINISH),
)


@kernel
def advance(s: Any, rules: Any, window_tokens: Any) -> Any:
    """Advance the scheduled requests and put the step in flight.

    Returns (num_decode, decode_ctx, decode_window_ctx, prefill_tokens, prefill_qk,
    prefill_window_qk, num_chunks, num_logit_rows), the cost model's view of the step: a request
    with one token attends like a decode, whatever that token is.
    """
    c = s.c[0]
    k = (c.oldest_in_flight + c.num_in_flight) % 2
    row = s.flight_row[k]
    prefill, decode, recomputed = 0, 0, 0
    num_decode, chunks, chunk_tokens, rows = 0, 0, 0, 0
    ctx, window_ctx = np.int64(0), np.int64(0)
    qk, window_qk = 0.0, 0.0
    base = k * len(s.seats)
    if rules.offload and c.num_sched > 0:
        c.sched_seq += 1
    for i in range(c.num_sched):
        r, n = s.seats[i].sched_req, s.seats[i].sched_tok
        q = s.requests[r]
        start = q.num_computed
        end = start + n
        q.num_computed = end
        again = 0
        if start < q.high_water:
            again = min(end, q.high_water) - start
            recomputed += again
            q.recomputed_tokens += again
        if end > q.high_water:
            q.high_water = end
        fresh = start + again
        if fresh < q.prompt:
            first = min(end, q.prompt) - fresh
            prefill += first
            again += first
        decode += n - again
        samples = end >= q.num_tokens + q.placeholders
        if rules.offload:
            q.prefilling = np.int64(not samples)
            q.last_seq = c.sched_seq
        if samples:
            rows += 1
            q.placeholders += rules.async_scheduling
        if n == 1:
            num_decode += 1
            ctx += end
            if window_tokens > 0:
                window_ctx += min(end, window_tokens)
        else:
            chunks += 1
            chunk_tokens += n
            mean = start + 0.5 * n
            qk += n * mean
            if window_tokens > 0:
                window_qk += n * min(mean, float(window_tokens))
        s.flight[base + i].req = r
        s.flight[base + i].samples = samples
    row.num_scheduled = c.num_sched
    c.num_in_flight += 1
    row.prefill_tokens = prefill
    row.decode_tokens = decode
    row.recomputed_tokens = recomputed
    _count(s, rules, row)
    return num_decode, float(ctx), float(window_ctx), chunk_tokens, qk, window_qk, chunks, rows


@inlined
def _count(s: Any, rules: Any, row: Any) -> None:
    """Fill the queue and block counts of a step row as they are after schedule()."""
    c = s.c[0]
    row.step = c.step
    row.num_running = c.num_running
    row.num_waiting = c.num_waiting + c.num_deferred - c.num_loading
    row.num_swapped = c.num_swapped + c.num_loads + c.num_loading
    resumed = 0
    cached = 0
    restored = 0
    for i in range(c.num_admitted):
        cached += s.noted[i].admitted_cached - s.noted[i].admitted_restored
        restored += s.noted[i].admitted_restored
        if s.requests[s.noted[i].admitted].num_preemptions > 0:
            resumed += 1
    row.num_admitted = c.num_admitted - resumed
    row.num_resumed = resumed + c.num_returned
    row.num_preempted = c.num_preempted
    row.num_finished = 0
    row.cached_tokens = cached
    row.restored_tokens = restored
    row.free_blocks = c.num_free
    row.used_blocks = rules.num_blocks - 1 - c.num_free
    row.cached_free_blocks = c.cached_free
    row.fenced_blocks = c.fenced_blocks
    row.host_used_blocks = c.host_filled if rules.offload else rules.host_blocks - c.host_free
    row.swap_out_bytes = 0
    row.swap_in_bytes = 0


@kernel
def process(s: Any, rules: Any) -> None:
    """Apply the outputs of the oldest step in flight: sample, end, and record its row."""
    c = s.c[0]
    k = c.oldest_in_flight
    row = s.flight_row[k]
    end_s = row.t_start_s + row.duration_s
    c.num_finished = 0
    if rules.offload and row.num_scheduled > 0:
        c.processed_seq += 1
        drain_fences(s)
    from_running = 0
    base = k * len(s.seats)
    for i in range(row.num_scheduled):
        r = s.flight[base + i].req
        q = s.requests[r]
        if s.flight[base + i].samples == 0 or q.status >= _FINISHED:
            continue
        known = q.num_tokens + 1
        q.num_tokens = known
        if known == q.prompt + 1:
            q.first_token_s = end_s
        elif end_s - q.last_token_s > q.max_itl_s:
            q.max_itl_s = end_s - q.last_token_s
        q.last_token_s = end_s
        if rules.async_scheduling:
            q.placeholders -= 1
            if rules.caching and q.status == _RUNNING:
                prefix.register_full(s, r, q.num_computed - q.placeholders, rules.block_size)
        if known - q.prompt >= q.max_tokens or known >= rules.max_model_len:
            if q.status == _RUNNING:
                from_running += 1
            _finish(s, rules, r, end_s)
    if from_running > 0:
        _drop_finished(s)
    if rules.offload:
        complete(s, rules, end_s if rules.clock == _MODELLED else float(row.step))
    row.num_finished = c.num_finished
    s.step_rows[c.num_step_rows] = row
    c.num_step_rows += 1
    c.oldest_in_flight = (k + 1) % 2
    c.num_in_flight -= 1


@kernel
def _finish(s: Any, rules: Any, r: Any, end_s: Any) -> None:
    """End request r, wherever its last token found it."""
    c = s.c[0]
    q = s.requests[r]
    if q.status == _PREEMPTED:
        queues.wait_remove(s, r, rules.priority)
    elif q.status == _SWAPPED:
        queues.swapped_remove(s, r)
        if not q.fenced:
            drop_host_copy(s, r)
    was_running = q.status == _RUNNING
    events.end_request(s, r, _FINISHED, _K_FINISH, end_s, _ZERO)
    if rules.offload:
        end_on_host(s, rules, r)
        free_or_fence(s, rules, r)
    elif was_running:
        free_blocks_of(s, r)
    s.noted[c.num_finished].finished = r
    c.num_finished += 1


@inlined
def _drop_finished(s: Any) -> None:
    """Close the gaps that finished requests left in the running queue."""
    c = s.c[0]
    kept = 0
    for i in range(c.num_running):
        r = s.seats[i].running
        if s.requests[r].status == _RUNNING:
            s.seats[kept].running = r
            kept += 1
    c.num_running = kept
