"""The Telemetry noun's tables: what a server said from outside, sampled, per engine rank.

A telemetry recording is a directory laid out like a recording (schema.py): one folder per table with
Parquet parts, metadata as JSON under the same key `kv_replay` with `kind: telemetry`, and
`closed.json` written last. It comes from a stat logger inside a server (one sample an engine step)
or from a reader of logs and metrics (samples at any distance, or without any time).

Every value of a sample is known, inferred or missing. Null is missing. The column `inferred` names
the values that no line of the source states and that were derived; all other values are known. The
metadata says why: `inferred` and `missing` map a column (or words for what has no column, such as
"victims") to a sentence. `source`, `line` and `num_lines` say where a sample was read; where a value
comes from another place, a row of `origins` says so, and `lines` may keep the text.

Counts cover the time since the sample before of the same rank (`interval_s` where it is known);
columns that end `_total` are the source's own counters, which may start anywhere and be reset.

It knows names, types, units, meanings and versions. It reads and writes no file, and it needs
pyarrow alone, so that it can be imported inside a server.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from traces.schema import Column, Table

KIND = "telemetry"
TELEMETRY_VERSION = "1.0"
READABLE_TELEMETRY_VERSIONS = ("1.0",)

_I32, _I64, _F64, _STR = pa.int32(), pa.int64(), pa.float64(), pa.string()
_DICT = pa.dictionary(pa.int32(), pa.string())


def _key(name: str, type_: pa.DataType, unit: str, meaning: str) -> Column:
    return Column(name, type_, unit, False, meaning)


def _value(name: str, type_: pa.DataType, unit: str, meaning: str) -> Column:
    return Column(name, type_, unit, True, meaning)


def _tokens(name: str, meaning: str) -> Column:
    return _value(name, _I64, "tokens", meaning)


def _requests(name: str, meaning: str) -> Column:
    return _value(name, _I64, "requests", meaning)


_WHERE = (
    _value("source", _DICT, "text", "file or stream it was read from"),
    _value("line", _I64, "line", "first line of it there, from 1"),
    _value(
        "num_lines", _I32, "lines", "lines it spans, where a line was wrapped or a scrape read"
    ),
)

VALUES: tuple[Column, ...] = (
    # the pool
    _value(
        "kv_usage_frac", _F64, "frac", "share of the GPU pool in use, as the engine counts it"
    ),
    _value("used_blocks", _I64, "blocks", "GPU blocks in use"),
    _value("host_usage_frac", _F64, "frac", "share of the host pool in use"),
    # the queues
    _requests("num_running", "requests in the running queue"),
    _requests(
        "num_waiting", "requests that wait, for whatever reason, preempted ones included"
    ),
    _requests("num_waiting_capacity", "of the waiting, those that wait for room"),
    _requests(
        "num_deferred", "of the waiting, those held back (adapter, grammar, KV on its way)"
    ),
    _requests("num_swapped", "requests whose KV is in host memory"),
    # preemption
    _requests("num_preempted", "preemptions reported since the sample before"),
    _value("preemptions_total", _I64, "times", "the source's counter of preemptions"),
    _tokens("recomputed_tokens", "tokens whose KV had been computed before and was lost"),
    # work
    _tokens("prompt_tokens", "prompt tokens of requests whose first token came, hits included"),
    _tokens("prompt_computed_tokens", "of the prompt tokens, those that were computed"),
    _tokens("prompt_cached_tokens", "of the prompt tokens, those found in the prefix cache"),
    _tokens("prompt_external_tokens", "of the prompt tokens, those that a connector brought"),
    _tokens("generation_tokens", "output tokens produced"),
    _tokens("iteration_tokens", "prompt tokens computed and output tokens produced, together"),
    _tokens("prompt_tokens_total", "the source's counter of prompt tokens"),
    _tokens("generation_tokens_total", "the source's counter of output tokens"),
    _value(
        "prompt_tokens_per_s",
        _F64,
        "tokens/s",
        "prompt rate as the engine states it (vLLM V1: computed tokens only, at the first token)",
    ),
    _value("generation_tokens_per_s", _F64, "tokens/s", "output rate as the engine states it"),
    # one engine step, where the engine details it
    _value("duration_s", _F64, "s", "length of the step that the sample reports"),
    _requests("num_context_requests", "requests of the step that the engine calls context"),
    _tokens("context_tokens", "tokens of those requests in the step"),
    _requests("num_decode_requests", "requests of the step that the engine calls generation"),
    _tokens("decode_tokens", "tokens of those requests in the step (a resumption has many)"),
    # prefix cache and connector, in tokens asked for and found
    _requests("prefix_lookups", "admission attempts of new requests, failed ones too in vLLM"),
    _tokens("prefix_query_tokens", "tokens of those attempts"),
    _tokens("prefix_hit_tokens", "of those, tokens found"),
    _requests("resumed_lookups", "admission attempts of requests that had been preempted"),
    _tokens("resumed_query_tokens", "tokens of those attempts"),
    _tokens("resumed_hit_tokens", "of those, tokens found"),
    _tokens("external_query_tokens", "tokens that a connector was asked for, new requests"),
    _tokens("external_hit_tokens", "of those, tokens that it has"),
    _tokens("external_resumed_query_tokens", "the same for requests that had been preempted"),
    _tokens("external_resumed_hit_tokens", "of those, tokens that it has"),
    _tokens("prefix_query_tokens_total", "the source's counter of tokens asked for"),
    _tokens("prefix_hit_tokens_total", "the source's counter of tokens found"),
    _value("prefix_hit_frac", _F64, "frac", "hit rate as the engine states it"),
    _value(
        "external_hit_frac", _F64, "frac", "hit rate of the connector as the engine states it"
    ),
    # copies between GPU and host
    _value("load_bytes", _I64, "bytes", "KV bytes copied from the host"),
    _value("store_bytes", _I64, "bytes", "KV bytes copied to the host"),
    _value("load_s", _F64, "s", "time of the copies from the host, summed"),
    _value("store_s", _F64, "s", "time of the copies to the host, summed"),
    _value("store_failures", _I64, "times", "stores for which the host pool had no room"),
    # what users felt
    _requests("num_finished", "requests that ended, aborted ones included"),
    _value("max_ttft_s", _F64, "s", "longest time to first token that was reported"),
    _value("max_itl_s", _F64, "s", "longest gap between output tokens that was reported"),
)

SAMPLES = Table(
    "samples",
    (
        _key(
            "sample",
            _I64,
            "index",
            "number of the sample, from 0, increasing; numbers that are not there were lost",
        ),
        _value("t_s", _F64, "s", "time since the start; null where the source has no time"),
        _value("interval_s", _F64, "s", "time that the counts cover; null where it is unknown"),
        _value(
            "engine_rank",
            _I32,
            "id",
            "data-parallel rank; null: all ranks together, or unknown",
        ),
        _key(
            "num_ranks", _I32, "ranks", "ranks that the sample sums up (a usage is their mean)"
        ),
        _value("step", _I64, "index", "engine step, where a sample is one step"),
        *VALUES,
        _key("inferred", pa.list_(_STR), "names", "values of this sample that were derived"),
        *_WHERE,
    ),
)

FINISHED_REQUESTS = Table(
    "finished_requests",
    (
        _value("request_id", _STR, "key", "id, hashed unless the operator asked for plain ids"),
        _value("engine_rank", _I32, "id", "data-parallel rank"),
        _value("t_s", _F64, "s", "when its end was reported, on the clock of the samples"),
        _value(
            "arrival_s",
            _F64,
            "s",
            "when it came, on the same clock",
        ),
        _tokens("prompt_tokens", "prompt length"),
        _tokens("output_tokens", "output tokens produced"),
        _tokens("max_tokens", "most output tokens that were asked for"),
        _tokens("cached_tokens", "prompt tokens found in a cache at its first admission"),
        _value("e2e_s", _F64, "s", "arrival to end"),
        _value("queued_s", _F64, "s", "wait for the first scheduling"),
        _value("prefill_s", _F64, "s", "first scheduling to first token, later waits included"),
        _value("decode_s", _F64, "s", "first token to last, later waits included"),
        _value("num_preemptions", _I32, "times", "times it was a victim"),
        _value("reason", _DICT, "enum", "why it ended, in the engine's word"),
    ),
    required=False,
)

ORIGINS = Table(
    "origins",
    (
        _key("sample", _I64, "index", "the sample"),
        _key("column", _DICT, "name", "the value whose origin differs from the sample's"),
        *_WHERE,
        _value("note", _STR, "text", "how the value was derived"),
    ),
    required=False,
)

LINES = Table(
    "lines",
    (
        _value("source", _DICT, "text", "file or stream"),
        _key("line", _I64, "line", "number of the line there, from 1"),
        _key("text", _STR, "text", "the line as it was, colour codes and line ends removed"),
    ),
    required=False,
)

TELEMETRY_TABLES: tuple[Table, ...] = (SAMPLES, FINISHED_REQUESTS, ORIGINS, LINES)
VALUE_NAMES: tuple[str, ...] = tuple(c.name for c in VALUES)


def telemetry_metadata(
    *,
    engine: Mapping[str, Any],
    recorded_by: str,
    sampling: str,
    missing: Mapping[str, str] | None = None,
    inferred: Mapping[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """The metadata document of a telemetry recording, as each part carries it.

    engine: name ("vllm", "sglang", ...) and version, None where unknown; recorded_by: stat logger
    or reader; sampling: "steps", "periodic", "scrapes" or "irregular"; missing, inferred: see the
    module; more: start_unix_s (time of t_s = 0, None where unknown), ranks, model, block_size,
    pool_blocks (usable blocks of one rank), settings, request_ids, notes, software.
    """
    return {
        "kind": KIND,
        "telemetry_version": TELEMETRY_VERSION,
        "engine": dict(engine),
        "recorded_by": recorded_by,
        "sampling": sampling,
        "missing": dict(missing or {}),
        "inferred": dict(inferred or {}),
        **more,
    }


def telemetry_metadata_bytes(meta: Mapping[str, Any]) -> bytes:
    """The document for the key-value metadata of a part. Raises TypeError for what JSON lacks."""
    return json.dumps(meta, sort_keys=True, allow_nan=False).encode()


def telemetry_table(name: str) -> Table:
    """The table of that name. Raises KeyError."""
    for t in TELEMETRY_TABLES:
        if t.name == name:
            return t
    raise KeyError(name)
