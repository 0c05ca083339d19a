"""The checks that telemetry must pass, in frames and in Parquet parts read batch by batch.

It knows the tables of `telemetry_schema.py`, which columns an older writer may lack, and which
damage a killed writer explains. It repairs nothing and knows no engine.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from traces.errors import RecordingError
from traces.recording_files import COMPLETED, read_closed
from traces.recording_laws import TIME_TOLERANCE_S, Place, check_values, first_true
from traces.recording_meta import (
    Meta,
    check_same_run,
    first_meta,
    part_document,
    writer_notes,
)
from traces.recording_reading import PartReading, check_num_rows
from traces.schema import Column, Table
from traces.telemetry_schema import (
    KIND,
    READABLE_TELEMETRY_VERSIONS,
    SAMPLES,
    TELEMETRY_TABLES,
    VALUE_NAMES,
)

BATCH_ROWS = 65_536
MAX_FRAC = 10.0  # a usage may pass 1 where an engine over-commits; 97.3 is a percentage
SAME_RUN = ("engine", "recorded_by", "sampling", "start_unix_s", "model")
_REMEDY = "Record it again, or mend the tool that wrote this file."


def polars_type(column: Column) -> Any:
    """The polars type in which a column is handed out."""
    plain = {
        pa.int32(): pl.Int32(),
        pa.int64(): pl.Int64(),
        pa.float64(): pl.Float64(),
        pa.list_(pa.string()): pl.List(pl.String),
    }
    return plain.get(column.type, pl.String())


def polars_schema(spec: Table) -> dict[str, Any]:
    """Column -> polars type of a table."""
    return {c.name: polars_type(c) for c in spec.columns}


@dataclass
class SampleLaws:
    """Laws of `samples` over all batches: order, time per rank, shares, names of inferred values."""

    last_sample: int = -1
    last_s: dict[int | None, float] = field(default_factory=dict)

    def check(self, frame: pl.DataFrame, place: Place) -> None:
        """Raise RecordingError at the first row that breaks a law."""
        if frame.is_empty():
            return
        sample = frame["sample"]
        before = sample.shift(1, fill_value=self.last_sample)
        row = first_true(sample <= before)
        if row is not None:
            fault = f"sample {sample[row]} follows sample {before[row]}: samples must increase"
            raise place.error("sample", row, fault)
        self.last_sample = int(sample[-1])
        self._check_time(frame, place)
        for name in VALUE_NAMES:
            if name.endswith("_frac"):
                row = first_true(frame[name] > MAX_FRAC)
                if row is not None:
                    fault = f"{frame[name][row]!r} is no share: shares go from 0 to 1"
                    raise place.error(name, row, fault)
        _check_inferred(frame, place)

    def _check_time(self, frame: pl.DataFrame, place: Place) -> None:
        for (rank,), rows in (
            frame.with_row_index("at")
            .drop_nulls("t_s")
            .group_by("engine_rank", maintain_order=True)
        ):
            t_s = rows["t_s"]
            before = t_s.shift(1, fill_value=self.last_s.get(rank, 0.0))
            row = first_true(t_s < before - TIME_TOLERANCE_S)
            if row is not None:
                fault = f"{t_s[row]!r} s follows {before[row]!r} s of the same rank: the clock went back"
                raise place.error("t_s", int(rows["at"][row]), fault)
            self.last_s[rank] = float(t_s[-1])


def _check_inferred(frame: pl.DataFrame, place: Place) -> None:
    """Raise where `inferred` names what is no value, or a value that is missing."""
    named = (
        frame.select("inferred")
        .with_row_index("at")
        .explode("inferred")
        .drop_nulls("inferred")
        .unique(maintain_order=True)
    )
    for (name,), rows in named.group_by("inferred", maintain_order=True):
        at = rows["at"]
        if name not in VALUE_NAMES:
            raise place.error("inferred", int(at[0]), f"{name!r} is no value of a sample")
        row = first_true(frame[str(name)].gather(at).is_null())
        if row is not None:
            fault = f"{name} is called inferred, and has no value"
            raise place.error("inferred", int(at[row]), fault)


@dataclass
class TelemetryReading(PartReading):
    """The checking of a telemetry folder's tables."""

    frames: dict[str, pl.LazyFrame] = field(default_factory=dict)

    def read(self, spec: Table) -> None:
        """Check all parts of one table; sets rows, parts and frame of it."""
        laws = SampleLaws() if spec is SAMPLES else None
        self.read_parts(spec, lambda part: self._read_part(part, spec, laws))
        if kept := self.parts.get(spec.name):
            self.frames[spec.name] = pl.concat([_scan_part(p, spec) for p in kept])

    def _read_part(self, part: Path, spec: Table, laws: SampleLaws | None) -> int:
        place = Place(part.name, self.label, spec.name)
        with pq.ParquetFile(part, page_checksum_verification=True) as file:
            meta = _part_meta(file, place)
            check_same_run(meta, self.meta, place, SAME_RUN)
            self.last_meta = meta
            present = _present_columns(file.schema_arrow, spec, place)
            # polars hands the tables out and must agree
            _scan_part(part, spec).collect_schema()
            check_num_rows(file, place)
            offset = 0
            for batch in file.iter_batches(BATCH_ROWS, columns=present):
                batch.validate(full=True)
                frame = pl.DataFrame({n: pl.Series(n, batch.column(n)) for n in present})
                frame = _filled(frame.lazy(), present, spec).collect()
                here = Place(part.name, self.label, spec.name, offset)
                check_values(frame, spec, here)
                if laws is not None:
                    laws.check(frame, here)
                offset += frame.height
        return offset


def read_tables(root: Path, label: str) -> TelemetryReading:
    """Read and check all tables of a folder. Raises RecordingError, OSError, ValueError."""
    closed, note = read_closed(root, TELEMETRY_TABLES)
    meta = first_telemetry_meta(root, label)
    read = TelemetryReading(root, label, closed, meta, [note] if note else [])
    if closed is not None and closed.status != COMPLETED:
        read.notes.append(f"The telemetry ends with a note of its writer: {closed.status}.")
    for spec in TELEMETRY_TABLES:
        read.read(spec)
    if not read.rows.get("samples"):
        raise RecordingError(
            label,
            "table samples",
            "no sample can be read",
            "The writer was stopped too early, or the server did nothing: record it again.",
        )
    read.notes += _gaps(read.frames["samples"]) + _lost_requests(read.last_meta)
    notes = read.meta.get("notes")
    read.notes += map(str, notes) if isinstance(notes, list) else []
    return read


def _gaps(samples: pl.LazyFrame) -> list[str]:
    """A note where numbers of samples are not there: dropped, or removed to stay below a disk cap."""
    first, last, count = (
        samples.select(pl.col("sample").min(), pl.col("sample").max().alias("last"), pl.len())
        .collect()
        .row(0)
    )
    notes = []
    if first:
        notes.append(
            f"The first {first:,} samples are not there any more, or were not written."
        )
    if lost := last - first + 1 - count:
        notes.append(
            f"{lost:,} samples between others were lost; counters go on over the gaps."
        )
    return notes


def _lost_requests(meta: Meta) -> list[str]:
    """What a live recorder counted as not recorded; samples count themselves, by their numbers."""
    counts = meta.get("writer")
    if not isinstance(counts, dict):
        return []
    return writer_notes(Meta(writer={k: n for k, n in counts.items() if "steps" not in k}))


def check_frame(frame: pl.DataFrame, spec: Table, label: str) -> pl.DataFrame:
    """The frame with all columns of the table, checked. Raises RecordingError."""
    place = Place(label, label, spec.name)
    unknown = [n for n in frame.columns if n not in spec.names]
    if unknown:
        raise place.error(unknown[0], None, "the table has no such column", _REMEDY)
    _need(frame.columns, spec, place)
    filled = _filled(frame.lazy(), frame.columns, spec).collect()
    check_values(filled, spec, place)
    if spec is SAMPLES:
        SampleLaws().check(filled, place)
    return filled


def _need(present: list[str], spec: Table, place: Place) -> None:
    """Raise where a column is absent that no reader can do without."""
    for column in spec.columns:
        if not column.nullable and column.name not in present:
            found = ", ".join(present) or "none"
            raise place.error(
                column.name, None, f"the column is missing; found {found}", _REMEDY
            )


def _present_columns(found: pa.Schema, spec: Table, place: Place) -> list[str]:
    """The table's columns that a part has; nullable ones may be absent. Raises for wrong types."""
    present = [n for n in spec.names if n in found.names]
    _need(present, spec, place)
    for name in present:
        type_, right = found.field(name).type, spec.column(name).type
        if not _fits(type_, right):
            raise place.error(name, None, f"the type is {type_} and should be {right}", _REMEDY)
    return present


def _fits(found: pa.DataType, expected: pa.DataType) -> bool:
    """Whether a type is the expected one, as any writer may spell it."""
    if pa.types.is_list(expected):
        listed = pa.types.is_list(found) or pa.types.is_large_list(found)
        return bool(listed and _is_text(found.value_type))
    return bool(found == expected or (_is_text(found) and _is_text(expected)))


def _is_text(type_: pa.DataType) -> bool:
    if pa.types.is_dictionary(type_):
        return _is_text(type_.value_type)
    return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))


def _filled(frame: pl.LazyFrame, present: list[str], spec: Table) -> pl.LazyFrame:
    """The frame with the table's columns in order and type, absent ones null."""
    return frame.select(
        pl.col(c.name).cast(polars_type(c))
        if c.name in present
        else pl.lit(None, polars_type(c)).alias(c.name)
        for c in spec.columns
    )


def _scan_part(part: Path, spec: Table) -> pl.LazyFrame:
    frame = pl.scan_parquet(part, glob=False)
    return _filled(frame, frame.collect_schema().names(), spec)


def first_telemetry_meta(root: Path, label: str) -> Meta:
    """Metadata of the first part that can be read, kind and version checked. Raises RecordingError."""
    return first_meta(root, label, TELEMETRY_TABLES, _part_meta)


def _part_meta(file: pq.ParquetFile, place: Place) -> Meta:
    """The metadata document of a part, kind and version checked. Raises RecordingError."""
    meta = part_document(file, place)
    if meta.get("kind") != KIND:
        raise place.error(
            "",
            None,
            f"the metadata says kind {meta.get('kind')!r}, not {KIND!r}",
            "Open it as what it is.",
        )
    version = str(meta.get("telemetry_version"))
    if version not in READABLE_TELEMETRY_VERSIONS:
        raise place.error(
            "",
            None,
            f"the telemetry has version {version}, and this version of KV Replay reads {', '.join(READABLE_TELEMETRY_VERSIONS)}",
            "Record it again with this version, or open it with the one that wrote it.",
        )
    for key in ("missing", "inferred", "engine"):
        if not isinstance(meta.get(key, {}), dict):
            raise place.error("", None, f"the metadata's {key} is no JSON object", _REMEDY)
    return meta
