"""A run's victims for the crossover: what each way cost or would have cost each of them.

The two costs of a victim are its own. The way that was used did cost something, which the recording
tells; for the other there is the estimate of when the victim was chosen. How much of a victim the
prefix cache gave back differs widely, so no average stands in for it. Where a recording holds no
estimate, `filled` works it out from that victim's tokens and cached share; where those are not known
either, it stays unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import polars as pl

from analyzer.crossover import Ways

MOST_DOTS = 400  # of a run on a chart
LENGTHS_PER_OCTAVE = 100  # that a chart tells apart: its pixels
Basis = Literal["own", "expected", "computed"]
BASES: tuple[Basis, ...] = ("own", "expected", "computed")
_KNOWN = pl.col("own_recompute_s").is_not_null() & pl.col("own_swap_s").is_not_null()


@dataclass(frozen=True)
class OwnVictims:
    """A run's victims. table: as from `victims_of`; median_tokens; found_frac, found_spread: share of a
    victim that the prefix cache gave back, median and quartiles over the victims that came back from a
    recompute, None where nobody did; beside: median of running requests when they were chosen, None
    where not recorded; num_untold: victims whose lost tokens were not recorded, who are not in the
    table."""

    table: pl.DataFrame
    median_tokens: int | None
    found_frac: float | None
    beside: int | None
    found_spread: tuple[float, float] | None = None
    num_untold: int = 0


def victims_of(told: pl.DataFrame, steps: pl.DataFrame, knows_running: bool) -> OwnVictims:
    """What the crossover needs of a run's preemptions. told: as from `preemption_rows.told`;
    knows_running: whether `steps.num_running` was recorded.

    The table has step, request_id, tokens, mode_used, cost_s (the direct cost), recompute_est_s,
    swap_est_s, found_tokens, and own_recompute_s, own_swap_s, basis: what each way cost that victim and
    on which cached share that rests (`BASES`), null where not known. Victims without computed tokens
    have nothing to lose and are left out.
    """
    table = told.select(
        "step",
        "request_id",
        "tokens",
        pl.col("mode_used").cast(pl.String).fill_null("not recorded"),
        pl.col("direct_cost_s").alias("cost_s"),
        "recompute_est_s",
        "swap_est_s",
        "found_tokens",
    ).filter(pl.col("tokens") > 0)
    table = _with_own_costs(table)
    untold = told["tokens"].null_count()
    if table.is_empty():
        return OwnVictims(table, None, None, None, None, untold)
    shares = table.filter(
        (pl.col("mode_used") == "recompute") & pl.col("found_tokens").is_not_null()
    ).select(pl.col("found_tokens") / pl.col("tokens"))["found_tokens"]
    found, spread = None, None
    if len(shares):
        low, found, high = (float(q) for q in np.quantile(shares.to_numpy(), (0.25, 0.5, 0.75)))
        spread = (low, high)
    beside = None
    if knows_running:
        running = table.join(steps.select("step", "num_running"), on="step", how="inner")
        median = running["num_running"].median()
        beside = None if median is None else int(float(str(median)))
    tokens = int(float(str(table["tokens"].median())))
    return OwnVictims(table, tokens, found, beside, spread, untold)


def _with_own_costs(table: pl.DataFrame) -> pl.DataFrame:
    """A victim that came back by a way cost what that way did cost; else what was expected."""
    # found_tokens is null where a victim never came back
    is_told = pl.col("cost_s").is_not_null() & pl.col("found_tokens").is_not_null()
    recomputed = is_told & (pl.col("mode_used") == "recompute")
    swapped = is_told & (pl.col("mode_used") == "swap")
    return table.with_columns(
        own_recompute_s=pl.when(recomputed).then("cost_s").otherwise("recompute_est_s"),
        own_swap_s=pl.when(swapped).then("cost_s").otherwise("swap_est_s"),
        basis=pl.when(recomputed).then(pl.lit("own")).otherwise(pl.lit("expected")),
    ).with_columns(basis=pl.when(_KNOWN).then("basis"))


def filled(own: OwnVictims, ways: Ways) -> OwnVictims:
    """The victims with costs worked out where the recording holds none. ways: of the run's own set-up.

    A recompute needs the victim's cached share: a swapped victim never looked into the cache, so that
    one whose recompute was not estimated stays unknown.
    """
    if not own.table.filter(~_KNOWN).height:
        return own
    rows = [_filled(row, ways) for row in own.table.iter_rows(named=True)]
    return replace(own, table=pl.DataFrame(rows, schema=own.table.schema))


def _filled(row: dict[str, object], ways: Ways) -> dict[str, object]:
    recompute_s, swap_s = row["own_recompute_s"], row["own_swap_s"]
    tokens, found = int(str(row["tokens"])), row["found_tokens"]
    if recompute_s is None and row["mode_used"] == "recompute" and found is not None:
        found_tokens = min(int(str(found)), tokens)
        recompute_s = ways.recompute_s(tokens - found_tokens, found_tokens)
    if swap_s is None:
        swap_s = ways.swap_s(tokens)
    if row["basis"] is not None or recompute_s is None:
        return row
    return {**row, "own_recompute_s": recompute_s, "own_swap_s": swap_s, "basis": "computed"}


def cheaper_of() -> pl.Expr:
    """Which way was cheaper for a victim: 'recompute', 'swap' (or as cheap), null where not known."""
    wins = pl.col("own_recompute_s") < pl.col("own_swap_s")
    return pl.when(_KNOWN).then(
        pl.when(wins).then(pl.lit("recompute")).otherwise(pl.lit("swap"))
    )


@dataclass(frozen=True)
class Tally:
    """Victims counted. num_recompute: for whom recompute was cheaper; recompute_s, swap_s: both ways
    summed over those of whom both are known; by_basis: how many of these rest on which cached share."""

    num_known: int
    num_unknown: int
    num_recompute: int
    recompute_s: float
    swap_s: float
    by_basis: Mapping[str, int]


def tally(table: pl.DataFrame) -> Tally:
    """Count a table as from `victims_of`."""
    known = table.filter(_KNOWN)
    bases = known.group_by("basis").len()
    return Tally(
        known.height,
        table.height - known.height,
        known.filter(cheaper_of() == "recompute").height,
        float(known["own_recompute_s"].sum()),
        float(known["own_swap_s"].sum()),
        dict(zip(bases["basis"].to_list(), bases["len"].to_list(), strict=True)),
    )


def dots(table: pl.DataFrame, most: int = MOST_DOTS) -> pl.DataFrame:
    """The victims that have a place on the chart of costs; where they are more than `most`, one for those
    that fall on one another, the first by step. `num_here` says for how many it stands.

    A place is a cell on both logarithmic axes, at first of 3 pixels; cells grow until there are at most
    `most` dots, so that whoever stands apart stays. Who was cheaper is told apart in a cell.
    """
    known = table.filter(pl.col("cost_s") > 0).sort("step", "request_id")
    if known.height <= most:
        return known.with_columns(num_here=pl.lit(1))
    per_octave, per_decade = 22.0, 20.0
    while True:
        found = known.group_by(
            (pl.col("tokens").log(2.0) * per_octave).floor().alias("_x"),
            (pl.col("cost_s").log10() * per_decade).floor().alias("_y"),
            cheaper_of().alias("_way"),
            maintain_order=True,
        ).agg(pl.all().first(), num_here=pl.len())
        if found.height <= most or per_octave < 1:
            return found.select(*table.columns, "num_here")
        per_octave, per_decade = per_octave * 0.8, per_decade * 0.8


def lengths_of(table: pl.DataFrame) -> pl.DataFrame:
    """One victim for each length that a chart tells apart, shortest first; `num_here`: how many have it."""
    return (
        table.sort("tokens", "step", "request_id")
        .group_by(
            (pl.col("tokens").log(2.0) * LENGTHS_PER_OCTAVE).floor().alias("_x"),
            maintain_order=True,
        )
        .agg(pl.all().first(), num_here=pl.len())
        .select(*table.columns, "num_here")
    )


def by_mode(table: pl.DataFrame) -> Mapping[str, int]:
    """How many victims each mode was used for, most first."""
    counts = (
        table.group_by("mode_used").len().sort("len", "mode_used", descending=[True, False])
    )
    return dict(zip(counts["mode_used"].to_list(), counts["len"].to_list(), strict=True))
