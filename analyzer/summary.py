"""The figures of one recording under the names that `python -m analyzer summary --json` prints.

It collects what occupancy and latency compute, and adds the sums. It compares nothing.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from analyzer.latency import latency_summary, request_latency
from analyzer.measured import recompute_token_s
from analyzer.occupancy import occupancy_summary
from analyzer.preemptions import preemption_cost
from analyzer.token_gaps import token_gaps
from traces.recording import Meta, Recording

STEP_SUMS = (
    "prefill_tokens",
    "decode_tokens",
    "recomputed_tokens",
    "cached_tokens",
    "restored_tokens",
    "swap_out_bytes",
    "swap_in_bytes",
    "stall_s",
    "num_preempted",
)


# Figures that would read as 0 where their columns were not recorded.
_RESTS_ON = {
    "num_preemptions": ("steps.num_preempted",),
    "num_preempted_requests": ("requests.num_preemptions",),
    "preemption_cost_s": ("events.cost_s",),
    "recomputed_tokens": ("steps.recomputed_tokens",),
    "recomputed_frac": ("steps.recomputed_tokens",),
    "prefix_cached_tokens": ("steps.cached_tokens",),
    "restored_tokens": ("steps.restored_tokens",),
    "swap_out_bytes": ("steps.swap_out_bytes",),
    "swap_in_bytes": ("steps.swap_in_bytes",),
    "stall_s": ("steps.stall_s",),
}


def summarize(recording: Recording) -> dict[str, Any]:
    """Counts, sums, shares and latencies of a run; a figure that nothing supports is None.

    duration_s runs from the start of the run to the end of its last step. recomputed_frac is the
    share of all computed tokens (prefill, decode and recomputed) that had been computed before.
    preemption_cost_s: as from `preemption_cost`. restored_tokens: from the host cache, of all requests.
    A figure that rests on a column which was not recorded is None (`missing_figures`). Latencies are over finished requests, linear percentiles.
    """
    steps = recording.scan("steps")
    end_s = (pl.col("t_start_s") + pl.col("duration_s")).max()
    sums = [
        pl.col(c).cast(pl.Float64 if c.endswith("_s") else pl.Int64).sum() for c in STEP_SUMS
    ]
    row = (
        steps.select(*sums, num_steps=pl.len(), end_s=end_s)
        .collect(engine="streaming")
        .row(0, named=True)
    )
    requests = recording.requests
    status = requests["status"].cast(pl.String)
    computed = row["prefill_tokens"] + row["decode_tokens"] + row["recomputed_tokens"]
    occupancy = occupancy_summary(steps)
    duration_s = row["end_s"] or 0.0
    gaps = token_gaps(
        requests,
        recording.events,
        steps.select("step", "t_start_s", "duration_s", "decode_tokens").collect(),
    )
    figures = {
        "num_requests": requests.height,
        "num_finished": int((status == "finished").sum()),
        "num_refused": int((status == "refused").sum()),
        "num_steps": row["num_steps"],
        "duration_s": duration_s,
        "num_preemptions": row["num_preempted"],
        "num_preempted_requests": int((requests["num_preemptions"] > 0).sum()),
        "preemption_cost_s": preemption_cost(recording.events, recompute_token_s(recording)),
        "recomputed_tokens": row["recomputed_tokens"],
        "recomputed_frac": row["recomputed_tokens"] / computed if computed else None,
        "prefix_cached_tokens": row["cached_tokens"],
        "restored_tokens": row["restored_tokens"],
        "swap_out_bytes": row["swap_out_bytes"],
        "swap_in_bytes": row["swap_in_bytes"],
        "stall_s": row["stall_s"],
        "peak_used_frac": occupancy.peak_used_frac,
        "full_steps_frac": occupancy.full_steps_frac,
        "output_tokens_per_s": int(requests["output_tokens"].sum()) / duration_s
        if duration_s
        else None,
        **latency_summary(request_latency(requests)),
        "itl_s": gaps.summary(),
    }
    return figures | dict.fromkeys(missing_figures(recording.meta))


def missing_figures(meta: Meta) -> frozenset[str]:
    """Figures of `summarize` that rest on columns which the run's executor could not see."""
    unseen = meta.not_recorded
    return frozenset(name for name, columns in _RESTS_ON.items() if unseen & set(columns))
