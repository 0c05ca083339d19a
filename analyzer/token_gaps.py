"""Gaps between neighbouring output tokens (ITL), rebuilt from a recording that holds no token times.

It knows when steps ended, which requests were in decode, and when they were away. How exact the
result is, `token_gaps` says.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from analyzer.lifecycles import away_intervals
from analyzer.stats import SUMMARY_KEYS, weighted_percentiles


@dataclass(frozen=True)
class TokenGaps:
    """All gaps between neighbouring output tokens of finished requests.

    lengths_s [n] each occur weights [n] times; num_gaps: how many there are by the output token
    counts; total_s: their sum by first and last token, so that the mean is exact; num_unplaced:
    gaps by count less gaps by weight, 0 where the reconstruction is consistent.
    """

    lengths_s: np.ndarray
    weights: np.ndarray
    num_gaps: int
    total_s: float

    @property
    def num_unplaced(self) -> int:
        return self.num_gaps - int(self.weights.sum())

    def summary(self) -> dict[str, float | None]:
        """mean, p50, p90, p99; None where there is no gap."""
        if self.num_gaps == 0 or not self.weights.any():
            return dict.fromkeys(SUMMARY_KEYS)
        p50, p90, p99 = weighted_percentiles(self.lengths_s, self.weights, (0.5, 0.9, 0.99))
        return {"mean": self.total_s / self.num_gaps, "p50": p50, "p90": p90, "p99": p99}


def token_gaps(requests: pl.DataFrame, events: pl.DataFrame, steps: pl.DataFrame) -> TokenGaps:
    """Gaps between tokens: a request in decode yields one token at the end of each step it runs in.

    steps: at least step, t_start_s, duration_s, decode_tokens. Between the step of its first and
    the step of its last token, each step gives a request one gap, as long as the distance between
    the ends of two steps, with two exceptions:

    - A preemption at step p with resumption at step r gives one gap from the end of step p - 1 to
      the end of the step that yields again. That is r, or later where lost tokens are computed
      again in chunks: the number of chunk steps is what remains of the request's steps when its
      tokens and its time away are taken out, divided by the tokens that each preemption lost.
    - A running request that got no token (it waited for a block, or for budget) is not named in a
      recording, but a step with fewer decode tokens than requests in decode tells how many there
      were. Whoever waits longest is taken to be served first.

    Exact: the mean; all gaps of runs in which each request in decode yields in each step, with at
    most one chunked return per request. Not exact: how chunk steps divide over several returns of
    one request, and who waited. The second exception is left out where a request with tokens did
    not finish, since its last token cannot be placed.
    """
    status = pl.col("status").cast(pl.String)
    yielding = requests.filter(
        pl.col("first_token_s").is_not_null() & (pl.col("output_tokens") > 1)
    )
    done = yielding.filter(status == "finished").select(
        "request_id", "first_token_s", "finish_s", gaps=pl.col("output_tokens") - 1
    )
    if done.is_empty() or steps.is_empty():
        return TokenGaps(np.empty(0), np.empty(0, np.int64), 0, 0.0)
    ends = np.add(steps["t_start_s"].to_numpy(), steps["duration_s"].to_numpy())
    np.maximum.accumulate(ends, out=ends)
    n = len(ends)
    done = done.with_columns(
        first=_step_of(ends, done["first_token_s"]), last=_step_of(ends, done["finish_s"])
    )
    away, back = _pauses(done, events, steps["step"].to_numpy())
    spans = done["first"].to_numpy() + 1, done["last"].to_numpy() + 1
    plain = _covered(n, spans, (away, back + 1))
    if done.height == yielding.height:
        missed = plain.copy()
        np.add.at(missed, back, 1)
        missed -= steps["decode_tokens"].to_numpy()
        plain, waited, served = _take_out_waits(plain, np.maximum(missed, 0, out=missed))
        away, back = np.concatenate([away, waited]), np.concatenate([back, served])
    lengths = np.zeros(n + len(away))
    np.subtract(ends[1:], ends[:-1], out=lengths[1:n])
    lengths[n:] = ends[back] - ends[away - 1]
    weights = np.ones(n + len(away), np.int32)
    np.maximum(plain, 0, out=weights[:n])
    return TokenGaps(
        lengths_s=lengths,
        weights=weights,
        num_gaps=int(done["gaps"].sum()),
        total_s=float((done["finish_s"] - done["first_token_s"]).sum()),
    )


def _step_of(ends: np.ndarray, times: pl.Series) -> pl.Series:
    """Row of the step that ends at each time (times are such ends, up to rounding)."""
    t = times.to_numpy()
    row = np.searchsorted(ends, t - 1e-9 * np.maximum(1.0, np.abs(t)))
    return pl.Series(np.minimum(row, len(ends) - 1))


def _covered(
    n: int, spans: tuple[np.ndarray, np.ndarray], gaps: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """How many of the spans [start, stop) cover each of n rows, less the gaps that do. [n], int32."""
    change = np.zeros(n + 2, np.int32)
    for (starts, stops), one in ((spans, 1), (gaps, -1)):
        np.add.at(change, starts, one)
        np.subtract.at(change, stops, one)
    return np.cumsum(change, out=change)[:n]


def _pauses(
    done: pl.DataFrame, events: pl.DataFrame, step_ids: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of `steps` in which requests went away after their first token, and yielded again."""
    pauses = (
        away_intervals(events)
        .drop_nulls("resume_step")
        .join(done, on="request_id", how="inner", maintain_order="left")
    )
    pauses = pauses.with_columns(
        away=pl.Series(np.searchsorted(step_ids, pauses["preempt_step"].to_numpy())),
        back=pl.Series(np.searchsorted(step_ids, pauses["resume_step"].to_numpy())),
    ).filter((pl.col("away") > pl.col("first")) & (pl.col("back") <= pl.col("last")))
    lost = (
        pl.when(pl.col("mode_used").cast(pl.String) != "swap")
        # at least a little, so that what is left divides where all was found in the cache
        .then(
            (pl.col("tokens") - pl.col("found_tokens") - pl.col("restored_tokens")).clip(
                lower_bound=0
            )
            + 1e-6
        )
        .otherwise(0.0)
    )
    chunks = (
        pl.col("last")
        - pl.col("first")
        - (pl.col("back") - pl.col("away")).sum()
        - pl.col("gaps").first()
    )
    share = (lost.cum_sum() / lost.sum()).fill_nan(0.0)
    upto = (chunks.clip(lower_bound=0) * share).round().cast(pl.Int64).over("request_id")
    following = (pl.col("away").shift(-1) - 1).over("request_id")
    limit = pl.min_horizontal(
        following, "last"
    )  # ignores the null behind a request's last pause
    pauses = pauses.with_columns(upto=upto, limit=limit)
    here = pl.col("upto") - pl.col("upto").shift(1, fill_value=0).over("request_id")
    found = pauses.select("away", yields=pl.min_horizontal(pl.col("back") + here, "limit"))
    return found["away"].to_numpy(), found["yields"].to_numpy()


def _take_out_waits(
    plain: np.ndarray, missed: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Plain gaps per step without those that are part of a wait, and the waits' first and last row.

    missed [n]: requests in decode that got no token in each step. Alters `plain`.
    """
    begins, ended = missed.copy(), np.zeros_like(missed)
    begins[1:] -= missed[:-1]
    np.negative(np.minimum(begins, 0, out=ended), out=ended)
    np.maximum(begins, 0, out=begins)
    waited, served = (_repeated(counts) for counts in (begins, ended))
    waited = waited[: len(served)]  # who waits at the very end never yields
    plain -= missed
    plain -= ended
    return plain, waited, served


def _repeated(counts: np.ndarray) -> np.ndarray:
    """Each row so many times as it counts."""
    rows = np.flatnonzero(counts)
    return np.repeat(rows, counts[rows])
