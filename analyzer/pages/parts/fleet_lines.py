"""The fleet over time: lines of each rank, or a heat map of all, with the shared shown range.

It knows widgets; series are known in `analyzer/fleet_series.py`, pictures in `analyzer/fleet_figure.py`.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import polars as pl
import streamlit as st

from analyzer.figures import CONFIG
from analyzer.fleet_balance import Balance, balance
from analyzer.fleet_figure import (
    MEASURES,
    MOST_HEAT_RANKS,
    MOST_LINES,
    Extra,
    alt_heat,
    alt_lines,
    heat_figure,
    lines_figure,
)
from analyzer.fleet_ranks import fullest_first, rank_table
from analyzer.fleet_series import FleetSeries, read_part
from analyzer.look import seconds, three_digits
from analyzer.pages.parts.fleet_open import Shown
from analyzer.pages.parts.messages import guarded, plain
from analyzer.pages.parts.shown_range import Axis, digest, follow_zoom, range_slider, shown_time
from analyzer.pages.parts.state import write_url
from analyzer.pages.parts.timeline import theme

CHART = "fleet_chart"
LINES, HEAT = "lines", "heat"
DETAIL_FRAC = 0.5  # of the axis: a shorter part is read again
DETAIL_RANKS = 64  # more are not: each would be opened for it
_TABLE_ROWS = 60


@st.fragment
def lines_section(shown: Shown) -> None:
    """Controls, chart, slider and table. A fragment: a zoom draws nothing else again."""
    write_url()
    with guarded():
        series = shown.series
        view, measure = _controls(series)
        axis = _axis(shown)
        part = shown_time(axis)
        if view == HEAT:
            _heat(shown, part, measure)
        else:
            _lines(shown, part)
        follow_zoom(CHART, axis)
        range_slider(part, axis)
        _words(shown, part)


def _axis(shown: Shown) -> Axis:
    grid = shown.series.grid
    return Axis((grid.start_s, grid.end_s), f"fleet\0{shown.ref}")


def _controls(series: FleetSeries) -> tuple[str, str]:
    many = len(series.ranks) > MOST_LINES
    with st.container(
        horizontal=True, vertical_alignment="center", gap="small", key="fleet_controls"
    ):
        view = st.segmented_control(
            "Picture",
            [LINES, HEAT],
            format_func=lambda k: {LINES: "Lines", HEAT: "Heat map"}[k],
            default=HEAT if many else LINES,
            required=True,
            key="fleet_view",
            bind="query-params",
            label_visibility="collapsed",
        )
        measure = "usage"
        if view == HEAT:
            measure = str(
                st.segmented_control(
                    "Measure",
                    list(MEASURES),
                    format_func=lambda k: MEASURES[k].title,
                    default="usage",
                    required=True,
                    key="fleet_measure",
                    bind="query-params",
                    label_visibility="collapsed",
                )
            )
    return str(view), measure


def _lines(shown: Shown, part: tuple[float, float]) -> None:
    series = shown.series
    which = _chosen_ranks(series, shown.ref)
    drawn, found = _detail(shown, part)
    keys = list(MEASURES)
    extras = []
    if len(series.ranks) > 1:
        extras.append(
            Extra("Imbalance", "KV tokens of the fullest rank over the mean", found.ratio)
        )
    if found.fits is not None:
        extras.append(Extra("Waiting that fits elsewhere", "requests", found.fits))
    st.plotly_chart(
        lines_figure(drawn, which, keys, extras, part, theme()),
        theme=None,
        key=CHART,
        config=CONFIG,
        alt=alt_lines(drawn, which, keys, extras, part),
    )
    _data(drawn, which, part)


def _chosen_ranks(series: FleetSeries, ref: str) -> list[int]:
    """Indices of the ranks to draw: all of a few, else the fullest and emptiest until others are chosen."""
    if len(series.ranks) <= MOST_LINES:
        return list(range(len(series.ranks)))
    order = fullest_first(rank_table(series))
    start = [*order[: MOST_LINES // 2], *order[-(MOST_LINES // 2) :]]
    names = [r.name for r in series.ranks]
    chosen = st.multiselect(
        f"Ranks ({len(names):,}; at first the fullest and the emptiest)",
        list(range(len(names))),
        default=sorted(start),
        format_func=lambda i: plain(names[i]),
        max_selections=MOST_LINES,
        key=f"fleet_ranks_{digest(ref)}",
    )
    return sorted(chosen or start)


def _detail(shown: Shown, part: tuple[float, float]) -> tuple[FleetSeries, Balance]:
    """Series and balance to draw: of the whole axis, or of a shorter part read again."""
    grid = shown.series.grid
    short = part[1] - part[0] < DETAIL_FRAC * (grid.end_s - grid.start_s)
    if not short or len(shown.series.ranks) > DETAIL_RANKS:
        return shown.series, shown.balance
    return _read_part(shown.ref, part, shown.series)


@st.cache_resource(max_entries=8, show_spinner="Reading that part in detail")
def _read_part(
    ref: str, part: tuple[float, float], _series: FleetSeries
) -> tuple[FleetSeries, Balance]:
    detail = read_part(_series, *part, range(len(_series.ranks)))
    return detail, balance(detail)


def _heat(shown: Shown, part: tuple[float, float], measure: str) -> None:
    order = fullest_first(rank_table(shown.series))
    if len(order) > MOST_HEAT_RANKS:
        st.caption(
            f"The {MOST_HEAT_RANKS:,} fullest of {len(order):,} ranks; the table below has all."
        )
        order = order[:MOST_HEAT_RANKS]
    drawn, _ = _detail(shown, part)
    st.plotly_chart(
        heat_figure(drawn, order, measure, part, theme()),
        theme=None,
        key=CHART,
        config=CONFIG,
        alt=alt_heat(drawn, order, measure),
    )
    _data(drawn, order[:MOST_LINES], part)


def _words(shown: Shown, part: tuple[float, float]) -> None:
    """Length of the shown part, width of a bucket, and keys."""
    grid = shown.series.grid
    drawn, _ = _detail(shown, part)
    width = drawn.grid.width_s
    coarse = "" if drawn is not shown.series or part == (grid.start_s, grid.end_s) else (
        " (of the whole axis; with more than 64 ranks a part is not read again)" if len(shown.series.ranks) > DETAIL_RANKS else ""
    )  # fmt: skip
    st.caption(
        f"Shown: {seconds(part[1] - part[0])}, in buckets of {seconds(width)}{coarse}; levels are the largest of a bucket, "
        "running is its mean. Drag or Ctrl + wheel to zoom, double-click for all. Keys: W S zoom, A D move, 0 all."
    )


def _data(series: FleetSeries, which: list[int], part: tuple[float, float]) -> None:
    """The drawn part as a table of so many stretches, a row for each rank and stretch."""
    if not st.toggle(
        "Show data", key="fleet_show_data", help="The shown part as a table of 60 stretches."
    ):
        return
    edges = series.grid.edges_s
    first = max(int(np.searchsorted(edges, part[0], "right")) - 1, 0)
    last = max(int(np.searchsorted(edges, part[1], "left")), first + 1)
    cuts = np.unique(np.linspace(first, last, _TABLE_ROWS + 1).astype(int))
    frames = []
    for rank in which:
        cells = {
            m.title: [
                _cell(series.values[m.key][rank][a:b] * m.factor, m.total)
                for a, b in pairwise(cuts)
            ]
            for m in MEASURES.values()
        }
        frames.append(
            pl.DataFrame(
                {
                    "Rank": [series.ranks[rank].name] * (len(cuts) - 1),
                    "From (s)": [three_digits(float(edges[a])) for a in cuts[:-1]],
                    **cells,
                },
                schema_overrides={m.title: pl.Float64 for m in MEASURES.values()},
            )
        )
    st.dataframe(
        pl.concat(frames).rename(
            {"KV usage": "KV usage, most (%)", "Waiting": "Waiting, most"}
        ),
        hide_index=True,
        height=300,
        alt="The fleet over time as a table",
    )


def _cell(values: np.ndarray, is_total: bool) -> float | None:
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    return round(float(known.sum() if is_total else known.max()), 2)
