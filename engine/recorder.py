"""Rows of a run to the Parquet parts of a recording, crash-safe and in constant memory.

It knows the contract's layout (traces/schema.py) and the core's row buffers. A part is written under
a temporary name and renamed when it is whole; a killed writer loses at most the part it was filling.
`closed.json` comes last.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from engine.core.state import EVENT_ROW, NONE, REQUEST, STEP_ROW, Kind, Reason, Status
from traces import schema
from traces.errors import RecordingError, SettingsError
from traces.recording_files import metadata_bytes, write_closed, write_part

PART_ROWS = 32_768
_ENDED = np.dtype([("request", "i8"), ("row", REQUEST)])
# A step row with what an executor knows of the work in it; -1 or NaN: not known.
WORK = (
    ("num_decode", "i4"),
    ("decode_ctx_tokens", "i8"),
    ("num_chunks", "i4"),
    ("chunk_tokens", "i4"),
    ("prefill_qk", "f8"),
    ("num_logit_rows", "i4"),
    ("num_padded", "i4"),
    ("compute_s", "f8"),
)
WORK_ROW = np.dtype([(name, STEP_ROW[name]) for name in STEP_ROW.names or ()] + list(WORK))
SPAN = np.dtype(
    [
        ("block", "i4"),
        ("request", "i4"),
        ("place", "i4"),
        ("first_step", "i8"),
        ("last_step", "i8"),
    ]
)
_STATUS = {
    Status.FINISHED: "finished",
    Status.ABORTED: "aborted",
    Status.REFUSED: "refused",
}


def prepare_directory(path: str | Path, *, overwrite: bool = False) -> Path:
    """An empty directory at `path`, for a new recording.

    Raises: SettingsError if something is there already (with overwrite, only if it is no recording),
    or it cannot be made.
    """
    try:
        path = Path(path)
        is_file = path.is_file()
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path!r}: no directory can have that name ({error}).") from None
    if is_file:
        raise SettingsError(
            f"{path}: a file of that name exists. Give another --out directory."
        )
    if path.is_dir() and any(path.iterdir()):
        if not overwrite:
            raise SettingsError(
                f"{path}: the directory is not empty. Give another --out directory, or --overwrite."
            )
        if not _is_only_a_recording(path):
            raise SettingsError(
                f"{path}: the directory holds more than a recording; it is left as it is. Give another --out directory."
            )
        shutil.rmtree(path.resolve())
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.touch()
        probe.unlink()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise SettingsError(
            f"{str(path)!r}: cannot write there ({why}). Give another --out directory."
        ) from None
    return path


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """Turn a disk that does not take a part into a sentence; earlier parts stay readable."""
    try:
        yield
    except OSError as error:
        before = any(directory.glob("*/part-*.parquet"))
        kept = (
            "What was recorded before is readable" if before else "Nothing was recorded before"
        )
        raise RecordingError(
            directory,
            "",
            f"could not write a part of the recording ({error.strerror})",
            f"{kept}. Make room, or give another --out directory.",
        ) from error


_PART = re.compile(r"part-\d+\.parquet(\.tmp)?")
_MARKS = (schema.CLOSED_FILE, schema.CLOSED_FILE + ".tmp")


def _is_only_a_recording(path: Path) -> bool:
    """Whether a directory holds parts of a recording's tables, their closing mark, and nothing else."""
    tables = {t.name for t in schema.TABLES}
    found = 0
    for entry in path.iterdir():
        if entry.name in tables and entry.is_dir() and not entry.is_symlink():
            parts = list(entry.iterdir())
            if not all(p.is_file() and _PART.fullmatch(p.name) for p in parts):
                return False
            found += len(parts)
        elif entry.name not in _MARKS or not entry.is_file():
            return False
    return found > 0


class _TableWriter:
    """Collects rows of one table and writes a part whenever enough have come."""

    def __init__(
        self,
        directory: Path,
        table: schema.Table,
        metadata: bytes,
        convert: Callable[[np.ndarray], pa.Table],
        dtype: np.dtype,
    ) -> None:
        self._directory = directory
        self._table = table
        self._metadata = metadata
        self._convert = convert
        self._buffer = np.empty(PART_ROWS, dtype)
        self._filled = 0
        self._parts = 0
        self.rows = 0

    def add(self, rows: np.ndarray) -> bool:
        """Take rows; returns whether a part was written."""
        self.rows += len(rows)
        done = 0
        parts = self._parts
        while done < len(rows):
            take = min(len(rows) - done, PART_ROWS - self._filled)
            self._buffer[self._filled : self._filled + take] = rows[done : done + take]
            self._filled += take
            done += take
            if self._filled == PART_ROWS:
                self.flush()
        return self._parts > parts

    def flush(self, *, always: bool = False) -> None:
        """Write what was collected as a part; with always, an empty one too."""
        if self._filled == 0 and not always:
            return
        data = self._convert(self._buffer[: self._filled])
        write_part(self._directory, self._table, self._parts, data, self._metadata)
        self._parts += 1
        self._filled = 0

    def close(self) -> None:
        """Write the last part; a table without rows gets an empty one."""
        self.flush(always=self._parts == 0)


class Recorder:
    """Writes steps, events and requests of one run into `directory`.

    request_ids, priorities: of each row of the core's request table; prefixes: their prefix_ids and
    prefix_tokens, as Arrow lists, None where no request has any; metadata: what made the run
    (schema_version is added); work: steps come as WORK_ROW; spans: block ownership is recorded too.
    Use `add` while the run goes on, then `close`; without `close` the recording opens as incomplete.
    """

    def __init__(
        self,
        directory: Path,
        metadata: Mapping[str, Any],
        request_ids: Sequence[str] | np.ndarray,
        priorities: np.ndarray,
        block_size: int,
        pool_blocks: int,
        prefixes: tuple[pa.Array, pa.Array] | None = None,
        *,
        work: bool = False,
        spans: bool = False,
    ) -> None:
        meta = metadata_bytes({"schema_version": schema.SCHEMA_VERSION, **metadata})
        self.directory = directory
        self._ids = _Strings(request_ids)
        self._priorities = priorities.astype(np.int64)
        self._block_size = block_size
        self._pool_blocks = pool_blocks
        self._known_tokens = np.zeros(0, np.int64)
        self._arrival_step = np.full(len(self._priorities), NONE, np.int64)
        self._prefixes = prefixes
        row = WORK_ROW if work else STEP_ROW
        self._steps = _TableWriter(directory, schema.STEPS, meta, _steps_table, row)
        self._events = _TableWriter(
            directory, schema.EVENTS, meta, self._events_table, EVENT_ROW
        )
        self._requests = _TableWriter(
            directory, schema.REQUESTS, meta, self._requests_table, _ENDED
        )
        self._spans = (
            _TableWriter(directory, schema.BLOCKS, meta, self._spans_table, SPAN)
            if spans
            else None
        )

    @property
    def _writers(self) -> tuple[_TableWriter, ...]:
        always = (self._steps, self._events, self._requests)
        return always if self._spans is None else (*always, self._spans)

    def add(self, steps: np.ndarray, events: np.ndarray, requests: np.ndarray) -> bool:
        """Rows of a chunk of steps: STEP_ROW or WORK_ROW, EVENT_ROW, and the core's request table.

        Requests that ended in the chunk are recorded from the table. Whenever a part of steps is
        written the other tables follow, so that what a killed run leaves belongs together. Returns
        whether that happened.
        """
        self._known_tokens = requests["num_tokens"]
        arrived = events[events["kind"] == Kind.ARRIVE]
        self._arrival_step[arrived["request"]] = arrived["step"]
        self._events.add(events)
        self.add_requests(events["request"][events["kind"] >= Kind.FINISH], requests)
        written = self._steps.add(steps)
        if written:
            self._flush_rest()
        return written

    def add_spans(self, spans: np.ndarray) -> None:
        """Intervals of block ownership that have ended (SPAN)."""
        assert self._spans is not None
        self._spans.add(spans)

    def flush(self) -> None:
        """Write what was collected, however little: what a killed run leaves ends here."""
        self._steps.flush()
        self._flush_rest()

    def _flush_rest(self) -> None:
        for writer in self._writers[1:]:
            writer.flush()

    def add_requests(self, which: np.ndarray, requests: np.ndarray) -> None:
        """Rows `which` of the core's request table, as they are now."""
        rows = np.empty(len(which), _ENDED)
        rows["request"] = which
        rows["row"] = requests[which]
        self._requests.add(rows)

    def close(self, status: str) -> None:
        """Write the last parts and the closing mark."""
        for writer in self._writers:
            writer.close()
        rows = {t.name: w.rows for t, w in zip(schema.TABLES, self._writers, strict=False)}
        write_closed(self.directory, rows, status)

    def _events_table(self, rows: np.ndarray) -> pa.Table:
        kind = pa.DictionaryArray.from_arrays(
            _arrow(rows["kind"]), _strings(schema.EVENT_KINDS)
        )
        columns = {
            "step": _arrow(rows["step"]),
            "t_s": _arrow(rows["t_s"]),
            "kind": kind,
            "request_id": self._ids.take(rows["request"]),
            "mode_asked": _enum_or_null(rows["mode_asked"], schema.MODES),
            "mode_used": _enum_or_null(rows["mode_used"], schema.MODES),
            "blocks": _arrow(rows["blocks"]),
            "tokens": _arrow(rows["tokens"]),
            "bytes": _arrow(rows["bytes"]),
            "cost_s": _nan_is_null(rows["cost_s"]),
            "recompute_est_s": _nan_is_null(rows["recompute_est_s"]),
            "swap_est_s": _nan_is_null(rows["swap_est_s"]),
            "cause_request_id": self._ids.take(rows["cause"], rows["cause"] == NONE),
            "free_blocks_before": _arrow(rows["free_before"]),
            "reason": self._reasons(rows),
        }
        return pa.table({name: columns[name] for name in schema.EVENTS.names})

    def _spans_table(self, rows: np.ndarray) -> pa.Table:
        columns = {
            "block_id": _arrow(rows["block"]),
            "request_id": self._ids.take(rows["request"]),
            "logical_index": _arrow(rows["place"]),
            "first_step": _arrow(rows["first_step"]),
            "last_step": _arrow(rows["last_step"]),
        }
        return pa.table({name: columns[name] for name in schema.BLOCKS.names})

    def _reasons(self, rows: np.ndarray) -> pa.Array:
        texts: list[str | None] = [None] * len(rows)
        for i in np.flatnonzero(rows["kind"] == Kind.REFUSE):
            tokens = int(self._known_tokens[rows["request"][i]])
            texts[i] = self.reason_text(Reason(rows["reason"][i]), tokens)
        return _strings(texts)

    def reason_text(self, reason: Reason, tokens: int) -> str:
        """Why a request of so many known tokens was refused, and what would let it run."""
        if reason == Reason.PROMPT_OVER_MODEL_LEN:
            return f"the prompt of {tokens:,} tokens leaves no room for output under max_model_len: raise max_model_len"
        need = -(-tokens // self._block_size)
        what = "needs" if reason == Reason.PROMPT_OVER_POOL else "has grown to need"
        return (
            f"{what} {need:,} blocks ({tokens:,} tokens, {self._block_size} per block) but the pool has "
            f"{self._pool_blocks:,}, so it can never run: set num_gpu_blocks to {need + 1:,} or more"
        )

    def _prefix_lists(self, which: np.ndarray) -> dict[str, pa.Array]:
        if self._prefixes is None:  # take() loads pyarrow.compute, 0.1 s
            ids, tokens = pa.uint64(), pa.int64()
            return {
                "prefix_ids": _empty_lists(len(which), ids),
                "prefix_tokens": _empty_lists(len(which), tokens),
            }
        places = _arrow(which)
        return {
            "prefix_ids": self._prefixes[0].take(places),
            "prefix_tokens": self._prefixes[1].take(places),
        }

    def _requests_table(self, rows: np.ndarray) -> pa.Table:
        q = rows["row"]
        arrival_step = self._arrival_step[rows["request"]]
        codes = np.array(
            [
                schema.STATUSES.index(_STATUS.get(Status(v), "unfinished"))
                for v in range(len(Status))
            ],
            np.int32,
        )
        columns = {
            "request_id": self._ids.take(rows["request"]),
            "arrival_s": _arrow(q["arrival_s"]),
            "prompt_tokens": _arrow(q["prompt"]),
            "output_tokens": _arrow(q["num_tokens"] - q["prompt"]),
            "priority": _arrow(self._priorities[rows["request"]]),
            "first_scheduled_s": _nan_is_null(q["first_scheduled_s"]),
            "first_token_s": _nan_is_null(q["first_token_s"]),
            "finish_s": _nan_is_null(q["finish_s"]),
            "num_preemptions": _arrow(q["num_preemptions"].astype(np.int32)),
            "recomputed_tokens": _arrow(q["recomputed_tokens"]),
            "cached_tokens": _arrow(q["cached_tokens"]),
            "swapped_bytes": _arrow(q["swapped_bytes"]),
            "preempted_s": _arrow(q["preempted_s"]),
            "max_itl_s": _arrow(q["max_itl_s"], q["max_itl_s"] == 0.0),
            "status": pa.DictionaryArray.from_arrays(
                _arrow(codes[q["status"]]), _strings(schema.STATUSES)
            ),
            "restored_tokens": _arrow(q["restored_tokens"]),
            "arrival_step": _arrow(arrival_step, arrival_step == NONE),
            **self._prefix_lists(rows["request"]),
        }
        return pa.table({name: columns[name] for name in schema.REQUESTS.names})


def _empty_lists(n: int, item: pa.DataType) -> pa.Array:
    return pa.ListArray.from_arrays(_arrow(np.zeros(n + 1, np.int32)), pa.nulls(0, item))


def _steps_table(rows: np.ndarray) -> pa.Table:
    known = rows.dtype.names or ()
    columns = {}
    for column in schema.STEPS.columns:
        if column.name not in known:
            columns[column.name] = pa.nulls(len(rows), column.type)
        elif not column.nullable:
            columns[column.name] = _arrow(rows[column.name])
        elif rows.dtype[column.name].kind == "f":
            columns[column.name] = _nan_is_null(rows[column.name])
        else:
            columns[column.name] = _arrow(rows[column.name], rows[column.name] == NONE)
    return pa.table(columns)


def _arrow(values: np.ndarray, null: np.ndarray | None = None) -> pa.Array:
    """Arrow array of a column of numbers; `null` marks what is missing.

    From the bytes, because pa.array() imports pandas to see whether it was given a Series: 0.4 s.
    """
    values = np.ascontiguousarray(values)
    bitmap = None
    if null is not None and null.any():
        bitmap = pa.py_buffer(np.packbits(~null, bitorder="little"))
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(values)])


def _nan_is_null(values: np.ndarray) -> pa.Array:
    return _arrow(values, np.isnan(values))


def _enum_or_null(codes: np.ndarray, names: tuple[str, ...]) -> pa.Array:
    return pa.DictionaryArray.from_arrays(_arrow(codes, codes == NONE), _strings(names))


def _strings(texts: Sequence[str | None]) -> pa.Array:
    """Arrow strings, None as null."""
    missing = np.array([text is None for text in texts], bool)
    if missing.all():
        return pa.nulls(len(texts), pa.string())
    places = np.arange(len(texts))
    return _Strings([text or "" for text in texts]).take(places, missing)


class _Strings:
    """Strings to take from by place, as bytes and offsets (as in `_arrow`, and as fast as Arrow's)."""

    def __init__(self, texts: Sequence[str] | np.ndarray) -> None:
        encoded = [text.encode() for text in texts]
        self._bytes = np.frombuffer(b"".join(encoded), np.uint8)
        self._starts = np.zeros(len(encoded) + 1, np.int64)
        np.cumsum([len(e) for e in encoded], out=self._starts[1:])

    def take(self, places: np.ndarray, null: np.ndarray | None = None) -> pa.Array:
        """Arrow strings at `places`; `null` marks what is missing, whatever its place says."""
        if null is not None:
            places = np.where(null, 0, places)
        lengths = self._starts[places + 1] - self._starts[places]
        if null is not None:
            lengths[null] = 0
        ends = np.cumsum(lengths)
        shift = np.repeat(self._starts[places] - (ends - lengths), lengths)
        data = self._bytes[shift + np.arange(len(shift))]
        offsets = np.zeros(len(places) + 1, np.int32)
        offsets[1:] = ends
        bitmap = None
        if null is not None and null.any():
            bitmap = pa.py_buffer(np.packbits(~null, bitorder="little"))
        buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(data)]
        return pa.Array.from_buffers(pa.string(), len(places), buffers)
