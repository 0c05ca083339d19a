"""What another router, or more replicas, would have done: figures beside each other, and in words.

It knows variants by their figures (`fleet_figures.py`), which of them were measured and which were
modelled, and goals. Runs are made elsewhere and handed in as functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from analyzer.outcome import Outcome
from analyzer.search import Found, smallest_that
from analyzer.words import label, percent, show
from traces.errors import SettingsError

RECORDED, AS_RECORDED = "recorded", "as-recorded"
ROUTER_TITLES = {
    "round-robin": "Round-robin",
    "least-requests": "Least outstanding requests",
    "least-tokens": "Least outstanding KV tokens",
    "prefix-affinity": "Prefix affinity",
}
_SHORT = {
    RECORDED: "Recorded",
    AS_RECORDED: "Simulated as recorded",
    "round-robin": "Round-robin",
    "least-requests": "Least requests",
    "least-tokens": "Least KV tokens",
    "prefix-affinity": "Prefix affinity",
}
MOST_REPLICAS = 64
NO_PREEMPTION, TTFT_P99 = "no-preemption", "ttft-p99"
ROWS = (
    "num_replicas", "num_requests", "num_finished", "num_preemptions", "recomputed_frac", "ttft_s p50", "ttft_s p99",
    "tpot_s p99", "e2e_s p99", "output_tokens_per_s", "duration_s", "mean_used_frac", "max_rank_used_frac",
    "peak_used_frac", "imbalance", "full_while_room_frac", "waiting_fits_mean",
)  # fmt: skip
LABELS = {
    "num_replicas": "Replicas",
    "mean_used_frac": "Mean use of the pools",
    "max_rank_used_frac": "Mean use of the fullest rank",
    "imbalance": "Imbalance (fullest over mean)",
    "peak_imbalance": "Largest imbalance",
    "full_while_room_frac": "One full while another has room",
    "waiting_fits_mean": "Waiting that fits elsewhere",
    "waiting_fits_frac": "Fits elsewhere, of all waiting",
}


@dataclass(frozen=True)
class Variant:
    """key: "recorded", "as-recorded" or a router; how: "measured", "modelled", ... ; figures: by name."""

    key: str
    how: str
    figures: Mapping[str, Any]

    @property
    def title(self) -> str:
        return _SHORT[self.key]


def how_known(clocks: Iterable[str | None]) -> str:
    """ "measured", "modelled", or both: how the times of recordings with these clocks are known."""
    kinds = {"measured" if clock == "measured" else "modelled" for clock in clocks}
    return " and ".join(sorted(kinds))


def in_sentence(rule: str) -> str:
    """A router's name within a sentence: its first letter small, "KV" as it is."""
    title = ROUTER_TITLES.get(rule, rule)
    return title[:1].lower() + title[1:]


def figure(figures: Mapping[str, Any], metric: str) -> float | None:
    """A figure by its flat name, such as "ttft_s p99"; None where it is not known."""
    name, _, which = metric.partition(" ")
    value = figures.get(name)
    if which:
        value = value.get(which) if isinstance(value, Mapping) else None
    return None if value is None else float(value)


def name_of(metric: str) -> str:
    """A figure's label."""
    return LABELS.get(metric) or label(metric)


def routing_table(variants: Sequence[Variant]) -> pl.DataFrame:
    """A row per figure, a column per variant, as people read them; the first row says how it is known."""
    columns: dict[str, list[str]] = {"Figure": ["Times are", *(name_of(m) for m in ROWS)]}
    for variant in variants:
        columns[variant.title] = [
            variant.how,
            *(show(m, figure(variant.figures, m)) for m in ROWS),
        ]
    return pl.DataFrame(columns)


def say_routing(base: Variant, routed: Variant) -> str:
    """What the rule changes against a simulated variant, in a sentence."""
    said = []
    for metric, name in (
        ("num_preemptions", "preemptions"),
        ("ttft_s p99", "TTFT p99"),
        ("output_tokens_per_s", "output tokens per second"),
        ("imbalance", "imbalance"),
    ):
        a, b = figure(base.figures, metric), figure(routed.figures, metric)
        if a is not None and b is not None:
            said.append(f"{name} {show(metric, a)} -> {show(metric, b)}")
    return f"{ROUTER_TITLES[routed.key]} against {_as_baseline(base)}: {', '.join(said)}."


def _as_baseline(base: Variant) -> str:
    return {AS_RECORDED: "the recorded split", RECORDED: "what was recorded"}.get(
        base.key, in_sentence(base.key)
    )


def say_fit(recorded: Variant, again: Variant) -> str:
    """How far the simulator, at the recorded split, is from what was recorded."""
    said = []
    for metric in ("num_preemptions", "output_tokens_per_s", "ttft_s p99", "mean_used_frac"):
        a, b = figure(recorded.figures, metric), figure(again.figures, metric)
        if a is None or b is None:
            continue
        change = f" ({(b - a) / a:+.1%})".replace("%", " %").replace("-", "−") if a else ""
        said.append(f"{name_of(metric)} {show(metric, a)} recorded, {show(metric, b)} simulated{change}")  # fmt: skip
    return f"The simulator at the recorded split: {'; '.join(said)}."


# ---- replicas needed -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """What is to be met. kind: "no-preemption", or "ttft-p99" with its bound."""

    kind: str
    ttft_p99_s: float | None = None

    def __post_init__(self) -> None:
        if self.kind == TTFT_P99 and not (self.ttft_p99_s and 0 < self.ttft_p99_s < 1e9):
            raise SettingsError(
                f"the bound of TTFT p99 must be a positive number of seconds, not {self.ttft_p99_s!r}."
            )

    def __str__(self) -> str:
        if self.kind == NO_PREEMPTION:
            return "no preemption"
        return f"TTFT p99 of at most {show('ttft_s', self.ttft_p99_s)}"

    def away(self, figures: Mapping[str, Any]) -> float:
        """How far figures are from the goal, 0 where it is met."""
        unserved = figure(figures, "num_unserved") or 0.0
        if self.kind == NO_PREEMPTION:
            return (figure(figures, "num_preemptions") or 0.0) + unserved
        found = figure(figures, "ttft_s p99")
        if found is None or self.ttft_p99_s is None:
            return float("inf")
        return max(0.0, found - self.ttft_p99_s) + unserved


@dataclass(frozen=True)
class Needed:
    """num: the fewest replicas tried with which the goal is met while one less fails, None where none
    is; tried: replicas -> figures; is_monotone: no smaller number met it."""

    goal: Goal
    num: int | None
    tried: Mapping[int, Mapping[str, Any]]
    is_monotone: bool


def replicas_needed(
    run: Callable[[int], Mapping[str, Any]], goal: Goal, start: int, most: int = MOST_REPLICAS
) -> Needed:
    """Search the smallest number of replicas. run: number -> figures; start: looked at first.

    Raises what `run` raises.
    """
    known: dict[int, Mapping[str, Any]] = {}

    def outcome(number: int) -> Outcome:
        if number not in known:
            known[number] = run(number)
        return Outcome({"replicas": number}, known[number], ())

    def suffices(found: Outcome) -> bool:
        return goal.away(found.figures) == 0

    start = min(max(start, 1), most)
    meets = suffices(outcome(start))
    ladder = list(range(1, start + 1)) if meets else list(range(start + 1, most + 1))
    found: Found = smallest_that(
        ladder, outcome, suffices, distance=lambda o: goal.away(o.figures)
    )
    num = None if found.place is None else ladder[found.place]
    passed = [goal.away(known[n]) == 0 for n in sorted(known)]
    return Needed(goal, num, dict(sorted(known.items())), passed == sorted(passed))


def say_needed(found: Needed, rule: str, before: Mapping[str, Any]) -> str:
    """The answer in words, with usage before and after. before: figures of the recorded split."""
    with_rule = f"with {in_sentence(rule)}"
    if found.num is None:
        return f"No number of replicas up to {max(found.tried):,} meets the goal ({found.goal}) {with_rule}: the nearest misses it by {_shortest(found)}. Requests that alone fill a pool, or a bound below a single prefill, need another setting."
    after = found.tried[found.num]
    said = f"{found.num:,} {'replica is' if found.num == 1 else 'replicas are'} the fewest that meet the goal ({found.goal}) {with_rule}"
    usage = [figure(f, "max_rank_used_frac") for f in (before, after)]
    peak = [figure(f, "peak_used_frac") for f in (before, after)]
    if all(v is not None for v in (*usage, *peak)):
        said += f": mean use of the fullest rank {percent(usage[0] or 0)} -> {percent(usage[1] or 0)}, its peak {percent(peak[0] or 0)} -> {percent(peak[1] or 0)}"
    tail = "" if found.is_monotone else " A smaller number that was tried met it too, and one between did not: scheduling has anomalies."  # fmt: skip
    return f"{said}.{tail}"


def _shortest(found: Needed) -> str:
    away = min(found.goal.away(f) for f in found.tried.values())
    if found.goal.kind == NO_PREEMPTION:
        return f"{away:,.0f} preemptions or requests not served"
    return show("ttft_s", away)


def needed_table(found: Needed) -> pl.DataFrame:
    """A row for each number of replicas that was tried."""
    rows = ("num_preemptions", "ttft_s p99", "output_tokens_per_s", "mean_used_frac", "max_rank_used_frac", "peak_used_frac", "imbalance")  # fmt: skip
    return pl.DataFrame(
        {
            "Replicas": list(found.tried),
            "Goal": ["met" if found.goal.away(f) == 0 else "missed" for f in found.tried.values()],
            **{name_of(m): [show(m, figure(f, m)) for f in found.tried.values()] for m in rows},
        }
    )  # fmt: skip
