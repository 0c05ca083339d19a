"""Ask every rule, order what they found, and put the answer together.

Evidence of several servers or runs (sources that state different pools) is diagnosed part by part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from analyzer.diagnosis.facts import gather_facts
from analyzer.diagnosis.findings import (
    Diagnosis,
    Finding,
    Missing,
    NextStep,
    Proof,
    Step,
    Verdict,
    plain,
)
from analyzer.diagnosis.parts import split_parts
from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.rule import Rule
from analyzer.diagnosis.rules import RULES
from analyzer.diagnosis.traps import find_traps
from analyzer.diagnosis.wording import worded
from traces.evidence.evidence import Evidence


def diagnose(evidence: Evidence, rules: Sequence[Rule] = RULES) -> Diagnosis:
    """The diagnosis of one set of evidence. Raises nothing for thin evidence: that is a verdict too."""
    parts = split_parts(evidence)
    if len(parts) == 1:
        return worded(_diagnose_one(parts[0], rules))
    return worded(_join(evidence, [_diagnose_one(part, rules) for part in parts]))


def _diagnose_one(evidence: Evidence, rules: Sequence[Rule]) -> Diagnosis:
    q = Quantities(evidence)
    found: list[tuple[Rule, Finding]] = []
    for rule in sorted(rules, key=lambda r: r.order):
        if all(q.has(kind) for kind in rule.needs):
            finding = rule.find(q)
            if finding is not None:
                found.append((rule, finding))
    kept, excluded = _order(found)
    excluded |= _exclusions(q, rules, {f.word for _, f in kept} | set(excluded))
    facts = gather_facts(q)
    for _, finding in reversed(kept):
        facts |= {k: v for k, v in finding.facts.items() if v is not None}
    facts = plain(facts)
    first = kept[0][1]
    inferred: dict[str, str] = {}
    for _, finding in kept:
        for text in finding.inferred:
            what, _, how = text.partition(": ")
            inferred[what] = how or text
    if q.pool.kind == "inferred":
        inferred["pool"] = q.pool.how
    steps = first.steps or (Step("nothing", "no change is called for"),)
    others = tuple(s for _, f in kept[1:] for s in f.steps if s not in steps)
    return Diagnosis(
        evidence.label,
        tuple(Verdict(f.word, f.severity, f.statement, r.name) for r, f in kept),
        _unique([p for _, f in kept for p in f.proofs]),
        excluded,
        inferred,
        _missing([m for _, f in kept for m in f.missing]),
        NextStep(
            steps[0],
            (*steps[1:], *others),
            tuple(dict.fromkeys(u for _, f in kept for u in f.useless)),
        ),
        facts,
        (*evidence.notes, *_disputes(q), *find_traps(q)),
    )


def _order(
    found: list[tuple[Rule, Finding]],
) -> tuple[list[tuple[Rule, Finding]], dict[str, str]]:
    """The findings that stand, each word once, and those that another explains."""
    kept: list[tuple[Rule, Finding]] = []
    excluded: dict[str, str] = {}
    for rule, finding in found:
        over = next((r for r, f in kept if finding.word in r.overrules), None)
        if any(f.word == finding.word for _, f in kept):
            continue
        if over is not None:
            excluded.setdefault(finding.word, f"explained by {over.word}: {over.reason}")
        elif finding.word != "INSUFFICIENT_EVIDENCE" or not kept:
            kept.append((rule, finding))
    return kept, excluded


def _exclusions(q: Quantities, rules: Sequence[Rule], taken: set[str]) -> dict[str, str]:
    said: dict[str, str] = {}
    for rule in rules:
        if rule.exclude is None or rule.word in taken or rule.word in said:
            continue
        why = rule.exclude(q)
        if why:
            said[rule.word] = why
    return said


def _unique(proofs: Sequence[Proof]) -> tuple[Proof, ...]:
    kept: dict[str, Proof] = {}
    for proof in proofs:
        kept.setdefault(proof.sentence, proof)
    return tuple(kept.values())


def _missing(missing: Sequence[Missing]) -> tuple[Missing, ...]:
    kept: dict[str, Missing] = {}
    for item in missing:
        kept.setdefault(item.what, item)
    return tuple(kept.values())


def _disputes(q: Quantities) -> tuple[str, ...]:
    return tuple(f"Sources disagree on the pool: {text}." for text in q.pool.disputes)


def _join(evidence: Evidence, parts: Sequence[Diagnosis]) -> Diagnosis:
    """One answer for several servers or runs: the worst first, each with its name."""
    order = {word: i for i, word in enumerate(_PRECEDENCE)}
    ranked = sorted(parts, key=lambda d: order[d.verdict.word])
    first = ranked[0]
    verdicts: dict[str, Verdict] = {}
    for part in ranked:
        for verdict in part.verdicts:
            if verdict.word != "INSUFFICIENT_EVIDENCE" or part is first:
                named = replace(verdict, statement=f"{part.label}: {verdict.statement}")
                verdicts.setdefault(verdict.word, named)
    facts: dict[str, Any] = {**first.facts, "parts": {p.label: p.facts for p in parts}}
    note = (
        "The sources state different pools or engines, so each is judged by itself: "
        + "; ".join(f"{p.label}: {p.verdict.word}" for p in parts)
    )
    return replace(
        first,
        label=evidence.label,
        verdicts=tuple(verdicts.values()),
        proofs=tuple(p for part in ranked for p in part.proofs),
        excluded=_joined_exclusions(ranked, verdicts),
        missing=_missing([m for part in ranked for m in part.missing]),
        facts=facts,
        notes=(note + ".", *dict.fromkeys(n for part in ranked for n in part.notes)),
        parts=tuple(parts),
    )


def _joined_exclusions(
    parts: Sequence[Diagnosis], verdicts: Mapping[str, Verdict]
) -> dict[str, str]:
    return {
        word: f"{part.label}: {why}"
        for part in reversed(parts)
        for word, why in part.excluded.items()
        if word not in verdicts
    }


_LAST = ("NO_PRESSURE_YET", "INSUFFICIENT_EVIDENCE")
_PRECEDENCE = (
    *dict.fromkeys(r.word for r in sorted(RULES, key=lambda r: r.order) if r.word not in _LAST),
    *_LAST,
)
