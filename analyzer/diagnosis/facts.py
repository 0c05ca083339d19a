"""The facts of a diagnosis: what is known of the server and its samples, by name, for JSON and the page.

It copies quantities and counts; it judges nothing. Times are as the source writes them.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

from analyzer.diagnosis.findings import INFERRED, KNOWN, UNKNOWN
from analyzer.diagnosis.growth import first_move_s
from analyzer.diagnosis.pool import prefill_estimate
from analyzer.diagnosis.preempting import merge_copies
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.series import Series


def gather_facts(q: Quantities) -> dict[str, Any]:
    """Facts by name; what is not known is None. Lists over ranks are in the order of ranks."""
    facts: dict[str, Any] = {
        "engine": q.evidence.engine,
        "log_family": q.evidence.family,
        "version": _plain(q, "version"),
        "model": _plain(q, "model"),
        **_pool(q),
        **_stated(q),
        **_samples(q),
        **_preemptions(q),
        **_capacity(q),
        **_wall(q),
        **_silence(q),
        **_ranks(q),
        **_notices(q),
        **_kind_of_steps(q),
    }
    return facts


def _plain(q: Quantities, name: str) -> Any:
    fact = q.fact(name)
    return fact.value if fact is not None else None


def _pool(q: Quantities) -> dict[str, Any]:
    pool, slope, stairs = q.pool, q.slope, q.stairs
    kv = q.number("kv_bytes")
    prefill = prefill_estimate(q.main)
    found: dict[str, Any] = {
        "pool_blocks": pool.blocks,
        "usable_blocks": pool.usable_blocks,
        "pool_tokens": pool.tokens,
        "block_size": pool.block_size,
        "block_size_kind": pool.block_size_kind,
        "pool_kind": pool.kind,
        "pool_how": pool.how,
        "pool_checks": list(pool.checks),
        "pool_disputes": list(pool.disputes),
        "cpu_blocks": q.number("host_pool_blocks"),
        "host_pool_blocks": q.number("host_pool_blocks"),
        "pool_tokens_estimated_from_slope": [round(slope.low), round(slope.high)]
        if slope and not stairs
        else None,
        "kv_gib": round(kv / 2**30, 2) if kv else None,
        "bytes_per_block": round(kv / pool.blocks) if kv and pool.blocks else None,
        "bytes_per_token": round(kv / pool.tokens) if kv and pool.tokens else None,
        "null_blocks": _plain(q, "null_blocks"),
        "state_blocks": _plain(q, "state_blocks"),
    }
    if found["cpu_blocks"] is not None:
        found["cpu_blocks"] = found["host_pool_blocks"] = int(found["cpu_blocks"])
    if stairs is not None:
        found |= {
            "usage_levels": [round(100 * u, 1) for u in stairs.levels],
            "step_pct": round(100 * stairs.step_frac, 2),
            "pool_blocks_estimate": [round(stairs.low), round(stairs.high)],
            "pool_tokens_estimate": [round(pool.low_tokens), round(pool.high_tokens)]
            if pool.low_tokens and pool.high_tokens
            else None,
        }
    if prefill is not None:
        found["pool_tokens_estimate"] = [round(prefill[1]), round(prefill[2])]
    most = q.number("kv_bytes_available")
    if most and kv and most > kv:
        found |= {
            "max_kv_gib": round(most / 2**30, 2),
            "gain_pct": round(100 * (most / kv - 1), 1),
            "pool_tokens_at_max": round(pool.tokens * most / kv) if pool.tokens else None,
        }
    return found


def _stated(q: Quantities) -> dict[str, Any]:
    names = (
        "max_model_len", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "clients",
        "sequences_per_request", "prompt_tokens", "output_tokens",
    )  # fmt: skip
    policy = q.word("preemption_mode") or ("swap" if q.evidence.all_notices("swap_out") else "")
    policy = policy or ("recompute" if q.is_v1 else "")
    starts = _plain(q, "starts")
    return {
        **{n: _plain(q, n) for n in names},
        "policy": policy or q.word("policy") or None,
        "starts": starts
        if starts is not None
        else (True if q.pool.blocks and q.main is None else None),
    }


def _series_range(values: np.ndarray) -> list[float] | None:
    known = values[np.isfinite(values)]
    return [float(known.min()), float(known.max())] if len(known) else None


def _whole(values: list[float] | None) -> list[int] | None:
    return [int(v) for v in values] if values is not None else None


def _samples(q: Quantities) -> dict[str, Any]:
    count = sum(len(s) for s in q.ranks)
    found: dict[str, Any] = {"samples": count, "records": count}
    series = q.main
    if series is None:
        return found
    usage = _series_range(series.usage)
    waiting = series.waiting[np.isfinite(series.waiting)]
    times = series.t_s[np.isfinite(series.t_s)]
    host, swapped = series.col("host_usage_frac"), series.swapped
    found |= {
        "first": q.clock(float(times[0])) if len(times) else None,
        "last": q.clock(float(times[-1])) if len(times) else None,
        "period_s": q.period_s,
        "running_range": _whole(_series_range(series.running)),
        "waiting_range": _whole(_series_range(series.waiting)),
        "waiting_first_last": [int(waiting[0]), int(waiting[-1])] if len(waiting) else None,
        "queue_first_last": [int(waiting[0]), int(waiting[-1])] if len(waiting) else None,
        "usage_range": [round(100 * u, 2) for u in usage] if usage else None,
        "usage_max": round(100 * usage[1], 2) if usage else None,
        "swapped_max": int(np.nanmax(swapped)) if np.isfinite(swapped).any() else None,
        "cpu_kv_usage_max": round(100 * float(np.nanmax(host)), 2)
        if np.isfinite(host).any()
        else None,
        "scheduled_max": int(np.nanmax(series.running))
        if np.isfinite(series.running).any()
        else None,
        "queue_growth_per_s": q.waiting_rate,
    }
    if series.has("used_blocks"):
        found["used_blocks_peak"] = int(np.nanmax(series.col("used_blocks")))
    if (len(series) <= 20 and series.rank is None) or (len(q.ranks) == 1 and len(series) <= 20):
        found["usage"] = [round(100 * u, 2) if np.isfinite(u) else None for u in series.usage]
        found["running"] = [int(r) if np.isfinite(r) else None for r in series.running]
        found["waiting"] = [int(w) if np.isfinite(w) else None for w in series.waiting]
    return found


def _preemptions(q: Quantities) -> dict[str, Any]:
    p = q.preemptions
    rate = [round(p.per_s[0], 4), round(p.per_s[1], 4)] if p.per_s else None
    return {
        "preemptions": {
            "value": p.value if p.kind != UNKNOWN else None,
            "low": p.low,
            "high": p.high,
            "kind": p.kind,
            "how": p.how,
            "since_start": p.since_start,
        },
        "preemptions_min": p.low,
        "preemptions_max": p.high,
        "preemptions_logged": p.logged,
        "preemptions_first": q.clock(p.first_s),
        "first_preemption": q.clock(p.first_s),
        "preemption_rate_per_s": rate,
        "recomputed_tokens": {
            "low": p.recomputed_low,
            "high": p.recomputed_high,
            "kind": p.recomputed_kind,
        },
        "preemptions_by_rank": p.by_rank or None,
        "preemptions_max_busiest": p.busiest[1] if p.busiest else None,
        "engines_with_preemption": list(p.processes) if p.processes else None,
        "preemption_steps": list(p.steps) or None,
    }


def _capacity(q: Quantities) -> dict[str, Any]:
    held, fits = q.held, q.fits
    return {
        "safe_concurrency": fits.value,
        "safe_concurrency_basis": fits.basis,
        "safe_concurrency_at": fits.at,
        "held_tokens_per_running": round(held.tokens)
        if held is not None and held.tokens
        else None,
        "held_share_per_running": round(held.frac, 5) if held is not None else None,
        "blocks_per_request": q.lengths.blocks(q.pool),
        "lengths_from": q.lengths.how or None,
    }


def _wall(q: Quantities) -> dict[str, Any]:
    series, wall = q.main, q.wall
    eta = q.clock(wall.at_s) if wall is not None else None
    at, kind = _first_full(q, eta)
    found: dict[str, Any] = {
        "first_full_at": at,
        "first_full_kind": kind,
        "eta_full": eta,
        "eta_full_range": [q.clock(wall.low_s), q.clock(wall.high_s)]
        if wall is not None
        else None,
        "eta_full_how": wall.how if wall is not None else None,
    }
    slope = q.slope
    if slope is not None and series is not None:
        rates = series.generation[slope.first : slope.last + 1]
        rates = rates[np.isfinite(rates)]
        found["growth_tokens_per_s"] = [
            round(float(rates.min()), 1),
            round(float(rates.max()), 1),
        ]
    return found


def _first_full(q: Quantities, eta: str | None) -> tuple[str | None, str]:
    """When the pool was full, and whether that is known: the first victim that has a time, a first sample
    that is full already, the moment that growth gives between samples, or the first full sample."""
    series, full, p = q.main, q.full_sample, q.preemptions
    if p.first_s is not None and p.kind == KNOWN and p.logged:
        return q.clock(p.first_s), KNOWN
    seen = moved = None
    if series is not None and full is not None:
        seen = q.clock(float(series.t_s[full])) or f"sample {full}"
    if series is not None and full != 0:
        moved = first_move_s(series)
        if moved is not None and full is not None and not moved < series.t_s[full]:
            moved = None  # the samples saw it sooner
    if moved is not None and (q.wall is None or eta is None or q.wall.at_s > moved):
        return q.clock(moved), INFERRED  # a counter that moved says that it was full by then
    if full == 0 or eta is None or q.wall is None or series is None:
        return seen, KNOWN if seen else UNKNOWN
    if full is not None and q.wall.at_s > series.t_s[full]:
        return seen, KNOWN  # growth says later than what was seen
    soon = q.wall.at_s - float(np.nanmax(series.t_s)) <= 3 * (q.period_s or 0.0)
    return (eta, INFERRED) if seen or soon or moved is not None else (None, UNKNOWN)


def _silence(q: Quantities) -> dict[str, Any]:
    gaps = [
        {
            "from": q.clock(g.from_s),
            "to": q.clock(g.to_s),
            "length_s": round(g.length_s, 3),
            "ended_by": g.ended_by.kind
            if g.ended_by is not None
            else "sample"
            if g.after is not None
            else None,
        }
        for g in q.gaps
    ]
    longest = max((g.length_s for g in q.gaps), default=None)
    return {"stats_gaps": gaps, "log_gap_s": round(longest) if longest else None}


def _ranks(q: Quantities) -> dict[str, Any]:
    ranks = [s for s in q.ranks if s.rank is not None]
    if len(ranks) < 2:
        return {}
    i = q.imbalance
    ids = [int(s.rank or 0) for s in ranks]
    found: dict[str, Any] = {
        "engines": ids,
        "dp_ranks": ids,
        "snapshots": max(len(s) for s in ranks),
        "per_rank": {r: _one_rank(s, q) for r, s in zip(ids, ranks, strict=True)},
    }
    if i is not None:
        single = found["snapshots"] == 1
        found |= {
            "running": i.running if single else [list(r) for r in i.running_by_snapshot],
            "waiting": i.waiting if single else [list(r) for r in i.waiting_by_snapshot],
            "queue": i.waiting,
            "usage_last": {r: round(u, 4) for r, u in i.usage.items()},
            "share_of_running_on_busiest": [round(s, 2) for s in i.shares],
            "idle_engines_last": list(i.idle),
            "pool_tokens_per_rank": q.pool.tokens,
        }
    return found


def _one_rank(series: Series, q: Quantities) -> dict[str, Any]:
    def last(values: np.ndarray) -> float | None:
        known = values[np.isfinite(values)]
        return round(float(known[-1]), 4) if len(known) else None

    return {
        "running": last(series.running),
        "waiting": last(series.waiting),
        "usage": last(series.usage),
        "generation_per_s": last(series.generation),
        "preemptions": q.preemptions.by_rank.get(int(series.rank or 0)),
        "preemptions_total": last(series.col("preemptions_total")),
    }


def _notices(q: Quantities) -> dict[str, Any]:
    e = q.evidence
    retracts = merge_copies(e.all_notices("retract"))
    resumed = e.all_notices("resume")
    outs, ins = merge_copies(e.all_notices("swap_out")), merge_copies(e.all_notices("swap_in"))
    found: dict[str, Any] = {
        "warnings": len(e.all_notices("preemption")),
        "warnings_printed": len(e.all_notices("preemption")),
        "oversize_rejected": len(e.all_notices("request_refused")),
        "retract_events": len(retracts),
        "retracted_requests": sum(n.count or 1 for n in retracts),
        "resumed_events": len(resumed),
        "swap_out_events": len(outs),
        "swap_in_events": len(ins),
    }
    times = [n.t_s for n in retracts if n.t_s is not None]
    if len(times) > 1:
        found["intervals_s"] = [round(b - a, 3) for a, b in pairwise(times)]
    if outs:
        found |= {
            "victim": outs[0].values.get("request"),
            "victim_blocks": outs[0].values.get("blocks"),
        }
        if outs[0].t_s is not None:
            found["first_swap_out"] = q.clock(outs[0].t_s)
        if ins and outs[0].t_s is not None and ins[0].t_s is not None:
            found["swapped_s"] = round(ins[0].t_s - outs[0].t_s, 3)
        found["blocks_moved_out_in"] = [
            outs[0].values.get("blocks"),
            ins[0].values.get("blocks") if ins else None,
        ]
    restored = {
        str(n.values.get("request")): n.values["computed_tokens"]
        for n in resumed
        if "computed_tokens" in n.values
    }
    if restored:
        found["resumed_computed_tokens"] = restored
    fatal = e.all_notices("fatal", "out_of_host_blocks")
    if fatal:
        found["fatal"] = str(fatal[0].values.get("what", fatal[0].at.text))[:200]
    return found


def _kind_of_steps(q: Quantities) -> dict[str, Any]:
    series = q.main
    if series is None or not series.has("step"):
        return {}
    steps = series.col("step")
    steps = steps[np.isfinite(steps)]
    found: dict[str, Any] = {
        "steps": len(steps),
        "first_iteration": int(steps[0]),
        "last_iteration": int(steps[-1]),
    }
    if series.per_step and q.preemptions.steps:
        first = q.preemptions.steps[0]
        found["first_preemption_step"] = first
        found["preemption_iterations"] = list(q.preemptions.steps)
        context = np.nan_to_num(series.col("num_context_requests"))
        tokens = np.nan_to_num(series.col("context_tokens"))
        all_steps = series.col("step")
        later = np.flatnonzero((all_steps > first) & (context > 0))
        found["context_iterations_after_first_preemption"] = [
            [int(all_steps[i]), int(tokens[i])] for i in later
        ]
    return found
