"""The samples of one engine rank as arrays, NaN where a value is missing, each with its line.

It knows the columns of telemetry and how a rate follows from a counter. It judges nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import polars as pl

from traces.evidence.evidence import Line
from traces.telemetry import Telemetry

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class Series:
    """rank: data-parallel rank, None for all or unknown; frame: its samples in order."""

    rank: int | None
    frame: pl.DataFrame
    texts: dict[tuple[str | None, int], str] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return self.frame.height

    def col(self, name: str) -> Array:
        """A column as floats, NaN for missing."""
        return self.frame[name].cast(pl.Float64).fill_null(float("nan")).to_numpy()

    def has(self, name: str) -> bool:
        """Whether any sample has the value."""
        return self.frame[name].null_count() < self.frame.height

    @cached_property
    def t_s(self) -> Array:
        return self.col("t_s")

    @cached_property
    def usage(self) -> Array:
        return self.col("kv_usage_frac")

    @cached_property
    def running(self) -> Array:
        """Running requests: as stated, else those of the step."""
        stated = self.col("num_running")
        decode = self.col("num_decode_requests")
        context = np.nan_to_num(self.col("num_context_requests"))
        return np.where(np.isnan(stated), decode + context, stated)

    @cached_property
    def waiting(self) -> Array:
        return self.col("num_waiting")

    @cached_property
    def swapped(self) -> Array:
        return self.col("num_swapped")

    @cached_property
    def generation(self) -> Array:
        """Output tokens per second: as stated, else from counts or counters."""
        return self._rate("generation_tokens_per_s", "generation_tokens")

    @cached_property
    def prompt(self) -> Array:
        """Prompt tokens per second: as stated, else computed tokens per time."""
        stated = self._rate("prompt_tokens_per_s", "prompt_tokens")
        computed = self._per_time(self.col("prompt_computed_tokens"))
        return np.where(np.isnan(stated), computed, stated)

    def _rate(self, stated: str, counted: str) -> Array:
        rate = self.col(stated)
        rate = np.where(np.isnan(rate), self._per_time(self.col(counted)), rate)
        total = self.col(f"{counted}_total")
        return np.where(np.isnan(rate), self._per_time(_differences(total)), rate)

    def _per_time(self, counts: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = counts / self.interval_s
        return np.where(np.isfinite(rate), rate, np.nan)

    @cached_property
    def interval_s(self) -> Array:
        """Time that the counts cover: as stated, else the time since the sample before."""
        stated = self.col("interval_s")
        gaps = np.diff(self.t_s, prepend=np.nan)
        return np.where(np.isnan(stated), gaps, stated)

    @cached_property
    def gaps_s(self) -> Array:
        """Time since the sample before, NaN for the first."""
        return np.diff(self.t_s, prepend=np.nan)

    @property
    def timed(self) -> bool:
        """Whether at least two samples have a time."""
        return int(np.isfinite(self.t_s).sum()) >= 2

    @property
    def per_step(self) -> bool:
        """Whether a sample is one engine step: numbered, and mostly one after the other."""
        steps = self.col("step")
        steps = steps[np.isfinite(steps)]
        return len(steps) > 1 and float(np.median(np.diff(steps))) <= 1

    def line(self, index: int) -> Line:
        """Where sample `index` was read."""
        row = self.frame.row(int(index), named=True)
        source, number = row["source"], row["line"]
        text = self.texts.get((source, number), "") if number is not None else ""
        return Line(source or "samples", number or int(index) + 1, row["num_lines"] or 1, text)

    def lines(self, *indices: int) -> tuple[Line, ...]:
        """Lines of several samples, each once."""
        return tuple(dict.fromkeys(self.line(i) for i in indices))

    def valid(self, *arrays: Array) -> Array:
        """Indices of the samples for which all arrays have a value."""
        good = np.ones(len(self), dtype=bool)
        for array in arrays:
            good &= np.isfinite(array)
        return np.flatnonzero(good)


def _differences(total: Array) -> Array:
    """Growth of a counter since the last sample that had it; a reset gives its value after it."""
    grown = np.full(total.shape, np.nan)
    last = np.nan
    for i, value in enumerate(total):
        if np.isnan(value):
            continue
        if not np.isnan(last):
            grown[i] = value - last if value >= last else value
        last = value
    return grown


def counter_growth(total: Array) -> tuple[float, int]:
    """Growth of a counter over all samples, and how often it was reset."""
    known = total[np.isfinite(total)]
    grown = _differences(known)[1:]
    return float(np.nansum(grown)), int((np.diff(known) < 0).sum())


def split_ranks(telemetry: Telemetry | None) -> list[Series]:
    """One Series a rank, in the order of ranks; samples of no single rank come last."""
    if telemetry is None:
        return []
    samples = telemetry.samples.sort("sample")
    texts = _texts(telemetry)
    ranks = sorted(r for r in samples["engine_rank"].unique() if r is not None)
    found = [Series(int(r), samples.filter(pl.col("engine_rank") == r), texts) for r in ranks]
    rest = samples.filter(pl.col("engine_rank").is_null())
    return [*found, *([Series(None, rest, texts)] if rest.height else [])]


def _texts(telemetry: Telemetry) -> dict[tuple[str | None, int], str]:
    kept = telemetry.scan("lines").collect()
    return {
        (s, n): t for s, n, t in zip(kept["source"], kept["line"], kept["text"], strict=True)
    }


def stretches(good: Array) -> Iterator[tuple[int, int]]:
    """First and last index of each run of True."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], good.astype(np.int8), [0]))))
    for first, end in zip(edges[::2], edges[1::2], strict=True):
        yield int(first), int(end) - 1
