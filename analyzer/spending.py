"""What a run spent on its preemptions, in a sentence: tokens computed again, bytes moved, time.

It chooses words for figures that `summary.py` computed; only tokens lost and found are summed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from analyzer.lifecycles import away_intervals
from analyzer.look import gib
from analyzer.words import percent, show_time
from traces.recording import Recording


def describe_spending(side: str, run: Recording, figures: Mapping[str, Any]) -> str:
    """A sentence about one side, or '' where nothing was preempted. figures: as from `summarize`."""
    if figures["num_preemptions"] == 0:
        return ""
    parts = []
    lost, restored = _lost_tokens(run)
    if lost:
        again = figures["recomputed_tokens"]
        parts.append(
            f"recomputes {again:,} tokens ({percent(figures['recomputed_frac'] or 0.0)} of all computed; "
            f"{percent(restored / lost)} of what it lost was still in the prefix cache)"
        )
    if figures["swap_out_bytes"]:
        out, back = (gib(figures[key]) for key in ("swap_out_bytes", "swap_in_bytes"))
        stall = show_time(figures["stall_s"], run.meta.clock == "step")
        parts.append(f"copies {out} out and {back} in, stalling {stall}")
    times = (
        "once" if figures["num_preemptions"] == 1 else f"{figures['num_preemptions']:,} times"
    )
    return f"{side} preempts {times}{' and ' if parts else ''}{', and '.join(parts)}{_cost(run, figures)}."


def _cost(run: Recording, figures: Mapping[str, Any]) -> str:
    cost_s = figures.get("preemption_cost_s")
    if cost_s is None or run.meta.clock == "step":
        return ""
    if figures["swap_out_bytes"] and show_time(figures["stall_s"]) == show_time(cost_s):
        return ""  # said as the stall, which it is where copies block
    return f", which costs {show_time(cost_s)} {_of_what(figures, run)}"


def _of_what(figures: Mapping[str, Any], run: Recording) -> str:
    """Whose time the cost is: link time of asynchronous copies holds nobody up by itself."""
    if not figures["swap_out_bytes"]:
        return "of computing"
    if run.meta.settings.get("copy_mode") == "async":
        return "of the link, beside the computing"
    return "of copying" if not figures["recomputed_tokens"] else "of copying and computing"


def _lost_tokens(run: Recording) -> tuple[int, int]:
    """Tokens lost to recompute by requests that came back, and those of them found in the cache."""
    away = away_intervals(run.events).filter(
        (pl.col("mode_used").cast(pl.String) == "recompute")
        & pl.col("resume_step").is_not_null()
    )
    lost = away["tokens"]
    restored = away.select(pl.min_horizontal("tokens", "restored_tokens").sum()).item()
    return int(lost.sum()), int(restored)
