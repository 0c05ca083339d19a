"""Names of the folders that a live server's recorders write below one output directory.

    OUT/20261129T193627Z-a1b2c-rank-00/      scheduler of data-parallel rank 0: a recording
    OUT/20261129T193627Z-a1b2c-rank-01/      rank 1, beside it
    OUT/20261129T193629Z-a1b2c-stats-00/     statistics of rank 0: telemetry

The first part is the writer's start in UTC, the second names the server (all ranks of one server
share it), then what wrote it and for which rank. A name that is taken gets `-2`, `-3`, ... at its
end, so that nobody writes into a folder that is there already and a restart destroys nothing.

This module knows the names. What is in the folders is known elsewhere; the same facts are in each
recording's metadata under `live`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

KINDS = ("rank", "stats")  # a scheduler's recording; telemetry of a stat logger
_NAME = re.compile(
    r"(?P<started>\d{8}T\d{6}Z)-(?P<server>[0-9A-Za-z]+)-(?P<kind>rank|stats)-(?P<rank>\d{2,6})(?:-(?P<copy>\d{1,6}))?"
)
_MOST_COPIES = 1_000


@dataclass(frozen=True, order=True)
class RunFolder:
    """One recorder's folder, ordered by start, server, kind and rank.

    started: UTC, as in the name; server: same for all ranks of one server; copy: 1, or more where
    the name was taken.
    """

    started: str
    server: str
    kind: str
    rank: int
    copy: int = 1
    path: Path | None = None

    @property
    def name(self) -> str:
        again = f"-{self.copy}" if self.copy > 1 else ""
        return f"{self.started}-{self.server}-{self.kind}-{self.rank:02d}{again}"


def parse_run_folder(path: Path) -> RunFolder | None:
    """What a folder's name says, or None where a recorder did not choose it."""
    found = _NAME.fullmatch(path.name)
    if found is None:
        return None
    return RunFolder(
        found["started"],
        found["server"],
        found["kind"],
        int(found["rank"]),
        int(found["copy"] or 1),
        path,
    )


def list_run_folders(out: Path) -> list[RunFolder]:
    """Recorders' folders directly below `out`, oldest first. Raises OSError."""
    found = (parse_run_folder(p) for p in out.iterdir() if p.is_dir())
    return sorted(f for f in found if f is not None)


def utc_stamp(unix_s: float) -> str:
    """The time in a folder's name: 20261129T193627Z."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y%m%dT%H%M%SZ")


def make_run_folder(out: Path, kind: str, rank: int, server: str, unix_s: float) -> RunFolder:
    """Make a new folder below `out` (made too, where it is missing) that nobody else has.

    server: letters and digits are kept, the rest is dropped. A folder with `copy` above 1 means that
    the plain name was taken. Raises OSError.
    """
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not one of {', '.join(KINDS)}")
    out.mkdir(parents=True, exist_ok=True)
    plain = re.sub(r"[^0-9A-Za-z]", "", server) or "server"
    for copy in range(1, _MOST_COPIES):
        folder = RunFolder(utc_stamp(unix_s), plain, kind, rank, copy)
        path = out / folder.name
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return RunFolder(folder.started, plain, kind, rank, copy, path)
    raise FileExistsError(f"{out} holds {_MOST_COPIES} folders like {folder.name}")
