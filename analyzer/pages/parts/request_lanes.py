"""The swim lanes with their controls, and the chosen request below them.

A fragment: a zoom, another row or another request redraws this and nothing else. It knows widgets and
session state; what is in the lanes is known in `lanes` and `lanes_picture`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import streamlit as st

from analyzer.figures import CONFIG
from analyzer.lanes import Lanes, build_lanes
from analyzer.lanes_figure import (
    CountRow,
    LaneRow,
    Row,
    SkyRow,
    StripRow,
    alt_text,
    lanes_figure,
)
from analyzer.lanes_picture import (
    COUNT_COLUMNS,
    Skyline,
    Strips,
    bars,
    skyline,
    strips,
    worth_a_look,
)
from analyzer.look import Side
from analyzer.pages.parts import state
from analyzer.pages.parts.messages import guarded
from analyzer.pages.parts.shell import Opened
from analyzer.pages.parts.timeline import theme
from analyzer.pages.parts.zoom import zoom_listener
from analyzer.request_table import Paired, paired
from analyzer.run import run_names

SIDES = {"both": "A over B", "A": "A", "B": "B"}
ROWS = {"counts": "By phase", "strips": "Overview", "lanes": "Lanes"}
LONG_LANES = 12  # strips, where the shown time is shorter than so many usual requests
MOST_LANES = {1: 48, 2: 24}  # in detail, by the number of runs shown


@st.cache_resource(max_entries=4, show_spinner="Laying out the lanes")
def lanes_of(key: str, side: Side, _opened: Opened) -> Lanes:
    """All lanes of a run, built once per content."""
    run = _opened.run(side)
    return build_lanes(run.events, run.steps, run.requests)


@st.cache_resource(max_entries=4, show_spinner=False)
def pair_of(key: str, _opened: Opened) -> Paired:
    """Requests of both runs, matched once per content."""
    return paired(_opened.a.requests, _opened.b.requests)


@st.cache_resource(max_entries=24, show_spinner=False)
def _strips(key: str, side: Side, shown: tuple[float, float], _lanes: Lanes) -> Strips:
    return strips(_lanes, shown)


@st.cache_resource(max_entries=24, show_spinner=False)
def _skyline(
    key: str, side: Side, shown: tuple[float, float], top_s: float | None, _lanes: Lanes
) -> Skyline:
    return skyline(_lanes, shown, top_s=top_s)


@st.fragment
def lanes_section(opened: Opened) -> None:
    """Controls, picture and what it says."""
    state.write_url()
    with guarded():
        sides, which = _controls()
        lanes = {side: lanes_of(opened.key, side, opened) for side in sides}
        full = (0.0, max(max(x.end_of_run_s for x in lanes.values()), 1e-9))
        view = f"{opened.key}\0requests"
        state.look_at(view)
        shown = clipped(state.asked_time_range(), full)
        rows = _rows(opened, lanes, shown, which)
        st.plotly_chart(
            lanes_figure(rows, shown, theme()),
            theme=None,
            key="lanes",
            config=CONFIG,
            alt=alt_text(rows, shown),
        )
        zoom_listener("lanes", full, view, key="zoom", on_change=lambda: _zoomed(full))


def clipped(
    asked: tuple[float, float] | None, full: tuple[float, float]
) -> tuple[float, float]:
    """The asked part of the time as far as it exists; all of it for None or an empty part."""
    if asked is None:
        return full
    start, end = max(full[0], asked[0]), min(full[1], asked[1])
    return (start, end) if end > start else full


def _controls() -> tuple[list[Side], list[str]]:
    with st.container(
        horizontal=True, vertical_alignment="center", gap="small", key="controls"
    ):
        side = st.segmented_control(
            "Runs",
            list(SIDES),
            format_func=lambda k: SIDES[str(k)],
            default="both",
            required=True,
            key="lane_side",
            bind="query-params",
            persist_state="session",
            label_visibility="collapsed",
        )
        which = st.pills(
            "Rows of the lanes",
            list(ROWS),
            format_func=lambda k: ROWS[str(k)],
            selection_mode="multi",
            default=list(ROWS),
            key="lane_rows",
            bind="query-params",
            persist_state="session",
            label_visibility="collapsed",
        )
    sides: list[Side] = ["A", "B"] if side == "both" else ["A" if side == "A" else "B"]
    return sides, list(which or ["strips"])


def _rows(
    opened: Opened,
    lanes: Mapping[Side, Lanes],
    shown: tuple[float, float],
    which: Sequence[str],
) -> list[Row]:
    """Rows of one kind for all runs, then the next kind."""
    names = run_names({"A": opened.a, "B": opened.b})
    rows: list[Row] = []
    found = {s: _strips(opened.key, s, shown, x) for s, x in lanes.items()}
    counts = {s: x.counts(COUNT_COLUMNS) for s, x in found.items()}
    top = max((float(c.sum(axis=0).max(initial=0)) for c in counts.values()), default=0.0)
    if "counts" in which:
        rows += [CountRow(s, names[s], c, top) for s, c in counts.items()]
    if "strips" in which:
        rows += _overview(opened, lanes, shown, found, names)
    if "lanes" in which:
        pair = pair_of(opened.key, opened)
        same = {s: np.append(x.lane, x.num_lanes)[pair.rows[s]] for s, x in lanes.items()}
        numbers, note = worth_a_look(lanes, same, shown, MOST_LANES[len(lanes)])
        ids = pair.ids.gather(numbers).to_list()
        for side, x in lanes.items():
            rows.append(
                LaneRow(side, names[side], ids, bars(x, same[side][numbers], shown), note)
            )
    return rows


def _overview(
    opened: Opened,
    lanes: Mapping[Side, Lanes],
    shown: tuple[float, float],
    found: Mapping[Side, Strips],
    names: Mapping[Side, str],
) -> list[Row]:
    """Strips where lanes are long enough on this axis to be seen; else each request where it arrived."""
    width = shown[1] - shown[0]
    if width < LONG_LANES * max(x.usual_life_s for x in lanes.values()):
        return [StripRow(s, names[s], x) for s, x in found.items()]
    skies = {s: _skyline(opened.key, s, shown, None, x) for s, x in lanes.items()}
    top = max(sky.top_s for sky in skies.values())
    rows: list[Row] = []
    for side, x in lanes.items():
        sky = _skyline(opened.key, side, shown, top, x)
        ids = opened.run(side).requests["request_id"].gather(x.row[sky.lanes]).to_list()
        rows.append(SkyRow(side, names[side], sky, ids))
    return rows


def _zoomed(full: tuple[float, float]) -> None:
    report = st.session_state["zoom"].range or {}
    start, end = report.get("range") or (None, None)
    shown = None if start is None or end is None else (float(start), float(end))
    state.set_range(shown, str(report.get("view")))
