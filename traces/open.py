"""From a path to what it is: a Workload, Recording, Telemetry or Fleet, or a sentence why not.

Knows how to choose a reader, to join several files, and how to describe a file without building
the Workload. Knows no format itself.
"""

from __future__ import annotations

import csv
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from traces.errors import NotAWorkloadError, WorkloadError
from traces.formats import formats
from traces.formats.build import to_workload
from traces.formats.packed import ZIP_DAMAGE
from traces.formats.raw import MAX_PREFIX_BLOCK_TOKENS, RawTrace, ReadOptions
from traces.formats.source import Source, inspect
from traces.formats.times import UNITS
from traces.paths import is_file, is_folder
from traces.workload import Workload

if TYPE_CHECKING:
    from traces.fleet import Fleet
    from traces.formats.raw import Format
    from traces.recording import Recording
    from traces.telemetry import Telemetry

PathLike = str | Path
# what Python, polars and decompressors raise over damage and absurd numbers
UNFORESEEN = (
    ValueError,
    OverflowError,
    OSError,
    EOFError,
    RecursionError,
    csv.Error,
    zlib.error,
    pl.exceptions.PolarsError,
    pl.exceptions.PanicException,
)
RECORDING, TELEMETRY, FLEET = "recording", "telemetry", "fleet"  # answers of what_is
SAMPLE_PREFIX = "sample:"  # "sample:chat" names a bundled workload where a trace is asked for


def open_any(path: PathLike, **how: Any) -> Workload | Recording | Telemetry | Fleet:
    """The Recording or Telemetry in a folder or zip; the Fleet in a folder of several of them; else
    the Workload in a file.

    how: keywords of `open_workload`. Raises RecordingError, WorkloadError, or NotAWorkloadError
    for logs and metrics (read elsewhere) and for files that are nothing of it.
    """
    path, kind = what_is(path)
    name = how.get("name")
    if kind == TELEMETRY:
        from traces.telemetry import open_telemetry

        return open_telemetry(path, name)
    if kind == FLEET:
        from traces.fleet import open_fleet

        return open_fleet(path, name)
    if kind == RECORDING:
        from traces.recording import open_recording

        return open_recording(path, name)
    return open_workload(path, **how)


def what_is(path: PathLike) -> tuple[PathLike, str]:
    """(path, kind) by names and first bytes; RECORDING, TELEMETRY, FLEET, or "" for any other file.

    The path is the given one, or that of the only recording in its folders. An empty folder counts
    as a fleet: opening it says so.
    """
    from traces.fleet import is_empty, is_fleet, lone_member
    from traces.telemetry_files import is_telemetry

    given = Path(path)
    if is_folder(given):
        if is_fleet(given) or is_empty(given):
            return path, FLEET
        path = lone_member(given) or path
    if is_telemetry(path):
        return path, TELEMETRY
    return path, RECORDING if is_recording(path) else ""


def open_workload(
    paths: PathLike | Sequence[PathLike],
    *,
    mapping: Mapping[str, str] | None = None,
    time_unit: str | None = None,
    name: str | None = None,
    window_s: tuple[float, float | None] | None = None,
    stagger_s: float = 20.0,
) -> Workload:
    """The Workload of a trace file, of several of one format joined on their own clocks, of the folder
    of telemetry that tells of requests, or of a bundled sample ("sample:NAME").

    mapping: role -> column, for tables whose columns cannot be guessed (roles: see
    `formats.columns.KINDS`); time_unit: "s", "ms", "us", "ns" instead of the guess; name: what the
    user called the file; window_s: keep only arrivals in [start, end) after the first; stagger_s:
    seconds between the starts of sessions that have no absolute time (Weka).

    Raises: WorkloadError (damaged, absurd), NotAWorkloadError (understood, but no request trace),
    RecordingError (a folder of recordings of which none can be read).
    """
    options = _options(mapping, time_unit, stagger_s)
    if isinstance(paths, str) and paths.startswith(SAMPLE_PREFIX):
        from traces.samples import load

        return load(paths.removeprefix(SAMPLE_PREFIX))
    if isinstance(paths, str | Path):
        if what_is(paths)[1] == TELEMETRY or is_folder(Path(paths)):
            return _workload_of_recorded(paths, name, window_s)
        source = inspect(paths, name)
        return to_workload(read_raw(source, options), source.name, window_s)
    if not paths:
        raise WorkloadError(
            name or "no file", "", "no file was given", "Give at least one trace file."
        )
    sources = [inspect(p) for p in paths]
    if len(sources) == 1:
        return to_workload(read_raw(sources[0], options), name or sources[0].name, window_s)
    raw = join([read_raw(s, options) for s in sources], [s.name for s in sources], stagger_s)
    return to_workload(raw, name or f"{sources[0].name} and {len(sources) - 1} more", window_s)


def _workload_of_recorded(
    path: PathLike, name: str | None, window_s: tuple[float, float | None] | None
) -> Workload:
    """The Workload of recorded telemetry; any other folder is refused by what it holds."""
    found, kind = what_is(path)
    if kind == TELEMETRY:
        from traces.telemetry_workload import open_telemetry_workload

        return open_telemetry_workload(found, name, window_s)
    if kind == FLEET and any(Path(path).iterdir()):
        from traces.fleet import open_fleet

        fleet = open_fleet(found, name)
        raise NotAWorkloadError(
            fleet.label,
            "",
            f"the folder holds {len(fleet.members)} recordings, not a request trace",
            fleet.how_to_choose(),
        )
    label = name or Path(path).resolve().name
    if kind == RECORDING:
        raise NotAWorkloadError(
            label,
            "",
            "it is a recording, not a request trace",
            "Open it as what it is, or run its requests again: python -m engine replay RECORDING --out DIR.",
        )
    raise WorkloadError(
        label, "", "it is a folder, not a file", "Give the trace file inside it."
    )


def guess_columns(
    path: PathLike, name: str | None = None
) -> tuple[tuple[str, ...], dict[str, str]]:
    """(all columns, role -> column as guessed) of a table or JSON file, for a user to correct.

    Raises WorkloadError when the file cannot be opened; both are empty where it has no columns.
    """
    from traces.formats.columns import guess
    from traces.formats.generic import unwrapped

    source = unwrapped(inspect(path, name))
    return source.columns, guess(source.columns)


def _options(
    mapping: Mapping[str, str] | None, time_unit: str | None, stagger_s: float
) -> ReadOptions:
    if time_unit is not None and time_unit not in UNITS:
        raise WorkloadError(
            "", "time unit", f"{time_unit!r} is not a unit", f"Units are {', '.join(UNITS)}."
        )
    return ReadOptions(mapping, time_unit, stagger_s)


def read_raw(source: Source, options: ReadOptions) -> RawTrace:
    """The rows of a file by the first reader that knows it. Raises WorkloadError or a refusal.

    What no reader foresaw of a damaged file ends here too, as an error that names file and fault.
    """
    try:
        raw = _read_by_first(source, options)
    except UNFORESEEN as e:
        said = " ".join(str(e).split())[:200] or "no more is known"
        raise source.error(
            "",
            f"it cannot be read as a trace ({type(e).__name__}: {said})",
            "Copy or export the file again, and check that its numbers are sane.",
        ) from e
    block = raw.prefix_block_tokens
    if block is not None and not 1 <= block <= MAX_PREFIX_BLOCK_TOKENS:
        raise source.error(
            "block size",
            f"{block:,} tokens is no length of a prefix block",
            f"Give 1 to {MAX_PREFIX_BLOCK_TOKENS:,} tokens, or leave it out.",
        )
    return raw


def _read_by_first(source: Source, options: ReadOptions) -> RawTrace:
    from traces.formats.refusals import refusal

    if options.mapping:
        from traces.formats import generic

        return generic.read(source, options)
    for form in formats():
        if form.name == "generic":
            refused = refusal(source)
            if refused is not None:
                raise refused
        if form.sniff(source):
            return _read(form, source, options)
    raise NotAWorkloadError(
        source.name,
        "",
        "it is no table, JSON or Parquet file that a request trace could be in",
        "Give a CSV, TSV, JSON, JSON lines or Parquet file, plain or as .gz or .zst.",
    )


def _read(form: Format, source: Source, options: ReadOptions) -> RawTrace:
    """What the reader makes of the file; JSON of another shape than its head promised is an error."""
    try:
        return form.read(source, options)
    except (AttributeError, KeyError, TypeError, ValueError, IndexError) as e:
        if source.shape != "json":
            raise
        raise source.error(
            "",
            f"it begins like {form.title}, but a record has another shape ({type(e).__name__}: {e})",
            "Check that the file was not edited or joined from parts; export it again.",
        ) from e


def is_recording(path: PathLike) -> bool:
    """Whether a path holds a recording: a folder or zip with its tables, or one Parquet part."""
    from traces.schema import CLOSED_FILE, METADATA_KEY, TABLES

    names = {t.name for t in TABLES}
    path = Path(path)
    if is_folder(path):
        return any(is_folder(path / n) for n in names) or is_file(path / CLOSED_FILE)
    if not is_file(path):
        return False  # to open a pipe would wait for its writer
    try:
        with path.open("rb") as f:
            magic = f.read(4)
    except OSError:
        return False
    if magic == b"PK\x03\x04":
        import zipfile

        try:
            with zipfile.ZipFile(path) as z:
                members = z.namelist()
        except ZIP_DAMAGE:
            return False
        parts = {p for m in members for p in m.split("/")[:-1]}
        return bool(parts & names) and any(
            m.endswith((".parquet", CLOSED_FILE)) for m in members
        )
    if magic == b"PAR1":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return METADATA_KEY in (pq.read_schema(path).metadata or {})
        except (pa.ArrowException, OSError, ValueError):
            return False
    return False


def join(raws: Sequence[RawTrace], names: Sequence[str], stagger_s: float) -> RawTrace:
    """Several files of one format as one trace, in the order given.

    Dated files keep their dates, and files that count from their own start are taken as parts of
    one clock; sessions without absolute time (details: "session") start stagger_s apart.
    """
    first = raws[0]
    for raw, name in zip(raws, names, strict=True):
        if (raw.format, raw.prefix_block_tokens) != (first.format, first.prefix_block_tokens):
            raise WorkloadError(
                name,
                "",
                f"it is {raw.format} and {names[0]} is {first.format}: they cannot be one trace",
                "Open files of one format at a time.",
            )
    sessions = all("session" in r.details for r in raws)
    frames = []
    for i, raw in enumerate(raws):
        shift = i * stagger_s if sessions else _origin(raw) - _origin(first)
        frame = raw.frame.with_columns(pl.col("arrival_s") + shift)
        if "request_id" not in frame.columns and not sessions:
            frame = frame.with_columns(
                (pl.lit(f"{i}-") + pl.int_range(pl.len()).cast(pl.String)).alias("request_id")
            )
        frames.append(frame)
    notes = [*dict.fromkeys(n for r in raws for n in r.notes)]
    if sessions:
        notes.append(
            f"{len(raws)} sessions without absolute times were laid {stagger_s:g} s apart."
        )
    return replace(
        first, frame=pl.concat(frames, how="diagonal_relaxed"), notes=tuple(notes), details={}
    )


def _origin(raw: RawTrace) -> float:
    """Where a file's clock stands at its first row, comparable between files of one format."""
    return raw.origin_s if raw.epoch_s is None else raw.epoch_s


__all__ = [
    "guess_columns",
    "is_recording",
    "join",
    "open_any",
    "open_workload",
    "read_raw",
    "what_is",
]
