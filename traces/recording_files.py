"""The files of a recording: how a part is written, found, zipped and unzipped.

It knows the layout that `schema.py` describes and nothing about what the rows mean
(`recording_laws.py`) or how they are handed out (`recording.py`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import zipfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from traces.errors import RecordingError
from traces.formats.packed import ZIP_DAMAGE
from traces.paths import is_file, is_folder
from traces.schema import CLOSED_FILE, METADATA_KEY, SCHEMA_VERSION, TABLES, Table, table
from traces.telemetry_schema import SAMPLES

PART_NAME = re.compile(r"part-(\d{5,})\.parquet")
COMPLETED = "completed"  # how a run ended that did all that was asked of it
ROW_GROUP_ROWS = 262_144
MAX_UNZIPPED_BYTES = 8 * 1024**3
EXTRACTING = 2  # members of a zip at a time
MAX_ZIP_MEMBERS = 20_000
MAX_ZIP_RATIO = 200  # Parquet is compressed already: real recordings stay below 10


def metadata_bytes(meta: Mapping[str, Any]) -> bytes:
    """The JSON document of a part's key-value metadata; schema_version is filled in if absent."""
    return json.dumps({"schema_version": SCHEMA_VERSION, **meta}, sort_keys=True).encode()


def write_part(root: Path, spec: Table, number: int, data: pa.Table, metadata: bytes) -> Path:
    """Write one part under a temporary name, then rename it; returns the final path.

    data: columns of the table in any order, cast to the contract's types.
    metadata: as from `metadata_bytes`. Raises pa.ArrowInvalid where a cast would lose something.
    """
    folder = root / spec.name
    folder.mkdir(parents=True, exist_ok=True)
    final = folder / f"part-{number:05d}.parquet"
    temporary = final.with_name(final.name + ".tmp")
    arrow = spec.arrow.with_metadata({METADATA_KEY: metadata})
    columns = data.select(spec.names)
    if columns.schema.types == arrow.types:
        columns = pa.Table.from_arrays(columns.columns, schema=arrow)
    else:  # loads pyarrow.compute, 0.1 s
        columns = columns.cast(arrow)
    pq.write_table(
        columns,
        temporary,
        compression="zstd",
        row_group_size=ROW_GROUP_ROWS,
        write_page_checksum=True,
    )
    os.replace(temporary, final)
    return final


def write_closed(root: Path, rows: Mapping[str, int], status: str = COMPLETED) -> None:
    """Write closed.json, the mark that nothing is missing.

    rows: table name -> rows written; status: how the run ended.
    """
    temporary = root / (CLOSED_FILE + ".tmp")
    temporary.write_text(json.dumps({"status": status, "rows": dict(rows)}) + "\n")
    os.replace(temporary, root / CLOSED_FILE)


def write_recording(
    root: Path,
    tables: Mapping[str, pa.Table],
    meta: Mapping[str, Any],
    *,
    rows_per_part: int | None = None,
    closed: bool = True,
    status: str = COMPLETED,
) -> Path:
    """Write whole tables as a recording; for tests and tools, an engine streams its own parts.

    rows_per_part: cut tables into parts of so many rows; closed: write closed.json with `status`.
    Returns root.
    """
    specs = {name: table(name) for name in tables}
    write_tables(root, specs, tables, metadata_bytes(meta), rows_per_part)
    if closed:
        write_closed(root, {name: data.num_rows for name, data in tables.items()}, status)
    return root


def write_tables(
    root: Path,
    specs: Mapping[str, Table],
    tables: Mapping[str, pa.Table],
    metadata: bytes,
    rows_per_part: int | None,
) -> None:
    """Write whole tables as parts, of so many rows each; an empty table gets an empty part."""
    for name, data in tables.items():
        size = rows_per_part or max(data.num_rows, 1)
        starts = range(0, max(data.num_rows, 1), size)
        for number, start in enumerate(starts):
            write_part(root, specs[name], number, data.slice(start, size), metadata)


def zip_recording(root: Path, out: Path) -> Path:
    """Zip a recording's parts and closed.json (stored: Parquet is compressed). Returns out."""
    temporary = out.with_name(out.name + ".tmp")
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for spec in TABLES:
            for path in sorted((root / spec.name).glob("part-*.parquet")):
                archive.write(path, f"{spec.name}/{path.name}")
        if (root / CLOSED_FILE).exists():
            archive.write(root / CLOSED_FILE, CLOSED_FILE)
    os.replace(temporary, out)
    return out


def unzip_recording(
    archive_path: Path, target: Path, label: str, tables: Iterable[Table] = TABLES
) -> None:
    """Extract the files of a zipped recording below `target`, one leading folder removed.

    Only names of the layout are extracted; what else the zip holds stays in it. tables: those of the
    layout. Raises RecordingError for a damaged zip, a name that leaves the folder, or absurd sizes.
    """
    names = frozenset(spec.name for spec in tables)
    try:
        with zipfile.ZipFile(archive_path) as archive:
            members = _members(archive, archive_path.stat().st_size, label, names)
            if not members:
                raise RecordingError(label, "", "the zip holds no recording", _layout_remedy())
            budget = _Budget(label)
            with ThreadPoolExecutor(EXTRACTING) as pool:  # checking sums and copying, both in C
                started = [
                    pool.submit(_extract, archive, member, target / inside, budget)
                    for inside, member in members.items()
                ]
                try:
                    for extracted in started:
                        extracted.result()
                finally:
                    pool.shutdown(wait=True, cancel_futures=True)
    except ZIP_DAMAGE as error:
        raise RecordingError(
            label, "", f"the zip cannot be read ({error})", "Make or upload the zip again."
        ) from error


def _members(
    archive: zipfile.ZipFile, archive_bytes: int, label: str, tables: frozenset[str]
) -> dict[PurePosixPath, zipfile.ZipInfo]:
    """Path inside the recording -> member, for the files that belong to it."""
    infos = archive.infolist()
    total = sum(info.file_size for info in infos)
    too_large = total > MAX_UNZIPPED_BYTES or total > MAX_ZIP_RATIO * max(archive_bytes, 10_000)
    if len(infos) > MAX_ZIP_MEMBERS or too_large:
        raise RecordingError(
            label,
            "",
            f"the zip would unpack to {len(infos):,} files and {total / 1e9:,.1f} GB from {archive_bytes / 1e6:,.1f} MB",
            "Unpack it yourself and open the folder, if you trust it.",
        )
    found: dict[PurePosixPath, zipfile.ZipInfo] = {}
    tops: set[tuple[str, ...]] = set()
    for info in infos:
        path = PurePosixPath(info.filename.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts:
            raise RecordingError(
                label,
                f"member {info.filename!r}",
                "the name leads out of the folder",
                "Do not trust this zip; make a new one.",
            )
        inside = _inside(path, tables)
        if inside is None or info.is_dir() or "__MACOSX" in path.parts:
            continue
        tops.add(path.parts[: len(path.parts) - len(inside.parts)])
        if len(tops) > 1 or inside in found:
            raise RecordingError(
                label,
                f"member {info.filename!r}",
                f"the zip holds more than one recording{_named(tops)}",
                "Unpack it and give the folder of one of them, or zip that one alone.",
            )
        found[inside] = info
    return found


def _named(tops: set[tuple[str, ...]]) -> str:
    """The folders of a zip that hold recordings, in brackets, as far as they are known."""
    names = sorted("/".join(top) for top in tops if top)
    return f" ({', '.join(names)}, ...)" if names else ""


def _inside(path: PurePosixPath, tables: frozenset[str]) -> PurePosixPath | None:
    """The part of `path` that is a file of the layout, or None."""
    name = path.name.removesuffix(".tmp")
    if name == CLOSED_FILE and len(path.parts) <= 2:
        return PurePosixPath(path.name)
    if 2 <= len(path.parts) <= 3 and path.parts[-2] in tables and PART_NAME.fullmatch(name):
        return PurePosixPath(*path.parts[-2:])
    return None


class _Budget:
    """Bytes that may still be unpacked: the sizes a zip states may lie, so they are counted."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._left = MAX_UNZIPPED_BYTES
        self._counting = threading.Lock()

    def spend(self, num_bytes: int, member: zipfile.ZipInfo) -> None:
        """Raises RecordingError where there are too few left."""
        with self._counting:
            self._left -= num_bytes
            if self._left >= 0:
                return
        raise RecordingError(
            self._label,
            f"member {member.filename!r}",
            f"the zip unpacks to more than {MAX_UNZIPPED_BYTES / 1e9:,.0f} GB",
            "Unpack it yourself and open the folder, if you trust it.",
        )


def _extract(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, budget: _Budget
) -> None:
    """Copy one member out."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(member) as source, target.open("wb") as sink:
        while chunk := source.read(1 << 20):
            budget.spend(len(chunk), member)
            sink.write(chunk)


def find_root(path: Path, label: str) -> Path:
    """The folder that holds the tables: `path`, or the only folder in it that does.

    Raises RecordingError where there is none.
    """
    if _looks_like_recording(path):
        return path
    inner = [p for p in sorted(path.iterdir()) if p.is_dir() and _looks_like_recording(p)]
    if len(inner) == 1:
        return inner[0]
    if inner:
        names = ", ".join(p.name for p in inner[:5])
        raise RecordingError(
            label,
            "",
            f"the folder holds {len(inner)} recordings ({names})",
            f"Open one of them by its own path, such as {label}/{inner[0].name}.",
        )
    if any(is_folder(p / SAMPLES.name) for p in (path, *path.iterdir())):
        raise RecordingError(
            label,
            "",
            "the folder holds telemetry: samples, and no steps of an engine",
            "See it with `python -m analyzer summary`; a recording is what the engine or the recording scheduler writes.",
        )
    raise RecordingError(label, "", "the folder is no recording", _layout_remedy())


def _looks_like_recording(path: Path) -> bool:
    return any(is_folder(path / spec.name) for spec in TABLES)


def _layout_remedy() -> str:
    return (
        "A recording is a folder (or a zip of one) with steps/, events/ and requests/, each with part-00000.parquet "
        "and so on, as `python -m engine simulate TRACE --out DIR` writes it."
    )


def list_parts(root: Path, spec: Table, label: str) -> tuple[list[Path], list[str]]:
    """Parts of one table in number order, and notes on files that were passed over.

    A live recorder with a disk cap removes its oldest parts, and says in later ones how many: those
    may be missing. Raises RecordingError where any other is.
    """
    notes: list[str] = []
    numbered: dict[int, Path] = {}
    folder = root / spec.name
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        match = PART_NAME.fullmatch(path.name)
        if match:
            if not os.path.lexists(path):
                continue  # a recorder removed it since it was listed
            if not is_file(path):
                raise RecordingError(
                    path.name,
                    f"recording {label}, table {spec.name}",
                    "the part is not a regular file",
                    "Copy the whole folder again.",
                )
            numbered[int(match[1])] = path
        elif path.name.endswith(".tmp"):
            notes.append(
                f"{spec.name}/{path.name} was being written when the writer stopped and was skipped."
            )
    first = min(numbered, default=0)
    if first and first <= removed_parts(numbered[max(numbered)]):
        notes.append(
            f"{spec.name}: the {first:,} oldest parts were removed by the recorder, for its disk cap."
        )
    else:
        first = 0
    for expected, number in enumerate(sorted(numbered), first):
        if number != expected:
            raise RecordingError(
                f"part-{expected:05d}.parquet",
                f"recording {label}, table {spec.name}",
                "the part is missing, though later ones are there",
                "Copy the whole folder again.",
            )
    return [numbered[n] for n in sorted(numbered)], notes


def removed_parts(part: Path) -> int:
    """How many parts before it the writer of a part had removed; 0 where it does not say."""
    try:
        raw = (pq.read_schema(part).metadata or {}).get(METADATA_KEY, b"{}")
        return int(json.loads(raw)["writer"]["removed_parts"])
    except (pa.ArrowException, OSError, ValueError, TypeError, KeyError, RecursionError):
        return 0


@dataclass(frozen=True)
class Closing:
    """What closed.json says: rows of each table, and how the run ended ("completed", ...)."""

    rows: Mapping[str, int]
    status: str


def read_closed(
    root: Path, tables: Iterable[Table] = TABLES
) -> tuple[Closing | None, str | None]:
    """The closing mark, or None and the reason why the run's end is not known."""
    path = root / CLOSED_FILE
    if not os.path.lexists(path):
        return (
            None,
            "The recording was not closed: its writer was stopped, and the end of the run may be missing.",
        )
    try:
        if not is_file(path):
            raise OSError("not a regular file")
        content = json.loads(path.read_text())
        names = {spec.name for spec in tables}
        rows = {k: int(v) for k, v in content["rows"].items() if k in names}
        return Closing(rows, str(content.get("status", COMPLETED))), None
    except (
        ValueError,
        TypeError,
        AttributeError,
        KeyError,
        OverflowError,
        RecursionError,
        OSError,
    ):
        return None, f"{CLOSED_FILE} is damaged, so the end of the run may be missing."


def remove_tree(path: str) -> None:
    """Delete a folder of extracted files; what is gone already is fine."""
    shutil.rmtree(path, ignore_errors=True)
