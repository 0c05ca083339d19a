"""From what a server said to a Workload that would make it say so: marked as estimated, with assumptions.

Where requests were reported with arrival and lengths, they are taken as they are. Else three balances of
the samples give three unknowns: prompts counted = requests x prompt; tokens generated = requests x
output; tokens held by a running request = prompt + what it has generated so far. Where the evidence does not carry
that, it is refused with the reason. What was shared between prompts is never known. It does not know
how fast the machine is: `fit` runs the workload through a `simulate` that the caller gives, and compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from analyzer.diagnosis.quantities import Quantities
from analyzer.diagnosis.series import Array, Series
from analyzer.sampled import follow
from traces.errors import NotAWorkloadError
from traces.evidence.evidence import Evidence
from traces.recording import Recording
from traces.telemetry_workload import workload_of_telemetry
from traces.workload import ReadReport, Workload, make_workload

FORMAT = "estimated from telemetry"
MIN_SAMPLES, MIN_REQUESTS, MAX_REQUESTS = 3, 5, 1_000_000
BUSY_FRAC = 0.02  # below, a usage of one decimal says too little of what a request holds
REMEDY = (
    "Give a request trace, or a log with Running, usage and both throughputs over some minutes, with the "
    "start-up line that states the pool."
)
_SETTINGS = ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len")


@dataclass(frozen=True, eq=False)
class Estimate:
    """workload: `estimated`; assumptions: sentences; settings: of EngineSettings, as far as the evidence
    tells; observed: the samples, None where there are none; start_s: the workload's 0 on their clock;
    prompt_mean, output_mean: tokens; num_at_start: requests that were there before the first sample."""

    workload: Workload
    assumptions: tuple[str, ...]
    settings: Mapping[str, Any]
    observed: Series | None
    start_s: float
    prompt_mean: float
    output_mean: float
    num_at_start: int = 0


def estimate_workload(evidence: Evidence, seed: int = 0) -> Estimate:
    """The workload that this evidence tells of. Raises NotAWorkloadError with the reason where it does not
    carry one."""
    q = Quantities(evidence)
    reported = _reported(evidence)
    if reported is not None:
        workload, assumptions = reported
        table = workload.table
        prompt, output = (
            float(np.mean(table[c].to_numpy())) for c in ("prompt_tokens", "output_tokens")
        )
        return Estimate(workload, assumptions, _settings(q), q.main, 0.0, prompt, output)
    balance = _balance(q)
    return _drawn(evidence, q, balance, seed)


def _refuse(label: str, why: str) -> NotAWorkloadError:
    return NotAWorkloadError(label, "", f"no workload can be estimated: {why}", REMEDY)


# ---- requests that were reported one by one ----


def _reported(evidence: Evidence) -> tuple[Workload, tuple[str, ...]] | None:
    """Requests with arrival and lengths, as a stat logger or lines of received and finished requests
    give them; None where there are none."""
    telemetry = evidence.telemetry
    ended = telemetry.finished_requests if telemetry is not None else None
    needed = ["arrival_s", "prompt_tokens", "output_tokens"]
    if telemetry is not None and ended is not None and ended.drop_nulls(needed).height:
        workload = workload_of_telemetry(telemetry)
        return _marked(workload), (
            "Arrivals and lengths are those of requests that were reported as ended.",
            *workload.report.notes,
        )
    came: dict[str, tuple[float, int]] = {}
    rows: list[tuple[float, int, int]] = []
    for notice in evidence.all_notices("request_received", "request_finished"):
        name, prompt = str(notice.values.get("request")), notice.values.get("prompt_tokens")
        if notice.kind == "request_received" and notice.t_s is not None:
            came[name] = (notice.t_s, int(prompt) if isinstance(prompt, int | float) else 0)
            continue
        output = notice.values.get("output_tokens")
        if name not in came or not isinstance(output, int | float) or output < 1:
            continue
        length = int(prompt) if isinstance(prompt, int | float) else came[name][1]
        if length > 0:
            rows.append((came[name][0], length, int(output)))
    if len(rows) < MIN_REQUESTS:
        return None
    frame = pl.DataFrame(
        rows, schema=["arrival_s", "prompt_tokens", "output_tokens"], orient="row"
    )
    said = (
        f"Arrivals are the times of {len(rows):,} lines of received requests, lengths those of their ends.",
        "Requests that had not ended when the log did are not in it.",
    )
    return _make(evidence.label, {c: frame[c] for c in frame.columns}, said), said


def _marked(workload: Workload) -> Workload:
    return Workload(
        workload.table, workload.name, workload.report, workload.prefix_block_tokens,
        workload.concurrency, True,
    )  # fmt: skip


def _make(label: str, columns: Mapping[str, Any], notes: tuple[str, ...]) -> Workload:
    return make_workload(
        columns,
        name=f"{label}, estimated",
        report=ReadReport(FORMAT, notes=notes),
        estimated=True,
    )


def _settings(q: Quantities) -> dict[str, Any]:
    found = {k: int(v) for k in _SETTINGS if (v := q.number(k)) is not None}
    if q.pool.tokens:
        found["kv_tokens"] = int(q.pool.tokens)
    return found


# ---- requests from the balance of samples ----


@dataclass(frozen=True, eq=False)
class _Balance:
    """t_s [n + 1]: ends of intervals, the start first; prompts, generated [n]: tokens in each; running,
    waiting [n]: at its end; held: tokens per running request over time; at_start: running before."""

    t_s: Array
    prompts: Array
    generated: Array
    running: Array
    waiting: Array
    held: float
    held_first: float
    at_start: int
    series: Series


def _balance(q: Quantities) -> _Balance:
    series, label = q.main, q.evidence.label
    if series is None:
        raise _refuse(label, "there are no samples over time")
    at = series.valid(series.t_s, series.usage, series.running, series.generation)
    if len(at) < MIN_SAMPLES:
        raise _refuse(
            label,
            f"{len(at)} samples have a time, usage, Running and generation; {MIN_SAMPLES} are needed",
        )
    if not np.isfinite(series.prompt[at]).any():
        raise _refuse(label, "nothing says how many prompt tokens came")
    if q.lengths.sequences > 1:
        raise _refuse(
            label,
            f"a request generates {q.lengths.sequences} sequences, which a request trace cannot say",
        )
    if not q.pool.tokens:
        raise _refuse(label, "the pool is not known, so a usage says nothing of lengths")
    t, running, usage = series.t_s[at], series.running[at], series.usage[at]
    first = series.interval_s[at[0]]
    if not np.isfinite(first):
        first = float(np.median(np.diff(t)))  # the first line covers a time before it, too
    edges = np.concatenate(([t[0] - first], t))
    span = np.diff(edges)
    if (span < 0).any() or edges[-1] <= edges[0]:
        raise _refuse(label, "the times of the samples do not rise")
    busy = (running > 0) & (usage > BUSY_FRAC)
    if not busy.any():
        raise _refuse(label, "no sample shows running requests that hold part of the pool")
    prompts = np.nan_to_num(series.prompt[at]) * span
    coming = busy & (
        np.cumsum(prompts[::-1])[::-1] > 0
    )  # who runs after the last prompt is long
    busy = coming if coming.any() else busy
    each = usage[busy] * q.pool.tokens / running[busy]
    # requests that are there although no prompt was counted came before the first sample
    before = int(running[0]) if prompts[0] < 1 and running[0] > 0 else 0
    return _Balance(
        edges,
        prompts,
        series.generation[at] * span,
        running,
        np.nan_to_num(series.waiting[at]),
        float(np.average(each, weights=running[busy])),
        float(each[0]),
        before,
        series,
    )


@dataclass(frozen=True)
class _Lengths:
    """Mean prompt and output in tokens; fixed: whether all requests are alike."""

    prompt: float
    output: float
    fixed: bool
    said: tuple[str, ...]


def _lengths(q: Quantities, b: _Balance) -> _Lengths:
    prompts, generated = float(b.prompts.sum()), float(b.generated.sum())
    prompt, output = _stated(q, "prompt"), _stated(q, "output")
    if prompt is not None and output is not None:
        return _Lengths(prompt, output, False, ("Lengths are the stated ones.",))
    if generated <= 0:
        raise _refuse(q.evidence.label, "nothing was generated over the whole time")
    if prompts <= 0:
        return _running_already(q, b, generated)
    last = int(np.flatnonzero(b.prompts > 0)[-1])
    there = b.running + b.waiting
    batch = last < max(3, 0.1 * len(b.prompts)) and (np.diff(there[last:]) <= 0).all()
    if batch:
        num = max(float(there.max()), 1.0)
        return _Lengths(
            prompts / num,
            max(generated / num, 1.0),
            True,
            (
                f"All {num:.0f} requests came at the start, alike: no prompt was counted later.",
                "Requests that run at the end of the samples are taken to end there."
                if b.running[-1] > 0
                else "All requests ended.",
            ),
        )
    ratio = generated / prompts
    most = prompts / max(float(there.max()), 1.0)  # at least as many came as were there at once
    prompt = prompt or min(b.held / (1 + ratio), most)
    return _Lengths(
        prompt,
        output or max(prompt * ratio, 1.0),
        False,
        (
            "Lengths follow from what a running request held on average "
            f"({b.held:,.0f} tokens) and from output tokens per prompt token ({ratio:.3g}).",
            "Outputs and prompts are drawn from exponential distributions, so that a running request has "
            "generated as much on average as outputs are long.",
        ),
    )


def _running_already(q: Quantities, b: _Balance, generated: float) -> _Lengths:
    """Requests that decode all the time: what they held at first is their prompt."""
    if not b.at_start or b.running.max() > b.at_start or b.waiting[0] > 0:
        raise _refuse(
            q.evidence.label, "no prompt was counted over the whole time, though requests came"
        )
    return _Lengths(
        b.held_first,
        max(generated / b.at_start, 1.0),
        True,
        ("All requests ran before the first sample, and end with the last, alike.",),
    )


def _stated(q: Quantities, what: str) -> float | None:
    mean = q.number(f"{what}_mean_tokens")
    pair = q.lengths.prompt if what == "prompt" else q.lengths.output
    if mean is None and pair is not None:
        mean = (pair[0] + pair[1]) / 2
    return mean


def _arrivals(b: _Balance, prompt: float, rng: np.random.Generator) -> Array:
    """Seconds after the start: those whose prompts were counted, and those by which the queue grew.

    A queue that shrinks had its requests admitted, so the sum of both only rises; where preempted
    requests wait it does not, and the highest so far is kept.
    """
    came = np.cumsum(b.prompts) / prompt + b.waiting
    upto = np.rint(np.maximum.accumulate(np.concatenate(([0.0], came)))).astype(np.int64)
    new = np.diff(upto)
    if new.sum() > MAX_REQUESTS:
        return np.empty(0)
    start = np.repeat(b.t_s[:-1], new)
    return np.sort(start + rng.random(len(start)) * np.repeat(np.diff(b.t_s), new)) - b.t_s[0]


def _drawn(evidence: Evidence, q: Quantities, b: _Balance, seed: int) -> Estimate:
    lengths = _lengths(q, b)
    rng = np.random.default_rng(seed)
    if lengths.fixed:
        num = int((b.running + b.waiting).max()) if b.prompts.any() else 0
        arrivals = np.full(num, float(b.t_s[int(np.argmax(b.prompts > 0))] - b.t_s[0]))
    else:
        arrivals = _arrivals(b, lengths.prompt, rng)
    if not MIN_REQUESTS <= len(arrivals) + b.at_start <= MAX_REQUESTS:
        many = len(arrivals) + b.at_start
        if not lengths.fixed or many < 1:
            raise _refuse(
                evidence.label,
                f"it comes to {many:,} requests; from {MIN_REQUESTS} to {MAX_REQUESTS:,} are needed",
            )
    prompts = _spread(len(arrivals), lengths.prompt, lengths.fixed, rng)
    outputs = _spread(len(arrivals), lengths.output, lengths.fixed, rng)
    columns = {
        "arrival_s": np.concatenate((np.zeros(b.at_start), arrivals)),
        "prompt_tokens": np.concatenate(
            (np.full(b.at_start, max(round(b.held_first), 1)), prompts)
        ),
        "output_tokens": np.concatenate(
            (np.full(b.at_start, max(round(lengths.output), 1)), outputs)
        ),
    }
    said = (*lengths.said, *_said(q, b))
    return Estimate(
        _make(evidence.label, columns, said),
        said,
        _settings(q),
        b.series,
        float(b.t_s[0]) + (0.0 if b.at_start else float(arrivals.min())),
        lengths.prompt,
        lengths.output,
        b.at_start,
    )


def _spread(num: int, mean: float, fixed: bool, rng: np.random.Generator) -> Array:
    """Whole lengths of that mean."""
    if fixed or num == 0:
        return np.full(num, max(round(mean), 1), dtype=np.int64)
    values = rng.exponential(1.0, num)
    return np.maximum(np.rint(values * mean / values.mean()), 1).astype(np.int64)


def _said(q: Quantities, b: _Balance) -> tuple[str, ...]:
    said = ["Within an interval between two samples, arrivals are spread at random."]
    if q.pool.kind == "inferred":
        said.append(f"The pool ({q.pool.tokens:,} tokens) is derived: {q.pool.how}.")
    if b.at_start:
        said.append(
            f"{b.at_start:,} requests ran before the first sample: their prompt is what they held then."
        )
    if b.waiting.max() > 0:
        said.append("Requests that wait are new ones: preempted ones would count twice.")
    hits = b.series.col("prefix_hit_frac")
    if np.isfinite(hits).any() and np.nanmax(hits) > 0.05:
        said.append(
            "Prompts are without what the prefix cache gave, and what requests share is counted once."
        )
    if len([s for s in q.ranks if s.rank is not None]) > 1:
        said.append(f"Only rank {b.series.rank} is estimated, the fullest.")
    return tuple(said)


# ---- the fit ----

NAMES = ("usage", "running", "waiting", "generation")


@dataclass(frozen=True, eq=False)
class Fit:
    """errors: mean distance of simulated from observed, usage in shares of the pool, the others over the
    mean that was observed, None where that is 0 or nothing was observed; means: of what was observed and
    simulated (arrivals within an interval are not known, so single samples differ where requests are
    short; the means should not); table: t_s and, for each name,
    what was observed and what was simulated."""

    errors: Mapping[str, float | None]
    means: Mapping[str, tuple[float, float] | None]
    table: pl.DataFrame


def fit(
    estimate: Estimate, simulate: Callable[[Workload, Mapping[str, Any]], Recording]
) -> Fit:
    """Run the estimated workload and compare. simulate: given the workload and its settings, a recording."""
    return compare_series(estimate, simulate(estimate.workload, estimate.settings))


def compare_series(estimate: Estimate, recording: Recording) -> Fit:
    """The series of a recording of the workload against those that were observed, sample by sample.

    Raises NotAWorkloadError where no series was observed.
    """
    series = estimate.observed
    if series is None or not series.timed:
        raise _refuse(recording.label, "no samples over time were observed")
    run = follow(recording)
    at = series.valid(series.t_s)
    at = at[series.t_s[at] > estimate.start_s]
    t = series.t_s[at] - estimate.start_s
    steps = np.array([run.at(x) for x in t])
    span = np.diff(t, prepend=0.0)
    made = np.diff(run.generated[steps], prepend=0.0)
    simulated = {
        "usage": np.array([run.usage(n) for n in steps]),
        "running": np.array([run.state(run.running, n) for n in steps], dtype=float),
        "waiting": np.array(
            [run.state(run.waiting, n) + run.state(run.swapped, n) for n in steps], dtype=float
        ),
        "generation": np.divide(made, span, out=np.zeros(len(t)), where=span > 0),
    }
    observed = {name: getattr(series, name)[at] for name in NAMES}
    columns: dict[str, Array] = {"t_s": series.t_s[at]}
    for name in NAMES:
        columns |= {f"{name}_observed": observed[name], f"{name}_simulated": simulated[name]}
    return Fit(
        {n: _distance(observed[n], simulated[n], n == "usage") for n in NAMES},
        {n: _means(observed[n], simulated[n]) for n in NAMES},
        pl.DataFrame(columns),
    )


def _means(observed: Array, simulated: Array) -> tuple[float, float] | None:
    known = np.isfinite(observed)
    return (
        (float(observed[known].mean()), float(simulated[known].mean())) if known.any() else None
    )


def _distance(observed: Array, simulated: Array, absolute: bool) -> float | None:
    known = np.isfinite(observed)
    mean = float(observed[known].mean()) if known.any() else 0.0
    if not known.any() or (mean == 0 and not absolute):
        return None
    away = float(np.abs(observed[known] - simulated[known]).mean())
    return away if absolute else away / mean
