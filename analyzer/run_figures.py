"""Figures, preemptions and comparisons of runs: worked out, and kept where a run is long.

It knows what is kept under which name. How a thing is worked out is known in `summary`,
`preemption_rows`, `latency` and `compare`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from hashlib import blake2b
from typing import Any

import numpy as np
import polars as pl

from analyzer.compare import Comparison, compare
from analyzer.judging import VERDICTS, Rules
from analyzer.latency import request_latency
from analyzer.preemption_rows import told
from analyzer.run import Run
from analyzer.run_files import RunFiles
from analyzer.summary import summarize
from analyzer.verdict import Fact, Verdict
from traces.recording import Recording

POINTS = 800  # of a curve of shares
_FIGURES, _TOLD = "figures", "told"


def figures_of(run: Run) -> dict[str, Any]:
    """As `summarize`."""
    if run.files is None:
        return summarize(run.recording)
    return dict(run.files.document(_FIGURES, lambda: summarize(run.recording)))


def preemptions_of(run: Run) -> pl.DataFrame:
    """As `told`."""
    return told(run) if run.files is None else run.files.frame(_TOLD, lambda: told(run))


def is_told(run: Run) -> bool:
    """Whether `preemptions_of` comes at once."""
    return run.files is None or run.files.has(_TOLD)


def ttft_of(run: Run) -> tuple[np.ndarray, int]:
    """Times to first token of a run, sorted, thinned to POINTS quantiles, and how many requests have
    one. (n,), s."""
    if run.files is None:
        return _ttft(run)
    times, num = run.files.arrays("ttft", lambda: _counted(*_ttft(run)))
    return times, int(num[0])


def comparison_of(a: Run, b: Run) -> Comparison:
    """As `compare`. Raises CompareError."""
    files = _files_of_pair(a, b)
    if files is None:
        return compare(a.recording, b.recording)
    name = _pair_name(a, b)
    made: list[Comparison] = []

    def make() -> dict[str, Any]:
        known = {id(r.recording): figures_of(r) for r in (a, b)}

        def summary(recording: Recording) -> dict[str, Any]:
            return known[id(recording)]

        made.append(compare(a.recording, b.recording, summary=summary))
        return as_document(made[0])

    document = files.document(name, make)
    preempted = files.frame(f"{name}-preempted", lambda: _preempted(a, b, made))
    return from_document(document, preempted)


def is_worked_out(*runs: Run) -> bool:
    """Whether all that is worked out of these runs is kept, or is worked out at once as they are short.
    runs: A first."""
    first, *others = runs
    for run in runs:
        if run.files is not None and not run.files.has(_FIGURES, _TOLD):
            return False
    pairs = ((_files_of_pair(first, b), _pair_name(first, b)) for b in others)
    return all(files is None or files.has(name) for files, name in pairs)


def as_document(found: Comparison) -> dict[str, Any]:
    """A comparison as JSON can hold it, `preempted` left out."""
    names = ("missing", "estimated")
    return {
        "a": found.a,
        "b": found.b,
        "delta": found.delta,
        "table": found.table.with_columns(pl.col("verdict").cast(pl.String)).to_dicts(),
        "verdict": asdict(found.verdict),
        "notes": list(found.notes),
        **{
            name: {side: sorted(of) for side, of in getattr(found, name).items()}
            for name in names
        },
        "rules": {**asdict(found.rules), "reasons": dict(found.rules.reasons)},
    }


def from_document(said: Mapping[str, Any], preempted: pl.DataFrame) -> Comparison:
    """The comparison that `as_document` wrote."""
    columns = ("a", "b", "delta", "delta_frac", "low", "high")
    table = pl.DataFrame(
        said["table"],
        schema={"metric": pl.String}
        | dict.fromkeys(columns, pl.Float64)
        | {"verdict": pl.Enum(VERDICTS), "reason": pl.String},
    )
    facts = tuple(Fact(**fact) for fact in said["verdict"]["facts"])
    missing, estimated = (
        {side: frozenset(names) for side, names in said[key].items()}
        for key in ("missing", "estimated")
    )
    return Comparison(
        said["a"],
        said["b"],
        said["delta"],
        table,
        preempted,
        Verdict(**{**said["verdict"], "facts": facts}),
        tuple(said["notes"]),
        missing,
        estimated,
        Rules(**said["rules"]),
    )


def _ttft(run: Run) -> tuple[np.ndarray, int]:
    found = request_latency(run.requests)["ttft_s"].drop_nulls().sort().to_numpy()
    if len(found) <= POINTS:
        return found, len(found)
    return np.quantile(found, np.linspace(0, 1, POINTS), method="lower"), len(found)


def _counted(times: np.ndarray, num: int) -> tuple[np.ndarray, np.ndarray]:
    return times, np.array([num])


def _preempted(a: Run, b: Run, made: list[Comparison]) -> pl.DataFrame:
    found = made[0] if made else compare(a.recording, b.recording)
    return found.preempted


def _files_of_pair(a: Run, b: Run) -> RunFiles | None:
    return a.files or b.files


def _pair_name(a: Run, b: Run) -> str:
    which = "\0".join(f"{r.ref}\0{r.stamp}\0{r.recording.label}" for r in (a, b))
    return f"against-{blake2b(which.encode(), digest_size=12).hexdigest()}"
