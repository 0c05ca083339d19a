"""Two levers together, where none suffices alone: the ones that came nearest, and what copies hang on.

It combines settings that were found for single levers, and makes both smaller again where the pair
suffices.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations
from typing import Any

from analyzer.advice_answers import (
    Asked,
    answer_of,
    enough,
    goodput,
    judged_goodput,
    not_enough,
)
from analyzer.advice_parts import HELPS, NOISE_FRAC, Answer
from analyzer.goals import MAX_GOODPUT
from analyzer.levers import LEVERS
from analyzer.outcome import Outcome
from analyzer.search import Found, Stopped, smallest_that

MOST_LEVERS = 4  # of those that help, all pairs of which are run
MOST_SHRUNK = 4  # pairs that suffice, of which the smallest settings are looked for
# The pool in blocks is given, and with it what these would add to it.
_SETS_POOL = ("num_gpu_blocks",)
_ADDS_TO_POOL = (
    "gpu_memory_utilization", "kv_cache_dtype", "weight_dtype", "tensor_parallel_size", "pipeline_parallel_size",
    "device", "block_size", "max_num_seqs", "max_num_batched_tokens",
)  # fmt: skip
_OF_COPIES = ("host_gib", "copy_path", "copy_mode", "link_gb_per_s")


def pairs_of(asked: Asked, answers: Sequence[Answer]) -> tuple[list[Answer], bool]:
    """Answers of pairs that are nearer to the goal than either lever alone, and whether the runs sufficed."""
    found: list[Answer] = []
    shrunk = 0
    try:
        for one, other in _promising(answers):
            outcome = asked.runs({**_changes(one), **_changes(other)})
            if asked.goal.aim == MAX_GOODPUT:
                found += _more_goodput(asked, one, other, outcome)
            elif not asked.ok(outcome):
                found += _nearer(asked, one, other, outcome)
            elif shrunk < MOST_SHRUNK:
                shrunk += 1
                found.append(_smallest(asked, one, other, outcome))
        found += _with_copies(asked, answers)
    except Stopped:
        return found, False
    return found, True


def _changes(answer: Answer) -> Mapping[str, Any]:
    assert answer.option is not None
    return answer.option.changes


def _promising(answers: Sequence[Answer]) -> Iterator[tuple[Answer, Answer]]:
    helping = [a for a in answers if a.verdict == HELPS and a.option is not None]
    helping.sort(key=lambda a: a.shortfall)
    for one, other in combinations(helping[:MOST_LEVERS], 2):
        names = {one.levers[0], other.levers[0]}
        if not (names & set(_SETS_POOL) and names & set(_ADDS_TO_POOL)):
            yield one, other


def _more_goodput(asked: Asked, one: Answer, other: Answer, outcome: Outcome) -> list[Answer]:
    alone = max(-one.shortfall, -other.shortfall)
    if goodput(outcome) <= alone * (1 + NOISE_FRAC):
        return []
    return [judged_goodput(asked, (*one.levers, *other.levers), outcome, 1)]


def _nearer(asked: Asked, one: Answer, other: Answer, outcome: Outcome) -> list[Answer]:
    alone = min(one.shortfall, other.shortfall)
    if not asked.far(outcome) < alone * (1 - NOISE_FRAC):
        return []
    return [not_enough(asked, (*one.levers, *other.levers), outcome, 1)]


def _smallest(asked: Asked, one: Answer, other: Answer, outcome: Outcome) -> Answer:
    """The pair with the dearer lever made as small as it can be, then the other."""
    pair = sorted(
        (one, other), key=lambda a: a.option.price.rank if a.option else (), reverse=True
    )
    changes = {**_changes(one), **_changes(other)}
    below, last, num_values = asked.base, Found(None, None, {}, True, None), 1
    for answer in pair:
        name = answer.levers[0]
        values = _up_to(asked, name, changes[name])
        if len(values) < 2:
            continue
        beside = {k: v for k, v in changes.items() if k != name}
        found = smallest_that(
            values,
            partial(_beside, asked, beside, name),
            asked.ok,
            distance=asked.far,
        )
        if found.outcome is None:
            continue
        outcome, below, last = found.outcome, found.below or asked.runs(beside), found
        changes = dict(outcome.changes)
        num_values += len(found.tried)
    return enough(asked, (*one.levers, *other.levers), outcome, below, last, num_values)


def _beside(asked: Asked, beside: Mapping[str, Any], name: str, value: Any) -> Outcome:
    return asked.runs({**beside, name: value})


def _up_to(asked: Asked, name: str, value: Any) -> Sequence[Any]:
    """The rungs of the ladder that has this value, up to it."""
    for ladder in LEVERS[name].ladders(asked.facts):
        if ladder.is_ordered and value in ladder.values:
            return ladder.values[: ladder.values.index(value) + 1]
    return ()


def _with_copies(asked: Asked, answers: Sequence[Answer]) -> list[Answer]:
    """What the host's memory, its link and the ways of copying add to another preemption mode."""
    mode = next(
        (a for a in answers if a.levers == ("preemption_mode",) and a.verdict == HELPS), None
    )
    if mode is None or asked.goal.aim == MAX_GOODPUT:
        return []
    found = []
    for name in _OF_COPIES:
        if name not in asked.facts.settings or not LEVERS[name].idle(asked.facts):
            continue
        for ladder in LEVERS[name].ladders(asked.facts):
            answer = answer_of(asked, LEVERS[name], ladder, _changes(mode))
            nearer = answer.shortfall < mode.shortfall * (1 - NOISE_FRAC)
            found += [replace(answer, levers=("preemption_mode", name))] if nearer else []
    return found
