"""All preemptions of a run together: sums, who suffers and who causes most, repeats, cascades, cost
over time, and what the mode that was not used would have cost.

It knows told tables (`preemption_rows.told`), in which what is not known is null: a sum over such a
column is None rather than too low, and says how many values it lacks. It draws nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from analyzer.look import Side, seconds
from analyzer.preemptions import cascades

Who = Literal["victims", "aggressors"]
BUCKETS = 80
MOST_TIMES = 6  # requests evicted as often or more share a bar
_MODE = pl.col("mode_used").cast(pl.String)


@dataclass(frozen=True)
class Sums:
    """What preemptions add up to. num_victims: requests; num_repeated: of them, evicted more than
    once; num_thrash: preemptions of a victim that had been back for less time than it had been
    away; times and tokens: None where a value is not known; num_unpriced: without a direct cost."""

    num: int
    num_victims: int
    num_repeated: int
    num_thrash: int
    num_unpriced: int
    direct_cost_s: float | None
    induced_s: float | None
    away_s: float | None
    recomputed_tokens: int | None


def sums(table: pl.DataFrame) -> Sums:
    """Sums over a told table. A victim that never ran again has no time away, and is left out of it."""
    times = table.group_by("request_id").len()["len"]
    before_s = pl.col("away_s").shift(1).over("request_id")
    num_thrash = table.select((pl.col("since_resume_s") < before_s).sum()).item()
    back = table.filter(pl.col("resume_step").is_not_null())
    again = _total(back, "recomputed_tokens")
    return Sums(
        num=table.height,
        num_victims=len(times),
        num_repeated=int((times > 1).sum()),
        num_thrash=int(num_thrash or 0),
        num_unpriced=table["direct_cost_s"].null_count(),
        direct_cost_s=_total(table, "direct_cost_s"),
        induced_s=_total(table, "induced_s"),
        away_s=_total(back, "away_s"),
        recomputed_tokens=None if again is None else int(again),
    )


def _total(table: pl.DataFrame, column: str) -> float | None:
    return None if table[column].null_count() else float(table[column].sum())


@dataclass(frozen=True)
class Otherwise:
    """What victims of one mode cost, and would have cost by the other. used, other: the modes; num:
    victims of which both are known; used_s: their direct costs; other_s: the estimates of the
    other way, made when each was chosen; num_unknown: left out; used_est_s: the estimates of the
    way used, None where one is not known."""

    used: str
    other: str
    num: int
    used_s: float
    other_s: float
    num_unknown: int
    used_est_s: float | None


def otherwise(table: pl.DataFrame) -> tuple[Otherwise, ...]:
    """One for each mode that was used, the most used first; none for a mode of which nothing is known."""
    found = []
    for used, column, other, of_used in (
        ("recompute", "swap_est_s", "swap", "recompute_est_s"),
        ("swap", "recompute_est_s", "recompute", "swap_est_s"),
        ("offload", "swap_est_s", "swap", "recompute_est_s"),
    ):
        own = table.filter(_MODE.eq(used))
        known = own.filter(pl.col("direct_cost_s").is_not_null() & pl.col(column).is_not_null())
        if known.height:
            used_s, other_s = (float(known[c].sum()) for c in ("direct_cost_s", column))
            found.append(
                Otherwise(
                    used, other, known.height, used_s, other_s, own.height - known.height, _total(known, of_used)
                )
            )  # fmt: skip
    return tuple(sorted(found, key=lambda o: -o.num))


def say_otherwise(found: Otherwise, others: Mapping[Side, tuple[Otherwise, ...]]) -> str:
    """'As swap these 176 preemptions would have cost 2.47 s instead of 4.89 s (2.34 s at B's real cost).'

    others: the other runs' own, of which one may have used that mode.
    """
    these = "this preemption" if found.num == 1 else f"these {found.num:,} preemptions"
    have = "has" if found.num_unknown == 1 else "have"
    left_out = f"; {found.num_unknown:,} more {have} no estimate" if found.num_unknown else ""
    real = [
        f"; {seconds(one.used_s / one.num * found.num)} at the cost that {side} had"
        for side, one in _that_did(found.other, others)
    ]
    return (
        f"As {found.other} {these} would have cost {seconds(found.other_s)} instead of "
        f"{seconds(found.used_s)}{''.join(real)}{left_out}."
    )


def _that_did(
    mode: str, others: Mapping[Side, tuple[Otherwise, ...]]
) -> list[tuple[Side, Otherwise]]:
    return [(side, one) for side, each in others.items() for one in each if one.used == mode]


CONDITION = (
    "This holds for the same victims at the same moments, each taken alone: the other way was estimated when the "
    "victim was chosen, with the link's queue and the cache hits expected then, and room on the host. Another mode "
    "changes when requests return, and with that who is evicted next: for that, compare the runs."
)


CONDITION_IN_SHORT = (
    "Estimated for the same victims at the same moments, each alone, with room on the host. Another mode would also "
    "change who is evicted next: for that, compare the runs."
)


def say_trust(found: Otherwise, others: Mapping[Side, tuple[Otherwise, ...]]) -> str:
    """How far the estimates of the other mode are to be trusted: how those of the mode used came out,
    and what another run that used the other mode paid. '' where neither is known."""
    said = []
    if found.used_est_s:
        said.append(
            f"For its own {found.used} the same estimates say {seconds(found.used_est_s)}; {seconds(found.used_s)} came of it."
        )
    estimate = found.other_s / found.num
    for side, one in _that_did(found.other, others):
        real = one.used_s / one.num
        unknown = (
            ": how much a prefix cache gives back is not known to a run that never recomputes"
            if found.other == "recompute" and found.used == "swap" and estimate > 1.25 * real
            else ""
        )
        said.append(
            f"{side} did {one.used}, for {seconds(real)} a preemption, where this estimates {seconds(estimate)}{unknown}."
        )
    return " ".join(said)


def by_mode(table: pl.DataFrame) -> pl.DataFrame:
    """A row a mode used: mode, num, direct_cost_s (null where one is not known), away_s, tokens."""
    cost = pl.when(pl.col("direct_cost_s").null_count() == 0).then(
        pl.col("direct_cost_s").sum()
    )
    return (
        table.group_by(_MODE.fill_null("not recorded").alias("mode"))
        .agg(num=pl.len(), direct_cost_s=cost, away_s=pl.col("away_s").sum(), tokens=pl.col("recomputed_tokens").sum())
        .sort("num", "mode", descending=[True, False])
    )  # fmt: skip


def top(tables: Mapping[Side, pl.DataFrame], who: Who, limit: int = 10) -> pl.DataFrame:
    """Requests evicted most, or for which most were evicted, in any of the runs.

    Columns: request_id; num_A, cost_A, away_A (of their preemptions; cost null where one is not
    known), and so for each run. Greatest number of all runs first; ties by time away, then id. A
    request that evicts itself is no aggressor.
    """
    key = "request_id" if who == "victims" else "cause_request_id"
    parts = []
    for side, table in tables.items():
        own = table.lazy().filter(pl.col(key).is_not_null())
        if who == "aggressors":
            own = own.filter(pl.col(key) != pl.col("request_id"))
        cost = pl.when(pl.col("direct_cost_s").null_count() == 0).then(
            pl.col("direct_cost_s").sum()
        )
        parts.append(
            own.group_by(pl.col(key).alias("request_id"))
            .agg(num=pl.len(), cost=cost, away=pl.col("away_s").sum())
            .with_columns(side=pl.lit(side))
        )
    every = pl.concat(parts).collect()
    order = every.group_by("request_id").agg(pl.col("num", "away").sum())
    first = order.sort("num", "away", "request_id", descending=[True, True, False]).head(limit)
    found = first.select("request_id")
    for side in tables:
        own_rows = every.filter(pl.col("side") == side).select(
            "request_id", *(pl.col(c).alias(f"{c}_{side}") for c in ("num", "cost", "away"))
        )
        found = found.join(own_rows, on="request_id", how="left", maintain_order="left")
    return found.with_columns(pl.col(f"num_{side}").fill_null(0) for side in tables)


def repeats(tables: Mapping[Side, pl.DataFrame]) -> pl.DataFrame:
    """How many requests were evicted once, twice, ...: times ('1' to '6 or more'), a column a run."""
    labels = [str(n) for n in range(1, MOST_TIMES)] + [f"{MOST_TIMES} or more"]
    columns: dict[str, np.ndarray] = {}
    for side, table in tables.items():
        times = table.group_by("request_id").len()["len"].to_numpy()
        counted = np.bincount(np.minimum(times, MOST_TIMES), minlength=MOST_TIMES + 1)[1:]
        columns[side] = counted.astype(np.int64)
    return pl.DataFrame({"times": labels, **columns})


def over_time(table: pl.DataFrame, end_s: float, buckets: int = BUCKETS) -> pl.DataFrame:
    """Equal buckets of 0 to end_s: start_s, end_s, num, direct_s, induced_s (null where one in the
    bucket is not known), cascade: size of the largest cascade that has a preemption in it, 0
    where none came near another."""
    edges = np.linspace(0.0, max(end_s, 1e-9), buckets + 1)
    at = table["t_s"].to_numpy()
    place = np.clip(np.searchsorted(edges, at, "right") - 1, 0, buckets - 1)
    largest = np.zeros(buckets, dtype=np.int64)
    size = table["cascade_size"].to_numpy().astype(np.int64)
    np.maximum.at(largest, place, np.where(size > 1, size, 0))
    columns: dict[str, np.ndarray] = {
        "start_s": edges[:-1],
        "end_s": edges[1:],
        "num": np.bincount(place, minlength=buckets),
        "cascade": largest,
    }
    for name, column in (("direct_s", "direct_cost_s"), ("induced_s", "induced_s")):
        values = table[column].cast(pl.Float64).fill_null(np.nan).to_numpy()
        columns[name] = np.bincount(place, weights=values, minlength=buckets)
    return pl.DataFrame(columns).with_columns(pl.col("direct_s", "induced_s").fill_nan(None))


def largest_cascades(tables: Mapping[Side, pl.DataFrame], limit: int = 10) -> pl.DataFrame:
    """The largest cascades of all runs: side, and the columns of `cascades`."""
    found = [
        cascades(table).head(limit).select(pl.lit(side).alias("side"), pl.all())
        for side, table in tables.items()
    ]
    return (
        pl.concat(found)
        .sort("num_preemptions", descending=True, maintain_order=True)
        .head(limit)
    )
