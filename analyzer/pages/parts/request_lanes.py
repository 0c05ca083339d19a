"""The swim lanes with their controls, and the chosen request below them.

A fragment: a zoom, another row or another request redraws this and nothing else. It knows widgets and
session state; what is in the lanes is known in `lanes` and `lanes_picture`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import polars as pl
import streamlit as st

from analyzer.figures import CONFIG
from analyzer.lanes import PHASES, Lanes
from analyzer.lanes_figure import (
    LABELS,
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
from analyzer.look import Side, seconds, three_digits
from analyzer.pages.parts import state
from analyzer.pages.parts.messages import guarded, plain
from analyzer.pages.parts.preempted import lanes_of
from analyzer.pages.parts.request_choice import (
    choose,
    chosen_number,
    pair_of,
    request_box,
    say_unknown,
)
from analyzer.pages.parts.request_chosen import chosen_section
from analyzer.pages.parts.shell import Opened
from analyzer.pages.parts.shown_range import Axis, follow_zoom, range_slider, shown_time
from analyzer.pages.parts.timeline import theme
from analyzer.request_table import Paired
from analyzer.run import run_names

ROWS = {"counts": "By phase", "strips": "Overview", "lanes": "Lanes"}
LONG_LANES = 12  # strips, where the shown time is shorter than so many usual requests
MOST_LANES = {1: 48, 2: 24, 3: 16}  # in detail, by the number of runs shown
FEWER = 0.5  # of them where lanes are short

# For readers that hear the page: the picture's own titles say the same to the eye.
_HEADING = '<h2 style="position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)">Swim lanes</h2>'

Range = tuple[float, float]


@st.cache_resource(max_entries=8, show_spinner=False)
def _strips(ref: str, stamp: str, shown: Range, _lanes: Lanes) -> Strips:
    return strips(_lanes, shown)


@st.cache_resource(max_entries=8, show_spinner=False)
def _skyline(ref: str, stamp: str, shown: Range, top_s: float | None, _lanes: Lanes) -> Skyline:
    return skyline(_lanes, shown, top_s=top_s)


@st.cache_resource(max_entries=8, show_spinner=False)
def _picked(
    key: str,
    sides: tuple[Side, ...],
    shown: Range,
    limit: int,
    number: int | None,
    _lanes: Mapping[Side, Lanes],
    _same: Mapping[Side, np.ndarray],
) -> tuple[np.ndarray, str]:
    return worth_a_look(_lanes, _same, shown, limit, number)


@st.fragment
def lanes_section(opened: Opened) -> None:
    """Controls, picture, what it says, and the chosen request."""
    state.write_url()
    with guarded():
        st.html(_HEADING)
        pair = pair_of(opened.key, opened.runs)
        sides, which = _controls(opened)
        lanes = {side: lanes_of(opened.run(side)) for side in sides}
        full = (0.0, max(max(x.end_of_run_s for x in lanes.values()), 1e-9))
        view = f"{opened.key}\0requests"
        axis = Axis(full, view)
        shown = shown_time(axis)
        number = chosen_number(pair)
        drawn = _Drawn(opened, pair, lanes, shown, number)
        rows = drawn.rows(which)
        st.plotly_chart(
            lanes_figure(rows, shown, theme()),
            theme=None,
            key="lanes",
            on_select=partial(_clicked, pair),
            selection_mode="points",
            config=CONFIG,
            alt=alt_text(rows, shown),
        )
        follow_zoom("lanes", axis)
        range_slider(shown, axis)
        _words(lanes, drawn, which, shown)
        _data(lanes, shown)
        say_unknown(pair)
        if number is not None:
            chosen_section(opened, pair, number, axis)


def _clicked(pair: Paired) -> None:
    """Choose the request whose lane was clicked."""
    points = st.session_state["lanes"].selection.points
    told = points[0].get("customdata") if points else None
    if isinstance(told, list) and told and isinstance(told[-1], str):  # else it is no request
        number = pair.number(told[-1])
        if number is not None:
            choose(pair, number)


def _controls(opened: Opened) -> tuple[list[Side], list[str]]:
    runs = list(opened.runs)
    with st.container(
        horizontal=True, vertical_alignment="center", gap="small", key="controls"
    ):
        side = "all"
        if len(runs) > 1:
            side = st.segmented_control(
                "Runs",
                ["all", *runs],
                format_func=lambda k: " over ".join(runs) if k == "all" else str(k),
                default="all",
                required=True,
                key="lanes_of",
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
        request_box()
    return [s for s in runs if side in ("all", s)], list(which or ["strips"])


class _Drawn:
    """Rows of the picture, each kind for all runs, then the next kind."""

    def __init__(
        self,
        opened: Opened,
        pair: Paired,
        lanes: Mapping[Side, Lanes],
        shown: Range,
        number: int | None,
    ) -> None:
        self.opened, self.pair, self.lanes = opened, pair, lanes
        self.shown, self.number = shown, number
        self.names = run_names(opened.runs)
        self.are_short = shown[1] - shown[0] >= LONG_LANES * max(
            x.usual_life_s for x in lanes.values()
        )

    def rows(self, which: Sequence[str]) -> list[Row]:
        """The rows asked for, keys of ROWS."""
        rows: list[Row] = []
        if "counts" in which:
            rows += self._counts()
        if "strips" in which:
            rows += self._sky() if self.are_short else self._overview()
        if "lanes" in which:
            rows += self._detail()
        return rows

    def explained(self, which: Sequence[str]) -> list[str]:
        """How to read the overview that is drawn."""
        if "strips" not in which:
            return []
        if not self.are_short:
            most = max(int(self.strips_of(s).sizes.max(initial=0)) for s in self.lanes)
            if most < 2:
                return []
            return [
                f"Overview: up to {most:,} requests a strip, by arrival; its height divides into their phases. Zoom in for one a lane."
            ]
        sky = self._skyline(next(iter(self.lanes)), None)
        per = sky.num_arrivals / max(len(sky.lanes), 1)
        one = (
            f"; of about {three_digits(per)} a column it shows the one preempted longest, else the slowest"
            if per > 1
            else ""
        )
        return [
            f"Overview: each request stands where it arrived, as high as it lasted{one}. Zoom in for lanes."
        ]

    def _lane(self, side: Side) -> int | None:
        """The lane of the chosen request in a run."""
        at = None if self.number is None else self.pair.row(side, self.number)
        if at is None:
            return None
        lane = int(self.lanes[side].lane[at])
        return lane if lane < self.lanes[side].num_lanes else None

    def strips_of(self, side: Side) -> Strips:
        """The lanes that touch the shown time, in strips."""
        run = self.opened.run(side)
        return _strips(run.ref, run.stamp, self.shown, self.lanes[side])

    def _counts(self) -> list[Row]:
        counts = {side: self.strips_of(side).counts(COUNT_COLUMNS) for side in self.lanes}
        top = max(float(c.sum(axis=0).max(initial=0)) for c in counts.values())
        return [CountRow(side, self.names[side], c, top) for side, c in counts.items()]

    def _overview(self) -> list[Row]:
        rows: list[Row] = []
        for side in self.lanes:
            found = self.strips_of(side)
            rows.append(
                StripRow(side, self.names[side], found, _place(found.lanes, self._lane(side)))
            )
        return rows

    def _sky(self) -> list[Row]:
        """All runs at one height, so that they can be compared."""
        tops = [self._skyline(side, None).top_s for side in self.lanes]
        rows: list[Row] = []
        for side, lanes in self.lanes.items():
            sky = self._skyline(side, max(tops))
            ids = self.opened.run(side).requests["request_id"].gather(lanes.row[sky.lanes])
            rows.append(SkyRow(side, self.names[side], sky, ids.to_list(), self._arrived(side)))
        return rows

    def _skyline(self, side: Side, top_s: float | None) -> Skyline:
        run = self.opened.run(side)
        return _skyline(run.ref, run.stamp, self.shown, top_s, self.lanes[side])

    def _arrived(self, side: Side) -> float | None:
        """When the chosen request arrived, where that is in the shown time."""
        lane = self._lane(side)
        if lane is None:
            return None
        at = float(self.lanes[side].arrival_s[lane])
        return at if self.shown[0] <= at <= self.shown[1] else None

    def _detail(self) -> list[Row]:
        same = {
            side: np.append(x.lane, x.num_lanes)[self.pair.rows[side]]
            for side, x in self.lanes.items()
        }
        limit = MOST_LANES[len(self.lanes)]
        if self.are_short:
            limit = int(limit * FEWER)
        numbers, note = _picked(
            self.opened.key, tuple(self.lanes), self.shown, limit, self.number, self.lanes, same
        )
        ids = self.pair.ids.gather(numbers).to_list()
        chosen = _place(numbers, self.number)
        return [
            LaneRow(
                side,
                self.names[side],
                ids,
                bars(x, same[side][numbers], self.shown),
                note,
                chosen,
            )
            for side, x in self.lanes.items()
        ]


def _place(among: np.ndarray, one: int | None) -> int | None:
    """Where one number stands among others; None where it does not."""
    if one is None:
        return None
    found = np.flatnonzero(among == one)
    return int(found[0]) if len(found) else None


def _words(
    lanes: Mapping[Side, Lanes], drawn: _Drawn, which: Sequence[str], shown: Range
) -> None:
    """What requests spent the shown time on, what is left out, and the keys."""
    said = []
    for side, x in lanes.items():
        found = drawn.strips_of(side)
        total = found.seconds()
        parts = [
            f"{LABELS[p]} {seconds(float(total[p]))}"
            for p in range(len(PHASES))
            if total[p] > 1e-9
        ]
        said.append(
            f"{side}: {len(found.lanes):,} requests, together {', '.join(parts) or 'nothing'}"
        )
        if x.left_out.words():
            said.append(f"{side}: {x.left_out.words()}")
        if "steps.recomputed_tokens" in drawn.opened.run(side).meta.not_recorded:
            said.append(f"{side}: when lost tokens were computed again is not recorded")
    said += drawn.explained(which)
    keys = "Drag to zoom, double-click for all, click a lane to choose its request. Keys: W S zoom, A D move, 0 all."
    st.caption(
        "  \n".join([plain(f"Shown: {seconds(shown[1] - shown[0])}"), *map(plain, said), keys])
    )


def _data(lanes: Mapping[Side, Lanes], shown: Range) -> None:
    if not st.toggle(
        "Show data",
        key="show_lane_data",
        help="Requests by phase in 60 stretches of the shown time.",
    ):
        return
    edges = np.linspace(*shown, 61)
    columns: dict[str, np.ndarray] = {
        "from (s)": edges[:-1].round(3),
        "to (s)": edges[1:].round(3),
    }
    for side, x in lanes.items():
        counts = strips(x, shown, num_strips=1, columns=60).counts(60)
        for phase in range(len(PHASES)):
            if counts[phase].any():
                columns[f"{LABELS[phase]} · {side}"] = counts[phase].round(2)
    st.dataframe(
        pl.DataFrame(columns), hide_index=True, height=320, alt="Requests by phase as a table"
    )
