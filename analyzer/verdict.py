"""One sentence about two runs, with the condition under which it holds and the numbers behind it.

It chooses words for figures that `compare.py` computed and judged; it computes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

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
    facts: the figures that it rests on, the run's duration first.
    """

    text: str
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
    good = {f.verdict for f in changed}
    winner = {frozenset(): "none", frozenset({"better"}): "B", frozenset({"worse"}): "A"}.get(
        frozenset(good), "mixed"
    )
    name = _side("B", b.meta)
    if not changed:
        text = f"At {condition}, there is no difference between {_side('A', a.meta)} and {name}{_because(facts)}."
    else:
        text = (
            f"At {condition}, {name} {_join([_clause(f) for f in changed])}{_against(a.meta)}."
        )
    quiet = _quiet(a, b, figures_a, figures_b)
    return Verdict(f"{quiet} {text}" if quiet else text, winner, condition, tuple(facts))


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
    """The setup in words: pool, and copy path and link where a side moves KV to the host."""
    pools = (
        f"{pool_a:,} blocks"
        if pool_a == pool_b
        else f"{pool_a:,} (A) and {pool_b:,} (B) blocks"
    )
    swapping = [m for m in (a, b) if m.preemption_mode not in (None, "recompute")]
    if not swapping:
        return pools
    side = swapping[-1]
    path, mode = side.settings.get("copy_path"), side.settings.get("copy_mode")
    copies = " ".join(str(w) for w in (mode, path) if w)
    device = side.get("device")
    link = device.get("link_out_bytes_per_s") if isinstance(device, Mapping) else None
    text = f"{pools} and {copies} copies" if copies else pools
    return f"{text} over a {link / 1e9:.3g} GB/s link" if link else text


def _side(letter: str, meta: Meta) -> str:
    mode = meta.preemption_mode
    return f"{letter} ({mode})" if mode else letter


def _against(meta: Meta) -> str:
    return f" against {_side('A', meta)}"


def _clause(fact: Fact) -> str:
    change = (
        f"{abs(fact.delta_frac):.1%}"
        if abs(fact.delta_frac) < 0.1
        else f"{abs(fact.delta_frac):.0%}"
    )
    change = change.replace("%", " %")
    if fact.name == "duration":
        return f"finishes {change} {'sooner' if fact.b < fact.a else 'later'} ({show_s(fact.a)} -> {show_s(fact.b)})"
    verb = "cuts" if fact.b < fact.a else "raises"
    if fact.a == 0:
        return f"{verb} {fact.name} ({show_s(fact.a)} -> {show_s(fact.b)})"
    return f"{verb} {fact.name} by {change} ({show_s(fact.a)} -> {show_s(fact.b)})"


def show_s(seconds: float) -> str:
    """A time in words of three digits: "17.1 s", "23.4 ms"."""
    if abs(seconds) >= 1 or seconds == 0:
        return f"{seconds:.3g} s" if abs(seconds) < 1000 else f"{seconds:,.0f} s"
    return f"{seconds * 1000:.3g} ms"


def _join(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _because(facts: list[Fact]) -> str:
    """Both durations, so that "no difference" carries its number."""
    duration = next((f for f in facts if f.name == "duration"), None)
    return f" ({show_s(duration.a)} and {show_s(duration.b)})" if duration else ""


def _quiet(
    a: Recording, b: Recording, figures_a: Mapping[str, Any], figures_b: Mapping[str, Any]
) -> str:
    """A sentence where a run, or both, preempted nothing; empty otherwise."""
    calm = [
        (side, rec, fig)
        for side, rec, fig in (("A", a, figures_a), ("B", b, figures_b))
        if fig["num_preemptions"] == 0
    ]
    if not calm or calm[0][2]["peak_used_frac"] is None:
        return ""
    side, rec, fig = max(calm, key=lambda c: c[2]["peak_used_frac"] or 0.0)
    where = "in either run" if len(calm) == 2 else f"in {side}"
    peak = f"{fig['peak_used_frac']:.0%}".replace("%", " %")
    return f"No preemption {where}; peak use {peak} of {rec.pool_blocks:,} blocks."
