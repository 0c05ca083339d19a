"""Tables of runs: which run preempts, which limit it met, and the smallest setting that does not."""

from __future__ import annotations

from typing import Any

import numpy as np

from analyzer.diagnosis.findings import Finding, Missing, Proof, Step
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import Rule, percent, times

Row = dict[str, float]
RATES = ("generation_tokens_per_s", "requests_per_s")


def find_preempting_runs(q: Quantities) -> Finding | None:
    rows = [r for r in q.sweeps if r.get("preemptions", 0) > 0]
    if not rows:
        return None
    worst = max(rows, key=lambda r: r["preemptions"])
    facts: dict[str, Any] = {}
    proofs = [_run_proof(worst, len(rows), len(q.sweeps))]
    steps = []
    pool, running = worst.get("pool_tokens"), worst.get("num_running")
    if pool and running:
        held = pool / running
        fit = int(pool / held + 1e-9)
        sent = worst.get("clients") or running + worst.get("num_waiting", 0)
        facts |= {
            "held_tokens_per_running": round(held),
            "safe_concurrency": fit - 1 if fit > 1 else fit,
            "fired_over_fit": round(sent / running, 1),
        }
        proofs.append(
            Proof(
                f"{pool:,.0f} tokens / {running:,.0f} running = {held:,.0f} tokens held by each; {sent:,.0f} sent are {sent / running:.1f} x what fits",
                {"held_tokens": round(held), "fired_over_fit": round(sent / running, 1)},
            )
        )
        steps.append(
            Step(
                f"cap what is sent at {max(fit - 1, 1)}",
                "the same throughput (the pool is full either way), 0 to few preemptions, and the queue is at the client where it is seen",
                {"clients": max(fit - 1, 1)},
            )
        )
    requests = worst.get("num_requests")
    if requests:
        facts["preemptions_per_1000_requests"] = round(
            1000 * worst["preemptions"] / requests, 1
        )
    least, step = _least_setting(q.sweeps)
    facts |= least
    calm = _largest_calm(q.sweeps)
    if calm is not None:
        name, most, rate = calm
        facts.setdefault("safe_concurrency", most)
        effect = "no preemption in the table" + (f", {rate}" if rate else "")
        steps.append(Step(f"{name} {most}", effect, {name: most}))
    each = 1000 * worst["preemptions"] / requests if requests else None
    severity = "medium" if each is not None and each < 200 else "high"
    return Finding(
        "CAPACITY_PREEMPTION",
        severity,
        f"{times(len(rows), 'run')} of {len(q.sweeps)} preempt: {worst['preemptions']:,.0f} preemptions"
        + (f" in {requests:,.0f} requests" if requests else "")
        + (f" with {pool:,.0f} tokens of pool." if pool else "."),
        tuple(proofs),
        (*([step] if step else []), *steps)
        or (Step("the smallest setting of the table that does not preempt", "none"),),
        _unit_trap(pool),
        (),
        () if pool else (Missing("the pool's size", "the start-up line of that run"),),
        facts,
    )


def _run_proof(row: Row, num: int, total: int) -> Proof:
    shown = {k: v for k, v in row.items() if v == v}
    text = ", ".join(f"{k} {v:g}" for k, v in list(shown.items())[:7])
    return Proof(f"The worst of {num} preempting runs (of {total}): {text}", shown)


def _largest_calm(rows: list[Row]) -> tuple[str, int, str] | None:
    """The largest concurrency of the table below all that preempt, and its rate against the best."""
    for name in ("clients", "max_num_seqs", "num_running"):
        known = [r for r in rows if name in r and "preemptions" in r]
        hit = [r[name] for r in known if r["preemptions"] > 0]
        calm = [r for r in known if r["preemptions"] == 0 and hit and r[name] < min(hit)]
        if not calm:
            continue
        best = max(calm, key=lambda r: r[name])
        rate = next((n for n in RATES if all(n in r for r in known)), None)
        top = max(r[rate] for r in known) if rate else 0.0
        text = f"{100 * best[rate] / top:.0f} % of the best rate" if rate and top else ""
        return name, int(best[name]), text
    return None


def _least_setting(rows: list[Row]) -> tuple[dict[str, Any], Step | None]:
    """The smallest share of memory that carries batch x length, between two runs of the table."""
    known = sorted(
        (r["gpu_memory_utilization"], r["pool_tokens"])
        for r in rows
        if "gpu_memory_utilization" in r and "pool_tokens" in r
    )
    batch = {r.get("max_num_seqs") or r.get("clients") for r in rows} - {None}
    length = {r.get("max_model_len") for r in rows} - {None}
    if len(known) < 2 or known[0][1] == known[-1][1] or len(batch) != 1 or len(length) != 1:
        return {}, None
    need = float(batch.pop() or 0) * float(length.pop() or 0)
    (low, few), (high, many) = known[0], known[-1]
    slope = (many - few) / (high - low)
    share = low + (need - few) / slope
    if not need or not low <= share <= high:
        return {"tokens_needed": round(need)} if need else {}, None
    step = Step(
        f"gpu_memory_utilization {np.ceil(share * 1000) / 1000:.3f}",
        f"{need:,.0f} tokens are needed ({slope:,.0f} tokens for each 1.0); {high:g} is {many / need:.1f} x that",
        {"gpu_memory_utilization": round(share, 3), "tokens_needed": need},
    )
    facts = {
        "min_gmu_for_zero_preemption": round(share, 3),
        "tokens_needed": round(need),
        "tokens_per_1_0_gmu": round(slope),
    }
    return facts, step


def _unit_trap(pool: float | None) -> tuple[str, ...]:
    if not pool:
        return ()
    return (
        f"reading {pool:,.0f} as blocks: x 16 it would be {16 * pool:,.0f} tokens, far more than such a pool holds; it is tokens",
    )


def find_knee(q: Quantities) -> Finding | None:
    """Runs of rising concurrency without a preemption: where throughput stops growing, and what binds."""
    rows = sorted((r for r in q.sweeps if "clients" in r), key=lambda r: r["clients"])
    if len(rows) < 3 or any(r.get("preemptions", 0) > 0 for r in rows):
        return None
    name = next((n for n in RATES if all(n in r for r in rows)), None)
    usage = [r["kv_usage_frac"] for r in rows if "kv_usage_frac" in r]
    if name is None:
        return None
    rate = np.array([r[name] for r in rows])
    knee = next((i for i in range(1, len(rows)) if rate[i] < 1.05 * rate[i - 1]), None)
    if knee is None:
        return None
    if not usage:
        return _knee_without_usage(rows, knee, rate)
    top = max(usage)
    running = [r["num_running"] for r in rows[knee - 1 :] if "num_running" in r]
    clients = rows[knee]["clients"]
    proof = Proof(
        f"From {rows[knee - 1]['clients']:.0f} to {clients:.0f} at once the rate goes from {rate[knee - 1]:,.1f} to {rate[knee]:,.1f}; usage is at most {percent(top)}",
        {"knee": clients, "max_usage_frac": top},
    )
    facts = {"knee_clients": rows[knee - 1]["clients"]}
    if top >= 0.95:
        word, text = "CAPACITY_QUEUE", "the pool is full there"
    elif (
        len(running) >= 2
        and max(running) == min(running)
        and max(running) < rows[-1]["clients"]
    ):
        word, text = "SLOT_LIMIT", f"Running stays at {max(running):.0f}"
    else:
        word, text = "NOT_KV", f"and the pool has room ({percent(top)})"
    return Finding(
        word,
        "medium",
        f"Throughput stops growing at {rows[knee - 1]['clients']:.0f} at once: {text}.",
        (proof,),
        (
            Step(
                f"send at most {rows[knee - 1]['clients']:.0f} at once",
                "the same rate, shorter waits",
                {"clients": rows[knee - 1]["clients"]},
            ),
        ),
        () if word == "CAPACITY_QUEUE" else ("more KV memory: the pool has room",),
        facts=facts,
    )


def _knee_without_usage(rows: list[Row], knee: int, rate: np.ndarray) -> Finding:
    at, beyond = rows[knee - 1]["clients"], rows[knee]["clients"]
    return Finding(
        "INSUFFICIENT_EVIDENCE",
        "low",
        f"Throughput stops growing at {at:.0f} at once, and the table does not say whether the pool was full.",
        (
            Proof(
                f"From {at:.0f} to {beyond:.0f} at once the rate goes from {rate[knee - 1]:,.1f} to {rate[knee]:,.1f}",
                {"knee": at},
            ),
        ),
        (
            Step(
                f"send at most {at:.0f} at once",
                "the same rate, shorter waits",
                {"clients": at},
            ),
        ),
        (),
        (),
        (
            Missing(
                "usage and preemptions of each run",
                "vllm:kv_cache_usage_perc and vllm:num_preemptions_total before and after each run",
            ),
        ),
        {"knee_clients": at},
    )


def find_run_over_fit(q: Quantities) -> Finding | None:
    """A load test of which lengths, clients and waits are known, before a pool whose size is stated."""
    pool, limit = q.pool.tokens, q.number("max_num_seqs")
    if q.main is not None or not pool or any("preemptions" in r for r in q.sweeps):
        return None
    for row in sorted(q.sweeps, key=lambda r: -r.get("clients", 0)):
        prompt, output = row.get("prompt_mean_tokens"), row.get("output_mean_tokens")
        sent, wait = row.get("clients"), row.get("ttft_p50_s", row.get("ttft_mean_s"))
        token = row.get("itl_p50_s", row.get("tpot_mean_s", row.get("itl_mean_s")))
        if not (prompt and output and sent and wait and token):
            continue
        fit = int(pool / (prompt + output))
        if sent <= 1.2 * fit or wait < 20 * token or (limit and limit <= fit):
            return None
        lines = q.lines("pool_tokens")
        return Finding(
            "CAPACITY_QUEUE",
            "medium",
            f"{sent:,.0f} were sent at once and {fit:,} of {prompt + output:,.0f} tokens fit {pool:,}: the others waited, half of them {wait:,.1f} s or longer for a first token.",
            (
                Proof(
                    f"{pool:,} tokens / ({prompt:,.0f} + {output:,.0f}) = {fit:,} at once, {sent / max(fit, 1):.1f} x that was sent",
                    {"fit": fit, "sent": sent, "held_tokens": prompt + output},
                    lines,
                ),
                Proof(
                    f"First token after {wait:,.1f} s, then one each {1000 * token:,.0f} ms: time goes into waiting, not into decoding",
                    {"ttft_s": wait, "itl_s": token},
                ),
            ),
            (
                Step(
                    f"send at most {max(fit, 1):,} at once",
                    "about the same rate, and the wait is at the client where it is seen",
                    {"clients": max(fit, 1)},
                ),
            ),
            (),
            (
                "that they wait for the pool: lengths are means of the run, and usage was not recorded",
            ),
            (
                Missing(
                    "usage and preemptions during the run",
                    "vllm:kv_cache_usage_perc and vllm:num_preemptions_total before and after it",
                ),
            ),
            {"safe_concurrency": fit, "fired_over_fit": round(sent / max(fit, 1), 1)},
        )
    return None


RULES = (
    Rule(
        "run-over-fit",
        "CAPACITY_QUEUE",
        92,
        ("sweeps", "pool"),
        find_run_over_fit,
        "A load test that sends more than fits, and whose first tokens come late while the next come fast, waited before the pool.",
        "vllm#26850; vllm bench serve",
        None,
        ("NO_PRESSURE_YET", "INSUFFICIENT_EVIDENCE"),
    ),
    Rule(
        "runs-that-preempt",
        "CAPACITY_PREEMPTION",
        79,
        ("sweeps",),
        find_preempting_runs,
        "A table states preemptions of each run; the pool over what runs gives what one holds.",
        "tandemn-system#11, tt-xla PR#5874",
        None,
        ("CAPACITY_QUEUE", "NO_PRESSURE_YET", "NOT_KV"),
    ),
    Rule(
        "knee-with-full-pool",
        "CAPACITY_QUEUE",
        91,
        ("sweeps",),
        lambda q: _only(find_knee(q), "CAPACITY_QUEUE"),
        "Throughput stops growing with the pool full and no preemption.",
        "vllm#26850",
    ),
    Rule(
        "knee-at-slots",
        "SLOT_LIMIT",
        101,
        ("sweeps",),
        lambda q: _only(find_knee(q), "SLOT_LIMIT"),
        "Throughput stops growing with Running at one number and room in the pool.",
        "vllm#26850",
    ),
    Rule(
        "knee-without-usage",
        "INSUFFICIENT_EVIDENCE",
        199,
        ("sweeps",),
        lambda q: _only(find_knee(q), "INSUFFICIENT_EVIDENCE"),
        "A knee of throughput alone says where, not why.",
        "user needs, question 14",
    ),
    Rule(
        "knee-with-room",
        "NOT_KV",
        121,
        ("sweeps",),
        lambda q: _only(find_knee(q), "NOT_KV"),
        "Throughput stops growing with room in the pool.",
        "vllm#15996",
    ),
)


def _only(finding: Finding | None, word: str) -> Finding | None:
    return finding if finding is not None and finding.word == word else None
