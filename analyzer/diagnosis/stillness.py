"""Samples that stand still, and samples that do not come: evidence, never missing data.

It knows that V1 prints statistics only while its loop runs, that after two idle intervals they go to
DEBUG, and that preemption always changes something, so that frozen numbers are no preemption.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzer.diagnosis.series import Series, stretches
from traces.evidence.evidence import Evidence, Notice

MIN_FROZEN = 3
MIN_FROZEN_S = 15.0  # two samples at the end suffice where they stand for as long as this
ALIVE = (
    "preemption",
    "retract",
    "swap_out",
    "swap_in",
    "resume",
)  # the engine itself says these
MIN_PERIODS = 3.0
EMPTY_FRAC = 0.02


@dataclass(frozen=True)
class Gap:
    """Time without samples. before, after: samples around it (after: None at the end); ended_by: what ended
    it where that is no sample."""

    from_s: float
    to_s: float
    before: int
    after: int | None
    ended_by: Notice | None = None

    @property
    def length_s(self) -> float:
        return self.to_s - self.from_s


@dataclass(frozen=True)
class Still:
    """Samples that did not change. first, last: indices; running, usage: there."""

    first: int
    last: int
    running: int
    usage: float

    @property
    def num(self) -> int:
        return self.last - self.first + 1


def usual_period(series: Series) -> float | None:
    """The usual time between samples, or None."""
    gaps = series.gaps_s[np.isfinite(series.gaps_s)]
    gaps = gaps[gaps > 0]
    return float(np.median(gaps)) if len(gaps) else None


def find_gaps(series: Series, evidence: Evidence) -> list[Gap]:
    """Times without samples that are much longer than usual, the one after the last sample included."""
    usual = usual_period(series)
    if usual is None or series.per_step:
        return []
    found = [
        Gap(float(series.t_s[i - 1]), float(series.t_s[i]), int(i) - 1, int(i))
        for i in np.flatnonzero(series.gaps_s > max(MIN_PERIODS * usual, usual + 2))
        if np.isfinite(series.t_s[i - 1])
    ]
    last = series.valid(series.t_s)
    if len(last):
        end = float(series.t_s[last[-1]])
        of = set(series.frame["source"].unique().to_list())
        later = [
            n
            for n in evidence.notices
            if n.t_s is not None and n.t_s > end + 1.5 * usual and n.at.source in of
        ]
        if later and not any(n.kind in ALIVE for n in later):
            final = max(later, key=lambda n: n.t_s or 0.0)
            found.append(Gap(end, float(final.t_s or 0.0), int(last[-1]), None, final))
    return found


def find_frozen(series: Series) -> Still | None:
    """The longest run of samples with the same Running and usage and no token, at least three (two of
    V1's ten seconds, at the end), while requests run, or wait before blocks that nobody who runs holds; or None."""
    made = np.nan_to_num(series.generation, nan=0.0) + np.nan_to_num(series.prompt, nan=0.0)
    held = (series.running == 0) & (series.waiting > 0) & (series.usage > EMPTY_FRAC)
    held &= ~(series.swapped > 0)
    known = np.isfinite(series.generation) & np.isfinite(series.usage)
    known &= (series.running > 0) | held
    still = known & (made == 0)
    best: Still | None = None
    for first, last in stretches(still):
        same = (np.abs(series.usage[first : last + 1] - series.usage[first]) < 5e-4) & (
            series.running[first : last + 1] == series.running[first]
        )
        for a, b in stretches(same):
            run = Still(
                first + a,
                first + b,
                int(series.running[first + a]),
                float(series.usage[first + a]),
            )
            enough = run.num >= MIN_FROZEN or _long_at_end(series, run, made)
            if enough and (best is None or run.num > best.num):
                best = run
    return best


def _long_at_end(series: Series, run: Still, made: np.ndarray) -> bool:
    """Whether two samples are the last, stand for long enough, and come after one that generated."""
    usual = usual_period(series)
    if run.num != 2 or run.last != len(series) - 1 or usual is None or run.first == 0:
        return False
    span = float(series.t_s[run.last] - series.t_s[run.first]) + usual
    return span >= MIN_FROZEN_S and bool(made[run.first - 1] > 0) and run.running > 0


def _soon_over(series: Series, last: int) -> bool:
    """Whether the next sample comes as soon as usual: a queue of one sample is a request that has just come."""
    usual = usual_period(series)
    if last == len(series) - 1 or usual is None:
        return False
    return not float(series.gaps_s[last + 1]) > MIN_PERIODS * usual


def find_starved(series: Series) -> Still | None:
    """The longest run of samples where requests wait, none runs and the pool is empty; or None."""
    usage = np.nan_to_num(series.usage, nan=0.0)
    starved = (series.running == 0) & (series.waiting > 0) & (usage <= EMPTY_FRAC)
    starved &= ~(series.swapped > 0)
    made = np.nan_to_num(series.generation, nan=0.0)
    best: Still | None = None
    for first, last in stretches(starved):
        run = Still(first, last, 0, float(usage[first]))
        alone = series.per_step is False and made[last] == 0 and not _soon_over(series, last)
        quiet = last > first or alone
        if (quiet or len(series) == 1) and (best is None or run.num > best.num):
            best = run
    return best
