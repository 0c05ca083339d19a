"""A Recording: what a run did, opened from a folder or a zip and checked against the contract.

It knows which files make up a recording, which version they may have and how tables are handed
out as polars frames. The checks of rows are in `recording_laws.py`, files and zips in
`recording_files.py`; what an engine does and what the numbers mean is known elsewhere.

    with open_recording(Path("runs/swap")) as recording:
        print(recording.meta.pool_blocks, recording.steps["used_blocks"].max())
"""

from __future__ import annotations

import json
import tempfile
import weakref
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from traces.errors import RecordingError
from traces.recording_files import (
    COMPLETED,
    Closing,
    find_root,
    list_parts,
    read_closed,
    remove_tree,
    unzip_recording,
    write_recording,
    zip_recording,
)
from traces.recording_laws import (
    EventLaws,
    Place,
    RequestLaws,
    StepLaws,
    check_columns,
    check_values,
    polars_type,
)
from traces.recording_salvage import rebuild_requests
from traces.schema import (
    BLOCKS,
    EVENTS,
    METADATA_KEY,
    READABLE_VERSIONS,
    REQUESTS,
    STEPS,
    TABLES,
    Table,
    table,
)

__all__ = ["Meta", "Recording", "open_recording", "write_recording", "zip_recording"]

BATCH_ROWS = 131_072
_DAMAGE = (
    pa.ArrowException,
    OSError,
    UnicodeDecodeError,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)
MAX_ROWS = 500_000_000  # a few kilobytes of Parquet can claim any number of rows


class Meta(dict[str, Any]):
    """A recording's metadata document, with names for what readers ask for most.

    It is the JSON object itself (`meta["seed"]`); the properties give None where a writer did not
    say. Block counts leave the null block out.
    """

    def _section(self, name: str) -> Mapping[str, Any]:
        value = self.get(name)
        return value if isinstance(value, Mapping) else {}

    @property
    def schema_version(self) -> str:
        return str(self.get("schema_version", ""))

    @property
    def executor(self) -> str | None:
        """ "simulator", "torch" or "vllm"."""
        return self.get("executor")

    @property
    def clock(self) -> str | None:
        """ "modelled", "measured" or "step"."""
        return self.get("clock")

    @property
    def settings(self) -> Mapping[str, Any]:
        """Engine settings by vLLM's names."""
        return self._section("settings")

    @property
    def pool_blocks(self) -> int | None:
        """Usable GPU blocks: vLLM's num_gpu_blocks less the null block."""
        if isinstance(self.get("pool_blocks"), int):
            return int(self["pool_blocks"])
        total = self.settings.get("num_gpu_blocks")
        return int(total) - 1 if isinstance(total, int) else None

    @property
    def host_pool_blocks(self) -> int | None:
        return self.get("host_pool_blocks")

    @property
    def block_size_tokens(self) -> int | None:
        return self.settings.get("block_size")

    @property
    def block_bytes(self) -> int | None:
        """KV bytes of one block, all layers."""
        return self.get("block_bytes")

    @property
    def preemption_mode(self) -> str | None:
        """ "recompute", "swap", ...: the mode that was asked for."""
        return self.settings.get("preemption_mode")

    @property
    def policy(self) -> str | None:
        return self.settings.get("policy")

    @property
    def workload(self) -> Mapping[str, Any]:
        """name, format, digest, num_requests, notes."""
        return self._section("workload")

    @property
    def workload_digest(self) -> str | None:
        return self.workload.get("digest")

    @property
    def seed(self) -> int | None:
        return self.get("seed")

    @property
    def software(self) -> Mapping[str, Any]:
        return self._section("software")


@dataclass(frozen=True, eq=False)
class Recording:
    """An opened and checked recording; tables are read when they are asked for.

    label: file or upload name for messages and legends; root: folder that holds the tables;
    complete: the writer closed it; status: how the run ended ("completed", "cancelled", "stalled",
    ..., "unclosed"); rows: table -> rows; notes: sentences for the user;
    reconstructed_requests: rows of `requests` that were derived from events, as the writer was
    stopped before it wrote them (their unknown values are null).
    """

    label: str
    root: Path
    meta: Meta
    complete: bool
    status: str
    rows: Mapping[str, int]
    notes: tuple[str, ...]
    parts: Mapping[str, tuple[Path, ...]] = field(repr=False)
    reconstructed_requests: int = 0

    def scan(self, name: str) -> pl.LazyFrame:
        """Lazy frame of one table, columns of the contract only, text of closed sets as Enum.

        For `requests` of an unclosed recording it holds the written rows only. Raises KeyError.
        """
        spec = table(name)
        columns = [pl.col(c.name).cast(polars_type(c)) for c in spec.columns]
        parts = [
            pl.scan_parquet(p, glob=False).select(columns) for p in self.parts.get(name, ())
        ]
        if not parts:
            return pl.LazyFrame(schema={c.name: polars_type(c) for c in spec.columns})
        return pl.concat(parts)

    @cached_property
    def steps(self) -> pl.DataFrame:
        """One row a step, in order of steps."""
        return self.scan("steps").collect()

    @cached_property
    def events(self) -> pl.DataFrame:
        """One row an event, in the order in which they were decided."""
        return self.scan("events").collect()

    @cached_property
    def requests(self) -> pl.DataFrame:
        """One row a request; reconstructed ones come last."""
        written = self.scan("requests").collect()
        if not self.reconstructed_requests:
            return written
        return pl.concat(
            [written, rebuild_requests(self.events, self.steps, written["request_id"])]
        )

    @cached_property
    def blocks(self) -> pl.DataFrame | None:
        """Ownership intervals of blocks, or None where they were not recorded."""
        return self.scan("blocks").collect() if "blocks" in self.rows else None

    @property
    def pool_blocks(self) -> int:
        """Usable GPU blocks, from the metadata or, where it does not say, from the first step."""
        if self.meta.pool_blocks is not None:
            return self.meta.pool_blocks
        first = (
            self.scan("steps")
            .select(pl.col("used_blocks") + pl.col("free_blocks"))
            .head(1)
            .collect()
        )
        return int(first.item()) if first.height else 0

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Delete files that were unpacked from a zip; a folder is left alone."""
        unpacked = self.__dict__.get("_unpacked")
        if unpacked is not None:
            unpacked()


def open_recording(path: str | Path, name: str | None = None) -> Recording:
    """Open a recording's folder or zip and check every row of it, batch by batch.

    name: what to call it in messages and legends, by default the file name. An unclosed recording
    opens with a note. Raises RecordingError naming part, column, row, fault and remedy.
    """
    path = Path(path)
    label = name or path.resolve().name
    if path.is_dir():
        return _open_folder(find_root(path, label), label)
    if not path.exists():
        raise RecordingError(label, "", "there is no such file or folder", "Check the path.")
    if not zipfile.is_zipfile(path):
        raise RecordingError(
            label, "", _not_a_zip(path), "Give the folder of a recording, or a zip of it."
        )
    folder = tempfile.mkdtemp(prefix="kv-replay-")
    try:
        unzip_recording(path, Path(folder), label)
        recording = _open_folder(Path(folder), label)
    except BaseException:
        remove_tree(folder)
        raise
    recording.__dict__["_unpacked"] = weakref.finalize(recording, remove_tree, folder)
    return recording


def _not_a_zip(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(4)
    if not start:
        return "the file is empty"
    if start == b"PAR1":
        return "this is a single Parquet file, and a recording is a folder of them"
    if start == b"PK\x03\x04":
        return "the zip is cut off (its directory at the end is missing)"
    return f"the file is neither a folder nor a zip (it starts with {start!r})"


def _to_polars(batch: pa.RecordBatch, spec: Table) -> pl.DataFrame:
    """The batch as a frame. Raises pa.ArrowInvalid for damage that only full validation finds.

    Field metadata is left behind: it may be damaged too, and polars panics over that.
    """
    batch.validate(full=True)
    return pl.DataFrame({name: pl.Series(name, batch.column(name)) for name in spec.names})


class _Law(Protocol):
    def check(self, frame: pl.DataFrame, place: Place) -> None: ...


@dataclass
class _Reading:
    """What is gathered while the tables of one recording are checked."""

    root: Path
    label: str
    closed: Closing | None
    meta: Meta
    notes: list[str]
    rows: dict[str, int] = field(default_factory=dict)
    parts: dict[str, tuple[Path, ...]] = field(default_factory=dict)

    def read(self, spec: Table, law: _Law | None) -> None:
        """Check all parts of one table; sets rows and parts of it."""
        found, notes = list_parts(self.root, spec, self.label)
        self.notes += notes
        kept: list[Path] = []
        total = 0
        for part in found:
            try:
                total += self._read_part(part, spec, law)
            except _DAMAGE as error:
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

    def _read_part(self, part: Path, spec: Table, law: _Law | None) -> int:
        """Check one part batch by batch; returns its rows."""
        place = Place(part.name, self.label, spec.name)
        with pq.ParquetFile(part, page_checksum_verification=True) as file:
            _check_same_run(_part_meta(file, place), self.meta, place)
            extra = check_columns(file.schema_arrow, spec, place)
            pl.scan_parquet(
                part, glob=False
            ).collect_schema()  # tables are handed out by polars, which must agree
            note = f"Table {spec.name} has columns that this version does not know: {', '.join(extra)}."
            if extra and note not in self.notes:
                self.notes.append(note)
            if file.metadata.num_rows > MAX_ROWS:
                raise place.error(
                    "",
                    None,
                    f"{file.metadata.num_rows:,} rows are more than {MAX_ROWS:,}",
                    "Record a shorter run.",
                )
            offset = 0
            for batch in file.iter_batches(BATCH_ROWS, columns=spec.names):
                frame = _to_polars(batch, spec)
                here = Place(part.name, self.label, spec.name, offset)
                check_values(frame, spec, here)
                if law is not None:
                    law.check(frame, here)
                offset += frame.height
        return offset

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


def _open_folder(root: Path, label: str) -> Recording:
    closed, open_note = read_closed(root)
    meta = _first_meta(root, label)
    reading = _Reading(root, label, closed, meta, [open_note] if open_note else [])
    status = closed.status if closed is not None else "unclosed"
    if status not in (COMPLETED, "unclosed"):
        reading.notes.append(
            f"The run did not complete ({status}): requests that it did not get to are unfinished."
        )
    events, requests = EventLaws(), RequestLaws()
    if meta.pool_blocks is None:
        reading.notes.append(
            "The metadata does not state the pool's size; it was taken from the first step."
        )
    reading.read(STEPS, StepLaws(meta.pool_blocks))
    reading.read(EVENTS, events)
    reading.read(REQUESTS, requests)
    reading.read(BLOCKS, None)
    ids = requests.check_unique(reading.place(REQUESTS))
    lost = 0
    if closed is not None:
        events.check_known(ids, reading.place(EVENTS))
    elif not reading.rows.get("steps"):
        raise RecordingError(
            label,
            "table steps",
            "no step can be read",
            "The writer was stopped too early: run it again.",
        )
    else:
        lost = events.count_unknown(ids)
    if lost:
        reading.notes.append(
            f"{lost:,} requests were never written and were derived from events; what events do not say is missing."
        )
    return Recording(
        label,
        root,
        meta,
        closed is not None,
        status,
        dict(reading.rows),
        tuple(reading.notes),
        dict(reading.parts),
        lost,
    )


def _first_meta(root: Path, label: str) -> Meta:
    """Metadata of the first part that can be read, its version checked. Raises RecordingError."""
    last: BaseException | None = None
    for spec in TABLES:
        for part in list_parts(root, spec, label)[0]:
            try:
                with pq.ParquetFile(part) as file:
                    return _part_meta(file, Place(part.name, label, spec.name))
            except _DAMAGE as error:
                last = error
    fault = "none of its Parquet files can be read" if last else "it holds no Parquet file"
    raise RecordingError(
        label, "", fault, "Copy or upload the recording again, or record the run again."
    ) from last


def _part_meta(file: pq.ParquetFile, place: Place) -> Meta:
    """The metadata document of a part, its version checked. Raises RecordingError."""
    raw = (file.schema_arrow.metadata or {}).get(METADATA_KEY)
    if raw is None:
        raise place.error(
            "",
            None,
            f"the file has no metadata under {METADATA_KEY.decode()!r}",
            "This Parquet file was not written by KV Replay.",
        )
    try:
        meta = json.loads(raw)
    except ValueError as error:
        raise place.error("", None, f"the metadata is no JSON ({error})") from error
    if not isinstance(meta, dict):
        raise place.error("", None, "the metadata is no JSON object")
    version = str(meta.get("schema_version"))
    if version not in READABLE_VERSIONS:
        raise place.error(
            "",
            None,
            f"the recording has schema version {version}, and this version of KV Replay reads {', '.join(READABLE_VERSIONS)}",
            "Record the run again with this version, or open it with the one that wrote it.",
        )
    return Meta(meta)


def _check_same_run(found: Meta, first: Meta, place: Place) -> None:
    """Raise where a part's metadata belongs to another run than the first part's."""
    for key in ("executor", "settings", "workload", "seed", "pool_blocks"):
        if found.get(key) != first.get(key):
            raise place.error(
                "",
                None,
                f"the part belongs to another run: its {key} differs from that of the first part",
                "Remove the folder and record the run again.",
            )
