"""Telemetry: what a server said from outside, opened from a folder or made by a reader, and checked.

It knows how samples are handed out as polars frames, which value is known, inferred or missing, and
where it was read. Files are in `telemetry_files.py`, checks in `telemetry_laws.py`; what the numbers
mean for a diagnosis is known elsewhere.

    telemetry = open_telemetry("kv-telemetry/api-00")
    print(telemetry.samples["kv_usage_frac"].max(), telemetry.missing)
"""

from __future__ import annotations

import tempfile
import weakref
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from traces.errors import RecordingError
from traces.paths import FOLDER, path_kind
from traces.recording_files import remove_tree, unzip_recording
from traces.recording_reading import one_sentence
from traces.telemetry_files import is_telemetry, telemetry_folder, write_telemetry
from traces.telemetry_laws import check_frame, read_tables
from traces.telemetry_laws import polars_schema as _schema
from traces.telemetry_schema import SAMPLES, TELEMETRY_TABLES, VALUE_NAMES, telemetry_table

__all__ = ["Origin", "Telemetry", "is_telemetry", "make_telemetry", "open_telemetry"]

STATES = ("known", "inferred", "missing")


@dataclass(frozen=True)
class Origin:
    """Where a value was read: source and lines (None where not noted), and how it was derived."""

    source: str | None
    line: int | None
    num_lines: int | None
    note: str | None = None


@dataclass(frozen=True, eq=False)
class Telemetry:
    """Checked telemetry of one server; tables are read when they are asked for.

    label: file or upload name for messages and legends; meta: the metadata document
    (`telemetry_schema.telemetry_metadata`); complete: the writer closed it; status: how it ended;
    rows: table -> rows; notes: sentences for the user; root: its folder, None when a reader made it.
    """

    label: str
    meta: Mapping[str, Any]
    complete: bool
    status: str
    rows: Mapping[str, int]
    notes: tuple[str, ...]
    frames: Mapping[str, pl.LazyFrame] = field(repr=False)
    root: Path | None = None

    def scan(self, name: str) -> pl.LazyFrame:
        """Lazy frame of one table, empty where the source has none. Raises KeyError."""
        spec = telemetry_table(name)
        return self.frames.get(name, pl.LazyFrame(schema=_schema(spec)))

    @cached_property
    def samples(self) -> pl.DataFrame:
        """One row a sample, in order."""
        return self.scan("samples").collect()

    @cached_property
    def finished_requests(self) -> pl.DataFrame | None:
        """One row a request whose end was reported, or None where the source tells of none."""
        return (
            self.scan("finished_requests").collect() if self._has("finished_requests") else None
        )

    def _has(self, name: str) -> bool:
        return name in self.rows

    @cached_property
    def ranks(self) -> tuple[int | None, ...]:
        """Engine ranks that have samples, None for those of no single rank."""
        found = self.scan("samples").select(pl.col("engine_rank").unique()).collect()
        known: list[int | None] = sorted(found["engine_rank"].drop_nulls().to_list())
        return tuple(known + ([None] if found["engine_rank"].null_count() else []))

    @cached_property
    def present(self) -> list[str]:
        """Columns of `samples` that hold at least one value, in the order of the table."""
        filled = self.scan("samples").select(pl.col(*VALUE_NAMES).count()).collect()
        return [n for n in VALUE_NAMES if filled[n].item()]

    @property
    def missing(self) -> dict[str, str]:
        """What no sample says -> why, "" where the source did not say why.

        The names are columns of `samples` without a value, then words for what has no column.
        """
        said = dict(self.meta.get("missing", {}))
        empty = [n for n in VALUE_NAMES if n not in self.present]
        more = {k: v for k, v in said.items() if k not in VALUE_NAMES}
        return {n: str(said.get(n, "")) for n in empty} | more

    def missing_by_reason(self) -> dict[str, list[str]]:
        """Why -> what is missing for it; "" -> what the source did not give a reason for."""
        grouped: dict[str, list[str]] = {}
        for name, why in self.missing.items():
            grouped.setdefault(why, []).append(name)
        return grouped

    @property
    def inferred(self) -> Mapping[str, str]:
        """Columns that hold derived values -> how they were derived."""
        return dict(self.meta.get("inferred", {}))

    def state(self, column: str) -> pl.Series:
        """ "known", "inferred" or "missing" (Enum) for each sample's value. Raises KeyError."""
        _check_value_name(column)
        derived = pl.col("inferred").list.contains(column)
        words = (
            pl.when(pl.col(column).is_null())
            .then(pl.lit("missing"))
            .when(derived)
            .then(pl.lit("inferred"))
            .otherwise(pl.lit("known"))
        )
        return self.samples.select(words.cast(pl.Enum(STATES)).alias(column)).to_series()

    def origin(self, sample: int, column: str) -> Origin | None:
        """Where that value was read, or None for a missing one. Raises KeyError, IndexError."""
        _check_value_name(column)
        row = self.samples.filter(pl.col("sample") == sample)
        if row.is_empty():
            raise IndexError(f"there is no sample {sample}")
        if row[column].item() is None:
            return None
        own = (
            self.scan("origins")
            .filter(pl.col("sample") == sample, pl.col("column") == column)
            .collect()
        )
        at = own if own.height else row
        note = own["note"][0] if own.height else None
        return Origin(at["source"][0], at["line"][0], at["num_lines"][0], note)

    def text(self, origin: Origin) -> list[str]:
        """The lines an origin names, as far as they were kept."""
        if origin.line is None:
            return []
        end = origin.line + (origin.num_lines or 1)
        kept = self.scan("lines").filter(
            pl.col("source").eq_missing(pl.lit(origin.source, pl.String)),
            pl.col("line").is_between(origin.line, end, closed="left"),
        )
        return [str(t) for t in kept.sort("line").collect()["text"]]

    def write(self, root: Path, *, rows_per_part: int | None = None) -> Path:
        """Write it as a telemetry recording into a new or empty folder; returns the folder."""
        tables = {n: self.scan(n).collect().to_arrow() for n in self.rows}
        return write_telemetry(
            root, tables, self.meta, rows_per_part=rows_per_part, status=self.status
        )


def _check_value_name(column: str) -> None:
    if column not in VALUE_NAMES:
        raise KeyError(f"{column!r} is no value of a sample")


def make_telemetry(
    label: str,
    samples: pl.DataFrame,
    meta: Mapping[str, Any],
    *,
    notes: tuple[str, ...] = (),
    **tables: pl.DataFrame,
) -> Telemetry:
    """Telemetry of frames that a reader of logs or metrics made, checked as files are.

    samples: columns of the table in any order; `sample`, `num_ranks` and `inferred` are
    filled in where they are absent, other absent columns are null. tables: frames of the other
    tables by name. Raises RecordingError where a row breaks a law, KeyError for an unknown table.
    """
    frames = {}
    for name, frame in {"samples": samples, **tables}.items():
        spec = telemetry_table(name)
        if spec is SAMPLES:
            frame = _with_defaults(frame)
        frames[name] = check_frame(frame, spec, label)
    rows = {name: frame.height for name, frame in frames.items()}
    lazy = {name: frame.lazy() for name, frame in frames.items()}
    return Telemetry(label, dict(meta), True, "completed", rows, notes, lazy)


def _with_defaults(samples: pl.DataFrame) -> pl.DataFrame:
    defaults = {
        "sample": pl.int_range(pl.len(), dtype=pl.Int64),
        "num_ranks": pl.lit(1, pl.Int32),
        "inferred": pl.lit([], pl.List(pl.String)),
    }
    absent = {k: v.alias(k) for k, v in defaults.items() if k not in samples.columns}
    return samples.with_columns(*absent.values()) if absent else samples


def open_telemetry(path: str | Path, name: str | None = None) -> Telemetry:
    """Open a telemetry recording's folder or zip and check every row of it, batch by batch.

    name: what to call it in messages and legends, by default the folder's name. An unclosed one opens
    with a note. Raises RecordingError naming part, column, row, fault and remedy.
    """
    path = Path(path)
    kind, fault, remedy = path_kind(path)
    label = name or (path.resolve().name if kind else path.name)
    if fault:
        raise RecordingError(label, "", fault, remedy)
    with one_sentence(label):
        if kind == FOLDER:
            return _open_folder(telemetry_folder(path, label), label)
        if zipfile.is_zipfile(path):
            return _open_zip(path, label)
    raise RecordingError(
        label,
        "",
        "this is a single file, and a telemetry recording is a folder of Parquet parts, or a zip of it",
        "Give the folder that holds samples/.",
    )


def _open_zip(path: Path, label: str) -> Telemetry:
    """Unpack into a temporary folder that goes when the telemetry does."""
    folder = tempfile.mkdtemp(prefix="kv-replay-")
    try:
        unzip_recording(path, Path(folder), label, TELEMETRY_TABLES)
        telemetry = _open_folder(Path(folder), label)
    except BaseException:
        remove_tree(folder)
        raise
    weakref.finalize(telemetry, remove_tree, folder)
    return telemetry


def _open_folder(root: Path, label: str) -> Telemetry:
    read = read_tables(root, label)
    return Telemetry(
        label,
        read.meta,
        read.closed is not None,
        read.closed.status if read.closed is not None else "unclosed",
        dict(read.rows),
        tuple(read.notes),
        dict(read.frames),
        root,
    )
