"""Tables of a checked recording as files that are mapped into memory instead of read into it.

A long recording is checked once, batch by batch, and each batch that passed is written down
(`table_writer`): the columns of `steps` as plain numbers, one file each, `events` and `requests` as
Arrow files. Opened again, nothing is checked, nothing is decoded, and only what is looked at is
loaded, by the system's page cache. It knows layouts and no laws; which folder it is, and when it is
forgotten, is known by its caller (`Keep`).

    checked.json         what the check found: rows, notes, status; written last
    steps/<column>.bin   little-endian numbers of the contract's type; stretches of zeros take no disk
    steps/t_start_s.bin  has one number more, the end of the last step
    steps/<column>.valid one bit a row, only where the column holds a null
    steps/<column>.groups what is known of its groups (`column_groups`), of a column that cannot be null
    events/00000.arrow   one file a stretch of rows
    recording/           what a zip held
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from traces.column_groups import Groups, group_size
from traces.recording_laws import polars_type
from traces.schema import STEPS, Table, table

LAYOUT = 2  # another one is written anew
LONG_ROWS = 200_000  # of all tables together; shorter recordings are read into memory
MAPPED = ("steps", "events", "requests")
UNPACKED = "recording"
CHECKED = "checked.json"


@dataclass(frozen=True)
class Keep:
    """Where the tables of a long recording are to be kept. folder: of this recording and no other,
    its parent is there; long_rows: shorter ones are not kept; progress: is told the rows that were
    checked and all there are."""

    folder: Path
    long_rows: int = LONG_ROWS
    progress: Callable[[int, int], object] | None = None


def bytes_a_row(column: str) -> int:
    """Of a column of `steps`."""
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
        self._frames = {STEPS.name: self._steps(STEPS)}
        self._mapped = {name: self._open(name) for name in MAPPED if name != STEPS.name}

    def frame(self, name: str) -> pl.DataFrame | None:
        """The table; None for one that is not kept. Events and requests become a frame when they are
        first asked for, which takes a look at all their texts."""
        if name not in self._frames and name in self._mapped:
            self._frames[name] = self._rows(table(name))
        return self._frames.get(name)

    def edges_s(self) -> np.ndarray:
        """Where each step begins, and where the last ends: [steps + 1] in seconds, mapped."""
        if not self._num_steps:
            return np.empty(0)
        path = self.folder / "steps" / "t_start_s.bin"
        return np.asarray(np.memmap(path, np.float64, "r", shape=(self._num_steps + 1,)))

    def groups(self, column: str) -> Groups | None:
        """Of a column of `steps`; None where they are not kept, or of another size."""
        try:
            found = Groups.load(self.folder / "steps" / f"{column}.groups")
        except (OSError, ValueError, KeyError, EOFError):
            return None
        size = group_size(self._num_steps)
        return found if len(found.least) == -(-self._num_steps // size) else None

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
        values = np.memmap(path, np.uint8, "r", shape=(rows * bytes_a_row(name),))
        valid = path.with_suffix(".valid")
        bits = (
            np.memmap(valid, np.uint8, "r", shape=(-(-rows // 8),)) if valid.exists() else None
        )
        mask = None if bits is None else pa.py_buffer(np.asarray(bits))
        return pa.Array.from_buffers(type_, rows, [mask, pa.py_buffer(np.asarray(values))])

    def _open(self, name: str) -> list[pa.ipc.RecordBatchFileReader]:
        """The table's files, mapped: they can be read though somebody removes them."""
        folder = self.folder / name
        return [_mapped(folder / f"{i:05d}.arrow") for i in range(self._files.get(name, 0))]

    def _rows(self, spec: Table) -> pl.DataFrame:
        empty = pl.DataFrame(schema={c.name: polars_type(c) for c in spec.columns})
        parts = [_frame(file).cast(empty.schema) for file in self._mapped[spec.name]]
        return pl.concat([empty, *parts], rechunk=False)


def write_rows(path: Path, frame: pl.DataFrame) -> None:
    """Write a table so that `map_rows` can hand it out."""
    rows = frame.to_arrow(compat_level=pl.CompatLevel.newest())
    with pa.ipc.new_file(str(path), rows.schema) as file:
        file.write_table(rows)


def map_rows(path: Path) -> pl.DataFrame:
    """The table of an Arrow file, loaded as it is looked at. Raises OSError or ValueError."""
    return _frame(_mapped(path))


def _mapped(path: Path) -> pa.ipc.RecordBatchFileReader:
    return pa.ipc.open_file(pa.memory_map(str(path)))


def _frame(file: pa.ipc.RecordBatchFileReader) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(file.read_all(), rechunk=False))


def kept_facts(folder: Path) -> dict[str, Any] | None:
    """What `TableWriter` noted; None where nothing is kept there, or in another layout."""
    try:
        facts = json.loads((folder / CHECKED).read_text("utf-8"))
        return facts if facts["layout"] == LAYOUT else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def set_aside(folder: Path) -> None:
    """Remove a kept folder. It is renamed first, so that nobody opens half of it."""
    gone = temporary(folder)
    try:
        os.rename(folder, gone)
    except OSError:
        return  # gone already, or in use where open files cannot be moved
    shutil.rmtree(gone, ignore_errors=True)


def temporary(folder: Path) -> Path:
    """Another name beside it, which nobody else has."""
    return folder.with_name(f".{folder.name}-{os.getpid()}-{time.monotonic_ns()}")
