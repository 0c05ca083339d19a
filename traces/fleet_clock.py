"""One time axis for the members of a fleet: which follow each other, and where each begins.

Members of one rank that follow each other in time (hours, restarts) are joined to one track. Where
metadata or folder names say when a recording began, it is placed by that; where they do not, ranks
begin together and members of the same rank follow in the order of their names. It reads metadata and
the edges of tables, no rows. What the tables hold is known elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from traces.fleet import Member
from traces.fleet_checks import few, start_unix_s

WALL_CLOCK, ORDER, TOGETHER = "wall clock", "order", "together"
_OVERLAP_FRAC = (
    0.05  # of the shorter of two: as much is taken for two clocks that differ a little
)


@dataclass(frozen=True)
class Placed:
    """A member and where its t = 0 lies on the fleet's axis, in seconds."""

    member: Member
    offset_s: float


@dataclass(frozen=True)
class Track:
    """Members of one rank, one after another. name: for people, unlike any other's."""

    name: str
    rank: int | None
    members: tuple[Placed, ...]


@dataclass(frozen=True)
class FleetClock:
    """Tracks by rank. how: "wall clock", "order" or "together"; start_unix_s: of the axis' 0, None
    where nothing says it; notes: sentences for the user."""

    tracks: tuple[Track, ...]
    how: str
    start_unix_s: float | None
    notes: tuple[str, ...]


def place(members: Sequence[Member], spans_s: Mapping[str, tuple[float, float]]) -> FleetClock:
    """Put members on one axis. spans_s: label -> first and last time of its own rows, in seconds;
    members without one are left out."""
    known = [m for m in members if m.label in spans_s]
    began = {m.label: b for m in known if (b := began_unix_s(m)) is not None}
    if known and len(began) == len(known):
        return _by_wall_clock(known, began, spans_s)
    notes = []
    if began:
        undated = [m.label for m in known if m.label not in began]
        notes.append(
            f"{few(undated)} {'does' if len(undated) == 1 else 'do'} not say when they began, so that nobody's wall clock is used."
        )
    return _by_order(known, spans_s, notes)


def began_unix_s(member: Member) -> float | None:
    """Unix time of the member's t = 0, from its metadata or a recorder's folder name; else None."""
    said = start_unix_s(member.meta)
    if said is None and member.run is not None:
        started = datetime.strptime(member.run.started, "%Y%m%dT%H%M%SZ")
        said = started.replace(tzinfo=UTC).timestamp()
    return said


def _by_wall_clock(
    members: Sequence[Member],
    began: Mapping[str, float],
    spans_s: Mapping[str, tuple[float, float]],
) -> FleetClock:
    zero = min(began[m.label] + spans_s[m.label][0] for m in members)
    groups: dict[tuple[str, int | None], list[list[Placed]]] = {}
    for member in sorted(members, key=lambda m: (began[m.label], m.label)):
        placed = Placed(member, began[member.label] - zero)
        key = ("" if member.rank is not None else member.label, member.rank)
        lanes = groups.setdefault(key, [])
        for lane in lanes:  # the first lane that is free by then
            if _follows(lane[-1], placed, spans_s):
                lane.append(placed)
                break
        else:
            lanes.append([placed])
    joined = sum(len(lane) - 1 for lanes in groups.values() for lane in lanes)
    notes = []
    if joined:
        notes.append(
            f"{joined:,} members follow another of their rank in time and are joined to it, by wall clock."
        )
    return FleetClock(_tracks(groups), WALL_CLOCK, zero, tuple(notes))


def _follows(
    before: Placed, placed: Placed, spans_s: Mapping[str, tuple[float, float]]
) -> bool:
    """Whether a member begins when the one before it has ended, but for a little."""
    first, last = spans_s[before.member.label]
    own_first, own_last = spans_s[placed.member.label]
    overlap = before.offset_s + last - (placed.offset_s + own_first)
    return overlap <= _OVERLAP_FRAC * min(last - first, own_last - own_first)


def _by_order(
    members: Sequence[Member], spans_s: Mapping[str, tuple[float, float]], notes: list[str]
) -> FleetClock:
    """Ranks begin together. Members of one rank follow each other: the n-th of each rank, or those
    of one folder, are one stage, which begins when the longest of the stage before has ended."""
    by_folder = all("/" in m.label for m in members)
    seen: dict[int | None, int] = {}
    stages: dict[str, list[Member]] = {}
    for member in sorted(members, key=lambda m: m.label):
        turn = seen.get(member.rank, 0) if member.rank is not None else 0
        seen[member.rank] = turn + 1
        stage = member.label.rpartition("/")[0] if by_folder else f"{turn:06d}"
        stages.setdefault(stage, []).append(member)
    groups: dict[tuple[str, int | None], list[list[Placed]]] = {}
    begin_s = 0.0
    for stage in sorted(stages):
        for member in stages[stage]:
            own = ("" if member.rank is not None else member.label, member.rank)
            lanes = groups.setdefault(own, [])
            placed = Placed(member, begin_s)
            if lanes and lanes[0][-1].offset_s < begin_s:
                lanes[0].append(placed)
            else:
                lanes.append([placed])
        begin_s += max(spans_s[m.label][1] for m in stages[stage])
    if len(stages) > 1:
        notes.append(
            "Nothing says when the members ran: those of one rank are joined in the order of their folders' names, and gaps between them are not known."
        )
    elif len(members) > 1:
        notes.append(
            "Nothing says when the members ran: they are drawn as if they began together."
        )
    return FleetClock(
        _tracks(groups), ORDER if len(stages) > 1 else TOGETHER, None, tuple(notes)
    )


def _tracks(
    groups: Mapping[tuple[str, int | None], Sequence[Sequence[Placed]]],
) -> tuple[Track, ...]:
    made = []
    for (label, rank), lanes in groups.items():
        for lane in lanes:
            name = label or f"rank {rank}"
            if rank is not None and len(lanes) > 1:
                name = f"rank {rank} ({lane[0].member.label})"
            made.append(Track(name, rank, tuple(lane)))
    made.sort(key=lambda t: (t.rank is None, t.rank or 0, t.name))
    return tuple(made)
