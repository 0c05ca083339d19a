"""The parts of a table cut into pieces of rows, each of which can be checked apart from the others.

A piece is some row groups of one Parquet part. It is read batch by batch: every batch is looked at
(`recording_screen`), looked at closely where that finds something (`recording_laws`), and handed to the
writer of kept tables, if there is one. That a piece follows the one before it is seen by whoever joins
them (`recording_reading`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from traces.mapped_tables import MAPPED
from traces.recording_laws import Place, StepLaws, check_values, fill_later, polars_type
from traces.recording_screen import frame_holds, numbers_of, steps_hold, typed
from traces.schema import STEPS, Table
from traces.table_writer import RowsWriter, TableWriter

BATCH_ROWS = 65_536
STEPS_ROWS = 65_536
PIECE_ROWS = 524_288  # more where a row group is larger


class Law(Protocol):
    """What a table must keep to, with what it remembers of the rows so far."""

    def check(self, frame: pl.DataFrame, place: Place) -> None: ...

    def join(self, first: pl.DataFrame, following: Self, place: Place) -> None: ...


@dataclass(frozen=True)
class Piece:
    """Rows of a part. source: the part's opened file, where another may take its name meanwhile; columns:
    names of those to read; row_groups: of the part; row_offset: rows before it in the part, at: in the
    table; number: counts the pieces of the table."""

    part: Path
    source: Path | pa.NativeFile
    columns: tuple[str, ...]
    row_groups: tuple[int, ...]
    num_rows: int
    row_offset: int
    at: int
    number: int


@dataclass(frozen=True)
class Checked:
    """What was found in a piece: its first row as a frame, and its law with all rows seen."""

    num_rows: int
    first: pl.DataFrame
    law: Law | None


def cut(
    metadata: pq.FileMetaData,
    part: Path,
    source: Path | pa.NativeFile,
    columns: tuple[str, ...],
    at: int,
    number: int,
) -> Iterator[Piece]:
    """The pieces of a part, none of them empty. at, number: of the first one."""
    offset = rows = 0
    groups: list[int] = []
    for group in range(metadata.num_row_groups):
        groups.append(group)
        rows += metadata.row_group(group).num_rows
        is_last = group + 1 == metadata.num_row_groups
        if rows and (is_last or rows >= PIECE_ROWS):
            yield Piece(part, source, columns, tuple(groups), rows, offset, at + offset, number)
            number += 1
            offset, rows, groups = offset + rows, 0, []


def to_polars(batch: pa.RecordBatch, spec: Table) -> pl.DataFrame:
    """The batch as a frame, with all columns of the table.

    Field metadata is left behind: it may be damaged too, and polars panics over that.
    """
    frame = pl.DataFrame(
        {name: pl.Series(name, batch.column(name)) for name in batch.schema.names}
    )
    later = [c for c in spec.columns if c.name not in frame.columns]
    return frame.with_columns(fill_later(c) for c in later).select(spec.names)


def _first_row(batch: pa.RecordBatch, spec: Table) -> pl.DataFrame:
    """A copy: a slice would keep the whole batch in memory."""
    schema = {c.name: polars_type(c) for c in spec.columns}
    return pl.DataFrame(batch.slice(0, 1).to_pylist(), schema)


@dataclass(frozen=True)
class Checker:
    """Checks pieces of one table. label: of the recording; new_law: what a piece must keep to;
    writer: takes what has passed; tell: is told the rows of each batch, and may raise."""

    spec: Table
    label: str
    new_law: Callable[[], Law | None]
    writer: TableWriter | None
    tell: Callable[[int], object]

    def check(self, piece: Piece) -> Checked:
        """Look at every row. Raises RecordingError at the first fault, FileError where the disk takes
        no tables, and what readers raise over damage."""
        law = self.new_law()
        first: pl.DataFrame | None = None
        done = 0
        with ExitStack() as stack:
            file = stack.enter_context(
                pq.ParquetFile(piece.source, page_checksum_verification=True)
            )
            rows = None
            if self.writer is not None and self.spec.name in MAPPED and self.spec is not STEPS:
                rows = stack.enter_context(self.writer.rows(self.spec.name, piece.number))
            size = STEPS_ROWS if self.spec is STEPS else BATCH_ROWS
            for batch in file.iter_batches(
                size, list(piece.row_groups), list(piece.columns), use_threads=False
            ):
                if not batch.num_rows:
                    continue
                batch.validate(full=True)
                offset = piece.row_offset + done
                here = Place(piece.part.name, self.label, self.spec.name, offset)
                if self.spec is STEPS:
                    self._steps(batch, law, here, piece.at + done)
                else:
                    self._rows(batch, law, here, rows)
                if first is None:
                    first = _first_row(batch, self.spec)
                done += batch.num_rows
                self.tell(batch.num_rows)
        if done != piece.num_rows or first is None:
            said = f"it announces {piece.num_rows:,} rows in these row groups and has {done:,}"
            raise pa.ArrowInvalid(said)
        return Checked(done, first, law)

    def _steps(self, batch: pa.RecordBatch, law: Law | None, here: Place, at: int) -> None:
        assert isinstance(law, StepLaws)
        columns = numbers_of(batch, at, self.writer.group_size if self.writer else 0)
        if not steps_hold(columns, law):
            self._look_closely(to_polars(batch, self.spec), law, here)
        if self.writer is not None:
            self.writer.add_steps(at, columns)

    def _rows(
        self, batch: pa.RecordBatch, law: Law | None, here: Place, rows: RowsWriter | None
    ) -> None:
        frame = to_polars(batch, self.spec)
        in_types = typed(frame, self.spec)
        if not frame_holds(frame, in_types, self.spec, law):
            self._look_closely(frame, law, here)
        if rows is not None:
            rows.add(in_types)

    def _look_closely(self, frame: pl.DataFrame, law: Law | None, here: Place) -> None:
        check_values(frame, self.spec, here)
        if law is not None:
            law.check(frame, here)
