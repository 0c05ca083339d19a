"""The pool of a vLLM server as `cache_config_info` states it in its labels.

Traps (vLLM 0.26.0 source and shared telemetry notes): num_gpu_blocks includes the null block since V1, and
with data parallelism it is the sum over ranks while kv_cache_size_tokens is of one rank; for hybrid models
blocks x block_size is not the pool in tokens, kv_cache_size_tokens is; block_size is then no block of
tokens either. V0 has no null block and names num_cpu_blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traces.evidence.evidence import Fact, Line, Value
from traces.evidence.meant import is_meant


def pool_facts(
    configs: Mapping[Any, tuple[Mapping[str, str], Line]],
    ranks: Mapping[Any, int | None],
    is_v0: bool,
    notes: list[str],
) -> list[Fact]:
    """Facts of the pool and the cache from the labels. notes gains what was odd."""
    num_ranks = len({r for r in ranks.values() if r is not None}) or 1
    facts: list[Fact] = []
    for key, (labels, at) in configs.items():
        rank = ranks.get(key) if len(configs) > 1 else None
        facts += _plain_facts(labels, at, rank)
        facts += _pool(labels, at, rank, num_ranks if len(configs) <= 1 else 1, is_v0, notes)
    return facts


def _plain_facts(labels: Mapping[str, str], at: Line, rank: int | None) -> list[Fact]:
    found: list[tuple[str, Value | None]] = [
        ("block_size", _number(labels.get("block_size"))),
        ("gpu_memory_utilization", _number(labels.get("gpu_memory_utilization"))),
        ("max_concurrency", _number(labels.get("kv_cache_max_concurrency"))),
        ("enable_prefix_caching", _switch(labels.get("enable_prefix_caching"))),
        ("host_pool_blocks", _number(labels.get("num_cpu_blocks"))),
        ("kv_bytes", _number(labels.get("kv_cache_memory_bytes"))),
    ]
    dtype = labels.get("cache_dtype")
    if dtype and dtype not in ("auto", "None"):
        found.append(("kv_cache_dtype", dtype))
    return [Fact(n, v, at, rank) for n, v in found if v is not None]


def _pool(
    labels: Mapping[str, str],
    at: Line,
    rank: int | None,
    num_ranks: int,
    is_v0: bool,
    notes: list[str],
) -> list[Fact]:
    blocks, size = _number(labels.get("num_gpu_blocks")), _number(labels.get("block_size"))
    tokens = _number(labels.get("kv_cache_size_tokens"))
    override = _number(labels.get("num_gpu_blocks_override"))
    times = _number(labels.get("kv_cache_max_concurrency"))
    facts = []
    if tokens is not None:
        facts.append(Fact("pool_tokens", tokens, at, rank))
    if tokens is not None and times:
        why = "kv_cache_size_tokens over kv_cache_max_concurrency"
        facts.append(Fact("max_model_len", round(tokens / times), at, rank, None, True, why))
    if not isinstance(blocks, int) or blocks <= 0:
        return facts
    is_sum = num_ranks > 1 and _is_sum(blocks, size, tokens, num_ranks)
    if is_sum:
        notes.append(
            f"num_gpu_blocks = {blocks:,} is the sum over {num_ranks} ranks; each has "
            f"{blocks // num_ranks:,}."
        )
        blocks //= num_ranks
    null = 0 if is_v0 or _number(labels.get("num_cpu_blocks")) is not None else 1
    why = "num_gpu_blocks less the null block" if null else "num_gpu_blocks"
    why += f", over {num_ranks} ranks" if is_sum else ""
    facts.append(Fact("pool_blocks", blocks - null, at, rank, None, is_sum, why))
    facts.append(Fact("null_blocks", null, at, rank, None, True))
    if override is not None:
        notes.append(f"The pool was set by num_gpu_blocks_override = {override:,}.")
    if tokens is None and isinstance(size, int):
        why = "blocks x block_size; not so for a hybrid model"
        facts.append(Fact("pool_tokens", (blocks - null) * size, at, rank, None, True, why))
    elif isinstance(size, int) and tokens is not None and abs(blocks * size - tokens) > size:
        notes.append(
            f"{blocks:,} blocks of {size} are not {tokens:,} tokens: the model is hybrid or a block holds "
            "something else; the tokens are taken."
        )
    return facts


def _is_sum(blocks: int, size: float | None, tokens: float | None, num_ranks: int) -> bool:
    """Whether the blocks are of all ranks together: tokens of one rank tell; without them they are."""
    if not size or not tokens:
        return True
    times = blocks * size / tokens
    return abs(times - num_ranks) < abs(times - 1)


def _number(text: str | None) -> int | float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    if not is_meant(value):
        return None
    return int(value) if value == int(value) else value


def _switch(text: str | None) -> bool | None:
    return {"true": True, "1": True, "false": False, "0": False}.get((text or "").lower())
