"""The contract of a sweep's table: one Parquet file, a row a cell; what engine and analyzer share.

A cell is one trace under one choice of the varied settings with one seed. The columns are those of
CELL, one for each varied setting (named as the setting), and those of FIGURES, each null where
nothing supports it. The file's key-value metadata holds a JSON document under METADATA_KEY. It knows
names, types and units; who fills them is `engine/sweep.py`, who reads them `analyzer/sweep_table.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

SWEEP_VERSION = "1.0"
METADATA_KEY = "kv_replay_sweep"
TABLE_FILE = "sweep.parquet"
# What became of a cell. Beside these, how a run ended that was cut short: stalled, livelock, max_steps.
COMPLETED, REFUSED, FAILED = "completed", "refused", "failed"
RUN_STATUSES = (COMPLETED, "stalled", "livelock", "max_steps")
STATUSES = (*RUN_STATUSES, REFUSED, FAILED)


@dataclass(frozen=True)
class Figure:
    """A column of figures. better: which direction is good, "" where neither is."""

    name: str
    dtype: Any
    label: str
    better: Literal["less", "more", ""] = ""


def _latencies(metric: str, label: str) -> tuple[Figure, ...]:
    return tuple(
        Figure(f"{metric}_{which}_s", pl.Float64, f"{label} {which}", "less")
        for which in ("mean", "p50", "p90", "p99")
    )


FIGURES: tuple[Figure, ...] = (
    Figure("num_preemptions", pl.Int64, "Preemptions", "less"),
    Figure("num_preempted_requests", pl.Int64, "Requests preempted", "less"),
    Figure("recomputed_frac", pl.Float64, "Recomputed, of all computed", "less"),
    Figure("output_tokens_per_s", pl.Float64, "Output tokens per second", "more"),
    Figure("requests_per_s", pl.Float64, "Finished requests per second", "more"),
    Figure("goodput_per_s", pl.Float64, "Goodput (requests per second)", "more"),
    Figure("goodput_frac", pl.Float64, "Requests within the bounds", "more"),
    *_latencies("ttft", "TTFT"),
    *_latencies("tpot", "TPOT"),
    *_latencies("e2e", "E2E"),
    *_latencies("itl", "ITL"),
    *_latencies("queue", "Queueing"),
    Figure("peak_used_frac", pl.Float64, "Peak use of the pool"),
    Figure("full_steps_frac", pl.Float64, "Steps at least 98 % full"),
    Figure("preemption_cost_s", pl.Float64, "Preemption cost", "less"),
    Figure("stall_s", pl.Float64, "Stalled for copies", "less"),
    Figure("duration_s", pl.Float64, "Duration"),
    Figure("num_requests", pl.Int64, "Requests"),
    Figure("num_finished", pl.Int64, "Finished", "more"),
    Figure("num_refused", pl.Int64, "Refused", "less"),
    Figure("num_steps", pl.Int64, "Steps"),
    Figure("pool_blocks", pl.Int64, "Pool (blocks)"),
)
FIGURE: dict[str, Figure] = {f.name: f for f in FIGURES}

# Of every cell. cell: 32 hex digits, a digest of what makes it; error: why it was refused or failed;
# attempts: how often it was tried; wall_s: how long the last try took; recording: folder of the kept
# recording below the table's folder, null where none was kept.
CELL: dict[str, Any] = {
    "cell": pl.String,
    "trace": pl.String,
    "seed": pl.Int64,
    "status": pl.String,
    "error": pl.String,
    "attempts": pl.Int64,
    "wall_s": pl.Float64,
    "recording": pl.String,
}
KNOWN = frozenset({*CELL, *FIGURE})
