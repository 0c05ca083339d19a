"""What a diagnosis is made of: verdicts, proofs, what is excluded, inferred and missing, next steps.

It knows the words and their meanings and how a diagnosis becomes JSON. It judges nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from traces.evidence.evidence import Line

WORDS: dict[str, str] = {
    "CAPACITY_PREEMPTION": "pool full, running requests lose their blocks",
    "THRASH_PREFILL_READMIT": "the same requests are admitted and evicted again and again; prefill eats the machine",
    "CAPACITY_QUEUE": "pool full, requests wait outside, nobody is seen to be evicted",
    "HOL_CAPACITY": "the head of the queue does not fit now, others behind it would",
    "OVERSIZE_REQUEST": "a request can never fit this pool",
    "RESERVATION_BLOCKED": "blocks are reserved for the longest output, not used",
    "SLOT_LIMIT": "the limit on running requests binds, not KV",
    "PREFILL_BOUND": "compute for prompts binds, KV is free",
    "DP_IMBALANCE": "one rank is full, others are idle",
    "SWAP_STALL": "swapped requests fill the host pool or never come back",
    "HYBRID_OVERHEAD": "state blocks per request; the printed size misleads",
    "ENGINE_DEADLOCK": "the engine takes no steps; no capacity knob helps",
    "ENGINE_BUG": "a fault of the engine; no capacity knob helps",
    "NOT_KV": "slow or stopped for another reason; the evidence excludes KV",
    "NO_PRESSURE_YET": "nothing wrong so far; a forecast",
    "INSUFFICIENT_EVIDENCE": "what is there does not carry a verdict",
}
SEVERITIES = ("low", "medium", "high")
KNOWN, INFERRED, UNKNOWN = "known", "inferred", "unknown"

Number = int | float | str | None


def plain(value: Any) -> Any:
    """A value as JSON can have it: no arrays' scalars, no tuples, no NaN, text as keys."""
    if hasattr(value, "item") and not isinstance(value, str):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    return value


@dataclass(frozen=True)
class Proof:
    """A sentence, the numbers in it, and the lines that they were read from."""

    sentence: str
    numbers: Mapping[str, Number] = field(default_factory=dict)
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True)
class Step:
    """A change and what it should do. numbers: the effect, where it can be computed."""

    change: str
    effect: str
    numbers: Mapping[str, Number] = field(default_factory=dict)


@dataclass(frozen=True)
class Missing:
    """What is not known, and the one line, flag or file that would settle it."""

    what: str
    settle: str


@dataclass(frozen=True)
class Finding:
    """What a rule found. statement: one sentence with its number; steps: best first; useless: knobs
    that do not help, each with its reason; facts: facts that only this rule computes."""

    word: str
    severity: str
    statement: str
    proofs: tuple[Proof, ...] = ()
    steps: tuple[Step, ...] = ()
    useless: tuple[str, ...] = ()
    inferred: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.word not in WORDS or self.severity not in SEVERITIES:
            raise KeyError(f"{self.word} ({self.severity}) is no verdict")


@dataclass(frozen=True)
class Verdict:
    """One of WORDS, how bad it is, one sentence with its number, and the rule that gave it."""

    word: str
    severity: str
    statement: str
    rule: str


@dataclass(frozen=True)
class NextStep:
    """The smallest change, ranked alternatives to it, and knobs that do not help."""

    first: Step
    alternatives: tuple[Step, ...] = ()
    useless: tuple[str, ...] = ()


@dataclass(frozen=True)
class Diagnosis:
    """The answer to one set of evidence. parts: one diagnosis for each server or run, where the evidence
    is of several that contradict each other; the verdicts then are those of all parts."""

    label: str
    verdicts: tuple[Verdict, ...]
    proofs: tuple[Proof, ...]
    excluded: Mapping[str, str]
    inferred: Mapping[str, str]
    missing: tuple[Missing, ...]
    next_step: NextStep
    facts: Mapping[str, Any]
    notes: tuple[str, ...] = ()
    parts: tuple[Diagnosis, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The first verdict."""
        return self.verdicts[0]

    def as_json(self) -> dict[str, Any]:
        """Plain types only. `verdict` is the first word, `severity` how bad that is."""
        document = {
            "label": self.label,
            "verdict": self.verdict.word,
            "severity": self.verdict.severity,
            "statement": self.verdict.statement,
            "verdicts": [vars(v) for v in self.verdicts],
            "facts": dict(self.facts),
            "proofs": [
                {
                    "sentence": p.sentence,
                    "numbers": dict(p.numbers),
                    "lines": [
                        {"source": a.source, "line": a.number, "text": a.text} for a in p.lines
                    ],
                }
                for p in self.proofs
            ],
            "excluded": dict(self.excluded),
            "inferred": dict(self.inferred),
            "missing": [vars(m) for m in self.missing],
            "next_step": {
                **_step(self.next_step.first),
                "alternatives": [_step(s) for s in self.next_step.alternatives],
                "does_not_help": list(self.next_step.useless),
            },
            "notes": list(self.notes),
            "parts": [p.as_json() for p in self.parts],
        }
        whole: dict[str, Any] = plain(document)
        return whole


def _step(step: Step) -> dict[str, Any]:
    return {"change": step.change, "effect": step.effect, "numbers": dict(step.numbers)}
