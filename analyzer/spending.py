"""What a run spent on its preemptions, in words: what was chosen, computed again, moved; time.

It chooses words for figures that `summary.py` and `preemptions.py` computed; only tokens lost, found
and restored are summed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from analyzer.lifecycles import away_intervals
from analyzer.look import gib
from analyzer.measured import is_cost_estimated
from analyzer.preemptions import Choices, choices
from analyzer.words import percent, show_time
from traces.recording import Recording


def describe_spending(side: str, run: Recording, figures: Mapping[str, Any]) -> str:
    """A sentence or two about one side, or '' where nothing was preempted or none was recorded.

    figures: as from `summarize`.
    """
    if not figures["num_preemptions"]:
        return ""
    parts = [part for part in (_tokens(run, figures), _moved(run, figures)) if part]
    times = (
        "once" if figures["num_preemptions"] == 1 else f"{figures['num_preemptions']:,} times"
    )
    said = f"{side} preempts {times}{' and ' if parts else ''}{', and '.join(parts)}{_cost(run, figures)}."
    chosen = choices(run.events)
    return f"{said} {_chosen(chosen)}" if chosen else said


def _tokens(run: Recording, figures: Mapping[str, Any]) -> str:
    """What became of the tokens whose KV was dropped; '' where none was."""
    lost, found, restored = _lost_tokens(run)
    again = figures["recomputed_tokens"]
    if not lost or again is None:
        return ""
    kept = [f"{percent(found / lost)} of what it lost was still in the prefix cache"]
    if restored or run.meta.preemption_mode == "offload":
        kept.append(f"{percent(restored / lost)} was restored from the host")
    return f"recomputes {again:,} tokens ({percent(figures['recomputed_frac'] or 0.0)} of all computed; {', '.join(kept)})"


def _moved(run: Recording, figures: Mapping[str, Any]) -> str:
    """What was copied, and how long the engine stood still for it."""
    if not figures["swap_out_bytes"] and not figures["swap_in_bytes"]:
        return ""
    out, back = (gib(figures[key]) for key in ("swap_out_bytes", "swap_in_bytes"))
    if run.meta.preemption_mode == "offload":
        return f"copies {out} to the host as blocks fill and {back} back"
    stall = figures["stall_s"]
    stalling = (
        "" if stall is None else f", stalling {show_time(stall, run.meta.clock == 'step')}"
    )
    return f"copies {out} out and {back} in{stalling}"


def _chosen(chosen: Choices) -> str:
    """What mode cheapest chose, and what it expected to save by that."""
    full = chosen.num_host_full
    only = f" ({full:,} of them because the host was full)" if full else ""
    said = f"It swapped {chosen.num_swapped:,} of its victims and recomputed {chosen.num_recomputed:,}{only}"
    if chosen.used_est_s is None or chosen.other_est_s is None:
        return f"{said}."
    return (
        f"{said}: by its estimates {show_time(chosen.used_est_s)} of engine time, "
        f"where the other way each time would have cost {show_time(chosen.other_est_s)}."
    )


def _cost(run: Recording, figures: Mapping[str, Any]) -> str:
    cost_s = figures.get("preemption_cost_s")
    if cost_s is None or run.meta.clock == "step":
        return ""
    stall = figures["stall_s"]
    if (
        figures["swap_out_bytes"]
        and stall is not None
        and show_time(stall) == show_time(cost_s)
    ):
        return ""  # said as the stall, which it is where copies block
    # Of what a host cache copies, only the blocks of victims are their cost.
    whose = "; its victims' return" if run.meta.preemption_mode == "offload" else ", which"
    return f"{whose} costs {show_time(cost_s)} {_of_what(figures, run)}{_how_known(run)}"


def _how_known(run: Recording) -> str:
    """Of a measured run, whether its cost was measured too."""
    if run.meta.clock != "measured":
        return ""
    return " by the engine's estimate, not measured" if is_cost_estimated(run) else ", measured"


def _of_what(figures: Mapping[str, Any], run: Recording) -> str:
    """Whose time the cost is: link time of asynchronous copies holds nobody up by itself."""
    if run.meta.preemption_mode == "offload":
        return (
            "of computing and of loading, which runs beside it"
            if figures["swap_in_bytes"]
            else "of computing"
        )
    if not figures["swap_out_bytes"]:
        return "of computing"
    if run.meta.settings.get("copy_mode") == "async":
        mixed = run.meta.preemption_mode == "cheapest" and figures["recomputed_tokens"]
        return (
            "of computing, and of the link beside it"
            if mixed
            else "of the link, beside the computing"
        )
    return "of copying" if not figures["recomputed_tokens"] else "of copying and computing"


def _lost_tokens(run: Recording) -> tuple[int, int, int]:
    """Tokens dropped by requests that came back, those of them found in the prefix cache, and those
    restored from the host; recompute and offload together."""
    away = away_intervals(run.events).filter(
        (pl.col("mode_used").cast(pl.String) != "swap") & pl.col("resume_step").is_not_null()
    )
    found = pl.min_horizontal("tokens", "found_tokens")
    restored = pl.min_horizontal(pl.col("tokens") - found, "restored_tokens")
    row = away.select(
        pl.col("tokens").sum(), found.sum().alias("found"), restored.sum().alias("restored")
    )
    return tuple(int(v or 0) for v in row.row(0))  # type: ignore[return-value]  # three columns, three numbers
