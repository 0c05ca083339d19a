"""Notes and flags without samples: what is sent at once against what fits."""

from __future__ import annotations

from analyzer.diagnosis.findings import Finding, Missing, Proof, Step
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import Rule


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


RULES = (
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
)
