"""A comparison's set-up in one line: what a reader of a screenshot asks back.

It reads metadata and lengths, no steps.
"""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from analyzer.look import Side
from analyzer.run import Run


def set_up(runs: Mapping[Side, Run]) -> str:
    """Requests, lengths, pool, model, device and clock of the runs; the last one's where they must
    be the same."""
    *_, last = runs.values()
    meta, requests = last.meta, last.requests
    parts = [
        str(meta.workload.get("name") or last.recording.label),
        f"{requests.height:,} requests",
        f"prompt median {_median(requests['prompt_tokens'])}, output median {_median(requests['output_tokens'])} tokens",
        _pools(runs),
    ]
    for kind in ("model", "device"):
        said = meta.get(kind) or meta.settings.get(kind)
        name = said.get("name") if isinstance(said, dict) else said
        if name:
            parts.append(str(name))
    return " · ".join([*parts, _clocks(runs)])


def _clocks(runs: Mapping[Side, Run]) -> str:
    """'both simulated, times modelled', or what differs; with what really ran, where that is known."""
    said = {s: "modelled" if r.is_simulated else "measured" for s, r in runs.items()}
    kinds, all_of = set(said.values()), {1: "", 2: "both "}.get(len(runs), "all ")
    if len(kinds) > 1:
        return "times of " + ", of ".join(f"{s} {kind}" for s, kind in said.items())
    if kinds == {"modelled"}:
        return f"{all_of}simulated, times modelled"
    ran = {run.meta.executor for run in runs.values()}
    known = f" ({next(iter(ran))} engine)" if len(ran) == 1 and None not in ran else ""
    return f"{all_of}measured{known}"


def _median(column: pl.Series) -> str:
    value = column.cast(pl.Float64).median()
    return f"{value:,.0f}" if isinstance(value, float) else "—"


def _pools(runs: Mapping[Side, Run]) -> str:
    """'2,588 blocks of 16 tokens', or each run's where they differ."""
    pools = {side: run.recording.pool_blocks for side, run in runs.items()}
    *_, last = runs.values()
    size = last.meta.block_size_tokens
    tokens = f" of {size} tokens" if size else ""
    if len(set(pools.values())) == 1:
        return f"{pools['A']:,} blocks{tokens}"
    said = [f"{n:,} ({side})" for side, n in pools.items()]
    return f"{', '.join(said[:-1])} and {said[-1]} blocks{tokens}"
