"""What a live scheduler did, as rows: the bookkeeping between vLLM's calls and the writer's inbox.

It runs on the scheduler's thread and is told of each call by the recording scheduler (vllm.py). It
reads vLLM's objects and changes none. It is made so that a steady decode step costs a few
microseconds whatever the batch: requests are looked at when they arrive, are admitted, lose their
blocks, catch up with known tokens or end, and not in between.

Tokens of a step. Requests that still have known tokens to compute (their prompt, or what a
preemption lost) are `catching up`; for them prefill and recomputed tokens are counted one by one.
All other scheduled tokens are decode tokens (with speculative decoding, drafts included).

Time. t_start_s is when schedule() was called, or, with several steps in flight, when the step before
had been processed, whichever came later; duration_s lasts until the end of update_from_output().
Arrivals count from when the scheduler got them, not the front end.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from engine.live.cached_free import CachedFree
from engine.live.gaps import StepEnds, TokenGaps
from engine.live.rows import KIND, MODE, PREFIX_BYTES, STATUS
from engine.live.writer import Inbox

_ARRIVE, _ADMIT, _PREEMPT, _LOAD, _RESUME, _FINISH, _ABORT, _REFUSE = (
    KIND[k]
    for k in ("arrive", "admit", "preempt", "load", "resume", "finish", "abort", "refuse")
)
_IDLE_ROW_S = 1.0  # of steps in which nothing happens, one row in this time is enough
_REMEMBERED_IDS = 65_536  # ended ids that a new request must not have again in one recording


class Live:
    """One request that the scheduler has. Tokens as in the contract's `requests`."""

    __slots__ = (
        "admissions", "arrival_s", "arrival_step", "cached", "first_scheduled_s", "first_token_s",
        "free_before", "gaps", "high_water", "id", "loading", "local_hit", "preempted_at_s", "preempted_s",
        "preemptions", "prefix", "priority", "prompt", "recomputed", "restored",
    )  # fmt: skip

    def __init__(self, id: str, arrival_s: float, arrival_step: int, request: Any) -> None:
        self.id = id
        self.arrival_s = arrival_s
        self.arrival_step = arrival_step
        self.prompt: int = request.num_prompt_tokens
        self.priority: int = request.priority
        self.prefix: bytes | None = None
        self.high_water = (
            0  # tokens that some step computed; may be behind while nothing was lost
        )
        self.admissions = 0
        self.preemptions = 0
        self.recomputed = 0
        self.cached = 0
        self.restored = 0
        self.local_hit: int | None = None  # tokens found on the GPU when it was last looked up
        self.free_before: int | None = None  # free blocks at that moment
        self.loading = False
        self.gaps = TokenGaps()
        self.first_scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.preempted_at_s: float | None = None
        self.preempted_s = 0.0


class _Step:
    """A step between schedule() and update_from_output()."""

    __slots__ = ("called_s", "counts", "output", "step")

    def __init__(
        self, output: Any, step: int, called_s: float, counts: tuple[int, ...]
    ) -> None:
        self.output = output
        self.step = step
        self.called_s = called_s
        self.counts = counts


class Tap:
    """Books of one scheduler, told of its calls in their order.

    pool: vLLM's block pool; kv: its KV cache manager; mode: what a preemption is ("recompute", or
    "offload" where a connector may restore what was lost); hash_block: tokens of a prefix hash, or
    None where prefixes are not recorded; cached_free: counts cached free blocks, or None;
    blocks_every: take a sample of block ownership every so many steps, 0: never.
    """

    def __init__(
        self,
        inbox: Inbox,
        pool: Any,
        kv: Any,
        *,
        mode: str,
        hash_block: int | None,
        cached_free: CachedFree | None,
        blocks_every: int = 0,
        connected: bool = False,
    ) -> None:
        self.inbox = inbox
        self.start_s = time.monotonic()
        self._queue = pool.free_block_queue
        self._usable = pool.num_gpu_blocks - 1
        self._kv = kv
        self._mode = MODE[mode]
        self._hash_block = hash_block
        self._cached_free = cached_free
        self._blocks_every = blocks_every
        self._connected = connected
        self.lives: dict[str, Live] = {}  # by vLLM's id
        self._catching_up: dict[str, Live] = {}
        self._awaiting_token: dict[str, tuple[Live, int]] = {}  # and the tokens it had before
        self._ends = StepEnds()
        self.updating = (
            False  # update_from_output() is at work: what ends now, ends with its step
        )
        self._in_flight: deque[_Step] = deque()
        self._next_step = 0
        self._preempted = 0
        self._last_end_s = 0.0
        self._event_step = 0
        self._ended: list[tuple[Live, int, int, int, int, bool]] = []
        self._idle: tuple[int, ...] | None = None
        self._idle_s = 0.0
        self._events_seen = 0
        self._ids: deque[int] = deque(maxlen=_REMEMBERED_IDS)
        self._id_set: set[int] = set()
        self._again = 0

    def now_s(self) -> float:
        return time.monotonic() - self.start_s

    # Calls in the order in which a request meets them.

    def arrived(self, request: Any) -> None:
        """add_request() took a request that is new to the scheduler."""
        vllm_id = request.request_id
        if vllm_id in self.lives:
            return  # the next part of a streamed prompt
        live = Live(self._unique(vllm_id), self.now_s(), self._next_step, request)
        if self._hash_block is not None:
            full = live.prompt // self._hash_block
            live.prefix = b"".join([h[:PREFIX_BYTES] for h in request.block_hashes[:full]])
        self.lives[vllm_id] = live
        free = self._queue.num_free_blocks
        self._event(self._next_step, live.arrival_s, _ARRIVE, live, 0, live.prompt, free)

    def _unique(self, vllm_id: str) -> str:
        """The id, with a number where a request of this recording had it before."""
        if hash(vllm_id) not in self._id_set:
            return vllm_id
        self._again += 1
        return f"{vllm_id}#{self._again}"

    def looked_up(self, request: Any, result: Any) -> None:
        """get_computed_blocks() looked for a waiting request's cached prefix."""
        live = self.lives.get(request.request_id)
        if live is not None:
            live.local_hit = result[1]
            live.free_before = self._queue.num_free_blocks

    def preempting(self, request: Any, cause: Any) -> None:
        """_preempt_request() is about to take a running request's blocks, for the need of `cause`."""
        live = self.lives.get(request.request_id)
        if live is None:
            return
        now_s = self.now_s()
        asker = None if cause is None else self.lives.get(cause.request_id)
        lost = request.num_computed_tokens
        if lost > live.high_water:
            live.high_water = lost
        live.preemptions += 1
        live.preempted_at_s = now_s
        self._catching_up.pop(request.request_id, None)
        live.gaps.leave(self._ends, request.num_output_tokens)
        self._preempted += 1
        self._event(
            self._next_step,
            now_s,
            _PREEMPT,
            live,
            self._blocks_of(request.request_id),
            lost,
            self._queue.num_free_blocks,
            self._mode,
            None if asker is None else asker.id,
        )

    def scheduled(self, scheduler: Any, output: Any, called_s: float) -> None:
        """schedule() returned `output`; it was called at called_s of time.monotonic()."""
        called_s -= self.start_s
        step = self._next_step
        self._next_step = step + 1
        admitted = resumed = cached = restored = loading = 0
        new = len(output.scheduled_new_reqs) + len(output.scheduled_cached_reqs.resumed_req_ids)
        if new:
            for request in scheduler.running[-new:]:
                again, local, outside = self._admit(request, output, step, called_s)
                resumed += again
                admitted += not again
                cached += local
                restored += outside
        prefill = recomputed = 0
        if self._catching_up:
            prefill, recomputed = self._catch_up(scheduler, output.num_scheduled_tokens)
        if self._connected:
            loading = self._loads(scheduler, step, called_s)
        free = self._queue.num_free_blocks
        fenced = 0
        if self._connected:
            fenced = sum(len(blocks) for _, blocks in getattr(scheduler, "deferred_frees", ()))
        counts = (
            len(scheduler.running),
            scheduler.get_request_counts()[1] - loading,
            loading,
            admitted,
            resumed,
            self._preempted,
            prefill,
            output.total_num_scheduled_tokens - prefill - recomputed,
            recomputed,
            cached,
            self._usable - free,
            fenced,
            0 if self._cached_free is None else self._cached_free.count(free),
            free,
            restored,
        )
        self._preempted = 0
        self._in_flight.append(_Step(output, step, called_s, counts))
        if self._blocks_every and step % self._blocks_every == 0:
            self._sample(scheduler, step)

    def _admit(self, request: Any, output: Any, step: int, t_s: float) -> tuple[bool, int, int]:
        """A request began to run: whether it had before, and its tokens found on GPU and host."""
        vllm_id = request.request_id
        live = self.lives.get(vllm_id)
        if live is None:
            return False, 0, 0
        found = request.num_computed_tokens - output.num_scheduled_tokens[vllm_id]
        local = found if live.local_hit is None else min(live.local_hit, found)
        if not self._connected:
            local = found
        free = live.free_before
        again = live.admissions > 0
        live.admissions += 1
        live.cached += local
        live.restored += found - local
        live.loading = False
        live.local_hit = live.free_before = None
        if live.first_scheduled_s is None:
            live.first_scheduled_s = t_s
        if live.preempted_at_s is not None:
            live.preempted_s += t_s - live.preempted_at_s
            live.preempted_at_s = None
        self._awaiting_token[vllm_id] = live, request.num_output_tokens
        self._catching_up[vllm_id] = live
        kind = _RESUME if again else _ADMIT
        free = self._queue.num_free_blocks if free is None else free
        self._event(step, t_s, kind, live, self._blocks_of(vllm_id), local, free)
        return again, local, found - local

    def _catch_up(self, scheduler: Any, tokens: dict[str, int]) -> tuple[int, int]:
        """Prefill and recomputed tokens of this step, of requests that compute known tokens."""
        prefill = recomputed = 0
        done = []
        for vllm_id, live in self._catching_up.items():
            n = tokens.get(vllm_id)
            if n is None:
                continue
            end = scheduler.requests[vllm_id].num_computed_tokens
            start = end - n
            again = min(end, live.high_water) - start
            if again > 0:
                recomputed += again
                live.recomputed += again
                start += again
            fresh = min(end, live.prompt) - start
            if fresh > 0:
                prefill += fresh
            if end >= live.prompt and end >= live.high_water:
                done.append(vllm_id)
        for vllm_id in done:
            del self._catching_up[vllm_id]
        return prefill, recomputed

    def _loads(self, scheduler: Any, step: int, t_s: float) -> int:
        """Requests whose KV is on its way from a connector; notes those that began in this step."""
        loading = 0
        for request in _set_aside(scheduler):
            if request.status.name != "WAITING_FOR_REMOTE_KVS":
                continue
            loading += 1
            live = self.lives.get(request.request_id)
            if live is None or live.loading:
                continue
            live.loading = True
            outside = request.num_computed_tokens - (live.local_hit or 0)
            blocks = self._blocks_of(request.request_id)
            free = self._queue.num_free_blocks if live.free_before is None else live.free_before
            self._event(step, t_s, _LOAD, live, blocks, outside, free)
        return loading

    def _sample(self, scheduler: Any, step: int) -> None:
        tables = {}
        for vllm_id, live in self.lives.items():
            groups = self._kv.get_blocks(vllm_id).blocks
            ids = [b.block_id for group in groups for b in group if not b.is_null]
            if ids:
                tables[live.id] = ids
        self.inbox.sample(step, tables)

    def freeing(self, request: Any) -> None:
        """_free_request() is about to end a request, whose status says how."""
        live = self.lives.pop(request.request_id, None)
        if live is None:
            return
        self._catching_up.pop(request.request_id, None)
        self._forget(request.request_id)
        status = _ended_as(request.status.name)
        output_tokens = request.num_output_tokens
        _, before = self._awaiting_token.pop(request.request_id, (live, output_tokens))
        blocks = self._blocks_of(request.request_id)
        free = self._queue.num_free_blocks
        first = output_tokens > before  # its last token is the first of this stay
        self._ended.append((live, status, output_tokens, blocks, free, first))

    def _forget(self, vllm_id: str) -> None:
        if len(self._ids) == _REMEMBERED_IDS:
            self._id_set.discard(self._ids[0])
        self._ids.append(hash(vllm_id))
        self._id_set.add(hash(vllm_id))

    def processed(self, scheduler: Any, output: Any) -> None:
        """update_from_output() has applied what a step computed."""
        self.updating = False
        end_s = self.now_s()
        if output.total_num_scheduled_tokens:
            self._ends.add(end_s)
        finished = self._end(end_s, self._next_step - 1)
        if self._awaiting_token:
            self._first_tokens(scheduler, end_s)
        while self._in_flight:
            step = self._in_flight.popleft()
            if step.output is output:
                self._record(step, end_s, finished)
                return
            self._record(step, end_s, 0)  # its outputs never came

    def ended(self) -> None:
        """finish_requests() has ended requests from outside: aborts."""
        if not self.updating:
            self._end(self.now_s(), self._next_step)

    def _end(self, t_s: float, step: int) -> int:
        """Events and rows of the requests that were freed; how many had their last token."""
        if not self._ended:
            return 0
        finished = 0
        for live, status, output_tokens, blocks, free, first in self._ended:
            if status == STATUS["finished"]:
                finished += 1
                kind = _FINISH
                if live.first_token_s is None:
                    live.first_token_s = t_s
                if first:
                    live.gaps.token(self._ends, output_tokens)
                live.gaps.leave(self._ends, output_tokens)
            else:
                kind = _ABORT if status == STATUS["aborted"] else _REFUSE
                live.gaps.abandon(self._ends, output_tokens)
                if live.first_token_s is None and output_tokens:
                    live.first_token_s = t_s
            reason = "vLLM ended it as ignored" if kind == _REFUSE else None
            self._event(step, t_s, kind, live, blocks, output_tokens, free, None, None, reason)
            self._request(live, status, output_tokens, t_s)
        self._ended.clear()
        return finished

    def _first_tokens(self, scheduler: Any, end_s: float) -> None:
        done = []
        for vllm_id, (live, before) in self._awaiting_token.items():
            request = scheduler.requests.get(vllm_id)
            if request is not None and request.num_output_tokens > before:
                live.gaps.token(self._ends, request.num_output_tokens)
                if (
                    live.preempted_at_s is not None
                ):  # its step was in flight when it was preempted
                    live.gaps.leave(self._ends, request.num_output_tokens)
                if live.first_token_s is None:
                    live.first_token_s = end_s
                done.append(vllm_id)
        for vllm_id in done:
            del self._awaiting_token[vllm_id]

    def _record(self, step: _Step, end_s: float, finished: int) -> None:
        """The row of a step that has ended. An engine that is stuck calls schedule() thousands of times
        a second: of steps in which nothing happens one row a second is written, the others counted."""
        counts = step.counts
        start_s = max(step.called_s, self._last_end_s)
        self._last_end_s = end_s
        idle = counts[6] == counts[7] == counts[8] == counts[5] == finished == 0
        seen = end_s - self._idle_s < _IDLE_ROW_S
        if idle and seen and counts == self._idle and self._events_seen == 0:
            self.inbox.counts.skipped_idle_steps += 1
            return
        self._idle, self._idle_s = (counts, end_s) if idle else (None, 0.0)
        self._events_seen = 0
        self.inbox.step(
            (step.step, start_s, end_s - start_s, *counts[:6], finished, *counts[6:])
        )

    def _event(
        self,
        step: int,
        t_s: float,
        kind: int,
        live: Live,
        blocks: int,
        tokens: int,
        free: int,
        mode: int | None = None,
        cause: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Note an event; steps of events never decrease."""
        if step < self._event_step:
            step = self._event_step
        self._event_step = step
        self._events_seen += 1
        self.inbox.event((step, t_s, kind, live.id, mode, blocks, tokens, cause, free, reason))

    def _request(self, live: Live, status: int, output_tokens: int, t_s: float | None) -> None:
        if live.preempted_at_s is not None and t_s is not None:
            live.preempted_s += max(0.0, t_s - live.preempted_at_s)
        self.inbox.request(
            (
                live.id,
                live.arrival_s,
                live.prompt,
                output_tokens,
                live.priority,
                live.first_scheduled_s,
                live.first_token_s,
                t_s,
                live.preemptions,
                live.recomputed,
                live.cached,
                live.preempted_s,
                live.gaps.longest(output_tokens),
                status,
                live.restored,
                live.arrival_step,
                live.prefix,
            )
        )

    def _blocks_of(self, vllm_id: str) -> int:
        return sum(map(len, self._kv.get_blocks(vllm_id).blocks))

    def close(self, requests: dict[str, Any]) -> int:
        """Rows of the requests that are still there; how many. requests: vLLM's, by id."""
        while self._in_flight:
            self._record(self._in_flight.popleft(), self.now_s(), 0)
        unfinished = STATUS["unfinished"]
        for vllm_id, live in self.lives.items():
            request = requests.get(vllm_id)
            tokens = 0 if request is None else request.num_output_tokens
            live.gaps.abandon(self._ends, tokens)
            self._request(live, unfinished, tokens, None)
        count = len(self.lives)
        self.lives.clear()
        return count


def _set_aside(scheduler: Any) -> Any:
    """Waiting requests that cannot run yet; newer vLLMs have them in deferred_waiting."""
    aside = getattr(scheduler, "deferred_waiting", None)
    return getattr(scheduler, "skipped_waiting", ()) if aside is None else aside


def _ended_as(vllm_status: str) -> int:
    """The contract's status for vLLM's."""
    if vllm_status in ("FINISHED_ABORTED", "FINISHED_ERROR"):
        return STATUS["aborted"]
    return STATUS["refused" if vllm_status == "FINISHED_IGNORED" else "finished"]
