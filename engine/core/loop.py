"""The loop around the scheduler: arrivals, clock, chunks of steps.

Two clocks meet here. schedule() is called at `now_s`; the executor is busy until `gpu_free_s`.
Synchronously, outputs are processed at the end of each step and the next schedule() comes then.
Asynchronously, schedule() of step k+1 comes while step k runs, and k's outputs after it.
On the clock `measured` an executor says afterwards how long a step took (`give`), before its outputs
are processed; until then the step has the modelled duration.

`begin` and `finish` are one iteration; the chunk below compiles them into a loop, and whoever wants
to look at each step (the decision log, the torch engine) calls them one by one.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from engine.core import events, outputs, queues
from engine.core.copies import submit
from engine.core.jit import inlined, kernel
from engine.core.offload import settle
from engine.core.schedule import abort, schedule
from engine.core.state import Clock, Kind, Reason, Status
from engine.cost_model import step_time_s

_ZERO = np.int64(0)
_MODELLED, _STEP = np.int64(Clock.MODELLED), np.int64(Clock.STEP)
_LINEAR, _MEASURED = np.int64(Clock.LINEAR), np.int64(Clock.MEASURED)
_WAITING, _REFUSED = np.int64(Status.WAITING), np.int64(Status.REFUSED)
_K_ARRIVE, _K_REFUSE = np.int64(Kind.ARRIVE), np.int64(Kind.REFUSE)
_K_SWAP_OUT, _K_SWAP_IN = np.int64(Kind.SWAP_OUT), np.int64(Kind.SWAP_IN)
_K_LOAD = np.int64(Kind.LOAD)
_OVER_POOL, _OVER_LEN = (
    np.int64(Reason.PROMPT_OVER_POOL),
    np.int64(Reason.PROMPT_OVER_MODEL_LEN),
)


class Code(IntEnum):
    """What an iteration, or a chunk of them, came to."""

    MORE = 0  # a step was scheduled
    DRAINED = 1  # nothing to schedule; an output in flight was processed
    FLUSH = 2  # a buffer is full: record it and call again
    DONE = 3
    STALLED = 4  # nothing can ever be scheduled again (compat only)
    LIVELOCK = 5
    MAX_STEPS = 6


_MORE, _DRAINED, _FLUSH, _DONE = (
    int(Code.MORE),
    int(Code.DRAINED),
    int(Code.FLUSH),
    int(Code.DONE),
)
_STALLED, _LIVELOCK, _MAX = int(Code.STALLED), int(Code.LIVELOCK), int(Code.MAX_STEPS)


@inlined
def _unfinished(s: Any) -> Any:
    c = s.c[0]
    return c.num_running + c.num_waiting + c.num_swapped + c.num_loads + c.num_deferred


@inlined
def _room(s: Any, rules: Any) -> Any:
    """Whether the buffers hold what one more step may note."""
    c = s.c[0]
    most = 6 * rules.max_num_seqs + 16
    if rules.offload:  # a load takes no seat
        most += len(s.slots)
    return c.num_step_rows + 2 < len(s.step_rows) and c.num_event_rows + most < len(
        s.event_rows
    )


@inlined
def _in_turn(rules: Any) -> Any:
    """Whether a step starts when the one before has ended, and takes seconds."""
    return rules.clock == _MODELLED or rules.clock == _MEASURED


@inlined
def _next_arrival_s(s: Any, rules: Any) -> Any:
    c = s.c[0]
    if rules.concurrency > 0:
        return c.now_s
    return s.requests[c.next_arrival].arrival_s


@inlined
def _due(s: Any, rules: Any) -> Any:
    """Whether the next request has arrived by now."""
    c = s.c[0]
    if c.next_arrival >= len(s.requests) - 1:
        return False
    if rules.concurrency > 0:
        return c.next_arrival - c.num_ended < rules.concurrency
    return s.requests[c.next_arrival].arrival_s <= c.now_s


@kernel
def _arrive(s: Any, rules: Any) -> None:
    """Take in the next request, or refuse what can never run."""
    c = s.c[0]
    r = c.next_arrival
    q = s.requests[r]
    c.next_arrival += 1
    c.arrivals_now += 1
    if rules.concurrency > 0:
        q.arrival_s = c.now_s
    events.note(s, _K_ARRIVE, r, q.arrival_s, _ZERO, q.prompt, c.num_free)
    # vLLM's front end refuses them too; the core has no block-table row for more.
    if q.prompt > rules.max_model_len or (q.prompt == rules.max_model_len and not rules.compat):
        events.end_request(s, r, _REFUSED, _K_REFUSE, c.now_s, _OVER_LEN)
        return
    needed = (q.prompt + rules.block_size - 1) // rules.block_size
    if needed > rules.num_blocks - 1 and not rules.compat:
        events.end_request(s, r, _REFUSED, _K_REFUSE, c.now_s, _OVER_POOL)
        return
    q.status = _WAITING
    queues.wait_push(s, r, rules.priority, _ZERO)


@kernel
def begin(s: Any, rules: Any, cost: Any) -> Any:
    """Arrivals, aborts, schedule(), and the step handed to the executor. Returns a Code."""
    c = s.c[0]
    c.num_finished = 0
    if not _room(s, rules):
        return _FLUSH
    if _unfinished(s) == 0 and c.arrivals_now == 0 and c.num_aborted == 0:
        if c.num_in_flight > 0:
            outputs.process(s, rules)
            return _DRAINED
        if c.next_arrival >= len(s.requests) - 1:
            return _DONE
        c.now_s = max(c.now_s, _next_arrival_s(s, rules))
        if rules.offload and rules.clock == _MODELLED:
            settle(s, rules, cost)
    if rules.clock == _STEP:
        c.step = int(c.now_s)
    while _due(s, rules):
        if not _room(s, rules):
            return _FLUSH
        _arrive(s, rules)
    while c.next_abort < c.num_aborts:
        r = s.requests[c.next_abort].abort_order
        if s.requests[r].abort_s > c.now_s:
            break
        if not _room(s, rules):  # any number of waiting requests may be aborted at once
            return _FLUSH
        c.next_abort += 1
        if abort(s, rules, r):
            s.requests[c.num_aborted].aborted = r
            c.num_aborted += 1
    if _unfinished(s) == 0 and c.num_aborted == 0 and not rules.compat:
        c.arrivals_now = 0  # all that came was refused: no step for that
        return _DRAINED
    schedule(s, rules, cost)
    _execute(s, rules, cost)
    return _MORE


@kernel
def _execute(s: Any, rules: Any, cost: Any) -> None:
    """Put the step in flight and say when it starts and how long it takes."""
    c = s.c[0]
    k = (c.oldest_in_flight + c.num_in_flight) % 2
    view = outputs.advance(s, rules, cost.window_tokens)
    row = s.flight_row[k]
    start = max(c.now_s, c.gpu_free_s) if _in_turn(rules) else c.now_s
    if rules.offload:
        submit(s, rules, cost, start)
    row.t_start_s = start
    for i in range(c.num_admitted):
        q = s.requests[s.noted[i].admitted]
        if q.num_preemptions == 0:
            q.first_scheduled_s = start
    _count_copied(s, row)
    if rules.offload:
        row.swap_out_bytes += c.stored_blocks_now * rules.block_bytes
        c.stored_blocks_now = 0
    if rules.clock == _STEP:
        row.duration_s = 1.0
        row.stall_s = 0.0
        c.gpu_free_s = start + 1.0
        return
    if rules.clock == _LINEAR:
        again = row.prefill_tokens + row.recomputed_tokens
        compute = (
            rules.linear_base_ms
            + rules.linear_prefill_ms * again
            + rules.linear_decode_ms * row.decode_tokens
        ) / 1e3
    else:
        compute = step_time_s(
            cost, view[0], view[1], view[2], view[3], view[4], view[5], view[6], view[7]
        )
    if rules.clock == _MEASURED:
        row.duration_s = compute
        row.stall_s = 0.0
        row.link_out_busy_s = 0.0
        row.link_in_busy_s = 0.0
        c.gpu_free_s = start + compute  # a guess, until the executor says
        return
    stall = max(0.0, c.stall_until_s - start)
    if c.num_sched == 0 and stall == 0.0:
        stall = _until_copy(s, rules, start)
        if rules.concurrency == 0 and c.next_arrival < len(s.requests) - 1:
            stall = max(0.0, min(stall, s.requests[c.next_arrival].arrival_s - start))
    row.duration_s = stall + compute
    row.stall_s = stall
    end = start + row.duration_s
    row.link_out_busy_s = _overlap(c.link_out_free_s, start, end)
    row.link_in_busy_s = _overlap(c.link_in_free_s, start, end)
    c.gpu_free_s = end


@inlined
def _count_copied(s: Any, row: Any) -> None:
    """Sum into the step's row the bytes whose copies this step started."""
    c = s.c[0]
    for i in range(c.num_event_rows - 1, -1, -1):
        e = s.event_rows[i]
        if e.step != c.step:
            break
        if e.kind == _K_SWAP_OUT:
            row.swap_out_bytes += e.bytes
        elif e.kind == _K_SWAP_IN or e.kind == _K_LOAD:
            row.swap_in_bytes += e.bytes


@inlined
def _overlap(busy_until_s: Any, start: Any, end: Any) -> Any:
    """Seconds of [start, end] during which a link that is busy until then is busy."""
    return max(0.0, min(busy_until_s, end) - start)


@inlined
def _until_copy(s: Any, rules: Any, start: Any) -> Any:
    """Seconds until the first running copy ends; 0 where there is none."""
    c = s.c[0]
    first = -1.0
    for k in range(c.num_fences):
        t = s.requests[s.slots[k].fence].ready_s
        if first < 0.0 or t < first:
            first = t
    for k in range(c.num_loads):
        t = s.requests[s.slots[k].load].ready_s
        if first < 0.0 or t < first:
            first = t
    for k in range(c.num_jobs if rules.clock == _MODELLED else 0):  # copies of the host cache
        j = s.hosts[k].job_order
        if s.hosts[j].job_state == 1 and (first < 0.0 or s.hosts[j].job_due < first):
            first = s.hosts[j].job_due
    return max(0.0, first - start)


@kernel
def give(s: Any, duration_s: Any, stall_s: Any) -> None:
    """Say how long the oldest step in flight took, and how much of that it waited (clock `measured`)."""
    c = s.c[0]
    k = c.oldest_in_flight
    row = s.flight_row[k]
    row.duration_s = duration_s
    row.stall_s = stall_s
    c.gpu_free_s = row.t_start_s + duration_s
    if c.num_in_flight < 2:
        return
    k = (k + 1) % 2
    row = s.flight_row[k]
    planned = row.t_start_s
    row.t_start_s = max(c.now_s, c.gpu_free_s)
    c.gpu_free_s = row.t_start_s + row.duration_s  # a guess
    for i in range(row.num_scheduled):
        q = s.requests[s.flight[k * len(s.seats) + i].req]
        if q.first_scheduled_s == planned and q.num_preemptions == 0:
            q.first_scheduled_s = row.t_start_s


@inlined
def _overlaps(s: Any, rules: Any) -> Any:
    c = s.c[0]
    busy = c.num_running + c.num_waiting + c.num_deferred + c.num_jobs > 0
    return rules.async_scheduling and c.num_in_flight < 2 and (c.num_sched > 0 or busy)


@kernel
def overlaps(s: Any, rules: Any) -> Any:
    """Whether the next step is scheduled while the newest runs: `finish` will process no outputs."""
    return _overlaps(s, rules)


@kernel
def drains(s: Any) -> Any:
    """Whether `begin` will process outputs first, as nothing is left but a step in flight."""
    c = s.c[0]
    return (
        c.num_in_flight > 0
        and _unfinished(s) == 0
        and c.arrivals_now == 0
        and c.num_aborted == 0
    )


@kernel
def finish(s: Any, rules: Any) -> Any:
    """Process what is due, move the clock, and look for an engine that is stuck. Returns a Code."""
    c = s.c[0]
    executed = c.num_sched > 0
    newest = (c.oldest_in_flight + c.num_in_flight - 1) % 2
    row = s.flight_row[newest]
    start_s = row.t_start_s
    duration_s = row.duration_s
    fresh = row.prefill_tokens + row.decode_tokens
    c.num_finished = 0
    processed_end_s = start_s
    if not _overlaps(s, rules):
        oldest = s.flight_row[c.oldest_in_flight]
        processed_end_s = oldest.t_start_s + oldest.duration_s
        outputs.process(s, rules)
    progress = fresh + c.num_finished + c.arrivals_now + c.num_aborted > 0
    # The harness around vLLM does not count this, and gives up on a restore longer than its patience.
    progress = progress or (c.completed_now > 0 and not rules.compat)
    c.completed_now = 0
    c.idle_steps = 0 if progress else c.idle_steps + 1
    c.arrivals_now = 0
    c.num_aborted = 0
    c.step += 1
    c.num_steps += 1
    if _in_turn(rules):
        c.now_s = max(c.now_s, processed_end_s)
    else:
        c.now_s += duration_s
    copying = c.num_fences + c.num_loads > 0
    for k in range(c.num_jobs):
        if c.num_in_flight == 0 or s.hosts[s.hosts[k].job_order].job_made != row.step:
            copying = True  # what only a step in flight asked for does not run yet
    if not executed and c.num_preempted == 0 and not copying and c.idle_steps > 4:
        empty = True
        for k in range(c.num_in_flight):
            if s.flight_row[(c.oldest_in_flight + k) % 2].num_scheduled > 0:
                empty = False
        if empty and _unfinished(s) > 0:
            if c.next_arrival < len(s.requests) - 1:
                c.now_s = max(c.now_s, _next_arrival_s(s, rules))
            elif c.next_abort >= c.num_aborts:
                return _STALLED
            elif _in_turn(rules):
                t = s.requests[s.requests[c.next_abort].abort_order].abort_s
                c.now_s = max(c.now_s, t)
    if c.idle_steps >= rules.livelock_steps:
        return _LIVELOCK
    if c.num_steps >= rules.max_steps:
        return _MAX
    return _MORE


@kernel
def run_chunk(s: Any, rules: Any, cost: Any, iterations: Any) -> Any:
    """Run up to that many iterations, or until a buffer is full or the run has ended."""
    for _ in range(iterations):
        code = begin(s, rules, cost)
        if code == _DRAINED:
            continue
        if code != _MORE:
            return code
        code = finish(s, rules)
        if code != _MORE:
            return code
    return _MORE
