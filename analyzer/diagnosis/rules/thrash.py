"""The same requests are evicted and admitted again and again, and prefill eats the machine."""

from __future__ import annotations

import numpy as np

from analyzer.diagnosis.advice import (
    carries_all,
    costly_cap,
    grow_pool,
    present,
    small_cap,
)
from analyzer.diagnosis.capping import simulate_first
from analyzer.diagnosis.findings import KNOWN, Finding, Proof, Step
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import Rule
from analyzer.diagnosis.rules.proofs import (
    WALL_FRAC,
    counter,
    held_proof,
    preemption_proof,
    recompute_proof,
)

RECOMPUTE_TIMES = 10.0  # recompute over generation from which the machine does little else


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
            *_one_fewer(q, running),
            "reading 'no preemption text' as no preemption: V1 prints none",
        ),
        (
            f"preemptions: {hidden.how}",
            "hidden prefill: growth of usage x pool - generated tokens",
        ),
        (counter(q),) if q.preemptions.kind != KNOWN else (),
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
        (preemption_proof(q), *held_proof(q), *recompute_proof(q)),
        _thrash_steps(q, held.running),
        (),
        ()
        if p.recomputed_low is not None
        else ("tokens computed again: preemptions a second x held tokens",),
        (),
        {"recomputed_tokens_per_s": round(again)},
    )


def _one_fewer(q: Quantities, running: int) -> tuple[str, ...]:
    """That one fewer is no cure, unless that many fit to their end."""
    n = max(running - 1, 1)
    if q.fits.value and n <= q.fits.value and not q.fits.by_held:
        return ()
    where = f"to {q.pool.tokens // n:,} tokens a request" if q.pool.tokens else "off"
    return (f"--max-num-seqs {n}: it only moves the wall {where}",)


def _thrash_steps(q: Quantities, running: int) -> tuple[Step, ...]:
    version = q.word("version")
    gate = Step(
        "admit a request only when its whole sequence fits: update vLLM (newer versions have --scheduler-reserve-full-isl, "
        "on unless it is turned off)",
        f"{max(running - 1, 1)} running and 1 waiting on the same pool, and one preemption instead of a cycle"
        + (f"; {version} runs now" if version else ""),
        {"running": max(running - 1, 1)},
    )
    more = []
    rate = q.hidden.before if q.hidden is not None and q.hidden.before else None
    grown = grow_pool(q)
    if q.pool.tokens and rate and not carries_all(grown, 0.01):
        seconds = round(0.01 * q.pool.tokens / rate)
        effect = f"puts the wall off by {seconds} s"
        more.append(Step("a pool 1 % larger", effect, {"seconds": seconds}))
    capped, last = small_cap(q, thrash=True), costly_cap(q, thrash=True)
    return (*present(simulate_first(q)), gate, *present(capped, grown), *more, *present(last))


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
)
