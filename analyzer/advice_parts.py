"""What advice is made of: an option with its effect and price, an answer for each lever, and all of it.

It holds values and their JSON; `advice.py` finds them, `advice_words.py` says them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from analyzer.goals import Goal, figure
from analyzer.lever_price import Price
from analyzer.outcome import Outcome

NOISE_FRAC = 0.01  # a change below it is none: the model is not that exact
HARDLY_FRAC = 0.1  # of the way to the goal; what does less hardly helps
EFFECTS = (
    "num_preemptions", "recomputed_frac", "output_tokens_per_s", "goodput_rps", "ttft_s p50", "ttft_s p99",
    "tpot_s p50", "tpot_s p99", "e2e_s p99",
)  # fmt: skip
MORE_IS_BETTER = ("output_tokens_per_s", "goodput_rps")
# Of a lever, in the order in which they are listed.
ENOUGH, ROOM, HELPS, HARDLY, NO_CHANGE, WORSE, REFUSED, IDLE, NOT_TRIED = VERDICTS = (
    "enough", "room", "helps", "hardly helps", "no change", "worse", "cannot run", "idle", "not tried",
)  # fmt: skip
MET, REACHED, NOT_REACHED, STOPPED = STATES = ("met", "reached", "not reached", "stopped")


@dataclass(frozen=True)
class Effect:
    """A figure at the base and now. change_frac: of the base, None where that is 0; word: "better",
    "worse", or "no change" below NOISE_FRAC."""

    metric: str
    base: float
    now: float
    change_frac: float | None
    word: str


@dataclass(frozen=True)
class Option:
    """A change that was run. flag: to paste behind `vllm serve MODEL`, "" where vLLM has none; command:
    the same for `python -m engine simulate`; notes: what has to be known beside it."""

    changes: Mapping[str, Any]
    outcome: Outcome
    effects: tuple[Effect, ...]
    price: Price
    flag: str
    command: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Answer:
    """What one lever, or two together, can do for the goal.

    levers: their names; verdict: of VERDICTS; option: the smallest that suffices and from which on none
    that was tried failed, else the nearest to the goal, None where nothing ran; below: the next smaller
    change, which does not suffice, None where that is the base; is_monotone: false where a larger change
    than one that suffices failed again; happens: then the smallest that happened to suffice, where that
    is not the option; shortfall: as in `goals.py`, of the option; num_values: that
    were run.
    """

    levers: tuple[str, ...]
    verdict: str
    sentence: str
    option: Option | None = None
    below: Outcome | None = None
    is_monotone: bool = True
    happens: Outcome | None = None
    shortfall: float = float("inf")
    num_values: int = 0


@dataclass(frozen=True)
class Advice:
    """All that was found. state: of STATES; summary: in a sentence or two; answers: best first; pairs: two
    levers together, where none sufficed alone; obstacles: what stands in the way of a goal that nothing
    reached; num_runs: made; notes: what limits it; rule: how answers are ranked."""

    goal: Goal
    base: Outcome
    state: str
    summary: str
    answers: tuple[Answer, ...]
    pairs: tuple[Answer, ...]
    obstacles: tuple[str, ...]
    num_runs: int
    notes: tuple[str, ...]
    rule: str

    def proofs(self) -> list[Outcome]:
        """Outcomes that a sentence rests on: the base, each option, the change below it and one that happened to suffice."""
        found = [self.base]
        for answer in (*self.answers, *self.pairs):
            found += [answer.option.outcome] if answer.option else []
            found += [o for o in (answer.below, answer.happens) if o]
        return found

    def as_json(self) -> dict[str, Any]:
        """Plain values under documented names (docs/advice.md)."""
        return {
            "goal": str(self.goal),
            "state": self.state,
            "summary": self.summary,
            "obstacles": list(self.obstacles),
            "base": _outcome_json(self.base),
            "answers": [_answer_json(a) for a in self.answers],
            "pairs": [_answer_json(a) for a in self.pairs],
            "num_runs": self.num_runs,
            "rule": self.rule,
            "notes": list(self.notes),
        }


def effects_of(base: Outcome, outcome: Outcome) -> tuple[Effect, ...]:
    """The figures of EFFECTS that both have."""
    found = []
    for metric in EFFECTS:
        was, now = figure(base.figures, metric), figure(outcome.figures, metric)
        if was is None or now is None:
            continue
        change = now / was - 1 if was else None
        same = now == was or (change is not None and abs(change) < NOISE_FRAC)
        better = (now > was) == (metric in MORE_IS_BETTER)
        word = NO_CHANGE if same else ("better" if better else "worse")
        found.append(Effect(metric, was, now, change, word))
    return tuple(found)


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    figures = {m: figure(outcome.figures, m) for m in EFFECTS}
    return {
        "changes": dict(outcome.changes),
        "figures": figures,
        "num_gpu_blocks": outcome.figures.get("num_gpu_blocks"),
        "num_refused": outcome.figures.get("num_refused"),
        "recordings": [str(path) for path in outcome.recordings],
        "refused": outcome.refused,
    }


def _answer_json(answer: Answer) -> dict[str, Any]:
    option = answer.option
    said: dict[str, Any] = {
        "levers": list(answer.levers),
        "verdict": answer.verdict,
        "sentence": answer.sentence,
        "is_monotone": answer.is_monotone,
        "num_values": answer.num_values,
        "option": None,
        "happens": None if answer.happens is None else _outcome_json(answer.happens),
        "below": None if answer.below is None else _outcome_json(answer.below),
    }
    if option is not None:
        said["option"] = {
            **_outcome_json(option.outcome),
            "flag": option.flag,
            "command": option.command,
            "effects": [asdict(e) for e in option.effects],
            "price": {**asdict(option.price), "said": option.price.sentences()},
            "notes": list(option.notes),
        }
    return said
