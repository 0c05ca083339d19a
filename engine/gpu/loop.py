"""The loop around the scheduler with a device behind it: one clock, real tokens, a recording.

Each round the core decides a step (`begin`), the copies it asked for are started, the executor runs
it, and its outputs are processed (`finish`). On the clock `measured` the core is told how long the
step took; on the clock `modelled` it takes the cost model's word, as the simulator does, whatever
the device needs. With asynchronous scheduling a step is decided while the one before runs.

It knows when things happen, not what is decided (engine.core) nor how a token is computed (executor).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.config import Resolved
from engine.core.loop import Code, begin, drains, finish, give, overlaps
from engine.core.state import NONE, Clock, State, Status
from engine.gpu.batch import StepInputs
from engine.gpu.executor import Executor
from engine.gpu.kv_cache import KVCache
from engine.gpu.tokens import Tokens
from engine.gpu.transfers import Transfers
from engine.ownership import Ownership
from engine.recorder import WORK, WORK_ROW, Recorder, writing

FLUSH_S = 5.0  # what a killed run may lose
_IDLE_S = 0.05  # longest wait without a look around
_ENDED = (int(Status.FINISHED), int(Status.ABORTED), int(Status.REFUSED))


@dataclass
class _InFlight:
    """A step that was handed over. sampled: requests that get a token, in the executor's order."""

    ticket: Any  # None for a step without work
    sampled: np.ndarray
    work: tuple[Any, ...]
    waited_s: float


@dataclass(frozen=True)
class LoopOptions:
    """stop_ids: tokens that end an answer before its length is reached; poison: the cache whose blocks
    are filled with NaN when they change hands, so that whoever reads what has gone is found out;
    interrupted: whether to wait no longer for arrivals and copies."""

    stop_ids: frozenset[int] = frozenset()
    poison: KVCache | None = None
    interrupted: Callable[[], bool] = bool


class Loop:
    """One run. Call `step` until it returns an end, then `close`."""

    def __init__(
        self,
        s: State,
        resolved: Resolved,
        executor: Executor,
        transfers: Transfers,
        tokens: Tokens,
        recorder: Recorder,
        ownership: Ownership | None,
        options: LoopOptions,
        on_end: Callable[[int, np.ndarray], None] | None = None,
    ) -> None:
        self._s = s
        self._rules = resolved.rules
        self._cost = resolved.cost
        self._executor = executor
        self._transfers = transfers
        self._tokens = tokens
        self._recorder = recorder
        self._ownership = ownership
        self._options = options
        self._on_end = on_end
        self._measured = self._rules.clock == Clock.MEASURED
        self._owner = np.full(len(s.slots), NONE, np.int64)  # request whose tokens a row holds
        self._in_flight: deque[_InFlight] = deque()
        self._work: list[tuple[Any, ...]] = []  # of the steps in the core's buffer
        self._origin_s = 0.0
        self._flushed_s = 0.0
        self._ended = 0
        self._broken = False  # a part could not be written: nothing more can be
        self.steps = 0
        self.preemptions = 0
        self.recording_s = 0.0  # host time spent on recording
        self.wall_s = 0.0

    def start(self) -> None:
        """Start the run's clock."""
        self._origin_s = self._flushed_s = time.perf_counter()
        self._transfers.origin_s = self._origin_s

    @property
    def now_s(self) -> float:
        """Seconds since the start, by the host's clock."""
        return time.perf_counter() - self._origin_s

    # --- one round -----------------------------------------------------------------------------

    def step(self) -> Code:
        """Decide one step, run it, and process the outputs that are due."""
        s = self._s
        self._transfers.poll(float(s.c[0].now_s))
        self._transfers.before()
        if drains(s):
            self._collect()
        elif self._rules.offload and not self._measured and self._pauses():
            self._transfers.plan_ahead()
        code = Code(begin(s, self._rules, self._cost))
        if code == Code.MORE:
            self._run_step()
            if not overlaps(s, self._rules):
                self._collect()
            code = Code(finish(s, self._rules))
        self._note_ended()
        if code == Code.FLUSH or self._due_for_recording():
            self.record(everything=code == Code.FLUSH)
        return code

    def _pauses(self) -> bool:
        """Whether `begin` will jump to the next arrival."""
        c = self._s.c[0]
        busy = c.num_running + c.num_waiting + c.num_swapped + c.num_loads + c.num_deferred
        busy += c.arrivals_now + c.num_aborted + c.num_in_flight
        return busy == 0 and c.next_arrival < len(self._s.requests) - 1

    def _run_step(self) -> None:
        """Start the copies of the step that was decided, and hand it to the executor."""
        s, c = self._s, self._s.c[0]
        newest = (int(c.oldest_in_flight) + int(c.num_in_flight) - 1) % 2
        row = s.flight_row[newest]
        if self._measured:
            self._sleep_until(float(row.t_start_s))
        if self._ownership is not None:
            started = time.perf_counter()
            self._recorder.add_spans(self._ownership.look(s, int(c.step)))
            self.recording_s += time.perf_counter() - started
        inputs = self._inputs(newest)
        new_blocks = _handed_over(inputs)
        self._transfers.waited_s = 0.0
        self._transfers.start(new_blocks)
        if self._options.poison is not None:
            self._poison(self._options.poison, inputs)
        ticket = None
        if len(inputs.request):
            ticket = self._executor.submit(inputs)
        elif self._measured:
            self._wait_for_something(float(row.t_start_s))
        self._transfers.after_step()
        sampled = inputs.request[inputs.samples]
        waited = self._transfers.waited_s
        self._in_flight.append(_InFlight(ticket, sampled, _work_of(inputs), waited))

    def _inputs(self, newest: int) -> StepInputs:
        """The decided step in the executor's terms; loads the tokens of requests that have a new row."""
        s, n = self._s, int(self._s.c[0].num_sched)
        seats, requests = s.seats.view(np.ndarray)[:n], s.requests.view(np.ndarray)
        lost = s.noted.view(np.ndarray)["preempted"][: s.c[0].num_preempted]
        self._owner[np.isin(self._owner, lost)] = NONE  # a victim may get its old row back
        who = seats["sched_req"].copy()
        slot = requests["slot"][who]
        base = newest * len(s.seats)
        new_from = seats["sched_new_from"].copy()
        moved = self._owner[slot] != who
        admitted = s.noted.view(np.ndarray)["admitted"][: self._s.c[0].num_admitted]
        new_from[moved | np.isin(who, admitted)] = 0
        for r, at in zip(who[moved].tolist(), slot[moved].tolist(), strict=True):
            self._executor.load_tokens(at, self._tokens.known(r), r)
            self._owner[at] = r
        tokens = seats["sched_tok"].copy()
        return StepInputs(
            request=who,
            slot=slot,
            start=requests["num_computed"][who] - tokens,
            tokens=tokens,
            samples=s.flight.view(np.ndarray)["samples"][base : base + n].astype(bool),
            new_from=new_from,
            num_blocks=requests["num_blocks"][who],
            table=s.table,
        )

    def _poison(self, kv: KVCache, inputs: StepInputs) -> None:
        """NaN into the blocks that this step hands over and does not find filled."""
        filled = -(-inputs.start // self._rules.block_size)
        first = np.maximum(inputs.new_from, filled)
        for slot, low, high in zip(
            inputs.slot.tolist(), first.tolist(), inputs.num_blocks.tolist(), strict=True
        ):
            if high > low:
                kv.poison(inputs.table[slot, low:high])

    # --- outputs -------------------------------------------------------------------------------

    def _collect(self) -> None:
        """Wait for the oldest step in flight, take its tokens, and tell the core how long it took."""
        s, c = self._s, self._s.c[0]
        step = self._in_flight.popleft()
        row = s.flight_row[c.oldest_in_flight]
        padded, compute_s = NONE, 0.0
        if step.ticket is not None:
            outputs = self._executor.wait(step.ticket)
            self._take(step.sampled, outputs.token_ids)
            compute_s = outputs.compute_s
            padded = NONE if outputs.num_padded is None else outputs.num_padded
        self._transfers.waited_s = 0.0
        self._transfers.finish_due()
        stall = step.waited_s + self._transfers.waited_s
        if self._measured:
            start = float(row.t_start_s)
            duration = max(self.now_s - start, 1e-9)
            if step.ticket is None:
                stall = duration
            give(s, duration, min(stall, duration))
            out, back = self._transfers.busy(start, start + duration)
            row.link_out_busy_s, row.link_in_busy_s = out, back
        self._work.append((*step.work, padded, compute_s))

    def _take(self, requests: np.ndarray, token_ids: np.ndarray) -> None:
        """Note sampled tokens; one of the stop ids ends its request."""
        s = self._s
        status = s.requests.view(np.ndarray)["status"][requests]
        for r, token, ended in zip(
            requests.tolist(), token_ids.tolist(), np.isin(status, _ENDED).tolist(), strict=True
        ):
            if ended:
                continue
            self._tokens.append(r, token)
            if token in self._options.stop_ids:
                q = s.requests[r]
                q.max_tokens = q.num_tokens + 1 - q.prompt

    def _note_ended(self) -> None:
        """Hand the answers of requests that ended to whoever wants them, and forget their tokens."""
        if self._s.c[0].num_ended == self._ended:
            return
        self._ended = int(self._s.c[0].num_ended)
        known = np.array(self._tokens.held(), np.int64)
        status = self._s.requests.view(np.ndarray)["status"][known]
        for r in known[np.isin(status, _ENDED)].tolist():
            if self._on_end is not None:
                self._on_end(r, self._tokens.generated(r).copy())
            self._tokens.drop(r)

    # --- waiting -------------------------------------------------------------------------------

    def _sleep_until(self, t_s: float) -> None:
        while (left := t_s - self.now_s) > 0 and not self._options.interrupted():
            time.sleep(min(left, _IDLE_S))

    def _wait_for_something(self, start_s: float) -> None:
        """Nothing could be scheduled: wait for a copy to end, or for the next arrival or abort."""
        s, c = self._s, self._s.c[0]
        until = start_s + _IDLE_S
        if self._rules.concurrency == 0 and c.next_arrival < len(s.requests) - 1:
            until = min(until, float(s.requests[c.next_arrival].arrival_s))
        if c.next_abort < c.num_aborts:
            until = min(until, float(s.requests[s.requests[c.next_abort].abort_order].abort_s))
        self._transfers.wait_any(max(0.0, until - self.now_s))

    # --- recording -----------------------------------------------------------------------------

    def _due_for_recording(self) -> bool:
        full = self._s.c[0].num_event_rows > len(self._s.event_rows) // 2
        return full or time.perf_counter() - self._flushed_s > FLUSH_S

    def record(self, *, everything: bool = False) -> None:
        """Empty the core's row buffers into the recorder, and write a part.

        Rows from the oldest copy that still runs stay, as it will write its time into them, unless
        everything has to go. Raises: RecordingError where the disk does not take it.
        """
        started = time.perf_counter()
        c, s = self._s.c[0], self._s
        n_steps, n_events = int(c.num_step_rows), int(c.num_event_rows)
        open_step = self._transfers.first_open_step()
        if open_step is not None and not everything:
            n_events = int(np.searchsorted(s.event_rows["step"][:n_events], open_step))
            n_steps = int(np.searchsorted(s.step_rows["step"][:n_steps], open_step))
        self._broken = True
        with writing(self._recorder.directory):
            self._write(n_steps, n_events)
        self._broken = False
        _drop_rows(s.step_rows.view(np.ndarray), n_steps, int(c.num_step_rows))
        _drop_rows(s.event_rows.view(np.ndarray), n_events, int(c.num_event_rows))
        c.num_step_rows -= n_steps
        c.num_event_rows -= n_events
        del self._work[:n_steps]
        self._transfers.shift_events(n_events)
        self._flushed_s = time.perf_counter()
        self.recording_s += self._flushed_s - started

    def _write(self, n_steps: int, n_events: int) -> None:
        rows = np.empty(n_steps, WORK_ROW)
        steps = self._s.step_rows.view(np.ndarray)
        for name in steps.dtype.names or ():
            rows[name] = steps[name][:n_steps]
        for k, (name, _) in enumerate(WORK):
            rows[name] = [work[k] for work in self._work[:n_steps]]
        self.preemptions += int(rows["num_preempted"].sum())
        self.steps += n_steps
        events = self._s.event_rows.view(np.ndarray)[:n_events]
        self._recorder.add(rows, events, self._s.requests)
        if self._ownership is not None:
            self._recorder.add_spans(self._ownership.cut())
        self._recorder.flush()

    def close(self, status: str) -> None:
        """Record what is left, unfinished requests included, and close the recording."""
        self.wall_s = self.now_s
        self._transfers.close()
        if self._broken:
            return
        self._transfers.poll(float(self._s.c[0].now_s))
        self.record(everything=True)
        ended = np.isin(self._s.requests.view(np.ndarray)["status"][:-1], _ENDED)
        with writing(self._recorder.directory):
            if not ended.all():
                self._recorder.add_requests(np.flatnonzero(~ended), self._s.requests)
            self._recorder.close(status)


def _drop_rows(rows: np.ndarray, n: int, filled: int) -> None:
    """Move rows [n, filled) to the front."""
    rows[: filled - n] = rows[n:filled].copy()


def _handed_over(inputs: StepInputs) -> np.ndarray:
    """Blocks that the step's requests got with it, or came back with."""
    rows = [
        inputs.table[slot, first:count]
        for slot, first, count in zip(
            inputs.slot.tolist(),
            inputs.new_from.tolist(),
            inputs.num_blocks.tolist(),
            strict=True,
        )
        if count > first
    ]
    return np.concatenate(rows) if rows else np.zeros(0, np.int32)


def _work_of(inputs: StepInputs) -> tuple[Any, ...]:
    """The first six of recorder.WORK: what the step computes, in the cost model's terms."""
    n, end = inputs.tokens, inputs.start + inputs.tokens
    one = n == 1
    chunk = n[~one]
    qk = float((chunk * (inputs.start[~one] + 0.5 * chunk)).sum())
    return (
        int(one.sum()),
        int(end[one].sum()),
        int((~one).sum()),
        int(chunk.sum()),
        qk,
        int(inputs.samples.sum()),
    )
