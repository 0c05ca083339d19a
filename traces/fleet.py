"""A Fleet: a directory whose sub-folders are recordings, as data-parallel ranks write beside each other.

It knows how members are found (one or two folders deep), which rank each is, which cannot be read,
and in what they disagree. Opening a fleet reads metadata only; rows are read and checked when a
member is opened. What the rows mean is known elsewhere.

    fleet = open_fleet("/data/kv")
    for member in fleet.recordings:
        with member.open_recording() as recording:
            print(member.label, recording.rows["steps"])
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traces.errors import RecordingError
from traces.fleet_checks import few, fleet_notes
from traces.paths import FOLDER, is_folder, os_reason, path_kind
from traces.recording_meta import first_meta
from traces.run_folders import RunFolder, parse_run_folder
from traces.schema import TABLES
from traces.telemetry_files import has_telemetry_tables

if TYPE_CHECKING:
    from traces.recording import Recording
    from traces.telemetry import Telemetry

RECORDING, TELEMETRY = "recording", "telemetry"
MAX_MEMBERS = 4_096
_RANK = re.compile(
    r"(?:.*[-_.])?(?:dp[-_]?)?(?:rank|stats)[-_]?(\d{1,6})(?:-\d+)?", re.IGNORECASE
)


@dataclass(frozen=True)
class Member:
    """One recording or telemetry of a fleet, not opened yet.

    label: its folder below the fleet; rank: data-parallel rank from the metadata or the folder's
    name, None where neither says; meta: the metadata document; run: what the folder's name says,
    where a live recorder chose it; server: which server wrote it, None where nothing says.
    """

    label: str
    path: Path
    kind: str
    rank: int | None
    meta: Mapping[str, Any]
    run: RunFolder | None = None

    @property
    def server(self) -> str | None:
        live = self.meta.get("live")
        said = live.get("server") if isinstance(live, Mapping) else None
        return str(said) if said else (self.run.server if self.run else None)

    def open_recording(self) -> Recording:
        """Open it, every row checked. Raises RecordingError, also for telemetry."""
        from traces.recording import open_recording

        if self.kind != RECORDING:
            raise RecordingError(
                self.label, "", "this is telemetry, not a recording", "Open another member."
            )
        return open_recording(self.path, self.label)

    def open_telemetry(self) -> Telemetry:
        """Open it, every row checked. Raises RecordingError, also for a recording."""
        from traces.telemetry import open_telemetry

        if self.kind != TELEMETRY:
            raise RecordingError(
                self.label, "", "this is a recording, not telemetry", "Open another member."
            )
        return open_telemetry(self.path, self.label)


@dataclass(frozen=True)
class BrokenMember:
    """A sub-folder that should be a member and cannot be read."""

    label: str
    path: Path
    error: RecordingError


@dataclass(frozen=True)
class Fleet:
    """Recordings beside each other. members: by rank, kind and name; notes: sentences for the user."""

    label: str
    root: Path
    members: tuple[Member, ...]
    broken: tuple[BrokenMember, ...]
    notes: tuple[str, ...]

    @property
    def recordings(self) -> tuple[Member, ...]:
        return tuple(m for m in self.members if m.kind == RECORDING)

    @property
    def telemetry(self) -> tuple[Member, ...]:
        return tuple(m for m in self.members if m.kind == TELEMETRY)

    def member(self, which: str | int) -> Member:
        """The member of that label, or the only one of that rank. Raises RecordingError with the choice."""
        if isinstance(which, int):
            found = [m for m in self.members if m.rank == which]
        else:
            found = [m for m in self.members if m.label == which]
        if len(found) == 1:
            return found[0]
        what = f"rank {which}" if isinstance(which, int) else repr(which)
        count = f"{len(found)} members are" if found else "no member is"
        raise RecordingError(self.label, "", f"{count} {what}", self.how_to_choose())

    def how_to_choose(self) -> str:
        """A sentence that names the members and says how one of them is opened."""
        names = [m.label for m in self.members]
        return f"It holds {few(names, 8)}; open one by its own path, such as {self.label}/{names[0]}."


def is_fleet(path: str | Path) -> bool:
    """Whether a folder is no recording itself and holds several, or one that is broken."""
    found = _found(Path(path))
    return len(found) > 1 or (len(found) == 1 and _kind(found[0]) is None)


def is_empty(path: Path) -> bool:
    """Whether nothing is in a folder; False where it cannot be listed."""
    try:
        return not any(path.iterdir())
    except OSError:
        return False


def lone_member(path: Path) -> Path | None:
    """The one recording in a folder that holds no other, up to two folders deep, or None."""
    found = _found(path)
    return found[0] if len(found) == 1 and _kind(found[0]) is not None else None


def _found(path: Path) -> list[Path]:
    """Candidates of a folder that is no recording itself; none where it cannot be listed."""
    if not is_folder(path) or _kind(path) is not None:
        return []
    try:
        return list(_candidates(path))
    except OSError:
        return []


def open_fleet(path: str | Path, name: str | None = None) -> Fleet:
    """The fleet in a folder; of a recording's own folder, a fleet of one. Members that cannot be read
    are named in `broken` and are not fatal.

    name: what to call it in messages. Raises RecordingError where there is no such folder, where it
    holds no recording, or where none of them can be read.
    """
    path = Path(path)
    kind, fault, remedy = path_kind(path)
    label = name or (path.resolve().name if kind else path.name)
    if kind != FOLDER:
        raise RecordingError(
            label,
            "",
            fault or "this is a file, and a fleet is a folder of recordings",
            remedy or "Give the folder that the ranks wrote into.",
        )
    try:
        found = [path] if _kind(path) is not None else list(_candidates(path))
    except OSError as e:
        raise RecordingError(
            label, "", f"it cannot be read ({os_reason(e)})", "Check its permissions."
        ) from e
    if len(found) > MAX_MEMBERS:
        raise RecordingError(
            label,
            "",
            f"the folder holds {len(found):,} recordings, more than {MAX_MEMBERS:,}",
            "Open the folder of one run.",
        )
    members, broken = _read(path, found)
    if not members:
        raise _nothing(label, path, broken)
    members.sort(key=lambda m: (m.rank is None, m.rank or 0, m.kind, m.label))
    return Fleet(
        label, path, tuple(members), tuple(broken), tuple(fleet_notes(members, broken))
    )


def _nothing(label: str, path: Path, broken: list[BrokenMember]) -> RecordingError:
    if broken:
        first = broken[0]
        fault = f"none of its {len(broken)} recordings can be read; of {first.label}: {first.error.fault}"
        return RecordingError(label, "", fault, first.error.remedy)
    return RecordingError(
        label,
        "",
        "the folder is empty" if is_empty(path) else "the folder holds no recording",
        "Give the folder that a recorder wrote into: its sub-folders hold steps/ or samples/.",
    )


def _read(root: Path, found: Iterable[Path]) -> tuple[list[Member], list[BrokenMember]]:
    members: list[Member] = []
    broken: list[BrokenMember] = []
    for path in found:
        label = path.resolve().name if path == root else path.relative_to(root).as_posix()
        try:
            members.append(_member(path, label))
        except RecordingError as error:
            broken.append(BrokenMember(label, path, error))
        except OSError as reason:
            fault = f"it cannot be read ({os_reason(reason)})"
            unread = RecordingError(label, "", fault, "Check its permissions.")
            broken.append(BrokenMember(label, path, unread))
    return members, broken


def _member(path: Path, label: str) -> Member:
    """Read the metadata of one sub-folder. Raises RecordingError, OSError."""
    kind = _kind(path)
    if kind == TELEMETRY:
        from traces.telemetry_laws import first_telemetry_meta

        meta: Mapping[str, Any] = first_telemetry_meta(path, label)
    elif kind == RECORDING:
        meta = first_meta(path, label)
    else:
        raise RecordingError(
            label,
            "",
            "the folder holds no table",
            "Its writer was stopped before the first part, or it was not copied whole.",
        )
    return Member(label, path, kind, _rank(path, meta), meta, parse_run_folder(path))


def _rank(path: Path, meta: Mapping[str, Any]) -> int | None:
    live = meta.get("live")
    live = live if isinstance(live, Mapping) else {}
    for said in (meta.get("rank"), live.get("data_parallel_rank")):
        if type(said) is int and said >= 0:
            return said
    for name in (path.name, path.parent.name):
        if (run := _RANK.fullmatch(name)) is not None:
            return int(run[1])
    return None


def _kind(path: Path) -> str | None:
    """What a folder is by its tables, or None."""
    if has_telemetry_tables(path):
        return TELEMETRY
    return RECORDING if any(is_folder(path / t.name) for t in TABLES) else None


def _candidates(path: Path) -> Iterator[Path]:
    """Sub-folders that are recordings, or are named as one and hold no table.

    A sub-folder without tables is looked into once, for runs that have a folder of ranks each.
    Raises OSError where `path` cannot be listed.
    """
    for folder in _folders(path):
        if _kind(folder) is not None:
            yield folder
            continue
        try:
            inner = [p for p in _folders(folder) if _kind(p) is not None or _is_named(p)]
        except OSError:  # a folder that may not be read is a broken member, if its name says so
            inner = []
        if inner:
            yield from inner
        elif _is_named(folder):
            yield folder


def _folders(path: Path) -> list[Path]:
    return [p for p in sorted(path.iterdir()) if is_folder(p) and not p.name.startswith(".")]


def _is_named(path: Path) -> bool:
    """Whether the name is one that a recorder, or somebody who copied ranks together, chose."""
    return _RANK.fullmatch(path.name) is not None or parse_run_folder(path) is not None
