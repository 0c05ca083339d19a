"""The figures of one recording as a row of a sweep's table (traces/sweep_schema.py).

It renames what `summary` and `goodput` compute, and adds nothing to it. `python -m engine sweep` calls it
by name in each of its processes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analyzer.goodput import goodput_of
from analyzer.summary import summarize
from traces.recording import Recording
from traces.sweep_schema import FIGURE

_LATENCIES = ("ttft", "tpot", "e2e", "itl", "queue")


def sweep_figures(recording: Recording, bounds: Mapping[str, float]) -> dict[str, Any]:
    """Column -> number of every figure of the contract, None where nothing supports it.

    bounds: metric -> most seconds; without any, goodput is None. Raises SettingsError for a metric
    that has no bound.
    """
    found = summarize(recording)
    row: dict[str, Any] = {name: found.get(name) for name in FIGURE}
    for metric in _LATENCIES:
        for which, value in found[f"{metric}_s"].items():
            row[f"{metric}_{which}_s"] = value
    duration_s = found["duration_s"]
    row["requests_per_s"] = found["num_finished"] / duration_s if duration_s else None
    row["pool_blocks"] = recording.pool_blocks
    if bounds:
        met = goodput_of(recording.requests, bounds, duration_s)
        row |= {"goodput_per_s": met.requests_per_s, "goodput_frac": met.share_frac}
    return row
