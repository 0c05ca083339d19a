"""What a change of settings does, said in figures: cards, the values of a curve, where preemption ends.

It knows outcomes of trials, which figures are shown of them and when a change is one. Simulating is
somebody else's; how a curve is drawn is in `what_if_figure.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from analyzer.delta_words import say_change
from analyzer.judging import MODELLED_TOLERANCE_FRAC, Rules, judge, share_verdict
from analyzer.outcome import Outcome
from analyzer.what_if_pairs import Pairs
from analyzer.words import show

FIGURES = {
    "num_preemptions": ("Preemptions", "How often a running request lost its KV blocks."),
    "recomputed_frac": ("Recomputed, of all", "Share of all computed tokens that had been computed before."),
    "output_tokens_per_s": ("Output tokens/s", "Output tokens over the run's length, all replicas together."),
    "ttft_s p99": ("TTFT p99", "Arrival to first output token, 99th percentile over finished requests."),
    "tpot_s p99": ("TPOT p99", "Time per output token after the first, 99th percentile over finished requests."),
    "e2e_s p99": ("E2E p99", "Arrival to last output token, 99th percentile over finished requests."),
    "goodput_rps": ("Goodput", "Finished requests per second that met every one of your bounds."),
    "peak_used_frac": ("Peak use of the pool", "Most of the KV pool that was in use at once, of any replica."),
    "full_steps_frac": ("Steps ≥ 98 % full", "Share of steps with at least 98 % of the KV pool in use."),
}  # fmt: skip
CALM_FRAC = 0.98  # below this use of the pool, nothing was pressed
MAX_CLOSER = 16  # more values of a curve, to find where preemption ends
CLOSE_FRAC = 0.02  # of the value: near enough to where preemption ends


def figure(outcome: Outcome, metric: str) -> float | None:
    """A figure by the name that cards have: 'ttft_s p99'. None where it is not known."""
    name, _, which = metric.partition(" ")
    value = outcome.figures.get(name)
    if which:
        value = value.get(which) if isinstance(value, Mapping) else None
    return None if value is None else float(value)


def say(metric: str, value: float | None) -> str:
    """A figure as cards and tables have it: '176', '12.3 ms', '4.37 /s'."""
    if metric == "goodput_rps":
        return "—" if value is None else f"{show('rate', value)} /s"
    return show(metric, value)


@dataclass(frozen=True)
class Change:
    """What became of a figure. words: '▼ 93.2 % better', 'no difference'; tone: good, bad or even."""

    words: str
    tone: str


def change_of(metric: str, base: Outcome, now: Outcome, pairs: Pairs | None = None) -> Change:
    """The figure now against the base's. With pairs by Compare's rule; without, of modelled times
    less than 1 % is no difference."""
    a, b = figure(base, metric), figure(now, metric)
    if a is None or b is None:
        return Change("not comparable", "even")
    name = metric.split()[0]
    duration_s = float(base.figures.get("duration_s") or 0.0)
    rules = pairs.rules if pairs else Rules(MODELLED_TOLERANCE_FRAC, 0.0, duration_s)
    intervals = pairs.intervals if pairs else {}
    judged = "output_tokens_per_s" if name == "goodput_rps" else metric
    verdict, reason = judge(judged, a, b - a, intervals.get(metric), rules)
    if metric == "recomputed_frac" and pairs:
        before, after = (o.figures.get("recomputed_tokens") for o in (base, now))
        delta = None if before is None or after is None else float(after - before)
        lost = judge(
            "recomputed_tokens", before, delta, intervals.get("recomputed_tokens"), rules
        )
        verdict, reason = share_verdict(b - a, delta, lost)
    row = {
        "metric": metric,
        "delta": b - a,
        "delta_frac": (b - a) / abs(a) if a else None,
        "verdict": verdict,
        "reason": reason,
    }
    tone = {"better": "good", "worse": "bad"}.get(verdict or "", "even")
    return Change(say_change(row), tone)


def is_calm(outcomes: Sequence[Outcome]) -> bool:
    """Whether nothing was preempted and no pool was ever full: capacity is not the bound."""
    ran = [o for o in outcomes if not o.refused]
    return bool(ran) and all(
        not o.figures.get("num_preemptions")
        and (o.figures.get("peak_used_frac") or 0.0) < CALM_FRAC
        for o in ran
    )


def say_calm(outcomes: Sequence[Outcome]) -> str:
    """The sentence for a trace without pressure."""
    peak = max((o.figures.get("peak_used_frac") or 0.0 for o in outcomes if not o.refused), default=0.0)  # fmt: skip
    return (
        f"Nothing was preempted; the pool is at most {show('peak_used_frac', peak)} full. More memory changes nothing here: "
        "a smaller pool, a higher rate or fewer replicas show where pressure begins."
    )


def say_ended(outcome: Outcome) -> list[str]:
    """What limits the figures of one outcome: refused and unfinished requests, a run that was stopped."""
    figures, said = outcome.figures, []
    total = figures.get("num_requests") or 0
    if refused := figures.get("num_refused"):
        said.append(
            f"{refused:,} of {total:,} requests are refused: each alone is longer than the pool or max_model_len, so it can never run. Latencies are of the others."
        )
    if unfinished := figures.get("num_unfinished"):
        said.append(f"{unfinished:,} of {total:,} requests did not finish.")
    status = figures.get("status", "completed")
    if status != "completed":
        why = {
            "livelock": "requests preempt each other without end",
            "stalled": "a request waits for blocks that never become free",
            "max_steps": "the largest number of steps was reached",
        }.get(str(status), str(status))
        said.append(f"The run was stopped: {why}. Its figures are of what ran until then.")
    return said


def say_pool(num_gpu_blocks: int, block_size: int) -> str:
    """'2,588 blocks of 16 tokens (2,589 with vLLM's null block, as its flag and the lever count)'."""
    return (
        f"{num_gpu_blocks - 1:,} blocks of {block_size} tokens "
        f"({num_gpu_blocks:,} with vLLM's null block, as its flag and the lever count)"
    )


# ---- how many fit --------------------------------------------------------------------------------


def fits(lengths: np.ndarray, num_gpu_blocks: int, block_size: int) -> dict[str, tuple[int, int]]:  # fmt: skip
    """Requests that fit at once at full length: 'p50', 'p95', 'max' -> (tokens of one, how many).

    lengths: (n,) prompt and output tokens of each; num_gpu_blocks: the null block counted, which
    nobody can use. {} without requests.
    """
    if not len(lengths):
        return {}
    found = {}
    for name, share in (("p50", 0.5), ("p95", 0.95), ("max", 1.0)):
        tokens = int(np.quantile(lengths, share, method="higher"))
        blocks = -(-tokens // block_size)
        found[name] = (tokens, (num_gpu_blocks - 1) // max(1, blocks))
    return found


# ---- the curve -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """A figure's world along one lever. points: policy -> value -> outcome; base, now: the lever's
    value in the base and at the operating point; order: the lever's choices as it offers them."""

    lever: str
    points: Mapping[str, Mapping[Any, Outcome]]
    base: Any
    now: Any
    order: tuple[Any, ...] = ()

    @property
    def values(self) -> list[Any]:
        """All values, ascending where they are numbers, else in the order of the lever's choices."""
        seen = list(dict.fromkeys(v for of in self.points.values() for v in of))
        if all(is_number(v) for v in seen):
            return sorted(seen)
        return [v for v in dict.fromkeys((*self.order, *seen)) if v in seen]


@dataclass(frozen=True)
class End:
    """Where preemption ends along a lever. calm: the nearest value without; pressed: the last with;
    upward: whether more of the lever ends it."""

    calm: float
    pressed: float
    upward: bool


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def curve_values(ladder: Sequence[Any], base: Any, now: Any, most: int = 9) -> list[Any]:
    """Values of a lever for its curve, the operating point first, then those near it, every other one.

    ladder: what the lever offers, ascending where numbers. Of choices all come.
    """
    known = [v for v in dict.fromkeys((now, base)) if v is not None]
    if not known or not all(is_number(v) for v in (*ladder, *known)):
        return list(dict.fromkeys([*known, *ladder]))
    others = sorted(set(ladder) - set(known))
    below = [v for v in others if v < known[0]][::-1]
    above = [v for v in others if v > known[0]]
    room = most - len(known)
    num_below = min(len(below), max(room // 2, room - len(above)))
    near = [*_spread(below, num_below), *_spread(above, room - num_below)]
    return [*known, *sorted(near, key=lambda v: abs(v - known[0]))]


def _spread(values: Sequence[Any], num: int) -> list[Any]:
    """So many of the first values, every other one where there are enough."""
    others = list(values[1 : 2 * num : 2])
    return others if len(others) == num else list(values[:num])


def next_outward(ladder: Sequence[Any], points: Mapping[Any, Outcome]) -> Any | None:
    """The next value of the ladder to try for the end of preemption, beyond those computed on the
    side where there is less of it; None where the ladder ends, or an end is known."""
    counts = {
        v: int(o.figures.get("num_preemptions") or 0)
        for v, o in points.items()
        if is_number(v) and not o.refused
    }
    if len(counts) < 2 or min(counts.values()) == 0:
        return None
    low, high = min(counts), max(counts)
    if counts[low] == counts[high]:
        return None
    if counts[high] < counts[low]:
        return next((v for v in sorted(ladder) if v > high), None)
    return next((v for v in sorted(ladder, reverse=True) if v < low), None)


def end_of_preemption(points: Mapping[Any, Outcome]) -> End | None:
    """Where preemption ends along the computed values; None where it does not, or values are no numbers."""
    ran = sorted(
        (v, int(o.figures["num_preemptions"]))
        for v, o in points.items()
        if is_number(v) and not o.refused and o.figures.get("num_preemptions") is not None
    )
    if not ran or not any(n for _, n in ran):
        return None
    for upward, order in ((True, ran[::-1]), (False, ran)):
        if order[0][1]:
            continue
        calm = order[0][0]
        for value, num in order[1:]:
            if num:
                return End(float(calm), float(value), upward)
            calm = value
    return None


def halfway(end: End, whole: bool) -> float | int | None:
    """The next value to try between the two of an end; None where they are near enough."""
    if abs(end.calm - end.pressed) <= CLOSE_FRAC * max(abs(end.calm), abs(end.pressed)):
        return None
    middle = (end.calm + end.pressed) / 2
    if whole:
        middle = int(middle)
        return None if middle in (int(end.calm), int(end.pressed)) else middle
    return float(f"{middle:.4g}")


def curve_table(curve: Curve) -> pl.DataFrame:
    """One row a value and policy: the value, the policy, every figure in words, and why it cannot run."""
    rows = []
    for value in curve.values:
        for policy, points in curve.points.items():
            if value not in points:
                continue
            outcome = points[value]
            mark = " (now)" if value == curve.now else " (base)" if value == curve.base else ""
            rows.append(
                {
                    "Value": f"{say_value(value)}{mark}",
                    "Policy": policy,
                    **{title: say(metric, figure(outcome, metric)) for metric, (title, _) in FIGURES.items()},
                    "Cannot run": outcome.refused,
                }
            )  # fmt: skip
    return pl.DataFrame(rows)


def say_value(value: Any) -> str:
    """A lever's value as people read it: 'on', '2,589', '0.95', 'fp8', 'default' for None."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,g}" if isinstance(value, float) else str(value)
