"""In what the members of a fleet disagree, from their metadata and the edges of their tables.

It writes sentences and checks no row: when a recording began and ended comes from its metadata and
the statistics that Parquet keeps beside the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from traces.schema import STEPS
from traces.telemetry_schema import SAMPLES

if TYPE_CHECKING:
    from traces.fleet import BrokenMember, Member

MOST_RANKS = 4_096
_TIME_COLUMNS = {STEPS.name: "t_start_s", SAMPLES.name: "t_s"}
_KINDS = {"recording": "recordings", "telemetry": "telemetry recordings"}


def fleet_notes(members: Sequence[Member], broken: Sequence[BrokenMember]) -> Iterator[str]:
    """Sentences on members that are broken, disagree, are missing, or are not of one time."""
    for one in broken:
        place = f"{one.error.place}: " if one.error.place else ""
        yield f"{one.label} was left out: {place}{one.error.fault.rstrip('.')}. {one.error.remedy}"
    for kind in _KINDS:
        own = [m for m in members if m.kind == kind]
        for what, read in _AGREE:
            yield from _disagreement(what, read, own)
        yield from _ranks(own)
    yield from _servers(members)
    yield from _apart(members)


def few(labels: Sequence[str], most: int = 4) -> str:
    """The first names of a list, and how many more there are."""
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return ", ".join(labels[:most]) + more


def _settings(meta: Mapping[str, Any]) -> Mapping[str, Any]:
    return _section(meta, "settings")


def _section(meta: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = meta.get(name)
    return found if isinstance(found, Mapping) else {}


def _name(engine: Any) -> Any:
    return engine.get("name") if isinstance(engine, Mapping) else engine


_AGREE: tuple[tuple[str, Callable[[Mapping[str, Any]], Any]], ...] = (
    ("model", lambda m: _name(m.get("model"))),
    ("block size", lambda m: _settings(m).get("block_size", m.get("block_size"))),
    ("pool", lambda m: m.get("pool_blocks")),
    ("what recorded them", lambda m: m.get("executor") or _name(m.get("engine"))),
    ("version", lambda m: m.get("schema_version") or m.get("telemetry_version")),
    ("preemption mode", lambda m: _settings(m).get("preemption_mode")),
)


def _disagreement(
    what: str, read: Callable[[Mapping[str, Any]], Any], members: Sequence[Member]
) -> Iterator[str]:
    by_value: dict[str, list[str]] = {}
    for member in members:
        value = read(member.meta)
        if value is not None:
            by_value.setdefault(str(value)[:80], []).append(member.label)
    if len(by_value) > 1:
        said = "; ".join(f"{value}: {few(labels)}" for value, labels in by_value.items())
        yield f"The members differ in {what} ({said})."


def _ranks(members: Sequence[Member]) -> Iterator[str]:
    """Notes on ranks of one kind that are unknown, there twice in one server, or not there."""
    if not members:
        return
    known = [m.rank for m in members if m.rank is not None]
    unknown = [m.label for m in members if m.rank is None]
    if known and unknown:
        yield f"{len(unknown)} members do not say their rank: {few(unknown)}."
    servers = {m.server for m in members}
    if len(servers) == 1 and len(set(known)) < len(known):
        twice = sorted({r for r in known if known.count(r) > 1})
        yield f"Rank {', '.join(map(str, twice))} is there more than once: several API servers or restarts wrote here."
    size = max((_data_parallel_size(m.meta) for m in members), default=0)
    gone = [r for r in range(size) if r not in known]
    if known and gone:
        yield f"Of {size} data-parallel ranks, {len(gone)} are not here: {', '.join(map(str, gone[:16]))}."


def _data_parallel_size(meta: Mapping[str, Any]) -> int:
    for place in (meta, _section(meta, "live"), _settings(meta)):
        for key in ("num_ranks", "data_parallel_size"):
            value = place.get(key)
            if type(value) is int and 0 < value <= MOST_RANKS:
                return value
    return 0


def _servers(members: Sequence[Member]) -> Iterator[str]:
    """A note where several servers, or one that was started again, wrote the members."""
    servers: dict[str, list[Member]] = {}
    for member in members:
        if member.server is not None:
            servers.setdefault(member.server, []).append(member)
    if len(servers) > 1:
        said = "; ".join(
            f"{server}{_since(own)}: {len(own)}" for server, own in servers.items()
        )
        yield f"The members come from {len(servers)} servers or restarts ({said}): sums over them are no picture of one moment."


def _since(members: Sequence[Member]) -> str:
    started = [m.run.started for m in members if m.run is not None]
    return f" from {min(started)}" if started else ""


def _apart(members: Sequence[Member]) -> Iterator[str]:
    """A note where two members have no moment in common."""
    spans = [(s, m) for m in members if (s := span_unix_s(m)) is not None]
    if len(spans) < 2:
        return
    (last_begun, late), (first_ended, early) = (
        max(((s[0], m) for s, m in spans), key=lambda p: p[0]),
        min(((s[1], m) for s, m in spans), key=lambda p: p[0]),
    )
    if last_begun > first_ended:
        yield f"Not all members ran at one time: {late.label} began {last_begun - first_ended:,.0f} s after {early.label} had ended."


def span_unix_s(member: Member) -> tuple[float, float] | None:
    """(begin, end) of a member as Unix time, None where its metadata has no date or no row."""
    begin = start_unix_s(member.meta)
    last = _last_s(member.path)
    return None if begin is None or last is None else (begin, begin + last)


def start_unix_s(meta: Mapping[str, Any]) -> float | None:
    """Unix time of a recording's t = 0, None where its metadata does not say."""
    for value in (meta.get("start_unix_s"), _section(meta, "live").get("started_unix_s")):
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
            return float(value)
    return None


def _last_s(folder: Path) -> float | None:
    """The largest time of the last part that says it, from its statistics."""
    for table, column in _TIME_COLUMNS.items():
        for part in sorted((folder / table).glob("part-*.parquet"), reverse=True):
            try:
                last = _largest(pq.ParquetFile(part).metadata, column)
            except (pa.ArrowException, OSError):
                continue  # the last part of a killed writer; opening the member says so
            if last is not None:
                return last
    return None


def _largest(metadata: pq.FileMetaData, column: str) -> float | None:
    found = None
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        for j in range(group.num_columns):
            statistics = group.column(j).statistics
            named = group.column(j).path_in_schema == column
            if named and statistics is not None and statistics.has_min_max:
                found = max(float(statistics.max), found or 0.0)
    return found
