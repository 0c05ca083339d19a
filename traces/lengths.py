"""How long made-up prompts and outputs are: distributions of token counts.

Each has `sample(rng, n)`, which draws n whole numbers of at least 1 from the given Generator and
raises SettingsError for parameters that cannot be. It knows nothing of arrivals or workloads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from traces.errors import SettingsError

IntArray = np.ndarray[tuple[int], np.dtype[np.int64]]


@dataclass(frozen=True)
class Fixed:
    """Always the same number of tokens."""

    tokens: int

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        return np.full(n, self.tokens, dtype=np.int64)


@dataclass(frozen=True)
class Uniform:
    """Equally likely whole numbers from low to high, both included."""

    low: int
    high: int

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        if self.low > self.high:
            raise SettingsError(
                f"uniform lengths: low {self.low} is above high {self.high}. Swap them."
            )
        return rng.integers(self.low, self.high, n, endpoint=True)


@dataclass(frozen=True)
class LogNormal:
    """Log-normal lengths with the given median and 99th percentile, clipped to [low, high]."""

    p50: float
    p99: float
    low: int = 1
    high: int = 1_000_000

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        if not 0 < self.p50 <= self.p99:
            raise SettingsError(
                f"log-normal lengths: need 0 < p50 <= p99, not p50 {self.p50:g} and p99 {self.p99:g}."
            )
        sigma = np.log(self.p99 / self.p50) / 2.3263478740408408  # z of 0.99
        values = self.p50 * np.exp(sigma * rng.standard_normal(n))
        return np.clip(np.rint(values), self.low, self.high).astype(np.int64)


@dataclass(frozen=True)
class Quantiles:
    """Lengths whose percentiles are given: (percent, tokens) from 0 to 100, straight in between.

    Draws are stratified (one in each 1/n of the distribution), so that even a short workload has
    these percentiles. log: straight lines over log tokens, for long tails.
    """

    points: tuple[tuple[float, float], ...]
    log: bool = False

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        percent, tokens = np.array(self.points, dtype=np.float64).T
        if (
            percent[0] != 0
            or percent[-1] != 100
            or (np.diff(percent) <= 0).any()
            or (np.diff(tokens) < 0).any()
            or tokens[0] < 1
        ):
            raise SettingsError(
                "quantile lengths: percents must rise from 0 to 100 and tokens must not fall below 1 or shrink."
            )
        u = (rng.permutation(n) + rng.random(n)) / n * 100
        values = (
            np.exp(np.interp(u, percent, np.log(tokens)))
            if self.log
            else np.interp(u, percent, tokens)
        )
        return np.maximum(1, np.rint(values)).astype(np.int64)


@dataclass(frozen=True)
class Mixture:
    """Each length comes from one of several distributions, chosen with these weights."""

    parts: tuple[tuple[float, Lengths], ...]

    def sample(self, rng: np.random.Generator, n: int) -> IntArray:
        weights = np.array([w for w, _ in self.parts], dtype=np.float64)
        if len(weights) == 0 or (weights < 0).any() or weights.sum() <= 0:
            raise SettingsError("mixture of lengths: weights must be 0 or more and not all 0.")
        chosen = rng.choice(len(weights), n, p=weights / weights.sum())
        drawn = np.stack([d.sample(rng, n) for _, d in self.parts])
        return drawn[chosen, np.arange(n)]


Lengths = Fixed | Uniform | LogNormal | Quantiles | Mixture
