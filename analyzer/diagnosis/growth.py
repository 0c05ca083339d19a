"""How usage grows while the same requests decode: the pool that follows from it, and when it is full.

Between two samples with the same running requests and no prompts, every token that was generated
took a slot: pool = generated tokens / growth of usage. Where all requests take a block in the same
step, usage is a staircase: pool = requests / height of a stair. Both hold without start-up lines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analyzer.diagnosis.series import Array, Series, stretches

ROUNDING_FRAC = 0.0005  # a usage is printed with a tenth of a per cent: half of it either way
MIN_GROWTH_FRAC = 0.008
MIN_STAIR_FRAC = 0.01
MAX_INTERVAL_S = 90.0  # in a longer time requests end and others take their place unseen
MAX_AHEAD = 10.0
DECODE_FRAC = 0.3  # of a request's best speed: below it something else takes the steps, such as a long prompt
LIKELY_FRAC = 0.6  # below, growth over two samples says nothing of the wall
FULL_FRAC = 0.98
LIKELY_FULL_FRAC = 0.9  # between two samples, where something else says that it was full


@dataclass(frozen=True)
class Slope:
    """Pool in tokens from growth of usage. first, last: samples of the stretch; low, high: what the
    rounding of usage allows; per_s: usage a second."""

    tokens: float
    low: float
    high: float
    first: int
    last: int
    generated: float
    grown_frac: float
    per_s: float


@dataclass(frozen=True)
class Stairs:
    """Pool in blocks from a staircase. step_frac: height of a stair; running: requests that step
    together; period_s: time between stairs; block_size: tokens of a request between two stairs,
    None where generation is not known; edges: samples that are first on a stair."""

    blocks: float
    low: float
    high: float
    step_frac: float
    running: int
    period_s: float
    block_size: int | None
    edges: tuple[int, ...]
    levels: tuple[float, ...]


def decode_stretches(series: Series) -> list[Array]:
    """Samples of each stretch of pure decode, as indices: the same running, no prompts, usage not
    falling, no sample much later than usual. A prompt is counted with its first token, so the sample before one
    with prompts may already hold a part of them."""
    at = series.valid(series.t_s, series.usage, series.running, series.generation)
    if len(at) < 2:
        return []
    t, u = series.t_s[at], series.usage[at]
    running, prompt = series.running[at], series.prompt[at]
    waiting = series.waiting[at].copy()  # who waits takes what others free, unseen
    waiting[running == 1] = 0  # but not from the only one that runs
    soon = np.append(prompt[2:] > 0, False)  # prompts in the sample after
    evicted = np.nan_to_num(series.col("num_preempted")[at])[1:] > 0
    evicted |= np.diff(series.col("preemptions_total")[at]) > 0
    gap = np.diff(t)
    usual = np.median(gap[gap > 0]) if (gap > 0).any() else np.inf
    each = series.generation[at] / np.maximum(running, 1)
    pure = (
        (np.diff(u) >= -1e-9)
        & (running[1:] == running[:-1])
        & (running[1:] > 0)
        & ~(prompt[1:] > 0)
        & ~soon
        & (each[1:] >= DECODE_FRAC * each.max())
        & (series.generation[at][1:] > 0)
        & ~(np.maximum(waiting[1:], waiting[:-1]) > 0)
        & (gap > 0)
        & (gap <= min(2.5 * usual, MAX_INTERVAL_S))
        & ~evicted
    )
    return [at[first : last + 2] for first, last in stretches(pure)]


def rise_per_s(t_s: Array, values: Array) -> float:
    """Slope of the line of least squares, 0 where all samples have one time."""
    away = t_s - t_s.mean()
    square = float((away * away).sum())
    return float((away * (values - values.mean())).sum()) / square if square > 0 else 0.0


def find_slope(series: Series) -> Slope | None:
    """The slope of the stretch that generated most, or None where nothing grew enough."""
    best: Slope | None = None
    for at in decode_stretches(series):
        t, u = series.t_s[at], series.usage[at]
        grown = float(u[-1] - u[0])
        if grown < MIN_GROWTH_FRAC:
            continue
        generated = float((series.generation[at][1:] * np.diff(t)).sum())
        error = 2 * ROUNDING_FRAC / grown
        tokens = generated / grown
        slope = Slope(
            tokens,
            tokens / (1 + error),
            tokens / max(1 - error, 0.05),
            int(at[0]),
            int(at[-1]),
            generated,
            grown,
            rise_per_s(t, u),
        )
        if best is None or slope.generated > best.generated:
            best = slope
    return best


def find_stairs(series: Series) -> Stairs | None:
    """The staircase of usage, or None where growth is smooth or too short to tell."""
    for at in decode_stretches(series):
        t, u = series.t_s[at], series.usage[at]
        rises = np.diff(u)
        up = rises[rises > 3 * ROUNDING_FRAC]
        if len(up) < 3 or up.min() < MIN_STAIR_FRAC or (rises > 3 * ROUNDING_FRAC).all():
            continue
        step = float(up.min())
        steps = np.rint(up / step)
        step = float(up.sum() / steps.sum())
        flat = rises[rises <= 3 * ROUNDING_FRAC]
        if np.abs(up / step - steps).max() > 0.15 or (flat > ROUNDING_FRAC).any():
            continue
        edges = np.flatnonzero(rises > 3 * ROUNDING_FRAC) + 1
        num = float(steps[1:].sum())
        period = float(t[edges[-1]] - t[edges[0]]) / num
        generated = float((series.generation[at][1:] * np.diff(t))[edges[0] : edges[-1]].sum())
        running = int(series.running[at][0])
        error = 2 * ROUNDING_FRAC / float(up.sum())
        block = generated / running / num
        return Stairs(
            running / step,
            running / (step * (1 + error)) - 1,
            running / (step * (1 - error)) + 1,
            step,
            running,
            period,
            2 ** int(np.rint(np.log2(block))) if block >= 1 else None,
            tuple(int(i) for i in at[edges]),
            tuple(float(x) for x in np.unique(np.round(u, 4))),
        )
    return None


@dataclass(frozen=True)
class Wall:
    """When the pool is full. at_s: on the samples' clock; low_s, high_s: bounds; observed: the sample
    that shows it, None for a forecast; from_sample: the sample that the forecast starts at; left_tokens,
    per_s: what was free there and how many tokens a second took it; how: a clause."""

    at_s: float
    low_s: float
    high_s: float
    observed: int | None
    from_sample: int
    left_tokens: float | None
    per_s: float | None
    how: str


def first_full(series: Series) -> int | None:
    """The first sample with at least 98 % of the pool in use, or None."""
    full = np.flatnonzero(series.usage >= FULL_FRAC)
    return int(full[0]) if len(full) else None


def first_move_s(series: Series) -> float | None:
    """By when the pool was full, as a counter of preemptions that grew tells; None: it never did.

    A victim is counted when it runs again, which may be long after. Where Running fell before that by
    what Waiting rose, near a full pool, that was it.
    """
    total = series.col("preemptions_total")
    at = series.valid(total, series.t_s)
    grown = at[1:][np.diff(total[at]) > 0]
    if not len(grown):
        return None
    seen = series.valid(series.t_s, series.usage, series.running, series.waiting)
    seen = seen[seen <= grown[0]]
    left = -np.diff(series.running[seen])
    queued = (left > 0) & (np.diff(series.waiting[seen]) == left)
    queued &= np.maximum(series.usage[seen][1:], series.usage[seen][:-1]) >= LIKELY_FULL_FRAC
    moved = seen[1:][queued]
    return float(series.t_s[moved[0] if len(moved) else grown[0]])


def forecast(
    series: Series, pool_tokens: float | None, stairs: Stairs | None, before: int | None = None
) -> Wall | None:
    """When a growing pool is full, from the samples up to `before` (None: all), or None where usage
    does not grow or has no time. Raises nothing."""
    known = series.valid(series.t_s, series.usage)
    if before is not None:
        known = known[known <= before]
    if not len(known):
        return None
    last = int(known[-1])
    if stairs is not None and (before is None or stairs.edges[-1] <= before):
        return _next_stair(series, stairs)
    found = [_by_tokens(series, last, pool_tokens), _by_slope(series, known)]
    walls = [w for w in found if w is not None]
    if not walls:
        return None
    first = walls[0]
    ends = [w.at_s for w in walls]
    return Wall(
        first.at_s,
        min([*ends, *(w.low_s for w in walls)]),
        max([*ends, *(w.high_s for w in walls)]),
        None,
        last,
        first.left_tokens,
        first.per_s,
        first.how,
    )


def _next_stair(series: Series, stairs: Stairs) -> Wall:
    edge = stairs.edges[-1]
    level = float(series.usage[edge])
    fit = int((1 - level) / stairs.step_frac + 1e-6)
    at_s = float(series.t_s[edge]) + (fit + 1) * stairs.period_s
    slack = float(np.nanmedian(series.gaps_s))
    how = f"the stair after {100 * level:.1f} % does not fit, and stairs come every {stairs.period_s:.1f} s"
    return Wall(at_s, at_s - slack, at_s + slack / 2, None, edge, None, None, how)


def _by_tokens(series: Series, last: int, pool_tokens: float | None) -> Wall | None:
    """Generated tokens fill what was free at `last`; rates of later samples are used where they are."""
    if pool_tokens is None or series.usage[last] < LIKELY_FRAC:
        return None
    known = series.valid(series.usage, series.running)
    known = known[known <= last][-2:]
    ran = series.running[known]
    if len(known) == 2 and ran[1] > 1.1 * ran[0] + 1:
        return None  # admissions fill it, not what is generated
    left = pool_tokens * (1 - float(series.usage[last]))
    total = left
    now = float(series.t_s[last])
    rate = _rate_at(series, last)
    for i in series.valid(series.t_s, series.generation):
        if i <= last:
            continue
        rate = float(series.generation[i])
        span = float(series.t_s[i]) - now
        if rate * span >= left:
            break
        left -= rate * span
        now += span
    if not rate or rate <= 0:
        return None
    at_s = now + left / rate
    slack = ROUNDING_FRAC * pool_tokens / rate
    how = f"{total:,.0f} tokens were free and {rate:,.1f} tokens/s took them"
    return Wall(at_s, at_s - slack, at_s + slack, None, last, total, rate, how)


def _rate_at(series: Series, last: int) -> float:
    at = series.valid(series.generation)
    at = at[at <= last]
    return float(series.generation[at[-1]]) if len(at) else 0.0


def _by_slope(series: Series, known: Array) -> Wall | None:
    """The last rising stretch of usage, drawn on to 100 %."""
    u = series.usage[known]
    first = len(u) - 1
    while first > 0 and u[first - 1] <= u[first] + 1e-9:
        first -= 1
    at = known[first:]
    few = len(at) < 2 or (len(at) < 3 and u[-1] < LIKELY_FRAC)
    if few or u[-1] - u[first] < 2 * MIN_GROWTH_FRAC:
        return None
    per_s = rise_per_s(series.t_s[at], series.usage[at])
    if per_s <= 0:
        return None
    last = int(at[-1])
    ahead_s = (1 - float(series.usage[last])) / per_s
    if ahead_s > MAX_AHEAD * float(series.t_s[last] - series.t_s[at[0]]):
        return None  # so short a rise says nothing of so far a time
    at_s = float(series.t_s[last]) + ahead_s
    how = f"usage grew {100 * per_s:.3f} % a second over {len(at)} samples"
    return Wall(at_s, at_s, at_s, None, last, None, None, how)
