"""Which direction of a figure is better, and when a difference is one: the rules of every verdict.

It knows numbers and names of figures; where they come from is in `compare.py` and `measured.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from analyzer.latency import REQUEST_METRICS
from analyzer.stats import Interval
from analyzer.words import percent

LOWER_IS_BETTER = (
    "duration_s",
    "num_refused",
    "num_preemptions",
    "num_preempted_requests",
    "preemption_cost_s",
    "recomputed_tokens",
    "recomputed_frac",
    "stall_s",
    "ttft_s",
    "tpot_s",
    "itl_s",
    "e2e_s",
    "queue_s",
)
HIGHER_IS_BETTER = ("num_finished", "output_tokens_per_s")
TOLERANCE_FRAC = 0.005  # of A: less than any clock is good for
MODELLED_TOLERANCE_FRAC = 0.01  # of A, for times that a model made: docs/figures-explained.md
MEASURED_TOLERANCE_FRAC = 0.05  # of A, for times of one measured run each: the same place
RUN_FLOOR_FRAC = 0.001  # of A's duration: less of it, stalled or spent, is nothing
MIN_REQUESTS = 20  # below which a figure of a sample of requests is not judged
VERDICTS = ("better", "worse", "no difference")

LATENCIES = (*REQUEST_METRICS, "itl_s")
COUNTS = ("num_preemptions", "num_preempted_requests", "recomputed_tokens")
_SPENT = ("stall_s", "preemption_cost_s")  # sums of time within the run
# What a run that ended early has less of, or has of another load.
_OF_WHOLE_RUNS = ("duration_s", "num_finished", "num_refused", "output_tokens_per_s", "itl_s", *COUNTS, *_SPENT)  # fmt: skip


@dataclass(frozen=True)
class Rules:
    """What holds for one comparison.

    time_frac: tolerance of times and rates, as a share of A; noise_frac: of A, by which intervals of
    times are widened, since runs of the same settings differ by that; duration_s: of A; reasons:
    figure ("itl_s", "num_preemptions") -> why it is not judged.
    """

    time_frac: float = TOLERANCE_FRAC
    noise_frac: float = 0.0
    duration_s: float = 0.0
    reasons: Mapping[str, str] = field(default_factory=dict)


def make_rules(
    clocks: tuple[str | None, str | None],
    noise: tuple[float | None, float | None],
    duration_s: float,
    reasons: Mapping[str, str],
) -> Rules:
    """Rules for two runs. noise: standard errors of their steps, as from `step_noise_frac`."""
    time_frac, noise_frac = TOLERANCE_FRAC, 0.0
    if "modelled" in clocks:
        time_frac = MODELLED_TOLERANCE_FRAC
    if "measured" in clocks:
        both = sum((n or 0.0) ** 2 for n in noise) ** 0.5
        noise_frac = time_frac = max(MEASURED_TOLERANCE_FRAC, 1.96 * both)
    return Rules(time_frac, noise_frac, duration_s, reasons)


def few_requests(num_finished: int, num_shared: int) -> dict[str, str]:
    """Figures of samples too small to judge -> the words for it.

    num_finished: requests that both runs finished; num_shared: that both had.
    """
    few: dict[str, str] = {}
    if num_finished < MIN_REQUESTS:
        few |= dict.fromkeys(LATENCIES, _only(num_finished))
    if num_shared < MIN_REQUESTS:
        few |= dict.fromkeys(COUNTS, _only(num_shared))
    return few


def ended_early(sides: str) -> dict[str, str]:
    """Figures that mean nothing where a run ended before the other -> the words for it. sides: "B"."""
    return dict.fromkeys(_OF_WHOLE_RUNS, f"{sides} ended early") if sides else {}


def _only(num: int) -> str:
    return f"only {num} request{'' if num == 1 else 's'}"


def say_limits(
    rules: Rules, clocks: tuple[str | None, str | None], num_finished: int
) -> list[str]:
    """Sentences on what the verdict cannot tell."""
    said = []
    if num_finished and num_finished < MIN_REQUESTS:
        said.append(f"{_only(num_finished).capitalize()} finished in both: latencies are not judged.")  # fmt: skip
    if "measured" in clocks:
        said.append(
            "One run each: run-to-run noise is not in the intervals, so times must differ by more than "
            f"{percent(rules.noise_frac)}."
        )
    return said


def judge(
    metric: str, a: float | None, delta: float | None, interval: Interval | None, rules: Rules
) -> tuple[str | None, str | None]:
    """(verdict of VERDICTS or None, why there is none where there could be one)."""
    name = metric.split()[0]
    if delta is None or a is None or name not in (*LOWER_IS_BETTER, *HIGHER_IS_BETTER):
        return None, None
    if reason := rules.reasons.get(name):
        # alike is alike, of however few
        return ("no difference", None) if delta == 0 and name not in _SPENT else (None, reason)
    is_time = name.endswith("_s")  # rates included
    tolerance = (rules.time_frac if is_time else TOLERANCE_FRAC) * abs(a)
    if name in _SPENT:
        tolerance = max(tolerance, RUN_FLOOR_FRAC * rules.duration_s)
    if abs(delta) <= tolerance or _holds_zero(interval, rules.noise_frac * abs(a) * is_time):
        return "no difference", None
    return ("better" if (delta < 0) == (name in LOWER_IS_BETTER) else "worse"), None


def _holds_zero(interval: Interval | None, margin: float) -> bool:
    return bool(interval and interval.low - margin <= 0 <= interval.high + margin)


def share_verdict(
    share_delta: float | None,
    tokens_delta: float | None,
    of_tokens: tuple[str | None, str | None],
) -> tuple[str | None, str | None]:
    """What is said of `recomputed_frac`: what is said of the tokens themselves, whose sample it is of."""
    if share_delta is None or tokens_delta is None or of_tokens[0] is None:
        return of_tokens if share_delta is not None else (None, None)
    alike = share_delta == 0 or (share_delta > 0) != (tokens_delta > 0)
    return ("no difference", None) if alike else of_tokens
