"""Laws of preemption mode offload: who holds what, and that a restored block holds what was computed.

`check_copies`, `check_host_cache` and `check_rows` read one state of the core. `Contents` follows a
run: it writes every scheduled token into a pool of its own, copies blocks as the jobs say and at the
time they say, and looks at every step whether the tokens it reads are there. It shares no code with
the core but the key of a block.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from engine.core.host_cache import find_host, key_of
from engine.core.offload import settle
from engine.core.state import NONE, Clock, Offload, Rules, State, Status
from engine.cost_model import CostParams

STORE, LOAD = 0, 1
HELD, RUNNING = 0, 1
LONG_AFTER_S = 1e12
Token = tuple[Any, ...]


@dataclass(frozen=True)
class Job:
    """A copy under way. items: of a store, (host block, GPU block); of a load, the same."""

    row: int
    kind: int
    request: int
    state: int
    made: int
    since: int
    due: float
    items: tuple[tuple[int, int], ...]

    @property
    def name(self) -> tuple[int, int, int]:
        return self.row, self.made, self.since


def host_blocks_of(s: State, rules: Rules) -> int:
    """Host blocks that are laid out: no more than all requests together can fill, and one."""
    q = s.requests[:-1]
    most = int(((q["prompt"] + q["max_tokens"]) // rules.block_size).sum())
    return min(rules.host_blocks, 2 * most + 1)


def host_block_of(s: State, rules: Rules, r: int, place: int) -> int:
    """The host block under the key of block `place` of request r, or 0."""
    return int(find_host(s, np.uint64(key_of(s, rules, np.int64(r), np.int64(place)))))


def jobs_of(s: State, rules: Rules) -> list[Job]:
    """Every copy under way, oldest first."""
    jobs = []
    for row in s.hosts["job_order"][: s.c[0].num_jobs].tolist():
        j = s.hosts[row]
        r = int(j.job_request)
        items = []
        if j.job_kind == STORE:
            b = int(j.job_head)
            while b != 0:
                items.append((b, int(s.hosts["gpu"][b])))
                b = int(s.hosts["job_next"][b])
            assert len(items) == j.job_count > 0
        else:
            q = s.requests[r]
            for place in range(int(q.load_from), int(q.load_from + q.num_loading)):
                items.append((host_block_of(s, rules, r, place), int(s.table[q.slot, place])))
        jobs.append(
            Job(
                row, int(j.job_kind), r, int(j.job_state), int(j.job_made), int(j.job_since),
                float(j.job_due), tuple(items),
            )
        )  # fmt: skip
    return jobs


def fences_of(s: State) -> list[tuple[int, int]]:
    """(row, blocks) of what waits for a step to be processed, oldest first."""
    c, ring = s.c[0], len(s.slots)
    entries = (s.slots[(c.fence_head + i) % ring] for i in range(c.num_step_fences))
    return [(int(f.fenced_slot), int(f.fenced_blocks)) for f in entries]


def held_by_copies(s: State, rules: Rules) -> Counter[int]:
    """References on GPU blocks beside those of requests: fenced rows, and copies of the simple connector."""
    held = Counter[int]()
    for slot, blocks in fences_of(s):
        held.update(s.table[slot, :blocks].tolist())
    if rules.offload != Offload.NATIVE:
        for job in jobs_of(s, rules):
            held.update(gpu for _, gpu in job.items)
    return held


def check_rows(s: State) -> None:
    """Every row of the block table is free or has as many users as it counts; none is lost."""
    c = s.c[0]
    users = Counter[int]()
    for column in ("slot", "end_slot"):
        users.update(r for r in s.requests[column][:-1].tolist() if r != NONE)
    users.update(slot for slot, _ in fences_of(s))
    free = s.slots["free"][: c.num_slots].tolist()
    assert len(set(free)) == len(free), "a row is free twice"
    assert {i: n for i, n in enumerate(s.slots["users"].tolist()) if n} == dict(users)
    assert set(free) | set(users) == set(range(len(s.slots)))
    assert not set(free) & set(users)


def check_copies(s: State, rules: Rules) -> None:
    """Jobs under way and free rows for jobs are all there are; requests know how many are theirs."""
    c = s.c[0]
    jobs = jobs_of(s, rules)
    rows = [job.row for job in jobs] + s.hosts["job_free"][: c.num_free_jobs].tolist()
    assert len(set(rows)) == len(rows) == host_blocks_of(s, rules) + 1 + len(s.slots) + 1
    mine = Counter(job.request for job in jobs if job.request != NONE)
    assert {r: n for r, n in enumerate(s.requests["num_jobs"][:-1].tolist()) if n} == dict(mine)
    for job in jobs:
        assert job.state in (HELD, RUNNING)
        if job.kind == LOAD:
            assert s.requests["num_blocks"][job.request] > 0
    loads = Counter(job.request for job in jobs if job.kind == LOAD)
    assert set(loads.values()) <= {1}
    loading = s.requests["num_loading"][:-1]
    assert {r for r in loads if loading[r]} == set(loading.nonzero()[0].tolist())


def check_host_cache(s: State, rules: Rules) -> None:
    """Each host block may be handed out, is being written, or is read by as many as it counts."""
    c = s.c[0]
    blocks = host_blocks_of(s, rules)
    ring, b = [], int(s.hosts["next"][0])
    while b != 0:
        ring.append(b)
        assert len(ring) <= blocks, "the host's ring is no ring"
        b = int(s.hosts["next"][b])
    assert len(ring) == c.host_free
    refs = Counter[int]()
    for job in jobs_of(s, rules):
        for host, _ in job.items:
            assert host != 0, "a load from a block that is not there"
            refs[host] += -1 if job.kind == STORE and rules.offload == Offload.NATIVE else 1
    for r in s.requests["num_pinned"][:-1].nonzero()[0].tolist():
        q = s.requests[r]
        for place in range(int(q.load_from), int(q.load_from + q.num_pinned)):
            refs[host_block_of(s, rules, r, place)] += 1
    held = {b: n for b, n in enumerate(s.hosts["ref"].tolist()) if n}
    assert held == dict(refs)
    assert set(ring) | set(held) == set(range(1, blocks + 1))
    assert not set(ring) & set(held)
    listed = []
    for cell in s.hosts[s.hosts["cell_block"] != 0]:
        b, last = int(cell.cell_block), 0
        while b != 0:
            assert s.hosts["key"][b] == cell.cell_key
            assert s.hosts["same_prev"][b] == last
            listed.append(b)
            b, last = int(s.hosts["same_next"][b]), b
        assert s.hosts["same_tail"][int(cell.cell_block)] == last
        assert find_host(s, np.uint64(cell.cell_key)) == cell.cell_block
    assert sorted(listed) == s.hosts["listed"].nonzero()[0].tolist()
    assert len(listed) == c.host_filled <= blocks


def check_deferred(s: State) -> list[int]:
    """Requests put aside stand in that list once, and know it; returns them."""
    c = s.c[0]
    deferred = s.requests["deferred"][: c.num_deferred].tolist()
    assert len(set(deferred)) == len(deferred)
    assert set(deferred) == set(s.requests["is_deferred"][:-1].nonzero()[0].tolist())
    status = s.requests["status"]
    assert {int(status[r]) for r in deferred} <= {
        Status.WAITING,
        Status.PREEMPTED,
        Status.LOADING,
    }
    assert sum(status[r] == Status.LOADING for r in deferred) == c.num_loading
    return deferred


def check_nothing_is_left(s: State, rules: Rules, cost: CostParams) -> None:
    """Once every copy has ended, all blocks, rows and jobs are free again. Ends the copies."""
    c = s.c[0]
    c["now_s"] = LONG_AFTER_S
    settle(s, rules, cost)
    settle(s, rules, cost)  # a lazy store may have been asked for by the first
    assert (c.num_running, c.num_deferred, c.num_loading, c.num_step_fences) == (0, 0, 0, 0)
    assert c.num_free == rules.num_blocks - 1
    assert c.num_slots == len(s.slots)
    assert c.num_jobs == 0
    assert c.host_free == host_blocks_of(s, rules)
    assert not s.hosts["ref"].any()


@dataclass
class Contents:
    """What every block holds, by a pool of its own: tokens in order, whoever computed them."""

    rules: Rules
    gpu: dict[int, list[Token | None]] = field(default_factory=dict)
    host: dict[int, list[Token | None]] = field(default_factory=dict)
    keys: dict[int, int] = field(default_factory=dict)  # host block -> key it was written under
    started: set[tuple[int, int, int]] = field(default_factory=set)
    in_flight: list[set[int]] = field(default_factory=list)  # blocks that each step writes
    tokens: list[list[Token]] = field(default_factory=list)
    meant: dict[int, list[Token]] = field(default_factory=dict)  # key -> what must be under it

    def _learn(self, s: State) -> None:
        size = self.rules.block_size
        for r, q in enumerate(s.requests[:-1]):
            row: list[Token] = []
            before: Token = ()
            for k in range(int(q.seg_start), int(q.seg_start + q.num_segs)):
                end = int(s.segs["end"][k])
                name = (*before, int(s.segs["id"][k]))
                row += [("shared", name, p) for p in range(len(row), end)]
                before = (*name, end)
            last = int(q.prompt + q.max_tokens)
            row += [("own", r, p) for p in range(len(row), last)]
            self.tokens.append(row)
            for place in range(last // size):
                part = row[place * size : (place + 1) * size]
                assert (
                    self.meant.setdefault(
                        int(key_of(s, self.rules, np.int64(r), np.int64(place))), part
                    )
                    == part
                )

    def scheduled(self, s: State) -> None:
        """Start the copies of the step, write its tokens, and look whether all it reads is there."""
        if not self.tokens:
            self._learn(s)
        jobs = jobs_of(s, self.rules)
        del self.in_flight[: max(0, len(self.in_flight) - int(s.c[0].num_in_flight) + 1)]
        started = [j for j in jobs if j.state == RUNNING and j.name not in self.started]
        self.started |= {job.name for job in started}
        self._unseen(s, jobs)
        # The native connector's copies are there before the step runs, what is flushed first; the
        # simple one's stores are ordered behind it.
        native = self.rules.offload == Offload.NATIVE
        if native:
            self._store(s, started)
        self._load(s, started)
        written = self._write(s)
        if not native:
            self._store(s, started)
        self._look_at_copies(s, jobs, written)
        self._read(s)
        self.in_flight.append(written)

    def _unseen(self, s: State, jobs: list[Job]) -> None:
        """Stores that began and ended between two looks, while the engine was idle."""
        known = {h for j in jobs if j.kind == STORE for h, _ in j.items}
        for b in s.hosts["listed"].nonzero()[0].tolist():
            if b not in known and self.keys.get(b) != int(s.hosts["key"][b]):
                self._store_block(s, b, int(s.hosts["gpu"][b]))

    def _store(self, s: State, started: list[Job]) -> None:
        for job in started:
            for host, gpu in job.items if job.kind == STORE else ():
                self._store_block(s, host, gpu)

    def _load(self, s: State, started: list[Job]) -> None:
        for job in started:
            for host, gpu in job.items if job.kind == LOAD else ():
                for step in self.in_flight:
                    assert gpu not in step, "a load into a block that a step in flight writes"
                assert self.host[host] == self.meant[int(s.hosts["key"][host])]
                self.gpu[gpu] = list(self.host[host])

    def _store_block(self, s: State, host: int, gpu: int) -> None:
        key = int(s.hosts["key"][host])
        assert self.gpu[gpu] == self.meant[key], "a store of what was not computed, or is gone"
        self.host[host] = list(self.gpu[gpu])
        self.keys[host] = key

    def _write(self, s: State) -> set[int]:
        size, written = self.rules.block_size, set()
        for seat in s.seats[: s.c[0].num_sched]:
            r = int(seat.sched_req)
            q = s.requests[r]
            for p in range(int(q.num_computed - seat.sched_tok), int(q.num_computed)):
                b = int(s.table[q.slot, p // size])
                self.gpu.setdefault(b, [None] * size)[p % size] = self.tokens[r][p]
                written.add(b)
        return written

    def _look_at_copies(self, s: State, jobs: list[Job], written: set[int]) -> None:
        """No step writes what a copy that it does not wait for reads or writes."""
        newest = s.flight_row[int(s.c[0].oldest_in_flight + s.c[0].num_in_flight - 1) % 2]
        for job in jobs:
            behind = self.rules.offload != Offload.NATIVE and job.since == s.c[0].step
            if job.state != RUNNING or behind:
                continue
            begins = float(newest.t_start_s + newest.stall_s)
            if self.rules.clock != Clock.MODELLED:
                begins = float(s.c[0].step)
            if job.due > begins + 1e-9:
                assert not written & {gpu for _, gpu in job.items}, "a copy was overtaken"

    def _read(self, s: State) -> None:
        size = self.rules.block_size
        for seat in s.seats[: s.c[0].num_sched]:
            r = int(seat.sched_req)
            q = s.requests[r]
            for p in range(int(q.num_computed)):
                b = int(s.table[q.slot, p // size])
                assert self.gpu[b][p % size] == self.tokens[r][p], (
                    f"token {p} of {r} is not there"
                )
