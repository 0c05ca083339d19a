"""One sentence about two runs, with the condition under which it holds and the numbers behind it.

It chooses words for figures that `compare.py` computed and judged; it computes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from analyzer.lifecycles import away_intervals
from traces.recording import Meta, Recording

_TAILS = (("ttft_s p99", "TTFT p99"), ("itl_s p99", "ITL p99"), ("e2e_s p99", "E2E p99"))


@dataclass(frozen=True)
class Fact:
    """One figure of the sentence: name, values of A and B in seconds, change as share of A, verdict."""

    name: str
    a: float
    b: float
    delta_frac: float
    verdict: str


@dataclass(frozen=True)
class Verdict:
    """text: the whole sentence; winner: "A", "B", "mixed" or "none"; condition: where it holds;
    why: what each side spent on preemption, a sentence each; facts: the figures that the verdict
    rests on, the run's duration first.
    """

    text: str
    why: str
    winner: str
    condition: str
    facts: tuple[Fact, ...]

    def __str__(self) -> str:
        return self.text


def give_verdict(
    a: Recording,
    b: Recording,
    figures_a: Mapping[str, Any],
    figures_b: Mapping[str, Any],
    table: pl.DataFrame,
) -> Verdict:
    """The outcome of B against A. table: as Comparison.table; figures: as from `summarize`."""
    condition = describe_condition(a.meta, b.meta, a.pool_blocks, b.pool_blocks)
    facts = _facts(table)
    changed = [f for f in facts if f.verdict != "no difference"]
    names = side_names(a, b)
    in_steps = a.meta.clock == "step"
    if not figures_a["num_finished"] and not figures_b["num_finished"]:
        text = _nothing_ran(condition, figures_a)
    elif changed:
        text = f"At {condition}, {names[1]} {_clauses(changed, in_steps)} against {names[0]}."
    else:
        text = f"At {condition}, there is no difference between {names[0]} and {names[1]}{_because(facts, in_steps)}."
    asides = [text]
    if figures_a["num_finished"] or figures_b["num_finished"]:
        asides = [
            _quiet(a, b, figures_a, figures_b),
            text,
            _refused(figures_a, figures_b),
            _unlike_ends(figures_a, figures_b),
        ]
    why = " ".join(t for t in (_spent("A", a, figures_a), _spent("B", b, figures_b)) if t)
    return Verdict(
        " ".join(t for t in asides if t), why, _winner(changed), condition, tuple(facts)
    )


def _nothing_ran(condition: str, figures: Mapping[str, Any]) -> str:
    """What to say where there is nothing to compare."""
    refused, asked = figures["num_refused"], figures["num_requests"]
    if refused == asked:
        return f"At {condition}, nothing ran: all {asked:,} requests were refused, since none can ever fit. Give a larger pool, or look at the reasons in the events."
    return (
        f"At {condition}, no request finished on either side, so there is nothing to compare."
    )


def _spent(side: str, run: Recording, figures: Mapping[str, Any]) -> str:
    """What a run spent on its preemptions: tokens lost and computed again, bytes moved, stalls."""
    if figures["num_preemptions"] == 0:
        return ""
    parts = []
    lost, restored = _lost_tokens(run)
    if lost:
        again = figures["recomputed_tokens"]
        part = f"recomputes {again:,} tokens ({_percent(figures['recomputed_frac'] or 0.0)} of all computed"
        parts.append(
            f"{part}; {_percent(restored / lost)} of what it lost was still in the prefix cache)"
        )
    if figures["swap_out_bytes"]:
        out, back = (figures[key] / 1e9 for key in ("swap_out_bytes", "swap_in_bytes"))
        parts.append(
            f"copies {_digits(out, 3)} GB out and {_digits(back, 3)} GB in, stalling {show_s(figures['stall_s'])}"
        )
    times = (
        "once" if figures["num_preemptions"] == 1 else f"{figures['num_preemptions']:,} times"
    )
    return f"{side} preempts {times}{' and ' if parts else ''}{', and '.join(parts)}."


def _lost_tokens(run: Recording) -> tuple[int, int]:
    """Tokens lost to recompute by requests that came back, and those of them found in the cache."""
    away = away_intervals(run.events).filter(
        (pl.col("mode_used").cast(pl.String) == "recompute")
        & pl.col("resume_step").is_not_null()
    )
    lost = away["tokens"]
    restored = away.select(pl.min_horizontal("tokens", "restored_tokens").sum()).item()
    return int(lost.sum()), int(restored)


def _percent(share: float) -> str:
    return (f"{share:.1%}" if 0 < abs(share) < 0.1 else f"{share:.0%}").replace("%", " %")


def _winner(changed: list[Fact]) -> str:
    verdicts = {f.verdict for f in changed}
    if len(verdicts) > 1:
        return "mixed"
    return {"better": "B", "worse": "A"}.get(verdicts.pop(), "none") if verdicts else "none"


def _facts(table: pl.DataFrame) -> list[Fact]:
    """Duration and the tails that both runs have and that were judged."""
    names = {"duration_s": "duration", **dict(_TAILS)}
    rows = {
        r["metric"]: r
        for r in table.filter(pl.col("metric").is_in(list(names))).iter_rows(named=True)
    }
    return [
        Fact(name, r["a"], r["b"], r["delta_frac"] or 0.0, r["verdict"])
        for metric, name in names.items()
        if (r := rows.get(metric)) and r["verdict"] is not None
    ]


def describe_condition(a: Meta, b: Meta, pool_a: int, pool_b: int) -> str:
    """The setup in words: pool, and copy path and link where a side moves KV to the host.

    Of two sides that copy, only what they share is said here; what differs is in their names.
    """
    pools = (
        f"{pool_a:,} block{'' if pool_a == 1 else 's'}"
        if pool_a == pool_b
        else f"{pool_a:,} (A) and {pool_b:,} (B) blocks"
    )
    if a.clock == "step":
        return f"{pools}, in steps"
    copying = [m for m in (a, b) if m.preemption_mode not in (None, "recompute")]
    if not copying:
        return pools
    shared = [
        _shared([m.settings.get(key) for m in copying]) for key in ("copy_mode", "copy_path")
    ]
    copies = " ".join(str(w) for w in shared if w)
    link = _shared([_link_bytes_per_s(m) for m in copying])
    text = f"{pools} and {copies} copies" if copies else pools
    if link is None:
        return text
    return f"{text} over a {link / 1e9:.3g} GB/s link"


def _shared(values: list[Any]) -> Any:
    """The value, if all are the same; else None."""
    return values[0] if all(v == values[0] for v in values) else None


def _link_bytes_per_s(meta: Meta) -> float | None:
    device = meta.get("device")
    return device.get("link_out_bytes_per_s") if isinstance(device, Mapping) else None


def side_names(a: Recording, b: Recording) -> tuple[str, str]:
    """What to call the sides: by preemption mode, or by the first two settings that differ, or by
    label where nothing does.
    """
    modes = (a.meta.preemption_mode, b.meta.preemption_mode)
    if None not in modes and modes[0] != modes[1]:
        return f"A ({modes[0]})", f"B ({modes[1]})"
    left, right = a.meta.settings, b.meta.settings
    keys = [k for k in sorted({*left, *right}) if left.get(k) != right.get(k)][:2]
    if keys:
        words = (", ".join(f"{k} {side.get(k)}" for k in keys) for side in (left, right))
        said_a, said_b = words
        return f"A ({said_a})", f"B ({said_b})"
    return f"A ({a.label})", f"B ({b.label})"


def _clauses(changed: list[Fact], in_steps: bool) -> str:
    """What B does, one verb for neighbours that go the same way; E2E only where nothing else moved."""
    spoken = [f for f in changed if not f.name.startswith("E2E")] or changed
    clauses: list[str] = []
    verb = None
    for fact in spoken:
        before, verb = verb, _verb(fact)
        amount = _amount(fact, in_steps)
        clauses.append(amount if verb == before else f"{verb} {amount}")
    return clauses[0] if len(clauses) == 1 else f"{', '.join(clauses[:-1])} and {clauses[-1]}"


def _verb(fact: Fact) -> str:
    if fact.name == "duration":
        return "finishes"
    return "cuts" if fact.b < fact.a else "raises"


def _amount(fact: Fact, in_steps: bool) -> str:
    values = f"({show_change(fact.a, fact.b, in_steps)})"
    change = _percent(abs(fact.delta_frac))
    if fact.name == "duration":
        return f"{change} {'sooner' if fact.b < fact.a else 'later'} {values}"
    return f"{fact.name} by {change} {values}" if fact.a else f"{fact.name} {values}"


def show_s(seconds: float, in_steps: bool = False) -> str:
    """A time in words of three digits: "17.1 s", "23.4 ms"; of a step clock "17.1 steps"."""
    if in_steps:
        return f"{_digits(seconds, 3)} steps"
    if abs(seconds) >= 1 or seconds == 0:
        return f"{_digits(seconds, 3)} s"
    return f"{_digits(seconds * 1000, 3)} ms"


def show_change(a: float, b: float, in_steps: bool = False) -> str:
    """Two times with one unit, and with as many digits as tell them apart: "17.1 -> 15.4 s"."""
    unit, factor = ("s", 1.0) if max(abs(a), abs(b)) >= 1 else ("ms", 1000.0)
    if in_steps:
        unit, factor = "steps", 1.0
    for digits in range(3, 7):
        left, right = _digits(a * factor, digits), _digits(b * factor, digits)
        if left != right:
            break
    return f"{left} -> {right} {unit}"


def _digits(value: float, digits: int) -> str:
    """A number of at least so many significant digits, thousands apart."""
    whole = len(str(int(abs(value)))) if abs(value) >= 1 else 0
    return f"{value:,.{max(digits - whole, 0)}f}" if whole else f"{value:.{digits}g}"


def _because(facts: list[Fact], in_steps: bool) -> str:
    """Both durations, so that "no difference" carries its number."""
    duration = next((f for f in facts if f.name == "duration"), None)
    return (
        f" ({show_s(duration.a, in_steps)} and {show_s(duration.b, in_steps)})"
        if duration
        else ""
    )


def _quiet(
    a: Recording, b: Recording, figures_a: Mapping[str, Any], figures_b: Mapping[str, Any]
) -> str:
    """A sentence where a run, or both, preempted nothing; empty otherwise."""
    calm = [
        (side, rec, fig)
        for side, rec, fig in (("A", a, figures_a), ("B", b, figures_b))
        if fig["num_preemptions"] == 0 and fig["peak_used_frac"] is not None
    ]
    if not calm:
        return ""
    _, rec, fig = max(calm, key=lambda c: c[2]["peak_used_frac"])
    where = "in either run" if len(calm) == 2 else f"in {calm[0][0]}"
    peak = _percent(fig["peak_used_frac"])
    return f"No preemption {where}; peak use {peak} of {rec.pool_blocks:,} blocks."


def _refused(figures_a: Mapping[str, Any], figures_b: Mapping[str, Any]) -> str:
    """A sentence where requests were refused."""
    a, b = figures_a["num_refused"], figures_b["num_refused"]
    if not a and not b:
        return ""
    asked = f"of {figures_a['num_requests']:,} requests"
    if a == b:
        return f"Both refused {a:,} {asked}: they can never fit."
    return f"A refused {a:,} and B {b:,} {asked}: they can never fit."


def _unlike_ends(figures_a: Mapping[str, Any], figures_b: Mapping[str, Any]) -> str:
    """A sentence where one run finished fewer requests, whose times it then lacks."""
    a, b = figures_a["num_finished"], figures_b["num_finished"]
    if a == b:
        return ""
    return f"But A finished {a:,} and B {b:,} requests, and latencies are of those."
