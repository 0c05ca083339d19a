"""How far the simulator is from what was observed: figure by figure, with the error and a grade.

Two recordings go in, the observed run and the same requests simulated at its settings; or the series of
an estimated workload beside those that a server told of. It runs nothing, and knows neither engine nor
page. What the observed side did not record is named and does not count; a grade is worked out from
`BOUNDS`, never given.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import polars as pl

from analyzer.estimate import Fit
from analyzer.latency import request_latency
from analyzer.look import three_digits
from analyzer.words import NOT_RECORDED, percent, show
from traces.recording import Recording

Grade = Literal["good", "fair", "poor"]
GRADES: tuple[Grade, ...] = ("good", "fair", "poor")
PERCENTILES = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
TIMES = ("ttft_s", "tpot_s", "e2e_s")
MIN_REQUESTS = 5  # that finished on both sides; fewer have no percentiles
FEW_REQUESTS = 100  # below, a 99th percentile is one request, and does not count
THRASH = (
    2  # preemptions by which two small counts may differ and still be good; fair: twice that
)


@dataclass(frozen=True)
class Bound:
    """Largest error that is good, and the largest that is fair; beyond is poor. Shares, of the observed
    value, or for a distance of the pool (or of the observed mean)."""

    good: float
    fair: float


# By the first word of a figure's name. Throughput and TPOT within 10 %, TTFT within 15 % is the aim.
BOUNDS: Mapping[str, Bound] = {
    "output_tokens_per_s": Bound(0.10, 0.20),
    "tpot_s": Bound(0.10, 0.20),
    "ttft_s": Bound(0.15, 0.30),
    "e2e_s": Bound(0.10, 0.20),
    "duration_s": Bound(0.10, 0.20),
    "used_blocks": Bound(0.10, 0.20),
    "used_distance": Bound(0.05, 0.15),
    "num_preemptions": Bound(0.25, 0.50),
    "num_running": Bound(0.10, 0.25),
    "num_waiting": Bound(0.15, 0.30),
}
LABELS = {
    "output_tokens_per_s": "Output tokens per second",
    "tpot_s": "TPOT",
    "ttft_s": "TTFT",
    "e2e_s": "E2E",
    "duration_s": "Run duration",
    "used_blocks": "Blocks in use, mean over time",
    "used_distance": "Blocks in use, mean difference at one time",
    "num_preemptions": "Preemptions",
    "num_running": "Running, mean",
    "num_waiting": "Waiting, mean",
}
# What the grade of the whole rests on: the rest is shown and graded by itself.
HEADLINES = (
    "output_tokens_per_s", *(f"{time} {name}" for time in ("tpot_s", "ttft_s") for name, _ in PERCENTILES),
    "used_distance", "num_preemptions",
)  # fmt: skip
# Of estimated requests: single preemptions and waits cannot be expected of arrivals that are drawn.
ESTIMATED_HEADLINES = ("output_tokens_per_s", "used_distance")
FIGURES = (
    "used_blocks", "used_distance", "num_preemptions", "output_tokens_per_s",
    *(f"{time} {name}" for time in TIMES for name, _ in PERCENTILES), "duration_s",
)  # fmt: skip


@dataclass(frozen=True)
class Check:
    """One figure of both sides. observed None: it was not recorded (or there is none). error: simulated
    over observed, less 1; of a distance the distance itself, as a share; None where it cannot be said.
    grade None: it does not count, for the reason in `why`."""

    name: str
    observed: float | None
    simulated: float | None
    error: float | None
    grade: Grade | None
    why: str = ""

    @property
    def label(self) -> str:
        first, _, which = self.name.partition(" ")
        return f"{LABELS.get(first, first)} {which}".strip()


@dataclass(frozen=True)
class Validation:
    """All figures of a run, and their grade: the worst of the headlines that could be graded, None where
    none could. num_requests: that ended on both sides; since_s: only what came after that time of the
    run is counted, 0: all of it."""

    checks: tuple[Check, ...]
    grade: Grade | None
    num_requests: int
    since_s: float = 0.0

    def check(self, name: str) -> Check | None:
        """The figure of that name, None where it is none of this run's."""
        return next((c for c in self.checks if c.name == name), None)

    @property
    def sentence(self) -> str:
        """How near the simulator comes, in one line."""
        graded = [c for c in self.checks if c.grade is not None and c.name in HEADLINES]
        if not graded:
            return "Nothing was recorded by which the simulator could be judged."
        if self.grade == "poor":
            bad = [c for c in _said(graded) if c.grade != "good"] or graded[:1]
            return f"Simulator off by {', '.join(f'{_apart(c)} on {_spoken(c)}' for c in bad)}."
        first, *others = (f"{_apart(c)} on {_spoken(c)}" for c in _said(graded))
        return f"Simulator within {', '.join([_of_this(first), *others])}."


def validate(observed: Recording, simulated: Recording, *, since_s: float = 0.0) -> Validation:
    """Hold the simulation of a run against the run.

    Times count from each side's first arrival. Latencies are of requests that finished on both sides.
    since_s: leave out what was before, and requests that came before: for errors on a part that a
    calibration has not seen.
    """
    ours, theirs = _Side(simulated, since_s), _Side(observed, since_s)
    both = theirs.latency.join(ours.latency, on="request_id", suffix="_simulated")
    checks = [
        _without_tail(_checked(name, *_pair(name, theirs, ours, both)), both.height)
        for name in FIGURES
    ]
    return Validation(tuple(checks), _worst(checks), both.height, since_s)


def validate_estimate(
    fit: Fit,
    told: Mapping[str, Any],
    simulated: Recording,
) -> Validation:
    """The same where only samples were observed, and the requests are estimated.

    fit: series of both (`estimate.compare_series`); told: `telemetry.summarize_telemetry`, or {} where
    there is none: its counts and times of requests are compared, too, where the server told of them.
    """
    checks = [
        _checked("used_blocks", *_mean(fit, "usage")),
        _checked("used_distance", 0.0 if fit.errors.get("usage") is not None else None, fit.errors.get("usage")),
        _checked("num_running", *_mean(fit, "running")),
        _checked("num_waiting", *_mean(fit, "waiting")),
        _checked("output_tokens_per_s", *_mean(fit, "generation")),
        _checked("num_preemptions", _number(told.get("num_preemptions")), _preemptions(simulated)),
    ]  # fmt: skip
    e2e = told.get("e2e_s")
    times = request_latency(simulated.requests)["e2e_s"].drop_nulls().to_numpy()
    for name, share in PERCENTILES:
        seen = _number(e2e.get(name)) if isinstance(e2e, Mapping) else None
        ours = float(np.quantile(times, share)) if len(times) else None
        checks.append(_checked(f"e2e_s {name}", seen, ours))
    num = int((simulated.requests["status"].cast(pl.String) == "finished").sum())
    return Validation(tuple(checks), _worst(checks, ESTIMATED_HEADLINES), num)


# ---- one side -------------------------------------------------------------------------------------


class _Side:
    """A run from its first arrival on: edges_s [n + 1] of its steps, used [n], and latencies a request.

    Nothing in it is kept beyond the comparison.
    """

    def __init__(self, recording: Recording, since_s: float) -> None:
        self.recording = recording
        hidden = recording.meta.not_recorded
        steps = _steps(recording, "t_start_s", "duration_s", "used_blocks")
        requests = recording.requests
        self.start_s = float(requests["arrival_s"].min() or 0.0)  # type: ignore[arg-type]  # a Float64 column
        self.from_s = self.start_s + since_s
        starts, ends = (
            steps["t_start_s"].to_numpy(),
            (steps["t_start_s"] + steps["duration_s"]).to_numpy(),
        )
        self.end_s = float(ends.max(initial=self.from_s))
        self.pool = recording.pool_blocks
        self.sees_blocks = "steps.used_blocks" not in hidden and bool(steps.height)
        self.starts, self.used = starts, steps["used_blocks"].to_numpy()
        self.ends = ends
        came = requests.filter(pl.col("arrival_s") >= self.from_s)
        done = came.filter(pl.col("status").cast(pl.String) == "finished")
        self.latency = request_latency(done)
        self.unseen = {
            t
            for t, column in (("ttft_s", "first_token_s"), ("e2e_s", "finish_s"), ("tpot_s", "finish_s"))
            if f"requests.{column}" in hidden
        }  # fmt: skip
        finished = done["finish_s"].drop_nulls()
        span = float(finished.max()) - self.from_s if len(finished) else 0.0  # type: ignore[arg-type]  # a Float64 column
        tokens = int(came["output_tokens"].sum() or 0)
        self.tokens_per_s = tokens / span if span > 0 else None
        self.preemptions = _preemptions(recording, self.from_s)

    def used_at(self, times_s: np.ndarray) -> np.ndarray:
        """Blocks in use at times after the first arrival; 0 before the first step and after the last."""
        t = times_s + self.start_s
        row = np.searchsorted(self.starts, t, side="right") - 1
        inside = (row >= 0) & (t < self.end_s)
        return np.where(inside, self.used[np.maximum(row, 0)], 0).astype(np.float64)


def _preemptions(recording: Recording, from_s: float = 0.0) -> float | None:
    if "steps.num_preempted" in recording.meta.not_recorded:
        return None
    steps = _steps(recording, "t_start_s", "num_preempted")
    return float(steps.filter(pl.col("t_start_s") >= from_s)["num_preempted"].sum())


def _steps(recording: Recording, *columns: str) -> pl.DataFrame:
    """These columns of its steps: a long recording has many more."""
    return recording.scan("steps").select(columns).collect()


# ---- figures --------------------------------------------------------------------------------------


def _pair(
    name: str, seen: _Side, ours: _Side, both: pl.DataFrame
) -> tuple[float | None, float | None]:
    """Observed and simulated value of a figure; of a distance 0 and the distance."""
    first, _, which = name.partition(" ")
    if first in ("used_blocks", "used_distance"):
        return _blocks(first, seen, ours)
    if first == "num_preemptions":
        return seen.preemptions, ours.preemptions
    if first == "output_tokens_per_s":
        return seen.tokens_per_s, ours.tokens_per_s
    if first == "duration_s":
        return seen.end_s - seen.from_s, ours.end_s - ours.from_s
    if first in seen.unseen or both.height < MIN_REQUESTS:
        return None, None
    pairs = both.select(first, f"{first}_simulated").drop_nulls()
    if pairs.height < MIN_REQUESTS:
        return None, None
    share = dict(PERCENTILES)[which]
    observed, simulated = (
        float(np.quantile(pairs[c].to_numpy(), share)) for c in pairs.columns
    )
    return observed, simulated


def _blocks(name: str, seen: _Side, ours: _Side) -> tuple[float | None, float | None]:
    """Mean blocks in use over each side's own time, or how far they are apart at one time, on average
    over the time of the longer one, as a share of the pool."""
    if not (seen.sees_blocks and ours.sees_blocks and seen.pool):
        return None, None
    if name == "used_blocks":
        return _mean_used(seen), _mean_used(ours)
    since = seen.from_s - seen.start_s
    end = max(seen.end_s - seen.start_s, ours.end_s - ours.start_s)
    edges = np.unique(
        np.concatenate((seen.starts - seen.start_s, ours.starts - ours.start_s, (since, end)))
    )
    edges = edges[(edges >= since) & (edges <= end)]
    if len(edges) < 2:
        return None, None
    apart = np.abs(seen.used_at(edges[:-1]) - ours.used_at(edges[:-1]))
    return 0.0, float(np.average(apart, weights=np.diff(edges)) / seen.pool)


def _mean_used(side: _Side) -> float | None:
    inside = side.starts >= side.from_s
    weights = (side.ends - side.starts)[inside]
    if not weights.sum() > 0:
        return None
    return float(np.average(side.used[inside], weights=weights))


def _mean(fit: Fit, name: str) -> tuple[float | None, float | None]:
    return fit.means.get(name) or (None, None)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _checked(name: str, observed: float | None, simulated: float | None) -> Check:
    """The figure with its error and grade."""
    if observed is None or simulated is None:
        return Check(name, observed, simulated, None, None, NOT_RECORDED)
    first = name.partition(" ")[0]
    bound = BOUNDS[first]
    if first == "used_distance":
        return Check(name, None, simulated, simulated, _grade(simulated, bound))
    error = simulated / observed - 1 if observed else (0.0 if simulated == 0 else None)
    if first == "num_preemptions" and abs(simulated - observed) <= 2 * THRASH:
        near: Grade = "good" if abs(simulated - observed) <= THRASH else "fair"
        by_share = _grade(abs(error), bound) if error is not None else "poor"
        return Check(name, observed, simulated, error, min(near, by_share, key=GRADES.index))
    if error is None:
        if first in ("num_running", "num_waiting", "used_blocks"):
            return Check(name, observed, simulated, None, None, "none was observed")
        return Check(name, observed, simulated, None, "poor", "none was observed")
    return Check(name, observed, simulated, error, _grade(abs(error), bound))


def _without_tail(check: Check, num_requests: int) -> Check:
    """The figure, ungraded where it is a 99th percentile of too few requests."""
    if check.grade is None or not check.name.endswith("p99") or num_requests >= FEW_REQUESTS:
        return check
    return replace(check, grade=None, why=f"{num_requests:,} requests are too few")


def _grade(error: float, bound: Bound) -> Grade:
    return "good" if error <= bound.good else "fair" if error <= bound.fair else "poor"


def _worst(checks: Iterable[Check], headlines: tuple[str, ...] = HEADLINES) -> Grade | None:
    found = [c.grade for c in checks if c.grade is not None and c.name in headlines]
    return max(found, key=GRADES.index, default=None)


# ---- words ----------------------------------------------------------------------------------------

_SPOKEN = (
    ("output_tokens_per_s",),
    ("tpot_s p50",),
    ("ttft_s p99", "ttft_s p90", "ttft_s p50"),
    ("used_distance",),
    ("num_preemptions",),
)


def _said(graded: list[Check]) -> list[Check]:
    """At most one of each kind of figure, in a fixed order."""
    by_name = {c.name: c for c in graded}
    found = (next((by_name[n] for n in names if n in by_name), None) for names in _SPOKEN)
    return [c for c in found if c is not None]


def _of_this(text: str) -> str:
    return text.replace(" on ", " of this run on ", 1)


def _apart(check: Check) -> str:
    if check.error is None:
        return f"{show(check.name, check.simulated)} for {show(check.name, check.observed)}"
    return whole_percent(check.error)


def _spoken(check: Check) -> str:
    if check.name == "used_distance":
        return "blocks in use (of the pool)"
    first, _, which = check.name.partition(" ")
    word = {"output_tokens_per_s": "throughput", "num_preemptions": "preemptions"}.get(
        first, LABELS[first]
    )
    return f"{which} {word}".strip()


def whole_percent(error: float) -> str:
    """The size of an error, rounded up to a whole per cent: '4 %', 'under 1 %' is '1 %'."""
    return f"{max(1, int(np.ceil(round(abs(error) * 100, 6)))):,} %"


def show_error(check: Check) -> str:
    """'+3.1 %' of the observed value; '4.2 % of the pool' for a distance; why there is none."""
    if check.error is None:
        return check.why
    if check.name == "used_distance":
        return f"{percent(round(check.error, 4))} of the pool"
    if abs(check.error) < 5e-4:
        return "0 %"
    sign = "+" if check.error > 0 else "−"
    return f"{sign}{three_digits(abs(check.error) * 100)} %"


def show_value(name: str, value: float | None, *, as_share: bool = False) -> str:
    """A value of a figure with its unit; NOT_RECORDED for none. as_share: blocks are shares of a pool."""
    if value is None:
        return NOT_RECORDED
    if name == "used_distance":
        return percent(value)
    if name == "used_blocks":
        return percent(value) if as_share else f"{value:,.0f}"
    return show(name, value)


def bounds_in_words(found: Validation) -> str:
    """What good and fair mean for the figures that were compared, in a sentence."""
    names = dict.fromkeys(c.name.partition(" ")[0] for c in found.checks)
    parts = [
        f"{LABELS[n]}: {100 * BOUNDS[n].good:g} / {100 * BOUNDS[n].fair:g} %" for n in names
    ]
    return (
        "Largest error that is good / fair, beyond is poor: "
        + "; ".join(parts)
        + (
            f". Preemptions that differ by {THRASH} are good, by {2 * THRASH} fair. The grade of the whole is the worst of "
            "throughput, TPOT and TTFT, blocks in use at one time, and preemptions (of estimated requests throughput and blocks alone); a p99 counts from "
            f"{FEW_REQUESTS} requests on."
        )
    )


def as_document(found: Validation) -> dict[str, Any]:
    """The validation in plain types, for JSON."""
    return {
        "grade": found.grade,
        "sentence": found.sentence,
        "num_requests": found.num_requests,
        "since_s": found.since_s,
        "figures": {
            c.name: {
                "observed": c.observed,
                "simulated": c.simulated,
                "error": c.error,
                "grade": c.grade,
                **({"why": c.why} if c.why else {}),
            }
            for c in found.checks
        },
    }


def from_document(document: Mapping[str, Any]) -> Validation:
    """The validation that `as_document` wrote. Raises KeyError, TypeError for anything else."""
    checks = tuple(
        Check(name, c["observed"], c["simulated"], c["error"], c["grade"], c.get("why", ""))
        for name, c in document["figures"].items()
    )
    return Validation(checks, document["grade"], document["num_requests"], document["since_s"])
