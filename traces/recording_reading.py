"""Reading the parts of a recording once, batch by batch, with every check of the contract.

It knows which damage a killed writer explains and which nothing does. The laws themselves are in
`recording_laws.py`; what is kept afterwards is a Recording (`recording.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from traces.errors import RecordingError
from traces.mapped_tables import TableWriter
from traces.paths import os_reason
from traces.recording_files import Closing, list_parts
from traces.recording_laws import Place, check_columns, check_values, fill_later, later_columns
from traces.recording_meta import DAMAGE, Meta, check_same_run, part_meta
from traces.schema import Table

BATCH_ROWS = 131_072
MAX_ROWS = 500_000_000  # a few kilobytes of Parquet can claim any number of rows


def _to_polars(batch: pa.RecordBatch, spec: Table) -> pl.DataFrame:
    """The batch as a frame. Raises pa.ArrowInvalid for damage that only full validation finds.

    Field metadata is left behind: it may be damaged too, and polars panics over that.
    """
    batch.validate(full=True)
    frame = pl.DataFrame(
        {name: pl.Series(name, batch.column(name)) for name in batch.schema.names}
    )
    later = [c for c in spec.columns if c.name not in frame.columns]
    return frame.with_columns(fill_later(c) for c in later).select(spec.names)


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


class Law(Protocol):
    def check(self, frame: pl.DataFrame, place: Place) -> None: ...


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
        found, notes = list_parts(self.root, spec, self.label)
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
                self.end_part(spec, kept=False)
            else:
                kept.append(part)
                self.end_part(spec, kept=True)
        if kept or (self.closed is not None and spec.name in self.closed.rows):
            self.rows[spec.name], self.parts[spec.name] = total, tuple(kept)
        self._check_count(spec, total)

    def end_part(self, spec: Table, kept: bool) -> None:
        """Called after each part. kept: False where it broke off."""

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


@dataclass
class Reading(PartReading):
    """The checking of a recording's tables. writer: takes the batches that passed."""

    writer: TableWriter | None = None

    def read(self, spec: Table, law: Law | None) -> None:
        """Check all parts of one table; sets rows and parts of it."""
        self.read_parts(spec, lambda part: self._read_part(part, spec, law))

    def end_part(self, spec: Table, kept: bool) -> None:
        if self.writer is not None:
            self.writer.end_part(spec.name, kept)

    def _read_part(self, part: Path, spec: Table, law: Law | None) -> int:
        """Check one part batch by batch; returns its rows."""
        place = Place(part.name, self.label, spec.name)
        with pq.ParquetFile(part, page_checksum_verification=True) as file:
            meta = part_meta(file, place)
            check_same_run(meta, self.meta, place)
            self.last_meta = meta
            found = file.schema_arrow
            extra = check_columns(found, spec, place, meta.schema_version)
            later = {c.name for c in later_columns(found, spec, meta.schema_version)}
            names = [n for n in spec.names if n not in later]
            pl.scan_parquet(
                part, glob=False
            ).collect_schema()  # tables are handed out by polars, which must agree
            note = f"Table {spec.name} has columns that this version does not know: {', '.join(extra)}."
            if extra and note not in self.notes:
                self.notes.append(note)
            check_num_rows(file, place)
            offset = 0
            for batch in file.iter_batches(BATCH_ROWS, columns=names):
                frame = _to_polars(batch, spec)
                here = Place(part.name, self.label, spec.name, offset)
                check_values(frame, spec, here)
                if law is not None:
                    law.check(frame, here)
                if self.writer is not None:
                    self.writer.add(spec.name, frame)
                offset += frame.height
        return offset
