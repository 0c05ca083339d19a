"""Proofs and questions that several rules share."""

from __future__ import annotations

from analyzer.diagnosis.findings import UNKNOWN, Missing, Proof, Step
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import percent

WALL_FRAC = 0.9
_COUNTERS = {
    "sglang": "the lines 'Retract requests', or two scrapes of sglang:num_retracted_requests_total",
    "tensorrt-llm": "numPausedRequests of the iteration statistics",
    "triton": "'Paused Requests' of the iteration statistics",
}


def counter(q: Quantities) -> Missing:
    """What would tell the number of preemptions of this engine."""
    vllm = "two scrapes of vllm:num_preemptions_total (V1 prints none in its log)"
    return Missing("the number of preemptions", _COUNTERS.get(q.engine, vllm))


def victims() -> Missing:
    """Where vLLM V1 tells who was evicted: in no log, only in a recording."""
    return Missing(
        "who was evicted, and for whom",
        "a recording: --scheduler-cls engine.live.vllm.RecordingScheduler (V1 logs no names)",
    )


def held_proof(q: Quantities) -> tuple[Proof, ...]:
    """What a running request holds, and how many fit."""
    if q.held is None or q.main is None:
        return ()
    h = q.held
    text = f"{h.running} running requests hold {percent(h.usage)} of the pool, {percent(h.frac, 2)} each"
    numbers: dict[str, float | int | str | None] = {
        "running": h.running,
        "usage_frac": h.usage,
        "held_frac": round(h.frac, 5),
    }
    if h.tokens:
        text += f" ({h.tokens:,.0f} tokens)"
        numbers["held_tokens"] = round(h.tokens)
    each = q.lengths.blocks(q.pool)
    if q.fits.value is not None:
        end = "" if q.fits.by_held else " to their end"
        text += f"; {q.fits.value} fit{end} at {q.fits.basis}"
        numbers["safe_concurrency"] = q.fits.value
        if each and "stated" in q.fits.at:
            text += f" ({each} blocks each)"
            numbers["blocks_per_request"] = each
    return (Proof(text, numbers, q.main.lines(h.sample)),)


def preemption_proof(q: Quantities) -> Proof:
    """How many preemptions, how that is known, and when."""
    p = q.preemptions
    text = f"Preemptions: {p.text()} ({p.kind}: {p.how})"
    if p.first_s is not None and q.clock(p.first_s):
        text += f", the first at {q.clock(p.first_s)}"
    if p.per_s is not None:
        low, high = p.per_s
        rate = (
            f"{low:.2g}"
            if abs(high - low) < 0.05 * max(high, 1e-9)
            else f"{low:.2g} to {high:.2g}"
        )
        text += f", {rate} a second"
    return Proof(text, {"low": p.low, "high": p.high, "kind": p.kind}, p.lines)


def recompute_proof(q: Quantities) -> tuple[Proof, ...]:
    p = q.preemptions
    if p.recomputed_low is None or p.recomputed_kind == UNKNOWN:
        return ()
    high = p.recomputed_high
    span = f"{p.recomputed_low:,}" + (
        f" to {high:,}" if high not in (None, p.recomputed_low) else ""
    )
    return (
        Proof(
            f"Tokens computed again: {span} ({p.recomputed_kind})",
            {"low": p.recomputed_low, "high": high},
        ),
    )


def ask_for_capacity(q: Quantities) -> Step:
    """What is still needed to tell how many can run."""
    asked = []
    if q.pool.tokens is None:
        asked.append("the start-up lines, which state the pool")
    if q.lengths.blocks(q.pool) is None:
        asked.append("prompt and max output tokens of the requests")
    return Step(
        f"add {' and '.join(asked) or 'a log of the time before the pool was full'}",
        "then the number that can run without preemption follows",
    )
