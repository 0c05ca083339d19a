"""How large the pool is, in blocks and tokens: how that was derived, and what it was checked against.

It knows which engines count a null block, which sizes are printed and which are derived. Sources in
order: what the engine says of its pool; used blocks over usage; bytes over bytes a token; growth of
usage (growth.py); prompts computed before a usage (prefill lines).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from analyzer.diagnosis.findings import INFERRED, KNOWN, UNKNOWN
from analyzer.diagnosis.growth import Slope, Stairs
from analyzer.diagnosis.series import Series
from traces.evidence.evidence import Evidence, Fact, Line

# Tokens of a block where the evidence does not say. Source: the engines' defaults on NVIDIA GPUs.
DEFAULT_BLOCK_SIZE = {"vllm": 16, "tgi": 16, "sglang": 1, "vllm.rs": 64}


@dataclass(frozen=True)
class Pool:
    """blocks: as the engine counts them, null block included; usable_blocks: without it;
    state_blocks: of one request, besides its tokens; kind: known,
    inferred or unknown, for tokens; checks: sentences that agree; disputes: sentences that do not."""

    blocks: int | None = None
    usable_blocks: int | None = None
    tokens: int | None = None
    block_size: int | None = None
    block_size_kind: str = UNKNOWN
    kind: str = UNKNOWN
    how: str = "no line says it"
    checks: tuple[str, ...] = ()
    disputes: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()
    low_tokens: float | None = None
    high_tokens: float | None = None
    state_blocks: int = 0

    def blocks_for(self, tokens: float) -> int:
        """Blocks that so many tokens take."""
        size = self.block_size or 16
        return -int(-tokens // size)


def derive_pool(
    evidence: Evidence,
    series: Series | None,
    slope: Slope | None,
    stairs: Stairs | None,
    is_v1: bool = False,
) -> Pool:
    """The pool of one rank (of the server, where no rank has one). is_v1: vLLM's V1, whose first block is
    never handed out."""
    rank = series.rank if series is not None else None
    facts = _Facts(evidence, rank)
    size, size_kind = _block_size(facts, evidence, stairs)
    pool = (
        _stated(facts, size, size_kind, is_v1)
        or _from_bytes(facts, size, size_kind)
        or _from_concurrency(facts, size, size_kind)
        or _from_used(series, size, size_kind)
        or _from_stairs(stairs, size, size_kind)
        or _from_slope(slope, size, size_kind)
        or _from_prefill(series, size, size_kind)
        or Pool(block_size=size, block_size_kind=size_kind)
    )
    return _checked(pool, facts, series, slope, stairs)


class _Facts:
    """Facts of a rank as numbers."""

    def __init__(self, evidence: Evidence, rank: int | None) -> None:
        self.evidence, self.rank = evidence, rank

    def fact(self, name: str) -> Fact | None:
        return self.evidence.fact(name, self.rank)

    def number(self, name: str) -> float | None:
        fact = self.fact(name)
        value = fact.value if fact is not None else None
        return float(value) if isinstance(value, int | float) else None

    def lines(self, *names: str) -> tuple[Line, ...]:
        found = [self.fact(n) for n in names]
        return tuple(dict.fromkeys(f.at for f in found if f is not None and f.at is not None))


def _block_size(
    facts: _Facts, evidence: Evidence, stairs: Stairs | None
) -> tuple[int | None, str]:
    fact = facts.fact("block_size")
    if fact is not None and isinstance(fact.value, int | float):
        return int(fact.value), INFERRED if fact.inferred else KNOWN
    blocks, tokens = facts.number("pool_blocks"), facts.number("pool_tokens")
    if blocks and tokens and tokens >= blocks:
        return round(tokens / blocks), INFERRED
    times, length = facts.number("max_concurrency"), facts.number("max_concurrency_tokens")
    if blocks and times and length and times >= 0.5:
        size = times * length / blocks
        if abs(size - round(size)) < 0.05 * size:
            near = [s for s in (8, 16, 32, 64, 128, 256) if abs(s / size - 1) < 0.03]
            return (near[0] if near else round(size)), INFERRED
    if stairs is not None and stairs.block_size:
        return stairs.block_size, INFERRED
    size_default = DEFAULT_BLOCK_SIZE.get(_engine(evidence))
    return size_default, INFERRED if size_default else UNKNOWN


def _engine(evidence: Evidence) -> str:
    name = (evidence.engine or "").lower()
    return "vllm.rs" if ".rs" in name or "rust" in name else name.split()[0] if name else ""


def _is_override(facts: _Facts) -> bool:
    """Whether the blocks are those of a flag (num_gpu_blocks_override), not of a start-up line."""
    fact = facts.fact("pool_blocks")
    text = fact.at.text.replace("-", "_") if fact is not None and fact.at is not None else ""
    return "num_gpu_blocks_override" in text and "kv_cache_utils" not in text


def _stated(
    facts: _Facts, size: int | None, size_kind: str, is_v1: bool = False
) -> Pool | None:
    blocks, tokens = facts.number("pool_blocks"), facts.number("pool_tokens")
    if not blocks and not tokens:
        return None
    null = int(facts.number("null_blocks") or 0)
    if is_v1 and not null and blocks and _is_override(facts):
        blocks, null = blocks - 1, 1  # the override counts the null block
    state = facts.fact("pool_blocks") or facts.fact("pool_tokens")
    kind = INFERRED if state is not None and state.inferred and not tokens else KNOWN
    usable: int | None = None
    total: int | None = None
    if blocks:
        usable, total = int(blocks), int(blocks) + null
    elif size:
        total = int(tokens or 0) // size
        usable = total - (null or (1 if is_v1 else 0))
    how = "the engine states it"
    if not tokens:
        if not size or usable is None:
            return Pool(
                total,
                usable,
                None,
                size,
                size_kind,
                kind,
                how,
                lines=facts.lines("pool_blocks"),
            )
        tokens = usable * size
        how = f"{usable:,} blocks of {size} tokens"
    elif total is not None and not blocks:
        how = f"{int(tokens):,} tokens as printed, in blocks of {size}"
    return Pool(
        total,
        usable,
        int(tokens),
        size,
        size_kind,
        kind if size_kind == KNOWN or facts.number("pool_tokens") else INFERRED,
        how,
        lines=facts.lines("pool_blocks", "pool_tokens"),
    )


def _from_bytes(facts: _Facts, size: int | None, size_kind: str) -> Pool | None:
    total, each = facts.number("kv_bytes"), facts.number("kv_bytes_per_token")
    if not total or not each:
        return None
    how = f"{total:,.0f} bytes at {each:,.0f} bytes a token"
    return _of_tokens(total / each, size, size_kind, how, facts.lines("kv_bytes"))


def _from_concurrency(facts: _Facts, size: int | None, size_kind: str) -> Pool | None:
    times, length = facts.number("max_concurrency"), facts.number("max_concurrency_tokens")
    if not times or not length:
        return None
    off = 0.005 / times  # two decimals are printed
    how = f"the printed concurrency, {times:g} x {length:,.0f} tokens"
    bounds = (times * length * (1 - off), times * length * (1 + off))
    lines = facts.lines("max_concurrency")
    return _of_tokens(times * length, size, size_kind, how, lines, bounds)


def _of_tokens(
    tokens: float,
    size: int | None,
    size_kind: str,
    how: str,
    lines: tuple[Line, ...] = (),
    bounds: tuple[float | None, float | None] = (None, None),
) -> Pool:
    blocks = round(tokens / size) if size else None
    return Pool(
        blocks,
        blocks,
        round(tokens),
        size,
        size_kind,
        INFERRED,
        how,
        lines=lines,
        low_tokens=bounds[0],
        high_tokens=bounds[1],
    )


def _from_used(series: Series | None, size: int | None, size_kind: str) -> Pool | None:
    if series is None or not series.has("used_blocks"):
        return None
    used = series.col("used_blocks")
    at = series.valid(used, series.usage)
    at = at[(series.usage[at] > 0.02) & (used[at] > 0)]
    if not len(at):
        return None
    best = int(at[np.argmax(used[at])])
    blocks = float(used[best]) / float(series.usage[best])
    tokens = blocks * size if size else None
    how = f"{used[best]:,.0f} used blocks are {100 * series.usage[best]:.1f} % of the pool"
    return Pool(
        round(blocks),
        round(blocks),
        round(tokens) if tokens else None,
        size,
        size_kind,
        INFERRED,
        how,
        lines=series.lines(best),
    )


def _from_stairs(stairs: Stairs | None, size: int | None, size_kind: str) -> Pool | None:
    if stairs is None:
        return None
    blocks = round(stairs.blocks)
    how = (
        f"usage rises in stairs of {100 * stairs.step_frac:.2f} %: {stairs.running} requests take a "
        f"block together, {stairs.running} / {stairs.step_frac:.4f} = {blocks} blocks"
    )
    tokens = blocks * size if size else None
    bounds = (stairs.low * size, stairs.high * size) if size else (None, None)
    return Pool(
        blocks,
        blocks,
        tokens,
        size,
        size_kind,
        INFERRED,
        how,
        low_tokens=bounds[0],
        high_tokens=bounds[1],
    )


def _from_slope(slope: Slope | None, size: int | None, size_kind: str) -> Pool | None:
    if slope is None:
        return None
    how = f"usage grew {100 * slope.grown_frac:.1f} % while {slope.generated:,.0f} tokens were generated"
    return _of_tokens(slope.tokens, size, size_kind, how, bounds=(slope.low, slope.high))


def prefill_estimate(series: Series | None) -> tuple[float, float, float] | None:
    """Pool in tokens from prefill lines whose usage is the state before the batch: tokens computed so
    far over usage; the estimate, the lowest and the highest of the lines. None without such lines."""
    if series is None or series.has("num_decode_requests") or series.has("duration_s"):
        return None
    name = "context_tokens" if series.has("context_tokens") else "prompt_computed_tokens"
    new = series.col(name)
    at = series.valid(new, series.usage)
    if len(at) < 3:
        return None
    new, u = new[at], series.usage[at]
    before = np.concatenate(([0.0], np.cumsum(new)[:-1]))
    rising = np.concatenate(([True], np.diff(u) >= 0))
    if not rising.all() or u[0] > 0.02 or u[-1] < 0.2:
        return None
    good = u >= 0.25
    each = before[good] / u[good]
    if len(each) < 2 or each.max() / each.min() > 1.2:
        return None
    return float(np.median(each)), float(each.min()), float(each.max())


def _from_prefill(series: Series | None, size: int | None, size_kind: str) -> Pool | None:
    found = prefill_estimate(series)
    if found is None:
        return None
    tokens, low, high = found
    how = "prompt tokens computed before a line over the usage on that line"
    return _of_tokens(tokens, size, size_kind, how, bounds=(low, high))


def _checked(
    pool: Pool, facts: _Facts, series: Series | None, slope: Slope | None, stairs: Stairs | None
) -> Pool:
    """The pool with what agrees with it and what does not."""
    claims: list[tuple[str, float, float]] = []
    times, length = facts.number("max_concurrency"), facts.number("max_concurrency_tokens")
    if times and length and "concurrency" not in pool.how:
        text = f"printed concurrency {times:g} x {length:,.0f} tokens = {times * length:,.0f}"
        claims.append((text, times * length, max(0.02, 0.006 / times)))
    if slope is not None and pool.how[:5] != "usage":
        text = (
            f"slope: {slope.generated:,.0f} generated tokens for {100 * slope.grown_frac:.1f} % of "
            f"usage = {slope.tokens:,.0f} tokens"
        )
        claims.append((text, slope.tokens, max(0.1, 3 * (slope.high / slope.tokens - 1))))
    by_usage = facts.number("pool_tokens_by_usage")
    if by_usage:
        text = f"used tokens over their printed share = {by_usage:,.0f}"
        claims.append((text, by_usage, 0.05))
    total, each = facts.number("kv_bytes"), facts.number("kv_bytes_per_token")
    if total and each:
        claims.append((f"{total:,.0f} bytes / {each:,.0f} bytes a token", total / each, 0.03))
    checks: list[str] = []
    disputes: list[str] = []
    for text, tokens, tolerance in claims:
        if not pool.tokens:
            continue
        agrees = abs(tokens / pool.tokens - 1) <= tolerance
        if stairs is not None and text.startswith("slope"):
            continue  # a slope between two stairs means nothing
        (checks if agrees else disputes).append(
            f"{text} against {pool.tokens:,} tokens ({100 * (tokens / pool.tokens - 1):+.1f} %)"
        )
    state = int(facts.number("state_blocks") or 0)
    return replace(pool, checks=tuple(checks), disputes=tuple(disputes), state_blocks=state)
