"""Writing the tables of a long recording so that `mapped_tables` can hand them out.

Checked batches come from several threads at once, each with the row of the table at which it belongs.
It knows layouts and no laws. The folder gets its name when everything is there; what breaks off leaves
nothing behind.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import polars as pl
import pyarrow as pa

from traces.column_groups import GroupsInMaking, Stretch, group_size
from traces.errors import FileError
from traces.mapped_tables import (
    CHECKED,
    LAYOUT,
    MAPPED,
    Keep,
    bytes_a_row,
    kept_facts,
    set_aside,
    temporary,
)
from traces.schema import STEPS

_PIECE = 1 << 20
_LONG_ZEROS = 1 << 15  # bytes from which on they are looked for


@dataclass(frozen=True)
class Numbers:
    """Rows of a column of `steps`, at least one. values: [n], 0 where there is none; valid: [n] of bool,
    None where all rows have a value; stretch: what they add to the column's groups, where that was asked
    for; is_nothing: no row has a value."""

    values: np.ndarray
    valid: np.ndarray | None = None
    stretch: Stretch | None = None
    is_nothing: bool = False

    @cached_property
    def least(self) -> float:
        if self.is_nothing:
            return 0
        return (self.values if self.stretch is None else self.stretch.least).min()

    @cached_property
    def greatest(self) -> float:
        if self.is_nothing:
            return 0
        return (self.values if self.stretch is None else self.stretch.greatest).max()

    @property
    def reads_as_zeros(self) -> bool:
        """Whether all values are zeros without a sign, which a file need not hold."""
        if self.is_nothing:
            return True
        if not self.least == self.greatest == 0:
            return False
        return self.values.dtype.kind != "f" or not np.signbit(self.values).any()


class TableWriter:
    """Writes checked batches below a name of its own, and gives the folder its name when all is there.

    num_steps: as the parts say. Raises FileError where the disk does not take it.
    """

    def __init__(self, keep: Keep, num_steps: int, label: str) -> None:
        self.keep = keep
        self.label = label
        self.folder = temporary(keep.folder)
        self.group_size = group_size(num_steps)
        self._steps = _Columns(self.folder / "steps", num_steps, self.group_size)
        with self._disk():
            for name in MAPPED:
                (self.folder / name).mkdir(parents=True)

    def add_steps(self, at: int, columns: Mapping[str, Numbers]) -> None:
        """Rows of `steps` from row `at` on, each column without nulls with its stretch; a column that is
        not among them is null, or 0."""
        with self._disk():
            self._steps.write(at, columns)

    def rows(self, name: str, number: int) -> RowsWriter:
        """Takes the numberth stretch of rows of `events` or `requests`, numbered from 0 on."""
        return RowsWriter(self.folder / name / f"{number:05d}.arrow", self._disk)

    def finish(
        self, num_steps: int, files: Mapping[str, int], facts: Mapping[str, Any]
    ) -> Path:
        """Keep so many steps and so many stretches of the other tables, note the facts, and put the
        folder in its place; returns it."""
        with self._disk():
            self._steps.finish(num_steps)
            for name, num in files.items():
                for path in (self.folder / name).iterdir():
                    if int(path.stem) >= num:
                        path.unlink()
            said = {"layout": LAYOUT, "num_steps": num_steps, "files": dict(files)}
            (self.folder / CHECKED).write_text(json.dumps({**said, **facts}), "utf-8")
            self._name_it()
        return self.keep.folder

    def abandon(self) -> None:
        """Remove what was written."""
        self._steps.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _name_it(self) -> None:
        try:
            os.rename(self.folder, self.keep.folder)
        except OSError:
            if kept_facts(self.keep.folder) is not None:  # another process was first
                shutil.rmtree(self.folder, ignore_errors=True)
                return
            set_aside(self.keep.folder)
            os.rename(self.folder, self.keep.folder)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Turn a disk that does not take it into a FileError."""
        try:
            yield
        except OSError as error:
            raise FileError(
                self.label,
                "",
                f"its tables could not be stored ({error.strerror or error})",
                f"Make room in {self.keep.folder.parent}, or set KV_REPLAY_CACHE to a folder that has some.",
            ) from error


class _Holed(io.RawIOBase):
    """A new file, written from its start to its end. Long zeros are passed over: they read as zeros all
    the same, and take no disk."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb", buffering=0)
        self._at = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def write(self, given: Any) -> int:
        raw = memoryview(given).cast("B")
        if len(raw) < _LONG_ZEROS or np.frombuffer(raw, np.uint8).any():
            self._file.seek(self._at)
            left = raw
            while len(left):
                left = left[self._file.write(left) :]
        self._at += len(raw)
        return len(raw)

    def close(self) -> None:
        if not self.closed:
            try:
                self._file.truncate(self._at)
            finally:
                self._file.close()
        super().close()


class RowsWriter:
    """An Arrow file of rows that follow one another; no rows, no file."""

    def __init__(self, path: Path, disk: Any) -> None:
        self._path, self._disk = path, disk
        self._sink: _Holed | None = None
        self._file: pa.ipc.RecordBatchFileWriter | None = None

    def add(self, frame: pl.DataFrame) -> None:
        """The next rows, in the contract's types."""
        rows = frame.to_arrow(compat_level=pl.CompatLevel.newest())
        with self._disk():
            if self._file is None:
                self._sink = _Holed(self._path)
                self._file = pa.ipc.new_file(self._sink, rows.schema)
            self._file.write_table(rows)

    def __enter__(self) -> RowsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, *_: BaseException | TracebackType | None
    ) -> None:
        if self._file is None or self._sink is None:
            return
        if kind is None:
            with self._disk():
                self._file.close()
                self._sink.close()
        else:  # it is to be thrown away
            with suppress(OSError, pa.ArrowException):
                self._file.close()
            with suppress(OSError):
                self._sink.close()


@dataclass
class _Validity:
    """What is known of a column's nulls: stretches without any are noted, and written at the end only
    where another stretch has some."""

    has_nulls: bool = False
    has_values: bool = False
    without: list[tuple[int, int]] = field(default_factory=list)


class _Columns:
    """The columns of `steps`, a file each, and the groups of those that cannot be null; which rows have a
    value as a byte a row until the end."""

    def __init__(self, folder: Path, num_rows: int, group_size: int) -> None:
        self.folder = folder
        self._num_stated, self._group_size = num_rows, group_size
        self._groups: dict[str, GroupsInMaking] = {}
        self._files: dict[str, BinaryIO] = {}
        self._locks = {c.name: threading.Lock() for c in STEPS.columns}
        self._opening = threading.Lock()
        self._nulls = {c.name: _Validity() for c in STEPS.columns if c.nullable}

    def write(self, at: int, columns: Mapping[str, Numbers]) -> None:
        with self._opening:
            if not self._files:
                self._open()
        for name, numbers in columns.items():
            is_stated = at + len(numbers.values) <= self._num_stated  # a recorder may add some
            if is_stated and name in self._groups and numbers.stretch is not None:
                self._groups[name].add(numbers.stretch)
            with self._locks[name]:
                if not numbers.reads_as_zeros:
                    _write_at(self._files[name], at * bytes_a_row(name), numbers.values)
                if name in self._nulls:
                    self._note(name, at, numbers)
        for name in self._nulls.keys() - columns.keys():
            self._nulls[name].has_nulls = True

    def _open(self) -> None:
        for c in STEPS.columns:
            self._files[c.name] = self._new(f"{c.name}.bin")
            if c.nullable:
                self._files[f"{c.name} valid"] = self._new(f"{c.name}.rows")
            else:
                kind = np.dtype(c.type.to_pandas_dtype())
                self._groups[c.name] = GroupsInMaking(self._num_stated, kind, self._group_size)

    def _new(self, name: str) -> BinaryIO:
        return (self.folder / name).open("wb", buffering=0)

    def _note(self, name: str, at: int, numbers: Numbers) -> None:
        known = self._nulls[name]
        if numbers.valid is None:
            known.has_values = True
            known.without.append((at, len(numbers.values)))
            return
        known.has_nulls = True
        if not numbers.is_nothing and numbers.valid.any():
            known.has_values = True
            _write_at(self._files[f"{name} valid"], at, numbers.valid)

    def finish(self, num_rows: int) -> None:
        """Cut or lengthen all to so many rows; a stretch of zeros at the end was passed over."""
        if not self._files:
            self._open()
        for name, known in self._nulls.items():
            file = self._files[f"{name} valid"]
            if known.has_nulls and known.has_values:
                for at, num in known.without:
                    _write_at(file, at, np.ones(num, np.bool_))
            file.truncate(num_rows)
        for c in STEPS.columns:
            self._files[c.name].truncate(num_rows * bytes_a_row(c.name))
        self.close()
        if num_rows:
            self._append_end(num_rows)
        if num_rows == self._num_stated:  # else some of them are of rows that were lost
            for name, made in self._groups.items():
                made.groups().save(self.folder / f"{name}.groups")
        for name, known in self._nulls.items():
            rows = self.folder / f"{name}.rows"
            if known.has_nulls:
                _write_bits(rows, rows.with_suffix(".valid"), num_rows, known.has_values)
            rows.unlink()

    def _append_end(self, num_rows: int) -> None:
        """Put the end of the last step behind the starts of all."""
        at = (num_rows - 1) * np.dtype(np.float64).itemsize
        starts, durations = (self.folder / f"{n}.bin" for n in ("t_start_s", "duration_s"))
        end = sum(np.fromfile(path, np.float64, offset=at) for path in (starts, durations))
        with starts.open("ab") as file:
            file.write(np.asarray(end).tobytes())

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def _write_at(file: BinaryIO, at: int, values: np.ndarray) -> None:
    """Write numbers at that byte."""
    raw = np.ascontiguousarray(values).view(np.uint8).data
    file.seek(at)
    while len(raw):
        raw = raw[file.write(raw) :]


def _write_bits(rows: Path, bits: Path, num_rows: int, has_values: bool) -> None:
    """A bit for each byte of `rows`, set where that is not 0."""
    with rows.open("rb") as source, bits.open("wb") as sink:
        while has_values and (
            piece := source.read(_PIECE)
        ):  # a multiple of 8, but for the last
            sink.write(np.packbits(np.frombuffer(piece, np.uint8), bitorder="little").data)
        sink.truncate(-(-num_rows // 8))
