"""Something other than used blocks holds requests back: reservation, a rank, the head, slots, prefill compute."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzer.diagnosis.advice import SLOT_KNOBS, present, shed_load
from analyzer.diagnosis.findings import Finding, Missing, Proof, Step
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import Rule, percent, times

ROOM_FRAC = 0.9  # below it there is room for those that wait
MIN_SLOTS = 4
USUAL_LIMITS = (64, 128, 256, 512, 1024)  # defaults of max_num_seqs and its kin
HEAD_FRAC = 0.3  # below it a head that does not fit would need most of the pool
BY_DEFAULT = (
    "tensorrt-llm",
    "triton",
    "tgi",
)  # reserve the longest output where no policy is stated
RESERVING = ("tensorrt-llm", "triton", "tgi", "sglang", "lmdeploy")


@dataclass(frozen=True)
class Waiters:
    """Samples with a queue although there is room. at: their indices; usage, running, waiting: medians there;
    most_running: of all samples; share: of the samples; prompts: prompt tokens a second there; generation: output tokens a second, median."""

    at: np.ndarray
    usage: float
    running: float
    waiting: float
    most_running: int
    share: float
    prompts: np.ndarray
    generation: float | None


def waiters(q: Quantities) -> Waiters | None:
    """A queue before a pool with room, for at least half of the samples that have a queue; or None."""
    series = q.main
    if series is None:
        return None
    at = series.valid(series.usage, series.waiting)
    queued = at[series.waiting[at] > 0]
    if not len(queued):
        return None
    room = queued[series.usage[queued] < ROOM_FRAC]
    if 2 * len(room) < len(queued):
        return None
    running = series.running[room]
    deferred = np.nan_to_num(series.col("num_deferred")[room])
    if np.median(series.waiting[room] - deferred) <= 0:
        return None

    def median(values: np.ndarray) -> float | None:
        known = values[np.isfinite(values)]
        return float(np.median(known)) if len(known) else None

    return Waiters(
        room,
        float(np.median(series.usage[room])),
        median(running) or 0.0,
        float(np.median(series.waiting[room])),
        int(np.nanmax(series.running)) if np.isfinite(series.running).any() else 0,
        len(room) / max(len(at), 1),
        series.prompt[room],
        median(series.generation[room]),
    )


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
    if not (_no_evict(q) or q.engine in RESERVING):
        return None
    if q.other_pool is not None and q.other_pool[1] >= ROOM_FRAC:
        return None
    queue = waiters(q)
    series = q.main
    if queue is None or series is None or queue.usage > 0.75:
        return None
    limit = at_slot_limit(q, queue)
    stated = q.number("max_num_seqs") is not None or limit in USUAL_LIMITS
    if limit and (stated or q.engine not in BY_DEFAULT):
        return None
    each, blocks = reserved_blocks(q), q.pool.usable_blocks
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
        "active_max": int(np.nanmax(series.waiting + series.running)),
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
        missing = (
            Missing(
                "max_tokens of the requests, so what is reserved",
                "prompt and max_tokens of a request, and the capacity policy",
            ),
        )
    return Finding(
        "RESERVATION_BLOCKED",
        "high" if queue.waiting > queue.most_running else "medium",
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


def find_imbalance(q: Quantities) -> Finding | None:
    i = q.imbalance
    if i is None or not i.uneven:
        return None
    total = sum(i.running.values())
    share = i.shares[-1] if i.shares else 0.0
    rate = q.preemptions.per_s
    text = (
        f"rank {i.busiest} holds {percent(i.usage[i.busiest])} of its pool with {i.running[i.busiest]} running and "
        f"{i.waiting[i.busiest]} waiting, {times(len(i.idle), 'rank')} of {len(i.usage)} idle"
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


def at_slot_limit(q: Quantities, queue: Waiters) -> int | None:
    """The limit on running requests that binds: as stated, or Running that never moves while a queue waits."""
    limit = q.number("max_num_seqs")
    if q.is_v0 and limit and q.lengths.sequences > 1:
        limit //= q.lengths.sequences
    if limit:
        return (
            int(limit)
            if queue.most_running >= limit and queue.running >= 0.95 * limit
            else None
        )
    series = q.main
    if series is None:
        return None
    running = series.running[queue.at]
    flat = len(running) >= 3 and np.ptp(running) == 0 and running[0] == queue.most_running
    flat = flat and queue.most_running >= MIN_SLOTS
    if queue.most_running in USUAL_LIMITS and len(running):
        return queue.most_running if (running == queue.most_running).mean() >= 0.5 else None
    if flat and not _prompts_bind(queue):
        return queue.most_running
    return None


def _prompts_bind(queue: Waiters) -> bool:
    """Whether prompt tokens flow at a rate that takes the machine: steady, and well above what is generated."""
    flow = queue.prompts[np.isfinite(queue.prompts)]
    if not len(flow) or (flow > 0).mean() < 0.6:
        return False
    return float(np.median(flow)) >= max(2 * (queue.generation or 0.0), 200.0)


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
        f"Running stays at {limit} with {queue.waiting:.0f} waiting and usage at {percent(queue.usage)}: the limit on running requests binds, not KV.",
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


def find_prefill_bound(q: Quantities) -> Finding | None:
    queue, series = waiters(q), q.main
    if queue is None or series is None or queue.most_running == 0 or at_slot_limit(q, queue):
        return None
    prompt = series.prompt[queue.at]
    known = prompt[np.isfinite(prompt)]
    generation = queue.generation or 0.0
    if not _prompts_bind(queue):
        return None
    rate = q.waiting_rate
    growth = f", the queue grows by {rate:.2f} a second" if rate and rate > 0 else ""
    budget = q.number("max_num_batched_tokens")
    return Finding(
        "PREFILL_BOUND",
        "high" if queue.waiting > queue.most_running else "medium",
        f"Prompts take the machine: {np.median(known):,.0f} prompt tokens/s, usage {percent(queue.usage)}, {queue.waiting:.0f} waiting{growth}.",
        (
            Proof(
                f"Prompt throughput is {known.min():,.0f} to {known.max():,.0f} tokens/s against {generation:,.0f} generated; usage is at most {percent(float(series.usage[queue.at].max()))}",
                {
                    "prompt_per_s": float(np.median(known)),
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
        facts={"prompt_per_s": round(float(np.median(known)), 1)},
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
    idle = bool(len(known)) and float(np.median(known)) <= 0
    if not (idle or blocked) or (not blocked and len(queue.at) < 2):
        return None
    if not blocked and (queue.usage < HEAD_FRAC or queue.running < 2):
        return None
    held = queue.usage / queue.running
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
        f"{queue.waiting:.0f} wait although {room} are free: the head of the queue{head} does not fit, about {behind} behind it would.",
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
                f"about {behind} that wait start now",
                {"would_fit": behind},
            ),
            Step(
                "--max-model-len at what fits beside the others, or a scheduler that lets short ones pass",
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
        ),
        {"would_fit_behind_head": behind},
    )


_RULED = ("NO_PRESSURE_YET", "NOT_KV")

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
        (*_RULED, "SLOT_LIMIT", "PREFILL_BOUND", "HOL_CAPACITY", "CAPACITY_QUEUE"),
    ),
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
            *_RULED,
            "CAPACITY_PREEMPTION",
            "CAPACITY_QUEUE",
            "THRASH_PREFILL_READMIT",
            "HOL_CAPACITY",
            "SLOT_LIMIT",
            "OVERSIZE_REQUEST",
        ),
    ),
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
        (*_RULED, "CAPACITY_QUEUE"),
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
        _RULED,
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
        _RULED,
    ),
)
