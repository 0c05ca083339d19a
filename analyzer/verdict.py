"""One sentence about two runs, with the condition under which it holds and the numbers behind it.

It chooses words for figures that `compare.py` computed and judged; it computes none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from analyzer.condition import describe_condition, side_names
from analyzer.latency import overload_wait_s
from analyzer.measured import copy_bytes_per_s
from analyzer.spending import describe_spending
from analyzer.words import label, percent, show_move, show_time
from traces.recording import Recording

_LATENCIES = ("ttft_s", "itl_s", "e2e_s")
_COUNTERS = ("duration_s", *_LATENCIES, "tpot_s")


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
    limits: Sequence[str] = (),
) -> Verdict:
    """The outcome of B against A. table: as Comparison.table; figures: as from `summarize`; limits:
    sentences on what it cannot tell, for its end."""
    calm = not figures_a["num_preemptions"] and not figures_b["num_preemptions"]
    condition = describe_condition(
        a.meta,
        b.meta,
        a.pool_blocks,
        b.pool_blocks,
        copies=not calm,
        rates=(copy_bytes_per_s(a), copy_bytes_per_s(b)),
    )
    facts = _facts(table)
    changed = [f for f in facts if f.verdict != "no difference"]
    if not figures_a["num_finished"] and not figures_b["num_finished"]:
        sentences = [_nothing_ran(condition, figures_a)]
    else:
        sentences = [
            _quiet(a, b, figures_a, figures_b),
            _outcome(a, b, f"{condition}{_clock(a, b)}", facts, _counter(table, changed)),
            _overload(a, b),
            _refused(figures_a, figures_b),
            _unlike_ends(figures_a, figures_b),
            *limits,
        ]
    spent = (describe_spending("A", a, figures_a), describe_spending("B", b, figures_b))
    return Verdict(
        " ".join(t for t in sentences if t),
        " ".join(t for t in spent if t),
        _winner(changed),
        condition,
        tuple(facts),
    )


def _clock(a: Recording, b: Recording) -> str:
    """Whose time it is, where both have the same; a step clock is in the condition."""
    clocks = {a.meta.clock, b.meta.clock}
    said = clocks.pop() if len(clocks) == 1 else None
    return f", in {said} time" if said in ("modelled", "measured") else ""


def _outcome(
    a: Recording, b: Recording, condition: str, facts: list[Fact], counter: Fact | None
) -> str:
    """What B does better, then what it does worse; or that there is no difference."""
    names = side_names(a, b)
    in_steps = a.meta.clock == "step"
    changed = [f for f in facts if f.verdict != "no difference"]
    # E2E follows from the others, and is said where nothing else moved
    spoken = [f for f in changed if not f.name.startswith("E2E")] or changed
    if counter and spoken:
        spoken = [*spoken, counter]
    gains, losses = ([f for f in spoken if f.verdict == v] for v in ("better", "worse"))
    if counter and counter in gains:
        gains, losses = losses, gains  # the exception comes last
    said = ", but ".join(_clauses(group, in_steps) for group in (gains, losses) if group)
    if said:
        return f"At {condition}, {names[1]} {said} against {names[0]}."
    single = "measured" in (a.meta.clock, b.meta.clock)  # and may differ by noise
    beyond = " beyond run-to-run noise" if single else ""
    same = f"there is no difference{beyond} between {names[0]} and {names[1]}"
    but = f", except that B {_clauses([counter], in_steps)}" if counter else ""
    return f"At {condition}, {same}{_ends(facts, in_steps)}{but}."


def _nothing_ran(condition: str, figures: Mapping[str, Any]) -> str:
    """What to say where there is nothing to compare."""
    refused, asked = figures["num_refused"], figures["num_requests"]
    if refused == asked:
        return f"At {condition}, nothing ran: all {asked:,} requests were refused, since none can ever fit. Give a larger pool, or look at the reasons in the events."
    return (
        f"At {condition}, no request finished on either side, so there is nothing to compare."
    )


def _winner(changed: list[Fact]) -> str:
    verdicts = {f.verdict for f in changed}
    if len(verdicts) > 1:
        return "mixed"
    return {"better": "B", "worse": "A"}.get(verdicts.pop(), "none") if verdicts else "none"


def _facts(table: pl.DataFrame) -> list[Fact]:
    """Duration and the tails that both runs have and that were judged; and a median before its
    tail where it moved more than that."""
    rows = {
        row["metric"]: row
        for row in table.iter_rows(named=True)
        if row["verdict"] is not None and row["metric"].split()[0] in _COUNTERS
    }
    facts = [_fact(rows["duration_s"])] if "duration_s" in rows else []
    for latency in _LATENCIES:
        median, tail = (
            _fact(rows[key]) if (key := f"{latency} {which}") in rows else None
            for which in ("p50", "p99")
        )
        if median and median.verdict != "no difference" and _moved(median) > _moved(tail):
            facts.append(median)
        if tail:
            facts.append(tail)
    return facts


def _moved(fact: Fact | None) -> float:
    """How far a figure moved, as a share of A; 0 where that means nothing."""
    return abs(fact.delta_frac) if fact and fact.verdict != "no difference" else 0.0


def _fact(row: Mapping[str, Any]) -> Fact:
    name = "duration" if row["metric"] == "duration_s" else label(row["metric"])
    return Fact(name, row["a"], row["b"], row["delta_frac"] or 0.0, row["verdict"])


def _counter(table: pl.DataFrame, changed: list[Fact]) -> Fact | None:
    """The figure that moved most the other way, where all that is said moved one way; that moved
    most at all, where nothing else is said."""
    ways = {f.verdict for f in changed}
    if len(ways) == 2:
        return None
    others = {"better", "worse"} - ways
    rows = table.filter(
        pl.col("verdict").cast(pl.String).is_in(others)
        & pl.col("metric").str.split(" ").list.first().is_in(_COUNTERS)
        & pl.col("delta_frac").is_not_null()
    ).sort(pl.col("delta_frac").abs(), descending=True, maintain_order=True)
    return _fact(rows.row(0, named=True)) if rows.height else None


def _clauses(facts: list[Fact], in_steps: bool) -> str:
    """What B does, one verb for neighbours that go the same way."""
    clauses: list[str] = []
    verb = None
    for fact in facts:
        before, verb = verb, _verb(fact)
        amount = _amount(fact, in_steps)
        clauses.append(amount if verb == before else f"{verb} {amount}")
    return clauses[0] if len(clauses) == 1 else f"{', '.join(clauses[:-1])} and {clauses[-1]}"


def _verb(fact: Fact) -> str:
    if fact.name == "duration":
        return "finishes"
    return "cuts" if fact.b < fact.a else "raises"


def _amount(fact: Fact, in_steps: bool) -> str:
    values = f"({show_move(fact.a, fact.b, in_steps)})"
    change = percent(abs(fact.delta_frac))
    if fact.name == "duration":
        turn = f"{'sooner' if fact.b < fact.a else 'later'} {values}"
        return f"{change} {turn}" if fact.a else turn
    return f"{fact.name} by {change} {values}" if fact.a else f"{fact.name} {values}"


def _ends(facts: list[Fact], in_steps: bool) -> str:
    """Both durations, so that "no difference" carries its number."""
    duration = next((f for f in facts if f.name == "duration"), None)
    if duration is None:
        return ""
    ends = (show_time(value, in_steps) for value in (duration.a, duration.b))
    return f", which finish in {' and '.join(ends)}"


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
    peak = percent(fig["peak_used_frac"])
    modes = (a.meta.preemption_mode, b.meta.preemption_mode)
    idle = len(calm) == 2 and None not in modes and modes[0] != modes[1]
    moot = f": {modes[0]} and {modes[1]} never come into play" if idle else ""
    return f"No preemption {where}; peak use {peak} of {rec.pool_blocks:,} blocks{moot}."


def _overload(a: Recording, b: Recording) -> str:
    """A sentence where requests come faster than they can be served, on either side or both."""
    waits = {
        side: show_time(wait, run.meta.clock == "step")
        for side, run in (("A", a), ("B", b))
        if (wait := overload_wait_s(run.requests)) is not None
    }
    if not waits:
        return ""
    if len(set(waits.values())) == 1:
        said = next(iter(waits.values()))
    else:
        said = " and ".join(f"{wait} ({side})" for side, wait in waits.items())
    who = "The load" if len(waits) == 2 else f"In {next(iter(waits))} the load"
    return f"{who} outruns the engine: requests wait {said} on average before they first run."


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
