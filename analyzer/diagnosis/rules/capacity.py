"""The pool is full: running requests are evicted, the same ones again and again, or others wait outside."""

from __future__ import annotations

import numpy as np

from analyzer.diagnosis.advice import (
    cap_running,
    grow_pool,
    present,
    put_off_wall,
    raise_utilization,
    remove_override,
    shed_load,
    suggested_memory,
)
from analyzer.diagnosis.findings import KNOWN, UNKNOWN, Finding, Missing, Proof, Step
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import Rule, percent, times

WALL_FRAC = 0.9
RECOMPUTE_TIMES = 10.0  # recompute over generation from which the machine does little else
COUNTER = Missing(
    "the number of preemptions",
    "two scrapes of vllm:num_preemptions_total (V1 prints none in its log)",
)


def held_proof(q: Quantities) -> tuple[Proof, ...]:
    """What a running request holds, and how many fit."""
    if q.held is None or q.main is None:
        return ()
    h = q.held
    text = f"{h.running} running requests hold {percent(h.usage)} of the pool, {percent(h.frac, 2)} each"
    numbers: dict[str, float | int | str | None] = {
        "running": h.running,
        "usage_frac": h.usage,
        "held_frac": round(h.frac, 5),
    }
    if h.tokens:
        text += f" ({h.tokens:,.0f} tokens)"
        numbers["held_tokens"] = round(h.tokens)
    each = q.lengths.blocks(q.pool)
    if q.fits.value is not None:
        text += f"; {q.fits.value} fit to their end at {q.fits.basis}"
        numbers["safe_concurrency"] = q.fits.value
        if each and "stated" in q.fits.at:
            text += f" ({each} blocks each)"
            numbers["blocks_per_request"] = each
    return (Proof(text, numbers, q.main.lines(h.sample)),)


def preemption_proof(q: Quantities) -> Proof:
    """How many preemptions, how that is known, and when."""
    p = q.preemptions
    text = f"Preemptions: {p.text()} ({p.kind}: {p.how})"
    if p.first_s is not None and q.clock(p.first_s):
        text += f", the first at {q.clock(p.first_s)}"
    if p.per_s is not None:
        low, high = p.per_s
        rate = (
            f"{low:.2g}"
            if abs(high - low) < 0.05 * max(high, 1e-9)
            else f"{low:.2g} to {high:.2g}"
        )
        text += f", {rate} a second"
    return Proof(text, {"low": p.low, "high": p.high, "kind": p.kind}, p.lines)


def find_preemption(q: Quantities) -> Finding | None:
    p = q.preemptions
    if not p.some or not _from_the_pool(q):
        return None
    severity = _severity(q)
    inferred = () if p.kind == KNOWN else (f"preemptions: {p.how}",)
    swap = "swap" in q.word("preemption_mode") or bool(q.evidence.all_notices("swap_out"))
    steps = present(
        cap_running(q),
        remove_override(q),
        grow_pool(q),
        raise_utilization(q),
        suggested_memory(q),
        put_off_wall(q) if q.lengths.blocks(q.pool) is None else None,
    )
    if q.engine == "sglang" and q.evidence.all_notices("retract"):
        steps = (_conservativeness(q), *steps)
    past = p.since_start and q.max_usage is not None and q.max_usage < WALL_FRAC
    statement = f"The pool is full and running requests lose their blocks: {_preemptions(q)}"
    if past:
        severity = "low"
        statement = f"Running requests lost their blocks before this scrape: {_preemptions(q)} since the start"
    return Finding(
        "CAPACITY_PREEMPTION",
        severity,
        statement
        + (
            f", usage {'now ' if past else 'up to '}{percent(q.max_usage)}."
            if q.max_usage is not None
            else "."
        ),
        (preemption_proof(q), *held_proof(q), *_pause_proof(q)),
        steps or (_ask_for_capacity(),),
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


def _pause_proof(q: Quantities) -> tuple[Proof, ...]:
    p = q.preemptions
    if p.recomputed_low is None or p.recomputed_kind == UNKNOWN:
        return ()
    high = p.recomputed_high
    span = f"{p.recomputed_low:,}" + (
        f" to {high:,}" if high not in (None, p.recomputed_low) else ""
    )
    return (
        Proof(
            f"Tokens computed again: {span} ({p.recomputed_kind})",
            {"low": p.recomputed_low, "high": high},
        ),
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


def _ask_for_capacity() -> Step:
    return Step(
        "add the start-up lines and the request lengths",
        "then the number that can run without preemption follows",
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
        unknown.append(COUNTER)
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


def find_thrash(q: Quantities) -> Finding | None:
    hidden, series = q.hidden, q.main
    if hidden is None or series is None or not hidden.thrash:
        return _known_thrash(q)
    p = q.preemptions
    h = hidden.hidden_tokens or 0.0
    index = hidden.interval or 0
    gap = float(series.gaps_s[index]) if np.isfinite(series.gaps_s[index]) else 0.0
    made = float(series.generation[index]) * gap
    before, after = hidden.before or 0.0, hidden.after or 0.0
    running = int(series.running[index])
    proofs = (
        Proof(
            f"In {gap:.0f} s usage grew by {h + made:,.0f} tokens while about {made:,.0f} were generated: "
            f"{h:,.0f} tokens of prefill are counted nowhere",
            {"hidden_tokens": round(h), "generated": round(made)},
            series.lines(index - 1, index),
        ),
        Proof(
            f"Generation fell from {before:,.1f} to {after:,.1f} tokens/s (x {after / before:.2f}) with "
            f"Running {running} unchanged",
            {"before": round(before, 1), "after": round(after, 1)},
            series.lines(hidden.drops[0] - 1, hidden.drops[0]),
        ),
        preemption_proof(q),
        *held_proof(q),
    )
    return Finding(
        "THRASH_PREFILL_READMIT",
        "high",
        f"The same requests are evicted and admitted again: generation fell from {before:,.1f} to {after:,.1f} "
        f"tokens/s at the wall, {p.text()} preemptions.",
        proofs,
        _thrash_steps(q, running),
        (
            f"--max-num-seqs {max(running - 1, 1)}: it only moves the wall to "
            + (
                f"{q.pool.tokens // max(running - 1, 1):,} tokens a request"
                if q.pool.tokens
                else "later"
            ),
            "reading 'no preemption text' as no preemption: V1 prints none",
        ),
        (
            f"preemptions: {hidden.how}",
            "hidden prefill = growth of usage x pool - generated tokens",
        ),
        (COUNTER,) if q.preemptions.kind != KNOWN else (),
        {
            "generation_before": round(before, 1),
            "generation_after_median": round(after, 1),
            "hidden_prefill_tokens": round(h),
            "victim_tokens": round(hidden.victim_tokens) if hidden.victim_tokens else None,
        },
    )


def _known_thrash(q: Quantities) -> Finding | None:
    """Counted preemptions whose recompute is several times what is generated, with the same few running."""
    p, series, held = q.preemptions, q.main, q.held
    if series is None or held is None or p.kind != KNOWN or p.per_s is None or not p.low:
        return None
    if p.recomputed_high == 0 or not held.tokens or p.low < 2 * held.running:
        return None
    at = series.valid(series.generation, series.usage)
    at = at[series.usage[at] >= WALL_FRAC]
    if not len(at):
        return None
    made = float(np.median(series.generation[at]))
    span = (p.last_s or 0.0) - (p.first_s or 0.0)
    again = p.per_s[0] * held.tokens
    if p.recomputed_low is not None and span > 0:
        again = p.recomputed_low / span
    if made <= 0 or again < RECOMPUTE_TIMES * made:
        return None
    return Finding(
        "THRASH_PREFILL_READMIT",
        "high",
        f"The same requests are evicted and admitted again: {p.text()} preemptions with {held.running} running, about "
        f"{again:,.0f} tokens/s computed again against {made:,.0f} generated.",
        (preemption_proof(q), *held_proof(q), *_pause_proof(q)),
        _thrash_steps(q, held.running),
        (),
        ()
        if p.recomputed_low is not None
        else ("tokens computed again: preemptions a second x held tokens",),
        (),
        {"recomputed_tokens_per_s": round(again)},
    )


def _thrash_steps(q: Quantities, running: int) -> tuple[Step, ...]:
    version = q.word("version")
    gate = Step(
        "admit a request only when its whole sequence fits (scheduler_reserve_full_isl; the default of newer vLLM)",
        f"{max(running - 1, 1)} running and 1 waiting on the same pool, and one preemption instead of a cycle"
        + (f"; this is {version}" if version else ""),
        {"running": max(running - 1, 1)},
    )
    more = []
    if q.pool.tokens and q.wall is not None and q.wall.per_s:
        seconds = 0.01 * q.pool.tokens / q.wall.per_s
        more.append(
            Step(
                "a pool 1 % larger",
                f"puts the wall off by {seconds:.0f} s",
                {"seconds": round(seconds)},
            )
        )
    return (gate, *present(cap_running(q), grow_pool(q)), *more)


def find_queue(q: Quantities) -> Finding | None:
    series = q.main
    if series is None:
        return None
    at = series.valid(series.usage, series.waiting)
    if not len(at):
        return None
    u, w = series.usage[at], series.waiting[at]
    queued = w > 0
    if not queued.any() or float(np.median(u[queued])) < WALL_FRAC:
        return None
    if q.preemptions.kind == KNOWN and q.preemptions.some:
        return None
    rate = q.waiting_rate
    running = series.running[at]
    low, high = int(np.nanmin(running)), int(np.nanmax(running))
    growth = f", growing by {rate:.2f} a second" if rate and rate > 0 else ""
    proof = Proof(
        f"Waiting went from {w[0]:.0f} to {w[-1]:.0f}{growth} while {low} to {high} ran and usage was "
        f"{percent(u.min())} to {percent(u.max())}",
        {"waiting_first": int(w[0]), "waiting_last": int(w[-1]), "per_s": rate},
        series.lines(int(at[0]), int(at[-1])),
    )
    unknown = q.preemptions.kind == UNKNOWN
    limit = q.number("max_num_seqs")
    useless = ["--max-num-seqs: it is not the limit that binds, the pool is"]
    if limit and high < limit:
        useless = [f"--max-num-seqs {limit:.0f}: {high} run, it does not bind"]
    return Finding(
        "CAPACITY_QUEUE",
        "high" if w.max() > high else "medium",
        f"The pool is full ({percent(float(np.median(u[queued])))}) and {w[-1]:.0f} requests wait outside"
        f"{growth}; preemption is "
        + ("not proven." if unknown else f"{q.preemptions.text()}."),
        (proof, *held_proof(q), *_refusals(q)),
        present(shed_load(q), remove_override(q), suggested_memory(q), raise_utilization(q))
        or (_ask_for_capacity(),),
        tuple(useless),
        (),
        (COUNTER,) if unknown else (),
    )


def _refusals(q: Quantities) -> tuple[Proof, ...]:
    refused = q.evidence.all_notices("request_refused")
    if not refused:
        return ()
    return (
        Proof(
            f"{times(len(refused), 'over-long request')} failed before the scheduler and hold no KV; a leak would show "
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


RULES = (
    Rule(
        "thrash",
        "THRASH_PREFILL_READMIT",
        70,
        ("usage", "running", "generation"),
        find_thrash,
        "KV that grows faster than tokens are generated is prefill that was done before: a resumed request "
        "computes its KV again and no throughput counts it.",
        "vllm#18115, vllm PR#21809; vllm/v1/core/sched/scheduler.py",
        lambda q: (
            "generation does not collapse at the wall"
            if q.full_sample is not None and q.hidden is None
            else None
        ),
        ("CAPACITY_PREEMPTION", "CAPACITY_QUEUE", "NOT_KV", "NO_PRESSURE_YET"),
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
