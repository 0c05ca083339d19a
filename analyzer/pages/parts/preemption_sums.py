"""What all preemptions of the runs come to: in words at the head of the page, in pictures at its end.

It knows widgets, and told tables; what is summed is known in `preemption_totals`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import polars as pl
import streamlit as st

from analyzer import figures
from analyzer.look import Side, seconds, three_digits
from analyzer.pages.parts.messages import guarded, plain
from analyzer.pages.parts.preempted import MOST_TYPED, told_of
from analyzer.pages.parts.timeline import theme
from analyzer.preemption_over_time import as_table, rows_over_time
from analyzer.preemption_story import how_known
from analyzer.preemption_totals import (
    CONDITION,
    CONDITION_IN_SHORT,
    Otherwise,
    Sums,
    by_mode,
    largest_cascades,
    otherwise,
    repeats,
    say_otherwise,
    say_trust,
    sums,
    top,
)
from analyzer.preemption_totals_figure import (
    alt_otherwise,
    alt_repeats,
    otherwise_bars,
    repeats_bars,
)
from analyzer.run import Run, run_names

_LOOK_UP = "preemption_look_up"
STATIC: dict[str, Any] = {**figures.CONFIG, "displayModeBar": False}


@st.cache_resource(max_entries=24, show_spinner=False)
def _once(key: str, what: str, _make: Callable[[], Any]) -> Any:
    """Whatever is summed over all preemptions, worked out once per content."""
    return _make()


def summary_section(key: str, runs: Mapping[Side, Run]) -> None:
    """A sentence a run: how often, at what cost, and what the other mode would have cost."""
    other = {side: _otherwise(key, side, run) for side, run in runs.items()}
    lines = [
        f"**{side}** {plain(_sentence(key, side, run, other))}" for side, run in runs.items()
    ]
    with st.container(key="verdict"):
        st.markdown("  \n".join(lines))
        if any(other.values()):
            st.caption(CONDITION_IN_SHORT)


def _sentence(
    key: str, side: Side, run: Run, other: Mapping[Side, tuple[Otherwise, ...]]
) -> str:
    table = told_of(run)
    if table.is_empty():
        peak = int(run.steps["used_blocks"].to_numpy().max(initial=0))
        return f"preempts nobody; it uses at most {peak:,} of {run.recording.pool_blocks:,} blocks."
    found = _sums(key, side, run)
    mode = table["mode_used"].cast(pl.String).mode().sort()[0]
    said = f"preempts {found.num:,} {'time' if found.num == 1 else 'times'}{_cost(run, found, mode)}"
    return " ".join(
        [f"{said}.", *(say_otherwise(o, _without(other, side)) for o in other[side])]
    )


def _cost(run: Run, found: Sums, mode: str | None) -> str:
    if run.meta.clock == "step":
        return ""
    if found.direct_cost_s is None:
        return f", at a cost that was not recorded for {found.num_unpriced:,} of them"
    others = (
        "" if found.induced_s is None else f", and held up others for {three_digits(found.induced_s)} request-seconds"
    )  # fmt: skip
    return (
        f" at a direct cost of {seconds(found.direct_cost_s)} ({how_known(run, mode)}){others}"
    )


def _sums(key: str, side: Side, run: Run) -> Sums:
    found: Sums = _once(key, f"sums {side}", lambda: sums(told_of(run)))
    return found


def _otherwise(key: str, side: Side, run: Run) -> tuple[Otherwise, ...]:
    found: tuple[Otherwise, ...] = _once(
        key, f"otherwise {side}", lambda: otherwise(told_of(run))
    )
    return found


# ---- pictures ------------------------------------------------------------------------------------


@st.fragment
def totals_section(key: str, runs: Mapping[Side, Run]) -> None:
    """Over time, the other mode, repeats, and who suffers and causes most."""
    if st.session_state.pop(_LOOK_UP, False):
        st.rerun()  # the list is another fragment
    with guarded():
        st.header("All preemptions", anchor=False)
        _over_time(key, runs)
        left, right = st.columns(2, gap="medium")
        with left:
            _other_mode(key, runs)
        with right:
            _repeats(key, runs)
        left, right = st.columns(2, gap="medium")
        with left:
            _top(key, runs, "victims")
        with right:
            _top(key, runs, "aggressors")
        _cascades(key, runs)
        _modes(key, runs)


def _over_time(key: str, runs: Mapping[Side, Run]) -> None:
    in_steps = all(run.meta.clock == "step" for run in runs.values())
    ends = [float(r.steps["t_start_s"][-1] + r.steps["duration_s"][-1]) for r in runs.values() if r.steps.height]  # fmt: skip
    tables = {side: told_of(run) for side, run in runs.items()}
    rows, axis, buckets = _once(
        key, "over time", lambda: rows_over_time(tables, max(ends, default=1.0), in_steps)
    )
    names = run_names(runs)
    st.plotly_chart(
        figures.timeline(rows, axis, names, theme(), checked=False).update_layout(
            dragmode=False
        ),
        theme=None,
        key="preemptions_over_time",
        config=STATIC,
        alt=figures.alt_text(rows, axis, names),
    )
    if st.toggle("Show data", key="show_over_time_data", help="The buckets as a table."):
        st.dataframe(as_table(buckets), hide_index=True, height=280, alt="Preemptions over time as a table")  # fmt: skip


def _other_mode(key: str, runs: Mapping[Side, Run]) -> None:
    st.subheader("By the other mode", anchor=False, help=CONDITION)
    found = {side: _otherwise(key, side, run) for side, run in runs.items()}
    if not any(found.values()):
        st.caption("What the other mode would have cost was not recorded.")
        return
    st.plotly_chart(
        otherwise_bars(found, theme()), theme=None, key="other_mode", config=STATIC, alt=alt_otherwise(found)
    )  # fmt: skip
    for side, each in found.items():
        for one in each:
            if trust := say_trust(one, _without(found, side)):
                st.caption(plain(f"{side} as {one.other}: {trust}"))


def _without(
    found: Mapping[Side, tuple[Otherwise, ...]], side: Side
) -> dict[Side, tuple[Otherwise, ...]]:
    return {s: each for s, each in found.items() if s != side}


def _repeats(key: str, runs: Mapping[Side, Run]) -> None:
    st.subheader("Evicted again and again", anchor=False)
    tables = {side: told_of(run) for side, run in runs.items()}
    table = _once(key, "repeats", lambda: repeats(tables))
    st.plotly_chart(
        repeats_bars(table, theme()), theme=None, key="repeats", config=STATIC, alt=alt_repeats(table)
    )  # fmt: skip
    said = [
        f"{side}: {found.num_repeated:,} of {found.num_victims:,} victims more than once; {found.num_thrash:,} evicted again sooner than they had been away"
        for side, run in runs.items()
        if (found := _sums(key, side, run)).num
    ]
    st.caption(plain(". ".join(said)) + ".")


def _top(key: str, runs: Mapping[Side, Run], who: Any) -> None:
    titles = {"victims": "Evicted most", "aggressors": "For whom most were evicted"}
    st.subheader(titles[who], anchor=False)
    tables = {side: told_of(run) for side, run in runs.items()}
    table = _once(key, f"top {who}", lambda: top(tables, who))
    if table.is_empty():
        st.caption(
            "Whose need evicted them was not recorded." if who == "aggressors" else "None."
        )
        return
    shown = table.select(
        pl.col("request_id").str.slice(0, 60).alias("Request"),
        *(pl.col(f"num_{s}").alias(f"Times · {s}") for s in runs),
        *((pl.col(f"cost_{s}") * 1e3).alias(f"Cost · {s} (ms)") for s in runs),
        *(pl.col(f"away_{s}").alias(f"Away · {s} (s)") for s in runs),
    )
    number = st.column_config.NumberColumn
    st.dataframe(
        shown,
        key=f"top_{who}",
        on_select=partial(_find, f"top_{who}", table["request_id"].to_list()),
        selection_mode="single-row",
        hide_index=True,
        height=38 + 35 * shown.height,
        column_config={c: number(format="%.1f" if "Cost" in c else "%.2f" if "Away" in c else "localized") for c in shown.columns[1:]},
        placeholder="—",
        alt=titles[who],
    )  # fmt: skip


def _find(widget: str, ids: list[str]) -> None:
    """Look for the chosen request in the list above."""
    rows = st.session_state[widget].selection.rows
    if rows:
        st.session_state["who"] = ids[rows[0]][:MOST_TYPED]
        st.session_state.pop("preemption_page", None)
        st.session_state[_LOOK_UP] = True


def _cascades(key: str, runs: Mapping[Side, Run]) -> None:
    tables = {side: told_of(run) for side, run in runs.items()}
    table = _once(key, "cascades", lambda: largest_cascades(tables))
    if table.is_empty():
        st.caption("No cascades: no preemption came within 4 steps of another.")
        return
    st.subheader("Largest cascades", anchor=False, help="Preemptions no more than 4 steps after the one before.")  # fmt: skip
    shown = table.select(
        pl.col("side").alias("Run"),
        pl.col("start_s").alias("Time (s)"),
        pl.col("first_step").alias("First step"),
        pl.col("last_step").alias("Last step"),
        pl.col("num_preemptions").alias("Preemptions"),
        pl.col("num_victims").alias("Victims"),
        pl.col("recomputed_tokens").alias("Tokens recomputed"),
    )
    whole = ("First step", "Last step", "Tokens recomputed")
    st.dataframe(
        shown,
        hide_index=True,
        height=38 + 35 * shown.height,
        column_config={
            "Time (s)": st.column_config.NumberColumn(format="%.2f"),
            **{n: st.column_config.NumberColumn(format="localized") for n in whole},
        },
        alt="Largest cascades",
    )


def _modes(key: str, runs: Mapping[Side, Run]) -> None:
    """What each mode was used for, where a run used more than one or not the one asked for."""
    tables = {side: by_mode(told_of(run)) for side, run in runs.items()}
    if all(t.height < 2 for t in tables.values()):
        return
    st.subheader("By mode used", anchor=False)
    every = pl.concat([t.select(pl.lit(s).alias("Run"), pl.all()) for s, t in tables.items()])
    st.dataframe(
        every.select(
            "Run",
            Mode="mode",
            Preemptions="num",
            cost=pl.col("direct_cost_s") * 1e3,
            away="away_s",
            Recomputed="tokens",
        ),
        hide_index=True,
        column_config={
            "cost": st.column_config.NumberColumn("Cost (ms)", format="%.1f"),
            "away": st.column_config.NumberColumn("Away (s)", format="%.2f"),
        },
        placeholder="not recorded",
        alt="Preemptions by mode used",
    )
