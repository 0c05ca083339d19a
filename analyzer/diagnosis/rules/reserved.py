"""Blocks that are set aside for the longest output and not used."""

from __future__ import annotations

import numpy as np

from analyzer.diagnosis.findings import Finding, Missing, Proof, Step
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import Rule, percent, times
from analyzer.diagnosis.rules.signs import (
    CALM,
    MOSTLY,
    ROOM_FRAC,
    USUAL_LIMITS,
    at_slot_limit,
    waiters,
)

BY_DEFAULT = (
    "tensorrt-llm",
    "triton",
    "tgi",
)  # reserve the longest output where no policy is stated


MOST_USED = 0.75  # above it the pool is used rather than reserved
LIMIT_MISSING = Missing(
    "the limit on running requests",
    "max_num_seqs or max_running_requests of the start-up lines",
)
RESERVING = ("tensorrt-llm", "triton", "tgi", "sglang", "lmdeploy")


def _no_evict(q: Quantities) -> bool:
    return "no_evict" in q.word("policy").replace("-", "_")


def reserved_blocks(q: Quantities) -> int | None:
    """Blocks that are set aside for one request: as stated, or for prompt and longest output."""
    stated = q.number("reserved_blocks")
    if stated:
        return int(stated)
    return q.lengths.blocks(q.pool) if q.lengths.output is not None else None


def find_reservation(q: Quantities) -> Finding | None:
    refused = q.evidence.all_notices("out_of_blocks")
    if refused:
        return _refused_blocks(q)
    if (found := _budget_taken(q) or _would_reserve(q)) is not None:
        return found
    if not (_no_evict(q) or q.engine in RESERVING) or "max_util" in q.word("policy"):
        return None
    if q.other_pool is not None and q.other_pool[1] >= ROOM_FRAC:
        return None
    queue = waiters(q)
    series = q.main
    if queue is None or series is None:
        return None
    none_fits = q.held is not None and q.held.frac * (q.held.running + 1) > 1
    if queue.usage > MOST_USED and not (none_fits and q.engine in BY_DEFAULT):
        return None
    longest = q.lengths.prompt[1] if q.lengths.prompt else 0
    if longest and q.pool.tokens and longest > q.pool.tokens * (1 - queue.usage):
        return None  # the head of the queue does not fit as it is
    if queue.prefilling >= MOSTLY:
        return None  # prompts are admitted batch by batch: nobody is held back yet
    limit = at_slot_limit(q, queue)
    stated = q.number("max_num_seqs") is not None or limit in USUAL_LIMITS
    if limit and (stated or q.engine not in BY_DEFAULT):
        return None
    each, blocks = reserved_blocks(q), q.pool.usable_blocks
    # Running that stands still may as well be at a limit that nobody states
    told = (
        bool(each or limit or q.number("max_num_seqs") or _no_evict(q))
        or q.engine in BY_DEFAULT
    )
    if each and blocks and each * (queue.most_running + 1) <= blocks:
        return None
    if not each and not _no_evict(q) and q.preemptions.some:
        return None
    proofs = [
        Proof(
            f"Usage is {percent(float(series.usage[queue.at].min()))} to {percent(float(series.usage[queue.at].max()))} and nobody is "
            f"evicted, yet {queue.most_running} run while {queue.waiting:.0f} wait",
            {
                "usage_frac": queue.usage,
                "running": queue.most_running,
                "waiting": queue.waiting,
            },
            series.lines(int(queue.at[0]), int(queue.at[-1])),
        )
    ]
    facts: dict[str, object] = {
        "scheduled_max": queue.most_running,
        "active_max": int(np.nanmax(series.waiting + np.nan_to_num(series.running))),
        "paused_max": 0 if not q.preemptions.some else q.preemptions.low,
    }
    if series.has("used_blocks"):
        facts["used_blocks_peak"] = int(np.nanmax(series.col("used_blocks")))
    steps: tuple[Step, ...] = ()
    missing: tuple[Missing, ...] = ()
    text = f"usage is {percent(queue.usage)}, {queue.most_running} run and {queue.waiting:.0f} wait"
    if each and blocks:
        fit = blocks // each
        facts |= {"reserved_blocks_per_request": each, "no_evict_concurrency": fit}
        text = f"{each} of {blocks} blocks are set aside for each request, so {fit} run at once while usage is {percent(queue.usage)}"
        proofs.append(
            Proof(
                f"prompt + longest output = {each} blocks; {fit + 1} would need {(fit + 1) * each} of {blocks}",
                {"reserved_blocks": each, "pool_blocks": blocks},
                q.lengths.lines,
            )
        )
        steps = _smaller_reservations(q, each, blocks)
    else:
        steps = (
            Step(
                "lower max_tokens of the requests, or declare what they really produce",
                "less is set aside, more run",
            ),
        )
        missing = () if told else (LIMIT_MISSING,)
        missing += (
            Missing(
                "max_tokens of the requests, so what is reserved",
                "prompt and max_tokens of a request, and the capacity policy",
            ),
        )
    return Finding(
        "RESERVATION_BLOCKED",
        "high" if queue.waiting > queue.most_running and told else "medium",
        f"Blocks are reserved, not used: {text}.",
        tuple(proofs),
        (*steps, _other_policy(q)),
        ("more memory for what is used: usage is low, the reservation is what fills the pool",),
        ()
        if each
        else (
            "the reservation: the engine admits by prompt + longest output, and usage has room",
        ),
        missing,
        facts,
    )


def _would_reserve(q: Quantities) -> Finding | None:
    """No samples: a policy that never evicts, lengths, and more sent at once than can be set aside."""
    each, blocks, sent = reserved_blocks(q), q.pool.usable_blocks, q.number("clients")
    if q.main is not None or not _no_evict(q) or not each or not blocks or not sent:
        return None
    fit = blocks // each
    if each > blocks or sent <= fit:
        return None
    return Finding(
        "RESERVATION_BLOCKED",
        "medium",
        f"{each:,} of {blocks:,} blocks are set aside for each request, so {fit} run at once and {sent - fit:,.0f} of {sent:,.0f} wait.",
        (
            Proof(
                f"prompt + longest output = {each:,} blocks; {fit + 1} would need {(fit + 1) * each:,} of {blocks:,}",
                {"reserved_blocks": each, "pool_blocks": blocks},
                (*q.lines("policy", "pool_blocks"), *q.lengths.lines),
            ),
        ),
        (*_smaller_reservations(q, each, blocks), _other_policy(q)),
        ("more memory for what is used: the reservation is what fills the pool",),
        ("that they wait: no sample shows it",),
        (Missing("what ran and waited", "the iteration statistics of that time"),),
        {"reserved_blocks_per_request": each, "no_evict_concurrency": fit},
    )


def _budget_taken(q: Quantities) -> Finding | None:
    """A router that budgets prompt + longest output: what its batch may take, against the pool."""
    reserved, pool, series = q.number("reserved_tokens"), q.pool.tokens, q.main
    if not reserved or not pool or series is None or reserved > pool or q.has("usage"):
        return None
    running, waiting = series.running[-1], series.waiting[-1]
    if not (waiting > 0 and running > 0):
        return None
    each = reserved / running
    if reserved + each <= pool:
        return None
    fact = q.fact("reserved_tokens")
    return Finding(
        "RESERVATION_BLOCKED",
        "high" if waiting > running else "medium",
        f"The budget is set aside: {running:.0f} running requests may take {reserved:,.0f} of {pool:,} tokens "
        f"({percent(reserved / pool)}), and {waiting:.0f} wait.",
        (
            Proof(
                f"{reserved:,.0f} tokens for {running:.0f} requests are {each:,.0f} each, prompt and longest output; {pool - reserved:,.0f} are left",
                {"reserved_tokens": reserved, "pool_tokens": pool, "waiting": float(waiting)},
                (*series.lines(len(series) - 1), *((fact.at,) if fact and fact.at else ())),
            ),
        ),
        (
            Step(
                "lower max_new_tokens of the requests, or what they may ask for at most (--max-total-tokens)",
                "less is set aside for each, more run",
            ),
            Step("a larger --max-batch-total-tokens, where memory is left", "more fit at once"),
        ),
        ("--max-concurrent-requests: it only makes the queue longer",),
        (),
        (
            Missing(
                "what is really written",
                "prompt and generated tokens of requests (tgi_request_input_length, tgi_request_generated_tokens)",
            ),
        ),
        {"reserved_tokens": int(reserved), "reserved_tokens_per_request": round(each)},
    )


def _smaller_reservations(q: Quantities, each: int, blocks: int) -> tuple[Step, ...]:
    size = q.pool.block_size
    prompt = q.lengths.prompt[1] if q.lengths.prompt else 0
    steps = []
    for n in (8, 4):
        most = blocks // n
        if size and most * size > prompt:
            steps.append(
                Step(
                    f"max_tokens <= {most * size - prompt}",
                    f"{n} run at once: {blocks} / {n} = {most} blocks each",
                    {"max_tokens": most * size - prompt, "concurrency": n},
                )
            )
    steps.append(
        Step(
            f"a pool of {8 * each} blocks",
            f"8 run at once as they are (x {8 * each / blocks:.1f})",
            {"pool_blocks": 8 * each, "times": round(8 * each / blocks, 1)},
        )
    )
    return tuple(steps)


def _other_policy(q: Quantities) -> Step:
    if q.engine in ("tensorrt-llm", "triton"):
        return Step(
            "capacity policy MAX_UTILIZATION", "admits by use; may pause requests later"
        )
    if q.engine == "sglang":
        return Step(
            "--schedule-conservativeness below 1, e.g. 0.5",
            "reserves half as much of max_new_tokens; retracts later if that is wrong",
        )
    return Step("declare shorter outputs", "less is set aside")


def _refused_blocks(q: Quantities) -> Finding | None:
    """The engine allocates prompt + longest output at once, and fails a request for which that is not free."""
    told: dict[str, tuple[int, int]] = {}
    lines = []
    for n in q.evidence.all_notices("out_of_blocks"):
        want, left = n.values.get("asked_blocks"), n.values.get("free_blocks")
        if not isinstance(want, int | float) or not isinstance(left, int | float):
            continue
        key = str(n.values.get("request") or (want, left))
        if key in told or (int(want), int(left)) in told.values():
            continue
        told[key] = (int(want), int(left))
        lines.append(n.at)
    if not told or (
        q.pool.usable_blocks and max(a for a, _ in told.values()) > q.pool.usable_blocks
    ):
        return None
    asked, free = [a for a, _ in told.values()], [f for _, f in told.values()]
    short = max(a - f for a, f in told.values())
    size = q.pool.block_size or 16
    tokens = q.pool.tokens
    output = q.lengths.output[1] if q.lengths.output else None
    for n in q.evidence.all_notices("request_received", "out_of_blocks"):
        most = n.values.get("max_tokens")
        output = int(most) if isinstance(most, int | float) else output
    text = f"{asked[-1]} blocks asked ({asked[-1] * size:,} tokens, prompt and output at once), {free[-1]} free: {asked[-1] - free[-1]} short"
    steps = []
    if tokens:
        budget = tokens - short * size
        steps.append(
            Step(
                f"--max-batch-total-tokens {budget}",
                f"{short} blocks less, so the router queues instead of the request failing",
                {"max_batch_total_tokens": budget},
            )
        )
    steps.append(Step("upgrade", "later versions queue instead of failing"))
    useless = []
    if output:
        useless.append(
            f"lowering max_new_tokens by {output}: it saves only {-(-output // size)} blocks a request"
        )
    return Finding(
        "RESERVATION_BLOCKED",
        "high",
        f"{times(len(told), 'request')} failed because prompt + longest output is allocated at once: {text}.",
        (
            Proof(text, {"asked_blocks": asked[-1], "free_blocks": free[-1]}, tuple(lines)),
            Proof(
                f"Rounding up to blocks loses at most {size - 1} tokens a request; {short} blocks = {short * size:,} tokens would "
                f"need {-(-short * size // max(size - 1, 1))} requests, else blocks were not given back",
                {"short_blocks": short},
            ),
        ),
        tuple(steps),
        tuple(useless),
        (
            "why they were not free: reservation, or blocks not given back after aborted streams",
        ),
        (
            Missing(
                "free blocks when idle",
                f"the count with nothing running: below {q.pool.blocks or 'the pool'} means blocks are lost",
            ),
        ),
        {"failed_requests": len(told), "asked_blocks": asked, "free_blocks": free},
    )


RULES = (
    Rule(
        "reserved-not-used",
        "RESERVATION_BLOCKED",
        50,
        (),
        find_reservation,
        "Engines that admit by prompt + longest output fill the pool with what is not written: usage is low, nobody is "
        "paused, and a queue waits.",
        "TensorRT-LLM#2866, tensorrtllm_backend#457, TGI#1356, sglang#7133",
        None,
        (*CALM, "SLOT_LIMIT", "PREFILL_BOUND", "HOL_CAPACITY", "CAPACITY_QUEUE"),
    ),
)
