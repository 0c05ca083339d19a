"""KV is not to blame, nothing is wrong yet, or the evidence carries no verdict."""

from __future__ import annotations

import numpy as np

from analyzer.diagnosis.advice import (
    costly_cap,
    present,
    small_cap,
    suggested_memory,
)
from analyzer.diagnosis.findings import KNOWN, Finding, Missing, Proof, Step
from analyzer.diagnosis.growth import FULL_FRAC
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import Rule, percent, times
from analyzer.diagnosis.rules.proofs import counter
from analyzer.diagnosis.rules.signs import FREE_FRAC, OTHER_CAUSES, ending_faults
from traces.evidence.other_software import whose

MIN_SAMPLES = 3  # fewer lines of a queue before room are little


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
        "low" if _head_unknown(q) and len(series) < MIN_SAMPLES else "medium",
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
            *_head_unknown(q),
            Missing(
                "what it waits for", "a stack dump of the engine and the connector's own log"
            ),
        ),
    )


def _head_unknown(q: Quantities) -> tuple[Missing, ...]:
    """The other reason for a queue before room: a first in the queue that is longer than what is free."""
    if not _anyone_waits(q) or q.lengths.total() is not None:
        return ()
    settle = "its prompt tokens, and the start-up line with the pool's size"
    return (Missing("whether the first that waits fits", settle),)


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
    if q.summed and len(waiting) and waiting.max() > 0:
        return None  # a rank may be full although the mean is not
    full_for_one = q.held is not None and q.held.frac * (q.held.running + 1) > 1
    if len(waiting) and np.median(waiting) > 0 and not full_for_one:
        if q.lengths.prompt is not None and q.pool.tokens is None:
            return None  # whether the prompt that is stated fits is not known
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
    slow = _slowdown(q) or _crawl(q)
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


def find_refused(q: Quantities) -> Finding | None:
    """Requests were refused for their length, and nothing else is wrong."""
    refused = [n for n in q.evidence.all_notices("request_refused") if not n.values.get("why")]
    calm = q.main is None or ((q.max_usage or 0.0) < FREE_FRAC and not _anyone_waits(q))
    if not refused or not calm or q.preemptions.some:
        return None
    first = refused[0]
    asked = first.values.get("prompt_tokens") or first.values.get("asked_tokens")
    limit = first.values.get("limit_tokens")
    said = (
        f" ({asked:,} tokens against a limit of {limit:,})"
        if isinstance(asked, int) and isinstance(limit, int)
        else ""
    )
    text = f"{times(len(refused), 'request')} refused for the length{said}, before any block was taken"
    knob = "--max-model-len"
    if isinstance(limit, int) and (q.number("max_model_len") or limit + 1) > limit:
        knob = "--max-num-batched-tokens, or chunked prefill (where the limit is that of a step), or --max-model-len"
    return Finding(
        "NOT_KV",
        "medium",
        f"Not KV: {text}.",
        (
            Proof(
                text[0].upper() + text[1:],
                {"refused": len(refused), "limit_tokens": limit},  # type: ignore[dict-item]  # an integer, as grammars read it
                tuple(n.at for n in refused[:3]),
            ),
        ),
        (
            Step(
                f"a higher {knob}, or shorter prompts",
                "the request is taken",
            ),
        ),
        ("gpu_memory_utilization, swap space: no block was asked for",),
        (),
        ()
        if q.main is not None
        else (Missing("whether others wait", "statistics lines around the refusal"),),
    )


def _anyone_waits(q: Quantities) -> bool:
    waiting = q.main.waiting if q.main is not None else np.array([])
    return bool(np.nansum(waiting) > 0)


def find_device_memory(q: Quantities) -> Finding | None:
    """The device ran out of memory outside the pool, which is set aside at the start: the last that was said,
    or what ended the engine."""
    said = q.evidence.all_notices("out_of_memory")
    if not said or (q.main is not None and not ending_faults(q)):
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
        ()
        if q.main is not None
        else (Missing("what ran then", "statistics lines before the error"),),
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


CRAWL_PER_S = 1.0  # output tokens a second of one request; people read five times as fast


def _crawl(q: Quantities) -> tuple[str, tuple[Proof, ...], tuple[Step, ...]] | None:
    """Requests that get less than a token a second in every sample, while no prompt is computed."""
    series = q.main
    if series is None or series.per_step:
        return None
    at = series.valid(series.generation, series.running)
    at = at[(series.running[at] > 0) & ~(series.prompt[at] > 0) & (series.generation[at] > 0)]
    each = series.generation[at] / series.running[at]
    if len(at) < 3 or each.max() >= CRAWL_PER_S:
        return None
    text = (
        f"each request gets {float(np.median(each)):.2f} tokens/s while no prompt is computed"
    )
    proof = Proof(
        text[0].upper() + text[1:],
        {"tokens_per_s_each": round(float(np.median(each)), 3)},
        series.lines(int(at[0]), int(at[-1])),
    )
    step = Step(
        "look at the step itself: weights offloaded to the host, links between devices, eager mode, clocks",
        "names what takes the time of a step",
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
    if (len(waiting) and waiting[-1] > 0) or (q.preemptions.some and not _only_resumed(q)):
        return None
    known = series.usage[np.isfinite(series.usage)]
    if len(known) and known[-1] >= FULL_FRAC:
        return None  # full now: the next block decides
    if q.hidden is not None or q.starved is not None or q.full_frac > 0.5:
        return None
    wall = q.wall if q.full_sample is None else None
    last = len(series) - 1
    text = f"usage is at most {percent(q.max_usage)} and nobody waits"
    steps: list[Step] = []
    was_full: tuple[Missing, ...] = ()
    if q.max_usage >= FULL_FRAC and len(known):
        text = f"usage reached {percent(q.max_usage)}, is {percent(float(known[-1]))} now, and nobody waits"
        steps += present(small_cap(q))
        was_full = (
            Missing(
                "whether somebody was evicted at the top",
                "the counter of preemptions, or lines of that time",
            ),
        )
    inferred: tuple[str, ...] = ()
    if _only_resumed(q):
        text += ", though a request came back from preemption: its cause is unknown"
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
        steps += present(small_cap(q), suggested_memory(q))
    return Finding(
        "NO_PRESSURE_YET",
        "medium" if ahead and q.max_usage >= 0.9 else "low",
        text[0].upper() + text[1:] + ".",
        (
            Proof(
                text[0].upper() + text[1:], {"max_usage_frac": q.max_usage}, series.lines(last)
            ),
        ),
        (
            *(steps or [Step("nothing", "there is room now" if was_full else "there is room")]),
            *(present(costly_cap(q)) if was_full or ahead else ()),
        ),
        (),
        inferred,
        (
            Missing("how long the requests grow", "their max output tokens"),
            Missing(
                "what came after the last line",
                "the lines that follow, or that none followed: statistics that stop at the wall are a fault",
            ),
        )
        if ahead
        else was_full,
    )


def _as_measured(q: Quantities) -> str:
    """What a client's times say, where no server says anything."""
    ttft = q.number("ttft_p50_s") or q.number("ttft_mean_s")
    if q.main is not None or ttft is None:
        return ""
    late = q.number("ttft_p99_s")
    spread = f", in one of a hundred {late:,.2f} s" if late else ""
    return f" A client waited {ttft:,.2f} s for its first token{spread}: its times say how long, not why."


LONG_GAP_S = 1.0


def _token_gap(q: Quantities) -> tuple[Proof, ...]:
    """The longest gap between two tokens of a request, where it is far above the usual one."""
    most, usual = q.number("itl_max_s") or q.number("itl_p99_s"), q.number("itl_p50_s")
    if q.main is not None or not most or not usual or most < max(LONG_GAP_S, 20 * usual):
        return ()
    text = (
        f"A request stood still for {most:,.2f} s between two tokens, usually {usual:,.3f} s: a preempted request looks "
        "like that, and so does one beside a long prompt"
    )
    return (Proof(text, {"gap_s": most, "usual_s": usual}, q.lines("itl_max_s", "itl_p99_s")),)


def _only_resumed(q: Quantities) -> bool:
    """Whether all that says of a preemption is a request that came back, with room in every sample."""
    said = q.evidence.all_notices("preemption", "retract", "swap_out")
    back = q.evidence.all_notices("resume")
    return bool(back) and not said and (q.max_usage or 1.0) < FREE_FRAC


def find_insufficient(q: Quantities) -> Finding | None:
    """What is missing, and what can be said all the same."""
    missing = []
    if q.main is None and q.sweeps:
        missing.append(
            Missing(
                "what the server ran, queued and used",
                "the server's log of that time, or its usage and preemptions before and after each run",
            )
        )
    elif q.main is None:
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
    if q.summed:
        settle = "the same lines without --aggregate-engine-logging, or /metrics (label engine)"
        missing.insert(0, Missing("the load of each rank (the usage is a mean)", settle))
    if q.full_sample is not None and q.preemptions.kind != KNOWN:
        missing.insert(0, counter(q))
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
    said += _as_measured(q)
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
    proofs += _token_gap(q)
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
        f"This does not carry a verdict: {_of_others(q) or f'{first.what} is not known'}.{said}",
        proofs,
        (
            Step(f"add {first.settle}", "then the question can be answered"),
            *present(suggested_memory(q)),
        ),
        (),
        (),
        tuple(missing) or (first,),
    )


def _of_others(q: Quantities) -> str | None:
    """That nothing here was written by an engine that is known, and whose it looks like."""
    sources = q.evidence.sources
    if not sources or any(s.recognised for s in sources) or q.evidence.facts:
        return None
    software = whose(line for s in sources for line in s.skipped_examples)
    looks = f"; they look like those of {software}" if software else ""
    return f"none of the lines is of an engine whose log or metrics are known here{looks}"


RULES = (
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
        "refused-for-length",
        "NOT_KV",
        121,
        ("notices",),
        find_refused,
        "A request that is longer than a limit is refused before it takes a block; alone it is no sign of pressure.",
        "vllm#13209, #13370, #525",
        None,
        ("NO_PRESSURE_YET",),
    ),
    Rule(
        "device-memory",
        "NOT_KV",
        29,
        ("notices",),
        find_device_memory,
        "A failed allocation of the device is memory beside the pool; the pool itself never allocates while it runs.",
        "vllm#57475, #19186",
        None,
        (*OTHER_CAUSES, "ENGINE_BUG"),
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
