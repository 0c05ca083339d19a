"""Runs as a Perfetto trace: requests as tracks, counters of the engine, preemptions as instants.

It knows Perfetto's track events and how much its viewer can show. Counters are thinned with their
extremes kept, and of very many requests those are written that were preempted most, then the first
to arrive: the trace says how many were left out. Text of a recording is only ever a name, which the viewer
shows as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import polars as pl
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import (
    TracePacket,
    TrackDescriptor,
    TrackEvent,
)
from perfetto.trace_builder.proto_builder import TraceProtoBuilder

from analyzer.downsample import downsample
from analyzer.lifecycles import lifecycles
from analyzer.look import Side
from analyzer.measured import recompute_token_s
from analyzer.preemptions import preemptions
from analyzer.run import Run, run_names

MOST_REQUESTS = 5_000  # tracks; with more the viewer crawls
MOST_PREEMPTIONS = 100_000
POINTS = 50_000  # of a counter
MOST_NAME = 120  # characters of an id
NS = 1_000_000_000
_CHUNK = 20_000  # packets that are held before they are written
_SEQUENCE = 1
_COUNTERS = {
    "used_blocks": ("KV blocks in use", "blocks"),
    "free_blocks": ("KV blocks free", "blocks"),
    "cached_free_blocks": ("KV blocks free, still cached", "blocks"),
    "host_used_blocks": ("Host blocks in use", "blocks"),
    "num_running": ("Running", "requests"),
    "num_waiting": ("Waiting", "requests"),
    "num_swapped": ("KV on the host", "requests"),
    "recomputed_tokens": ("Tokens recomputed in the step", "tokens"),
}
_ALWAYS = ("used_blocks", "free_blocks", "num_running", "num_waiting")


@dataclass(frozen=True)
class Traced:
    """What was written of a run, and what was left out for the viewer's sake."""

    num_requests: int
    num_requests_left_out: int
    num_preemptions: int
    num_preemptions_left_out: int

    def words(self) -> str:
        """'3 requests and 4 preemptions were left out', '' where nothing was."""
        said = [
            f"{num:,} {what}"
            for num, what in (
                (self.num_requests_left_out, "requests"),
                (self.num_preemptions_left_out, "preemptions"),
            )
            if num
        ]
        return f"{' and '.join(said)} were left out" if said else ""


def write_trace(
    file: BinaryIO, runs: Mapping[Side, Run], part: tuple[float, float] | None = None
) -> dict[Side, Traced]:
    """Write the runs into one trace, a process each; returns what it holds of each.

    part: seconds since the start, None for all. Times of a step clock count a step as a second.
    """
    writer, found = _Writer(file), {}
    for pid, (side, run) in enumerate(runs.items(), start=1):
        name = f"{side} {run_names(runs)[side]}" if len(runs) > 1 else run_names(runs)[side]
        found[side] = _Process(writer, run, part, pid).write(_text(name))
    writer.flush()
    return found


class _Writer:
    """Packets on their way into a file, a chunk at a time: traces may be appended to each other."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.builder = TraceProtoBuilder()
        self.held = 0
        self.last_uuid = 0

    def packet(self) -> TracePacket:
        if self.held == _CHUNK:
            self.flush()
        self.held += 1
        packet = self.builder.add_packet()
        packet.trusted_packet_sequence_id = _SEQUENCE
        return packet

    def flush(self) -> None:
        self.file.write(self.builder.serialize())
        self.builder, self.held = TraceProtoBuilder(), 0

    def track(self, name: str, parent: int = 0, rank: int | None = None) -> TrackDescriptor:
        """A new track below `parent`; rank: its place among its siblings."""
        self.last_uuid += 1
        track = self.packet().track_descriptor
        track.uuid = self.last_uuid
        if name:
            track.name = name
        if parent:
            track.parent_uuid = parent
        if rank is not None:
            track.sibling_order_rank = rank
        return track

    def event(self, t_s: float, kind: int, track: int) -> TrackEvent:
        packet = self.packet()
        packet.timestamp = round(t_s * NS)
        event = packet.track_event
        event.type = kind
        event.track_uuid = track
        return event


class _Process:
    """One run: a process with its counters, its preemptions and a track for each request."""

    def __init__(
        self, writer: _Writer, run: Run, part: tuple[float, float] | None, pid: int
    ) -> None:
        self.writer, self.run, self.pid = writer, run, pid
        last = run.steps.tail(1).select(pl.col("t_start_s") + pl.col("duration_s"))
        self.end_s = float(last.item()) if last.height else 0.0
        self.start, self.end = part or (0.0, max(self.end_s, 1e-9))

    def write(self, name: str) -> Traced:
        victims, requests = self._victims(), self._alive()
        found = Traced(
            min(requests.height, MOST_REQUESTS),
            max(requests.height - MOST_REQUESTS, 0),
            min(victims.height, MOST_PREEMPTIONS),
            max(victims.height - MOST_PREEMPTIONS, 0),
        )
        top = self.writer.track("")
        uuid = top.uuid
        top.process.pid = self.pid
        top.process.process_name = name
        top.description = (
            f"{_text(self.run.recording.label)}: {found.words() or 'nothing was left out'}."
        )
        top.child_ordering = TrackDescriptor.EXPLICIT
        for rank, column in enumerate(_COUNTERS):
            if column in _ALWAYS or self.run.ever(column):
                self._counter(column, uuid, rank)
        self._preemptions(victims.head(MOST_PREEMPTIONS), uuid, len(_COUNTERS))
        self._requests(requests, uuid, len(_COUNTERS) + 1)
        return found

    def _victims(self) -> pl.DataFrame:
        """The preemptions of the written time."""
        token_s = recompute_token_s(self.run.recording)
        table = preemptions(self.run.events, self.run.steps, token_s=token_s)
        return table.filter(pl.col("t_s").is_between(self.start, self.end))

    def _alive(self) -> pl.DataFrame:
        """The requests that were there in the written time."""
        gone = pl.col("finish_s").is_not_null() & (pl.col("finish_s") < self.start)
        return self.run.requests.filter((pl.col("arrival_s") <= self.end) & ~gone)

    def _counter(self, column: str, parent: int, rank: int) -> None:
        name, unit = _COUNTERS[column]
        track = self.writer.track(name, parent, rank)
        track.counter.unit_name = unit
        uuid = track.uuid
        x, y = downsample(
            self.run.steps["t_start_s"].to_numpy(),
            self.run.steps[column].to_numpy(),
            start=self.start,
            end=min(self.end, self.end_s),
            points=POINTS,
        )
        changed = np.append(True, np.diff(y) != 0)[: len(y)]
        changed[-1:] = True
        for t_s, value in zip(x[changed].tolist(), y[changed].tolist(), strict=True):
            event = self.writer.event(t_s, TrackEvent.TYPE_COUNTER, uuid)
            event.counter_value = int(value)

    def _preemptions(self, victims: pl.DataFrame, parent: int, rank: int) -> None:
        """An instant each, with what the drill-down says of it."""
        uuid = self.writer.track("Preemptions", parent, rank).uuid
        for row in victims.iter_rows(named=True):
            event = self.writer.event(row["t_s"], TrackEvent.TYPE_INSTANT, uuid)
            event.name = f"{row['mode_used']} {_text(row['request_id'])}"
            event.categories.append("preemption")
            for key, value in _said(row):
                note = event.debug_annotations.add()
                note.name = key
                if isinstance(value, int):
                    note.int_value = value
                elif isinstance(value, float):
                    note.double_value = value
                else:
                    note.string_value = value

    def _requests(self, alive: pl.DataFrame, parent: int, rank: int) -> None:
        """A track a request, by arrival, with a slice for each state."""
        chosen = alive.sort(
            "num_preemptions",
            "arrival_s",
            "request_id",
            descending=[True, False, False],
        ).head(MOST_REQUESTS)
        kept = chosen.sort("arrival_s", "request_id")
        events = self.run.events.join(
            kept.select("request_id"), on="request_id", how="semi", maintain_order="left"
        )
        states = lifecycles(events, kept, max(self.end_s, self.end))
        group = self.writer.track("Requests", parent, rank)
        group.child_ordering = TrackDescriptor.EXPLICIT
        group_uuid, tracks = group.uuid, {}
        for nth, id_ in enumerate(kept["request_id"].to_list()):
            tracks[id_] = self.writer.track(_text(id_), group_uuid, nth).uuid
        for id_, state, start_s, end_s in self._clipped(states):
            begin = self.writer.event(start_s, TrackEvent.TYPE_SLICE_BEGIN, tracks[id_])
            begin.name = state
            begin.categories.append("request")
            self.writer.event(end_s, TrackEvent.TYPE_SLICE_END, tracks[id_])

    def _clipped(self, states: pl.DataFrame) -> Iterator[tuple[str, str, float, float]]:
        """Slices within the written time: id, state, start, end."""
        return (
            states.select(
                "request_id",
                pl.col("state").cast(pl.String),
                pl.col("start_s").clip(self.start, self.end),
                pl.col("end_s").clip(self.start, self.end),
            )
            .filter(pl.col("end_s") > pl.col("start_s"))  # NaN is greater than all
            .filter(pl.col("start_s").is_finite() & pl.col("end_s").is_finite())
            .iter_rows()
        )


def _said(row: Mapping[str, object]) -> Iterator[tuple[str, int | float | str]]:
    """What a click on a preemption shows: name and value, those left out that are not known."""
    named = {
        "step": "step",
        "evicted for": "cause_request_id",
        "mode asked": "mode_asked",
        "mode used": "mode_used",
        "free blocks before": "free_blocks_before",
        "blocks freed": "blocks",
        "tokens lost or moved": "tokens",
        "bytes copied out": "bytes",
        "tokens computed again": "recomputed_tokens",
        "direct cost (s)": "direct_cost_s",
        "away (s)": "away_s",
        "delay of others (request s)": "induced_s",
    }
    for name, key in named.items():
        value = row[key]
        if isinstance(value, int | float):
            yield name, value
        elif value is not None:
            yield name, _text(value)


def _text(value: object) -> str:
    """Foreign text as a name: of one line, not longer than anybody reads."""
    start = str(value)[: MOST_NAME * 4]
    line = " ".join(start.split())
    return line if len(line) <= MOST_NAME else f"{line[: MOST_NAME - 1]}…"
