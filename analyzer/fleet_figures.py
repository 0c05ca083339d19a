"""The figures of a fleet as of one server: sums, latencies of all its requests, and its balance.

The same for a fleet that was recorded and for one that was simulated, so that like is held against
like. It opens the recordings one after the other. What a figure of one recording means is known in
`summary.py`, `latency.py` and `fleet_balance.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import polars as pl

from analyzer.fleet_balance import balance
from analyzer.fleet_series import FleetSeries
from analyzer.latency import latency_summary, request_latency
from traces.errors import RecordingError
from traces.fleet import RECORDING
from traces.fleet_clock import Placed

_SUMS = ("prefill_tokens", "decode_tokens", "recomputed_tokens", "num_preempted")


def fleet_figures(series: FleetSeries) -> dict[str, Any]:
    """Figures by name, None where nothing supports one; telemetry adds to the balance only.

    num_replicas, num_requests, num_finished, num_unserved (refused, or not finished at the end),
    num_preemptions, recomputed_frac; ttft_s, tpot_s, e2e_s
    as {mean, p50, p90, p99} over finished requests of all ranks; duration_s from the first arrival to
    the last step's end; output_tokens_per_s over that; mean_used_frac over all ranks and that time, a
    rank without a step counting as empty; peak_used_frac and max_rank_used_frac (mean) of the fullest
    rank; and those of `Balance.figures`. Raises RecordingError where a recording cannot be opened.
    """
    sums = dict.fromkeys(_SUMS, 0)
    counts = dict.fromkeys(("num_requests", "num_finished", "num_unserved"), 0)
    latencies, first_s, end_s, output = [], [], [], 0
    for placed in _recordings(series):
        with placed.member.open_recording() as recording:
            requests = recording.requests
            row = (
                recording.scan("steps")
                .select(
                    *(pl.col(c).cast(pl.Int64).sum() for c in _SUMS),
                    end_s=(pl.col("t_start_s") + pl.col("duration_s")).max(),
                )
                .collect(engine="streaming")
                .row(0, named=True)
            )
        for name in _SUMS:
            sums[name] += int(row[name] or 0)
        latency = request_latency(requests)
        latencies.append(latency)
        status = requests["status"].cast(pl.String)
        counts["num_requests"] += requests.height
        counts["num_finished"] += int((status == "finished").sum())
        counts["num_unserved"] += int(status.is_in(["refused", "unfinished"]).sum())
        output += int(requests["output_tokens"].fill_null(0).sum())
        if requests.height:
            first_s.append(float(requests["arrival_s"].min()) + placed.offset_s)  # type: ignore[arg-type]  # a Float64 column
        if row["end_s"] is not None:
            end_s.append(row["end_s"] + placed.offset_s)
    return {
        "num_replicas": len(series.ranks),
        **_of_requests(latencies, sums, counts, output, first_s, end_s),
        **_usage(series),
        **balance(series).figures(),
    }


def _recordings(series: FleetSeries) -> Iterator[Placed]:
    for rank in series.ranks:
        yield from (p for p in rank.members if p.member.kind == RECORDING)


def _of_requests(
    latencies: list[pl.DataFrame],
    sums: dict[str, int],
    counts: dict[str, int],
    output: int,
    first_s: list[float],
    end_s: list[float],
) -> dict[str, Any]:
    if not latencies:
        return {}
    computed = sums["prefill_tokens"] + sums["decode_tokens"] + sums["recomputed_tokens"]
    duration_s = max(end_s) - min(first_s) if first_s and end_s else 0.0
    found = latency_summary(pl.concat(latencies))
    return {
        **counts,
        "num_preemptions": sums["num_preempted"],
        "recomputed_frac": sums["recomputed_tokens"] / computed if computed else None,
        "duration_s": duration_s,
        "output_tokens_per_s": output / duration_s if duration_s > 0 else None,
        **{name: found[name] for name in ("ttft_s", "tpot_s", "e2e_s")},
    }


def _usage(series: FleetSeries) -> dict[str, float | None]:
    usage = series.values["usage"]
    if not len(usage) or np.isnan(usage).all():
        return dict.fromkeys(("mean_used_frac", "max_rank_used_frac", "peak_used_frac"))
    means = np.nan_to_num(usage).mean(axis=1)
    return {
        "mean_used_frac": float(means.mean()),
        "max_rank_used_frac": float(means.max()),
        "peak_used_frac": float(np.nanmax(series.values["usage_max"])),
    }


def figures_of_folder(path: Any) -> dict[str, Any]:
    """Those of a fleet's folder. Raises RecordingError."""
    from analyzer.fleet_series import read_fleet
    from traces.fleet import open_fleet

    series = read_fleet(open_fleet(path))
    if series.left_out:
        raise RecordingError(str(path), "", series.left_out[0], "Simulate it again.")
    return fleet_figures(series)
