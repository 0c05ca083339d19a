"""The requests of all recordings of a fleet as one Workload, on the fleet's clock.

It opens one member after the other, every row checked, and keeps requests only. How to run them is
the engine's business; how they may be split over replicas is known in routing.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from traces.errors import RecordingError, WorkloadError
from traces.fleet import RECORDING
from traces.fleet_clock import FleetClock
from traces.recording_meta import Meta
from traces.replay import workload_of
from traces.workload import WORKLOAD_SCHEMA, ReadReport, Workload

_BLOCK_TOKENS = 16  # of a prefix segment, where neither trace nor settings say


@dataclass(frozen=True)
class FleetRequests:
    """workload: requests of all tracks in order of arrival, ids led by the member's label;
    track_of: (N,) index of the track that each came to; tracks: their names; metas: of the first
    recording of each track; left_out: sentences on members that could not be used."""

    workload: Workload
    track_of: np.ndarray
    tracks: tuple[str, ...]
    metas: tuple[Meta, ...]
    left_out: tuple[str, ...]


def requests_of(
    clock: FleetClock, name: str, report: Callable[[float, str], None] | None = None
) -> FleetRequests:
    """The union of the requests of a fleet's recordings; telemetry has none and is left out.

    name: of the workload. Steps of arrival and abort are dropped: each rank counts its own. Closed
    loops are added up where all are closed; else recorded arrival times hold. Raises WorkloadError
    where no member has a request that can be run again.
    """
    placed = [(i, p) for i, t in enumerate(clock.tracks) for p in t.members]
    frames: list[pl.DataFrame] = []
    used: dict[int, Meta] = {}
    left_out: list[str] = []
    works: list[Workload] = []
    for done, (track, one) in enumerate(placed):
        if report is not None:
            report(done / len(placed), f"reading the requests of {one.member.label}")
        if one.member.kind != RECORDING:
            left_out.append(f"{one.member.label} is telemetry, which names no requests.")
            continue
        try:
            with one.member.open_recording() as recording:
                work = workload_of(recording)
                used.setdefault(track, recording.meta)
        except (RecordingError, WorkloadError) as error:
            left_out.append(f"{one.member.label} was left out: {error}")
            continue
        size = work.prefix_block_tokens or used[track].block_size_tokens or _BLOCK_TOKENS
        frames.append(_on_clock(work, one.member.label, one.offset_s, track, size))
        works.append(work)
    if not frames:
        first = f" The first: {left_out[0]}" if left_out else ""
        raise WorkloadError(
            name, "", f"no member has requests that can be run again.{first}",
            "Open a folder with recordings of an engine, not only telemetry.",
        )  # fmt: skip
    order = sorted(used)
    table = pl.concat(frames).sort("arrival_s", maintain_order=True)
    number = {track: i for i, track in enumerate(order)}
    track_of = np.array([number[t] for t in table["track"]], np.int32)
    base = float(table["arrival_s"][0])
    table = table.drop("track").with_columns(
        pl.col("arrival_s") - base, pl.col("abort_s") - base
    )
    workload = Workload(
        table.select(*WORKLOAD_SCHEMA, "abort_order"),
        name,
        ReadReport("fleet", rows_read=table.height, notes=_notes(works, left_out)),
        concurrency=_concurrency(works),
        estimated=any(w.estimated for w in works),
    )
    return FleetRequests(
        workload,
        track_of,
        tuple(clock.tracks[t].name for t in order),
        tuple(used[t] for t in order),
        tuple(left_out),
    )


def _on_clock(
    work: Workload, label: str, offset_s: float, track: int, segment_tokens: int
) -> pl.DataFrame:
    """A member's requests with times of the fleet's clock. Lengths of prefix segments are written
    out, since members may differ in them."""
    first_s = (work.report.first_s or 0.0) + offset_s
    num_segments = pl.col("prefix_ids").list.len()
    lengths = (
        pl.when(pl.col("prefix_tokens").list.len() == num_segments)
        .then(pl.col("prefix_tokens"))
        .otherwise(pl.lit(segment_tokens, pl.UInt32).repeat_by(num_segments))
    )
    return work.table.with_columns(
        pl.col("arrival_s") + first_s,
        pl.col("abort_s") + first_s,
        request_id=pl.lit(f"{label}/") + pl.col("request_id"),
        arrival_step=pl.lit(None, pl.Int64),
        abort_step=pl.lit(None, pl.Int64),
        prefix_tokens=lengths.cast(pl.List(pl.UInt32)),
        track=pl.lit(track, pl.Int32),
    ).select(*WORKLOAD_SCHEMA, "abort_order", "track")


def _concurrency(works: list[Workload]) -> int | None:
    """All members' together where each is a closed loop, else None."""
    each = [w.concurrency for w in works]
    return sum(c for c in each if c is not None) if all(c is not None for c in each) else None


def _notes(works: list[Workload], left_out: list[str]) -> tuple[str, ...]:
    notes = [f"{w.name}: {note}" for w in works for note in w.report.notes]
    closed = sum(w.concurrency is not None for w in works)
    if 0 < closed < len(works):
        notes.append(
            "Some members are closed loops and some are not: all requests arrive when they did then."
        )
    return (*left_out, *notes)
