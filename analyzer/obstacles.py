"""Why a goal cannot be reached: what stands in the way once every lever was tried, with its numbers.

It reads outcomes that were run anyway and the lengths of the requests. It proposes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

from analyzer.advice_words import show_changes
from analyzer.goals import MAX_GOODPUT, Goal, figure
from analyzer.latency import OVERLOAD_QUEUE_FRAC
from analyzer.lever_facts import Facts
from analyzer.outcome import Outcome
from analyzer.words import label, show

BEHIND_FRAC = 0.9  # fewer leave than that share of those that arrive: the queue grows
LIGHT = (
    0.1  # arrivals at a tenth of the rate or less: a request has the machine nearly to itself
)


def obstacles_of(
    goal: Goal, facts: Facts, base: Outcome, outcomes: Iterable[Outcome]
) -> tuple[str, ...]:
    """Sentences, the hardest obstacle first; empty where none of those that are known stands out."""
    ran = [o for o in outcomes if not o.refused]
    said = [
        _too_large(facts, base),
        *_compute(goal, ran),
        _overload(facts, base, ran),
        *_least(goal, facts, base, ran),
    ]
    return tuple(s for s in said if s)


def _least(goal: Goal, facts: Facts, base: Outcome, ran: list[Outcome]) -> list[str]:
    """How low each figure that the base misses came by itself, whatever the others were then."""
    if goal.aim == MAX_GOODPUT:
        return []
    wanted = {bound.key: bound.limit_s for bound in goal.bounds}
    wanted |= {"num_preemptions": 0.0} if goal.no_preemption else {}
    said, kept = [], []
    for key, limit in wanted.items():
        known = [(value, o) for o in ran if (value := figure(o.figures, key)) is not None]
        least, best = min(known, key=lambda pair: pair[0], default=(None, base))
        if least is None:
            continue
        with_it = show_changes(best.changes, facts)
        if least <= limit:
            kept.append(f"{label(key)} is kept with {with_it}")
        else:
            said.append(
                f"{label(key)}: the least of {len(ran):,} runs is {show(key, least)}, with {with_it}, above {show(key, limit)}."
            )
    if not said and len(kept) > 1:
        said.append(f"Each by itself can be reached, not together: {'; '.join(kept)}.")
    return said


def _too_large(facts: Facts, base: Outcome) -> str:
    refused = base.figures.get("num_refused") or 0
    blocks = int(facts.blocks_of(facts.total_tokens).max())
    usable = facts.num_gpu_blocks - 1
    if blocks > usable:
        return (
            f"One request is larger than the pool: the longest has {facts.longest_tokens:,} tokens and needs {blocks:,} blocks, "
            f"the pool has {usable:,}. No setting of the scheduler admits it."
        )
    longer = int((facts.total_tokens > facts.max_model_len).sum())
    if refused and longer:
        return f"{longer:,} requests are longer than max_model_len ({facts.max_model_len:,} tokens), so {refused:,} are refused."
    return f"{refused:,} requests are refused at the base." if refused else ""


def _compute(goal: Goal, ran: list[Outcome]) -> list[str]:
    """Bounds that are missed with almost no load: then neither memory nor the queue is the reason."""
    light = [
        o for o in ran if o.changes.get("rate_scale", 1.0) <= LIGHT and len(o.changes) == 1
    ]
    if not light:
        return []
    least = min(light, key=lambda o: o.changes["rate_scale"])
    said = []
    for bound in goal.bounds:
        value = figure(least.figures, bound.key)
        if value is not None and bound.statistic and value > bound.limit_s:
            said.append(
                f"Compute: even at {least.changes['rate_scale']:g} × the arrivals, when a request has the machine nearly to itself, "
                f"{label(bound.key)} is {show(bound.metric, value)}, above {show(bound.metric, bound.limit_s)}."
            )
    return said


def _overload(facts: Facts, base: Outcome, ran: list[Outcome]) -> str:
    """Arrivals above what is served, also in the largest pool that was tried: fewer leave than arrive, and
    half of the requests wait for half of their time or more."""
    rate = facts.rate_rps
    pools = [o for o in ran if set(o.changes) <= {"num_gpu_blocks"}]
    best = max([base, *pools], key=lambda o: o.figures.get("num_gpu_blocks") or 0)
    duration_s, finished = best.figures.get("duration_s"), best.figures.get("num_finished")
    if rate is None or not duration_s or finished is None:
        return ""
    served = finished / duration_s
    queue_s, e2e_s = (figure(best.figures, key) for key in ("queue_s p50", "e2e_s p50"))
    waits = queue_s is not None and e2e_s and queue_s >= OVERLOAD_QUEUE_FRAC * e2e_s
    if served >= BEHIND_FRAC * rate or not waits:
        return ""
    pool = best.figures.get("num_gpu_blocks") or facts.num_gpu_blocks
    where = (
        f"even in a pool of {pool:,} blocks, in which nobody is preempted"
        if best is not base and not best.figures.get("num_preemptions")
        else f"in a pool of {pool:,} blocks"
    )
    return (
        f"Arrivals above the service rate: {show('rate', rate)} requests/s arrive and {show('rate', served)} leave {where}, "
        "so the queue grows whatever the memory. Fewer arrivals, replicas or a faster device change that."
    )
