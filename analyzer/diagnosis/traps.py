"""Known traps of engines and versions, as data: which reading was taken, and why.

A trap applies to evidence of its engine (and family, and versions below `before`) that has one of its
signs. It changes no number here: readers and quantities already know; it tells the user.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from analyzer.diagnosis.findings import UNKNOWN
from analyzer.diagnosis.quantities import Quantities


@dataclass(frozen=True)
class Trap:
    """name; engines: first words of engine names, () for all; applies: whether its sign is there; before:
    fixed in that version, None: not known to be fixed; note: the sentence; source."""

    name: str
    engines: tuple[str, ...]
    applies: Callable[[Quantities], bool]
    note: str
    source: str
    before: tuple[int, ...] | None = None


def _has(column: str) -> Callable[[Quantities], bool]:
    return lambda q: q.main is not None and q.main.has(column)


TRAPS: tuple[Trap, ...] = (
    Trap(
        "v1-prints-no-preemption",
        ("vllm",),
        lambda q: q.is_v1 and q.preemptions.kind == UNKNOWN and q.main is not None,
        "vLLM V1 resets its counters before it prints them, so no log line shows preemptions: their absence is not zero.",
        "vllm PR#38452",
    ),
    Trap(
        "v0-prints-every-50th",
        ("vllm",),
        lambda q: q.is_v0 and bool(q.evidence.all_notices("preemption")),
        "V0 prints the first preemption and then every 50th: the printed counter is taken, not the number of lines.",
        "vllm/core/scheduler.py",
    ),
    Trap(
        "counter-is-late",
        ("vllm",),
        lambda q: q.is_v1 and q.has("counter"),
        "vllm:num_preemptions_total counts a victim when it runs again, and never one that is aborted: a lower bound that lags.",
        "vllm/v1/metrics, 0.26.0",
    ),
    Trap(
        "hits-counted-again",
        ("vllm",),
        _has("prefix_query_tokens_total"),
        "prefix_cache_queries_total counts each failed admission again: no hit rate under pressure follows from it.",
        "vllm#43736",
    ),
    Trap(
        "prompt-throughput-leaves-out-recompute",
        ("vllm",),
        lambda q: q.is_v1 and q.hidden is not None,
        "V1's prompt throughput counts computed tokens of first admissions only: 0.0 does not mean that nothing is prefilled.",
        "vllm/v1/metrics/loggers.py",
    ),
    Trap(
        "printed-size-is-derived",
        ("vllm",),
        lambda q: (
            q.is_v1
            and q.number("pool_tokens") is not None
            and "hybrid" in (q.word("model") + q.evidence.family)
        ),
        "For hybrid models 'GPU KV cache size' is max concurrency x max_model_len: a derived number.",
        "vllm#40691, PR#38364",
    ),
    Trap(
        "null-block",
        ("vllm",),
        lambda q: q.is_v1 and q.pool.blocks is not None,
        "V1 never hands out one block (the null block); usage leaves it out.",
        "vllm/v1/core/block_pool.py",
    ),
    Trap(
        "tp-ranks-print-copies",
        ("sglang",),
        lambda q: len(q.evidence.all_notices("retract")) > 0,
        "Each TP rank prints a retraction: copies of one event are merged, not added.",
        "sglang#4184",
    ),
    Trap(
        "retracted-gauge-is-the-last-event",
        ("sglang",),
        _has("preemptions_total"),
        "sglang:num_retracted_reqs is a gauge of the last event; the counter num_retracted_requests_total is taken.",
        "sglang source 0.5",
    ),
    Trap(
        "hit-rate-is-overwritten",
        ("sglang",),
        _has("prefix_hit_frac"),
        "cache_hit_rate is overwritten by each prefill batch (a running average in old logs): no hit rate is taken from it.",
        "sglang#26608",
    ),
    Trap(
        "host-blocks-counted-as-used",
        ("tensorrt-llm",),
        lambda q: (
            q.main is not None
            and q.main.has("used_blocks")
            and "iteration-json" in q.evidence.family
        ),
        "Before June 2026 usedNumBlocks contained host blocks: usage may read too high.",
        "TensorRT-LLM PR#15075",
    ),
    Trap(
        "used-is-not-reserved",
        ("tensorrt-llm", "triton"),
        _has("used_blocks"),
        "Used blocks are what is written; under GUARANTEED_NO_EVICT admission counts prompt + max_tokens.",
        "TensorRT-LLM#2866",
    ),
    Trap(
        "sampled-between",
        (),
        lambda q: (
            bool(q.evidence.all_notices("resume"))
            and q.max_usage is not None
            and q.max_usage < 0.9
        ),
        "A request came back from preemption although no sample shows a full pool: samples are apart.",
        "LMCache PR#1361",
    ),
)


def find_traps(q: Quantities) -> tuple[str, ...]:
    """Notes of the traps that apply to this engine, version and evidence."""
    version = _version(q.word("version"))
    found = []
    for trap in TRAPS:
        fits = not trap.engines or q.engine in trap.engines
        fixed = trap.before is not None and version is not None and version >= trap.before
        if fits and not fixed and trap.applies(q):
            found.append(f"{trap.note} ({trap.source})")
    return tuple(found)


def _version(text: str) -> tuple[int, ...] | None:
    numbers = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(n) for n in numbers.groups() if n) if numbers else None
