"""Tables of a checked recording as files that are mapped into memory instead of read into it.

A long recording is checked once, batch by batch, and each batch that passed is written here: the
columns of `steps` as plain numbers, one file each, `events` and `requests` as Arrow files. Opened
again, nothing is checked, nothing is decoded, and only what is looked at is loaded, by the system's
page cache. It knows layouts and no laws; which folder it is, and when it is forgotten, is known by
its caller (`Keep`).

    checked.json         what the check found: rows, notes, status; written last
    steps/<column>.bin   little-endian numbers of the contract's type; stretches of zeros take no disk
    steps/<column>.valid one bit a row, only where the column holds a null
    events/00000.arrow   one file a part
    recording/           what a zip held
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import polars as pl
import pyarrow as pa

from traces.errors import FileError
from traces.recording_laws import polars_type
from traces.schema import STEPS, Table, table

LAYOUT = 1  # another one is written anew
LONG_ROWS = 200_000  # of all tables together; shorter recordings are read into memory
MAPPED = ("steps", "events", "requests")
UNPACKED = "recording"
_CHECKED = "checked.json"
_PIECE = 1 << 20


@dataclass(frozen=True)
class Keep:
    """Where the tables of a long recording are to be kept. folder: of this recording and no other,
    its parent is there; long_rows: shorter ones are not kept; progress: is told the rows that were
    checked and all there are."""

    folder: Path
    long_rows: int = LONG_ROWS
    progress: Callable[[int, int], object] | None = None


class TableWriter:
    """Writes checked batches below a name of its own, and gives the folder its name when all is there.

    Raises FileError where the disk does not take it.
    """

    def __init__(self, keep: Keep, total_rows: int, label: str) -> None:
        self.keep = keep
        self.total = total_rows
        self.label = label
        self.folder = _temporary(keep.folder)
        self._steps = _StepsWriter(self.folder / "steps")
        self._parts: dict[str, int] = dict.fromkeys(MAPPED, 0)
        self._file: pa.ipc.RecordBatchFileWriter | None = None
        self._done = 0

    def add(self, name: str, frame: pl.DataFrame) -> None:
        """The next batch of a table."""
        if name in MAPPED:
            with _disk(self.label, self.keep.folder.parent):
                if name == STEPS.name:
                    self._steps.add(frame)
                else:
                    self._add_rows(name, frame)
        self._done += frame.height
        if self.keep.progress is not None:
            self.keep.progress(self._done, self.total)

    def end_part(self, name: str, kept: bool) -> None:
        """A part of the table has been read; not kept: it broke off, and what it gave is taken back."""
        if name == STEPS.name:
            self._steps.end_part(kept)
        elif name in MAPPED and self._file is not None:
            self._file.close()
            self._file = None
            if kept:
                self._parts[name] += 1
            else:
                self._part(name).unlink()

    def finish(self, facts: Mapping[str, Any]) -> Path:
        """Close all, note the facts, and put the folder in its place; returns it."""
        with _disk(self.label, self.keep.folder.parent):
            self._steps.finish()
            said = {"layout": LAYOUT, "num_steps": self._steps.rows, "files": self._parts}
            (self.folder / _CHECKED).write_text(json.dumps({**said, **facts}), "utf-8")
            try:
                os.rename(self.folder, self.keep.folder)
            except OSError:
                if (
                    kept_facts(self.keep.folder) is None
                ):  # not of another process that was first
                    set_aside(self.keep.folder)
                    os.rename(self.folder, self.keep.folder)
                else:
                    shutil.rmtree(self.folder, ignore_errors=True)
        return self.keep.folder

    def abandon(self) -> None:
        """Remove what was written."""
        self._steps.close()
        if self._file is not None:
            self._file.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _add_rows(self, name: str, frame: pl.DataFrame) -> None:
        typed = frame.select(pl.col(c.name).cast(polars_type(c)) for c in table(name).columns)
        rows = typed.to_arrow(compat_level=pl.CompatLevel.newest())
        if self._file is None:
            self._part(name).parent.mkdir(parents=True, exist_ok=True)
            self._file = pa.ipc.new_file(str(self._part(name)), rows.schema)
        self._file.write_table(rows)

    def _part(self, name: str) -> Path:
        return self.folder / name / f"{self._parts[name]:05d}.arrow"


class _StepsWriter:
    """The columns of `steps`, a file each; nulls as a byte a row until the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = 0
        self._kept_rows = 0
        self._files: dict[str, BinaryIO] = {}
        self._with_nulls: set[str] = set()

    def add(self, frame: pl.DataFrame) -> None:
        if not self._files:
            self.folder.mkdir(parents=True, exist_ok=True)
            for c in STEPS.columns:
                self._files[c.name] = (self.folder / f"{c.name}.bin").open("wb")
                if c.nullable:
                    self._files[f"{c.name} null"] = (self.folder / f"{c.name}.null").open("wb")
        for c in STEPS.columns:
            values = frame[c.name]
            if c.nullable:
                if values.null_count():
                    self._with_nulls.add(c.name)
                _append(self._files[f"{c.name} null"], values.is_null().to_numpy())
                values = values.fill_null(0)
            _append(self._files[c.name], values.to_numpy())
        self.rows += frame.height

    def end_part(self, kept: bool) -> None:
        if kept:
            self._kept_rows = self.rows
            return
        self.rows = self._kept_rows
        for name, file in self._files.items():
            file.seek(self.rows * (1 if name.endswith(" null") else _width(name)))
            file.truncate()

    def finish(self) -> None:
        for name, file in self._files.items():  # a seek at the end has not made the file longer
            file.truncate(self.rows * (1 if name.endswith(" null") else _width(name)))
        self.close()
        for c in STEPS.columns:
            nulls = self.folder / f"{c.name}.null"
            if c.name in self._with_nulls:
                _write_bits(nulls, self.folder / f"{c.name}.valid")
            nulls.unlink(missing_ok=True)

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def _append(file: BinaryIO, values: np.ndarray) -> None:
    """Write numbers at the end of a file; zeros are passed over, and read as zeros all the same."""
    raw = np.ascontiguousarray(values).view(np.uint8)
    if raw.any():
        file.write(raw.data)
    else:
        file.seek(len(raw), os.SEEK_CUR)


def _write_bits(nulls: Path, valid: Path) -> None:
    """A bit for each byte of `nulls`, set where the byte is 0."""
    with nulls.open("rb") as source, valid.open("wb") as sink:
        while piece := source.read(_PIECE):  # a multiple of 8, but for the last
            bits = np.packbits(np.frombuffer(piece, np.uint8) == 0, bitorder="little")
            sink.write(bits.tobytes())


def _width(column: str) -> int:
    return int(STEPS.column(column).type.bit_width) // 8


class MappedTables:
    """The kept tables of one recording, handed out as if they had been read, and loaded as they are
    looked at. folder, facts: as from `kept_facts`.

    Raises OSError, ValueError, KeyError or TypeError where a file is gone or cut off.
    """

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self.folder = folder
        self._num_steps = int(facts["num_steps"])
        self._files = {name: int(n) for name, n in facts["files"].items()}
        self._frames = {
            spec.name: self._steps(spec) if spec is STEPS else self._rows(spec)
            for spec in map(table, MAPPED)
        }

    def frame(self, name: str) -> pl.DataFrame | None:
        """The table; None for one that is not kept."""
        return self._frames.get(name)

    def _steps(self, spec: Table) -> pl.DataFrame:
        columns = [
            pl.Series(c.name, self._column(c.name, c.type), polars_type(c))
            for c in spec.columns
        ]
        return pl.DataFrame(columns)

    def _column(self, name: str, type_: pa.DataType) -> pa.Array:
        rows = self._num_steps
        if not rows:
            return pa.array([], type_)
        path = self.folder / "steps" / f"{name}.bin"
        values = np.memmap(path, np.uint8, "r", shape=(rows * _width(name),))
        valid = path.with_suffix(".valid")
        bits = (
            np.memmap(valid, np.uint8, "r", shape=(-(-rows // 8),)) if valid.exists() else None
        )
        mask = None if bits is None else pa.py_buffer(np.asarray(bits))
        return pa.Array.from_buffers(type_, rows, [mask, pa.py_buffer(np.asarray(values))])

    def _rows(self, spec: Table) -> pl.DataFrame:
        empty = pl.DataFrame(schema={c.name: polars_type(c) for c in spec.columns})
        parts = []
        for number in range(self._files.get(spec.name, 0)):
            found = map_rows(self.folder / spec.name / f"{number:05d}.arrow")
            parts.append(found.cast(empty.schema))
        return pl.concat([empty, *parts], rechunk=False)


def write_rows(path: Path, frame: pl.DataFrame) -> None:
    """Write a table so that `map_rows` can hand it out."""
    rows = frame.to_arrow(compat_level=pl.CompatLevel.newest())
    with pa.ipc.new_file(str(path), rows.schema) as file:
        file.write_table(rows)


def map_rows(path: Path) -> pl.DataFrame:
    """The table of an Arrow file, loaded as it is looked at. Raises OSError or ValueError."""
    rows = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    return pl.DataFrame(pl.from_arrow(rows, rechunk=False))


def kept_facts(folder: Path) -> dict[str, Any] | None:
    """What `TableWriter.finish` noted; None where nothing is kept there, or in another layout."""
    try:
        facts = json.loads((folder / _CHECKED).read_text("utf-8"))
        return facts if facts["layout"] == LAYOUT else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def set_aside(folder: Path) -> None:
    """Remove a kept folder. It is renamed first, so that nobody opens half of it."""
    gone = _temporary(folder)
    try:
        os.rename(folder, gone)
    except OSError:
        return  # gone already, or in use where open files cannot be moved
    shutil.rmtree(gone, ignore_errors=True)


def _temporary(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}-{os.getpid()}-{time.monotonic_ns()}")


@contextmanager
def _disk(label: str, root: Path) -> Iterator[None]:
    """Turn a disk that does not take it into a FileError."""
    try:
        yield
    except OSError as error:
        raise FileError(
            label,
            "",
            f"its tables could not be stored ({error.strerror or error})",
            f"Make room in {root}, or set KV_REPLAY_CACHE to a folder that has some.",
        ) from error
