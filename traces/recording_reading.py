"""Reading the parts of a recording once, with every check of the contract.

It knows which damage a killed writer explains and which nothing does, and joins the pieces in which
parts are checked (`recording_pieces.py`). The laws themselves are in `recording_laws.py`; what is kept
afterwards is a Recording (`recording.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from traces.errors import RecordingError
from traces.mapped_tables import MAPPED
from traces.paths import os_reason
from traces.recording_files import Closing, list_parts
from traces.recording_laws import Place, check_columns, later_columns
from traces.recording_meta import DAMAGE, Meta, check_same_run, part_meta
from traces.recording_pieces import Checked, Checker, Law, Piece, cut
from traces.schema import TABLES, Table
from traces.table_writer import TableWriter
from traces.workers import AtOnce, Workers

MAX_ROWS = 500_000_000  # a few kilobytes of Parquet can claim any number of rows


@contextmanager
def one_sentence(label: str) -> Iterator[None]:
    """Turn what the system or a reader raises over files into a RecordingError."""
    try:
        yield
    except OSError as e:
        raise RecordingError(
            label, "", f"it cannot be read ({os_reason(e)})", "Check its permissions."
        ) from e
    except (ValueError, OverflowError, RecursionError) as e:  # damage that no check foresaw
        raise RecordingError(
            label,
            "",
            f"it is damaged ({type(e).__name__}: {str(e)[:200]})",
            "Copy the recording again, or record the run again.",
        ) from e


def check_num_rows(file: pq.ParquetFile, place: Place) -> None:
    """Raise where a part claims more rows than anybody recorded."""
    if file.metadata.num_rows > MAX_ROWS:
        raise place.error(
            "",
            None,
            f"{file.metadata.num_rows:,} rows are more than {MAX_ROWS:,}",
            "Record a shorter run.",
        )


@dataclass
class PartReading:
    """What is gathered while the tables of one folder are checked, whatever they hold.

    meta: of the first part; last_meta: of the part read last, which holds a live recorder's final
    counts; rows, parts: of each table that is there.
    """

    root: Path
    label: str
    closed: Closing | None
    meta: Meta
    notes: list[str]
    rows: dict[str, int] = field(default_factory=dict)
    parts: dict[str, tuple[Path, ...]] = field(default_factory=dict)
    last_meta: Meta = field(default_factory=Meta)

    def read_parts(self, spec: Table, read_part: Callable[[Path], int]) -> None:
        """Check all parts of one table; sets rows and parts of it. read_part: gives a part's rows."""
        found, notes = self._list(spec)
        self.notes += notes
        kept: list[Path] = []
        total = 0
        for part in found:
            try:
                total += read_part(part)
            except DAMAGE as error:
                if part is not found[-1] or self.closed is not None:
                    raise self._damaged(part, spec, error) from error
                self.notes.append(
                    f"{spec.name}/{part.name} is damaged and was skipped: what it held is lost."
                )
            else:
                kept.append(part)
        if kept or (self.closed is not None and spec.name in self.closed.rows):
            self.rows[spec.name], self.parts[spec.name] = total, tuple(kept)
        self._check_count(spec, total)

    def _list(self, spec: Table) -> tuple[list[Path], list[str]]:
        """The parts of a table, and notes on what is no part."""
        return list_parts(self.root, spec, self.label)

    def _damaged(self, part: Path, spec: Table, error: BaseException) -> RecordingError:
        reason = (
            str(error).strip().splitlines()[0][:120]
            if str(error).strip()
            else type(error).__name__
        )
        return RecordingError(
            part.name,
            f"recording {self.label}, table {spec.name}",
            f"the Parquet file is damaged or cut off ({reason})",
            "Copy or upload the recording again.",
        )

    def _check_count(self, spec: Table, total: int) -> None:
        if self.closed is None:
            return
        place = Place("closed.json", self.label, spec.name)
        stated = self.closed.rows.get(spec.name)
        if stated is None and spec.required:
            raise place.error("", None, "the table is not listed", "Record the run again.")
        if stated is not None and stated != total:
            raise place.error(
                "",
                None,
                f"{stated:,} rows were written, but {total:,} are there",
                "Copy the whole folder again.",
            )

    def place(self, spec: Table) -> Place:
        """The place of a whole table, for faults that no single row has."""
        part = self.parts.get(spec.name, ())
        return Place(part[0].name if part else spec.name, self.label, spec.name)


@dataclass(frozen=True)
class _Begun:
    """A part whose head is sound. note: on columns that nobody knows; pieces: what is being checked of
    it, each with its result."""

    note: str
    pieces: tuple[tuple[Piece, Callable[[], Checked]], ...]


@dataclass
class Reading(PartReading):
    """The checking of a recording's tables. writer: takes what has passed; workers: do it; laws:
    table -> what makes the law of its rows.

    First `begin` all tables, then `read` each of them, in any order.
    """

    writer: TableWriter | None = None
    workers: Workers = field(default_factory=AtOnce)
    laws: dict[str, Callable[[], Law | None]] = field(default_factory=dict)
    num_checked: int = 0
    num_pieces: dict[str, int] = field(default_factory=dict)
    _begun: dict[Path, _Begun | Exception] = field(default_factory=dict)
    _listed: dict[str, tuple[list[Path], list[str]]] = field(default_factory=dict)
    _notes_of: dict[str, list[str]] = field(default_factory=dict)
    _last_meta_of: dict[str, Meta] = field(default_factory=dict)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, spec: Table) -> None:
        """Look at the heads of all parts, and start to check their rows."""
        checker = Checker(spec, self.label, self.laws[spec.name], self.writer, self._count)
        at = number = 0
        self._listed[spec.name] = list_parts(self.root, spec, self.label)
        for part in self._listed[spec.name][0]:
            try:
                note, found = self._head(part, spec, at, number)
            except (*DAMAGE, RecordingError) as error:  # told when it is its turn
                self._begun[part] = cast(Exception, error)
                continue
            started = [self.workers.start(partial(checker.check, piece)) for piece in found]
            self._begun[part] = _Begun(note, tuple(zip(found, started, strict=True)))
            at += sum(piece.num_rows for piece in found)
            number += len(found)

    def _list(self, spec: Table) -> tuple[list[Path], list[str]]:
        """Those that were begun: a recorder at work may have written another one meanwhile."""
        return self._listed[spec.name]

    def read(self, spec: Table) -> Law | None:
        """Wait until all parts are checked; sets rows and parts of the table. Returns its law with all
        rows seen. Raises RecordingError and FileError."""
        law = self.laws[spec.name]()
        notes, self.notes = self.notes, []
        self.num_pieces[spec.name] = 0
        self.read_parts(spec, lambda part: self._read_part(part, spec, law))
        self._notes_of[spec.name], self.notes = self.notes, notes
        return law

    def finish(self) -> None:
        """Put notes and the last metadata in the order of the tables."""
        for spec in TABLES:
            self.notes += self._notes_of.get(spec.name, ())
            self.last_meta = self._last_meta_of.get(spec.name, self.last_meta)

    def _count(self, num_rows: int) -> None:
        self.workers.check_stopped()
        with self._counting:
            self.num_checked += num_rows

    def _head(
        self, part: Path, spec: Table, at: int, number: int
    ) -> tuple[str, tuple[Piece, ...]]:
        place = Place(part.name, self.label, spec.name)
        # A recorder at work writes its last part again and again: what was opened stays as it is.
        is_open_part = self.closed is None and part == self._listed[spec.name][0][-1]
        source = pa.OSFile(str(part)) if is_open_part else part
        with pq.ParquetFile(source) as file:
            meta = part_meta(file, place)
            check_same_run(meta, self.meta, place)
            self._last_meta_of[spec.name] = meta
            found = file.schema_arrow
            extra = check_columns(found, spec, place, meta.schema_version)
            later = {c.name for c in later_columns(found, spec, meta.schema_version)}
            names = tuple(n for n in spec.names if n not in later)
            if self.writer is None or spec.name not in MAPPED:
                # it is handed out by polars, which must agree
                pl.scan_parquet(part, glob=False).collect_schema()
            check_num_rows(file, place)
            pieces = tuple(cut(file.metadata, part, source, names, at, number))
        note = f"Table {spec.name} has columns that this version does not know: {', '.join(extra)}."
        return note if extra else "", pieces

    def _read_part(self, part: Path, spec: Table, law: Law | None) -> int:
        """Join the pieces of a part to what was read before; returns its rows."""
        begun = self._begun.pop(part)  # what it holds of rows is not needed again
        if isinstance(begun, Exception):
            raise begun
        if begun.note and begun.note not in self.notes:
            self.notes.append(begun.note)
        for piece, result in begun.pieces:
            checked = result()
            place = Place(part.name, self.label, spec.name, piece.row_offset)
            if law is not None and checked.law is not None:
                law.join(checked.first, checked.law, place)
        self.num_pieces[spec.name] += len(begun.pieces)
        return sum(piece.num_rows for piece, _ in begun.pieces)
