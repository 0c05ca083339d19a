"""The figures of telemetry: what its samples say, and None for what they do not.

It knows the columns of `traces/telemetry_schema.py` and reads nothing into them: what is missing
stays None, and values that were derived are named. Verdicts are given elsewhere.
"""

from __future__ import annotations

from typing import Any

import polars as pl

from analyzer.occupancy import FULL_PERCENT
from analyzer.stats import summarize_sample
from traces.telemetry import Telemetry

_SUMS = (
    "prompt_tokens",
    "prompt_computed_tokens",
    "generation_tokens",
    "recomputed_tokens",
    "load_bytes",
    "store_bytes",
    "num_finished",
)
_LATENCIES = ("e2e_s", "queued_s", "prefill_s", "decode_s")


def summarize_telemetry(telemetry: Telemetry) -> dict[str, Any]:
    """Counts, sums, shares and latencies that the samples support; the rest is None.

    duration_s: first to last sample with a time. full_samples_frac: share of samples with at least 98 %
    of the pool in use. num_preemptions: reported ones; a victim that is aborted before it runs again
    is never reported by vLLM. resumed_hit_frac: share of the tokens of preempted requests that the
    prefix cache still had. inferred, missing: names of values that were derived or are not there.
    """
    samples = telemetry.samples
    usage = samples["kv_usage_frac"].drop_nulls()
    times = samples["t_s"].drop_nulls()
    figures: dict[str, Any] = {
        "num_samples": samples.height,
        "ranks": list(telemetry.ranks),
        "duration_s": times.max() - times.min() if len(times) else None,  # type: ignore[operator]  # a Float64 column
        "peak_used_frac": usage.max(),
        "mean_used_samples_frac": usage.mean(),
        "full_samples_frac": (usage * 100 >= FULL_PERCENT).mean() if len(usage) else None,
        "max_running": samples["num_running"].max(),
        "max_waiting": samples["num_waiting"].max(),
        "num_preemptions": _counted(samples, "num_preempted", "preemptions_total"),
        **{name: _sum(samples, name) for name in _SUMS},
        "prefix_hit_frac": _share(samples, "prefix_hit_tokens", "prefix_query_tokens"),
        "resumed_hit_frac": _share(samples, "resumed_hit_tokens", "resumed_query_tokens"),
        "external_hit_frac": _share(samples, "external_hit_tokens", "external_query_tokens"),
        "max_ttft_s": samples["max_ttft_s"].max(),
        "max_itl_s": samples["max_itl_s"].max(),
    }
    ended = telemetry.finished_requests
    for name in _LATENCIES:
        values = (
            ended[name].drop_nulls() if ended is not None else pl.Series([], dtype=pl.Float64)
        )
        figures[name] = summarize_sample(values.to_numpy())
    return figures | {"inferred": list(telemetry.inferred), "missing": list(telemetry.missing)}


def _sum(samples: pl.DataFrame, name: str) -> int | None:
    values = samples[name].drop_nulls()
    return int(values.sum()) if len(values) else None


def _counted(samples: pl.DataFrame, delta: str, total: str) -> int | None:
    """The sum of counts, or where there are none the rise of each rank's counter; a reset starts it
    anew, so that what was counted since is added."""
    counted = _sum(samples, delta)
    if counted is not None:
        return counted
    rises = (
        samples.drop_nulls(total)
        .with_columns(before=pl.col(total).shift(1).over("engine_rank"))
        .drop_nulls("before")
        .select(
            pl.when(pl.col(total) >= pl.col("before"))
            .then(pl.col(total) - pl.col("before"))
            .otherwise(pl.col(total))
            .alias("rise")
        )
    )
    return int(rises["rise"].sum()) if rises.height else None


def _share(samples: pl.DataFrame, part: str, whole: str) -> float | None:
    both = samples.select(part, whole).drop_nulls()
    asked = int(both[whole].sum())
    return int(both[part].sum()) / asked if asked else None
