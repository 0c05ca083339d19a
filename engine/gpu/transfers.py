"""The scheduler's copies, done: which blocks go where, when a copy has ended, and who waits for it.

It reads from the core's arrays what a step started (swap: events; offload: copy jobs), finds the
blocks on both sides and hands them to the copier. The core counts host blocks of swapped requests
and names those of the host cache; the ids of the former are given out here. It decides nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from engine.core.host_cache import find_host, key_of
from engine.core.offload import plan_idle
from engine.core.state import Clock, Kind, Rules, State, Status
from engine.gpu.swap import Copier, Copy, HostBlocks
from traces.errors import InvariantError

_LOOK_S = 2e-4  # between two looks whether a copy has ended
_STORE, _HELD, _RUNNING = 0, 0, 1  # of a job's kind and state in core.copies


@dataclass
class _Job:
    """A copy under way. event: its row in the core's buffer, -1 where there is none (any more)."""

    copy: Copy
    request: int
    inbound: bool
    event: int
    gpu_blocks: np.ndarray


class Transfers:
    """The copies of one run.

    copier: asynchronous where the rules say so, None where nothing is ever copied; origin_s: perf_counter() at the start of the run's
    clock. Call `poll` and `before` ahead of each `begin`, `start` after it, `finish_due` before
    outputs are processed.
    """

    def __init__(
        self, s: State, rules: Rules, copier: Copier | None, num_host_blocks: int
    ) -> None:
        self._s = s
        self._rules = rules
        self._maybe_copier = copier
        self._measured = rules.clock == Clock.MEASURED
        self._host = HostBlocks(num_host_blocks)
        self._host_of: dict[int, np.ndarray] = {}
        self._swaps: list[_Job] = []  # asynchronous, not seen to have ended
        self._jobs: dict[int, _Job] = {}  # of the host cache, by the core's number
        self._recent: list[_Job] = []  # ended; still of use to say how busy the link was
        self._slots: dict[int, int] = {}
        self._polled_s = 0.0
        self.origin_s = 0.0
        self.waited_s = 0.0  # host time spent waiting for copies since last asked

    @property
    def _copier(self) -> Copier:
        if self._maybe_copier is None:
            raise InvariantError("a copy in a run without host blocks")
        return self._maybe_copier

    # --- before a step is decided ------------------------------------------------------------

    def before(self) -> None:
        """Remember who holds which row of the block table: a victim's is let go when we look."""
        s, c = self._s, self._s.c[0]
        held = np.concatenate(
            (
                s.seats.view(np.ndarray)["running"][: c.num_running],
                s.slots.view(np.ndarray)["load"][: c.num_loads],
            )
        )
        slots = s.requests.view(np.ndarray)["slot"][held]
        self._slots = dict(zip(held.tolist(), slots.tolist(), strict=True))

    def poll(self, now_s: float) -> None:
        """Tell the core which asynchronous swaps have ended by now (clock `measured`).

        Their end is noted as a time between the last call and this one, so that it can be told from
        the recording in which step it was seen.
        """
        if not (self._measured and self._swaps):
            self._polled_s = now_s
            return
        margin = min(1e-9, (now_s - self._polled_s) / 4)
        for job in [j for j in self._swaps if j.copy.done()]:
            ended = job.copy.ended_s - self.origin_s
            ended = min(max(ended, self._polled_s + margin), now_s - margin)
            self._s.requests[job.request].ready_s = ended
            self._note(job, ended)
            self._swaps.remove(job)
            self._recent.append(job)
        self._polled_s = now_s

    def plan_ahead(self) -> None:
        """Copy what the core would store during a pause: nobody sees those jobs afterwards."""
        plan_idle(self._s, self._rules)
        hosts, c = self._s.hosts.view(np.ndarray), self._s.c[0]
        for j in hosts["job_order"][: c.num_jobs].tolist():
            if hosts["job_state"][j] == _HELD:
                self._start_job(j)
        for j in list(self._jobs):
            self._wait(self._jobs[j])
            self._end_job(j)

    # --- once it is decided ------------------------------------------------------------------

    def start(self, new_blocks: np.ndarray) -> None:
        """Start the copies of the step just decided. new_blocks: GPU blocks that it hands over."""
        if self._maybe_copier is None:
            return
        if self._rules.offload:
            self._start_jobs(new_blocks)
        else:
            self._start_swaps()
        self._copier.order_step()

    def after_step(self) -> None:
        """The step's compute is enqueued."""
        if self._maybe_copier is not None:
            self._maybe_copier.after_step()

    def _start_swaps(self) -> None:
        rows = self._step_events()
        self._release_host({r for _, kind, r, _ in rows if kind == Kind.SWAP_IN})
        for i, kind, r, blocks in rows:
            if kind == Kind.SWAP_OUT:
                if r in self._host_of:  # came back and left again within one step
                    self._host.free(self._host_of.pop(r))
                self._swap(i, r, self._slots[r], blocks, inbound=False)
        for i, kind, r, blocks in rows:
            if kind == Kind.SWAP_IN:
                self._swap(i, r, int(self._s.requests[r].slot), blocks, inbound=True)
        if not self._measured:
            self._wait_released()

    def _step_events(self) -> list[tuple[int, int, int, int]]:
        """(row, kind, request, blocks) of the swaps that this step started, in order."""
        c, events = self._s.c[0], self._s.event_rows.view(np.ndarray)
        first = n = int(c.num_event_rows)
        while first > 0 and events["step"][first - 1] == c.step:
            first -= 1
        rows = events[first:n]
        swaps = np.flatnonzero((rows["kind"] == Kind.SWAP_OUT) | (rows["kind"] == Kind.SWAP_IN))
        return [
            (
                first + int(i),
                int(rows["kind"][i]),
                int(rows["request"][i]),
                int(rows["blocks"][i]),
            )
            for i in swaps
        ]

    def _swap(self, event: int, r: int, slot: int, blocks: int, *, inbound: bool) -> None:
        gpu = self._s.table[slot, :blocks].copy()
        started = time.perf_counter()
        if inbound:
            copy = self._copier.copy_in(self._host_of[r], gpu)
        else:
            ids = self._host.allocate(blocks)
            if ids is None:
                raise InvariantError(
                    f"{blocks} host blocks for request {r}: {self._host.num_free} are free"
                )
            self._host_of[r] = ids
            copy = self._copier.copy_out(gpu, self._host_of[r])
        job = _Job(copy, r, inbound, event, gpu)
        if self._rules.copy_async:
            self._swaps.append(job)
            return
        copy.wait()
        self.waited_s += (
            time.perf_counter() - started
        )  # on a CPU it is copied while it is asked for
        self._note(job, copy.ended_s - self.origin_s)
        self._recent.append(job)
        if inbound:
            self._host.free(self._host_of.pop(r))

    def _release_host(self, coming: set[int]) -> None:
        """Give back host blocks of requests that have left the host, other than those now coming in."""
        held = self._s.requests.view(np.ndarray)["host_blocks"]
        for r in [r for r in self._host_of if held[r] == 0 and r not in coming]:
            self._host.free(self._host_of.pop(r))

    def _wait_released(self) -> None:
        """Wait for copies that have ended by the core's clock, if not yet by ours."""
        requests = self._s.requests
        for job in list(self._swaps):
            q = requests[job.request]
            running = q.status == Status.LOADING if job.inbound else q.fenced > 0
            if not running:
                self._wait(job)
                self._swaps.remove(job)

    # --- the host cache ----------------------------------------------------------------------

    def _start_jobs(self, new_blocks: np.ndarray) -> None:
        hosts, c = self._s.hosts.view(np.ndarray), self._s.c[0]
        for j in hosts["job_order"][: c.num_jobs].tolist():
            started = hosts["job_state"][j] == _RUNNING and hosts["job_since"][j] == c.step
            if started and j not in self._jobs:
                self._start_job(j)
        if not self._jobs:
            return
        taken = np.zeros(len(self._s.blocks), bool)
        taken[new_blocks] = True
        for job in self._jobs.values():
            if job.inbound:
                taken[job.gpu_blocks] = True
        for job in self._jobs.values():
            if not job.inbound and taken[job.gpu_blocks].any():
                job.copy.wait_on_compute()

    def _start_job(self, j: int) -> None:
        s, hosts = self._s, self._s.hosts.view(np.ndarray)
        r = int(hosts["job_request"][j])
        if hosts["job_kind"][j] == _STORE:
            host, b = [], int(hosts["job_head"][j])
            while b != 0:
                host.append(b)
                b = int(hosts["job_next"][b])
            gpu = hosts["gpu"][host].astype(np.int32)
            self._jobs[j] = _Job(self._copier.copy_out(gpu, np.array(host)), r, False, -1, gpu)
            return
        q = s.requests[r]
        places = range(int(q.load_from), int(q.load_from + q.num_loading))
        rules = self._rules
        keys = [np.uint64(key_of(s, rules, np.int64(r), np.int64(p))) for p in places]
        host = [int(find_host(s, key)) for key in keys]
        gpu = s.table[q.slot, places.start : places.stop].copy()
        copy = self._copier.copy_in(np.array(host), gpu)
        self._jobs[j] = _Job(copy, r, True, self._load_event(r), gpu)

    def _load_event(self, r: int) -> int:
        c, events = self._s.c[0], self._s.event_rows.view(np.ndarray)
        for i in range(int(c.num_event_rows) - 1, -1, -1):
            e = events[i]
            if e["step"] != c.step:
                return -1
            if e["kind"] == Kind.LOAD and e["request"] == r:
                return i
        return -1

    def finish_due(self) -> None:
        """Wait for copies of the host cache that the core will take for ended with the next outputs."""
        if not self._jobs:
            return
        row = self._s.flight_row[self._s.c[0].oldest_in_flight]
        limit = float(row.step)
        if self._rules.clock == Clock.MODELLED:
            limit = float(row.t_start_s + row.duration_s)
        due = self._s.hosts.view(np.ndarray)["job_due"]
        for j in [j for j in self._jobs if due[j] <= limit]:
            self._wait(self._jobs[j])
            self._end_job(j)

    def _end_job(self, j: int) -> None:
        job = self._jobs.pop(j)
        self._note(job, job.copy.ended_s - self.origin_s)
        self._recent.append(job)

    # --- times -------------------------------------------------------------------------------

    def _wait(self, job: _Job) -> None:
        started = time.perf_counter()
        job.copy.wait()
        self.waited_s += time.perf_counter() - started

    def wait_any(self, timeout_s: float) -> None:
        """Wait until one of the asynchronous swaps has ended, at most so long."""
        until = time.perf_counter() + timeout_s
        while time.perf_counter() < until and not any(j.copy.done() for j in self._swaps):
            time.sleep(min(_LOOK_S, max(0.0, until - time.perf_counter())))

    def _note(self, job: _Job, ended_s: float) -> None:
        """Write what a copy really took into its event."""
        if job.event < 0 or not self._measured:
            return
        e = self._s.event_rows[job.event]
        e.t_s = min(job.copy.started_s - self.origin_s, ended_s)
        e.cost_s = ended_s - e.t_s

    def busy(self, start_s: float, end_s: float) -> tuple[float, float]:
        """Seconds of [start_s, end_s] during which a copy out, a copy in, was under way."""
        lengths = [0.0, 0.0]
        jobs = [*self._recent, *self._swaps, *self._jobs.values()]
        for job in jobs:
            done = job.copy.done()
            begun = (job.copy.started_s - self.origin_s) if done else start_s
            ended = (job.copy.ended_s - self.origin_s) if done else end_s
            lengths[job.inbound] += max(0.0, min(ended, end_s) - max(begun, start_s))
        self._recent = [j for j in self._recent if j.copy.ended_s - self.origin_s > end_s]
        return min(lengths[0], end_s - start_s), min(lengths[1], end_s - start_s)

    def first_open_step(self) -> int | None:
        """The step of the oldest event that a running copy will still write to."""
        events = [j.event for j in (*self._swaps, *self._jobs.values()) if j.event >= 0]
        if not (events and self._measured):
            return None
        return int(self._s.event_rows["step"][min(events)])

    def shift_events(self, n: int) -> None:
        """The first n event rows have left the core's buffer."""
        for job in (*self._swaps, *self._jobs.values()):
            job.event = job.event - n if job.event >= n else -1

    def close(self) -> None:
        """Let running copies end and stop the copier."""
        if self._maybe_copier is not None:
            self._maybe_copier.close()
