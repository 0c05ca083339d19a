"""A request that this pool can never hold: at the head of the queue, alone at the wall, or before the start."""

from __future__ import annotations

import numpy as np

from analyzer.diagnosis.advice import (
    present,
)
from analyzer.diagnosis.findings import Finding, Missing, Proof, Step
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import Rule, percent, times
from analyzer.diagnosis.rules.signs import OTHER_CAUSES, near_wall, silence_proof
from analyzer.diagnosis.series import Series
from traces.evidence.evidence import Value


def _servable(q: Quantities) -> int | None:
    """Tokens that one request alone can have: the pool without state blocks, and without the null block
    where one is stated; a printed size in tokens is taken as it is."""
    state = int(q.number("state_blocks") or 0)
    counted = q.number("pool_tokens") is None or q.number("null_blocks") is not None or state
    if counted and q.pool.usable_blocks and q.pool.block_size:
        return (q.pool.usable_blocks - state) * q.pool.block_size
    return q.pool.tokens


def _asked(q: Quantities) -> int | None:
    """Tokens of the largest request that is stated, its output included."""
    return q.lengths.total()


EVICTED_FRAC = 0.3  # usage before, from which it is no chance that as many wait as ran


def longest_allowed(q: Quantities) -> float | None:
    """Tokens of the longest request that the engine takes: max_model_len, or the length that its concurrency is
    printed for."""
    return q.number("max_model_len") or q.number("max_concurrency_tokens")


def would_fit(q: Quantities) -> str | None:
    """Why none of those that wait before the empty pool can be too long for it; None where one may be."""
    still, series = q.starved, q.main
    if still is None or series is None:
        return None
    servable, asked, limit = _servable(q), _asked(q), longest_allowed(q)
    if servable and asked and asked > servable:
        return None
    if servable and limit and limit <= servable:
        return f"max_model_len {limit:,.0f} is within the pool's {servable:,} tokens"
    if q.evidence.family.startswith("v0-metrics") and still.num > 1:
        return "V0 refuses a prompt that is longer than the pool and goes on"
    before = still.first - 1
    if before < 0 or not np.isfinite(series.waiting[before]) or series.per_step:
        return None
    ran, came = series.running[before], series.waiting[still.first] - series.waiting[before]
    if ran >= 2 and ran <= came <= 1.25 * ran + 1 and series.usage[before] >= EVICTED_FRAC:
        return f"the {ran:.0f} that ran together a moment before wait now"
    return None


_SECOND_SAMPLE = Missing(
    "whether the engine takes steps",
    "a second scrape or line half a minute later: vllm:iteration_tokens_total_count that rises says that it does",
)


def find_starved(q: Quantities) -> Finding | None:
    """Requests wait, none runs, and the pool is empty."""
    still, series = q.starved, q.main
    if still is None or series is None:
        return None
    deferred = series.col("num_deferred")[still.first : still.last + 1]
    waiting = series.waiting[still.first : still.last + 1]
    if np.nansum(deferred) and np.nanmax(waiting - np.nan_to_num(deferred)) <= 0:
        return None
    servable, asked = _servable(q), _asked(q)
    limit = longest_allowed(q)
    if would_fit(q) is not None:
        return None
    size = q.pool.block_size or 16
    most = int(np.nanmax(waiting))
    start = q.clock(series.t_s[still.first]) or _place(series, still.first)
    facts: dict[str, object] = {"waiting_at_stall": most, **_stall_times(q, still.first)}
    proofs = [
        Proof(
            f"From {start} on none runs, {most} wait and usage is {percent(still.usage)}: the head of the queue is not "
            "admitted into an empty pool",
            {"waiting": most, "samples": still.num},
            series.lines(still.first, still.last),
        )
    ]
    if q.preemptions.some and q.preemptions.lines:
        facts["waiting_steps_after"] = still.last - still.first
        made = series.col("generation_tokens_total")[: still.first]
        if np.isfinite(made).any():
            facts["output_tokens_before_wall"] = int(np.nanmax(made))
        proofs.append(
            Proof(
                f"It ran before and lost its blocks ({q.preemptions.text()} preempted), its own victim: a low counter that does not "
                f"rise is no sign of health; it waits in {times(still.last - still.first, 'sample')} after that",
                {"preemptions": q.preemptions.low, "waiting_after": still.last - still.first},
                q.preemptions.lines[:2],
            )
        )
    for gap in q.gaps:
        if gap.before >= still.first and gap.before <= still.last + 1:
            end = f", until {gap.ended_by.kind.replace('_', ' ')}" if gap.ended_by else ""
            proofs.append(
                Proof(
                    f"No statistics for {gap.length_s:.0f} s after that{end}: the silence is the stall itself",
                    {"gap_s": round(gap.length_s)},
                    series.lines(gap.before, *([gap.after] if gap.after is not None else [])),
                )
            )
            break
    text = f"none of {most} waiting requests starts in an empty pool"
    steps: list[Step] = []
    if servable and asked and asked > servable:
        short = asked - servable
        blocks = -(-short // size)
        facts |= {
            "shortfall_tokens": short,
            f"shortfall_blocks_of_{size}": blocks,
            "servable_tokens": servable,
            "request_total_tokens": asked,
        }
        text = f"a request of {asked:,} tokens can never fit {servable:,}: {short:,} tokens ({times(blocks, 'block')} of {size}) short"
        proofs.append(
            Proof(
                f"{asked:,} tokens asked, {servable:,} can be served",
                {"asked": asked, "servable": servable, "short": short},
                q.lines("pool_tokens", "pool_blocks", "prompt_tokens"),
            )
        )
        need = _least_blocks(q, asked)
        if need:
            facts["min_blocks"] = need
        steps.append(
            Step(
                f"a pool of at least {asked:,} tokens"
                + (f" ({need:,} blocks)" if need else ""),
                f"x {asked / servable:.3g} of this one lets it finish",
                {"pool_tokens": asked, "times": round(asked / servable, 3), "min_blocks": need},
            )
        )
    elif servable and limit and limit > servable:
        proofs.append(_warning(q, servable, limit))
        text += f"; max_model_len {limit:,.0f} is above the pool's {servable:,} tokens"
    first = _limit_step(servable)
    gate = Step(
        "--no-scheduler-reserve-full-isl, for hybrid models only",
        "admits by real use; the printed size of a hybrid model counts too much",
    )
    seen_long = bool(servable and asked and asked > servable)
    once = still.num == 1 and not seen_long and not q.preemptions.some
    if once:
        text += "; one sample shows it, so an engine that stands still is as likely"
    return Finding(
        "OVERSIZE_REQUEST",
        "medium" if once else "high",
        f"The head of the queue {'does not' if once else 'can never'} run here: {text}.",
        tuple(proofs),
        (*present(first), *steps, *((gate,) if q.is_v1 and not q.has("steps") else ())),
        (
            "more swap space, another victim rule or a watermark: there is no other request to evict",
            "max_num_seqs: nothing runs",
        ),
        ()
        if seen_long
        else ("that the head of the queue is too long: nothing runs in an empty pool",),
        (*((_SECOND_SAMPLE,) if once else ()), *_what_was_asked(servable, asked)),
        facts,
    )


def _place(series: Series, index: int) -> str:
    step = series.col("step")[index]
    return f"step {step:.0f}" if np.isfinite(step) else f"sample {index}"


def _stall_times(q: Quantities, first: int) -> dict[str, object]:
    series = q.main
    if series is None or not series.timed:
        return {}
    last = float(np.nanmax(series.t_s))
    after = next((g for g in q.gaps if g.before >= first), None)
    running = np.flatnonzero((series.running > 0) & (np.arange(len(series)) > first))
    end = float(series.t_s[running[0]]) if len(running) else last
    start = float(series.t_s[first])
    aborts = [
        n.t_s
        for n in q.evidence.all_notices("request_aborted", "killed", "request_finished")
        if n.t_s is not None and start < n.t_s <= max(end, after.to_s if after else end)
    ]
    end = aborts[0] if aborts else end
    facts: dict[str, object] = {"stall_from": q.clock(start), "stall_to": q.clock(end)}
    if after is not None:
        facts["stats_gap_s"] = round(after.length_s)
    return facts


def _least_blocks(q: Quantities, tokens: int) -> int | None:
    if not q.pool.block_size or q.pool.usable_blocks is None or q.pool.blocks is None:
        return None
    state = int(q.number("state_blocks") or 0)
    return q.pool.blocks_for(tokens) + state + int(q.number("null_blocks") or 0)


def _limit_step(servable: int | None) -> Step | None:
    if servable is None:
        return Step(
            "a --max-model-len of at most the pool's tokens",
            "too long a request is refused at once",
        )
    return Step(
        f"--max-model-len {servable}",
        "the request is refused at once with a clear error instead of stopping the queue",
        {"max_model_len": servable},
    )


def _warning(q: Quantities, servable: int, limit: float) -> Proof:
    return Proof(
        f"max_model_len / pool = {limit / servable:.2f}: any request between {servable:,} and {limit:,.0f} tokens does this",
        {"times": round(limit / servable, 2)},
        q.lines("max_model_len", "pool_tokens"),
    )


def _what_was_asked(servable: int | None, asked: int | None) -> tuple[Missing, ...]:
    found = []
    if servable is None:
        found.append(
            Missing(
                "the size of the pool",
                "the start-up line 'GPU KV cache size' or '# GPU blocks'",
            )
        )
    if asked is None:
        found.append(
            Missing(
                "the length of the request at the head",
                "prompt and max output tokens of the first waiting request",
            )
        )
    return tuple(found)


def find_outgrown(q: Quantities) -> Finding | None:
    """One running request grows into the wall, and then there is silence or it evicts itself."""
    series = q.main
    if series is None:
        return None
    at = series.valid(series.usage, series.running)
    if len(at) < 2:
        return None
    last = int(at[-1])
    alone = series.running[last] == 1 and (
        np.nan_to_num(series.waiting[last]) == 0 or q.silent_end
    )
    if not alone or not q.silent_end or not near_wall(q, last):
        return None
    wall = q.wall
    tokens = q.pool.tokens
    rate = float(series.generation[last]) if np.isfinite(series.generation[last]) else None
    proofs = [
        Proof(
            f"One request runs, usage rises to {percent(float(series.usage[last]))}"
            + (
                f" and {tokens * (1 - float(series.usage[last])):,.0f} tokens are left"
                if tokens
                else ""
            )
            + (f" ({wall.how}): full at about {q.clock(wall.at_s)}" if wall else ""),
            {"usage_frac": float(series.usage[last]), "generation_per_s": rate},
            series.lines(int(at[0]), last),
        ),
        *silence_proof(q),
    ]
    if q.pool.checks:
        proofs.append(
            Proof(
                "The pool was checked: " + "; ".join(q.pool.checks),
                {"pool_tokens": tokens},
                q.pool.lines,
            )
        )
    inferred = ["that the one request is the one that stops: nobody else runs"]
    if rate and rate > 150:
        inferred.append(
            f"{rate:.0f} tokens/s from one request: it very likely has several sequences (n or best_of), which V0 swaps; "
            "with nobody else to evict it swaps itself out and cannot come back: likely, not proven"
        )
    bound = f"{tokens:,}" if tokens else "the pool's"
    slope = q.slope
    return Finding(
        "OVERSIZE_REQUEST",
        "high",
        f"One running request outgrew the pool at {percent(float(series.usage[last]))}, and nobody else can be evicted for it.",
        tuple(proofs),
        (
            Step(
                f"bound the request: (prompt + max_tokens) x n <= {bound} tokens: lower n, best_of, max_tokens or --max-model-len",
                "it ends before the wall",
                {"max_tokens_in_all": tokens},
            ),
            Step("upgrade", "newer versions refuse or recompute it"),
        ),
        ("more --swap-space: the request alone needs more blocks than exist",),
        tuple(inferred),
        ()
        if q.lengths.total()
        else (
            Missing(
                "prompt, max_tokens and n of the running request", "its 'Received request' line"
            ),
        ),
        {
            "growth_tokens_per_s": [round(slope.generated / _span(q), 1)] * 2
            if slope and _span(q)
            else None
        },
    )


def _span(q: Quantities) -> float:
    if q.slope is None or q.main is None:
        return 0.0
    return float(q.main.t_s[q.slope.last] - q.main.t_s[q.slope.first])


def find_unstartable(q: Quantities) -> Finding | None:
    """The engine refused to start: not even one request of max_model_len fits."""
    refused = q.evidence.all_notices("too_small")
    starts = q.fact("starts")
    if q.main is not None:
        return None  # it ran, so a later start was possible
    if not refused and not (starts is not None and starts.value is False):
        return None
    limit, tokens = q.number("max_model_len"), q.pool.tokens
    said: dict[str, Value] = {k: v for n in refused for k, v in n.values.items()}
    fits = said.get("fits_tokens") or tokens
    text = "the pool cannot hold one request of max_model_len, so the engine did not start"
    steps: list[Step] = []
    if limit and isinstance(fits, int) and limit > fits:
        text = f"max_model_len {limit:,.0f} is above the {fits:,} tokens that fit: the engine did not start"
        steps.append(
            Step(
                f"--max-model-len {fits}",
                f"{limit - fits:,.0f} tokens less, and it starts",
                {"max_model_len": fits},
            )
        )
    needed, had = said.get("needed_bytes"), said.get("kv_bytes")
    if isinstance(needed, int | float) and isinstance(had, int | float) and had:
        steps.append(
            Step(
                f"{needed / 2**30:.2f} GiB of KV (a higher gpu_memory_utilization, more devices, or fp8 KV)",
                f"{(needed - had) / 2**30:.2f} GiB more than there are: x {needed / had:.2f}",
                {"kv_bytes": needed, "times": round(needed / had, 2)},
            )
        )
    if q.is_v0:
        first = "--enable-chunked-prefill, where it is off"
        why = "the profile run at start is short then; that of a long prompt takes its activation memory from the pool"
        steps.insert(0, Step(first, why))
    return Finding(
        "OVERSIZE_REQUEST",
        "medium",
        f"No request runs: {text}.",
        (
            Proof(
                text[0].upper() + text[1:],
                {
                    "max_model_len": limit,
                    "fits_tokens": fits if isinstance(fits, int) else None,
                },
                tuple(n.at for n in refused[:2]),
            ),
        ),
        tuple(steps)
        or (Step("a smaller max_model_len, or more memory for the pool", "it starts"),),
        facts={"starts": False},
    )


def find_alone(q: Quantities) -> Finding | None:
    """The engine says that its only running request found no room."""
    said = q.evidence.all_notices("alone_out_of_room")
    if not said:
        return None
    pool = f"{q.pool.tokens:,} tokens" if q.pool.tokens else "the pool"
    proofs = [
        Proof(
            "One request ran, and there was no room for its next token",
            {"pool_tokens": q.pool.tokens},
            tuple(n.at for n in said[:2]),
        )
    ]
    if q.max_usage is not None and q.main is not None:
        top = int(np.nanargmax(q.main.usage))
        text = f"Usage reaches {percent(q.max_usage)} with {q.main.running[top]:.0f} running"
        proofs.append(Proof(text, {"usage_frac": q.max_usage}, q.main.lines(top)))
    return Finding(
        "OVERSIZE_REQUEST",
        "high",
        f"One request outgrew {pool}, and nobody else can be evicted for it.",
        tuple(proofs),
        (
            Step(
                f"bound the request: prompt + max_tokens at most {pool}, less what is set aside for those that come in",
                "it ends before the wall",
                {"max_tokens_in_all": q.pool.tokens},
            ),
            Step("upgrade", "newer versions abort that request and go on"),
        ),
        ("another victim rule or conservativeness: there is no other request to evict",),
        ("that others (preallocated or in transfer) hold none of it",),
        ()
        if q.lengths.total()
        else (Missing("its length", "prompt and max output tokens of that request"),),
    )


def find_refused_for_pool(q: Quantities) -> Finding | None:
    """The block manager refused a prompt that is longer than the whole pool (V0)."""
    refused = q.evidence.all_notices("request_refused")
    said = [n for n in refused if "pool" in str(n.values.get("why", "")).lower()]
    if not said:
        return None
    sizes = [int(v) for n in said if isinstance(v := n.values.get("prompt_tokens"), int)]
    most = f"a prompt of {max(sizes):,} tokens" if sizes else "a prompt"
    bound = min(sizes) if sizes else None
    pool = (
        f"the pool's {q.pool.tokens:,} tokens"
        if q.pool.tokens
        else f"the pool, which holds fewer than {bound:,} tokens"
        if bound
        else "the pool"
    )
    return Finding(
        "OVERSIZE_REQUEST",
        "high",
        f"{most[0].upper()}{most[1:]} is longer than {pool}: it can never run here, and the engine refuses it.",
        (
            Proof(
                f"{times(len(said), 'prompt')} refused as above the capacity of the block manager",
                {"refused": len(said), "prompt_tokens": max(sizes) if sizes else None},
                tuple(n.at for n in said[:3]),
            ),
        ),
        (
            Step(
                "more memory for the pool: fewer or smaller weights, more devices, fp8 KV, a higher gpu_memory_utilization",
                f"at least {max(sizes):,} tokens of KV" if sizes else "the prompt fits",
                {"pool_tokens": max(sizes) if sizes else None},
            ),
            *present(_limit_step(q.pool.tokens) if q.pool.tokens else None),
        ),
        ("swap space, watermark: the prompt alone is longer than the pool",),
        (),
        ()
        if q.pool.tokens
        else (Missing("the size of the pool", "the start-up line '# GPU blocks'"),),
        {"shortfall_tokens": max(sizes) - q.pool.tokens} if sizes and q.pool.tokens else {},
    )


def find_stated_oversize(q: Quantities) -> Finding | None:
    """A stated or refused length that no block count here can hold."""
    servable = _servable(q)
    asked = _asked(q)
    sizes = [
        int(v)
        for n in q.evidence.all_notices("out_of_blocks")
        if isinstance(v := n.values.get("asked_blocks"), int | float)
    ]
    if sizes and q.pool.usable_blocks and max(sizes) > q.pool.usable_blocks:
        asked, servable = max(sizes) * (q.pool.block_size or 1), q.pool.tokens
    tokens = [
        int(v)
        for n in q.evidence.all_notices("out_of_blocks")
        if isinstance(v := n.values.get("asked_tokens"), int | float)
    ]
    if tokens and q.pool.tokens and max(tokens) > q.pool.tokens:
        asked, servable = max(tokens), q.pool.tokens
    stopped = q.has("sweeps") or q.starved is not None
    if not servable or not asked or asked <= servable or stopped:
        return None
    if q.lengths.sequences > 1 and not sizes:
        each = q.lengths.blocks(q.pool)
        if each is None or q.pool.usable_blocks is None or each <= q.pool.usable_blocks:
            return None
    short = asked - servable
    size = q.pool.block_size or 16
    return Finding(
        "OVERSIZE_REQUEST",
        "high",
        f"A request of {asked:,} tokens can never fit a pool of {servable:,}: {short:,} tokens short.",
        (
            Proof(
                f"{asked:,} tokens asked, {servable:,} in the pool",
                {"asked": asked, "servable": servable, "short": short},
                q.lines("prompt_tokens", "output_tokens", "pool_tokens", "pool_blocks"),
            ),
        ),
        present(_limit_step(servable)),
        ("watermark, victim rule, swap: there is no other request to evict",),
        facts={"shortfall_tokens": short, f"shortfall_blocks_of_{size}": -(-short // size)},
    )


RULES = (
    Rule(
        "empty-pool-queue",
        "OVERSIZE_REQUEST",
        20,
        ("running", "waiting"),
        find_starved,
        "A queue before an empty pool in which nothing runs: the full-prompt check (or its own past length) lets the head "
        "never in, and first come, first served lets nobody pass.",
        "vllm#39734, vllm PR#52530; vllm/v1/core/sched/scheduler.py",
        None,
        (*OTHER_CAUSES, "ENGINE_BUG", "CAPACITY_PREEMPTION", "RESERVATION_BLOCKED"),
    ),
    Rule(
        "one-request-outgrows",
        "OVERSIZE_REQUEST",
        21,
        ("usage", "running"),
        find_outgrown,
        "When the only running request meets the wall there is nobody to evict for it.",
        "vllm#1879, #546, #1607, #1206",
        None,
        (*OTHER_CAUSES, "ENGINE_BUG"),
    ),
    Rule(
        "alone-without-room",
        "OVERSIZE_REQUEST",
        24,
        ("notices",),
        find_alone,
        "An engine that finds nobody to evict but the request itself says so, and older ones end there.",
        "sglang PR#14948, PR#19881",
        None,
        (*OTHER_CAUSES, "ENGINE_BUG", "RESERVATION_BLOCKED", "CAPACITY_PREEMPTION"),
    ),
    Rule(
        "longer-than-pool",
        "OVERSIZE_REQUEST",
        22,
        ("pool",),
        find_stated_oversize,
        "A stated length, or blocks that were asked for, above the whole pool.",
        "vllm#39734, #45388, ascend#17074",
        None,
        (*OTHER_CAUSES, "RESERVATION_BLOCKED", "CAPACITY_PREEMPTION"),
    ),
    Rule(
        "refused-by-pool",
        "OVERSIZE_REQUEST",
        24,
        ("notices",),
        find_refused_for_pool,
        "V0's block manager refuses a prompt that needs more blocks than there are.",
        "vllm#2198, #7878; vllm/core/scheduler.py (V0)",
        None,
        (*OTHER_CAUSES,),
    ),
    Rule(
        "did-not-start",
        "OVERSIZE_REQUEST",
        23,
        (),
        find_unstartable,
        "The engine refuses a max_model_len that its pool cannot hold once.",
        "vllm#10517; vllm/worker/worker.py, vllm/v1/core/kv_cache_utils.py",
        None,
        (*OTHER_CAUSES,),
    ),
)
