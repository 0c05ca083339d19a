"""State blocks, other pools and derived sizes of hybrid models: the printed size misleads."""

from __future__ import annotations

import numpy as np

from analyzer.diagnosis.findings import Finding, Missing, Proof, Step
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import Rule, percent, times
from analyzer.diagnosis.rules.signs import FREE_FRAC


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
    doubt = "" if most == limit else ", unless requests are longer than that"
    return Finding(
        "HYBRID_OVERHEAD",
        "medium",
        f"Each running request takes {held.tokens:,.0f} tokens of the pool although it has at most {most:,.0f}: "
        f"{extra:,.0f} are state or alignment{doubt}.",
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
        {
            "fixed_tokens_per_request": round(extra),
            "safe_concurrency": int((pool.tokens or 0) / held.tokens),
        },
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
    size = q.number("state_slots" if name == "mamba" else "window_pool_tokens")
    holds = f" of {size:,.0f}" if size else ""
    knob = (
        "--max-mamba-cache-size or a larger --mamba-full-memory-ratio"
        if name == "mamba"
        else "a larger --swa-full-tokens-ratio"
    )
    return Finding(
        "HYBRID_OVERHEAD",
        "high" if series.waiting[index] > 0 else "medium",
        f"The pool of {what}{holds and f' ({size:,.0f})'} is {percent(usage)} full while tokens are at {percent(tokens)}: it binds, the printed token usage misleads.",
        (
            Proof(
                f"{name} usage {percent(usage)}{holds}, token usage {percent(tokens)}, {series.running[index]:.0f} running",
                {"other_usage_frac": usage, "usage_frac": tokens},
                series.lines(index),
            ),
        ),
        (
            Step(knob, "more requests have room for their state", {}),
            Step(
                f"at most {series.running[index]:.0f} at once",
                "what the pool of states carries; the others wait in the queue",
            ),
        ),
        ("a larger token pool: it has room",),
        (),
        (),
        {"binding_pool": name, "binding_pool_size": int(size) if size else None},
    )


def find_state_cap(q: Quantities) -> Finding | None:
    """The state slots are fewer than the requests that were to run: the engine lowered its limit."""
    slots, each, limit = (
        q.number("state_slots"),
        q.number("state_slots_per_request"),
        q.number("max_num_seqs"),
    )
    if not slots or not each or not limit:
        return None
    series = q.main
    if series is not None and np.isfinite(series.running).any():
        most = float(np.nanmax(series.running))
        waits = np.isfinite(series.waiting).any() and float(np.nanmax(series.waiting)) > 0
        if most < limit or not waits or (q.max_usage or 0.0) >= FREE_FRAC:
            return None
    return Finding(
        "HYBRID_OVERHEAD",
        "medium" if series is not None else "low",
        f"State slots bind: {slots:,.0f} slots at {each:.0f} a request let {limit:.0f} run at once, whatever tokens are free.",
        (
            Proof(
                f"{slots:,.0f} state slots / {each:.0f} a request = {slots // each:.0f}; the engine lowered its limit to {limit:.0f}",
                {"state_slots": slots, "slots_per_request": each, "max_num_seqs": limit},
                q.lines("state_slots"),
            ),
        ),
        (
            Step(
                "--max-mamba-cache-size or a larger --mamba-full-memory-ratio",
                f"{each:.0f} slots more let one more run; tokens of the pool pay for it",
                {"slots_per_request": each},
            ),
        ),
        ("--max-running-requests: the state slots bind first",),
        (),
        (),
        {"binding_pool": "mamba", "state_slots": int(slots)},
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
        "state-slots-cap",
        "HYBRID_OVERHEAD",
        73,
        (),
        find_state_cap,
        "A hybrid model has so many state slots, and each request takes several: the engine says to what it lowered its limit.",
        "sglang#33004; sglang model_runner.py",
        None,
        ("NO_PRESSURE_YET", "HOL_CAPACITY", "SLOT_LIMIT", "RESERVATION_BLOCKED", "NOT_KV"),
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
)
