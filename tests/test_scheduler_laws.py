"""Laws that hold after every phase of every run, over random small workloads.

Preemption mode (offload with both connectors included), copy mode, victim rule, policy, caching, asynchronous scheduling, clock and sizes of
both pools are drawn from a seed; pools are so small that most runs preempt. Each runs twice: phase by
phase with every law checked, and in chunks; the recordings must be equal.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from engine.config import EngineSettings, resolve
from engine.core.state import NONE, Mode, Rules, State, Status
from engine.decisions import waiting_order
from engine.simulator import simulate, simulate_by_step
from tests.engine_builders import SECONDS, make_request, make_trace
from tests.offload_laws import (
    Contents,
    check_copies,
    check_deferred,
    check_host_cache,
    check_nothing_is_left,
    check_rows,
    held_by_copies,
)
from traces.recording import Recording, open_recording
from traces.workload import Workload

ENDED = {int(Status.FINISHED), int(Status.ABORTED), int(Status.REFUSED)}


def check_pool(s: State, rules: Rules) -> None:
    """used + free = pool; references = entries of held rows; the free queue is what nobody holds."""
    c = s.c[0]
    held = held_by_copies(s, rules) if rules.offload else Counter[int]()
    rows = [q for q in s.requests[:-1] if q["slot"] != NONE]
    for q in rows:
        held.update(int(b) for b in s.table[q["slot"], : q["num_blocks"]])
    refs = {b: int(n) for b, n in enumerate(s.blocks["ref"]) if n}
    assert refs == dict(held)
    assert 0 not in held, "the null block was handed out"
    queue, b = [], int(s.blocks["next"][0])
    while b != 0:
        queue.append(b)
        assert len(queue) < rules.num_blocks, "the free queue is no ring"
        b = int(s.blocks["next"][b])
    assert len(queue) == c.num_free
    assert set(queue) | set(refs) == set(range(1, rules.num_blocks))
    assert not set(queue) & set(refs)
    assert len({int(q["slot"]) for q in rows}) == len(rows)
    if rules.offload:
        check_rows(s)
    else:
        assert len(rows) + c.num_slots == len(s.slots)


def check_cache(s: State) -> None:
    """Every cached block stands in the index or its owner's list exactly once; counts match."""
    c = s.c[0]
    cached = {int(b) for b in np.flatnonzero(s.blocks["key"])}
    listed = []
    for cell in s.index[s.index["block"] != 0]:
        b = int(cell["block"])
        while b != 0:
            assert s.blocks["key"][b] == cell["key"]
            assert s.blocks["owner"][b] == 0
            listed.append(b)
            b = int(s.blocks["same_next"][b])
    for r, q in enumerate(s.requests[:-1]):
        b = int(q["own_head"])
        while b != 0:
            assert s.blocks["owner"][b] == r + 1
            listed.append(b)
            b = int(s.blocks["same_next"][b])
    assert sorted(listed) == sorted(cached)
    used = sum(1 for b in cached if s.blocks["ref"][b] > 0)
    assert (c.cached_used, c.cached_free) == (used, len(cached) - used)


def check_host(s: State, rules: Rules) -> None:
    """Host blocks held are what requests hold, and never more than there are."""
    c = s.c[0]
    if rules.offload:
        check_copies(s, rules)
        check_host_cache(s, rules)
        return
    held = int(s.requests["host_blocks"].sum())
    assert rules.host_blocks - c.host_free == held
    assert 0 <= c.host_free <= rules.host_blocks
    fenced = s.requests["fenced"][s.requests["fenced"] > 0]
    assert c.num_fences == len(fenced)
    assert c.fenced_blocks == int((fenced - 1).sum()) <= rules.num_blocks - 1 - c.num_free


def check_queues(s: State) -> None:
    """Each request that has arrived and not ended is in exactly one queue, which its status names."""
    c = s.c[0]
    queues = {
        Status.RUNNING: [int(r) for r in s.seats["running"][: c.num_running]],
        Status.WAITING: waiting_order(s),
        Status.SWAPPED: [int(r) for r in s.requests["swap_queue"][: c.num_swapped]],
        Status.LOADING: [int(r) for r in s.slots["load"][: c.num_loads]],
    }
    assert len(queues[Status.WAITING]) == c.num_waiting
    for r in check_deferred(s):
        loading = s.requests["status"][r] == Status.LOADING
        queues[Status.LOADING if loading else Status.WAITING].append(r)
    where = {}
    for status, members in queues.items():
        for r in members:
            if status == Status.LOADING and s.requests["status"][r] in ENDED:
                continue  # aborted while its copy runs; its blocks return with the copy
            assert r not in where, f"request {r} is in two queues"
            where[r] = status
    for r, code in enumerate(s.requests["status"][:-1]):
        status = Status(code)
        wanted = Status.WAITING if status == Status.PREEMPTED else status
        if r < c.next_arrival and code not in ENDED:
            assert where.get(r) == wanted, f"request {r} is {status.name}"
        else:
            assert r not in where


def check_step(s: State, rules: Rules) -> None:
    """What one schedule() may do."""
    c = s.c[0]
    tokens = s.seats["sched_tok"][: c.num_sched]
    assert tokens.sum() <= rules.token_budget
    assert (tokens > 0).all()
    ids = s.seats["sched_req"][: c.num_sched]
    assert len(set(ids.tolist())) == c.num_sched
    assert set(ids.tolist()) <= set(s.seats["running"][: c.num_running].tolist())
    assert c.num_running + c.num_loads <= rules.max_num_seqs
    if c.num_preempted:
        assert c.num_admitted == 0
    if rules.compat == 0:
        needed = -(-s.requests["num_computed"][ids] // rules.block_size)
        assert (needed <= s.requests["num_blocks"][ids]).all()


def check_swap(s: State, before: dict[int, int]) -> dict[int, int]:
    """A swapped request keeps its computed tokens until it runs again; returns them."""
    now = {}
    for r in np.flatnonzero(np.isin(s.requests["status"], (Status.SWAPPED, Status.LOADING))):
        now[int(r)] = int(s.requests["num_computed"][r])
        assert now[int(r)] > 0
        if int(r) in before and s.requests["num_preemptions"][r] == before.get(-1 - int(r)):
            assert now[int(r)] == before[int(r)]
        now[-1 - int(r)] = int(s.requests["num_preemptions"][r])
    return now


def run_checked(workload: Workload, settings: EngineSettings, out: Path) -> Recording:
    """Run phase by phase and hold every law after each; the recording, checked by its reader."""
    resolved = resolve(settings, concurrency=workload.concurrency)
    rules = resolved.rules
    clock = 0.0
    swapped: dict[int, int] = {}
    contents = Contents(rules) if rules.offload and not rules.compat else None
    for phase, s, _ in simulate_by_step(workload, settings, out):
        check_pool(s, rules)
        check_cache(s)
        check_host(s, rules)
        check_queues(s)
        if phase == "scheduled":
            check_step(s, rules)
            if contents is not None:
                contents.scheduled(s)
        swapped = {} if rules.offload else check_swap(s, swapped)
        assert s.c[0].now_s >= clock, "the clock went back"
        clock = float(s.c[0].now_s)
    assert phase == "completed" or (rules.compat and phase in ("stalled", "livelock"))
    if rules.offload and phase == "completed":
        check_nothing_is_left(s, rules, resolved.cost)
    return open_recording(out)


def check_recording(recording: Recording, workload: Workload, rules: Rules) -> None:
    """Sums of steps, events and requests agree, and every request has ended."""
    steps, events, requests = recording.steps, recording.events, recording.requests
    kinds = Counter(events["kind"].cast(pl.String).to_list())
    statuses = Counter(requests["status"].cast(pl.String).to_list())
    assert recording.complete
    assert sorted(requests["request_id"]) == sorted(workload.table["request_id"])
    assert set(statuses) <= {"finished", "aborted", "refused"}
    assert kinds["arrive"] == len(workload)
    assert statuses["finished"] == kinds["finish"] == steps["num_finished"].sum()
    assert statuses["aborted"] == kinds["abort"]
    assert statuses["refused"] == kinds["refuse"]
    assert steps["num_admitted"].sum() == kinds["admit"]
    assert steps["num_resumed"].sum() == kinds["resume"]
    assert steps["num_preempted"].sum() == kinds["preempt"] == requests["num_preemptions"].sum()
    assert steps["recomputed_tokens"].sum() == requests["recomputed_tokens"].sum()
    assert steps["cached_tokens"].sum() == requests["cached_tokens"].sum()
    assert (steps["host_used_blocks"] <= rules.host_blocks).all()
    moved = dict(
        events.group_by(pl.col("kind").cast(pl.String)).agg(pl.col("bytes").sum()).iter_rows()
    )
    out, back = (int(steps[f"swap_{way}_bytes"].sum()) for way in ("out", "in"))
    swapped = int(requests["swapped_bytes"].sum())
    if rules.offload:
        check_offload_recording(recording, rules)
        assert back == moved.get("load", 0)
        assert (
            swapped <= out + back
        )  # what is stored for nobody, or for who has ended, is in no row
    else:
        assert (out, back) == (moved.get("swap_out", 0), moved.get("swap_in", 0))
        assert swapped == out + back
    modes = events.filter(pl.col("kind").cast(pl.String) == "preempt").select(
        pl.col("mode_asked", "mode_used").cast(pl.String)
    )
    asked = Mode(rules.mode).name.lower()
    assert set(modes["mode_asked"]) <= {asked}
    assert (modes["mode_used"] == "swap").sum() == kinds["swap_out"]
    done = requests.filter(pl.col("status").cast(pl.String) == "finished")
    asked_for = dict(workload.table.select("request_id", "output_tokens").iter_rows())
    prompts = dict(workload.table.select("request_id", "prompt_tokens").iter_rows())
    for id, made in done.select("request_id", "output_tokens").iter_rows():
        room = rules.max_model_len - prompts[id]  # none, but one token is made: compat only
        assert made == min(asked_for[id], max(room, rules.compat))


def check_offload_recording(recording: Recording, rules: Rules) -> None:
    """What was loaded and restored, told by events, steps and requests alike."""
    steps, events, requests = recording.steps, recording.events, recording.requests
    loads = events.filter(pl.col("kind").cast(pl.String) == "load")
    assert (loads["bytes"] == loads["blocks"] * rules.block_bytes).all()
    assert (loads["tokens"] == loads["blocks"] * rules.block_size).all()
    assert steps["restored_tokens"].sum() == requests["restored_tokens"].sum()
    victims = events.filter(pl.col("kind").cast(pl.String) == "preempt")
    assert set(victims["mode_used"].cast(pl.String)) <= {"offload"}
    ends = (steps["t_start_s"] + steps["duration_s"]).to_list()
    assert all(
        b >= a - 1e-9 for a, b in zip(ends, steps["t_start_s"].to_list()[1:], strict=False)
    )
    assert (steps["stall_s"] >= 0).all()


def make_world(seed: int) -> tuple[Workload, EngineSettings]:
    """A workload and settings with a pool of 1 to 12 blocks, drawn from the seed."""
    rng = random.Random(seed)
    pick, number = rng.choice, rng.randint
    size, blocks, seqs = pick((1, 2, 4)), number(1, 12), pick((1, 2, 3, 8))
    room = size * blocks
    closed = pick((None, None, None, 1, 3))
    priority = rng.random() < 0.4
    requests = []
    for i in range(number(1, 9)):
        prompt = number(1, room + 1 if rng.random() < 0.05 else max(1, room * 2 // 3))
        arrival = 0 if closed is not None else pick((0, 0, 1, 2, number(0, 30)))
        request = make_request(
            f"r{i}",
            prompt,
            number(max(1, (room - prompt) // 2), max(1, room - prompt + pick((0, 0, 0, 2)))),
            arrival,
            priority=number(0, 2) if priority else 0,
            prefix=[number(0, 1) for _ in range(number(0, 4))],
        )
        if rng.random() < 0.15 and closed is None:
            request["abort"] = arrival + number(0, 25)
        requests.append(request)
    mode = pick(("swap", "cheapest", "recompute"))
    clocks = ("modelled", "step") if closed is None and mode != "cheapest" else ("modelled",)
    victims = [None, "last", "fewest-computed", "most-blocks"]
    settings = EngineSettings(
        num_gpu_blocks=blocks + 1,
        block_size=size,
        max_num_seqs=seqs,
        max_num_batched_tokens=max(seqs, pick((1, 3, 8, 64))),
        max_model_len=max(2, pick((room, room + 3, 10 * room))),
        enable_prefix_caching=rng.random() < 0.5,
        long_prefill_token_threshold=pick((0, 0, 2, 5)),
        policy="priority" if priority else "fcfs",
        watermark=pick((0.0, 0.0, 0.2)),
        scheduler_reserve_full_isl=rng.random() < 0.7,
        async_scheduling=rng.random() < 0.5,
        preemption_mode=mode,
        victim=pick([*victims, "priority"] if priority else victims),
        num_host_blocks=pick((0, 1, 3, 8, 40)),
        copy_mode=pick(("blocking", "async")),
        clock=pick(clocks),
        livelock_steps=300,
        cost_overrides={
            **SECONDS,
            "token_compute_s": pick((0.0, 0.3, 3.0)),
            "contention_in": pick((1.0, 0.5)),
            "link_in_bytes_per_s": pick((1.0, 9.0)),
            "link_out_bytes_per_s": pick((0.3, 9.0)),
        },
    )
    segment = pick((size, size + 1, 2))
    return make_trace(*requests, prefix_block_tokens=segment, concurrency=closed), settings


def make_offload_world(seed: int) -> tuple[Workload, EngineSettings]:
    """The same workload and sizes under offload, its settings drawn from the seed too."""
    workload, settings = make_world(seed)
    rng = random.Random(f"offload {seed}")
    simple = rng.random() < 0.5
    clock = (
        settings.clock if workload.concurrency is not None else rng.choice(("modelled", "step"))
    )
    return workload, settings.with_(
        preemption_mode="offload",
        num_host_blocks=rng.choice((2, 3, 5, 8, 40)),
        enable_prefix_caching=simple or settings.enable_prefix_caching,
        offload_connector="simple" if simple else "native",
        lazy_offload=rng.random() < 0.5,
        offload_prompt_only=rng.random() < 0.3,
        load_steps=rng.choice((1, 1, 2, 4)),
        store_steps=rng.choice((1, 1, 2, 4)),
        compat="vllm-0.26" if rng.random() < 0.25 else None,
        clock=clock,
    )


def rows_of(recording: Recording) -> list[pl.DataFrame]:
    return [recording.steps, recording.events, recording.requests.sort("request_id")]


def hold_every_law(workload: Workload, settings: EngineSettings, folder: Path) -> None:
    """Run phase by phase and in chunks: every law, and the same recording."""
    rules = resolve(settings, concurrency=workload.concurrency).rules

    by_step = run_checked(workload, settings, folder / "steps")
    result = simulate(workload, settings, folder / "chunks")

    if result.status == "completed":
        check_recording(by_step, workload, rules)
    else:
        assert (rules.compat, result.status) in ((1, "stalled"), (1, "livelock"))
    for one, two in zip(rows_of(by_step), rows_of(open_recording(result.path)), strict=True):
        assert one.equals(two), "single steps and chunks differ"


@pytest.mark.parametrize("seed", range(80))
def test_every_law_holds_after_every_phase(seed: int, tmp_path: Path) -> None:
    hold_every_law(*make_world(seed), tmp_path)


@pytest.mark.parametrize("seed", range(60))
def test_every_law_of_offload_holds_after_every_phase(seed: int, tmp_path: Path) -> None:
    hold_every_law(*make_offload_world(seed), tmp_path)


@pytest.mark.parametrize("seed", range(5))
def test_one_seed_gives_one_recording_row_for_row(seed: int, tmp_path: Path) -> None:
    workload, settings = make_world(seed)

    one, two = (open_recording(simulate(workload, settings, tmp_path / n).path) for n in "ab")

    assert one.steps.equals(two.steps)
    assert one.events.equals(two.events)
    assert one.requests.equals(two.requests)


@pytest.mark.parametrize("copy_mode", ["blocking", "async"])
def test_the_laws_are_tried_under_swapping(copy_mode: str, tmp_path: Path) -> None:
    requests = [make_request(f"r{i}", 3 + i % 5, 9, i) for i in range(8)]
    settings = EngineSettings(
        num_gpu_blocks=9,
        block_size=2,
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=64,
        preemption_mode="swap",
        num_host_blocks=12,
        copy_mode=copy_mode,
        cost_overrides=SECONDS,
    )

    recording = run_checked(make_trace(*requests), settings, tmp_path / "out")

    kinds = Counter(recording.events["kind"].cast(pl.String).to_list())
    assert kinds["swap_out"] > 3
    assert kinds["swap_in"] == kinds["swap_out"]
    assert kinds["finish"] == 8
