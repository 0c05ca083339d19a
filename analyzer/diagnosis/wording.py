"""One of a thing is no plural: "1 requests wait" -> "1 request waits", in every sentence of a diagnosis.

Sentences are put together from numbers where they arise; here they are gone over once, at the end. It knows the
nouns and verbs that such sentences use, and changes nothing else.
"""

from __future__ import annotations

import re
from dataclasses import replace

from analyzer.diagnosis.findings import Diagnosis, Missing, NextStep, Proof, Step

_NOUNS = (
    "request|sample|time|preemption|block|line|scrape|gap|token|rank|run|victim|number|step|stair|prompt|sequence|client"
    "|group|replica|device|state|page|counter|event|server|source|lookup|swap|retraction|second|minute|finished request"
    "|running request|waiting request"
)
_VERBS = {
    "wait": "waits", "run": "runs", "need": "needs", "fit": "fits", "are": "is", "were": "was", "print": "prints",
    "hold": "holds", "report": "reports", "repeat": "repeats", "take": "takes", "say": "says", "stand": "stands",
}  # fmt: skip
_ONE = re.compile(
    rf"(?<![\w.,:/×+*=-])(?<![x/+=–<>≤] )(?<!to )1 ({_NOUNS})s\b(?: ({'|'.join(_VERBS)})\b)?"
)


def singular(text: str) -> str:
    """The text with "1 requests" and the like set right; ranges ("0 to 1 requests") stay as they are."""

    def one(m: re.Match[str]) -> str:
        return f"1 {m[1]}" + (f" {_VERBS[m[2]]}" if m[2] else "")

    return _ONE.sub(one, text)


def worded(found: Diagnosis) -> Diagnosis:
    """The diagnosis with all its sentences gone over."""

    def step(s: Step) -> Step:
        return replace(s, change=singular(s.change), effect=singular(s.effect))

    following = found.next_step
    return replace(
        found,
        verdicts=tuple(replace(v, statement=singular(v.statement)) for v in found.verdicts),
        proofs=tuple(Proof(singular(p.sentence), p.numbers, p.lines) for p in found.proofs),
        excluded={k: singular(v) for k, v in found.excluded.items()},
        inferred={singular(k): singular(v) for k, v in found.inferred.items()},
        missing=tuple(Missing(singular(m.what), singular(m.settle)) for m in found.missing),
        next_step=NextStep(
            step(following.first),
            tuple(step(s) for s in following.alternatives),
            tuple(singular(u) for u in following.useless),
        ),
        notes=tuple(singular(n) for n in found.notes),
    )
