"""What another router would have done, and how many replicas would do: asked, worked out as a job, shown.

It knows widgets. Runs are made in `fleet_simulate.py`, figures and words in `analyzer/fleet_routing.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import streamlit as st

from analyzer.figures import CONFIG
from analyzer.fleet_balance import Balance, balance
from analyzer.fleet_figure import MOST_LINES, Extra, alt_lines, lines_figure
from analyzer.fleet_ranks import fullest_first, rank_table
from analyzer.fleet_routing import (
    AS_RECORDED,
    MOST_REPLICAS,
    NO_PREEMPTION,
    ROUTER_TITLES,
    TTFT_P99,
    Goal,
    Needed,
    needed_table,
    routing_table,
    say_fit,
    say_needed,
    say_routing,
)
from analyzer.fleet_series import FleetSeries, read_fleet
from analyzer.pages.parts import fleet_job
from analyzer.pages.parts.fleet_open import Shown, show
from analyzer.pages.parts.fleet_simulate import Routed, route_fleet, search_replicas
from analyzer.pages.parts.jobs import Cancelled, Report
from analyzer.pages.parts.messages import guarded, plain
from analyzer.pages.parts.store import Store
from analyzer.pages.parts.timeline import theme
from traces.fleet import RECORDING, open_fleet

ROUTING, SEARCH = "routing", "replicas"
GOALS = {NO_PREEMPTION: "No preemption", TTFT_P99: "TTFT p99 at most"}
MODELLED = (
    "Simulated with every rank's own requests, lengths and arrival times; times are modelled. The rules see what each "
    "replica holds at an arrival (requests, and KV tokens known so far), never how long an output will be."
)


@dataclass
class _Slot:
    """A place for a result that may still be on its way."""

    result: Any = None


@st.cache_resource(max_entries=16, show_spinner=False)
def _slot(ref: str, what: str) -> _Slot:
    return _Slot()


def routing_section(shown: Shown, store: Store) -> None:
    """Rule and number, then the figures beside what was recorded."""
    st.header("What another router would have done", anchor=False)
    with guarded():
        if not _has_requests(shown):
            st.info(
                "Telemetry names no requests, so that nothing can be routed again. Record the ranks with the scheduler's recorder for that."
            )
            return
        rule, number, pressed = _ask(len(shown.series.ranks))
        key = f"{shown.ref}\0{rule}\0{number}"
        slot = _slot(shown.ref, key)
        linked = st.query_params.get("routed") == f"{rule}-{number}"
        begin = pressed or (linked and "fleet_routed_once" not in st.session_state)
        st.session_state["fleet_routed_once"] = True
        if begin and slot.result is None:
            fleet_job.start(
                ROUTING,
                key,
                lambda report, cancelled: _route(shown, number, rule, store, report, cancelled),
            )
        if fleet_job.was_cancelled(ROUTING):
            st.info("The simulation was cancelled.")
        found = fleet_job.watch(ROUTING, key, "Routing and simulating")
        if isinstance(found, Routed):
            slot.result = found
        if isinstance(slot.result, Routed):
            st.query_params["routed"] = f"{rule}-{number}"
            _routed(slot.result, rule, key)
        else:
            st.query_params.pop("routed", None)


def _has_requests(shown: Shown) -> bool:
    return any(r.kind == RECORDING for r in shown.series.ranks)


def _ask(num_ranks: int) -> tuple[str, int, bool]:
    with st.container(horizontal=True, vertical_alignment="bottom", key="fleet_ask"):
        rule = st.selectbox(
            "Router",
            list(ROUTER_TITLES),
            index=list(ROUTER_TITLES).index("least-tokens"),
            format_func=lambda k: ROUTER_TITLES[k],
            key="router",
            bind="query-params",
            width=260,
        )
        number = st.number_input(
            "Replicas",
            1,
            MOST_REPLICAS,
            min(num_ranks, MOST_REPLICAS),
            key="replicas",
            bind="query-params",
            width=140,
        )
        pressed = st.button("Simulate", key="fleet_route", type="primary")
    st.caption(MODELLED)
    return str(rule), int(number), pressed


def _route(
    shown: Shown, number: int, rule: str, store: Store, report: Report, cancelled: Cancelled
) -> Routed | None:
    return route_fleet(
        shown, number, rule, store, lambda done, text: report(ROUTING, done, text), cancelled
    )


def _routed(found: Routed, rule: str, key: str) -> None:
    recorded, again, *routed = found.variants
    lines = [say_routing(again, routed[-1])]
    if len(routed) > 1:
        lines.append(say_routing(routed[0], routed[-1]))
    with st.container(key="fleet_routed", border=True):
        st.markdown(f"**{plain(lines[0])}**")
        for line in lines[1:]:
            st.markdown(plain(line))
    st.caption(plain(say_fit(recorded, again)))
    table = routing_table(found.variants)
    st.dataframe(
        table,
        hide_index=True,
        height="content",
        column_config={
            "Figure": st.column_config.TextColumn(width=230),
            **{
                c: st.column_config.TextColumn(alignment="right", width=150)
                for c in table.columns[1:]
            },
        },
        alt="Figures of the fleet as recorded and as routed",
    )
    path = found.paths.get(rule)
    if path is not None and path.exists():
        _picture(str(path), rule, key)
    for note in found.notes:
        st.caption(plain(note))


@st.cache_resource(max_entries=6, show_spinner=False)
def _read(path: str) -> tuple[FleetSeries, Balance]:
    series = read_fleet(open_fleet(path))
    return series, balance(series)


def _picture(path: str, rule: str, key: str) -> None:
    """Usage and waiting of every simulated replica."""
    series, found = _read(path)
    which = list(range(len(series.ranks)))
    if len(which) > MOST_LINES:
        order = fullest_first(rank_table(series))
        which = sorted([*order[: MOST_LINES // 2], *order[-(MOST_LINES // 2) :]])
    grid = series.grid
    part = (grid.start_s, grid.end_s)
    keys = ["usage", "waiting", "preemptions"]
    extras = [Extra("Imbalance", "KV tokens of the fullest rank over the mean", found.ratio)]
    extras = extras if len(series.ranks) > 1 else []
    st.subheader(plain(f"Each replica under {ROUTER_TITLES[rule]}"), anchor=False)
    st.plotly_chart(
        lines_figure(series, which, keys, extras, part, theme()).update_layout(dragmode=False),
        theme=None,
        key="fleet_routed_chart",
        config={**CONFIG, "displayModeBar": False},
        alt=alt_lines(series, which, keys, extras, part),
    )
    st.button(
        "Open the simulated fleet here",
        key="fleet_open_routed",
        icon=":material/open_in_new:",
        on_click=show,
        args=(f"run:{path.rpartition('/')[2]}",),
        help="All of this page, for the simulated replicas.",
    )


# ---- replicas needed --------------------------------------------------------------------------------


def replicas_section(shown: Shown, store: Store) -> None:
    """A goal, and the fewest replicas that meet it."""
    if not _has_requests(shown):
        return
    st.header("Replicas needed", anchor=False)
    with guarded():
        goal, pressed = _ask_goal()
        rule = str(st.session_state.get("router") or "least-tokens")
        if goal is None:
            return
        key = f"{shown.ref}\0{rule}\0{goal}"
        slot = _slot(shown.ref, key)
        if pressed and slot.result is None:
            start = len(shown.series.ranks)
            fleet_job.start(
                SEARCH,
                key,
                lambda report, cancelled: search_replicas(
                    shown, rule, goal, start, store, lambda done, text: report(SEARCH, done, text), cancelled
                ),
            )  # fmt: skip
        if fleet_job.was_cancelled(SEARCH):
            st.info("The search was cancelled.")
        found = fleet_job.watch(SEARCH, key, "Searching")
        if found is not None:
            slot.result = found
        if slot.result is not None:
            needed, before = slot.result
            _needed(needed, before, rule)


def _ask_goal() -> tuple[Goal | None, bool]:
    with st.container(horizontal=True, vertical_alignment="bottom", key="fleet_goal_row"):
        kind = st.segmented_control(
            "Goal",
            list(GOALS),
            format_func=lambda k: GOALS[k],
            default=NO_PREEMPTION,
            required=True,
            key="fleet_goal",
            bind="query-params",
        )
        bound = None
        if kind == TTFT_P99:
            bound = float(
                st.number_input(
                    "Seconds",
                    0.001,
                    1e6,
                    2.0,
                    key="fleet_bound",
                    bind="query-params",
                    width=140,
                )
            )
        pressed = st.button("Search", key="fleet_search")
    return (Goal(str(kind), bound) if kind else None), pressed


def _needed(found: Needed, before: dict[str, Any], rule: str) -> None:
    st.markdown(f"**{plain(say_needed(found, rule, before))}**")
    table = needed_table(found)
    st.dataframe(
        table,
        hide_index=True,
        height="content",
        column_config={
            c: st.column_config.TextColumn(alignment="right") for c in table.columns[2:]
        },
        alt="Numbers of replicas that were tried",
    )
    st.caption(
        f"Before: the recorded split, simulated ({AS_RECORDED}). Tried numbers alone are known; all of them are modelled."
    )
