"""The figures of a fleet: one row a rank, and what they come to together.

It opens the members of a Fleet one after the other, so that memory holds one at a time. A member that
breaks a law of the contract is named and left out. What a figure means is known in `occupancy.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from analyzer.fleet_balance import balance, say_balance
from analyzer.fleet_series import read_fleet
from analyzer.occupancy import occupancy_summary
from analyzer.telemetry import summarize_telemetry
from traces.errors import RecordingError
from traces.fleet import Fleet, Member
from traces.recording import Recording

SUMS = ("prefill_tokens", "decode_tokens", "recomputed_tokens", "num_preempted")


@dataclass(frozen=True)
class FleetSummary:
    """ranks: a row of figures for each recording, None where nothing supports one; totals: over all
    of them; telemetry: the same for members that are telemetry; notes: sentences for the user."""

    ranks: tuple[dict[str, Any], ...]
    totals: dict[str, Any]
    telemetry: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]


def summarize_fleet(fleet: Fleet) -> FleetSummary:
    """Figures of every member and their totals.

    Sums are over ranks. Shares of tokens are of all ranks' tokens; peak_used_frac is the highest of any
    rank, and busiest_rank names it; preemptions_max_frac is the share of all preemptions that fell to
    one rank. duration_s is the longest. Of fleets of two and more, `Balance.figures` are among the
    totals. Raises RecordingError where no member can be opened.
    """
    ranks, telemetry, notes = [], [], list(fleet.notes)
    for member in fleet.members:
        try:
            if member in fleet.telemetry:
                with_rank = {"label": member.label, "rank": member.rank}
                telemetry.append(with_rank | summarize_telemetry(member.open_telemetry()))
                continue
            with member.open_recording() as recording:
                ranks.append(_figures(member, recording))
                notes += [f"{member.label}: {note}" for note in recording.notes]
        except RecordingError as error:
            notes.append(f"{member.label} was left out: {error}")
    if not ranks and not telemetry:
        raise RecordingError(
            fleet.label, "", "none of its recordings can be opened", f"The first: {notes[0]}"
        )
    totals = _totals(ranks)
    if len(ranks) + len(telemetry) > 1:
        figures, said = _balance(fleet)
        totals |= figures
        notes += said
    return FleetSummary(tuple(ranks), totals, tuple(telemetry), tuple(notes))


def _balance(fleet: Fleet) -> tuple[dict[str, Any], list[str]]:
    """Figures of how evenly the ranks are loaded, and the sentence of it."""
    try:
        series = read_fleet(fleet)
    except RecordingError as error:
        return {}, [f"How evenly they are loaded is not known: {error}"]
    found = balance(series)
    said = series.clock.notes if len(series.ranks) > 1 else ()
    return found.figures(), [say_balance(series, found), *said]


def _figures(member: Member, recording: Recording) -> dict[str, Any]:
    steps = recording.scan("steps")
    sums = [pl.col(c).cast(pl.Int64).sum() for c in SUMS]
    row = (
        steps.select(
            *sums,
            num_steps=pl.len(),
            begin_s=pl.col("t_start_s").min(),
            end_s=(pl.col("t_start_s") + pl.col("duration_s")).max(),
            max_running=pl.col("num_running").max(),
            max_waiting=pl.col("num_waiting").max(),
        )
        .collect(engine="streaming")
        .row(0, named=True)
    )
    used = occupancy_summary(steps)
    requests = recording.requests
    return {
        "label": member.label,
        "rank": member.rank,
        "num_steps": row["num_steps"],
        "duration_s": (row["end_s"] - row["begin_s"]) if row["num_steps"] else 0.0,
        "num_requests": requests.height,
        "num_finished": int((requests["status"].cast(pl.String) == "finished").sum()),
        "num_preemptions": row["num_preempted"],
        "peak_used_frac": used.peak_used_frac,
        "full_steps_frac": used.full_steps_frac,
        "max_running": row["max_running"],
        "max_waiting": row["max_waiting"],
        "prefill_tokens": row["prefill_tokens"],
        "decode_tokens": row["decode_tokens"],
        "recomputed_tokens": row["recomputed_tokens"],
        "recomputed_frac": _recomputed_frac(row),
    }


def _recomputed_frac(row: dict[str, Any]) -> float | None:
    computed = row["prefill_tokens"] + row["decode_tokens"] + row["recomputed_tokens"]
    return row["recomputed_tokens"] / computed if computed else None


def _totals(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    if not ranks:
        return {}
    added = (
        "num_steps",
        "num_requests",
        "num_finished",
        "num_preemptions",
        "prefill_tokens",
        "decode_tokens",
        "recomputed_tokens",
    )
    totals: dict[str, Any] = {name: sum(r[name] for r in ranks) for name in added}
    full = [r for r in ranks if r["peak_used_frac"] is not None]
    busiest = max(full, key=lambda r: r["peak_used_frac"], default=None)
    most = max(r["num_preemptions"] for r in ranks)
    return {
        "num_ranks": len(ranks),
        **totals,
        "duration_s": max(r["duration_s"] for r in ranks),
        "recomputed_frac": _recomputed_frac(totals),
        "peak_used_frac": busiest["peak_used_frac"] if busiest else None,
        "busiest_rank": busiest["label"] if busiest else None,
        "preemptions_max_frac": most / totals["num_preemptions"]
        if totals["num_preemptions"]
        else None,
    }
