"""Which change reaches a goal: for each lever the smallest setting that suffices, found by runs, ranked.

It is handed a function that runs a change (`Simulate`), what the base is made of (`Facts`) and a goal,
and knows no engine. Nothing is claimed that was not run: each answer carries the outcome that
suffices and the next smaller one that does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from analyzer.advice_answers import (
    Asked,
    answer_of,
    goodput,
    judged_goodput,
    rank,
)
from analyzer.advice_memory import least_memory
from analyzer.advice_pairs import pairs_of
from analyzer.advice_parts import (
    ENOUGH,
    HARDLY,
    HELPS,
    IDLE,
    MET,
    NOISE_FRAC,
    NOT_REACHED,
    NOT_TRIED,
    REACHED,
    ROOM,
    STOPPED,
    VERDICTS,
    Advice,
    Answer,
)
from analyzer.advice_words import (
    RULE,
    RULE_GOODPUT,
    RULE_MEMORY,
    label_of,
    sentence_case,
    show_changes,
)
from analyzer.goals import LEAST_MEMORY, MAX_GOODPUT, Goal, say_standing
from analyzer.lever_facts import Facts
from analyzer.lever_ladders import higher_rates, smaller_pools
from analyzer.levers import Lever, levers_of
from analyzer.obstacles import obstacles_of
from analyzer.outcome import Outcome, Simulate
from analyzer.search import Found, Runs, Stopped, best_of, largest_that
from traces.errors import SettingsError

MOST_RUNS = 250
MODELLED = "Times are the cost model's: a setting that is only just enough needs a margin on a real server."


def advise(
    simulate: Simulate,
    facts: Facts,
    goal: Goal,
    *,
    costs: Mapping[str, float] | None = None,
    most_runs: int = MOST_RUNS,
    told: Callable[[int, Mapping[str, Any]], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    levers: Sequence[str] | None = None,
) -> Advice:
    """Run the base and its changes until the goal is answered; most_runs and cancelled end it early.

    costs: device -> money an hour of one GPU; told: called before each run with the number made and the
    changes; levers: names of those to try, None: all. Raises SettingsError where the base cannot run.
    """
    if most_runs < 1:
        raise SettingsError(f"the number of runs must be at least 1, not {most_runs}.")
    runs = Runs(simulate, most_runs, told, cancelled)
    try:
        base = runs({})
    except Stopped:
        raise SettingsError("stopped before the base had run, so there is no advice.") from None
    if base.refused:
        raise SettingsError(base.refused)
    facts = replace(facts, max_running=base.figures.get("max_running"))
    asked = Asked(goal, facts, runs, base, costs or {})
    chosen = [lv for lv in levers_of(facts) if levers is None or lv.name in levers]
    if goal.aim == LEAST_MEMORY:
        return _least(asked)
    if goal.aim == MAX_GOODPUT:
        return _goodput(asked, chosen)
    return _room(asked) if asked.ok(base) else _reach(asked, chosen)


# ---- a goal that is to be reached ----------------------------------------------------------------


def _reach(asked: Asked, levers: Sequence[Lever]) -> Advice:
    answers, complete = _each(asked, levers, _answer)
    pairs: list[Answer] = []
    if complete and not any(a.verdict == ENOUGH for a in answers):
        pairs, complete = pairs_of(asked, answers)
    found = [a for a in (*answers, *pairs) if a.verdict == ENOUGH]
    obstacles: tuple[str, ...] = ()
    if not found:
        obstacles = obstacles_of(asked.goal, asked.facts, asked.base, asked.runs.outcomes())
    state = REACHED if found else (NOT_REACHED if complete else STOPPED)
    return _advice(asked, state, answers, pairs, obstacles, complete, RULE)


def _each(
    asked: Asked, levers: Sequence[Lever], answer: Callable[[Asked, Lever], Answer]
) -> tuple[list[Answer], bool]:
    """An answer of each lever, and whether the runs sufficed for all of them."""
    answers: list[Answer] = []
    for i, lever in enumerate(levers):
        idle = lever.idle(asked.facts)
        if idle:
            answers.append(Answer((lever.name,), IDLE, f"changes nothing: {idle}"))
            continue
        try:
            answers.append(answer(asked, lever))
        except Stopped:
            answers += [
                Answer((lv.name,), NOT_TRIED, "not tried: the runs that were allowed are used up")
                for lv in levers[i:]
            ]  # fmt: skip
            return answers, False
    return answers, True


def _answer(asked: Asked, lever: Lever) -> Answer:
    """What a lever can do for the goal, along whichever of its ladders does more."""
    found = [
        answer_of(asked, lever, ladder)
        for ladder in lever.ladders(asked.facts)
        if len(ladder.values)
    ]
    if not found:
        return Answer((lever.name,), IDLE, "there is no other value to try")
    best = min(found, key=rank)
    return replace(best, num_values=sum(a.num_values for a in found))


# ---- a goal that is met --------------------------------------------------------------------------


def _room(asked: Asked) -> Advice:
    """How much more load, and how much less memory, the base could take."""
    answers: list[Answer] = []
    complete = True
    plans = [("num_gpu_blocks", smaller_pools(asked.facts))]
    if asked.facts.rate_rps is not None:
        plans.insert(0, ("rate_scale", higher_rates(asked.facts)))
    for name, ladder in plans:
        try:
            found = largest_that(ladder.values, partial(_alone, asked, name), asked.ok)
        except Stopped:
            complete = False
            break
        answers.append(_room_answer(asked, name, found))
    return _advice(asked, MET, answers, [], (), complete, RULE)


def _alone(asked: Asked, name: str, value: Any) -> Outcome:
    return asked.runs({name: value})


def _room_answer(asked: Asked, name: str, found: Found) -> Answer:
    outcome, beyond = found.outcome, found.below
    fails = ""
    if beyond is not None:
        known = beyond.refused or say_standing(asked.goal, beyond)
        fails = f"not with {show_changes(beyond.changes, asked.facts)} ({known})"
    if outcome is None:
        said = f"no room: {fails or 'there is nothing smaller to try'}"
    else:
        what = show_changes(outcome.changes, asked.facts)
        said = f"still met with {what} ({say_standing(asked.goal, outcome)})"
        said += f", {fails}" if fails else ""
    return Answer(
        (name,),
        ROOM,
        said,
        asked.option(outcome) if outcome else None,
        beyond,
        found.is_monotone,
        shortfall=0.0,
        num_values=len(found.tried),
    )


# ---- the most or the least of something ----------------------------------------------------------


def _goodput(asked: Asked, levers: Sequence[Lever]) -> Advice:
    answers, complete = _each(asked, levers, _best)
    pairs: list[Answer] = []
    if complete:
        pairs, complete = pairs_of(asked, answers)
    answers.sort(key=_rank_goodput)
    pairs.sort(key=_rank_goodput)
    gain = any(a.verdict == HELPS for a in (*answers, *pairs))
    state = REACHED if gain else (NOT_REACHED if complete else STOPPED)
    obstacles: tuple[str, ...] = ()
    if not gain:
        obstacles = obstacles_of(asked.goal, asked.facts, asked.base, asked.runs.outcomes())
    return _advice(asked, state, answers, pairs, obstacles, complete, RULE_GOODPUT)


def _best(asked: Asked, lever: Lever) -> Answer:
    """The smallest change of a lever with which about as many requests per second are good as can be."""
    ladders = lever.ladders(asked.facts)
    if lever.name == "rate_scale":
        ladders = [*ladders, higher_rates(asked.facts)]
    bests, num_values = [], 0
    for ladder in ladders:
        run = partial(_alone, asked, lever.name)
        found = best_of(ladder.values, run, goodput, noise_frac=NOISE_FRAC)
        bests += [found.outcome] if found.outcome else []
        num_values += len(found.tried)
    if not bests:
        return Answer((lever.name,), IDLE, "there is no other value to try")
    return judged_goodput(asked, (lever.name,), max(bests, key=goodput), num_values)


def _rank_goodput(answer: Answer) -> tuple[Any, ...]:
    """By goodput in steps of the noise, then by price."""
    price = answer.option.price.rank if answer.option else ()
    good = max(-answer.shortfall, 1e-9) if answer.option else 1e-9
    return (VERDICTS.index(answer.verdict), -round(math.log(good) / NOISE_FRAC), price)


def _least(asked: Asked) -> Advice:
    answers, complete = least_memory(asked)
    found = any(a.verdict in (ENOUGH, ROOM) for a in answers)
    obstacles: tuple[str, ...] = ()
    if not found:
        obstacles = obstacles_of(asked.goal, asked.facts, asked.base, asked.runs.outcomes())
    state = REACHED if found else (NOT_REACHED if complete else STOPPED)
    return _advice(asked, state, answers, [], obstacles, complete, RULE_MEMORY)


# ---- all of it -----------------------------------------------------------------------------------


def _advice(
    asked: Asked,
    state: str,
    answers: Sequence[Answer],
    pairs: Sequence[Answer],
    obstacles: tuple[str, ...],
    complete: bool,
    rule: str,
) -> Advice:
    ranked = tuple(sorted(answers, key=rank)) if rule == RULE else tuple(answers)
    paired = tuple(sorted(pairs, key=rank)) if rule == RULE else tuple(pairs)
    notes = [MODELLED]
    if not complete:
        notes.append(
            f"Stopped after {asked.runs.num_run:,} runs: levers that are not tried may be the better ones. Allow more runs."
        )
    return Advice(
        asked.goal,
        asked.base,
        state,
        _summary(asked, state, ranked, paired),
        ranked,
        paired,
        obstacles,
        asked.runs.num_run,
        tuple(notes),
        rule,
    )


def _summary(
    asked: Asked, state: str, answers: Sequence[Answer], pairs: Sequence[Answer]
) -> str:
    """The answer in a sentence or two."""
    goal, base = asked.goal, asked.base
    standing = say_standing(goal, base)
    if state == MET:
        full = base.figures.get("peak_used_frac")
        peak = f"; the pool was at most {100 * full:.0f} % full" if full is not None else ""
        return f"The goal is met already ({standing}{peak}): no change is needed."
    first = next(iter([*answers, *pairs]), None)
    if goal.aim == MAX_GOODPUT:
        best = min([*answers, *pairs], key=_rank_goodput, default=None)
        if best is None or best.verdict != HELPS or best.option is None:
            return f"No change gives more good requests than the base ({standing})."
        return f"{sentence_case(show_changes(best.option.changes, asked.facts))} gives most: {say_standing(goal, best.option.outcome)}, against {standing} at the base. {_cost(goal, best)}"
    if goal.aim == LEAST_MEMORY:
        if first is None or first.verdict not in (ENOUGH, ROOM):
            return f"No pool that was tried keeps it: {standing} at the base."
        return f"{sentence_case(first.sentence)}. {_cost(goal, first)}"
    enough = [a for a in (*answers, *pairs) if a.verdict == ENOUGH]
    if enough:
        how = "change" if len(enough[0].levers) == 1 else "pair of changes"
        return f"{len(enough):,} {how}{'' if len(enough) == 1 else 's'} of {len(answers) + len(pairs):,} reach it. First: {label_of(enough[0].levers)}, {enough[0].sentence}. {_cost(goal, enough[0])}"
    near = [a for a in (*answers, *pairs) if a.verdict in (HELPS, HARDLY)]
    best = min(near, key=lambda a: a.shortfall, default=None)
    if best is None or best.option is None:
        return f"Nothing that was tried brings the base ({standing}) nearer to the goal."
    return f"Nothing that was tried reaches it. The nearest is {show_changes(best.option.changes, asked.facts)}: {say_standing(goal, best.option.outcome)}, {standing} at the base."


def _cost(goal: Goal, answer: Answer) -> str:
    """What the first answer gives and takes: 'Preemption ends, and requests wait longer: TTFT p50 +18.6 %.'"""
    if answer.option is None or not answer.option.changes:
        return "It costs nothing: that is the base."
    price = answer.option.price
    traded = price.traded()
    other = [s for s in price.sentences() if s not in traded]
    said = f"Its price: {'; '.join(other)}." if other else ""
    if traded:
        waits = any(k.startswith(("ttft_s", "e2e_s")) for k in price.later or {})
        worse = "requests wait longer" if waits else "other figures get worse"
        gained = "The goal is met"
        if goal.aim:
            gained = "More requests are good" if goal.aim == MAX_GOODPUT else "The goal is kept"
        elif goal.no_preemption:
            gained = "Preemption ends"
        said += f"{' ' if said else ''}{gained}, and {worse}: {', '.join(traded)}."
    return said or "Its price: none but the flag."
