"""THE contract between engine and analyzer: every table and column of a recording.

A recording is a directory (or a zip of one) that holds one folder per table, each with Parquet
parts `part-00000.parquet`, `part-00001.parquet`, ... Every part carries the run's metadata as a
JSON document under the key `kv_replay` of its key-value metadata. `closed.json` beside the folders
is written last, with the number of rows of each table; where it is missing, the writer was stopped
and the tail of the run may be missing too.

This module knows names, types, units and meanings. It reads and writes nothing.

Block counts. `pool = used + free` at every step. The null block is not part of the pool: vLLM's
`num_gpu_blocks` is `pool + 1`. `used` counts blocks that somebody holds, blocks fenced behind a copy
to the host included. `free` counts the rest, `cached_free` those of them that still carry a prefix
hash and can be hit until they are handed out.

When a row of `steps` was taken: the decisions and counts are those after `schedule()` of that step,
that is, while the step executes. `num_finished` counts requests whose last token this step produced.

Metadata may hold `not_recorded`, a list of "table.column": what its executor could not see. Such a
column holds 0 or null and says nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

SCHEMA_VERSION = "1.2"
READABLE_VERSIONS = ("1.0", "1.1", "1.2")
METADATA_KEY = b"kv_replay"
CLOSED_FILE = "closed.json"

CLOCKS = ("modelled", "measured", "step")
EVENT_KINDS = (
    "arrive",
    "admit",
    "preempt",
    "swap_out",
    "swap_in",
    "load",
    "resume",
    "finish",
    "abort",
    "refuse",
)
MODES = ("recompute", "swap", "offload", "cheapest")
STATUSES = ("finished", "aborted", "refused", "unfinished")


@dataclass(frozen=True)
class Column:
    """One column: its Arrow type, unit, whether a null is allowed, and what it means.

    since: the version that brought it; in older recordings it reads as null, or as 0 where no null
    is allowed (what it counts did not exist then).
    """

    name: str
    type: pa.DataType
    unit: str
    nullable: bool
    meaning: str
    since: str = "1.0"


@dataclass(frozen=True)
class Table:
    """One table of a recording."""

    name: str
    columns: tuple[Column, ...]
    required: bool = True

    @property
    def arrow(self) -> pa.Schema:
        """Arrow schema with each column's unit and meaning as field metadata."""
        return pa.schema(
            [
                pa.field(
                    c.name,
                    c.type,
                    nullable=c.nullable,
                    metadata={"unit": c.unit, "meaning": c.meaning},
                )
                for c in self.columns
            ]
        )

    @property
    def names(self) -> list[str]:
        return [c.name for c in self.columns]

    def column(self, name: str) -> Column:
        """The column of that name. Raises KeyError."""
        for c in self.columns:
            if c.name == name:
                return c
        raise KeyError(name)


_I32, _I64, _F64, _STR = pa.int32(), pa.int64(), pa.float64(), pa.string()
_DICT = pa.dictionary(pa.int32(), pa.string())


def _c(
    name: str,
    type_: pa.DataType,
    unit: str,
    meaning: str,
    nullable: bool = False,
    since: str = "1.0",
) -> Column:
    return Column(name, type_, unit, nullable, meaning, since)


STEPS = Table(
    "steps",
    (
        _c("step", _I64, "index", "schedule() call, from 0, increasing"),
        _c("t_start_s", _F64, "s", "start of the step since the start of the run"),
        _c("duration_s", _F64, "s", "length of the step, copies it waited for included"),
        _c("num_running", _I32, "requests", "requests in the running queue"),
        _c(
            "num_waiting",
            _I32,
            "requests",
            "requests in the waiting queue, preempted ones included",
        ),
        _c(
            "num_swapped",
            _I32,
            "requests",
            "requests whose KV is in host memory (swap) or on its way back (swap, offload)",
        ),
        _c(
            "num_admitted",
            _I32,
            "requests",
            "requests admitted for the first time in this step",
        ),
        _c("num_resumed", _I32, "requests", "preempted or swapped requests that run again"),
        _c("num_preempted", _I32, "requests", "victims of this step"),
        _c("num_finished", _I32, "requests", "requests whose last token this step produced"),
        _c("prefill_tokens", _I32, "tokens", "prompt tokens computed for the first time"),
        _c("decode_tokens", _I32, "tokens", "generated tokens computed for the first time"),
        _c(
            "recomputed_tokens",
            _I32,
            "tokens",
            "tokens whose KV had been computed before and was lost",
        ),
        _c(
            "cached_tokens",
            _I32,
            "tokens",
            "tokens taken from the GPU's prefix cache at admission or resumption",
        ),
        _c("used_blocks", _I32, "blocks", "GPU blocks held, fenced ones included"),
        _c(
            "fenced_blocks",
            _I32,
            "blocks",
            "of the used blocks, those that wait for a copy to the host to end",
        ),
        _c(
            "cached_free_blocks",
            _I32,
            "blocks",
            "of the free blocks, those that can still be hit in the prefix cache",
        ),
        _c("free_blocks", _I32, "blocks", "GPU blocks that nobody holds"),
        _c(
            "host_used_blocks",
            _I32,
            "blocks",
            "host blocks held by swapped requests, or filled in the host cache (offload)",
        ),
        _c(
            "swap_out_bytes",
            _I64,
            "bytes",
            "KV bytes whose copy to the host was started in this step",
        ),
        _c(
            "swap_in_bytes",
            _I64,
            "bytes",
            "KV bytes whose copy from the host was started in this step",
        ),
        _c(
            "stall_s",
            _F64,
            "s",
            "of the duration, time spent waiting for copies or without anything to run",
        ),
        _c("link_out_busy_s", _F64, "s", "of the duration, time the link to the host was busy"),
        _c(
            "link_in_busy_s", _F64, "s", "of the duration, time the link from the host was busy"
        ),
        _c(
            "restored_tokens",
            _I32,
            "tokens",
            "tokens restored from the host cache for requests admitted or resumed in this step",
            since="1.1",
        ),
        _c(
            "num_decode",
            _I32,
            "requests",
            "requests with one query token in this step; null, as all that follow: not recorded",
            True,
            "1.2",
        ),
        _c(
            "decode_ctx_tokens",
            _I64,
            "tokens",
            "contexts of these requests summed, the step's own tokens included",
            True,
            "1.2",
        ),
        _c("num_chunks", _I32, "requests", "requests with more query tokens", True, "1.2"),
        _c("chunk_tokens", _I32, "tokens", "query tokens of these requests", True, "1.2"),
        _c(
            "prefill_qk",
            _F64,
            "pairs",
            "sum over these requests of n (s + n / 2): n query tokens behind s computed ones",
            True,
            "1.2",
        ),
        _c("num_logit_rows", _I32, "rows", "rows that went through the LM head", True, "1.2"),
        _c(
            "num_padded",
            _I32,
            "requests",
            "size of the CUDA graph that ran the decode batch; null: none",
            True,
            "1.2",
        ),
        _c(
            "compute_s",
            _F64,
            "s",
            "of the duration, device time of the forward pass and sampling",
            True,
            "1.2",
        ),
    ),
)

EVENTS = Table(
    "events",
    (
        _c("step", _I64, "index", "step in which it was decided"),
        _c("t_s", _F64, "s", "time since the start of the run; for arrive the arrival itself"),
        _c("kind", _DICT, "enum", f"one of {', '.join(EVENT_KINDS)}"),
        _c("request_id", _STR, "key", "the request it happened to"),
        _c(
            "mode_asked",
            _DICT,
            "enum",
            f"preempt: the configured mode, one of {', '.join(MODES)}",
            True,
        ),
        _c(
            "mode_used",
            _DICT,
            "enum",
            "preempt: the mode that was chosen and possible (host full: recompute); never cheapest",
            True,
        ),
        _c("blocks", _I32, "blocks", "blocks taken, freed or moved"),
        _c(
            "tokens",
            _I64,
            "tokens",
            "arrive: prompt tokens; preempt: computed tokens lost or moved; load: tokens on their way from the host cache; admit, resume: tokens found in the GPU's prefix cache; finish: output tokens",
        ),
        _c("bytes", _I64, "bytes", "KV bytes copied"),
        _c(
            "cost_s",
            _F64,
            "s",
            "preempt: modelled direct cost of the mode used, taken alone: all computed tokens had none been found again (recompute, offload), or both copies (swap); swap_out, swap_in, load: time of the copy, queue on the link excluded",
            True,
        ),
        _c(
            "recompute_est_s",
            _F64,
            "s",
            "preempt: engine time that recomputing the victim was expected to cost: on top of the running batch, without the tokens that the prefix cache was expected to give back (version 1.0: recomputing all of them alone)",
            True,
        ),
        _c(
            "swap_est_s",
            _F64,
            "s",
            "preempt: engine time that swapping the victim was expected to cost: stalls, or blocks out of use with asynchronous copies, queue on the link and shared blocks that come back private included (version 1.0: both copies alone)",
            True,
        ),
        _c(
            "cause_request_id",
            _STR,
            "key",
            "preempt: the request whose need of a block evicted it (itself, if it asked)",
            True,
        ),
        _c("free_blocks_before", _I32, "blocks", "free blocks just before the event"),
        _c("reason", _STR, "text", "refuse: why the request can never run", True),
    ),
)

REQUESTS = Table(
    "requests",
    (
        _c("request_id", _STR, "key", "unique"),
        _c("arrival_s", _F64, "s", "since the start of the run"),
        _c("prompt_tokens", _I64, "tokens", "prompt length"),
        _c("output_tokens", _I64, "tokens", "output tokens produced"),
        _c("priority", _I64, "rank", "smaller runs first under the priority policy"),
        _c("first_scheduled_s", _F64, "s", "start of the step that first ran it", True),
        _c(
            "first_token_s",
            _F64,
            "s",
            "end of the step that produced its first output token",
            True,
        ),
        _c(
            "finish_s",
            _F64,
            "s",
            "end of the step that produced its last output token, or the abort",
            True,
        ),
        _c("num_preemptions", _I32, "times", "times it was a victim"),
        _c("recomputed_tokens", _I64, "tokens", "tokens computed again because of preemption"),
        _c(
            "cached_tokens",
            _I64,
            "tokens",
            "tokens taken from the GPU's prefix cache, all admissions",
        ),
        _c(
            "swapped_bytes",
            _I64,
            "bytes",
            "KV bytes copied to and from the host for it while it lived (the simple connector's stores belong to no request)",
        ),
        _c(
            "preempted_s", _F64, "s", "time between its preemptions and its resumptions, summed"
        ),
        _c("max_itl_s", _F64, "s", "longest gap between neighbouring output tokens", True),
        _c("status", _DICT, "enum", f"one of {', '.join(STATUSES)}"),
        _c(
            "restored_tokens",
            _I64,
            "tokens",
            "tokens restored from the host cache, all admissions",
            since="1.1",
        ),
        _c("arrival_step", _I64, "index", "step before which it arrived", True, "1.1"),
        _c(
            "prefix_ids",
            pa.list_(pa.uint64()),
            "hash",
            "leading segments of its prompt: equal ids at equal places are equal tokens",
            True,
            "1.1",
        ),
        _c(
            "prefix_tokens",
            pa.list_(_I64),
            "tokens",
            "length of each of these segments; empty: each covers the metadata's workload.prefix_block_tokens",
            True,
            "1.1",
        ),
    ),
)

BLOCKS = Table(
    "blocks",
    (
        _c("block_id", _I32, "id", "GPU block, from 1; 0 is the null block"),
        _c("request_id", _STR, "key", "who held it"),
        _c("logical_index", _I32, "index", "position in the block table of the request"),
        _c(
            "first_step",
            _I64,
            "index",
            "first step in which it was held; an interval may be cut in two where a part was written",
        ),
        _c(
            "last_step",
            _I64,
            "index",
            "last step in which it was held, or the step before the next piece of the interval",
        ),
    ),
    required=False,
)

TABLES: tuple[Table, ...] = (STEPS, EVENTS, REQUESTS, BLOCKS)


def table(name: str) -> Table:
    """The table of that name. Raises KeyError."""
    for t in TABLES:
        if t.name == name:
            return t
    raise KeyError(name)
