"""What a lower limit on running requests costs, and whether it can be called the smallest change.

A limit frees no memory: it moves the wait from the pool into the queue. It computes from what ran; what the
limit does to a given load is known only by simulation, which this room does not do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzer.diagnosis.findings import Step
from analyzer.diagnosis.growth import FULL_FRAC
from analyzer.diagnosis.quantities import Quantities

FAR_ABOVE = (
    1.5  # times the limit that ran without trouble: from here on the limit is no small change
)
BUSY_FRAC = (
    0.5  # of the pool: with less in use, what ran tells of the load and not of what fits
)
MIN_SAMPLES = 3  # that an estimate of requests needs
SIMULATED = "find the smallest change that is enough, by simulation"


@dataclass(frozen=True)
class Ran:
    """Running requests on the samples. over: their mean where more than the limit ran, None where none
    did; most: the highest."""

    over: float | None
    most: int


def ran(q: Quantities, limit: int) -> Ran | None:
    """What ran, against a limit; None where no sample says how many run."""
    running = q.main.running if q.main is not None else np.array([])
    running = running[np.isfinite(running)]
    if not len(running):
        return None
    above = running[running > limit]
    return Ran(float(above.mean()) if len(above) else None, int(running.max()))


def cost_of_cap(q: Quantities, limit: int, thrash: bool = False) -> str:
    """What a limit of so many running costs, "" where nothing says how many run.

    Steps never take longer with fewer requests in them, so output falls by no more than the share of
    running requests that is taken away. thrash: output has collapsed already, and that bound says nothing.
    """
    seen = ran(q, limit)
    if seen is None:
        return ""
    if seen.over is None:
        return f"; no more than {seen.most} ran, so it costs nothing at this load"
    of = f"{seen.over:,.3g} on average" if seen.over >= 2 and seen.most > seen.over else ""
    often = f"{of} where more did (up to {seen.most:,})" if of else f"{seen.most:,}"
    told = f"; it costs: at most {limit:,} run instead of {often}, the rest wait in the queue"
    before = q.hidden.before if q.hidden is not None and q.hidden.thrash else None
    if before and q.hidden is not None and q.hidden.after is not None:
        kept = before * limit / max(seen.most, 1)
        return f"{told}; about {kept:,.1f} tokens/s, against {before:,.1f} before the wall and {q.hidden.after:,.1f} at it"
    if thrash:
        return told
    share = 100 * (1 - limit / seen.over)
    return f"{told}, and where decode binds output tokens/s fall by up to {share:.0f} %"


def runs_without_trouble(q: Quantities) -> float | None:
    """Mean of Running over busy samples without a preemption, and below the wall where preemptions are
    not counted by sample; over all samples where there is none such. None where nothing says how many run."""
    series = q.main
    if series is None:
        return None
    at = series.valid(series.usage, series.running)
    at = at[series.running[at] > 0]
    if not len(at):
        return None
    evicted = series.col("num_preempted")[at]
    calm = evicted == 0 if np.isfinite(evicted).all() else series.usage[at] < FULL_FRAC
    good = at[calm & (series.usage[at] >= BUSY_FRAC)]
    return float(series.running[good if len(good) else at].mean())


def is_far_below(q: Quantities, limit: int) -> bool:
    """Whether many more than the limit ran without trouble, where lengths vary. A limit for a stated length
    that all requests have is exact, and stands."""
    if q.fits.basis == "the longest request as stated" and "stated_low" not in q.fits.at:
        return False
    usual = runs_without_trouble(q)
    return usual is not None and usual > FAR_ABOVE * limit


def simulate_first(q: Quantities) -> Step | None:
    """The way to the simulated answer, for a recording: its requests are known. None for other evidence."""
    if q.evidence.family != "recording":
        return None
    return Step(
        SIMULATED,
        "runs these requests under every lever and gives the smallest value of each that is enough, with what it "
        "costs in throughput and latency; the other steps here are arithmetic on lengths",
        {"goal": "no-preemption"},
    )


def simulate_estimate(q: Quantities) -> Step | None:
    """The way to a simulation of estimated requests, where arithmetic on lengths is far off and samples carry
    an estimate; None else."""
    series, tokens = q.main, q.pool.tokens
    if series is None or not series.timed or not tokens or q.evidence.family == "recording":
        return None
    known = series.valid(series.usage, series.running, series.generation, series.prompt)
    if len(known) < MIN_SAMPLES or not q.fits.value or not is_far_below(q, q.fits.value):
        return None
    return Step(
        f"{SIMULATED} of estimated requests: python -m analyzer estimate with these files and --out trace.jsonl, then "
        f"python -m analyzer advise trace.jsonl --kv-tokens {tokens} --goal no-preemption",
        "requests that would have the server say the same, run under every lever; it is an estimate, whose fit to the "
        "log is shown by estimate --fit",
        {"goal": "no-preemption"},
    )
