"""The least KV memory that keeps a goal: the smallest pool, alone and with what may make it smaller.

It searches pools in blocks and shares of the device's memory, downwards where the base keeps the goal and
upwards where it does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from analyzer.advice_answers import Asked, settled_of, verdict_of
from analyzer.advice_parts import ENOUGH, NOT_TRIED, ROOM, Answer
from analyzer.advice_words import say_happens, show_changes
from analyzer.goals import say_standing
from analyzer.lever_ladders import (
    Ladder,
    higher_utilization,
    larger_pools,
    lower_utilization,
    smaller_pools,
)
from analyzer.lever_price import pool_gib
from analyzer.levers import LEVERS
from analyzer.outcome import Outcome
from analyzer.search import Found, Stopped, largest_that, smallest_that

WATERMARK = 0.05


def least_memory(asked: Asked) -> tuple[list[Answer], bool]:
    """Answers by the memory they need, least first, and whether the runs sufficed."""
    found: list[Answer] = []
    plans = [(beside, "num_gpu_blocks") for beside in _beside(asked)]
    plans.insert(1, ({}, "gpu_memory_utilization"))
    complete = True
    for beside, name in plans:
        try:
            found.append(_smallest(asked, name, beside))
        except Stopped:
            complete = False
            said = "not tried: the runs that were allowed are used up"
            found.append(Answer((*beside, name), NOT_TRIED, said))
    return sorted(found, key=lambda a: a.shortfall), complete


def _beside(asked: Asked) -> list[Mapping[str, Any]]:
    """Changes with which a smaller pool may do: nothing, 8-bit KV, and settings of admission."""
    facts, settings = asked.facts, asked.facts.settings
    found: list[Mapping[str, Any]] = [{}]
    found += [{"kv_cache_dtype": dtype} for dtype in facts.kv_dtypes]
    if settings["watermark"] < WATERMARK:
        found.append({"watermark": WATERMARK})
    if not settings["scheduler_reserve_full_isl"]:
        found.append({"scheduler_reserve_full_isl": True})
    if not settings["enable_prefix_caching"]:
        found.append({"enable_prefix_caching": True})
    return found


def _smallest(asked: Asked, name: str, beside: Mapping[str, Any]) -> Answer:
    is_pool = name == "num_gpu_blocks"
    now = LEVERS[name].base(asked.facts)

    def run(value: Any) -> Outcome:
        if value == now and not beside:
            return asked.base
        return asked.runs({**beside, name: value})

    start = run(now)
    if asked.ok(start):
        fewer: Ladder = (smaller_pools if is_pool else lower_utilization)(asked.facts)
        found = largest_that(fewer.values, run, asked.ok)
        return _answer(asked, name, beside, found.outcome or start, found, ROOM)
    more = (larger_pools if is_pool else higher_utilization)(asked.facts)[0]
    found = smallest_that(more.values, run, asked.ok, distance=asked.far)
    best = found.outcome or min([start, *found.tried.values()], key=asked.far)
    below = found.below or start
    verdict = ENOUGH if found.outcome else verdict_of(asked, best)
    return _answer(asked, name, beside, best, replace(found, below=below), verdict)


def _answer(
    asked: Asked,
    name: str,
    beside: Mapping[str, Any],
    outcome: Outcome,
    found: Found,
    verdict: str,
) -> Answer:
    happens, below = None, found.below
    if verdict == ENOUGH and not found.is_monotone and found.settled not in (None, found.place):
        happens, (outcome, below) = outcome, settled_of(found, below)
    gib, was = _gib(asked, outcome), _gib(asked, asked.base)
    what = show_changes(outcome.changes, asked.facts)
    standing = say_standing(asked.goal, outcome)
    if verdict not in (ENOUGH, ROOM):
        said = f"no such pool keeps it: at best {standing} at {what}"
    else:
        said = f"kept with {what} ({standing}): {gib:,.2f} GiB of KV on each GPU, {was:,.2f} at the base"
        if below is not None and below is not outcome:
            less = show_changes(below.changes, asked.facts)
            said += f"; not with {less} ({say_standing(asked.goal, below)})"
        if not found.is_monotone and verdict == ENOUGH and (happens or found.settled is None):
            said += say_happens(happens, asked.facts)
        elif not found.is_monotone and verdict == ROOM:
            said += "; some smaller ones keep it again"
    option = None if outcome.refused else asked.option(outcome)
    size = gib if verdict in (ENOUGH, ROOM) else float("inf")
    return Answer(
        (*beside, name),
        verdict,
        said,
        option,
        below,
        found.is_monotone,
        happens,
        size,
        len(found.tried),
    )


def _gib(asked: Asked, outcome: Outcome) -> float:
    """GiB of the pool on each GPU."""
    facts = asked.facts
    blocks = outcome.figures.get("num_gpu_blocks") or facts.num_gpu_blocks
    return pool_gib(blocks, facts.block_bytes_with(outcome.changes)) / facts.num_gpus
