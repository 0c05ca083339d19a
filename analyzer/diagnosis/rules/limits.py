"""Slots, prompt compute or the head of the queue hold requests back, and the pool has room."""

from __future__ import annotations

import numpy as np

from analyzer.diagnosis.advice import (
    SLOT_KNOBS,
    present,
    shed_load,
)
from analyzer.diagnosis.findings import Finding, Missing, Proof, Step
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import Rule, percent, times
from analyzer.diagnosis.rules.signs import (
    CALM,
    MIN_SLOTS,
    ROOM_FRAC,
    STEADY_FRAC,
    at_slot_limit,
    prompts_bind,
    waiters,
)

TIGHT_FRAC = 0.5  # from here on one that runs may leave no room for another
HEAD_FRAC = 0.3  # below it a head that does not fit would need most of the pool


def find_slots(q: Quantities) -> Finding | None:
    queue, series = waiters(q), q.main
    if queue is None or series is None or queue.most_running == 0:
        return None
    limit = at_slot_limit(q, queue)
    if limit is None:
        return None
    stated = q.number("max_num_seqs") is not None
    fit = int(queue.most_running * 0.98 / queue.usage) if queue.usage > 0.005 else None
    knob = SLOT_KNOBS.get(q.engine, "--max-num-seqs")
    step = Step(
        f"{knob} {fit}" if fit else f"a higher {knob}",
        f"{fit - limit if fit else 'more'} more run at the length that they hold now; usage goes from {percent(queue.usage)} to about 98 %",
        {"max_num_seqs": fit},
    )
    return Finding(
        "SLOT_LIMIT",
        "medium",
        f"Running stays at {limit} with {queue.waiting:.0f} waiting and usage at {percent(queue.usage)}: the limit on running requests binds, not KV."
        if not queue.deferred
        else f"{queue.running:.0f} running and {queue.deferred:.0f} deferred take all {limit} slots with {queue.waiting:.0f} waiting and usage at {percent(queue.usage)}: slots bind, not KV.",
        (
            Proof(
                f"Running is {limit} in {times(int((series.running[queue.at] == limit).sum()), 'sample')} with a queue, usage {percent(queue.usage)}",
                {"limit": limit, "usage_frac": queue.usage, "waiting": queue.waiting},
                (*series.lines(int(queue.at[0]), int(queue.at[-1])), *q.lines("max_num_seqs")),
            ),
        ),
        (step, *present(shed_load(q))),
        ("more KV memory: the pool has room",),
        ()
        if stated
        else (f"the limit of {limit}: Running never passes it while requests wait",),
        ()
        if stated
        else (
            Missing(
                "the limit", "max_num_seqs (max_running_requests, max_batch_size) of the server"
            ),
        ),
        {"slot_limit": limit},
    )


def exclude_slots(q: Quantities) -> str | None:
    limit = q.number("max_num_seqs")
    series = q.main
    if limit is None or series is None or not np.isfinite(series.running).any():
        return None
    most = float(np.nanmax(series.running))
    return f"at most {most:.0f} ran, the limit is {limit:.0f}" if most < limit else None


def prompt_rate(known: np.ndarray) -> float:
    """Prompt tokens a second: the median where they flow in most samples, else the mean."""
    return float(np.median(known) if (known > 0).mean() >= STEADY_FRAC else known.mean())


def find_prefill_bound(q: Quantities) -> Finding | None:
    queue, series = waiters(q), q.main
    if queue is None or series is None or queue.most_running == 0 or at_slot_limit(q, queue):
        return None
    prompt = series.prompt[queue.at]
    known, unit = prompt[np.isfinite(prompt)], "tokens/s"
    if not len(known):  # older lines say how many a batch has, and no rate
        batch = series.col("context_tokens")[queue.at]
        known, unit = batch[np.isfinite(batch)], "tokens a batch"
    generation = queue.generation or 0.0
    if not prompts_bind(queue):
        return None
    rate = q.waiting_rate
    growth = f", the queue grows by {rate:.2f} a second" if rate and rate > 0 else ""
    budget = q.number("max_num_batched_tokens")
    return Finding(
        "PREFILL_BOUND",
        "high" if queue.waiting > queue.most_running else "medium",
        f"Prompts take the machine: {prompt_rate(known):,.0f} prompt {unit}, usage {percent(queue.usage)}, {queue.waiting:.0f} waiting{growth}.",
        (
            Proof(
                f"Prompt throughput is {known.min():,.0f} to {known.max():,.0f} {unit} against {generation:,.0f} generated; usage is at most {percent(float(series.usage[queue.at].max()))}",
                {
                    "prompt_per_s": prompt_rate(known),
                    "generation_per_s": generation,
                    "usage_frac": queue.usage,
                },
                series.lines(int(queue.at[0]), int(queue.at[-1])),
            ),
        ),
        (
            *present(shed_load(q)),
            Step(
                "another replica, or prefill on other devices",
                "halves the prompt tokens a second for each",
            ),
            Step(
                "prefix caching, where prompts share a beginning"
                + (f"; a larger max_num_batched_tokens than {budget:.0f}" if budget else ""),
                "fewer prompt tokens to compute",
            ),
        ),
        ("gpu_memory_utilization, fp8 KV, max_num_seqs: the pool and the slots are free",),
        ("that compute binds: prompts flow at a steady high rate, and there is room",),
        facts={"prompt_per_s": round(prompt_rate(known), 1)},
    )


def _limit_unknown(q: Quantities, running: int) -> tuple[Missing, ...]:
    """What to ask for where so few run that a limit on them is as likely."""
    if running >= MIN_SLOTS or q.number("max_num_seqs") is not None:
        return ()
    settle = "max_num_seqs of the server (and max_loras, where it has adapters)"
    return (Missing("whether a limit holds Running down", settle),)


SLOW_FRAC = 0.2  # of a request's best speed
MANY_PROMPTS = 20.0  # prompt tokens for each that is generated


def find_starved_decode(q: Quantities) -> Finding | None:
    """Nobody waits, and those that decode stand nearly still while a prompt is computed."""
    series = q.main
    if series is None or series.per_step or (q.max_usage or 1.0) >= ROOM_FRAC or q.summed:
        return None
    at = series.valid(series.generation, series.running, series.prompt, series.t_s)
    at = at[series.running[at] > 0]
    if len(at) < 4:
        return None
    each = series.generation[at] / series.running[at]
    slow = each < SLOW_FRAC * each.max()
    if slow.sum() < 2 or series.running[at].max() < 2:
        return None
    gaps = np.nan_to_num(series.gaps_s[at], nan=q.period_s or 0.0)
    counted = np.flatnonzero(
        slow | np.concatenate(([False], slow[:-1]))
    )  # with its first token
    prompts = float((series.prompt[at] * gaps)[counted].sum())
    made = float((series.generation[at] * gaps)[slow].sum())
    if prompts < max(MANY_PROMPTS * made, 1000.0):
        return None
    first, last = int(at[slow][0]), int(at[slow][-1])
    low, best = float(np.median(each[slow])), float(each.max())
    text = f"a request's speed falls from {best:.1f} to {low:.1f} tokens/s while {prompts:,.0f} prompt tokens are computed"
    budget = q.number("max_num_batched_tokens")
    return Finding(
        "PREFILL_BOUND",
        "medium",
        f"Prompts take the machine: {text}, usage at most {percent(q.max_usage)}.",
        (
            Proof(
                text[0].upper() + text[1:],
                {
                    "best": round(best, 2),
                    "slow": round(low, 2),
                    "prompt_tokens": round(prompts),
                },
                series.lines(first, last),
            ),
        ),
        (
            Step(
                "a smaller max_num_batched_tokens"
                + (f" than {budget:,.0f}" if budget else "")
                + " (or a limit on long prompts at a time)",
                "shorter steps: others decode on while a long prompt is computed",
            ),
            Step(
                "prefill on other devices, or long prompts on a server of their own",
                "the rest never waits",
            ),
        ),
        ("gpu_memory_utilization, fp8 KV, max_num_seqs: the pool has room",),
        ("that prompts hold decode up: it stands nearly still until their tokens are counted",),
    )


def find_head_of_line(q: Quantities) -> Finding | None:
    queue, series = waiters(q), q.main
    if queue is None or series is None or queue.running < 1 or at_slot_limit(q, queue):
        return None
    prompt = series.prompt[queue.at]
    known = prompt[np.isfinite(prompt)]
    stated_head = q.lengths.prompt[1] if q.lengths.prompt else None
    free = q.pool.tokens * (1 - queue.usage) if q.pool.tokens else None
    blocked = bool(free and stated_head and stated_head > free)
    idle = bool(len(known)) and float(np.median(known)) <= 0 and not prompts_bind(queue)
    held = queue.usage / queue.running
    tight = queue.usage >= TIGHT_FRAC and queue.usage + held > 1  # no second of that kind fits
    if not (idle or blocked) or (not blocked and len(queue.at) < 2 and not tight):
        return None
    if not blocked and (queue.usage < HEAD_FRAC or (queue.running < 2 and not tight)):
        return None
    behind = int((1 - queue.usage) / held) if held else 0
    low = q.lengths.prompt[0] if q.lengths.prompt else None
    if free and low and stated_head and low < stated_head:
        behind = int(free / low)
    behind = min(behind, max(int(queue.waiting) - 1, 0))
    room = f"{free:,.0f} tokens" if free else percent(1 - queue.usage)
    head = f" ({stated_head:,} tokens)" if blocked and stated_head else ""
    numbers: dict[str, float | int | str | None] = {
        "free_frac": round(1 - queue.usage, 4),
        "waiting": queue.waiting,
        "would_fit": behind,
    }
    return Finding(
        "HOL_CAPACITY",
        "high" if queue.waiting > 5 else "medium",
        f"{queue.waiting:.0f} wait although {room} are free: the head of the queue{head} does not fit"
        + (
            f", about {behind} behind it would."
            if behind
            else ", shorter ones behind it would."
        ),
        (
            Proof(
                f"Usage {percent(queue.usage)}, {queue.running:.0f} running, {queue.waiting:.0f} waiting, and no prompt is computed: nobody is admitted",
                numbers,
                series.lines(int(queue.at[0]), int(queue.at[-1])),
            ),
        ),
        (
            Step(
                "send long prompts to a server or rank of their own",
                f"about {behind} that wait start now"
                if behind
                else "those that are shorter start now",
                {"would_fit": behind},
            ),
            Step(
                "a lower --max-model-len, at what fits beside the others, or a scheduler that lets short ones pass",
                "the head no longer blocks",
            ),
        ),
        (
            "max_num_seqs: it does not bind",
            "waiting for preemption: nobody is evicted for the head",
        ),
        ()
        if blocked
        else (
            "that the head is too long for what is free: nothing is admitted although there is room",
        ),
        ()
        if blocked
        else (
            Missing(
                "the length of the first that waits",
                "prompt tokens of the requests in the queue",
            ),
            *_limit_unknown(q, queue.most_running),
        ),
        {"would_fit_behind_head": behind},
    )


RULES = (
    Rule(
        "head-does-not-fit",
        "HOL_CAPACITY",
        85,
        ("usage", "waiting", "running"),
        find_head_of_line,
        "A queue, room in the pool, no slot limit and no prompt being computed: the first that waits does not fit, and nobody "
        "passes it.",
        "vllm#31731, vllm PR#33499, vllm PR#35852, sglang#38478",
        None,
        (*CALM, "CAPACITY_QUEUE"),
    ),
    Rule(
        "slots-full",
        "SLOT_LIMIT",
        100,
        ("usage", "waiting", "running"),
        find_slots,
        "Running stands at its limit while requests wait and the pool has room.",
        "vllm#1607, vllm#26850, sglang#938",
        exclude_slots,
        CALM,
    ),
    Rule(
        "prompts-bind",
        "PREFILL_BOUND",
        110,
        ("usage", "waiting", "running"),
        find_prefill_bound,
        "A queue with room in pool and slots while prompt tokens flow at a steady high rate: compute binds.",
        "vllm#25538, #15996, #32262",
        None,
        CALM,
    ),
    Rule(
        "prompts-starve-decode",
        "PREFILL_BOUND",
        112,
        ("usage", "running", "generation"),
        find_starved_decode,
        "Generation stands nearly still, then many prompt tokens are counted: a prompt is counted when it ends, and its chunks took "
        "the steps of those that decode.",
        "vllm#54919, #11893, #21495",
        None,
        CALM,
    ),
)
