"""Two recordings of one workload: what differs, by how much, and whether that means anything.

It knows when two runs must not be compared. What is better, and when a difference is one, is in
`judging.py`; how runs are laid on one axis in `align.py`, the sentence about the outcome in `verdict.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from analyzer.condition import copies_beside_computing, idle_settings
from analyzer.judging import (
    VERDICTS,
    Rules,
    ended_early,
    few_requests,
    judge,
    make_rules,
    say_limits,
    share_verdict,
)
from analyzer.latency import REQUEST_METRICS, request_latency
from analyzer.measured import is_cost_estimated, step_noise_frac
from analyzer.stats import SUMMARY_KEYS, Interval, paired_intervals, paired_sum_interval
from analyzer.summary import missing_figures, summarize
from analyzer.verdict import Verdict, give_verdict
from traces.errors import CompareError
from traces.recording import Recording
from traces.recording_files import COMPLETED


@dataclass(frozen=True)
class Comparison:
    """What `compare` found; B is judged against A.

    a, b: figures as from `summarize`; missing: side -> figures that its executor did not record, None
    in a or b; estimated: side -> figures of a measured run that a model made, and no clock;
    delta: B - A under the same keys, None where either is None.
    table: one row a figure: metric ("ttft_s p99"), a, b, delta, delta_frac (of A), low, high (95 %
    interval of delta, null where there is none), verdict (of VERDICTS, null for figures that are
    neither good nor bad, or not judged), reason (why not: "only 4 requests"). rules: what it was
    judged by. preempted: as from `preempted_requests`. notes: sentences for the user.
    """

    a: dict[str, Any]
    b: dict[str, Any]
    delta: dict[str, Any]
    table: pl.DataFrame
    preempted: pl.DataFrame
    verdict: Verdict
    notes: tuple[str, ...]
    missing: Mapping[str, frozenset[str]] = field(default_factory=dict)
    estimated: Mapping[str, frozenset[str]] = field(default_factory=dict)
    rules: Rules = field(default_factory=Rules)


def compare(
    a: Recording,
    b: Recording,
    *,
    seed: int = 0,
    anyway: bool = False,
    summary: Callable[[Recording], dict[str, Any]] = summarize,
) -> Comparison:
    """Figures of both runs, their differences and a verdict on B against A.

    anyway: compare different workloads too, with a note; paired intervals then cover the requests
    that both finished; summary: gives what `summarize` would, for runs whose figures were kept.
    Raises CompareError for unlike workloads or clocks.
    """
    return compare_all(a, b, seed=seed, anyway=anyway, summary=summary)[0]


def compare_all(
    a: Recording,
    *others: Recording,
    seed: int = 0,
    anyway: bool = False,
    summary: Callable[[Recording], dict[str, Any]] = summarize,
) -> tuple[Comparison, ...]:
    """Each of the others against `a`, in the given order; arguments and errors as for `compare`."""
    limits = [check_comparable(a, b, anyway=anyway) for b in others]
    figures_a = summary(a)
    noise_a, estimated_a = _noise(a), estimated_figures(a)
    found = []
    for b, limit in zip(others, limits, strict=True):
        figures_b = summary(b)
        estimated = {"A": estimated_a, "B": estimated_figures(b)}
        clocks = (a.meta.clock, b.meta.clock)
        finished, shared = num_pairs(a.requests, b.requests)
        early = _ended_early({"A": (a, figures_a), "B": (b, figures_b)})
        reasons = few_requests(finished, shared) | _unlike_costs(a, b, estimated)
        reasons |= ended_early("".join(early))
        rules = make_rules(clocks, (noise_a, _noise(b)), figures_a["duration_s"], reasons)
        table = delta_table(
            figures_a, figures_b, request_intervals(a.requests, b.requests, seed), rules
        )
        delta = {key: _minus(figures_b[key], figures_a[key]) for key in figures_a}
        said = [*early.values(), *say_limits(rules, clocks, finished)]
        verdict = give_verdict(a, b, figures_a, figures_b, table, said)
        found.append(
            Comparison(
                figures_a,
                figures_b,
                delta,
                table,
                preempted_requests(a.requests, b.requests),
                verdict,
                tuple(limit + _differences(a, b)),
                {"A": missing_figures(a.meta), "B": missing_figures(b.meta)},
                estimated,
                rules,
            )
        )
    return tuple(found)


def _ended_early(runs: Mapping[str, tuple[Recording, Mapping[str, Any]]]) -> dict[str, str]:
    """The side whose recording stops before all was done that the other has done, with a sentence on it."""
    fewest = min(figures["num_finished"] for _, figures in runs.values())
    most = max(figures["num_finished"] for _, figures in runs.values())
    found = {}
    for side, (run, figures) in runs.items():
        if run.status != COMPLETED and fewest == figures["num_finished"] < most:
            why = "was not closed" if run.status == "unclosed" else f"ends {run.status}"
            found[side] = (
                f"The recording of {side} {why}: its duration, counts, sums and ITL are not judged."
            )
    return found


def _noise(run: Recording) -> float | None:
    return step_noise_frac(run) if run.meta.clock == "measured" else None


def estimated_figures(run: Recording) -> frozenset[str]:
    return frozenset({"preemption_cost_s"} if is_cost_estimated(run) else ())


def num_pairs(a: pl.DataFrame, b: pl.DataFrame) -> tuple[int, int]:
    """Requests that both runs finished, and requests that both had."""
    ended = pl.col("status").cast(pl.String) == "finished"
    ids = [(t.filter(ended).select("request_id"), t.select("request_id")) for t in (a, b)]
    left, right = ids
    finished, shared = (
        x.join(y, on="request_id", how="semi").height for x, y in zip(left, right, strict=True)
    )
    return finished, shared


def check_comparable(a: Recording, b: Recording, *, anyway: bool = False) -> list[str]:
    """Notes on what limits the comparison. Raises CompareError where it would mean nothing."""
    clocks = (a.meta.clock, b.meta.clock)
    if clocks[0] != clocks[1] and "step" in clocks:
        raise CompareError(
            f"{a.label} has the clock {clocks[0]!r} and {b.label} {clocks[1]!r}: steps cannot be held against seconds. "
            "Run both with the same --clock."
        )
    notes = []
    if clocks[0] != clocks[1]:
        notes.append(
            f"Times of A are {clocks[0]}, times of B {clocks[1]}: differences in time hold the model's error too."
        )
    if clocks == ("step", "step"):
        notes.append(
            "Times count steps, not seconds (clock step): what copies and recomputes cost is not in them."
        )
    digests = (a.meta.workload_digest, b.meta.workload_digest)
    if None not in digests and digests[0] == digests[1]:
        return notes
    shared, same = overlap(a.requests, b.requests)
    if same == 1.0:
        why = "A recording does not name its workload"
        if None not in digests:  # a replay of a recording knows other things than the trace did
            why = "The recordings name different workloads"
        return [*notes, f"{why}; ids, arrivals and lengths of all requests agree."]
    message = (
        f"{a.label} and {b.label} come from different workloads: {shared * 100:.0f} % of request ids occur in both, "
        f"{same * 100:.0f} % with the same arrival and prompt length."
    )
    if not anyway:
        raise CompareError(
            f"{message} Replay one trace with the same window and rate under both settings, then compare those."
        )
    return [*notes, f"{message} Differences may come from that and not from the settings."]


def overlap(a: pl.DataFrame, b: pl.DataFrame) -> tuple[float, float]:
    """Shares of all distinct request ids that are in both, and that ask for the same there.

    How much output a request asked for is known where it finished.
    """
    keys = ["request_id", "arrival_s", "prompt_tokens", "output_tokens", "status"]
    # A server's recording counts from its start, a replay of it from the first arrival.
    since_s = (pl.col("arrival_s") - pl.col("arrival_s").min()).alias("since_s")
    both = a.select(*keys, since_s).join(b.select(*keys, since_s), on="request_id", suffix="_b")
    union = a.height + b.height - both.height
    same = both.filter(
        ((pl.col("since_s") - pl.col("since_s_b")).abs() <= 1e-6)
        & (pl.col("prompt_tokens") == pl.col("prompt_tokens_b"))
        & (
            (pl.col("status").cast(pl.String) != "finished")
            | (pl.col("status_b").cast(pl.String) != "finished")
            | (pl.col("output_tokens") == pl.col("output_tokens_b"))
        )
    )
    return (both.height / union, same.height / union) if union else (1.0, 1.0)


def _differences(a: Recording, b: Recording) -> list[str]:
    """Notes on incomplete runs and on settings that differ, those that do something in both."""
    notes = [f"{side}: {note}" for side, rec in (("A", a), ("B", b)) for note in rec.notes]
    left, right = a.meta.settings, b.meta.settings
    idle = idle_settings(a.meta, b.meta)
    keys = [k for k in sorted({*left, *right}) if left.get(k) != right.get(k) and k not in idle]
    for name in ("model", "device", "executor"):
        if name not in keys and a.meta.get(name) != b.meta.get(name):
            notes.append(f"A and B differ in {name}.")
    return notes + [f"{key}: {left.get(key)} in A, {right.get(key)} in B." for key in keys]


def request_intervals(a: pl.DataFrame, b: pl.DataFrame, seed: int = 0) -> dict[str, Interval]:
    """Figure ("ttft_s p99", "num_preemptions") -> paired bootstrap interval over requests: those
    that both finished for latencies, all that both had for counts.

    a, b: `requests` tables. A figure of all finished requests may differ a little from that of the
    pairs; where the two runs finished different requests, the interval is that of the pairs.
    """
    left, right = (
        request_latency(t.sort("arrival_s", maintain_order=True))
        .filter(pl.col("status").cast(pl.String) == "finished")
        .drop("status")
        for t in (a, b)
    )
    pairs = left.join(right, on="request_id", suffix="_b", maintain_order="left")
    intervals: dict[str, Interval] = {}
    for metric in REQUEST_METRICS:
        values = pairs.select(metric, f"{metric}_b").drop_nulls()
        x, y = (values[c].to_numpy() for c in values.columns)
        found = paired_intervals(x, y, seed)
        intervals |= {f"{metric} {key}": interval for key, interval in found.items()}
    return intervals | _count_intervals(a, b, seed)


def _count_intervals(a: pl.DataFrame, b: pl.DataFrame, seed: int) -> dict[str, Interval]:
    """Intervals of sums over the requests that both runs had, whatever became of them."""
    columns = ("num_preemptions", "recomputed_tokens")
    pairs = (
        a.sort("arrival_s", maintain_order=True)
        .select("request_id", *columns)
        .join(
            b.select("request_id", *columns),
            on="request_id",
            suffix="_b",
            maintain_order="left",
        )
        .drop_nulls()
    )
    sums = {c: tuple(pairs[x].to_numpy() for x in (c, f"{c}_b")) for c in columns}
    sums["num_preempted_requests"] = tuple(x > 0 for x in sums["num_preemptions"])
    found = {name: paired_sum_interval(x, y, seed) for name, (x, y) in sums.items()}
    return {name: interval for name, interval in found.items() if interval is not None}


def _unlike_costs(
    a: Recording, b: Recording, estimated: Mapping[str, frozenset[str]]
) -> dict[str, str]:
    """Figures that are not one thing in both: link time beside the computing is no engine time, and
    an estimate no measurement."""
    if any(copies_beside_computing(rec.meta) for rec in (a, b)):
        return {"preemption_cost_s": "link time"}
    if any("preemption_cost_s" in names for names in estimated.values()):
        return {"preemption_cost_s": "estimated"}
    return {}


def delta_table(
    a: dict[str, Any], b: dict[str, Any], intervals: dict[str, Interval], rules: Rules
) -> pl.DataFrame:
    """One row a figure, as Comparison.table says.

    Counts and sums of a run that have no interval are judged by their size alone.
    """
    rows: list[dict[str, Any]] = []
    judged: dict[str, tuple[str | None, str | None]] = {}
    deltas: dict[str, float | None] = {}
    for metric, (x, y) in _flat(a, b).items():
        delta = deltas[metric] = None if x is None or y is None else y - x
        interval = intervals.get(metric)
        judged[metric] = judge(metric, x, delta, interval, rules)
        if metric == "recomputed_frac":
            of_tokens = judged["recomputed_tokens"]
            judged[metric] = share_verdict(delta, deltas["recomputed_tokens"], of_tokens)
        rows.append(
            {
                "metric": metric,
                "a": x,
                "b": y,
                "delta": delta,
                "delta_frac": delta / abs(x) if delta is not None and x else None,
                "low": interval.low if interval else None,
                "high": interval.high if interval else None,
                "verdict": judged[metric][0],
                "reason": judged[metric][1],
            }
        )
    return pl.DataFrame(
        rows,
        schema={"metric": pl.String}
        | dict.fromkeys(("a", "b", "delta", "delta_frac", "low", "high"), pl.Float64)
        | {"verdict": pl.Enum(VERDICTS), "reason": pl.String},
        strict=False,
    )


def _flat(a: dict[str, Any], b: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Figure -> values of A and B, nested ones as "ttft_s p99"."""
    flat: dict[str, tuple[Any, Any]] = {}
    for key, value in a.items():
        if isinstance(value, dict):
            flat |= {f"{key} {k}": (value[k], b[key][k]) for k in SUMMARY_KEYS}
        else:
            flat[key] = (value, b[key])
    return flat


def flat_figures(figures: dict[str, Any]) -> dict[str, Any]:
    """Figures as from `summarize` under the names that `Comparison.table` has: "ttft_s p99"."""
    return {metric: value for metric, (value, _) in _flat(figures, figures).items()}


def _minus(b: Any, a: Any) -> Any:
    if isinstance(a, dict):
        return {k: _minus(b[k], a[k]) for k in a}
    return None if a is None or b is None else b - a


def preempted_requests(a: pl.DataFrame, b: pl.DataFrame) -> pl.DataFrame:
    """Requests preempted in either run: request_id, where, preemptions_a, preemptions_b, e2e_delta_s.

    where: "only A", "only B" or "both"; e2e_delta_s: B - A, null unless both finished. Most
    preemptions first, then by id.
    """
    left, right = (
        t.select("request_id", "num_preemptions").join(
            request_latency(t).select("request_id", "e2e_s"), on="request_id"
        )
        for t in (a, b)
    )
    both = left.join(right, on="request_id", how="full", suffix="_b", coalesce=True)
    in_a, in_b = pl.col("preemptions_a") > 0, pl.col("preemptions_b") > 0
    return (
        both.select(
            "request_id",
            preemptions_a=pl.col("num_preemptions").fill_null(0),
            preemptions_b=pl.col("num_preemptions_b").fill_null(0),
            e2e_delta_s=pl.col("e2e_s_b") - pl.col("e2e_s"),
        )
        .filter(in_a | in_b)
        .select(
            "request_id",
            pl.when(in_a & in_b)
            .then(pl.lit("both"))
            .when(in_a)
            .then(pl.lit("only A"))
            .otherwise(pl.lit("only B"))
            .alias("where"),
            "preemptions_a",
            "preemptions_b",
            "e2e_delta_s",
        )
        .sort(
            pl.col("preemptions_a") + pl.col("preemptions_b"),
            "request_id",
            descending=[True, False],
        )
    )
