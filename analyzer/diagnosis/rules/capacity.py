"""The pool is full: running requests are evicted, or others wait outside."""

from __future__ import annotations

import numpy as np

from analyzer.diagnosis.advice import (
    cap_is_reached,
    costly_cap,
    grow_pool,
    present,
    put_off_wall,
    raise_utilization,
    remove_override,
    shed_load,
    small_cap,
    suggested_memory,
)
from analyzer.diagnosis.capping import simulate_estimate, simulate_first
from analyzer.diagnosis.findings import KNOWN, UNKNOWN, Finding, Missing, Proof, Step
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import Rule, percent, times
from analyzer.diagnosis.rules.proofs import (
    WALL_FRAC,
    ask_for_capacity,
    counter,
    held_proof,
    preemption_proof,
    recompute_proof,
    victims,
)
from analyzer.diagnosis.rules.signs import full_tail


def find_preemption(q: Quantities) -> Finding | None:
    p = q.preemptions
    if not p.some or not _from_the_pool(q):
        return None
    severity = _severity(q)
    inferred = () if p.kind == KNOWN else (f"preemptions: {p.how}",)
    swap = "swap" in q.word("preemption_mode") or bool(q.evidence.all_notices("swap_out"))
    steps = present(
        simulate_first(q),
        simulate_estimate(q),
        small_cap(q),
        remove_override(q),
        grow_pool(q),
        raise_utilization(q),
        suggested_memory(q),
        put_off_wall(q) if q.lengths.blocks(q.pool) is None else None,
    )
    if q.engine == "sglang" and q.evidence.all_notices("retract"):
        steps = (_conservativeness(q), *steps)
    steps = (*(steps or (ask_for_capacity(q),)), *present(costly_cap(q)))
    apart = q.max_usage is not None and q.max_usage < WALL_FRAC
    past = p.since_start and apart
    usage = f", usage up to {percent(q.max_usage)}." if q.max_usage is not None else "."
    statement = f"The pool is full and running requests lose their blocks: {_preemptions(q)}"
    if apart and not past:
        statement = f"Running requests lose their blocks: {_preemptions(q)}"
        usage = f", though no sample shows more than {percent(q.max_usage)} in use."
    if past:
        severity = "low"
        statement = f"Running requests lost their blocks before this scrape: {_preemptions(q)} since the start"
        usage = f", usage now {percent(q.max_usage)}."
    return Finding(
        "CAPACITY_PREEMPTION",
        severity,
        statement + usage,
        (preemption_proof(q), *held_proof(q), *recompute_proof(q)),
        steps,
        _useless(q, swap),
        inferred,
        _unknowns(q),
    )


def _preemptions(q: Quantities) -> str:
    text = q.preemptions.text()
    return f"{text} preemption" + ("" if text == "1" else "s")


def _from_the_pool(q: Quantities) -> bool:
    """Whether what preempted was a full pool. A resumed request at low usage has an unknown cause."""
    said = q.evidence.all_notices("preemption", "retract", "swap_out")
    if said or q.max_usage is None:
        return True
    return q.max_usage >= WALL_FRAC or q.preemptions.kind == KNOWN


def _severity(q: Quantities) -> str:
    """By preemptions a minute for each running request: 0.3 is high, 0.05 medium."""
    p = q.preemptions
    if (p.high or p.low or 0) <= 1:
        return "low"
    rate = p.per_s[1] if p.per_s is not None else None
    if rate is None:
        return "medium"
    running = q.held.running if q.held is not None else _sequences(q)
    each = 60 * rate / max(running, 1)
    return "high" if each >= 0.3 else "medium" if each >= 0.05 else "low"


def _sequences(q: Quantities) -> int:
    clients = q.number("clients") or q.number("max_num_seqs")
    return (
        int(clients or 8) * max(q.lengths.sequences, 1)
        if q.lengths.sequences > 1
        else int(clients or 32)
    )


def _conservativeness(q: Quantities) -> Step:
    ratios = [
        float(v)
        for n in q.evidence.all_notices("retract")
        if isinstance(
            v := n.values.get("ratio_before", n.values.get("new_token_ratio_before")),
            int | float,
        )
    ]
    told = (
        f" (it was {min(ratios):.2f} to {max(ratios):.2f} before each retraction)"
        if ratios
        else ""
    )
    return Step(
        "--schedule-conservativeness 1.3, or declare realistic max_new_tokens",
        f"lifts the share of max_new_tokens that is reserved by 30 %{told}; fewer than one retraction a minute needs nothing",
        {"factor": 1.3},
    )


def _useless(q: Quantities, swap: bool) -> tuple[str, ...]:
    said = []
    if not swap:
        said.append(
            "more swap space: single sequences are recomputed, the host pool is not in play"
        )
    n = q.number("max_num_seqs")
    if n and q.held is not None and q.held.running < n and q.fits.value and n > q.fits.value:
        said.append(f"max_num_seqs {n:.0f} as it is: it does not bind, {q.held.running} run")
    if cap_is_reached(q) and q.held is not None:
        said.append(
            f"a limit of {q.fits.value} running: {q.held.running} filled the pool, and they still grow"
        )
    return tuple(said)


def _unknowns(q: Quantities) -> tuple[Missing, ...]:
    unknown = []
    if q.pool.tokens is None:
        line = (
            "max_total_num_tokens="
            if q.engine == "sglang"
            else "'GPU KV cache size' or '# GPU blocks'"
        )
        unknown.append(Missing("the size of the pool", f"the start-up line with {line}"))
    if q.main is None:
        unknown.append(
            Missing("usage, Running and Waiting", "statistics lines (disable_log_stats off)")
        )
    if q.lengths.blocks(q.pool) is None:
        unknown.append(
            Missing("the length of requests", "prompt and max output tokens of a request")
        )
    if q.preemptions.kind != KNOWN and q.is_v1:
        unknown.append(counter(q))
    if q.preemptions.since_start:
        unknown.append(
            Missing("whether it goes on", "a second scrape of the counter, some minutes later")
        )
    if q.is_v1 and not q.evidence.all_notices("preemption"):
        unknown.append(victims())
    return tuple(unknown)


def exclude_preemption(q: Quantities) -> str | None:
    p = q.preemptions
    if p.kind == KNOWN and p.high == 0:
        return f"0 preemptions ({p.how})"
    if p.some and not _from_the_pool(q):
        return f"{p.text()} preemptions, and usage was never above {percent(q.max_usage)}: their cause is unknown"
    if p.kind == UNKNOWN and q.max_usage is not None and q.max_usage < WALL_FRAC:
        return f"usage was never above {percent(q.max_usage)}"
    return None


def find_queue(q: Quantities) -> Finding | None:
    series = q.main
    if series is None:
        return None
    at = series.valid(series.usage, series.waiting)
    if not len(at):
        return None
    u, w = series.usage[at], series.waiting[at]
    queued = w > 0
    tail = np.isin(at, full_tail(q))
    if tail.any():
        queued = tail  # it filled up, and is full now
    if not queued.any() or float(np.median(u[queued])) < WALL_FRAC:
        return None
    if q.preemptions.kind == KNOWN and q.preemptions.some:
        return None
    rate = q.waiting_rate
    running = series.running[at]
    known = running[np.isfinite(running)]
    low, high = (int(known.min()), int(known.max())) if len(known) else (0, 0)
    ran = f"{low} to {high} ran and " if len(known) else ""
    growth = f", growing by {rate:.2f} a second" if rate and rate > 0 else ""
    top = int(w.argmax())
    by_way = f" by way of {w.max():.0f}" if w.max() > max(w[0], w[-1]) else ""
    shown = sorted(
        {int(at[0]), int(at[top]), int(at[-1])} if by_way else {int(at[0]), int(at[-1])}
    )
    proof = Proof(
        f"Waiting went from {w[0]:.0f} to {w[-1]:.0f}{by_way}{growth} while {ran}usage was "
        f"{percent(u.min())} to {percent(u.max())}",
        {"waiting_first": int(w[0]), "waiting_last": int(w[-1]), "per_s": rate},
        series.lines(*shown),
    )
    outside = f"{w[-1]:.0f} requests wait outside"
    if w[-1] == 0:
        outside = f"up to {w.max():.0f} requests waited outside, none in the end"
    unknown = q.preemptions.kind == UNKNOWN
    limit = q.number("max_num_seqs")
    useless = ["--max-num-seqs: it is not the limit that binds, the pool is"]
    if limit and len(known) and high < limit:
        useless = [f"--max-num-seqs {limit:.0f}: {high} run, it does not bind"]
    return Finding(
        "CAPACITY_QUEUE",
        "high" if len(known) and w.max() > high else "medium",
        f"The pool is full ({percent(float(np.median(u[queued])))}) and {outside}"
        f"{growth}; preemption is "
        + ("not proven." if unknown else f"{q.preemptions.text()}."),
        (proof, *held_proof(q), *_refusals(q)),
        present(shed_load(q), remove_override(q), suggested_memory(q), raise_utilization(q))
        or (*_after_burst(q), ask_for_capacity(q)),
        tuple(useless),
        (),
        (counter(q),) if unknown else (),
    )


def _after_burst(q: Quantities) -> tuple[Step, ...]:
    """What meets a queue that came and went, which no rate of shedding follows from."""
    waiting = (
        q.main.waiting[np.isfinite(q.main.waiting)] if q.main is not None else np.array([])
    )
    if not len(waiting) or waiting.max() <= waiting[-1] or waiting[-1] > 0:
        return ()
    most = int(waiting.max())
    return (
        Step(
            "a replica, or a limit at the client, before the next burst like this",
            f"up to {most} waited and the queue emptied by itself: a burst is above what fits, the mean is not",
            {"waiting_max": most},
        ),
    )


def _refusals(q: Quantities) -> tuple[Proof, ...]:
    refused = q.evidence.all_notices("request_refused")
    if not refused:
        return ()
    return (
        Proof(
            f"{times(len(refused), 'over-long request')} failed before the scheduler, without taking KV; a leak would show "
            "as usage that stays high while Running falls towards 0",
            {"refused": len(refused)},
            tuple(n.at for n in refused[:3]),
        ),
    )


def exclude_queue(q: Quantities) -> str | None:
    if q.main is None or not q.has("waiting"):
        return None
    waiting = q.main.waiting[np.isfinite(q.main.waiting)]
    if len(waiting) and waiting.max() == 0:
        return "nobody waits"
    if q.max_usage is not None and q.max_usage < WALL_FRAC:
        return (
            f"usage was never above {percent(q.max_usage)}: there is room for those that wait"
        )
    return None


def find_no_room(q: Quantities) -> Finding | None:
    """A request was turned away for tokens that are not free now, though the pool could hold it."""
    said = [
        (int(a), int(f), n)
        for n in q.evidence.all_notices("out_of_blocks")
        if isinstance(a := n.values.get("asked_tokens"), int | float)
        and isinstance(f := n.values.get("free_tokens"), int | float)
    ]
    if not said or q.evidence.all_notices("fatal"):
        return None
    asked, free, notice = max(said, key=lambda x: x[0] - x[1])
    pool = q.pool.tokens
    if pool and asked > pool:
        return None  # it can never fit: another word
    unknown = (
        ()
        if pool
        else (Missing("the pool's size", "the line with free blocks and the share used"),)
    )
    of = f" of {pool:,}" if pool else ""
    return Finding(
        "CAPACITY_QUEUE",
        "medium" if pool else "low",
        f"{times(len(said), 'request')} turned away: {asked:,} tokens asked, {free:,}{of} free.",
        (
            Proof(
                f"{asked:,} tokens asked, {free:,} free: {asked - free:,} short",
                {"asked_tokens": asked, "free_tokens": free, "pool_tokens": pool},
                (notice.at,),
            ),
        ),
        (
            Step(
                "send it later, or fewer and shorter requests at once",
                f"it needs {asked - free:,} tokens more than are free",
                {"short_tokens": asked - free},
            ),
        ),
        (),
        () if pool else ("that the pool could hold it: its size is not known",),
        unknown,
        {"shortfall_tokens": asked - free},
    )


RULES = (
    Rule(
        "turned-away",
        "CAPACITY_QUEUE",
        89,
        ("notices",),
        find_no_room,
        "An engine that refuses what does not fit now says how much was asked and how much was free.",
        "xinfer#278",
        None,
        ("NO_PRESSURE_YET", "NOT_KV", "RESERVATION_BLOCKED"),
    ),
    Rule(
        "preemption",
        "CAPACITY_PREEMPTION",
        80,
        (),
        find_preemption,
        "Counters, warnings, retractions, swaps or step lines report victims; V0 prints every 50th, a TP rank each "
        "its own copy, so lines are not counted but read.",
        "vllm#3561, #10517, rllm#93, sglang#4184; vllm/core/scheduler.py (V0)",
        exclude_preemption,
        ("CAPACITY_QUEUE", "NO_PRESSURE_YET", "NOT_KV", "PREFILL_BOUND"),
    ),
    Rule(
        "queue",
        "CAPACITY_QUEUE",
        90,
        ("usage", "waiting"),
        find_queue,
        "A full pool with a queue and no proof of eviction: demand exceeds what fits. Running that falls by one "
        "when one finishes proves no preemption.",
        "vllm#27073",
        exclude_queue,
        ("NO_PRESSURE_YET", "NOT_KV", "PREFILL_BOUND", "SLOT_LIMIT", "HOL_CAPACITY"),
    ),
)
