"""Rows of a live recorder as Arrow tables of the contract (traces/schema.py).

The scheduler's thread appends tuples, in the order of the columns named here; the writer's thread
turns them into columns. Columns that a scheduler cannot see are filled with 0 or null, and listed
in NOT_RECORDED.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from traces import schema

STEP_COLUMNS = (
    "step", "t_start_s", "duration_s", "num_running", "num_waiting", "num_swapped", "num_admitted",
    "num_resumed", "num_preempted", "num_finished", "prefill_tokens", "decode_tokens",
    "recomputed_tokens", "cached_tokens", "used_blocks", "fenced_blocks", "cached_free_blocks",
    "free_blocks", "restored_tokens",
)  # fmt: skip
EVENT_COLUMNS = (
    "step", "t_s", "kind", "request_id", "mode", "blocks", "tokens", "cause_request_id",
    "free_blocks_before", "reason",
)  # fmt: skip
REQUEST_COLUMNS = (
    "request_id", "arrival_s", "prompt_tokens", "output_tokens", "priority", "first_scheduled_s",
    "first_token_s", "finish_s", "num_preemptions", "recomputed_tokens", "cached_tokens",
    "preempted_s", "max_itl_s", "status", "restored_tokens", "arrival_step", "prefix",
)  # fmt: skip
BLOCK_COLUMNS = ("block_id", "request_id", "logical_index", "first_step", "last_step")

NOT_RECORDED = (
    "steps.host_used_blocks", "steps.swap_out_bytes", "steps.swap_in_bytes", "steps.stall_s",
    "steps.link_out_busy_s", "steps.link_in_busy_s", "events.bytes", "events.cost_s",
    "events.recompute_est_s", "events.swap_est_s", "requests.swapped_bytes",
)  # fmt: skip

KIND = {name: code for code, name in enumerate(schema.EVENT_KINDS)}
STATUS = {name: code for code, name in enumerate(schema.STATUSES)}
MODE = {name: code for code, name in enumerate(schema.MODES)}
PREFIX_BYTES = 8  # of each block's hash

_NUMPY = {pa.int32(): "i4", pa.int64(): "i8", pa.float64(): "f8"}
_STEP_ROW = np.dtype([(n, _NUMPY[schema.STEPS.column(n).type]) for n in STEP_COLUMNS])

Rows = Sequence[tuple[Any, ...]]
Naming = Callable[[str], str]


def hashed_ids(key: bytes) -> Naming:
    """A function from a request id to 24 hex digits that cannot be undone without the key."""

    def name(request_id: str) -> str:
        raw = request_id.encode("utf-8", "replace")  # JSON lets half a surrogate pair through
        return hashlib.blake2b(raw, digest_size=12, key=key[:64]).hexdigest()

    return name


def plain_ids(request_id: str) -> str:
    """The id as it is."""
    return request_id


def rekeyed_prefix(key: bytes) -> Callable[[bytes], bytes]:
    """A function from joined block hashes to as many keyed ones: equal stays equal."""

    def again(prefix: bytes) -> bytes:
        parts = (prefix[i : i + PREFIX_BYTES] for i in range(0, len(prefix), PREFIX_BYTES))
        return b"".join(
            hashlib.blake2b(p, digest_size=PREFIX_BYTES, key=key[:64]).digest() for p in parts
        )

    return again


def steps_table(rows: Rows) -> pa.Table:
    """Tuples of STEP_COLUMNS as the contract's `steps`."""
    data = np.array(rows, _STEP_ROW)
    columns = {name: _arrow(data[name]) for name in STEP_COLUMNS}
    for column in schema.STEPS.columns:
        if column.name not in columns:
            columns[column.name] = _arrow(np.zeros(len(rows), _NUMPY[column.type]))
    return _table(schema.STEPS, columns)


def events_table(rows: Rows, name: Naming) -> pa.Table:
    """Tuples of EVENT_COLUMNS (kind and mode as codes) as the contract's `events`."""
    at = _columns(EVENT_COLUMNS, rows)
    mode = np.array([-1 if m is None else m for m in at["mode"]], np.int32)
    modes = _coded(mode, schema.MODES, mode < 0)
    zero, null = _arrow(np.zeros(len(rows), np.int64)), pa.nulls(len(rows), pa.float64())
    return _table(
        schema.EVENTS,
        {
            "step": _int64(at["step"]),
            "t_s": _float64(at["t_s"]),
            "kind": _coded(np.array(at["kind"], np.int32), schema.EVENT_KINDS),
            "request_id": _strings([name(v) for v in at["request_id"]]),
            "mode_asked": modes,
            "mode_used": modes,
            "blocks": _arrow(np.array(at["blocks"], np.int32)),
            "tokens": _int64(at["tokens"]),
            "bytes": zero,
            "cost_s": null,
            "recompute_est_s": null,
            "swap_est_s": null,
            "cause_request_id": _strings(
                [None if v is None else name(v) for v in at["cause_request_id"]]
            ),
            "free_blocks_before": _arrow(np.array(at["free_blocks_before"], np.int32)),
            "reason": _strings(at["reason"]),
        },
    )


def requests_table(
    rows: Rows, name: Naming, prefix: Callable[[bytes], bytes] | None
) -> pa.Table:
    """Tuples of REQUEST_COLUMNS (status as a code) as the contract's `requests`.

    The column `prefix` holds joined hashes of PREFIX_BYTES each, or None; `prefix` turns them into
    what is written, None: as they are.
    """
    at = _columns(REQUEST_COLUMNS, rows)
    n = len(rows)
    return _table(
        schema.REQUESTS,
        {
            "request_id": _strings([name(v) for v in at["request_id"]]),
            "arrival_s": _float64(at["arrival_s"]),
            "prompt_tokens": _int64(at["prompt_tokens"]),
            "output_tokens": _int64(at["output_tokens"]),
            # A client may send more than 64 bits.
            "priority": _int64(
                [min(max(p, -(1 << 63)), (1 << 63) - 1) for p in at["priority"]]
            ),
            "first_scheduled_s": _float64(at["first_scheduled_s"]),
            "first_token_s": _float64(at["first_token_s"]),
            "finish_s": _float64(at["finish_s"]),
            "num_preemptions": _arrow(np.array(at["num_preemptions"], np.int32)),
            "recomputed_tokens": _int64(at["recomputed_tokens"]),
            "cached_tokens": _int64(at["cached_tokens"]),
            "swapped_bytes": _arrow(np.zeros(n, np.int64)),
            "preempted_s": _float64(at["preempted_s"]),
            "max_itl_s": _float64(at["max_itl_s"]),
            "status": _coded(np.array(at["status"], np.int32), schema.STATUSES),
            "restored_tokens": _int64(at["restored_tokens"]),
            "arrival_step": _int64(at["arrival_step"]),
            "prefix_ids": _prefixes(at["prefix"], prefix),
            "prefix_tokens": _lists(
                np.zeros(n, np.int64),
                pa.nulls(0, pa.int64()),
                [p is None for p in at["prefix"]],
            ),
        },
    )


def blocks_table(rows: Rows, name: Naming) -> pa.Table:
    """Tuples of BLOCK_COLUMNS as the contract's `blocks`."""
    at = _columns(BLOCK_COLUMNS, rows)
    return _table(
        schema.BLOCKS,
        {
            "block_id": _arrow(np.array(at["block_id"], np.int32)),
            "request_id": _strings([name(v) for v in at["request_id"]]),
            "logical_index": _arrow(np.array(at["logical_index"], np.int32)),
            "first_step": _int64(at["first_step"]),
            "last_step": _int64(at["last_step"]),
        },
    )


def _columns(names: tuple[str, ...], rows: Rows) -> dict[str, Sequence[Any]]:
    values: Sequence[Sequence[Any]] = (
        list(zip(*rows, strict=True)) if rows else [()] * len(names)
    )
    return dict(zip(names, values, strict=True))


def _table(spec: schema.Table, columns: dict[str, pa.Array]) -> pa.Table:
    return pa.Table.from_arrays([columns[c.name] for c in spec.columns], schema=spec.arrow)


def _arrow(values: np.ndarray, null: np.ndarray | None = None) -> pa.Array:
    """Arrow array from the bytes of numbers: pa.array() would import pandas first."""
    values = np.ascontiguousarray(values)
    bitmap = None
    if null is not None and null.any():
        bitmap = pa.py_buffer(np.packbits(~null, bitorder="little"))
    kind = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(kind, len(values), [bitmap, pa.py_buffer(values)])


def _int64(values: Sequence[int]) -> pa.Array:
    return _arrow(np.array(values, np.int64))


def _float64(values: Sequence[float | None]) -> pa.Array:
    """Seconds, None as null."""
    data = np.array(values, np.float64)  # None becomes nan
    return _arrow(data, np.isnan(data))


def _coded(
    codes: np.ndarray, names: tuple[str, ...], null: np.ndarray | None = None
) -> pa.Array:
    return pa.DictionaryArray.from_arrays(_arrow(codes, null), _strings(names))


def _strings(texts: Sequence[str | None]) -> pa.Array:
    """Arrow strings, None as null."""
    encoded = [b"" if t is None else t.encode("utf-8", "replace") for t in texts]
    missing = np.array([t is None for t in texts], bool)
    ends = np.zeros(len(texts) + 1, np.int32)
    np.cumsum([len(e) for e in encoded], out=ends[1:])
    bitmap = None
    if missing.any():
        bitmap = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(ends), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(texts), buffers)


def _prefixes(
    hashes: Sequence[bytes | None], again: Callable[[bytes], bytes] | None
) -> pa.Array:
    said = [b"" if h is None else (h if again is None else again(h)) for h in hashes]
    values = np.frombuffer(b"".join(said), np.uint64)
    lengths = np.array([len(s) // PREFIX_BYTES for s in said], np.int64)
    return _lists(lengths, _arrow(values), [h is None for h in hashes])


def _lists(lengths: np.ndarray, values: pa.Array, null: Sequence[bool]) -> pa.Array:
    ends = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=ends[1:])
    missing = np.array(null, bool)
    bitmap = None
    if missing.any():
        bitmap = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    kind = pa.list_(values.type)
    return pa.Array.from_buffers(
        kind, len(lengths), [bitmap, pa.py_buffer(ends)], children=[values]
    )
