"""Which requests met all bounds that a user sets, and what a run served by that.

It knows latencies of requests. As in `latency.goodput`, a finished request without a value (the TPOT
of a single token) meets its bound; one that did not finish meets none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from analyzer.latency import GOODPUT_BOUNDS, request_latency
from traces.errors import SettingsError


@dataclass(frozen=True)
class Goodput:
    """What met all bounds. num_requests: all of the run; num_met: of them; share_frac: None without
    requests; requests_per_s, tokens_per_s: of those that met them, None where the run has no length;
    missed: metric -> finished requests above that bound; num_unfinished: of all, not finished."""

    num_requests: int
    num_met: int
    share_frac: float | None
    requests_per_s: float | None
    tokens_per_s: float | None
    missed: Mapping[str, int]
    num_unfinished: int


def goodput_of(
    requests: pl.DataFrame, bounds: Mapping[str, float], duration_s: float
) -> Goodput:
    """Requests that finished within every bound. bounds: metric -> most seconds allowed.

    Raises SettingsError for a metric that has no bound.
    """
    unknown = sorted(set(bounds) - set(GOODPUT_BOUNDS))
    if unknown:
        raise SettingsError(
            f"{', '.join(unknown)}: no such bound. Choose from {', '.join(GOODPUT_BOUNDS)}."
        )
    latency = request_latency(requests).with_columns(requests["output_tokens"])
    done = latency.filter(pl.col("status").cast(pl.String) == "finished")
    above = {m: (pl.col(m) > limit).fill_null(False) for m, limit in bounds.items()}
    met = done.filter(~pl.any_horizontal(above.values())) if above else done
    per_s = 1 / duration_s if duration_s > 0 else None
    return Goodput(
        num_requests=requests.height,
        num_met=met.height,
        share_frac=met.height / requests.height if requests.height else None,
        requests_per_s=None if per_s is None else met.height * per_s,
        tokens_per_s=None if per_s is None else int(met["output_tokens"].sum()) * per_s,
        missed={m: done.filter(expr).height for m, expr in above.items()},
        num_unfinished=requests.height - done.height,
    )
