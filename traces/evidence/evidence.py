"""What was pasted or uploaded about a server, read: samples, facts and notices, each with its line.

Evidence is made of what readers found in logs, metrics, tables and notes; it judges nothing. A sample is
a row of Telemetry. A fact is something that holds for a server or a time (a pool size, a flag). A
notice is something that happened (a preemption that was reported, a refusal, an abort). Whoever reads
says which line it came from and whether the line states it (known) or it was derived (inferred).

Names of facts and kinds of notices are closed lists, so that rules can rely on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from traces.telemetry import Telemetry

Value = int | float | str | bool | tuple[int | float | str, ...]

# Facts: name -> (unit, meaning). Blocks and tokens are of one rank, the null block left out.
FACTS: dict[str, tuple[str, str]] = {
    "version": ("text", "version of the engine"),
    "model": ("text", "served model"),
    "pool_blocks": ("blocks", "usable GPU blocks"),
    "pool_tokens": ("tokens", "tokens that the pool holds"),
    "host_pool_blocks": ("blocks", "blocks of the host pool"),
    "block_size": ("tokens", "tokens of a block"),
    "null_blocks": ("blocks", "blocks of the pool that are never handed out"),
    "state_blocks": ("blocks", "blocks that a request holds for its state (hybrid models)"),
    "pool_tokens_by_usage": ("tokens", "used tokens over their printed share of the pool"),
    "window_pool_tokens": ("tokens", "tokens of the pool of sliding windows (hybrid models)"),
    "state_slots": ("slots", "state slots of a hybrid model, for all requests"),
    "state_slots_per_request": ("slots", "state slots that are set aside for one request"),
    "available_pool_blocks": (
        "blocks",
        "blocks that would have fitted, where an override made fewer",
    ),
    "kv_bytes": ("bytes", "memory of the KV pool"),
    "kv_bytes_available": ("bytes", "KV memory that the engine says it could have"),
    "kv_bytes_per_token": ("bytes", "KV bytes of a token"),
    "max_concurrency": ("times", "requests of max_model_len tokens that fit, as printed"),
    "max_concurrency_tokens": ("tokens", "the length that this is for"),
    "max_model_len": ("tokens", "longest request"),
    "max_num_seqs": ("requests", "most requests that run at once"),
    "max_num_batched_tokens": ("tokens", "most tokens of a step"),
    "gpu_memory_utilization": ("frac", "share of the device's memory that the engine may take"),
    "device_bytes": ("bytes", "memory of the device"),
    "weights_bytes": ("bytes", "memory of the weights"),
    "activation_bytes": ("bytes", "memory of activations at their peak"),
    "tensor_parallel_size": ("GPUs", "tensor-parallel size"),
    "data_parallel_size": ("ranks", "data-parallel size"),
    "enable_prefix_caching": ("switch", "prefix caching"),
    "enable_chunked_prefill": ("switch", "chunked prefill"),
    "log_stats": ("switch", "whether the engine logs statistics"),
    "preemption_mode": ("word", "recompute or swap, where it is said or follows"),
    "kv_cache_dtype": ("word", "type of the KV cache"),
    "policy": ("word", "scheduling or capacity policy"),
    "prompt_tokens": ("tokens", "prompt length, as stated: one number, or (low, high)"),
    "output_tokens": (
        "tokens",
        "output length or limit, as stated: one number, or (low, high)",
    ),
    "sequences_per_request": ("sequences", "n or best_of"),
    "clients": ("requests", "concurrent requests that a client or proxy sends, as stated"),
    "client_caps": ("requests", "caps of several proxies before one engine, each"),
    "reserved_blocks": ("blocks", "blocks reserved for one request"),
    "reserved_tokens": (
        "tokens",
        "tokens that are set aside for running requests, as last seen",
    ),
    "num_requests": ("requests", "requests of a run, as stated"),
    "preemptions": ("times", "preemptions of a run, as stated"),
    "starts": ("switch", "whether the engine started"),
    "idle_device": ("switch", "whether the device was seen idle (utilisation 0 %)"),
}

# What benchmarks, sweeps and histograms say of many requests: "ttft_p99_s", "prompt_mean_tokens", ...
STATISTICS = ("mean", "p50", "p90", "p95", "p99", "max")
_MEASURED = (
    ("ttft", "s", "s", "time to first token"),
    ("itl", "s", "s", "gap between output tokens"),
    ("tpot", "s", "s", "time per output token of a request"),
    ("e2e", "s", "s", "arrival to end"),
    ("queue", "s", "s", "wait for the first scheduling"),
    ("prompt", "tokens", "tokens", "prompt length"),
    ("output", "tokens", "tokens", "output length"),
)
FACTS |= {
    f"{what}_{stat}_{ending}": (unit, f"{meaning}, {stat} of the requests")
    for what, ending, unit, meaning in _MEASURED
    for stat in STATISTICS
}
FACTS |= {
    "label": ("text", "what a run of a table is called"),
    "request_rate_per_s": ("requests/s", "rate at which a client sends, as stated"),
    "requests_per_s": ("requests/s", "requests that ended in a second"),
    "failed_requests": ("requests", "requests of a run that failed"),
    "duration_s": ("s", "length of a run"),
}

# Notices: kind -> meaning. count and values say what the line says; where a source has too many of a kind,
# one in their middle stands for those that are left out: values: events, count: their sum.
NOTICES: dict[str, str] = {
    "preemption": "a preemption was reported; count: the counter that the line prints, null: none",
    "retract": "SGLang retracted requests; count: how many",
    "swap_out": "a request left for the host; values: blocks, tokens, request",
    "swap_in": "a request came back from the host; values: blocks, tokens, request",
    "resume": "a request came back; values: request, computed_tokens, recomputed_tokens",
    "request_received": "a request came; values: request, prompt_tokens, max_tokens, n",
    "request_finished": "a request ended; values: request, prompt_tokens, output_tokens",
    "request_aborted": "a request was aborted; values: request",
    "request_refused": "a request was refused; values: prompt_tokens, max_tokens, limit_tokens",
    "out_of_blocks": "no blocks for a request; values: asked_blocks, free_blocks, request",
    "alone_out_of_room": "the only running request found no room, and nobody is there to evict",
    "out_of_host_blocks": "the host pool is full",
    "cannot_store": "the host cache had no room for a store",
    "too_small": "the pool cannot serve one request of max_model_len; the engine did not start",
    "override": "a pool size was overridden; values: from_blocks, to_blocks",
    "suggestion": "the engine suggests a memory setting; values: kv_bytes",
    "out_of_memory": "the device ran out of memory",
    "fault": "an error of the engine; values: what",
    "fatal": "the engine ended by an error; values: what",
    "killed": "somebody ended the engine",
    "repeated": "a log collector left out copies of the line before; count: how many",
    "connector": "a KV connector said how much it found; values: hit_tokens, need_tokens, request",
}


@dataclass(frozen=True)
class Line:
    """Where something was read. number: first line in the source, from 1; text: as it was, control
    codes and line ends removed, prompt text left out, at most 400 characters."""

    source: str
    number: int
    num_lines: int = 1
    text: str = ""

    def __str__(self) -> str:
        return f"{self.source}:{self.number}"


@dataclass(frozen=True)
class Fact:
    """One of FACTS. rank: data-parallel rank, None: all or unknown; t_s: on the samples' clock, None:
    from the start; inferred: derived, as the note says."""

    name: str
    value: Value
    at: Line | None = None
    rank: int | None = None
    t_s: float | None = None
    inferred: bool = False
    note: str = ""

    def __post_init__(self) -> None:
        if self.name not in FACTS:
            raise KeyError(f"{self.name!r} is no fact")


@dataclass(frozen=True)
class Notice:
    """One of NOTICES. t_s: on the samples' clock, None where it has no time."""

    kind: str
    at: Line
    t_s: float | None = None
    rank: int | None = None
    count: int | None = None
    values: Mapping[str, Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in NOTICES:
            raise KeyError(f"{self.kind!r} is no kind of notice")


@dataclass(frozen=True)
class SourceReport:
    """What became of one file or paste.

    kind: "log", "prometheus", "table", "notes", ...; family: the grammar that most of it follows, such
    as "v1-engine"; engine: "vllm", ...; num_lines: of it; recognised, skipped: lines (records, where
    lines were wrapped or glued) that said something, and that did not; skipped_examples: up to five;
    sure: 0 to 1, how sure the reader is of engine and family; notes: sentences on prefixes, wraps,
    clocks, copies, lost parts.
    """

    name: str
    kind: str
    family: str
    engine: str | None
    num_lines: int
    recognised: int
    skipped: int
    skipped_examples: tuple[str, ...] = ()
    sure: float = 1.0
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Found:
    """What one reader made of one source, before sources are put together.

    samples: rows by column of telemetry_schema.SAMPLES (absent: missing; `inferred`: names of derived
    values), in the order of the source; t_s is on the source's own clock, whose 0 is first_time. offset_s:
    UTC offset of that clock where it is known, so that clocks of two sources can be put together.
    sweeps, facts, notices, report: as in Evidence.
    """

    report: SourceReport
    samples: tuple[Mapping[str, Value | list[str] | None], ...] = ()
    facts: tuple[Fact, ...] = ()
    notices: tuple[Notice, ...] = ()
    sweeps: tuple[Mapping[str, Value], ...] = ()
    first_time: str | None = None
    offset_s: float | None = None


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that was read of one server (or of several runs of it).

    engine: "vllm", "sglang", "tensorrt-llm", "triton", "tgi", "vllm.rs", ... or None; family: see
    SourceReport; telemetry: the samples, None where there are none; first_time: what t_s = 0 is, as
    the log writes it ("2025-10-15T00:04:38Z", "11-26 14:43:02", "14:43:02"), None: no time; sweeps: runs
    of a table, each row a mapping of FACTS and sample columns; notes: sentences for the user.
    """

    label: str
    engine: str | None
    family: str
    telemetry: Telemetry | None
    facts: tuple[Fact, ...]
    notices: tuple[Notice, ...]
    sources: tuple[SourceReport, ...]
    first_time: str | None = None
    sweeps: tuple[Mapping[str, Value], ...] = ()
    notes: tuple[str, ...] = ()

    def fact(self, name: str, rank: int | None = None) -> Fact | None:
        """The fact of that name: a known one before an inferred one, the last said before earlier ones.

        rank: of that rank, or where none is named. Raises KeyError for a name that is no fact.
        """
        if name not in FACTS:
            raise KeyError(f"{name!r} is no fact")
        found = [
            f for f in self.facts if f.name == name and (rank is None or f.rank in (rank, None))
        ]
        known = [f for f in found if not f.inferred]
        best = known or found
        return best[-1] if best else None

    def all_notices(self, *kinds: str) -> list[Notice]:
        """The notices of these kinds, in the order of the source."""
        return [n for n in self.notices if n.kind in kinds]

    def clock(self, t_s: float) -> str:
        """A time of the samples as the source would write it; seconds from the start where it has none."""
        from traces.evidence.times import shift

        return shift(self.first_time, t_s)
