"""Which values of a lever are worth a run: ladders that lead away from the base, one rung after the other.

It knows the base (`Facts`) and which way relief lies. It runs nothing; which rung suffices is found in
`search.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analyzer.lever_facts import Facts

MOST_BLOCKS = 1 << 26  # as many as can be simulated
MOST_REPLICAS = 8
MOST_SEQS = 4_096
MOST_BATCHED = 65_536
LEAST_BATCHED = 128
HIGHEST_UTILIZATION = 0.98  # the rest is for what the profile run does not see
WATERMARKS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
LINKS_GB_PER_S = (
    12.5,
    25.0,
    53.0,
    100.0,
    200.0,
    450.0,
)  # PCIe 3, 4, 5, 6; NVLink-C2C, half and whole
BLOCK_SIZES = (16, 32, 64, 128)  # vLLM's attention on CUDA takes multiples of 16
RATES = tuple(round(i / 100, 2) for i in range(99, 0, -1))
HIGHER_RATES = tuple(round(1 + i / 50, 2) for i in range(1, 151))
CUTS = (1.0, 0.99, 0.95, 0.9)  # shares of requests that a shorter max_model_len leaves whole
COPYING = ("swap", "offload", "cheapest")
PREEMPTIONS = "num_preemptions"


@dataclass(frozen=True)
class Ladder:
    """Values in order of growing distance from the base.

    way: "more" or "less", "" where they are choices; is_ordered: a smaller change is a cheaper one, so
    that the first that suffices is wanted; otherwise all are run and the best is taken. falls: figures
    that do not rise along it, but for anomalies of scheduling, so that the last rung is the best.
    """

    values: Sequence[Any]
    way: str = ""
    is_ordered: bool = True
    falls: frozenset[str] = frozenset()


def more(values: Sequence[Any], *falls: str) -> Ladder:
    return Ladder(values, "more", True, frozenset(falls))


def less(values: Sequence[Any], *falls: str) -> Ladder:
    return Ladder(values, "less", True, frozenset(falls))


def any_of(values: Sequence[Any]) -> Ladder:
    return Ladder(values, "", False)


def larger_pools(f: Facts) -> list[Ladder]:
    """Every pool from one block more up to one that holds all that may run at once."""
    most = min(f.blocks_of_all(), MOST_BLOCKS)
    return [more(range(f.num_gpu_blocks + 1, most + 1), PREEMPTIONS)]


def smaller_pools(f: Facts) -> Ladder:
    return less(range(f.num_gpu_blocks - 1, 1, -1))


def higher_utilization(f: Facts) -> list[Ladder]:
    return [more(_hundredths(f.settings["gpu_memory_utilization"], HIGHEST_UTILIZATION), PREEMPTIONS)]  # fmt: skip


def lower_utilization(f: Facts) -> Ladder:
    return less(_hundredths(f.settings["gpu_memory_utilization"], 0.01))


def _hundredths(start: float, end: float) -> tuple[float, ...]:
    """Whole hundredths after start up to end, either way."""
    if end > start:
        return tuple(
            i / 100 for i in range(math.floor(start * 100 + 1e-9) + 1, round(end * 100) + 1)
        )
    return tuple(
        i / 100 for i in range(math.ceil(start * 100 - 1e-9) - 1, round(end * 100) - 1, -1)
    )


def kv_dtypes(f: Facts) -> list[Ladder]:
    return [any_of(f.kv_dtypes)]


def weight_dtypes(f: Facts) -> list[Ladder]:
    return [more(f.weight_dtypes, PREEMPTIONS)]


def tensor_sizes(f: Facts) -> list[Ladder]:
    now = f.settings["tensor_parallel_size"]
    return [more(tuple(n for n in f.tensor_parallel_sizes if n > now), PREEMPTIONS)]


def pipeline_sizes(f: Facts) -> list[Ladder]:
    now = f.settings["pipeline_parallel_size"]
    return [more(tuple(n for n in f.pipeline_parallel_sizes if n > now), PREEMPTIONS)]


def bigger_devices(f: Facts) -> list[Ladder]:
    """Presets of GPUs with more memory, the smallest first."""
    bigger = (n for n, m in f.devices.items() if m > f.gpu_memory_bytes * 1.02)
    return [more(tuple(n for n in bigger if n != "cpu"))]


def concurrency(f: Facts) -> list[Ladder]:
    """Fewer at once than ever ran in the base; more only where all slots were taken."""
    ran = min(f.max_num_seqs, f.num_requests, f.max_running or f.num_requests)
    fewer = less(range(ran - 1, 0, -1))
    taken = f.max_running is not None and f.max_running >= f.max_num_seqs
    most = min(MOST_SEQS, f.num_requests)
    return [fewer, more(_doubled(f.max_num_seqs, most))] if taken else [fewer]


def batched_tokens(f: Facts) -> list[Ladder]:
    """vLLM takes no fewer tokens than slots."""
    now, least = f.max_num_batched_tokens, max(LEAST_BATCHED, f.max_num_seqs)
    return [less(_halved(now, least)), more(_doubled(now, MOST_BATCHED))]


def model_lengths(f: Facts) -> list[Ladder]:
    """The longest request, then lengths that cut 1, 5 and 10 % of the requests."""
    cuts = np.quantile(f.total_tokens, CUTS, method="higher").astype(int)
    lengths = dict.fromkeys(int(n) + 1 for n in cuts)
    return [less(tuple(n for n in lengths if 2 <= n < f.max_model_len))]


def watermarks(f: Facts) -> list[Ladder]:
    now = f.settings["watermark"]
    return [more(tuple(w for w in WATERMARKS if w > now))]


def thresholds(f: Facts) -> list[Ladder]:
    """Below the longest chunk there can be; 0 is none."""
    now = f.settings["long_prefill_token_threshold"]
    longest = min(int(f.prompt_tokens.max()), f.max_num_batched_tokens)
    found = [less(tuple(n for n in _halved(now or _above(longest), 64) if n < longest))]
    return [*found, any_of((0,))] if now else found


def host_memory(f: Facts) -> list[Ladder]:
    now = f.settings["host_gib"]
    return [more(tuple(now * k for k in (2, 4, 8, 16)) if now else (4.0, 16.0, 64.0))]


def links(f: Facts) -> list[Ladder]:
    return [more(tuple(v for v in LINKS_GB_PER_S if v > f.link_gb_per_s * 1.02))]


def block_sizes(f: Facts) -> list[Ladder]:
    return [any_of(tuple(n for n in BLOCK_SIZES if n != f.block_size))]


def lower_rates(f: Facts) -> list[Ladder]:
    return [less(RATES)]


def higher_rates(f: Facts) -> Ladder:
    return more(HIGHER_RATES)


def replicas(f: Facts) -> list[Ladder]:
    return [more(tuple(range(2, MOST_REPLICAS + 1)))]


def _doubled(start: int, most: int) -> tuple[int, ...]:
    found = []
    value = start * 2
    while value < most * 2:
        found.append(min(value, most))
        value *= 2
    return tuple(n for n in dict.fromkeys(found) if n > start)


def _halved(start: int, least: int) -> tuple[int, ...]:
    found = []
    value = start // 2
    while value >= least:
        found.append(value)
        value //= 2
    return tuple(found)


def _above(tokens: int) -> int:
    """The power of two at or above."""
    return 1 << max(0, tokens - 1).bit_length()
