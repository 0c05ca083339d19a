"""KV is not to blame, nothing is wrong yet, the printed size misleads, or the evidence carries no verdict."""

from __future__ import annotations

import numpy as np

from analyzer.diagnosis.advice import cap_running, present, suggested_memory
from analyzer.diagnosis.findings import KNOWN, Finding, Missing, Proof, Step
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import Rule, percent, times
from analyzer.diagnosis.rules.capacity import COUNTER

FREE_FRAC = 0.9


def find_hybrid(q: Quantities) -> Finding | None:
    """A request takes much more than its tokens, or the printed size is not what growth shows."""
    slope, pool = q.slope, q.pool
    printed = q.number("pool_tokens")
    if slope is not None and printed and q.stairs is None and q.hidden is None:
        factor = printed / slope.tokens
        if slope.high < printed / 1.3 and slope.grown_frac >= 0.02:
            return _misleads(q, slope.tokens, printed, factor)
    fixed = _fixed_cost(q)
    if fixed is not None:
        return fixed
    held, longest = q.held, q.lengths.total()
    if q.lengths.output is None and q.lengths.longest is None:
        longest = None
    limit = q.number("max_model_len")
    most = min(x for x in (longest, limit) if x) if (longest or limit) else None
    if (
        held is None
        or held.tokens is None
        or most is None
        or q.lengths.sequences > 1
        or pool.kind != "known"
    ):
        return None
    if held.tokens < 1.5 * most or q.main is None:
        return None
    extra = held.tokens - most
    return Finding(
        "HYBRID_OVERHEAD",
        "medium",
        f"Each running request takes {held.tokens:,.0f} tokens of the pool although it has at most {most:,.0f}: "
        f"{extra:,.0f} are state or alignment.",
        (
            Proof(
                f"{percent(held.usage)} of {pool.tokens:,} tokens over {held.running} running",
                {"held_tokens": round(held.tokens), "longest": int(most)},
                q.main.lines(held.sample),
            ),
        ),
        (
            Step(
                f"plan with {held.tokens:,.0f} tokens a request",
                f"{int((pool.tokens or 0) / held.tokens)} fit, not {int((pool.tokens or 0) / most)}",
                {"safe_concurrency": int((pool.tokens or 0) / held.tokens)},
            ),
        ),
        ("pool / max_model_len: it leaves out what a request holds besides its tokens",),
        ("the fixed cost: held tokens less the longest length",),
        (
            Missing(
                "state blocks of a request",
                "the model's layer types, or usage at two concurrencies",
            ),
        ),
        {"fixed_tokens_per_request": round(extra)},
    )


def find_other_pool(q: Quantities) -> Finding | None:
    """The pool of states or windows is full while the one of tokens has room."""
    found, series = q.other_pool, q.main
    if found is None or series is None or found[1] < FREE_FRAC:
        return None
    name, usage, tokens, index = found
    if tokens > usage - 0.1:
        return None
    what = "state slots" if name == "mamba" else "window tokens"
    knob = (
        "--max-mamba-cache-size or a larger --mamba-full-memory-ratio"
        if name == "mamba"
        else "a larger --swa-full-tokens-ratio"
    )
    return Finding(
        "HYBRID_OVERHEAD",
        "high" if series.waiting[index] > 0 else "medium",
        f"The pool of {what} is {percent(usage)} full while tokens are at {percent(tokens)}: it binds, the printed token usage misleads.",
        (
            Proof(
                f"{name} usage {percent(usage)}, token usage {percent(tokens)}, {series.running[index]:.0f} running",
                {"other_usage_frac": usage, "usage_frac": tokens},
                series.lines(index),
            ),
        ),
        (
            Step(knob, "more requests have room for their state", {}),
            Step(
                f"at most {series.running[index]:.0f} at once",
                "what the pool of states carries",
            ),
        ),
        ("a larger token pool: it has room",),
        (),
        (),
        {"binding_pool": name},
    )


def find_derived_size(q: Quantities) -> Finding | None:
    """Blocks times block size that are not the tokens that are stated."""
    blocks, size, tokens = (
        q.number("pool_blocks"),
        q.number("block_size"),
        q.number("pool_tokens"),
    )
    if not blocks or not size or not tokens or abs(tokens / (blocks * size) - 1) < 0.1:
        return None
    return Finding(
        "HYBRID_OVERHEAD",
        "low",
        f"{blocks:,.0f} blocks of {size:.0f} are {blocks * size:,.0f} tokens, and {tokens:,.0f} are stated (x {tokens / (blocks * size):.2f}): "
        "a derived size of a hybrid model.",
        (
            Proof(
                f"pool in tokens {tokens:,.0f}, blocks x block size {blocks * size:,.0f}",
                {"pool_tokens": tokens, "blocks_times_size": blocks * size},
                q.lines("pool_tokens", "pool_blocks"),
            ),
        ),
        (
            Step(
                "plan with usage at two concurrencies, not with either number",
                "gives the fixed cost and the cost a token",
            ),
        ),
        ("num_gpu_blocks x block_size, or the printed size over the length",),
    )


def _misleads(q: Quantities, tokens: float, printed: float, factor: float) -> Finding | None:
    series, slope = q.main, q.slope
    if series is None or slope is None:
        return None
    return Finding(
        "HYBRID_OVERHEAD",
        "medium",
        f"The printed size of {printed:,.0f} tokens misleads: usage grows as if the pool held {tokens:,.0f} (x {1 / factor:.2f}).",
        (
            Proof(
                f"{slope.generated:,.0f} generated tokens took {percent(slope.grown_frac)} of the pool",
                {"generated": round(slope.generated), "grown_frac": round(slope.grown_frac, 4)},
                (*series.lines(slope.first, slope.last), *q.lines("pool_tokens")),
            ),
        ),
        (
            Step(
                f"plan with {tokens:,.0f} tokens",
                "what growth shows is what can be used",
                {"pool_tokens": round(tokens)},
            ),
        ),
        (
            "the printed size over the length: derived for hybrid models (concurrency x max_model_len)",
        ),
        ("the usable pool: generated tokens over growth of usage",),
        (Missing("which pool binds", "the model's layer types and the engine's version"),),
        {"pool_tokens_usable": round(tokens)},
    )


def _fixed_cost(q: Quantities) -> Finding | None:
    """Fixed cost a request and cost a token, fitted to runs of a table that state usage and lengths."""
    rows = [
        r
        for r in q.sweeps
        if r.get("num_running")
        and ("used_blocks" in r or "kv_usage_frac" in r)
        and r.get("prompt_tokens")
    ]
    size, blocks = q.pool.block_size, q.pool.usable_blocks
    if len(rows) < 2 or not size or not blocks:
        return None
    used = np.array([r.get("used_blocks", r.get("kv_usage_frac", 0.0) * blocks) for r in rows])
    each = used / np.array([r["num_running"] for r in rows])
    length = np.array([r["prompt_tokens"] + r.get("output_tokens", 0.0) for r in rows])
    if np.ptp(length) < 0.2 * length.max():
        return None
    per_token, fixed = np.polyfit(length, each, 1)
    if fixed < 2 or fixed < 0.1 * each.min() or per_token <= 0:
        return None
    fit = int(blocks / (fixed + per_token * length.max()))
    return Finding(
        "HYBRID_OVERHEAD",
        "medium",
        f"Each request takes {fixed:.1f} blocks before its first token, and {1 / per_token:.1f} tokens a block after that.",
        (
            Proof(
                f"{times(len(rows), 'run')}: blocks a request = {fixed:.1f} + tokens x {per_token:.4f}",
                {
                    "fixed_blocks": round(float(fixed), 2),
                    "blocks_per_token": round(float(per_token), 5),
                },
            ),
        ),
        (
            Step(
                f"at most {fit} requests of {length.max():,.0f} tokens",
                "both costs counted",
                {"safe_concurrency": fit},
            ),
        ),
        ("pool / length: it leaves out the fixed cost",),
        ("the two costs: a line through the runs",),
        facts={"state_blocks": round(float(fixed), 1)},
    )


def find_forecast_from_notes(q: Quantities) -> Finding | None:
    """No samples: what is sent at once against what fits."""
    if q.main is not None:
        return None
    caps = _caps(q)
    if not caps or q.fits.value is None or "stated" not in q.fits.at:
        return None
    total = sum(caps)
    fit, tokens = q.fits.at["stated"], q.pool.tokens or 0
    prompt, output = q.lengths.prompt or (0, 0), q.lengths.output or (0, 0)
    demand = [total * (p + o) for p, o in zip(prompt, output, strict=True)]
    over = [round(d / tokens, 2) for d in demand] if tokens else []
    if len(caps) == 1 and over and over[1] > 1 and q.preemptions.some:
        return None
    best = Step(
        f"{fit} in all"
        + (
            f", e.g. {-(-fit // 2)} + {fit // 2}, or one semaphore for all proxies"
            if len(caps) > 1
            else ""
        ),
        f"{fit} requests of {prompt[1] + output[1]:,} tokens fit {tokens:,}; prefix sharing only raises that",
        {"recommended_total_cap": fit},
    )
    need = demand[1] if demand else 0
    more = []
    each = q.number("kv_bytes_per_token") or (
        (q.number("kv_bytes") or 0) / tokens if tokens else 0
    )
    if need > tokens:
        numbers: dict[str, float | int | str | None] = {"pool_tokens": need}
        text = f"a pool of {need:,} tokens"
        if each:
            numbers["kv_gib"] = round(need * each / 2**30, 1)
            text += f" ({need * each / 2**30:.1f} GiB of KV)"
        more.append(Step(text, f"carries {total} at once", numbers))
    facts: dict[str, object] = {
        "total_cap_possible": total,
        "oversubscription_at_cap": over,
        "recommended_total_cap": fit,
        "fits": {
            f"at_{n}": q.pool.tokens // n
            for n in dict.fromkeys(p + o for p, o in zip(prompt, output, strict=True))
            if n and q.pool.tokens
        },
        f"pool_needed_for_{total}": need,
    }
    if each:
        facts[f"kv_gib_needed_for_{total}"] = round(need * each / 2**30, 1)
    pressed = bool(over) and over[1] > 1
    text = f"{total} requests may be sent at once and {fit} fit" + (
        f" ({over[0]:.2f} to {over[1]:.2f} x the pool)" if over else ""
    )
    return Finding(
        "NO_PRESSURE_YET",
        "medium" if pressed else "low",
        text[0].upper()
        + text[1:]
        + (": it can come at any time." if pressed else ": no pressure."),
        (
            Proof(
                text[0].upper() + text[1:],
                {"total_cap": total, "fit": fit},
                (*q.lines("clients", "client_caps"), *q.lengths.lines),
            ),
            *_flat_counter(q),
        ),
        (best, *more) if pressed else (Step("nothing", "what is sent fits"),),
        ("a cap for each proxy alone: one engine serves them all",) if len(caps) > 1 else (),
        (),
        (
            Missing(
                "the share of prompts that is common",
                "the prefix hit rate: shared tokens count once, so this is 'at least'",
            ),
        ),
        facts,
    )


def _caps(q: Quantities) -> list[int]:
    fact = q.fact("client_caps")
    if fact is not None:
        values = fact.value if isinstance(fact.value, tuple) else (fact.value,)
        return [int(v) for v in values if isinstance(v, int | float)]
    clients = q.number("clients")
    return [int(clients)] if clients else []


def _flat_counter(q: Quantities) -> tuple[Proof, ...]:
    p = q.preemptions
    if not p.some:
        return ()
    return (
        Proof(f"Preemptions so far: {p.text()} ({p.how})", {"preemptions": p.low}, p.lines),
    )


def find_not_kv(q: Quantities) -> Finding | None:
    """A symptom, and a pool that had room all the time."""
    series = q.main
    if series is None or q.max_usage is None or q.max_usage >= FREE_FRAC:
        return None
    symptom = _symptom(q)
    if symptom is None:
        return None
    what, proofs, steps = symptom
    held = q.held
    text = f"usage was never above {percent(q.max_usage)}"
    if held is not None:
        text += f" with {held.running} running" + (
            f" of {held.tokens:,.0f} tokens each" if held.tokens else ""
        )
        text += f"; {int(1 / held.frac)} would fit at that length"
    top = int(np.nanargmax(series.usage))
    resumed = q.evidence.all_notices("resume")
    inferred: tuple[str, ...] = ()
    if resumed:
        inferred = (
            f"{times(len(resumed), 'request')} came back from preemption although usage is sampled at most at {percent(q.max_usage)}: "
            "between two samples, or another policy; the cause is unknown",
        )
    return Finding(
        "NOT_KV",
        "medium",
        f"Not KV: {text}, and {what}.",
        (
            Proof(
                text[0].upper() + text[1:], {"max_usage_frac": q.max_usage}, series.lines(top)
            ),
            *proofs,
            *_restored(q),
        ),
        steps,
        ("gpu_memory_utilization, max_num_seqs, fp8 KV: the pool has room",),
        inferred,
        (
            Missing(
                "what it waits for", "a stack dump of the engine and the connector's own log"
            ),
        ),
    )


def _symptom(q: Quantities) -> tuple[str, tuple[Proof, ...], tuple[Step, ...]] | None:
    series = q.main
    if series is None:
        return None
    silent = [g for g in q.gaps if g.after is None]
    other = (
        "connector"
        if q.evidence.all_notices("connector", "cannot_store") or _has_connector(q)
        else "engine"
    )
    look = (
        Step(
            f"look at the {other}: a stack dump, its log around the last statistics",
            "names what it waits for",
        ),
    )
    if silent or (q.silent_end and series.running[-1] > 0):
        gap = silent[-1] if silent else None
        text = (
            f"statistics stop for {gap.length_s:.0f} s while the pool has room"
            if gap
            else "statistics stop while the pool has room"
        )
        lines = series.lines(gap.before if gap else len(series) - 1)
        return (
            text,
            (
                Proof(
                    text[0].upper() + text[1:],
                    {"gap_s": round(gap.length_s) if gap else None},
                    lines,
                ),
            ),
            look,
        )
    deferred = series.col("num_deferred")
    if np.nansum(deferred) and np.nanmax(series.waiting - np.nan_to_num(deferred)) <= 0:
        most = int(np.nanmax(deferred))
        text = f"all that wait ({most}) are deferred: adapter, grammar or KV on its way"
        return (
            text,
            (Proof(text, {"deferred": most}, series.lines(int(np.nanargmax(deferred)))),),
            look,
        )
    waiting = series.waiting[np.isfinite(series.waiting)]
    if len(waiting) and np.median(waiting) > 0:
        text = f"{np.median(waiting):.0f} wait although there is room"
        return (
            text,
            (
                Proof(
                    text[0].upper() + text[1:],
                    {"waiting": float(np.median(waiting))},
                    series.lines(len(series) - 1),
                ),
            ),
            look,
        )
    slow = _slowdown(q)
    if slow is not None:
        return slow
    if q.evidence.all_notices("out_of_memory"):
        text = "the device ran out of memory outside the pool"
        step = Step(
            "a lower gpu_memory_utilization, or a smaller max_num_batched_tokens",
            "leaves room for activations",
        )
        return (
            text,
            (
                Proof(
                    text, {}, tuple(n.at for n in q.evidence.all_notices("out_of_memory")[:2])
                ),
            ),
            (step,),
        )
    return None


def find_device_memory(q: Quantities) -> Finding | None:
    """The device ran out of memory outside the pool, and no sample shows a full pool."""
    said = q.evidence.all_notices("out_of_memory")
    if not said or q.main is not None:
        return None
    return Finding(
        "NOT_KV",
        "medium",
        "Not KV: the device ran out of memory outside the pool, which is set aside at the start.",
        (
            Proof(
                str(said[0].values.get("what", said[0].at.text))[:200],
                {},
                tuple(n.at for n in said[:2]),
            ),
        ),
        (
            Step(
                "a lower gpu_memory_utilization (a smaller pool), or a smaller max_num_batched_tokens",
                "leaves room for activations and graphs",
            ),
        ),
        ("a larger pool: it takes what is missing outside",),
        (),
        (Missing("what ran then", "statistics lines before the error"),),
    )


def _has_connector(q: Quantities) -> bool:
    text = q.evidence.family.lower()
    return any(w in text for w in ("connector", "lmcache", "rust", "nixl", "mooncake"))


def _slowdown(q: Quantities) -> tuple[str, tuple[Proof, ...], tuple[Step, ...]] | None:
    """Generation a running request that falls to a third or less with room in the pool."""
    series = q.main
    if series is None:
        return None
    at = series.valid(series.generation, series.running)
    at = at[series.running[at] > 0]
    if len(at) < 4:
        return None
    each = series.generation[at] / series.running[at]
    half = len(at) // 2
    early, late = float(np.median(each[:half])), float(np.median(each[half:]))
    if early < 3 * late or late <= 0:
        return None
    text = f"a request's speed fell from {early:.1f} to {late:.1f} tokens/s"
    proof = Proof(
        text[0].upper() + text[1:],
        {"before": early, "after": late},
        series.lines(int(at[0]), int(at[-1])),
    )
    step = Step(
        "look at compute: batch size, prefill in the same steps, clocks, other tenants",
        "names what takes the time",
    )
    return text, (proof,), (step,)


def _restored(q: Quantities) -> tuple[Proof, ...]:
    """What a connector gave back to resumed requests."""
    found = []
    totals = {
        str(n.values.get("request")): n.values.get("total_tokens", n.values.get("need_tokens"))
        for n in q.evidence.all_notices("connector")
    }
    for notice in q.evidence.all_notices("resume"):
        had = notice.values.get("computed_tokens")
        request = str(notice.values.get("request"))
        total = totals.get(request)
        if isinstance(had, int | float) and isinstance(total, int | float) and total >= had:
            found.append(
                Proof(
                    f"A preempted request came back with {had:,} of {total:,} tokens from the cache: it cost {total - had:,} tokens, "
                    f"{percent(1 - had / total, 0)}",
                    {
                        "computed_tokens": had,
                        "total_tokens": total,
                        "recomputed_tokens": total - had,
                    },
                    (notice.at,),
                )
            )
    return tuple(found)


def exclude_not_kv(q: Quantities) -> str | None:
    if q.max_usage is not None and q.max_usage >= FREE_FRAC:
        return f"usage reaches {percent(q.max_usage)}"
    return None


def find_no_pressure(q: Quantities) -> Finding | None:
    series = q.main
    if series is None or q.max_usage is None or q.silent_end or not q.has("waiting"):
        return None
    waiting = series.waiting[np.isfinite(series.waiting)]
    if (len(waiting) and waiting[-1] > 0) or q.preemptions.some:
        return None
    if q.hidden is not None or q.starved is not None or q.full_frac > 0.5:
        return None
    wall = q.wall if q.full_sample is None else None
    last = len(series) - 1
    text = f"usage is at most {percent(q.max_usage)} and nobody waits"
    steps: list[Step] = []
    inferred: tuple[str, ...] = ()
    ahead = (
        wall is not None
        and wall.at_s >= float(np.nanmax(series.t_s)) - 1
        and q.max_usage >= 0.3
    )
    if ahead and wall is not None:
        soon = wall.at_s - float(np.nanmax(series.t_s))
        text += (
            f"; at this rate the pool is full in {soon:.0f} s, at about {q.clock(wall.at_s)}"
        )
        inferred = (f"when it is full: {wall.how}",)
        steps += present(cap_running(q), suggested_memory(q))
    return Finding(
        "NO_PRESSURE_YET",
        "medium" if ahead and q.max_usage >= 0.9 else "low",
        text[0].upper() + text[1:] + ".",
        (
            Proof(
                text[0].upper() + text[1:], {"max_usage_frac": q.max_usage}, series.lines(last)
            ),
        ),
        tuple(steps) or (Step("nothing", "there is room"),),
        (),
        inferred,
        (Missing("how long the requests grow", "their max output tokens"),) if ahead else (),
    )


def find_insufficient(q: Quantities) -> Finding | None:
    """What is missing, and what can be said all the same."""
    missing = []
    if q.main is None:
        missing.append(
            Missing(
                "what ran, waited and was used",
                "three statistics lines, or two scrapes of /metrics",
            )
        )
    else:
        for kind, line in (
            ("usage", "lines with 'KV cache usage' (or sglang:token_usage)"),
            ("running", "lines with Running"),
            ("waiting", "lines with Waiting"),
        ):
            if not q.has(kind):
                missing.append(Missing(kind, line))
    if q.full_sample is not None and q.preemptions.kind != KNOWN:
        missing.insert(0, COUNTER)
    if not q.has("pool"):
        missing.append(
            Missing(
                "the pool's size",
                "the start-up line 'GPU KV cache size', '# GPU blocks' or max_total_num_tokens=",
            )
        )
    if not q.has("lengths"):
        missing.append(
            Missing(
                "lengths and arrivals of requests",
                "prompt and max output tokens, and how many are sent at once",
            )
        )
    said = ""
    if q.pool.tokens:
        said = f" The pool holds {q.pool.tokens:,} tokens"
        if q.fits.value is not None:
            said += f", {q.fits.value} requests at {q.fits.basis}"
        said += "; whether it will preempt needs lengths and arrivals."
    first = missing[0] if missing else Missing("more samples", "the same for a longer time")
    proofs: tuple[Proof, ...] = ()
    limit = q.number("max_model_len")
    if limit and q.pool.tokens and limit > q.pool.tokens:
        text = f"max_model_len {limit:,.0f} is {limit / q.pool.tokens:.2f} x the pool: a request between the two would wait for ever"
        proofs += (
            Proof(
                text,
                {"times": round(limit / q.pool.tokens, 2)},
                q.lines("max_model_len", "pool_tokens"),
            ),
        )
    if q.pool.tokens:
        text = f"{q.pool.tokens:,} tokens: {q.pool.how}" + (
            "; " + "; ".join(q.pool.checks) if q.pool.checks else ""
        )
        proofs += (
            Proof(
                text, {"pool_tokens": q.pool.tokens, "pool_blocks": q.pool.blocks}, q.pool.lines
            ),
        )
    return Finding(
        "INSUFFICIENT_EVIDENCE",
        "low",
        f"This does not carry a verdict: {first.what} is not known.{said}",
        proofs,
        (
            Step(f"add {first.settle}", "then the question can be answered"),
            *present(suggested_memory(q)),
        ),
        (),
        (),
        tuple(missing) or (first,),
    )


RULES = (
    Rule(
        "size-misleads",
        "HYBRID_OVERHEAD",
        75,
        ("pool",),
        find_hybrid,
        "Hybrid models pay state blocks a request and print a derived size: what a request holds, or how usage grows, shows "
        "the usable pool.",
        "vllm#54458, #40691, vllm PR#38364, sglang#34676",
        None,
        ("NO_PRESSURE_YET", "HOL_CAPACITY", "SLOT_LIMIT"),
    ),
    Rule(
        "other-pool-full",
        "HYBRID_OVERHEAD",
        74,
        ("usage",),
        find_other_pool,
        "Hybrid models have a pool of windows or states beside the one of tokens; the fullest binds, whatever the other says.",
        "sglang#34676, #30160",
        None,
        (
            "NO_PRESSURE_YET",
            "CAPACITY_QUEUE",
            "HOL_CAPACITY",
            "SLOT_LIMIT",
            "RESERVATION_BLOCKED",
            "NOT_KV",
        ),
    ),
    Rule(
        "size-is-derived",
        "HYBRID_OVERHEAD",
        115,
        ("pool",),
        find_derived_size,
        "For hybrid models the printed tokens are concurrency x max_model_len and blocks are pages of several layer groups: neither is "
        "what a request can use.",
        "vllm#40691, #52520, vllm PR#38364",
    ),
    Rule(
        "more-sent-than-fits",
        "NO_PRESSURE_YET",
        78,
        ("pool", "lengths"),
        find_forecast_from_notes,
        "Caps of several proxies before one engine add up; what is sent at once over what fits tells what can come.",
        "Tanguille/cluster PR#4578",
        None,
        ("CAPACITY_PREEMPTION", "INSUFFICIENT_EVIDENCE"),
    ),
    Rule(
        "room-and-a-symptom",
        "NOT_KV",
        120,
        ("usage",),
        find_not_kv,
        "A stop, a slowdown or a queue while the pool had room all the time excludes KV.",
        "dynamo#4087, vllm#23444, sglang#26248",
        exclude_not_kv,
        ("NO_PRESSURE_YET",),
    ),
    Rule(
        "device-memory",
        "NOT_KV",
        119,
        ("notices",),
        find_device_memory,
        "A failed allocation of the device is memory beside the pool; the pool itself never allocates while it runs.",
        "vllm#57475, #19186",
        None,
        ("NO_PRESSURE_YET",),
    ),
    Rule(
        "room-and-calm",
        "NO_PRESSURE_YET",
        130,
        ("usage",),
        find_no_pressure,
        "Nobody waits, nothing was evicted and the pool has room: growth tells when it will not.",
        "llm-d-autoscaling#662",
        None,
    ),
    Rule(
        "too-little",
        "INSUFFICIENT_EVIDENCE",
        200,
        (),
        find_insufficient,
        "Without usage or queues there is no verdict, and a pool without lengths is only a capacity.",
        "user needs, question 14",
    ),
)
