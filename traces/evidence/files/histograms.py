"""What a Prometheus histogram says of many requests: mean, and quantiles between bucket bounds.

Buckets are cumulative. Between the first and the last scrape their difference is used, so that the figures
are of the time that the scrapes cover; one scrape, a restart or no new request: all since the start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from traces.evidence.evidence import FACTS, Fact, Line
from traces.evidence.meant import is_meant

QUANTILES = (("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99))


@dataclass
class _State:
    """values: (part, bound, series) -> value; a series that comes again overwrites."""

    values: dict[tuple[str, float | None, str], float] = field(default_factory=dict)

    def _sum(self, part: str) -> float:
        return math.fsum(v for (p, _, _), v in self.values.items() if p == part)

    def sums(self) -> _Sums:
        buckets: dict[float, float] = {}
        for (part, bound, _), value in self.values.items():
            if part == "_bucket" and bound is not None:
                buckets[bound] = buckets.get(bound, 0.0) + value
        return _Sums(buckets, self._sum("_sum"), self._sum("_count"))


@dataclass(frozen=True)
class _Sums:
    buckets: dict[float, float]
    total: float
    count: float


@dataclass
class Histogram:
    """One histogram of one rank over all scrapes: the first and the last state are kept."""

    at: Line
    first: _State | None = None
    last: _State = field(default_factory=_State)
    _scrape: object = None

    def add(
        self, part: str, series: str, bound: str | None, value: float, scrape: object
    ) -> None:
        """A value of a series; several series of one rank in a scrape are added. bound: label le."""
        if self._scrape is not None and scrape is not self._scrape:
            if self.first is None:
                self.first = self.last
            self.last = _State()
        self._scrape = scrape
        if not is_meant(value):
            return
        try:
            le = float(bound) if part == "_bucket" and bound is not None else None
        except ValueError:
            return
        if le is None or le == le:
            self.last.values[part, le, series] = value


def histogram_facts(what: str, histogram: Histogram, rank: int | None) -> list[Fact]:
    """Facts "ttft_mean_s", "ttft_p99_s", ... of a histogram, [] where nothing was counted."""
    state, since = _window(histogram)
    count = state.count or state.buckets.get(math.inf, 0.0)
    if count <= 0:
        return []
    note = f"of {count:,.0f} values {since}"
    facts = []
    ending = "tokens" if what in ("prompt", "output") else "s"
    if state.total > 0:
        name = f"{what}_mean_{ending}"
        facts.append(Fact(name, state.total / count, histogram.at, rank, None, True, note))
    for stat, q in QUANTILES:
        name = f"{what}_{stat}_{ending}"
        value = quantile(state.buckets, q) if name in FACTS else None
        if value is not None:
            between = f"{note}, between the bounds of a bucket"
            facts.append(Fact(name, value, histogram.at, rank, None, True, between))
    return facts


def quantile(buckets: dict[float, float], q: float) -> float | None:
    """The value below which a share q of the counted lies, linear within a bucket; the last finite
    bound where it lies above that. None without counts."""
    bounds = sorted(buckets)
    if not bounds or buckets[bounds[-1]] <= 0:
        return None
    rank = q * buckets[bounds[-1]]
    below, low = 0.0, 0.0
    for bound in bounds:
        here = buckets[bound]
        if here >= rank:
            if math.isinf(bound):
                return low or None
            share = (rank - below) / (here - below) if here > below else 1.0
            return low + (bound - low) * share
        below, low = here, bound
    return low


def _window(histogram: Histogram) -> tuple[_Sums, str]:
    last = histogram.last.sums()
    first = histogram.first.sums() if histogram.first is not None else None
    if first is None or last.count <= first.count:
        return last, "since the server started"
    buckets = {le: n - first.buckets.get(le, 0.0) for le, n in last.buckets.items()}
    between = _Sums(buckets, last.total - first.total, last.count - first.count)
    return between, "between the first and the last scrape"
