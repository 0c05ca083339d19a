"""A fleet as series: a line per rank on one time axis, thinned while it is read.

Memory holds so many buckets of each rank, whatever the members' size, and one member's part at a
time. A shorter part of the axis can be read again in detail. What the lines say together is known in
`fleet_balance.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analyzer.fleet_grid import MEASURES, Facts, Grid, facts_of, read_member, span_s
from traces.errors import RecordingError
from traces.fleet import Fleet, Member
from traces.fleet_checks import few
from traces.fleet_clock import TOGETHER, FleetClock, Placed, place

MOST_BUCKETS, FEWEST_BUCKETS = 1_200, 100
_ALL_BUCKETS = 400_000  # of all ranks together: 13 MB with eight measures

Report = Callable[[float, str], None]


@dataclass(frozen=True)
class RankInfo:
    """A rank. name: unlike any other's; label: of its first member; kind: "recording" or "telemetry"."""

    name: str
    rank: int | None
    label: str
    kind: str
    members: tuple[Placed, ...]
    facts: Facts


@dataclass(frozen=True, eq=False)
class FleetSeries:
    """values: measure -> (R, B) float32, NaN where a rank says nothing; left_out, notes: sentences."""

    label: str
    ranks: tuple[RankInfo, ...]
    grid: Grid
    values: dict[str, np.ndarray]
    clock: FleetClock
    left_out: tuple[str, ...]
    notes: tuple[str, ...]

    def used_tokens(self) -> np.ndarray | None:
        """KV tokens in use, (R, B), NaN for ranks whose pool is unknown; None where all are."""
        pools = np.array([r.facts.pool_tokens or np.nan for r in self.ranks])
        if np.isnan(pools).all():
            return None
        return self.values["usage"] * pools[:, None]


class Cancelled(Exception):
    """Reading was stopped; nothing is shown."""


def read_fleet(
    fleet: Fleet,
    report: Report | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> FleetSeries:
    """The lines of all members. Those that cannot be read are named in `left_out`.

    Raises RecordingError where none can be; Cancelled.
    """
    told = report or (lambda done, text: None)
    stop = cancelled or (lambda: False)
    members, aside = _one_a_rank(fleet)
    num_broken = len(fleet.broken)  # of whom the fleet's first notes are
    left_out = [*fleet.notes[:num_broken], *aside]
    spans: dict[str, tuple[float, float]] = {}
    for i, member in enumerate(members):
        if stop():
            raise Cancelled
        told(0.1 * i / len(members), f"looking at {member.label}")
        try:
            span = span_s(member)
        except RecordingError as error:
            left_out.append(f"{member.label} was left out: {error}")
            continue
        if span is None:
            left_out.append(f"{member.label} was left out: it has no rows with a time.")
        else:
            spans[member.label] = span
    if not spans:
        raise RecordingError(
            fleet.label, "", "none of its members can be drawn",
            f"The first: {left_out[0] if left_out else 'it is empty.'}",
        )  # fmt: skip
    clock = place(members, spans)
    ends = [
        (p.offset_s + spans[p.member.label][0], p.offset_s + spans[p.member.label][1])
        for t in clock.tracks
        for p in t.members
    ]
    most = int(np.clip(_ALL_BUCKETS // max(len(clock.tracks), 1), FEWEST_BUCKETS, MOST_BUCKETS))
    grid = Grid(min(e[0] for e in ends), max(e[1] for e in ends), most)
    ranks, values, unread = _read(clock, grid, told, stop)
    if not ranks:
        raise RecordingError(
            fleet.label, "", "none of its members can be drawn", f"The first: {unread[0]}"
        )
    idle = _idle_at_the_end(clock, ranks, values)
    notes = (*fleet.notes[num_broken:], *clock.notes, *_differences(ranks), *idle)
    return FleetSeries(
        fleet.label,
        ranks,
        grid,
        values,
        clock,
        (*left_out, *unread),
        tuple(dict.fromkeys(notes)),
    )


def read_part(
    series: FleetSeries, start_s: float, end_s: float, which: Sequence[int]
) -> FleetSeries:
    """Some ranks of a shorter part of the axis in full detail, read again. which: their indices.

    A member that cannot be read any more is NaN.
    """
    grid = Grid(start_s, end_s, MOST_BUCKETS)
    ranks = tuple(series.ranks[i] for i in which)
    values = {m: np.full((len(ranks), grid.num_buckets), np.nan, np.float32) for m in MEASURES}
    for i, info in enumerate(ranks):
        for placed in info.members:
            try:
                found = read_member(placed.member, placed.offset_s, grid)
            except RecordingError:
                continue
            own = found.get(info.rank) if len(found) > 1 else next(iter(found.values()), None)
            if own is not None:
                _join({m: values[m][i] for m in values}, own)
    _idle_as_before(series, which, grid, values)
    return FleetSeries(
        series.label, ranks, grid, values, series.clock, series.left_out, series.notes
    )


def _one_a_rank(fleet: Fleet) -> tuple[list[Member], list[str]]:
    """The members to draw: recordings, and telemetry of what no recording is of."""
    taken = {(m.server, m.rank) for m in fleet.recordings}
    anybody = {rank for _, rank in taken}
    aside: list[Member] = []
    drawn = list(fleet.recordings)
    for member in fleet.telemetry:
        is_double = (member.server, member.rank) in taken or (
            bool(taken) and (member.server is None or member.rank is None) and (member.rank is None or member.rank in anybody)
        )  # fmt: skip
        (aside if is_double else drawn).append(member)
    said = []
    if aside:
        labels = [m.label for m in aside]
        said.append(
            f"{few(labels)}: telemetry of ranks that have a recording, which is drawn instead."
        )
    return drawn, said


def _read(
    clock: FleetClock, grid: Grid, told: Report, stop: Callable[[], bool]
) -> tuple[tuple[RankInfo, ...], dict[str, np.ndarray], list[str]]:
    rows: list[dict[str, np.ndarray]] = []
    ranks: list[RankInfo] = []
    left_out: list[str] = []
    total = sum(len(t.members) for t in clock.tracks)
    done = 0
    for track in clock.tracks:
        own: dict[int | None, tuple[dict[str, np.ndarray], list[Placed], Facts]] = {}
        for placed in track.members:
            if stop():
                raise Cancelled
            told(0.1 + 0.9 * done / total, f"reading {placed.member.label}")
            done += 1
            try:
                found = read_member(placed.member, placed.offset_s, grid)
                facts = facts_of(placed.member)
            except RecordingError as error:
                left_out.append(f"{placed.member.label} was left out: {error}")
                continue
            for rank, values in found.items():
                if rank not in own:
                    own[rank] = (values, [placed], facts)
                else:
                    _join(own[rank][0], values)
                    own[rank][1].append(placed)
        for name, rank, (values, members, facts) in _named(track.name, own):
            first = members[0].member
            ranks.append(RankInfo(name, rank, first.label, first.kind, tuple(members), facts))
            rows.append(values)
    stacked = {m: np.stack([r[m] for r in rows]) for m in MEASURES} if rows else {}
    return tuple(ranks), stacked, left_out


def _named(name: str, own: dict[int | None, Any]) -> Iterator[tuple[str, int | None, Any]]:
    """The ranks that one track turned out to hold, each with a name of its own."""
    for rank, found in own.items():
        several = f"{name}, rank {rank}" if len(own) > 1 else name
        yield several, rank, found


def _join(into: dict[str, np.ndarray], values: dict[str, np.ndarray]) -> None:
    """Lay a later member's values over an earlier one's."""
    for measure, row in values.items():
        np.copyto(into[measure], row, where=~np.isnan(row))


def _idle_as_before(
    series: FleetSeries, which: Sequence[int], grid: Grid, values: dict[str, np.ndarray]
) -> None:
    """Nothing is held where the whole axis says so, also after a rank's last row."""
    middles = (grid.edges_s[:-1] + grid.edges_s[1:]) / 2
    at = ((middles - series.grid.start_s) / series.grid.width_s).astype(int)
    at = np.clip(at, 0, series.grid.num_buckets - 1)
    for i, rank in enumerate(which):
        idle = (series.values["usage_max"][rank][at] == 0) & np.isnan(values["usage"][i])
        for row in values.values():
            row[i, idle] = 0.0


def _idle_at_the_end(
    clock: FleetClock, ranks: Sequence[RankInfo], values: dict[str, np.ndarray]
) -> Iterator[str]:
    """Let simulated ranks that begin together idle until the last has ended: each was given all its
    requests, so that it has room then. What a measured rank did after its last step is not known."""
    ended = []
    for i, rank in enumerate(ranks):
        known = np.flatnonzero(~np.isnan(values["usage"][i]))
        if clock.how != TOGETHER or rank.facts.usage_is != "modelled" or not len(known):
            continue
        if known[-1] + 1 < values["usage"].shape[1]:
            ended.append(rank.name)
            for row in values.values():
                row[i, known[-1] + 1 :] = 0.0
    if ended:
        yield f"{few(ended)} {'is' if len(ended) == 1 else 'are'} simulated and through before the last: idle from then on."


def _differences(ranks: Sequence[RankInfo]) -> Iterator[str]:
    """Sentences on ranks whose lines mean different things."""
    kinds = sorted({r.facts.usage_is for r in ranks})
    if len(kinds) > 1:
        said = "; ".join(
            f"{kind}: {few([r.name for r in ranks if r.facts.usage_is == kind])}"
            for kind in kinds
        )
        yield f"Not all lines are known in one way ({said})."
