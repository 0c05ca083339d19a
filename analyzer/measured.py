"""What a measured recording says of its own machine: what a recomputed token cost, how fast blocks
were copied, and how much its steps scatter at equal work.

It knows `steps` and `events`, and no model: where they do not tell, it says None.
"""

from __future__ import annotations

import numpy as np
import polars as pl

from analyzer.stats import weighted_percentiles
from traces.recording import Recording

MIN_STEPS = 16  # of equal work, below which their scatter says nothing
_COPIES = ("swap_out", "swap_in", "load")


def recompute_token_s(recording: Recording) -> float | None:
    """Seconds of computing by which a recomputed token lengthened its step, from the recording's own steps.

    Of each step that recomputed: its `compute_s` less the median of the steps that ran as many decodes
    and nothing else (between two such numbers, on the line between them; nothing, where it ran no
    decode), shared among its `chunk_tokens`. Of these the median, weighted by recomputed tokens; 0 where
    scatter makes it negative. None for other clocks, and where these columns were not recorded.
    """
    if recording.meta.clock != "measured":
        return None
    columns = ("num_decode", "num_chunks", "chunk_tokens", "recomputed_tokens", "compute_s")
    steps = recording.scan("steps").select(columns).collect().drop_nulls()
    steps = steps.filter(pl.col("compute_s") > 0)
    own = steps.filter((pl.col("recomputed_tokens") > 0) & (pl.col("chunk_tokens") > 0))
    alone = (
        steps.filter((pl.col("num_chunks") == 0) & (pl.col("num_decode") > 0))
        .group_by("num_decode")
        .agg(pl.col("compute_s").median())
        .sort("num_decode")
    )
    if own.is_empty() or alone.is_empty():
        return None
    decodes = own["num_decode"].to_numpy()
    without_s = np.interp(decodes, alone["num_decode"], alone["compute_s"])
    extra_s = own["compute_s"].to_numpy() - np.where(decodes > 0, without_s, 0.0)
    per_token_s = extra_s / own["chunk_tokens"].to_numpy()
    weights = own["recomputed_tokens"].to_numpy().astype(np.int64)
    return max(weighted_percentiles(per_token_s, weights, (0.5,))[0], 0.0)


def copy_bytes_per_s(recording: Recording) -> float | None:
    """Bytes of all timed copies over their times, both directions; None for other clocks, and where
    no copy was timed."""
    if recording.meta.clock != "measured":
        return None
    timed = recording.events.filter(
        pl.col("kind").cast(pl.String).is_in(_COPIES) & (pl.col("cost_s") > 0)
    )
    num_bytes, seconds = (
        float(timed[c].cast(pl.Float64).to_numpy().sum()) for c in ("bytes", "cost_s")
    )
    return num_bytes / seconds if num_bytes and seconds else None


def step_noise_frac(recording: Recording) -> float | None:
    """Standard error of the mean step at equal work, as a share of it; None where too few can be told.

    Steps that only decoded, stalls left out, each divided by the median of those with as many tokens
    (how long their contexts are is not told apart, and counts as scatter); then batch means over about
    sqrt(n) neighbours, so that a machine that is slow for a while is not taken for independent steps.
    """
    steps = (
        recording.scan("steps")
        .filter(
            (pl.col("prefill_tokens") == 0)
            & (pl.col("recomputed_tokens") == 0)
            & (pl.col("decode_tokens") > 0)
        )
        .select("decode_tokens", busy_s=pl.col("duration_s") - pl.col("stall_s"))
        .collect()
    )
    like = steps.select(
        ratio=pl.col("busy_s") / pl.col("busy_s").median().over("decode_tokens"),
        num=pl.len().over("decode_tokens"),
    )
    ratios = like.filter((pl.col("num") >= 5) & pl.col("ratio").is_finite())["ratio"].to_numpy()
    if len(ratios) < MIN_STEPS:
        return None
    size = int(len(ratios) ** 0.5)
    num = len(ratios) // size
    means = ratios[: num * size].reshape(num, size).mean(axis=1)
    return float(means.std(ddof=1) / num**0.5 / means.mean())


def is_cost_estimated(recording: Recording) -> bool:
    """Whether `preemption_cost_s` of a measured run holds a model's estimate: it computed lost tokens
    again, and its steps do not tell what that took."""
    if recording.meta.clock != "measured":
        return False
    by_tokens = recording.events.filter(
        (pl.col("kind").cast(pl.String) == "preempt")
        & (pl.col("mode_used").cast(pl.String) != "swap")
    )
    again = recording.scan("steps").select(pl.col("recomputed_tokens").sum()).collect().item()
    return bool(by_tokens.height and again) and recompute_token_s(recording) is None
