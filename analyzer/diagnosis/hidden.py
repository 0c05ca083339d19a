"""Preemptions that no line counts, inferred from usage, Running and Waiting of periodic samples.

Three signs, each with its reason: KV that grows faster than the tokens that were generated and
prompts that were counted (a resumed request's prefill is counted nowhere); usage that falls by more than
growth allows while Running stays (a victim left and came back); Running that falls by exactly what
Waiting rises while no prompt is computed (victims went to the queue; a finished request would have made
room for one that waits).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzer.diagnosis.growth import ROUNDING_FRAC
from analyzer.diagnosis.pool import Pool
from analyzer.diagnosis.series import Series
from traces.evidence.evidence import Line

NEAR_WALL_FRAC = 0.95
COLLAPSE = 3.0  # generation before the wall over generation after it
MIN_MOVES = 2
DEFAULT_BUDGET = 8192  # vLLM V1 API server on large GPUs; 2,048 on others


@dataclass(frozen=True)
class Hidden:
    """low, high: preemptions; first_s, last_s: samples between which they fall; before, after: median
    generation before and after the first; hidden_tokens: the most prefill seen hidden in one interval;
    interval: that sample; drops: samples at which usage fell; victim_tokens: what one victim held."""

    low: int
    high: int | None
    how: str
    first_s: float | None
    last_s: float | None
    per_s: tuple[float, float] | None
    recomputed_low: int | None
    recomputed_high: int | None
    lines: tuple[Line, ...]
    before: float | None = None
    after: float | None = None
    hidden_tokens: float | None = None
    interval: int | None = None
    drops: tuple[int, ...] = ()
    victim_tokens: float | None = None
    queued: int = 0

    @property
    def thrash(self) -> bool:
        """Whether the same requests come and go: generation collapsed and prefill is hidden."""
        return bool(
            self.before
            and self.after is not None
            and self.hidden_tokens
            and self.before > COLLAPSE * self.after
        )


def find_hidden(series: Series, pool: Pool, budget: float | None) -> Hidden | None:
    """What the samples of a rank cannot hide, or None where they show no sign."""
    at = series.valid(series.usage, series.running)
    if len(at) < 3:
        return None
    u, running = series.usage[at], series.running[at]
    waiting = np.nan_to_num(series.waiting[at])
    prompt = np.nan_to_num(series.prompt[at])
    near = np.maximum(u[:-1], u[1:]) >= NEAR_WALL_FRAC
    same = (running[1:] == running[:-1]) & (waiting[1:] == waiting[:-1]) & (running[1:] > 0)
    idle = np.isfinite(series.prompt[at])[1:] & (prompt[1:] <= 0)
    fell = u[:-1] - u[1:] > np.maximum(0.25 / np.maximum(running[1:], 1), 0.01)
    drops = np.flatnonzero(near & same & idle & fell) + 1
    lost = running[:-1] - running[1:]
    moved = near & idle & (lost > 0) & (waiting[1:] - waiting[:-1] == lost)
    unmatched = near & (lost > 0) & ~moved
    sure = moved.sum() >= MIN_MOVES + 1 or (moved.sum() >= MIN_MOVES and not unmatched.any())
    queued = int(lost[moved].sum()) if sure else 0  # one alone may be an end and an arrival
    if not len(drops) and not queued:
        return None
    if not len(drops):
        return _queued_only(series, at, moved, queued)
    return _thrashing(series, pool, at, drops, queued, budget)


def _queued_only(series: Series, at: np.ndarray, moved: np.ndarray, queued: int) -> Hidden:
    where = at[np.flatnonzero(moved) + 1]
    how = f"Running fell by {queued} in all, Waiting rose by as much each time, and no prompt was computed"
    times = series.t_s[where]
    first = float(times[0]) if np.isfinite(times[0]) else None
    last = float(times[-1]) if np.isfinite(times[-1]) else None
    return Hidden(
        queued,
        None,
        how,
        first,
        last,
        None,
        None,
        None,
        series.lines(*where[:3]),
        queued=queued,
    )


def _thrashing(
    series: Series,
    pool: Pool,
    at: np.ndarray,
    drops: np.ndarray,
    queued: int,
    budget: float | None,
) -> Hidden:
    u, running = series.usage[at], series.running[at]
    gen, t = series.generation[at], series.t_s[at]
    first = int(drops[0])
    before = _median(gen[:first])
    after = _median(gen[first + 1 :]) if first + 1 < len(gen) else _median(gen[first:])
    hidden_tokens = interval = None
    victim = None
    low, high = len(drops) + queued, None
    recomputed: tuple[int | None, int | None] = (None, None)
    requests = float(np.median(running[first:]))
    if pool.tokens and np.isfinite(t).all():
        grown = np.diff(u) * pool.tokens
        made = (gen + np.nan_to_num(series.prompt[at]))[1:] * np.diff(t)
        excess = grown - made
        excess[: first - 1] = 0
        margin = 2 * ROUNDING_FRAC * pool.tokens
        # a stretch that fell hides nothing here; what grew beyond what was made is prefill
        best = int(np.argmax(excess))
        if excess[best] > margin:
            hidden_tokens, interval = float(excess[best]), int(at[best + 1])
        victim = pool.tokens * float(u[max(first - 1, 0)]) / max(requests, 1)
        span = float(t[-1] - t[max(first - 1, 0)])
        if before and after and hidden_tokens and requests > 1 and span > 0:
            steps_per_s = after / (requests - 1)
            most = (budget or DEFAULT_BUDGET) * steps_per_s * span
            seen = float(excess[excess > margin].sum())
            high = max(low, int(np.ceil(most / victim)))
            recomputed = (int(seen), int(max(most, seen)))
    how = (
        f"usage fell {len(drops)} times at the wall while Running stayed at {requests:.0f}: each time a "
        "request lost its blocks and was admitted again; what happened between two samples is not seen"
    )
    if high is not None and after is not None:
        how += (
            f"; at most {high:,}: {requests - 1:.0f} others decode one token a step, so {after:.1f} tokens/s "
            f"are {after / (requests - 1):.1f} steps/s of at most {budget or DEFAULT_BUDGET:,.0f} prefill tokens"
            + ("" if budget else " (the default, assumed)")
        )
    times = [float(x) if np.isfinite(x) else None for x in (t[first], t[int(drops[-1])])]
    span_s = float(t[-1] - t[first]) if np.isfinite(t).all() else 0.0
    rate = (low / span_s, (high or low) / span_s) if span_s > 0 else None
    shown = [int(at[first - 1]), int(at[first]), *([interval] if interval is not None else [])]
    return Hidden(
        low,
        high,
        how,
        times[0],
        times[1],
        rate,
        *recomputed,
        series.lines(*shown),
        before,
        after,
        hidden_tokens,
        interval,
        tuple(int(at[d]) for d in drops),
        victim,
        queued,
    )


def _median(values: np.ndarray) -> float | None:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else None
