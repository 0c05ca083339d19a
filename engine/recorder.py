"""Rows of a run to the Parquet parts of a recording, crash-safe and in constant memory.

It knows the contract's layout (traces/schema.py) and the core's row buffers. A part is written under
a temporary name and renamed when it is whole; a killed writer loses at most the part it was filling.
`closed.json` comes last.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.core.state import EVENT_ROW, NONE, REQUEST, STEP_ROW, Kind, Reason, Status
from traces import schema
from traces.errors import SettingsError

PART_ROWS = 131_072
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
    path = Path(path)
    if path.is_file():
        raise SettingsError(
            f"{path}: a file of that name exists. Give another --out directory."
        )
    if path.is_dir() and any(path.iterdir()):
        ours = all(
            p.name in {t.name for t in schema.TABLES} | {schema.CLOSED_FILE}
            for p in path.iterdir()
        )
        if not overwrite:
            raise SettingsError(
                f"{path}: the directory is not empty. Give another --out directory, or --overwrite."
            )
        if not ours:
            raise SettingsError(
                f"{path}: the directory holds more than a recording; it is left as it is. Give another --out directory."
            )
        shutil.rmtree(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise SettingsError(
            f"{path}: cannot write there ({error.strerror}). Give another --out directory."
        ) from None
    return path


class _TableWriter:
    """Collects rows of one table and writes a part whenever enough have come."""

    def __init__(
        self,
        directory: Path,
        table: schema.Table,
        metadata: Mapping[str, Any],
        convert: Callable[[np.ndarray], pa.Table],
        dtype: np.dtype,
    ) -> None:
        self._directory = directory / table.name
        self._schema = table.arrow.with_metadata(
            {schema.METADATA_KEY: json.dumps(metadata).encode()}
        )
        self._convert = convert
        self._buffer = np.empty(PART_ROWS, dtype)
        self._filled = 0
        self._parts = 0
        self.rows = 0

    def add(self, rows: np.ndarray) -> None:
        self.rows += len(rows)
        done = 0
        while done < len(rows):
            take = min(len(rows) - done, PART_ROWS - self._filled)
            self._buffer[self._filled : self._filled + take] = rows[done : done + take]
            self._filled += take
            done += take
            if self._filled == PART_ROWS:
                self.flush()

    def flush(self, *, always: bool = False) -> None:
        if self._filled == 0 and not always:
            return
        self._directory.mkdir(exist_ok=True)
        final = self._directory / f"part-{self._parts:05d}.parquet"
        partial = final.with_suffix(".parquet.tmp")
        arrow = self._convert(self._buffer[: self._filled]).cast(self._schema)
        pq.write_table(
            arrow.replace_schema_metadata(self._schema.metadata),
            partial,
            compression="zstd",
            compression_level=3,
        )
        os.replace(partial, final)
        self._parts += 1
        self._filled = 0

    def close(self) -> None:
        self.flush(always=self._parts == 0)


class Recorder:
    """Writes steps, events and requests of one run into `directory`.

    request_ids: id of each row of the request table; metadata: what made the run (schema_version is
    added). Use as `add_*` while the run goes on, then `close`; without `close` the recording opens
    as incomplete.
    """

    def __init__(
        self,
        directory: Path,
        metadata: Mapping[str, Any],
        request_ids: pa.Array,
        block_size: int,
        pool_blocks: int,
    ) -> None:
        meta = {"schema_version": schema.SCHEMA_VERSION, **metadata}
        self.directory = directory
        self._ids = request_ids
        self._block_size = block_size
        self._pool_blocks = pool_blocks
        self._steps = _TableWriter(directory, schema.STEPS, meta, _steps_table, STEP_ROW)
        self._events = _TableWriter(
            directory, schema.EVENTS, meta, self._events_table, EVENT_ROW
        )
        ended = np.dtype([("request", "i4"), ("row", REQUEST)])
        self._requests = _TableWriter(
            directory, schema.REQUESTS, meta, self._requests_table, ended
        )
        self._ended = ended
        self._arrivals_prompt: np.ndarray | None = None

    def add_steps(self, rows: np.ndarray) -> None:
        self._steps.add(rows)

    def add_events(self, rows: np.ndarray, requests: np.ndarray) -> None:
        """Event rows; `requests` is the request table, from which refusals take their reason."""
        self._arrivals_prompt = requests["num_tokens"]
        self._events.add(rows)

    def add_requests(self, which: np.ndarray, requests: np.ndarray) -> None:
        """Rows `which` of the request table, as they are now."""
        rows = np.empty(len(which), self._ended)
        rows["request"] = which
        rows["row"] = requests[which]
        self._requests.add(rows)

    def flush(self) -> None:
        """Write what is collected as parts of their own."""
        for writer in (self._steps, self._events, self._requests):
            writer.flush()

    def close(self, status: str) -> None:
        """Write the last parts and the closing mark."""
        for writer in (self._steps, self._events, self._requests):
            writer.close()
        rows = {
            "steps": self._steps.rows,
            "events": self._events.rows,
            "requests": self._requests.rows,
        }
        partial = self.directory / (schema.CLOSED_FILE + ".tmp")
        partial.write_text(json.dumps({"status": status, "rows": rows}) + "\n")
        os.replace(partial, self.directory / schema.CLOSED_FILE)

    def _events_table(self, rows: np.ndarray) -> pa.Table:
        kind = pa.DictionaryArray.from_arrays(
            _arrow(rows["kind"]), _strings(schema.EVENT_KINDS)
        )
        columns = {
            "step": _arrow(rows["step"]),
            "t_s": _arrow(rows["t_s"]),
            "kind": kind,
            "request_id": self._ids.take(_arrow(rows["request"])),
            "mode_asked": _enum_or_null(rows["mode_asked"], schema.MODES),
            "mode_used": _enum_or_null(rows["mode_used"], schema.MODES),
            "blocks": _arrow(rows["blocks"]),
            "tokens": _arrow(rows["tokens"]),
            "bytes": _arrow(rows["bytes"]),
            "cost_s": _nan_is_null(rows["cost_s"]),
            "recompute_est_s": _nan_is_null(rows["recompute_est_s"]),
            "swap_est_s": _nan_is_null(rows["swap_est_s"]),
            "cause_request_id": self._ids.take(_arrow(rows["cause"], rows["cause"] == NONE)),
            "free_blocks_before": _arrow(rows["free_before"]),
            "reason": self._reasons(rows),
        }
        return pa.table({name: columns[name] for name in schema.EVENTS.names})

    def _reasons(self, rows: np.ndarray) -> pa.Array:
        texts: list[str | None] = [None] * len(rows)
        for i in np.flatnonzero(rows["kind"] == Kind.REFUSE):
            assert self._arrivals_prompt is not None
            tokens = int(self._arrivals_prompt[rows["request"][i]])
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

    def _requests_table(self, rows: np.ndarray) -> pa.Table:
        q = rows["row"]
        codes = np.array(
            [
                schema.STATUSES.index(_STATUS.get(Status(v), "unfinished"))
                for v in range(len(Status))
            ],
            np.int32,
        )
        columns = {
            "request_id": self._ids.take(_arrow(rows["request"])),
            "arrival_s": _arrow(q["arrival_s"]),
            "prompt_tokens": _arrow(q["prompt"]),
            "output_tokens": _arrow(q["num_tokens"] - q["prompt"]),
            "priority": self._priority.take(_arrow(rows["request"])),
            "first_scheduled_s": _nan_is_null(q["first_scheduled_s"]),
            "first_token_s": _nan_is_null(q["first_token_s"]),
            "finish_s": _nan_is_null(q["finish_s"]),
            "num_preemptions": _arrow(q["num_preemptions"]),
            "recomputed_tokens": _arrow(q["recomputed_tokens"]),
            "cached_tokens": _arrow(q["cached_tokens"]),
            "swapped_bytes": _arrow(q["swapped_bytes"]),
            "preempted_s": _arrow(q["preempted_s"]),
            "max_itl_s": _arrow(q["max_itl_s"], q["max_itl_s"] == 0.0),
            "status": pa.DictionaryArray.from_arrays(
                _arrow(codes[q["status"]]), _strings(schema.STATUSES)
            ),
        }
        return pa.table({name: columns[name] for name in schema.REQUESTS.names})

    def set_priorities(self, priorities: np.ndarray) -> None:
        """Priority of each row of the request table."""
        self._priority = _arrow(priorities.astype(np.int64))


def _steps_table(rows: np.ndarray) -> pa.Table:
    return pa.table({name: _arrow(rows[name]) for name in schema.STEPS.names})


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
    """Arrow strings, None as null; from the bytes, as in `_arrow`."""
    if all(text is None for text in texts):
        return pa.nulls(len(texts), pa.string())
    data = [(text or "").encode() for text in texts]
    offsets = np.zeros(len(data) + 1, np.int32)
    np.cumsum([len(d) for d in data], out=offsets[1:])
    present = np.array([text is not None for text in texts])
    bitmap = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(
        pa.string(), len(data), [bitmap, pa.py_buffer(offsets), pa.py_buffer(b"".join(data))]
    )
