"""One data-parallel rank is full while others are idle."""

from __future__ import annotations

import numpy as np

from analyzer.diagnosis.findings import Finding, Proof, Step
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import Rule, percent, times
from analyzer.diagnosis.rules.signs import CALM


def find_imbalance(q: Quantities) -> Finding | None:
    i = q.imbalance
    if i is None or not i.uneven:
        return None
    total = sum(i.running.values())
    share = i.shares[-1] if i.shares else 0.0
    rate = q.preemptions.per_s
    known = q.has("usage")
    holds = f"holds {percent(i.usage[i.busiest])} of its pool with" if known else "has"
    others = [u for r, u in i.usage.items() if r != i.busiest]
    rest = (
        f"{times(len(i.idle), 'rank')} of {len(i.usage)} idle"
        if i.idle or not known
        else f"the others at {percent(min(others))} to {percent(max(others))}"
    )
    text = (
        f"rank {i.busiest} {holds} {i.running[i.busiest]} running and "
        f"{i.waiting[i.busiest]} waiting, {rest}"
    )
    proofs = [
        Proof(
            text[0].upper() + text[1:],
            {
                "usage_frac": i.usage[i.busiest],
                "running": i.running[i.busiest],
                "waiting": i.waiting[i.busiest],
            },
            i.lines,
        )
    ]
    if i.held_frac and i.balanced_frac is not None and i.held_frac < 0.5:
        proofs.append(
            Proof(
                f"Each request there costs {percent(i.held_frac, 2)} of a pool: shared evenly the fullest rank would be at {percent(i.balanced_frac)}",
                {
                    "held_frac": round(i.held_frac, 4),
                    "balanced_usage_frac": round(i.balanced_frac, 4),
                },
                i.lines[:1],
            )
        )
    if i.waiting[i.busiest]:
        proofs.append(
            Proof(
                f"{i.fit_elsewhere} of the {i.waiting[i.busiest]} that wait there would fit on other ranks"
                + (f", each below {q.pool.tokens:,} tokens" if q.pool.tokens else ""),
                {"fit_elsewhere": i.fit_elsewhere},
                i.lines,
            )
        )
    mean = float(np.mean(list(i.usage.values())))
    proofs.append(
        Proof(
            f"The sum hides it: {total} running, mean usage {percent(mean)}, {percent(share)} of the running on one rank",
            {"mean_usage_frac": round(mean, 4), "share": round(share, 4)},
        )
    )
    if q.preemptions.some and rate is not None:
        from analyzer.diagnosis.rules.capacity import preemption_proof

        proofs.append(preemption_proof(q))
    return Finding(
        "DP_IMBALANCE",
        "high",
        f"One rank is full while others idle: {text}.",
        tuple(proofs),
        (
            Step(
                "balance by KV tokens over ranks (dp-aware routing), not by requests or queue length",
                f"the fullest rank at {percent(i.balanced_frac)} instead of {percent(i.usage[i.busiest])}"
                if i.balanced_frac is not None and i.held_frac and i.held_frac < 0.5
                else f"{i.fit_elsewhere} waiting requests start at once on idle ranks",
                {
                    "balanced_usage_frac": round(i.balanced_frac, 4)
                    if i.balanced_frac is not None
                    else None
                },
            ),
            Step(
                "route sessions to ranks outside the engine",
                "the same, and sticky sessions stay possible",
            ),
        ),
        (
            "more memory per rank or a higher utilisation: the other pools are empty",
            "a lower max_num_seqs: it does not bind",
        ),
        facts={
            "share_of_running_on_busiest": [round(s, 2) for s in i.shares],
            "idle_engines_last": list(i.idle),
            "busiest_rank": i.busiest,
            "fit_elsewhere": i.fit_elsewhere,
            "balanced_usage": round(i.balanced_frac, 4)
            if i.balanced_frac is not None
            else None,
        },
    )


def exclude_imbalance(q: Quantities) -> str | None:
    i = q.imbalance
    if i is None:
        return None
    return "ranks are at " + ", ".join(percent(u) for u in i.usage.values())


RULES = (
    Rule(
        "one-rank-full",
        "DP_IMBALANCE",
        60,
        ("ranks", "running"),
        find_imbalance,
        "One pool is full while others have half or more free: no capacity is missing, the balance is.",
        "vllm#48808, vllm PR#49204, miles PR#2012, aibrix#1614",
        exclude_imbalance,
        (
            *CALM,
            "CAPACITY_PREEMPTION",
            "CAPACITY_QUEUE",
            "THRASH_PREFILL_READMIT",
            "HOL_CAPACITY",
            "SLOT_LIMIT",
            "OVERSIZE_REQUEST",
        ),
    ),
)
