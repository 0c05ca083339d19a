"""The scheduler's state: a named tuple of arrays, and the rules it plays by.

It knows the layout of every table and how a fresh one is made from a workload and settings. It
decides nothing. Rows are records (one request, one step, one event), so that a request's counters
lie on neighbouring cache lines and read as `q.num_tokens`; compiled code sees the same arrays.

NONE (-1) stands for "no request" or "no slot" inside the compiled core only; it never leaves it:
the recorder writes nulls.

Legend: N requests, B blocks (null block 0 included), M max_num_seqs, S block-table rows, W their
width, G prefix segments over all requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import numba
import numpy as np

from engine.core.jit import kernel

NONE = -1
Records = Any  # a NumPy record array: fields read as attributes, which no stub knows
UNLIMITED = 1 << 62


class Status(IntEnum):
    """Where a request is; it is in exactly one queue until it has ended."""

    PENDING = 0  # not arrived
    WAITING = 1
    RUNNING = 2
    PREEMPTED = 3  # in the waiting queue, has run before
    SWAPPED = 4  # computed tokens in host memory
    LOADING = 5  # on its way back: holds GPU blocks, does not run
    FINISHED = 6
    ABORTED = 7
    REFUSED = 8


class Kind(IntEnum):
    """Codes of schema.EVENT_KINDS, in that order."""

    ARRIVE = 0
    ADMIT = 1
    PREEMPT = 2
    SWAP_OUT = 3
    SWAP_IN = 4
    LOAD = 5
    RESUME = 6
    FINISH = 7
    ABORT = 8
    REFUSE = 9


class Mode(IntEnum):
    """Codes of schema.MODES, in that order."""

    RECOMPUTE = 0
    SWAP = 1
    OFFLOAD = 2
    CHEAPEST = 3


class Offload(IntEnum):
    """Which of vLLM's connectors keeps the host's block cache."""

    NONE = 0
    NATIVE = 1  # stores blocks as they fill
    EAGER = 2  # the simple connector: stores blocks known to be computed
    LAZY = 3  # ... or cached blocks that are about to be handed out


class Victim(IntEnum):
    """Who loses its blocks when a running request cannot get one."""

    LAST = 0  # last of the running queue (vLLM, first come first served)
    PRIORITY = 1  # largest (priority, arrival) (vLLM, priority)
    FEWEST_COMPUTED = 2
    MOST_BLOCKS = 3


class Clock(IntEnum):
    """What one step costs."""

    MODELLED = 0  # cost_model.step_time_s
    STEP = 1  # one tick; arrivals are step indices
    LINEAR = 2  # the parity harness's latency clock: tokens times constants
    MEASURED = 3  # what the executor says it took (loop.give)


class Reason(IntEnum):
    """Why a request was refused."""

    NONE = 0
    PROMPT_OVER_POOL = 1
    PROMPT_OVER_MODEL_LEN = 2
    OUTGREW_POOL = 3


class Rules(NamedTuple):
    """Settings as the compiled core takes them; every field is an int or a float.

    num_blocks counts the null block, as vLLM does. watermark_blocks: blocks an admission must leave
    free. token_budget: most tokens of a step. compat: 1 keeps vLLM 0.26.0's known faults.
    """

    block_size: int
    num_blocks: int
    max_num_seqs: int
    token_budget: int
    max_model_len: int
    caching: int
    chunked: int
    long_prefill: int
    priority: int
    watermark_blocks: int
    reserve_full: int
    async_scheduling: int
    victim: int
    mode: int
    host_blocks: int
    copy_async: int
    compat: int
    clock: int
    concurrency: int
    livelock_steps: int
    max_steps: int
    block_bytes: int
    linear_base_ms: float
    linear_prefill_ms: float
    linear_decode_ms: float
    offload: int
    prompt_only: int
    load_steps: int  # steps that a copy takes on the step clocks
    store_steps: int


def _layout(**fields: str) -> np.dtype:
    return np.dtype(list(fields.items()), align=True)


# The first eight fields are what a decoding request touches in every step: one cache line.
REQUEST = _layout(
    num_tokens="i8",  # prompt and sampled tokens known so far
    num_computed="i8",  # tokens whose KV exists (or is being computed by a step in flight)
    placeholders="i8",  # sampled tokens still in flight (asynchronous scheduling)
    status="i8",
    num_blocks="i8",  # blocks in its row of the block table
    num_hashed="i8",  # of those, leading blocks that are registered in the prefix cache
    high_water="i8",  # most tokens ever computed: below it, work is recomputation
    sched_step="i8",  # last step that scheduled it
    prompt="i8",
    max_tokens="i8",  # output tokens asked for
    last_token_s="f8",
    max_itl_s="f8",
    first_token_s="f8",
    first_scheduled_s="f8",
    slot="i8",  # its row of the block table
    rank="i8",  # order under the policy: smaller runs first
    wait_next="i8",
    wait_prev="i8",
    own_head="i8",  # cached blocks that only it can hit, in order of registration; 0: none
    own_tail="i8",
    shared_tokens="i8",  # leading prompt tokens covered by prefix segments
    seg_start="i8",
    num_segs="i8",
    num_preemptions="i8",
    host_blocks="i8",
    fenced="i8",  # while its copy to the host runs: 1 + blocks that it alone holds
    sure_blocks="i8",  # when last preempted: leading cached blocks that others held too, ...
    risked_blocks="i8",  # ... and those behind them that could be lost; 0 once it is back
    ready_s="f8",  # end of its copy
    cached_tokens="i8",
    recomputed_tokens="i8",
    restored_tokens="i8",  # from the host cache
    swapped_bytes="i8",
    preempted_at_s="f8",
    preempted_s="f8",
    arrival_s="f8",
    finish_s="f8",
    abort_s="f8",
    reason="i8",
    # Lists of requests, kept as columns: entry i of the list stands in row i.
    heap="i8",  # waiting requests under the priority policy
    heap_pos="i8",  # place of this row's request in that heap
    swap_queue="i8",  # requests in host memory, by rank
    abort_order="i8",  # requests with an abort, by time and id
    aborted="i8",  # requests aborted before this step
    deferred="i8",  # requests put aside: being restored, or waiting for a copy (offload)
    ended_now="i8",  # requests that ended since the last step (offload)
    # Mode offload (offload.py, copies.py, fences.py).
    num_jobs="i8",  # copies for it under way
    next_store="i8",  # leading blocks that were stored, or found stored
    load_from="i8",  # blocks in front of those that are held or loaded for it ...
    num_pinned="i8",  # ... host blocks held for a restore that has not begun ...
    num_loading="i8",  # ... blocks on their way
    loaded="i8",  # 1: they have come
    is_deferred="i8",
    prefilling="i8",  # 1: admitted or being restored, and not all known tokens computed
    last_seq="i8",  # last step with work that it was part of
    flush_step="i8",  # step in which it was last a victim
    gpu_hit_tokens="i8",  # of num_computed at admission, what came from the GPU's cache
    end_slot="i8",  # row of the block table kept for its last store
    end_blocks="i8",
)

# Lists with a place for each running request, kept as columns.
SEAT = _layout(
    running="i8",  # the running queue
    sched_req="i8",  # this step's requests, in the order decided, ...
    sched_tok="i8",  # ... their tokens, ...
    sched_new_from="i8",  # ... and the first index of the blocks handed over
)
# Lists that are short in most steps, kept apart from what every step walks over.
NOTED = _layout(
    admitted="i8",  # requests admitted or resumed in this step ...
    admitted_cached="i8",  # ... the tokens found in the prefix cache ...
    admitted_restored="i8",  # ... and those restored from the host's
    preempted="i8",  # victims of this step, in order
    preempted_tokens="i8",
    preempted_blocks="i8",
    finished="i8",  # ended by the outputs processed last
)

# Lists with a place for each row of the block table.
SLOT = _layout(
    free="i8",  # free rows
    fence="i8",  # copies out that run ...
    load="i8",  # ... and copies in
    users="i8",  # who still reads this row (offload)
    fenced_slot="i8",  # rows whose blocks wait for a step to be processed, a ring ...
    fenced_blocks="i8",
    fenced_until="i8",  # ... and that step
)

BLOCK = _layout(
    next="i8",  # free queue, a ring through block 0
    prev="i8",
    ref="i8",  # holders
    key="u8",  # 0: not in the prefix cache (prefix.py)
    owner="i8",  # 1 + the only request that can hit it; 0: any with that prefix
    same_next="i8",  # next block of the same hash, or of the same owner, in order of registration
    same_prev="i8",
    same_tail="i8",  # at the first of them: the last
    storing="i8",  # 1: a store reads it (offload, eager)
    taken_step="i8",  # last step that handed it over, where that matters (offload)
)
# One row: a host block, a cell of the host's index and a copy job, which have nothing to do with
# each other (host_cache.py, copies.py).
HOST = _layout(
    next="i8",  # blocks that may be handed out, a ring through block 0, oldest first
    prev="i8",
    ref="i8",  # readers; -1: being written (native)
    key="u8",  # hash of what it holds
    listed="i8",  # 1: can be found
    same_next="i8",  # next block of the same hash
    same_prev="i8",
    same_tail="i8",
    guard="i8",  # number of the store that must not overwrite it
    gpu="i8",  # block that a store copies to it ...
    job_next="i8",  # ... and the next block of that store
    scratch="i8",
    cell_key="u8",  # index, open addressing; block 0: empty
    cell_block="i8",
    job_kind="i8",
    job_request="i8",
    job_state="i8",
    job_made="i8",  # step that asked for it
    job_age="i8",  # steps that it was held back
    job_since="i8",  # step that started it
    job_due="f8",  # time of its end, on the step clocks the step
    job_flush="i8",
    job_head="i8",
    job_tail="i8",
    job_count="i8",
    job_order="i8",  # jobs under way, oldest first
    job_free="i8",  # rows free for jobs
)
CELL = _layout(key="u8", block="i8")  # prefix index, open addressing; block 0: empty
SEGMENT = _layout(id="u8", chain="u8", end="i8")  # chain: hash of all segments up to this one
FLIGHT = _layout(req="i8", samples="i8")

COUNTERS = np.dtype(
    [
        (name, "i8")
        for name in (
            "num_free",  # blocks in the free queue
            "cached_free",  # of those, hashed
            "cached_used",  # hashed blocks somebody holds
            "fenced_blocks",
            "num_running",
            "num_waiting",
            "num_swapped",  # in host memory, not yet on the way back
            "num_fences",
            "num_loads",
            "num_slots",  # rows on the free-slot stack
            "host_free",
            "heap_size",
            "next_arrival",
            "next_abort",
            "num_ended",
            "step",
            "num_steps",  # steps taken; on the step clock `step` jumps with the arrivals
            "num_sched",
            "num_admitted",
            "num_preempted",
            "num_returned",  # swapped requests whose copy back has ended by this step
            "num_finished",
            "num_done",  # requests that finished since the start, ...
            "finished_tokens",  # ... and their output tokens
            "num_aborted",
            "num_step_rows",
            "num_event_rows",
            "num_aborts",
            "num_in_flight",
            "oldest_in_flight",
            "idle_steps",
            "arrivals_now",
            "waited_for_fence",
            "num_deferred",
            "num_loading",  # of those, being restored
            "num_ended_now",
            "idle_planned",  # 1: plan_idle was called for the pause that comes
            "sched_seq",  # steps with work handed out ...
            "processed_seq",  # ... and processed
            "fence_head",
            "num_step_fences",
            "host_mask",
            "host_filled",
            "host_version",  # counts changes of the host cache
            "num_jobs",
            "num_free_jobs",
            "guard",
            "store_failures",
            "stored_blocks_now",  # put on the link since the last step row was written
            "completed_now",  # copies that ended with the outputs processed last
            "lazy_cursor",
            "memo_request",
            "memo_hits",
            "memo_full",
            "memo_version",
            "memo_answer",
            "status",
        )
    ]
    + [
        (name, "f8")
        for name in (
            "now_s",  # time at which schedule() is called
            "gpu_free_s",  # end of the last step handed to the executor
            "link_out_free_s",
            "link_in_free_s",
            "stall_until_s",
            "found_blocks",  # of the risked blocks of earlier victims, those found again, ...
            "risked_blocks",  # ... and all of them; older ones weigh less (estimates.py)
        )
    ],
    align=True,
)

STEP_ROW = np.dtype(
    [
        ("step", "i8"),
        ("t_start_s", "f8"),
        ("duration_s", "f8"),
        ("num_running", "i4"),
        ("num_waiting", "i4"),
        ("num_swapped", "i4"),
        ("num_admitted", "i4"),
        ("num_resumed", "i4"),
        ("num_preempted", "i4"),
        ("num_finished", "i4"),
        ("prefill_tokens", "i4"),
        ("decode_tokens", "i4"),
        ("recomputed_tokens", "i4"),
        ("cached_tokens", "i4"),
        ("used_blocks", "i4"),
        ("fenced_blocks", "i4"),
        ("cached_free_blocks", "i4"),
        ("free_blocks", "i4"),
        ("host_used_blocks", "i4"),
        ("swap_out_bytes", "i8"),
        ("swap_in_bytes", "i8"),
        ("stall_s", "f8"),
        ("link_out_busy_s", "f8"),
        ("link_in_busy_s", "f8"),
        ("restored_tokens", "i4"),
        ("num_scheduled", "i4"),  # the core's own, not recorded
    ],
    align=True,
)

EVENT_ROW = np.dtype(
    [
        ("step", "i8"),
        ("t_s", "f8"),
        ("kind", "i4"),
        ("request", "i4"),
        ("mode_asked", "i4"),
        ("mode_used", "i4"),
        ("blocks", "i4"),
        ("cause", "i4"),
        ("tokens", "i8"),
        ("bytes", "i8"),
        ("cost_s", "f8"),
        ("recompute_est_s", "f8"),
        ("swap_est_s", "f8"),
        ("free_before", "i4"),
        ("reason", "i4"),
    ],
    align=True,
)


class State(NamedTuple):
    """All that the scheduler remembers. Arrays are altered in place.

    Few and wide on purpose: a compiled function takes every array apart into its arguments.
    """

    c: Records  # (1,) COUNTERS
    requests: Records  # (N+1,) REQUEST; the last row heads the waiting list
    seats: Records  # (M+1,) SEAT
    noted: Records  # (M+1,) NOTED
    slots: Records  # (S,) SLOT
    table: np.ndarray  # (S, W) block ids in token order
    blocks: Records  # (B,) BLOCK
    index: Records  # (power of two,) CELL
    segs: Records  # (G+1,) SEGMENT
    flight: Records  # (2 * (M+1),) FLIGHT: steps whose outputs are not processed
    flight_row: Records  # (2,) STEP_ROW of those steps
    hosts: Records  # (H,) HOST; one row where there is no host cache
    step_rows: Records  # (R,) STEP_ROW, waiting to be recorded
    event_rows: Records  # (E,) EVENT_ROW


def _records(n: int, dtype: np.dtype) -> Records:
    return np.zeros(n, dtype=dtype).view(np.recarray)


def _index_capacity(num_blocks: int) -> int:
    capacity = 16
    while capacity < 2 * num_blocks + 2:
        capacity *= 2
    return capacity


@kernel
def mix(a: Any, b: Any) -> Any:
    """A 64-bit mixing of two words (the finaliser of SplitMix64 over their combination)."""
    x = a ^ (b + np.uint64(0x9E3779B97F4A7C15) + (a << np.uint64(6)) + (a >> np.uint64(2)))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


if getattr(numba.config, "DISABLE_JIT", 0):
    # As plain Python, NumPy warns of what is meant: arithmetic modulo 2**64.
    mix = np.errstate(over="ignore")(mix)


@kernel
def _chain_segments(requests: Any, segs: Any) -> None:
    for r in range(len(requests) - 1):
        q = requests[r]
        h = np.uint64(0x243F6A8885A308D3)
        begin = 0
        for k in range(q.seg_start, q.seg_start + q.num_segs):
            h = mix(mix(h, segs[k].id), np.uint64(segs[k].end - begin))
            begin = segs[k].end
            segs[k].chain = h


def make_state(
    columns: Mapping[str, np.ndarray],
    rules: Rules,
    *,
    step_rows: int = 8192,
    event_rows: int = 32768,
) -> State:
    """A fresh State for requests in order of arrival.

    columns: arrival_s, prompt_tokens, output_tokens, priority (N,); abort_s (N,) with NaN for none;
    abort_tie (N,) order of aborts at one time; seg_count (N,), seg_id and seg_len (G,).
    """
    n = len(columns["arrival_s"])
    m, b = rules.max_num_seqs, rules.num_blocks
    requests = _make_requests(columns, rules)
    segs = _make_segments(columns, requests)
    _chain_segments(requests, segs)
    longest = int((requests.prompt[:n] + requests.max_tokens[:n]).max())
    width = min(-(-min(longest, rules.max_model_len) // rules.block_size), b) + 1
    num_slots = max(1, min(n, b, m + (1 if rules.mode == Mode.RECOMPUTE else 1024)))
    if rules.offload:  # rows also wait for a last store, and for a step to be processed
        num_slots += 2 * m + (min(n, 1 << 16) if rules.compat else 0)
    slots = _records(num_slots, SLOT)
    slots.free = np.arange(num_slots)[::-1]
    blocks = _records(b, BLOCK)
    blocks.next = (np.arange(b) + 1) % b
    blocks.prev = (np.arange(b) - 1) % b
    c = _records(1, COUNTERS)
    c[0].num_free = b - 1
    c[0].num_slots = num_slots
    c[0].host_free = rules.host_blocks
    c[0].num_aborts = int((~np.isnan(columns["abort_s"])).sum())
    full = (requests.prompt[:n] + requests.max_tokens[:n]) // rules.block_size
    hosts = _make_hosts(rules, int(full.sum()), num_slots, c[0])
    return State(
        c=c,
        requests=requests,
        seats=_records(m + 1, SEAT),
        noted=_records(m + 1, NOTED),
        slots=slots,
        table=np.empty((num_slots, width), np.int32),
        blocks=blocks,
        index=_records(_index_capacity(b if rules.caching else 1), CELL),
        segs=segs,
        flight=_records(2 * (m + 1), FLIGHT),
        flight_row=_records(2, STEP_ROW),
        hosts=hosts,
        step_rows=_records(step_rows, STEP_ROW),
        event_rows=_records(max(event_rows, 16 * m + 256), EVENT_ROW),
    )


def _make_hosts(rules: Rules, most_blocks: int, num_slots: int, c: Any) -> Records:
    """The host cache, empty: every block may be handed out, the first first.

    It never needs more than most_blocks, the full blocks of all requests; the simple connectors may hold
    one of them twice.
    """
    if not rules.offload:
        return _records(1, HOST)
    blocks = min(rules.host_blocks, 2 * most_blocks + 1) + 1
    c.host_free = blocks - 1
    cells = _index_capacity(blocks)
    # A store has a host block of its own, a load a row of the block table.
    jobs = blocks + num_slots + 1
    hosts = _records(max(cells, jobs), HOST)
    hosts.next[:blocks] = (np.arange(blocks) + 1) % blocks
    hosts.prev[:blocks] = (np.arange(blocks) - 1) % blocks
    hosts.job_free[:jobs] = np.arange(jobs)[::-1]
    c.num_free_jobs = jobs
    c.host_mask = cells - 1
    return hosts


def _make_requests(columns: Mapping[str, np.ndarray], rules: Rules) -> Records:
    n = len(columns["arrival_s"])
    requests = _records(n + 1, REQUEST)
    requests.prompt[:n] = requests.num_tokens[:n] = columns["prompt_tokens"]
    requests.max_tokens[:n] = columns["output_tokens"]
    requests.arrival_s[:n] = columns["arrival_s"]
    requests.abort_s[:n] = columns["abort_s"]
    requests.slot = NONE
    requests.sched_step = NONE
    requests.flush_step = requests.end_slot = NONE
    for name in ("first_scheduled_s", "first_token_s", "finish_s", "last_token_s"):
        requests[name] = np.nan
    key = columns["priority"] if rules.priority else np.zeros(n)
    requests.rank[:n][np.argsort(key, kind="stable")] = np.arange(n)
    requests.wait_next[n] = requests.wait_prev[n] = n
    aborts = np.flatnonzero(~np.isnan(columns["abort_s"]))
    order = np.lexsort((columns["abort_tie"][aborts], columns["abort_s"][aborts]))
    requests.abort_order[: len(aborts)] = aborts[order]
    return requests


def _make_segments(columns: Mapping[str, np.ndarray], requests: Records) -> Records:
    n = len(requests) - 1
    count = columns["seg_count"].astype(np.int64)
    segs = _records(len(columns["seg_id"]) + 1, SEGMENT)
    starts = np.zeros(n, np.int64)
    starts[1:] = np.cumsum(count)[:-1]
    requests.seg_start[:n] = starts
    requests.num_segs[:n] = count
    if len(segs) > 1:
        segs.id[:-1] = columns["seg_id"]
        total = np.cumsum(columns["seg_len"].astype(np.int64))
        owner = np.repeat(np.arange(n), count)
        ends = total - np.append(0, total)[starts][owner]
        segs.end[:-1] = np.minimum(ends, requests.prompt[owner])
        requests.shared_tokens[:n] = np.where(count > 0, segs.end[starts + count - 1], 0)
    return segs
