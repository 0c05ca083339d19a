"""Percentiles of plain and weighted samples, and an interval for a paired difference.

It knows numbers only: what they measure, and which direction is better, is known by its callers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

SUMMARY_KEYS = ("mean", "p50", "p90", "p99")
_SHARES = (0.5, 0.9, 0.99)

RESAMPLES = 400
_BINS, _SHIFT = 1 << 20, 44  # of 64 bits, 20 tell a bin
_PIECE = 1 << 20  # values looked at in one go

MAX_SAMPLE = 4_000  # larger samples are drawn from, and the interval scaled back


def summarize_sample(values: np.ndarray) -> dict[str, float | None]:
    """mean, p50, p90, p99 of the values that are not NaN; linear percentiles; all None if none."""
    values = values[~np.isnan(values)]
    if len(values) == 0:
        return dict.fromkeys(SUMMARY_KEYS)
    return dict(zip(SUMMARY_KEYS, sample_statistics(values[None, :])[0].tolist(), strict=True))


def sample_statistics(samples: np.ndarray) -> np.ndarray:
    """mean, p50, p90, p99 along the last axis: [..., n] -> [..., 4]. No NaN, n >= 1."""
    percentiles = np.quantile(samples, _SHARES, axis=-1)
    return np.stack([samples.mean(axis=-1), *percentiles], axis=-1)


def weighted_percentiles(
    values: np.ndarray, weights: np.ndarray, shares: tuple[float, ...]
) -> list[float]:
    """Linear percentiles of the sample in which each value occurs `weights` times.

    values, weights: [n], whole weights >= 0, at least one above 0; shares in 0..1. The same
    numbers as np.quantile over np.repeat(values, weights), without building it.
    """
    num = int(weights.sum(dtype=np.int64))
    position = np.asarray(shares) * (num - 1)
    below = np.floor(position).astype(np.int64)
    low, high = (
        _at_ranks(values, weights, ranks) for ranks in (below, np.minimum(below + 1, num - 1))
    )
    return list((low + (high - low) * (position - below)).tolist())


def _at_ranks(values: np.ndarray, weights: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """The values at these places (from 0) of the ordered sample, without ordering more of it than the
    bins of like values in which they lie."""
    counts = np.zeros(_BINS, np.int64)
    pieces = [slice(i, i + _PIECE) for i in range(0, len(values), _PIECE)]
    for piece in pieces:
        added = np.bincount(_bins(values[piece]), weights[piece], minlength=_BINS)
        counts += added.astype(np.int64)
    upto = np.cumsum(counts)
    found = np.empty(len(ranks))
    wanted = np.searchsorted(upto, ranks, side="right")
    for bin_ in np.unique(wanted):
        inside = [np.flatnonzero(_bins(values[p]) == bin_) + p.start for p in pieces]
        rows = np.concatenate(inside)
        rows = rows[weights[rows] > 0]
        order = rows[np.argsort(values[rows])]
        before = upto[bin_] - counts[bin_]
        of_bin = np.cumsum(weights[order], dtype=np.int64) + before
        here = wanted == bin_
        found[here] = values[order[np.searchsorted(of_bin, ranks[here], side="right")]]
    return found


def _bins(values: np.ndarray) -> np.ndarray:
    """Numbers of bins that lie as the values do: sign, exponent and eight bits of the fraction."""
    bits = np.ascontiguousarray(values, np.float64).view(np.int64)
    ordered = bits ^ ((bits >> 63) & np.int64(0x7FFFFFFFFFFFFFFF))
    return (ordered >> _SHIFT) + _BINS // 2


@dataclass(frozen=True)
class Interval:
    """A difference of one statistic (B - A) and the range that holds it in 95 of 100 resamples."""

    delta: float
    low: float
    high: float

    @property
    def excludes_zero(self) -> bool:
        return self.low > 0 or self.high < 0


def paired_intervals(a: np.ndarray, b: np.ndarray, seed: int = 0) -> Mapping[str, Interval]:
    """mean, p50, p90, p99 of b less those of a, each with a 95 % bootstrap interval.

    a, b: [n], the same requests in the same order of arrival, no NaN. Requests are drawn in pairs
    and in runs of about cube-root-n neighbours (circular block bootstrap), because requests that
    arrive together share a queue and a storm of preemptions. The interval says what another draw
    of such requests could have given; it knows nothing of clock noise. Above MAX_SAMPLE requests
    each resample is smaller and its spread is scaled by sqrt(m / n).

    Source: Politis & Romano 1992 (circular block bootstrap), m out of n with the usual rate.
    """
    n = len(a)
    if n == 0:
        return {}
    index = _resamples(n, seed)
    point = sample_statistics(b[None, :])[0] - sample_statistics(a[None, :])[0]
    drawn = sample_statistics(b[index]) - sample_statistics(a[index])
    low, high = point + _spread(drawn, point, index.shape[1], n)
    return {
        key: Interval(float(point[i]), float(low[i]), float(high[i]))
        for i, key in enumerate(SUMMARY_KEYS)
    }


def paired_sum_interval(a: np.ndarray, b: np.ndarray, seed: int = 0) -> Interval | None:
    """Sum of b less that of a with its interval, drawn as in `paired_intervals`; None for n = 0.

    a, b: [n], the same requests in the same order of arrival, no NaN.
    """
    n = len(a)
    if n == 0:
        return None
    difference = b.astype(np.float64) - a
    index = _resamples(n, seed)
    point = np.atleast_1d(difference.sum())
    drawn = difference[index].mean(axis=-1, keepdims=True) * n
    low, high = point + _spread(drawn, point, index.shape[1], n)
    return Interval(float(point[0]), float(low[0]), float(high[0]))


def _resamples(n: int, seed: int) -> np.ndarray:
    """Rows of [0, n) to draw: [RESAMPLES, m], in runs of neighbours."""
    m = min(n, MAX_SAMPLE)
    run = max(1, round(m ** (1 / 3)))
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, n, size=(RESAMPLES, -(-m // run)))
    return ((starts[:, :, None] + np.arange(run)) % n).reshape(RESAMPLES, -1)[:, :m]


def _spread(drawn: np.ndarray, point: np.ndarray, m: int, n: int) -> np.ndarray:
    """Distance of both ends of the interval from the point: [2, k], scaled from m to n rows."""
    return np.asarray((np.quantile(drawn, [0.025, 0.975], axis=0) - point) * np.sqrt(m / n))
