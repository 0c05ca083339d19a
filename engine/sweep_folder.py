"""The folder of a sweep: which sweep it holds, the cells that ended, and the table of them.

`sweep.json` says which sweep it is, `cells.jsonl` has a line for each cell that ended, appended by one
process alone (`.lock`), `sweep.parquet` is the table, replaced as a whole, `recordings/` what was kept.
A line that was being written when its process died is passed over; its cell runs again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import polars as pl

from engine.sweep_cell import engine_stamp
from engine.sweep_spec import Choice, SweepSpec
from traces.errors import SettingsError
from traces.sweep_schema import (
    CELL,
    FAILED,
    FIGURE,
    METADATA_KEY,
    SWEEP_VERSION,
    TABLE_FILE,
)

SPEC_FILE, CELLS_FILE, LOCK_FILE = "sweep.json", "cells.jsonl", ".lock"
RECORDINGS = "recordings"
_MOST_OF_PATH = 200  # characters, in a sentence
_OURS = (SPEC_FILE, CELLS_FILE, LOCK_FILE, TABLE_FILE, RECORDINGS)


@dataclass(frozen=True)
class SweepFolder:
    """A folder that this process may write. ended: cell -> its line, of an earlier start; notes: what
    was found in it."""

    path: Path
    ended: Mapping[str, dict[str, Any]]
    notes: tuple[str, ...] = ()

    @property
    def table(self) -> Path:
        return self.path / TABLE_FILE

    def recording_of(self, cell: str) -> Path:
        return self.path / RECORDINGS / cell


@contextlib.contextmanager
def open_folder(path: str | Path, spec: SweepSpec, *, extend: bool = False) -> Iterator[SweepFolder]:  # fmt: skip
    """Make the folder, or go on with the same sweep in it; nobody else writes it until the end.

    extend: take what another sweep in it has in common with this one. Raises SettingsError where the
    folder holds something else, cannot be written, or is being written.
    """
    path = Path(path)
    _prepare(path)
    with _locked(path):
        notes = _claim(path, spec, extend)
        yield SweepFolder(path, _read_ended(path / CELLS_FILE), notes)


def _prepare(path: Path) -> None:
    try:
        if path.is_file():
            raise SettingsError(
                f"{path}: a file of that name exists. Give another --out directory."
            )
        path.mkdir(parents=True, exist_ok=True)
        found = sorted(p.name for p in path.iterdir())
        if (foreign := [n for n in found if n not in _OURS and not n.startswith(".")]) and (
            SPEC_FILE not in found
        ):
            raise SettingsError(
                f"{path}: the directory holds {foreign[0]!r} and no sweep. Give another --out directory."
            )
        for name in (TABLE_FILE, CELLS_FILE, SPEC_FILE):
            if (path / name).is_dir():
                raise SettingsError(
                    f"{path}: {name} is a directory there, not a file of a sweep. Give another --out directory."
                )
        probe = path / ".writable"
        probe.touch()
        probe.unlink()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SettingsError(
            f"{str(path)[:_MOST_OF_PATH]!r}: cannot write there ({why}). Give another --out directory."
        ) from None


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the folder's lock, where the system has such. It ends with the process, however that ends."""
    with (path / LOCK_FILE).open("a") as handle:
        try:
            import fcntl
        except ImportError:  # Windows
            yield
            return
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise SettingsError(
                f"{path}: another process is writing this sweep. Wait until it has ended, or give another --out directory."
            ) from None
        yield


def _claim(path: Path, spec: SweepSpec, extend: bool) -> tuple[str, ...]:
    """Say in the folder which sweep it holds; returns what the user should know of what it held."""
    notes = []
    document = json.loads(json.dumps(spec.document(), default=str))
    held = _read_document(path / SPEC_FILE)
    if held is not None and _nameless(held.get("sweep")) != _nameless(document):
        if not extend:
            raise SettingsError(
                f"{path}: the directory holds another sweep ({_difference(_nameless(held.get('sweep')), _nameless(document))}). "
                "Give another --out directory, or --extend to go on in it: cells that both have are not run again."
            )
        notes.append("the directory held another sweep: cells that both have are not run again")
    if held is not None and held.get("engine") != engine_stamp():
        notes.append("the engine has changed since this sweep began: all cells run again")
    written = {"version": SWEEP_VERSION, "engine": engine_stamp(), "sweep": document}
    _write(path / SPEC_FILE, (json.dumps(written, indent=1) + "\n").encode())
    return tuple(notes)


def _nameless(document: Any) -> dict[str, Any]:
    found = document if isinstance(document, Mapping) else {}
    return {k: v for k, v in found.items() if k != "name"}


def _read_document(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise SettingsError(
            f"{path}: is damaged, so what the directory holds is not known. Give another --out directory."
        )
    return found


def _difference(held: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """In what two sweeps differ: 'its axes are others'."""
    parts = [k for k in asked if held.get(k) != asked[k]]
    return f"its {' and '.join(parts)} {'is another' if len(parts) == 1 else 'are others'}"


def _write(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


# ---- cells that ended --------------------------------------------------------------------------------


def _read_ended(path: Path) -> dict[str, dict[str, Any]]:
    """Cell -> its last line that is whole."""
    ended: dict[str, dict[str, Any]] = {}
    if not path.exists():
        return ended
    with path.open("rb") as handle:
        for line in handle:
            try:
                row = json.loads(line)
                ended[str(row["cell"])] = row
            except (ValueError, KeyError, TypeError):
                continue  # its process died while it wrote the line
    return ended


class Journal:
    """Appends a line for each cell that ended, and keeps what a table needs of them."""

    def __init__(self, folder: SweepFolder) -> None:
        self.ended = dict(folder.ended)
        self._file: IO[bytes] = (folder.path / CELLS_FILE).open("ab")
        if self._file.tell():
            self._file.write(b"\n")  # ends a line that was cut off

    def add(self, row: Mapping[str, Any]) -> None:
        """Write one cell's line through to the system."""
        self.ended[str(row["cell"])] = dict(row)
        self._file.write(json.dumps(row).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def is_done(row: Mapping[str, Any] | None) -> bool:
    """Whether a cell need not run again: it ended, or was refused; a failed one runs again."""
    return row is not None and row.get("status") != FAILED


# ---- the table ---------------------------------------------------------------------------------------


def write_table(
    folder: SweepFolder,
    spec: SweepSpec,
    cells: Iterable[tuple[str, Choice]],
    ended: Mapping[str, Mapping[str, Any]],
) -> int:
    """Replace the table by one of all cells that ended, in the order of the sweep; returns its rows."""
    rows = [
        {"trace": choice.trace.name, "seed": choice.seed, **choice.values, **ended[cell]}
        for cell, choice in cells
        if cell in ended
    ]
    frame = make_frame(rows, spec.varied)
    document = {
        "version": SWEEP_VERSION,
        "engine": engine_stamp(),
        "num_cells": spec.num_cells,
        "varied": list(spec.varied),
        "sweep": spec.document(),
    }
    temporary = folder.table.with_name(TABLE_FILE + ".tmp")
    metadata = {METADATA_KEY: json.dumps(document, default=str)}
    frame.write_parquet(temporary, compression="zstd", metadata=metadata)
    os.replace(temporary, folder.table)
    return frame.height


def make_frame(rows: Sequence[Mapping[str, Any]], varied: Sequence[str]) -> pl.DataFrame:
    """Rows of cells with the columns of the contract, in its order. varied: names of settings."""
    columns: list[pl.Series] = []
    schema = [*CELL.items(), *((n, None) for n in varied), *((f.name, f.dtype) for f in FIGURE.values())]  # fmt: skip
    for name, dtype in schema:
        values = [row.get(name) for row in rows]
        columns.append(
            pl.Series(name, values, dtype=dtype) if dtype else _setting(name, values)
        )
    return pl.DataFrame(columns)


def _setting(name: str, values: Sequence[Any]) -> pl.Series:
    """A setting's column: of numbers, of switches, or else of text; None stays null."""
    kinds = {bool if isinstance(v, bool) else type(v) for v in values if v is not None}
    if kinds <= {bool}:
        return pl.Series(name, values, dtype=pl.Boolean)
    if kinds <= {int}:
        return pl.Series(name, values, dtype=pl.Int64)
    if kinds <= {int, float}:
        return pl.Series(
            name, [None if v is None else float(v) for v in values], dtype=pl.Float64
        )
    return pl.Series(name, [v if v is None or isinstance(v, str) else json.dumps(v, default=dict) for v in values], dtype=pl.String)  # fmt: skip
