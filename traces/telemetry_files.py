"""The files of a telemetry recording: found, written, and told from those of other recordings.

It knows the layout that `telemetry_schema.py` describes and needs pyarrow alone, so that a stat
logger can use it inside a server. What the rows mean and how they are handed out is known elsewhere.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from traces.errors import RecordingError
from traces.formats.packed import ZIP_DAMAGE
from traces.paths import is_file, is_folder
from traces.recording_files import COMPLETED, write_closed, write_tables
from traces.schema import METADATA_KEY, STEPS, Table
from traces.telemetry_schema import (
    KIND,
    SAMPLES,
    telemetry_metadata_bytes,
    telemetry_table,
)


def is_telemetry(path: str | Path) -> bool:
    """Whether a folder, or the only folder in it, holds telemetry; or a zip or Parquet part of it."""
    path = Path(path)
    if is_file(path):
        return _is_zip(path) or _is_part(path)
    return is_folder(path) and telemetry_root(path) is not None


def telemetry_root(path: Path) -> Path | None:
    """The folder that holds the tables: `path`, or the only folder in it that does, or None."""
    if has_telemetry_tables(path):
        return path
    try:
        inner = [p for p in sorted(path.iterdir()) if is_folder(p)]
    except OSError:
        return None
    return inner[0] if len(inner) == 1 and has_telemetry_tables(inner[0]) else None


def has_telemetry_tables(path: Path) -> bool:
    """Whether the tables of telemetry, and not of a recording, lie in this very folder."""
    return is_folder(path / SAMPLES.name) and not is_folder(path / STEPS.name)


def _is_zip(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            if file.read(4) != b"PK\x03\x04":
                return False
        with zipfile.ZipFile(path) as archive:
            folders = {p for name in archive.namelist() for p in name.split("/")[:-1]}
    except ZIP_DAMAGE:
        return False
    return SAMPLES.name in folders and STEPS.name not in folders


def _is_part(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            if file.read(4) != b"PAR1":
                return False
        raw = (pq.read_schema(path).metadata or {}).get(METADATA_KEY)
        found = json.loads(raw) if raw is not None else None
    except (pa.ArrowException, OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and found.get("kind") == KIND


def fill_table(spec: Table, columns: Mapping[str, Sequence[Any]], num_rows: int) -> pa.Table:
    """An Arrow table of `spec` from lists of values; nullable columns that are absent are null.

    Raises KeyError for a column that the table lacks or a needed one that is absent, pa.ArrowException
    for values that do not fit.
    """
    unknown = columns.keys() - set(spec.names)
    if unknown:
        raise KeyError(f"{spec.name} has no column {', '.join(sorted(unknown))}")
    arrays = []
    for column in spec.columns:
        if column.name in columns:
            arrays.append(pa.array(columns[column.name], type=column.type))
        elif column.nullable:
            arrays.append(pa.nulls(num_rows, column.type))
        else:
            raise KeyError(f"{spec.name} needs the column {column.name}")
    return pa.Table.from_arrays(arrays, schema=spec.arrow)


def write_telemetry(
    root: Path,
    tables: Mapping[str, pa.Table],
    meta: Mapping[str, Any],
    *,
    rows_per_part: int | None = None,
    closed: bool = True,
    status: str = COMPLETED,
) -> Path:
    """Write whole tables as a telemetry recording; a stat logger streams its own parts.

    rows_per_part: cut tables into parts of so many rows; closed: write closed.json with `status`.
    Returns root.
    """
    specs = {name: telemetry_table(name) for name in tables}
    write_tables(root, specs, tables, telemetry_metadata_bytes(meta), rows_per_part)
    if closed:
        write_closed(root, {name: data.num_rows for name, data in tables.items()}, status)
    return root


def telemetry_folder(path: Path, label: str) -> Path:
    """The folder that holds the tables. Raises RecordingError where there is none."""
    root = telemetry_root(path)
    if root is None:
        raise RecordingError(
            label,
            "",
            "the folder is no telemetry recording",
            "It is a folder with samples/part-00000.parquet and so on, as the stat logger writes it.",
        )
    return root
