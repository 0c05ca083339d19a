"""A Recording: what a run did, opened from a folder or a zip and checked against the contract.

It knows how tables are handed out as polars frames. Reading and checking parts is in
`recording_reading.py`, files and zips in `recording_files.py`, metadata in `recording_meta.py`,
how the tables of a long one are kept in `mapped_tables.py`; what an engine does and what the
numbers mean is known elsewhere.

    with open_recording(Path("runs/swap")) as recording:
        print(recording.meta.pool_blocks, recording.steps["used_blocks"].max())
"""

from __future__ import annotations

import os
import tempfile
import weakref
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from traces.errors import RecordingError
from traces.mapped_tables import (
    UNPACKED,
    Keep,
    MappedTables,
    kept_facts,
    set_aside,
)
from traces.paths import FOLDER, path_kind
from traces.recording_files import (
    COMPLETED,
    find_root,
    list_parts,
    read_closed,
    remove_tree,
    unzip_recording,
    write_recording,
    zip_recording,
)
from traces.recording_laws import EventLaws, RequestLaws, StepLaws, fill_later, polars_type
from traces.recording_meta import DAMAGE, Meta, first_meta, writer_notes
from traces.recording_reading import Reading, one_sentence
from traces.recording_salvage import rebuild_requests
from traces.schema import BLOCKS, EVENTS, REQUESTS, STEPS, TABLES, Table, table
from traces.table_writer import TableWriter
from traces.workers import Threads

__all__ = ["Meta", "Recording", "open_recording", "write_recording", "zip_recording"]

_ARCHIVES = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zX": "xz",
    b"7z\xbc": "7z",
}
_LOOKS = 3  # at a folder from which parts are being removed


@dataclass(frozen=True, eq=False)
class Recording:
    """An opened and checked recording; tables are read when they are asked for.

    label: file or upload name for messages and legends; root: folder that holds the tables;
    complete: the writer closed it; status: how the run ended ("completed", "cancelled", "stalled",
    ..., "unclosed"); rows: table -> rows; notes: sentences for the user;
    reconstructed_requests: rows of `requests` that were derived from events, as the writer was
    stopped before it wrote them (their unknown values are null); mapped: the kept tables of a long
    one, which are then not read into memory.
    """

    label: str
    root: Path
    meta: Meta
    complete: bool
    status: str
    rows: Mapping[str, int]
    notes: tuple[str, ...]
    parts: Mapping[str, tuple[Path, ...]] = field(repr=False)
    reconstructed_requests: int = 0
    mapped: MappedTables | None = field(default=None, repr=False)

    def scan(self, name: str) -> pl.LazyFrame:
        """Lazy frame of one table, columns of the contract only, text of closed sets as Enum.

        For `requests` of an unclosed recording it holds the written rows only; rows that its recorder
        has written since it was opened are left out. Raises KeyError.
        """
        spec = table(name)
        if self.mapped is not None and (kept := self.mapped.frame(name)) is not None:
            return kept.lazy()
        parts = [_scan_part(p, spec) for p in self.parts.get(name, ())]
        if not parts:
            return pl.LazyFrame(schema={c.name: polars_type(c) for c in spec.columns})
        found = pl.concat(parts)
        return found if self.complete else found.head(self.rows[name])

    @cached_property
    def steps(self) -> pl.DataFrame:
        """One row a step, in order of steps, each column in one piece."""
        found = self.scan("steps").collect()
        return found if self.mapped is not None else found.rechunk()

    @cached_property
    def events(self) -> pl.DataFrame:
        """One row an event, in the order in which they were decided."""
        return self.scan("events").collect()

    @cached_property
    def requests(self) -> pl.DataFrame:
        """One row a request; reconstructed ones come last."""
        written = self.scan("requests").collect()
        if not self.reconstructed_requests:
            return written
        return pl.concat(
            [written, rebuild_requests(self.events, self.steps, written["request_id"])]
        )

    @cached_property
    def blocks(self) -> pl.DataFrame | None:
        """Ownership intervals of blocks, or None where they were not recorded."""
        return self.scan("blocks").collect() if "blocks" in self.rows else None

    @property
    def pool_blocks(self) -> int:
        """Usable GPU blocks, from the metadata or, where it does not say, from the first step."""
        if self.meta.pool_blocks is not None:
            return self.meta.pool_blocks
        first = (
            self.scan("steps")
            .select(pl.col("used_blocks") + pl.col("free_blocks"))
            .head(1)
            .collect()
        )
        return int(first.item()) if first.height else 0

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete files that were unpacked from a zip; a folder is left alone."""
        unpacked = self.__dict__.get("_unpacked")
        if unpacked is not None:
            unpacked()


def _scan_part(path: Path, spec: Table) -> pl.LazyFrame:
    part = pl.scan_parquet(path, glob=False)
    there = part.collect_schema().names()
    return part.select(
        pl.col(c.name).cast(polars_type(c)) if c.name in there else fill_later(c)
        for c in spec.columns
    )


def open_recording(
    path: str | Path, name: str | None = None, keep: Keep | None = None
) -> Recording:
    """Open a recording's folder or zip and check every row of it, batch by batch.

    name: what to call it in messages and legends, by default the file name. An unclosed recording
    opens with a note. keep: where the tables of a long one are kept, so that they need not lie in
    memory; what is kept there already has passed, and is not checked again. Raises RecordingError
    naming part, column, row, fault and remedy, and FileError where the disk does not take the tables.
    """
    path = Path(path)
    kind, fault, remedy = path_kind(path)
    label = name or (path.resolve().name if kind else path.name)
    if fault:
        raise RecordingError(label, "", fault, remedy)
    with one_sentence(label):
        if keep is not None and (found := _open_kept(path, label, keep, kind == FOLDER)):
            return found
        if kind == FOLDER:
            return _open_folder(find_root(path, label), label, keep)
        return _open_zip(path, label, keep)


def _open_kept(path: Path, label: str, keep: Keep, is_folder: bool) -> Recording | None:
    """The recording as it was found when its tables were kept; None where that cannot be used, and
    is removed."""
    facts = kept_facts(keep.folder)
    if facts is None:
        return None
    try:
        root = find_root(path, label) if is_folder else keep.folder / UNPACKED
        parts = {n: tuple(root / n / p for p in names) for n, names in facts["parts"].items()}
        return Recording(
            label,
            root,
            first_meta(root, label),
            facts["complete"],
            facts["status"],
            facts["rows"],
            tuple(facts["notes"]),
            parts,
            facts["reconstructed_requests"],
            MappedTables(keep.folder, facts),
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecordingError):
        set_aside(keep.folder)
        return None


def _open_zip(path: Path, label: str, keep: Keep | None) -> Recording:
    if not zipfile.is_zipfile(path):
        raise RecordingError(
            label, "", _not_a_zip(path), "Give the folder of a recording, or a zip of it."
        )
    folder = tempfile.mkdtemp(prefix="kv-replay-", dir=keep.folder.parent if keep else None)
    try:
        unzip_recording(path, Path(folder), label)
        recording = _open_folder(Path(folder), label, keep)
        if recording.mapped is not None:
            return _moved_in(recording, recording.mapped.folder / UNPACKED)
    except BaseException:
        remove_tree(folder)
        raise
    recording.__dict__["_unpacked"] = weakref.finalize(recording, remove_tree, folder)
    return recording


def _moved_in(recording: Recording, home: Path) -> Recording:
    """The recording with its unpacked files below its kept tables."""
    try:
        os.rename(recording.root, home)
    except OSError:  # another process was first
        remove_tree(str(recording.root))
    parts = {
        name: tuple(home / name / p.name for p in found)
        for name, found in recording.parts.items()
    }
    return replace(recording, root=home, parts=parts)


def _not_a_zip(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(4)
    if not start:
        return "the file is empty"
    if start == b"PAR1":
        return "this is a single Parquet file, and a recording is a folder of them"
    if start == b"PK\x03\x04":
        return "the zip is cut off (its directory at the end is missing)"
    for begins, kind in _ARCHIVES.items():
        if start.startswith(begins):
            return f"this is a {kind} archive: unpack it first"
    return f"the file is neither a folder nor a zip (it starts with {start!r})"


def _open_folder(root: Path, label: str, keep: Keep | None = None) -> Recording:
    for _ in range(_LOOKS - 1):
        try:
            return _look(root, label, keep)
        except RecordingError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise  # else a recorder with a disk cap removed it after it was listed
    return _look(root, label, keep)


def _look(root: Path, label: str, keep: Keep | None) -> Recording:
    """Check every row of what is there now. Raises RecordingError and FileError."""
    closed, open_note = read_closed(root)
    meta = first_meta(root, label)
    reading = Reading(root, label, closed, meta, [open_note] if open_note else [])
    rows = _count_rows(root, label) if keep is not None else {}
    if keep is not None and (total := sum(rows.values())) > keep.long_rows:
        reading.writer = TableWriter(keep, rows[STEPS.name], label)
        reading.workers = Threads(partial(_tell, reading, keep, total))
    try:
        with reading.workers:
            return _checked(reading, label)
    except BaseException:
        if reading.writer is not None:
            reading.writer.abandon()
        raise
    finally:
        if reading.writer is not None:  # tens of MiB, which are not needed again
            pa.default_memory_pool().release_unused()


def _tell(reading: Reading, keep: Keep, total: int) -> None:
    if keep.progress is not None:
        keep.progress(reading.num_checked, total)


def _count_rows(root: Path, label: str) -> dict[str, int]:
    """Rows that the parts of each table say they have; a damaged part says nothing."""
    rows = dict.fromkeys((spec.name for spec in TABLES), 0)
    for spec in TABLES:
        for part in list_parts(root, spec, label)[0]:
            with suppress(*DAMAGE):
                rows[spec.name] += pq.read_metadata(part).num_rows
    return rows


def _checked(reading: Reading, label: str) -> Recording:
    """The recording, when every row of it has passed."""
    closed, meta = reading.closed, reading.meta
    status = closed.status if closed is not None else "unclosed"
    if status not in (COMPLETED, "unclosed"):
        reading.notes.append(
            f"The run did not complete ({status}): requests that it did not get to are unfinished."
        )
    if meta.pool_blocks is None:
        reading.notes.append(
            "The metadata does not state the pool's size; it was taken from the first step."
        )
    lost = _read_tables(reading)
    if closed is None and not reading.rows.get("steps"):
        raise RecordingError(
            label,
            "table steps",
            "no step can be read",
            "The writer was stopped too early: run it again.",
        )
    reading.finish()
    reading.notes += writer_notes(reading.last_meta)
    if lost:
        reading.notes.append(
            f"{lost:,} requests were never written and were derived from events; what events do not say is missing."
        )
    found = Recording(
        label,
        reading.root,
        meta,
        closed is not None,
        status,
        {spec.name: reading.rows[spec.name] for spec in TABLES if spec.name in reading.rows},
        tuple(reading.notes),
        {spec.name: reading.parts[spec.name] for spec in TABLES if spec.name in reading.parts},
        lost,
    )
    return found if reading.writer is None else _kept(found, reading, reading.writer)


def _read_tables(reading: Reading) -> int:
    """Check all tables; returns the requests that were lost with a killed writer. Requests and events
    are held against each other while steps are still being checked."""
    pool = reading.meta.pool_blocks
    reading.laws = {
        STEPS.name: lambda: StepLaws(pool),
        EVENTS.name: EventLaws,
        REQUESTS.name: RequestLaws,
        BLOCKS.name: lambda: None,
    }
    for spec in (REQUESTS, EVENTS, STEPS, BLOCKS):
        reading.begin(spec)
    requests, events = (reading.read(spec) for spec in (REQUESTS, EVENTS))
    assert isinstance(requests, RequestLaws)
    assert isinstance(events, EventLaws)
    ids = requests.check_unique(reading.place(REQUESTS))
    lost = 0
    if reading.closed is None:
        lost = events.count_unknown(ids)
    else:
        events.check_known(ids, reading.place(EVENTS))
    reading.read(STEPS)
    reading.read(BLOCKS)
    return lost


def _kept(found: Recording, reading: Reading, writer: TableWriter) -> Recording:
    """The recording with its tables where they are kept."""
    folder = writer.finish(
        found.rows.get(STEPS.name, 0),
        {name: reading.num_pieces[name] for name in (EVENTS.name, REQUESTS.name)},
        {
            "complete": found.complete,
            "status": found.status,
            "rows": found.rows,
            "notes": found.notes,
            "parts": {name: [p.name for p in parts] for name, parts in found.parts.items()},
            "reconstructed_requests": found.reconstructed_requests,
        },
    )
    facts = kept_facts(folder)
    if facts is None:
        return found
    return replace(found, mapped=MappedTables(folder, facts))
