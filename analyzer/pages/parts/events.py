"""The preemptions in the shown range, as a table: who, why, what it cost, and whether the other
run did the same."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import polars as pl
import streamlit as st

from analyzer.aligned import Aligned, Alignment, steps_shown
from analyzer.look import Side
from analyzer.measured import is_cost_estimated, recompute_token_s
from analyzer.pages.parts.preempted import told_of
from analyzer.request_table import shortened
from analyzer.run_figures import is_told
from analyzer.words import NOT_RECORDED

MOST_ROWS = 5_000
# Columns that are left out where no row has a value: not recorded, or not for these modes.
_TOLD_BY_SOME = ("cost", "uncached", "recompute_est", "swap_est")


def events_table(pair: Aligned, shown: tuple[float, float]) -> tuple[pl.DataFrame, int]:
    """Preemptions of the runs in the shown range, by time, at most MOST_ROWS; and how many there are."""
    tables = {side: told_of(run) for side, run in pair.runs.items()}
    inside = {
        side: _inside(table, *steps_shown(pair, side, shown)) for side, table in tables.items()
    }
    found = pl.concat(
        [table.head(MOST_ROWS).with_columns(run=pl.lit(side)) for side, table in inside.items()]
    ).sort("t_s", "run", maintain_order=True)
    asked = found.head(MOST_ROWS)
    elsewhere = {
        side: table["request_id"].filter(
            table["request_id"].is_in(asked["request_id"].implode())
        )
        for side, table in tables.items()
    }
    shown_rows = asked.with_columns(where=_where(elsewhere)).select(
        "run",
        "step",
        time="t_s",
        victim="request_id",
        why=pl.when(pl.col("cause_request_id") == pl.col("request_id"))
        .then(pl.lit("its own need"))
        .otherwise(pl.col("cause_request_id").fill_null(NOT_RECORDED)),
        free="free_blocks_before",
        mode=pl.when(
            pl.col("mode_asked").cast(pl.String) == pl.col("mode_used").cast(pl.String)
        )
        .then(pl.col("mode_used").cast(pl.String))
        .otherwise(
            pl.col("mode_used").cast(pl.String)
            + " (asked: "
            + pl.col("mode_asked").cast(pl.String)
            + ")"
        ),
        blocks="blocks",
        tokens="tokens",
        restored="restored_tokens",
        again="recomputed_tokens",
        cost=pl.col("direct_cost_s") * 1e3,
        recompute_est=pl.col("recompute_est_s") * 1e3,
        swap_est=pl.col("swap_est_s") * 1e3,
        uncached=pl.col("uncached_cost_s") * 1e3,
        away="away_s",
        induced="induced_s",
        nth="nth",
        where="where",
    )
    shown_rows = shown_rows.with_columns(
        victim=shortened(shown_rows["victim"]), why=shortened(shown_rows["why"])
    )
    return shown_rows, sum(table.height for table in inside.values())


def _inside(table: pl.DataFrame, first: int, last: int) -> pl.DataFrame:
    """The preemptions of steps first to last (included), which lie beside each other."""
    steps = table["step"]
    start, stop = steps.search_sorted(first, "left"), steps.search_sorted(last, "right")
    return table.slice(start, max(stop - start, 0))


def _where(victims: Mapping[Side, pl.Series]) -> pl.Expr:
    """'only in A', or 'in B, C too': the other runs in which the request is preempted."""
    said = pl.lit("")
    for side in victims:
        others = [
            pl.when(pl.col("request_id").is_in(v.implode())).then(pl.lit(s))
            for s, v in victims.items()
            if s != side
        ]
        also = (
            pl.concat_str(others, separator=", ", ignore_nulls=True) if others else pl.lit("")
        )
        told = (
            pl.when(also == "")
            .then(pl.lit(f"only in {side}"))
            .otherwise(pl.format("in {} too", also))
        )
        said = pl.when(pl.col("run") == side).then(told).otherwise(said)
    return said


def events_section(pair: Aligned, shown: tuple[float, float], by: Alignment) -> None:
    """The table, or the good news that there is nothing to list."""
    from analyzer.pages.parts.shell import (
        link_to,  # the shell draws the timeline, and that this
    )

    if not all(is_told(run) for run in pair.runs.values()):
        st.caption("The preemptions in the shown range are listed once they are worked out.")
        return
    rows, total = events_table(pair, shown)
    with st.container(
        horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"
    ):
        st.subheader("Preemptions in the shown range", anchor=False)
        if total:
            link_to("preemptions", "Each one told, and their totals", ":material/eject:")
    if not total:
        st.info(_nothing(pair, shown), icon=":material/check_circle:")
        return
    unseen = [c for c in _TOLD_BY_SOME if rows[c].null_count() == rows.height]
    if not (rows["restored"] > 0).any():
        unseen.append("restored")
    st.dataframe(
        rows.drop(unseen),
        hide_index=True,
        height=min(360, 38 + 35 * rows.height),
        column_config=_columns(),
        placeholder="—",
        alt="Preemptions in the shown range",
    )
    if total > rows.height:
        st.caption(f"The first {rows.height:,} of {total:,}: zoom in to see the others.")
    for said in _captions(pair):
        st.caption(said)
    if rows.drop(unseen).null_count().pipe(lambda n: sum(n.row(0))):
        st.caption("—: not recorded; where away and recomputed: it never ran again.")


def _captions(pair: Aligned) -> list[str]:
    """What the columns of costs rest on, where that is not plain."""
    said = []
    sides = [s for s, run in pair.runs.items() if "events.cost_s" in run.meta.not_recorded]
    if sides:
        said.append(f"Costs and estimates were not recorded in {' and '.join(sides)}.")
    priced = [s for s, r in pair.runs.items() if recompute_token_s(r.recording) is not None]
    if priced:
        said.append(
            f"Costs of recomputing in {' and '.join(priced)} are measured: tokens at the price that the run's own steps show."
        )
    guessed = [s for s, r in pair.runs.items() if is_cost_estimated(r.recording)]
    if guessed:
        said.append(
            f"Costs of recomputing in {' and '.join(guessed)} are the engine's estimates, not measured."
        )
    if any(run.mode == "cheapest" for run in pair.runs.values()):
        said.append(
            "Mode cheapest takes the smaller of the two estimates; recompute where they are equal or the host is full."
        )
    return said


def _nothing(pair: Aligned, shown: tuple[float, float]) -> str:
    if shown != pair.full:
        return "No preemption in this range. Show all to look at the whole run."
    peaks = [
        f"{side} uses at most {int(run.column('used_blocks').greatest):,} of {run.recording.pool_blocks:,} blocks"
        for side, run in pair.runs.items()
    ]
    where = {1: "this run", 2: "either run"}.get(len(peaks), "any run")
    return f"No preemption in {where}: {' and '.join(peaks)}."


def _columns() -> dict[str, Any]:
    number = partial(st.column_config.NumberColumn, format="localized")
    text = st.column_config.TextColumn
    return {
        "run": text("Run", width="small"),
        "step": number("Step"),
        "time": number("Time (s)", format="%.3f"),
        "victim": text("Victim", help="The request that lost its blocks."),
        "why": text("Needed by", help="The request whose need evicted it."),
        "free": number("Free before", help="Free blocks just before."),
        "mode": text(
            "Mode",
            help="What was done, and what had been asked for where that is another: cheapest, or a swap for which the host was full.",
        ),
        "blocks": number("Blocks", help="Blocks freed or moved."),
        "tokens": number("Tokens", help="Computed tokens lost or moved."),
        "restored": number(
            "Restored", help="Tokens that came back from the host cache (offload)."
        ),
        "again": number(
            "Recomputed",
            help="Tokens computed again: lost, not found in the prefix cache and not restored from the host.",
        ),
        "cost": number(
            "Cost (ms)",
            format="%.2f",
            help="What the mode used did cost alone. Recompute: the tokens that were computed again, without those found in the prefix cache. Swap: the time of its copies on the link. Offload: what was computed again, and the time of the load from the host.",
        ),
        "uncached": number(
            "Without cache (ms)",
            format="%.2f",
            help="Recompute and offload: what all lost tokens would have cost with nothing in any cache.",
        ),
        "recompute_est": number(
            "Recompute est. (ms)",
            format="%.2f",
            help="Engine time that a recompute was expected to cost when the victim was chosen, cache hits expected. (Recordings of contract 1.0: all lost tokens, alone.)",
        ),
        "swap_est": number(
            "Swap est. (ms)",
            format="%.2f",
            help="Engine time that a swap was expected to cost: stalls, or blocks out of use; queue on the link included. (Recordings of contract 1.0: both copies, alone.)",
        ),
        "away": number("Away (s)", format="%.3f", help="Until it ran again."),
        "induced": number(
            "Others (req·s)",
            format="%.3f",
            help="By how much other running requests were slowed down, summed over them.",
        ),
        "nth": number("Hit", help="1: its first preemption, 2: its second."),
        "where": text(
            "In other runs", help="Whether this request is preempted in the other runs too."
        ),
    }
