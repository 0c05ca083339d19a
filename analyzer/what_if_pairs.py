"""Whether a what-if's figures differ by more than another draw of such requests would: Compare's rule.

It knows two outcomes of trials and reads their recordings. What a verdict is, is known in `judging.py`,
how intervals are drawn in `stats.py`; figures and their words are in `what_if.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from analyzer.compare import num_pairs, overlap, request_intervals
from analyzer.judging import (
    MODELLED_TOLERANCE_FRAC,
    TOLERANCE_FRAC,
    Rules,
    few_requests,
    make_rules,
)
from analyzer.outcome import Outcome
from analyzer.stats import Interval
from analyzer.words import percent
from traces.recording import open_recording


@dataclass(frozen=True)
class Pairs:
    """Two outcomes of the same requests, paired. num_requests: that both had; intervals: figure
    ("ttft_s p99") -> of its difference; rules: as Compare judges these two by."""

    num_requests: int
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    rules: Rules = field(default_factory=lambda: Rules(MODELLED_TOLERANCE_FRAC))


def pairs_of(base: Outcome, now: Outcome) -> Pairs | None:
    """The pairs of both outcomes; None where one did not run or they are not the same requests, as
    after a change of the arrival rate. Raises RecordingError."""
    if not base.recordings or not now.recordings:
        return None
    a, digests_a, clock_a = _read(base.recordings)
    b, digests_b, clock_b = _read(now.recordings)
    is_same = None not in digests_a and digests_a == digests_b
    if not is_same and overlap(a, b)[1] < 1.0:
        return None
    num_finished, num_shared = num_pairs(a, b)
    duration_s = float(base.figures.get("duration_s") or 0.0)
    rules = make_rules(
        (clock_a, clock_b), (None, None), duration_s, few_requests(num_finished, num_shared)
    )
    return Pairs(num_shared, request_intervals(a, b), rules)


def _read(paths: Sequence[Path]) -> tuple[pl.DataFrame, tuple[str | None, ...], str | None]:
    """Requests of all replicas, what each recording says its workload is, and the clock."""
    tables, digests, clock = [], [], None
    for path in paths:
        with open_recording(path) as recording:
            tables.append(recording.requests)
            digests.append(recording.meta.workload_digest)
            clock = recording.meta.clock
    return pl.concat(tables), tuple(digests), clock


def say_rule(pairs: Sequence[Pairs | None]) -> str:
    """By which rule the cards say 'no difference'."""
    if pairs and all(p is not None for p in pairs):
        num = max(p.num_requests for p in pairs if p is not None)
        frac = max(p.rules.time_frac for p in pairs if p is not None)
        return (
            f"No difference, as Compare says it: the interval of the difference over the same {num:,} requests holds zero, "
            f"or times differ by less than {percent(frac)}, other figures by less than {percent(TOLERANCE_FRAC)}."
        )
    return (
        "These are not the same requests at the same times, so there are no intervals as on Compare: "
        f"times that differ by less than {percent(MODELLED_TOLERANCE_FRAC)}, and other figures by less than {percent(TOLERANCE_FRAC)}, are no difference."
    )
