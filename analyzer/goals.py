"""What is wanted of a run: no preemption, bounds on latency, the most goodput, or the least memory.

It knows how a goal is written, whether an outcome meets it, and how far it is from that. How it can be
reached is `advice.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analyzer.outcome import Outcome
from analyzer.words import label, show
from traces.errors import SettingsError

NO_PREEMPTION = "no-preemption"
MAX_GOODPUT = "max-goodput"
LEAST_MEMORY = "least-memory"
METRICS = {"ttft": "ttft_s", "tpot": "tpot_s", "e2e": "e2e_s", "queue": "queue_s"}
STATISTICS = ("mean", "p50", "p90", "p99")
_BOUND = re.compile(r"(ttft|tpot|e2e|queue)(?:-(mean|p50|p90|p99))?\s*(?:<=|=)\s*([^\s]+?)\s*(ms|s)?")  # fmt: skip
FORMS = (
    f"{NO_PREEMPTION}, ttft-p99=2.0 (or tpot, e2e, queue; mean, p50, p90, p99; in seconds), "
    f"{MAX_GOODPUT} with bounds of each request such as ttft=2.0, or {LEAST_MEMORY}"
)
# Figures in which a run must not fail whatever the goal is: somebody was not served.
_UNSERVED = ("num_refused", "num_unfinished")


@dataclass(frozen=True)
class Bound:
    """metric: 'ttft_s'; statistic: 'p99', "" for each single request; limit_s: at most so much."""

    metric: str
    statistic: str
    limit_s: float

    @property
    def key(self) -> str:
        return f"{self.metric} {self.statistic}".strip()

    def __str__(self) -> str:
        return f"{label(self.key)} at most {show(self.metric, self.limit_s)}"


@dataclass(frozen=True)
class Goal:
    """no_preemption, bounds: all must hold; aim: "" or what is to be made most or least of."""

    no_preemption: bool = False
    bounds: tuple[Bound, ...] = ()
    aim: str = ""

    @property
    def metrics(self) -> frozenset[str]:
        """Figures that decide whether it is met."""
        found = {b.metric for b in self.bounds}
        return frozenset(found | ({"num_preemptions"} if self.no_preemption else set()))

    @property
    def request_bounds(self) -> Mapping[str, float] | None:
        """Bounds of each request, of which goodput is counted; None where goodput is no aim."""
        if self.aim != MAX_GOODPUT:
            return None
        return {b.metric: b.limit_s for b in self.bounds}

    def __str__(self) -> str:
        wanted = ["no preemption"] if self.no_preemption else []
        wanted += [str(b) for b in self.bounds]
        together = " and ".join(wanted)
        if self.aim == MAX_GOODPUT:
            return f"most requests per second with {together}"
        return f"least KV memory with {together}" if self.aim == LEAST_MEMORY else together


def parse_goals(texts: Sequence[str]) -> Goal:
    """One goal of all that were given. Raises SettingsError for what cannot be wanted."""
    bounds: list[Bound] = []
    no_preemption, aims = False, set()
    for text in texts:
        plain = text.strip().lower()
        if plain == NO_PREEMPTION:
            no_preemption = True
        elif plain in (MAX_GOODPUT, LEAST_MEMORY):
            aims.add(plain)
        else:
            bounds.append(_bound(text, plain))
    if len(aims) > 1:
        raise SettingsError(
            f"{MAX_GOODPUT} and {LEAST_MEMORY} cannot both be aimed at. Ask one at a time."
        )
    aim = aims.pop() if aims else ""
    keys = [b.metric if aim == MAX_GOODPUT else b.key for b in bounds]
    twice = next((k for k in keys if keys.count(k) > 1), None)
    if twice is not None:
        raise SettingsError(f"{label(twice)} has two bounds. Give the smaller one.")
    if aim == MAX_GOODPUT:
        return _goodput(tuple(bounds), no_preemption)
    for b in bounds:
        if not b.statistic:
            name = next(k for k, v in METRICS.items() if v == b.metric)
            raise SettingsError(
                f"the bound on {label(b.metric)} names no percentile. Write {name}-p99={b.limit_s:g}, or add --goal {MAX_GOODPUT} for a bound of each request."
            )
    if aim == LEAST_MEMORY and not bounds:
        no_preemption = True
    if not (no_preemption or bounds):
        raise SettingsError(f"there is no goal. Give {FORMS}.")
    return Goal(no_preemption, tuple(bounds), aim)


def _goodput(bounds: tuple[Bound, ...], no_preemption: bool) -> Goal:
    if no_preemption:
        raise SettingsError(
            f"{MAX_GOODPUT} counts requests within bounds, whether somebody was preempted or not. Leave {NO_PREEMPTION} away, or ask it by itself."
        )
    if not bounds:
        raise SettingsError(
            f"{MAX_GOODPUT} needs bounds that a good request keeps. Add --goal ttft=2.0 or tpot=0.1, in seconds."
        )
    return Goal(False, tuple(Bound(b.metric, "", b.limit_s) for b in bounds), MAX_GOODPUT)


def _bound(text: str, plain: str) -> Bound:
    found = _BOUND.fullmatch(plain)
    if found is None:
        raise SettingsError(f"the goal {text.strip()[:60]!r} is not known. Give {FORMS}.")
    name, statistic, number, unit = found.groups()
    try:
        limit_s = float(number) / (1000 if unit == "ms" else 1)
    except ValueError:
        limit_s = math.nan
    if not 0 < limit_s < math.inf:
        raise SettingsError(
            f"the goal {text.strip()[:60]!r} needs a number of seconds above 0, such as {name}-p99=2.0."
        )
    return Bound(METRICS[name], statistic or "", limit_s)


def figure(figures: Mapping[str, Any], key: str) -> Any:
    """The figure of 'ttft_s p99' or 'num_preemptions'; None where there is none."""
    name, _, statistic = key.partition(" ")
    value = figures.get(name)
    if statistic:
        return value.get(statistic) if isinstance(value, Mapping) else None
    return value


def shortfall(goal: Goal, outcome: Outcome, base: Outcome) -> float:
    """How far an outcome is from the goal: 0 met; else the largest of preemptions as a share of the
    base's, seconds above a bound as a share of it, and 10 plus the share of requests that were not
    served; infinite where it could not run."""
    if outcome.refused:
        return math.inf
    figures = outcome.figures
    far = [0.0]
    unserved = sum(figures.get(name) or 0 for name in _UNSERVED)
    if unserved:
        far.append(10 + unserved / max(1, figures.get("num_requests") or 1))
    if goal.no_preemption:
        num, base_num = figures["num_preemptions"], base.figures.get("num_preemptions") or 1
        far.append(num / base_num if num else 0.0)
    if goal.aim != MAX_GOODPUT:
        far += [_above(bound, figures) for bound in goal.bounds]
    return max(far)


def _above(bound: Bound, figures: Mapping[str, Any]) -> float:
    value = figure(figures, bound.key)
    if value is None:  # of single tokens there is no TPOT; of nobody finished there is nothing
        return 0.0 if figures.get("num_finished") else math.inf
    return float(max(0.0, value / bound.limit_s - 1))


def meets(goal: Goal, outcome: Outcome) -> bool:
    """Whether everything that was wanted holds."""
    return shortfall(goal, outcome, outcome) == 0.0


def say_standing(goal: Goal, outcome: Outcome) -> str:
    """Where an outcome stands in the figures that the goal asks for: '4 preemptions, TTFT p99 15.4 s'."""
    if outcome.refused:
        return "it cannot run"
    figures = outcome.figures
    said = []
    unserved = sum(figures.get(name) or 0 for name in _UNSERVED)
    if unserved:
        said.append(f"{unserved:,} requests not served")
    if goal.no_preemption:
        num = figures["num_preemptions"]
        said.append(f"{num:,} preemption{'' if num == 1 else 's'}")
    if goal.aim == MAX_GOODPUT:
        said.append(f"{show('goodput_rps', figures.get('goodput_rps'))} good requests/s")
    else:
        said += [
            f"{label(b.key)} {show(b.metric, figure(figures, b.key))}" for b in goal.bounds
        ]
    return ", ".join(said)
