"""What one change, or one lever along a ladder, does for a goal: run, judged and put in words.

It is handed the question (`Asked`) and runs what it needs of it. Which levers are asked, and how answers
stand to each other, is `advice.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from analyzer.advice_parts import (
    ENOUGH,
    HARDLY,
    HARDLY_FRAC,
    HELPS,
    NO_CHANGE,
    NOISE_FRAC,
    REFUSED,
    VERDICTS,
    WORSE,
    Answer,
    Option,
    effects_of,
)
from analyzer.advice_words import say_answer, say_enough, say_happens
from analyzer.goals import Goal, meets, shortfall
from analyzer.lever_facts import Facts
from analyzer.lever_flags import flag_line, note_of, our_flags, routed
from analyzer.lever_ladders import Ladder
from analyzer.lever_price import price_of
from analyzer.levers import Lever
from analyzer.outcome import Outcome
from analyzer.search import LONG, Found, Runs, smallest_that
from traces.routing import ROUTERS


@dataclass(frozen=True)
class Asked:
    """One question: what is wanted, of which base, and how changes are run and paid for."""

    goal: Goal
    facts: Facts
    runs: Runs
    base: Outcome
    costs: Mapping[str, float]

    def ok(self, outcome: Outcome) -> bool:
        return not outcome.refused and meets(self.goal, outcome)

    def far(self, outcome: Outcome) -> float:
        return shortfall(self.goal, outcome, self.base)

    def option(self, outcome: Outcome) -> Option:
        """The outcome with its effect, price and flags."""
        changes, settings = outcome.changes, self.facts.settings
        notes = [note_of(name, value) for name, value in changes.items()]
        if changes.get("replicas", 1) != 1:
            notes.append(routed(changes.get("router", ROUTERS[0])))
        return Option(
            changes,
            outcome,
            effects_of(self.base, outcome),
            price_of(changes, self.facts, self.base, outcome, self.costs),
            flag_line(changes, settings),
            our_flags(changes),
            tuple(dict.fromkeys(n for n in notes if n)),
        )


def answer_of(
    asked: Asked, lever: Lever, ladder: Ladder, beside: Mapping[str, Any] | None = None
) -> Answer:
    """What a lever can do along one ladder. beside: changes that are made with it."""
    beside = beside or {}

    def run(value: Any) -> Outcome:
        return asked.runs({**beside, lever.name: value})

    if ladder.is_ordered:
        found = smallest_that(
            ladder.values,
            run,
            asked.ok,
            distance=asked.far,
            far_first=len(ladder.values) > LONG and asked.goal.metrics <= ladder.falls,
        )
        outcome = found.outcome
    else:
        found = Found(None, None, {i: run(v) for i, v in enumerate(ladder.values)}, True, 0)
        good = [o for o in found.tried.values() if asked.ok(o)]
        outcome = min(good, key=lambda o: asked.option(o).price.rank, default=None)
    levers = (*beside, lever.name)
    if outcome is None:
        nearest = min(found.tried.values(), key=asked.far)
        return not_enough(asked, levers, nearest, len(found.tried))
    below = found.below or (asked.runs(beside) if beside else None)
    return enough(asked, levers, outcome, below, found, len(found.tried))


def enough(
    asked: Asked,
    levers: tuple[str, ...],
    outcome: Outcome,
    below: Outcome | None,
    found: Found,
    num_values: int,
) -> Answer:
    """The answer of an outcome that meets the goal. below: the next smaller change, None for the base;
    found: what the search along the last ladder says of larger ones."""
    happens = None
    if not found.is_monotone and found.settled not in (None, found.place):
        happens, (outcome, below) = outcome, settled_of(found, below)
    said = say_enough(asked.goal, outcome, below, asked.base, asked.facts)
    if not found.is_monotone and (happens or found.settled is None):
        said += say_happens(happens, asked.facts)
    return Answer(
        levers,
        ENOUGH,
        said,
        asked.option(outcome),
        below,
        found.is_monotone,
        happens,
        0.0,
        num_values,
    )


def settled_of(found: Found, below: Outcome | None) -> tuple[Outcome, Outcome | None]:
    """The outcome from which on all that were tried suffice, and the one before, which fails; that
    stays as given where none before was tried."""
    assert found.settled is not None, "there is a place from which on none fails"
    before = max((p for p in found.tried if p < found.settled), default=None)
    return found.tried[found.settled], below if before is None else found.tried[before]


def not_enough(
    asked: Asked, levers: tuple[str, ...], nearest: Outcome, num_values: int
) -> Answer:
    """The answer of the outcome that came nearest to the goal and does not meet it."""
    verdict = verdict_of(asked, nearest)
    return Answer(
        levers,
        verdict,
        say_answer(verdict, asked.goal, asked.base, nearest, asked.facts),
        None if nearest.refused else asked.option(nearest),
        shortfall=asked.far(nearest),
        num_values=num_values,
    )


def verdict_of(asked: Asked, outcome: Outcome) -> str:
    """Of an outcome that does not meet the goal: nearer to it than the base, or not."""
    if outcome.refused:
        return REFUSED
    was, now = asked.far(asked.base), asked.far(outcome)
    if now == was or abs(now - was) < NOISE_FRAC * was:
        return NO_CHANGE
    if now > was:
        return WORSE
    return HELPS if was - now >= HARDLY_FRAC * was else HARDLY


def rank(answer: Answer) -> tuple[Any, ...]:
    """Best first: what suffices by its price, what helps by how near it comes."""
    place = VERDICTS.index(answer.verdict)
    price = answer.option.price.rank if answer.option else ()
    return (place, price) if answer.verdict == ENOUGH else (place, answer.shortfall, price)


def judged_goodput(
    asked: Asked, levers: tuple[str, ...], best: Outcome, num_values: int
) -> Answer:
    """The answer of a change whose goodput is the best that was found."""
    was, now = goodput(asked.base), goodput(best)
    verdict = REFUSED if best.refused else NO_CHANGE
    if not best.refused and abs(now - was) > NOISE_FRAC * was:
        verdict = HELPS if now > was else WORSE
    return Answer(
        levers,
        verdict,
        say_answer(verdict, asked.goal, asked.base, best, asked.facts),
        None if best.refused else asked.option(best),
        shortfall=-now,
        num_values=num_values,
    )


def goodput(outcome: Outcome) -> float:
    """Good requests per second; below all others where it could not run."""
    value = outcome.figures.get("goodput_rps")
    return float(value) if value is not None and not outcome.refused else -1.0
