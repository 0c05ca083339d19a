"""What each way of preempting a request would cost the engine, and what copies cost on the link.

An estimate is engine time: by how many seconds the choice is expected to lengthen the run of a full
engine. It is made when the victim is chosen, from what the scheduler can know then: the victim's
blocks, the batch, the link, and how much of earlier victims was found again. It decides nothing
(preempt.py does) and knows no formula of a step (cost_model.py does).

- **recompute**: the tokens that will have to be computed again, on top of the batch that runs anyway,
  in as many chunks as the token budget makes of them; and the preemptions that follow where it returns
  in chunks that leave budget to let in others. Not counted are tokens expected to be found in
  the prefix cache: blocks that somebody else holds too, and of the victim's own the share that earlier
  victims found again (`note_found`).
- **swap, blocking**: what the two copies add to the stall of their steps, queue on the link included.
- **swap, asynchronous**: nobody stalls, but blocks are out of use: the victim's stay fenced until the
  copy out has ended, and who needs one waits; the new ones are held without running until the copy in
  has. Both take whole steps, and cost the share of the batch that they keep from running.
- **swap of shared blocks**: they come back as private ones, and for the rest of the request's life the
  pool holds them twice.

Measured in benchmarks/cheapest_vs_pure.py; docs/decisions tells what else was tried.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from engine.core.jit import inlined, kernel
from engine.core.state import Clock
from engine.cost_model import copy_time_s, linear_layers_time_s, recompute_time_s

_STEP_CLOCK, _LINEAR = np.int64(Clock.STEP), np.int64(Clock.LINEAR)
_OUT, _IN = np.int64(0), np.int64(1)  # direction of a copy; typed, not literal
# Before any victim has come back, a quarter of its own blocks is expected to be found again; worth
# as much as that many blocks observed. Source: 13 to 33 % on the pools of benchmarks/cheapest_vs_pure.py
# that are full all the time (nothing to speak of with answers longer than prompts, 80 % where it passes).
_PRIOR_FOUND_FRAC, _PRIOR_BLOCKS = 0.25, 64.0
# Of the blocks that a victim returning in small chunks leaves for later, those that others are let in to.
# Source: 0.5 to 0.9, from how often recompute and swap preempted in 60 drawn runs with a threshold of 256.
_LET_IN_FRAC = 0.85
_MEMORY = 0.97  # weight of older resumptions at each new one


@kernel
def copy_cost_s(s: Any, rules: Any, cost: Any, slot: Any, num_blocks: Any, inbound: Any) -> Any:
    """Seconds for the first num_blocks of a block-table row to cross the link alone."""
    if rules.clock == _STEP_CLOCK or num_blocks == 0:
        return 0.0
    runs = 1
    for i in range(1, num_blocks):
        if s.table[slot, i] != s.table[slot, i - 1] + 1:
            runs += 1
    return copy_time_s(cost, num_blocks, runs, inbound)


@inlined
def contended(start_s: Any, busy_until_s: Any, duration_s: Any, factor: Any) -> Any:
    """Duration of a copy that runs at `factor` of its speed until the other direction is idle."""
    overlap = busy_until_s - start_s
    if overlap <= 0.0 or factor >= 1.0:
        return duration_s
    if duration_s <= overlap * factor:
        return duration_s / factor
    return overlap + (duration_s - overlap * factor)


@kernel
def expect_found(s: Any, rules: Any, r: Any) -> Any:
    """Tokens of victim r that the prefix cache is expected to give back when it returns.

    Notes in its row which blocks that rests on, for `note_found`.
    """
    c = s.c[0]
    q = s.requests[r]
    hashed = min(q.num_hashed, q.num_computed // rules.block_size)
    sure = 0
    while sure < hashed and s.blocks[s.table[q.slot, sure]].ref > 1:
        sure += 1
    q.sure_blocks = sure
    q.risked_blocks = hashed - sure
    share = (c.found_blocks + _PRIOR_FOUND_FRAC * _PRIOR_BLOCKS) / (
        c.risked_blocks + _PRIOR_BLOCKS
    )
    return int((sure + share * (hashed - sure)) * rules.block_size)


@kernel
def note_found(s: Any, r: Any, hits: Any) -> None:
    """Learn from a victim that returns how many of the blocks it had let go are still cached."""
    c = s.c[0]
    q = s.requests[r]
    if q.risked_blocks > 0:
        found = min(max(hits - q.sure_blocks, 0), q.risked_blocks)
        c.found_blocks = _MEMORY * c.found_blocks + found
        c.risked_blocks = _MEMORY * c.risked_blocks + q.risked_blocks
    q.risked_blocks = 0


@kernel
def recompute_estimate_s(s: Any, rules: Any, cost: Any, tokens: Any, found: Any) -> Any:
    """Engine time to compute `tokens` tokens again of which the first `found` need not be."""
    again = tokens - found
    if again <= 0:
        return 0.0
    if rules.clock == _LINEAR:
        return rules.linear_prefill_ms * again / 1e3
    t = recompute_time_s(cost, again, found)
    if cost.linear == 1:
        return t
    running = max(s.c[0].num_running, 1)
    room = max(rules.token_budget - running, 1)
    if rules.long_prefill > 0:
        room = min(room, rules.long_prefill)
    chunks = (again + room - 1) // room
    chunk = (again + chunks - 1) // chunks
    more = linear_layers_time_s(cost, running + chunk) - linear_layers_time_s(cost, running)
    t += again / chunk * more - cost.token_compute_s * again
    t += (chunks - 1) * cost.prefill_fixed_s
    if 0 < rules.long_prefill == room and s.c[0].num_waiting > 0:
        # It comes back in chunks that leave budget: others are let in to the blocks that it was let
        # in for and has not taken, and as it takes them, one more is preempted.
        t /= 1.0 - _LET_IN_FRAC * (1.0 - 1.0 / chunks)
    return t


@kernel
def swap_estimate_s(s: Any, rules: Any, cost: Any, r: Any, num_blocks: Any) -> Any:
    """Engine time to move num_blocks blocks of running request r to the host and back.

    Call `expect_found` before, where there is a prefix cache.
    """
    c = s.c[0]
    q = s.requests[r]
    if num_blocks == 0:
        return 0.0
    ready = max(c.now_s, c.gpu_free_s)
    start = max(ready, c.link_out_free_s)
    out = copy_cost_s(s, rules, cost, q.slot, num_blocks, _OUT)
    out = contended(start, c.link_in_free_s, out, cost.contention_out)
    back = copy_cost_s(s, rules, cost, q.slot, num_blocks, _IN)
    pool = rules.num_blocks - 1
    idle_s = _idle_step_s(s, rules, cost)
    unshared = q.sure_blocks / pool * idle_s * _steps_to_come(s, r) if rules.caching else 0.0
    if not rules.copy_async:
        stalled = max(ready, c.stall_until_s)
        return max(start + out - stalled, 0.0) + back + unshared
    last = s.flight_row[(c.oldest_in_flight + c.num_in_flight + 1) % 2]
    step = max(last.duration_s - last.stall_s, 1e-9)
    fenced = np.ceil((start + out - ready) / step)
    away = np.ceil((max(c.link_in_free_s - ready, 0.0) + back) / step)
    waiting = 1.0 / max(c.num_running, 1) + 0.5 * fenced / rules.block_size
    held = num_blocks / pool
    return idle_s * (fenced * min(1.0, max(held, waiting)) + away * held) + unshared


@kernel
def _idle_step_s(s: Any, rules: Any, cost: Any) -> Any:
    """Engine time that a step would lose if its whole batch were away: what it costs whoever runs.

    The rest of a step grows with its requests, and is saved where they wait.
    """
    if rules.clock == _LINEAR:
        return rules.linear_base_ms / 1e3
    if cost.linear == 1:
        return cost.base_ms / 1e3
    running = max(s.c[0].num_running, 1)
    linear = linear_layers_time_s(cost, running)
    slope = linear_layers_time_s(cost, running + 1) - linear
    fixed = cost.step_overhead_s + max(linear - running * slope, 0.0) + cost.decode_fixed_s
    return fixed + max(cost.head_read_s - running * cost.head_row_s, 0.0)


@inlined
def _steps_to_come(s: Any, r: Any) -> Any:
    """Decode steps that request r still has before it, by the answers of those that have ended.

    How long its answer will be is not known, also where the trace knows it.
    """
    c = s.c[0]
    q = s.requests[r]
    made = q.num_tokens - q.prompt
    usual = c.finished_tokens / c.num_done if c.num_done > 0 else 2.0 * made
    return max(usual - made, 0.5 * usual)
