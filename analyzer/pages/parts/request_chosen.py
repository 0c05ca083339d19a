"""The chosen request: its lane in every run, its numbers beside each other, its events, links.

It knows widgets; what happened to the request is told in `request_story`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import polars as pl
import streamlit as st

from analyzer.figures import CONFIG
from analyzer.lanes_figure import LaneRow, Moment, Row, alt_text, harmless, lanes_figure
from analyzer.lanes_picture import bars
from analyzer.look import Side
from analyzer.pages.parts import shell
from analyzer.pages.parts.messages import plain
from analyzer.pages.parts.preempted import lanes_of
from analyzer.pages.parts.request_choice import KEY, MOST_IN_URL
from analyzer.pages.parts.shell import Opened
from analyzer.pages.parts.shown_range import Axis, Range, show_part
from analyzer.pages.parts.timeline import theme
from analyzer.request_story import events_of, numbers, preemptions_cost_s
from analyzer.request_table import Paired
from analyzer.run import run_names

STATIC = {**CONFIG, "displayModeBar": False}
LANE_PX = 34


def chosen_section(opened: Opened, pair: Paired, number: int, axis: Axis) -> None:
    """Everything about one request."""
    request_id = str(pair.ids[number])
    events = {side: events_of(run, request_id) for side, run in opened.runs.items()}
    life = _life(opened, pair, number)
    with st.container(key="chosen", border=True):
        with st.container(horizontal=True, vertical_alignment="center", key="chosen_head"):
            st.subheader(f"Request {plain(_short(request_id))}", anchor=False, width="content")
            if life is not None:
                st.button(
                    "Zoom to it",
                    icon=":material/zoom_in:",
                    on_click=partial(show_part, _around(life, axis.full), axis),
                    key="zoom_to_request",
                )
            st.button("Close", icon=":material/close:", on_click=_close, key="close_request")
        if life is not None:
            _lanes(opened, pair, number, events, life)
        left, right = st.columns([5, 6], gap="small")
        with left:
            _numbers(opened, pair, number, request_id)
        with right:
            _events(events)
        _links(request_id, events)


def _short(request_id: str, longest: int = 60) -> str:
    if len(request_id) <= longest:
        return request_id
    return f"{request_id[:longest]}… ({len(request_id):,} characters)"


def _close() -> None:
    st.session_state[KEY] = ""


def _life(opened: Opened, pair: Paired, number: int) -> Range | None:
    """From its first arrival to its last end in any run; None where no run has a lane of it."""
    ends = []
    for side, run in opened.runs.items():
        at, lanes = pair.row(side, number), lanes_of(run)
        if at is not None and lanes.lane[at] < lanes.num_lanes:
            lane = int(lanes.lane[at])
            ends.append((float(lanes.arrival_s[lane]), float(lanes.end_s[lane])))
    if not ends:
        return None
    return min(a for a, _ in ends), max(b for _, b in ends)


def _around(life: Range, full: Range) -> Range:
    """Its life and a little of what came before and after."""
    margin = max(0.15 * (life[1] - life[0]), 1e-3 * (full[1] - full[0]) / 10)
    return max(full[0], life[0] - margin), min(full[1], life[1] + margin)


def _lanes(
    opened: Opened,
    pair: Paired,
    number: int,
    events: Mapping[Side, pl.DataFrame],
    life: Range,
) -> None:
    margin = max(0.02 * (life[1] - life[0]), 1e-6)
    shown = (life[0] - margin, life[1] + margin)
    names = run_names(opened.runs)
    rows: list[Row] = []
    for side, run in opened.runs.items():
        lanes, at = lanes_of(run), pair.row(side, number)
        lane = lanes.num_lanes if at is None else int(lanes.lane[at])
        moments = [
            Moment(t, kind, harmless(said, 300))
            for t, kind, said in events[side].select("t_s", "kind", "said").iter_rows()
            if np.isfinite(t)
        ]
        note = f"{len(moments):,} events" if lane < lanes.num_lanes else "not in this run"
        rows.append(
            LaneRow(
                side,
                names[side],
                [str(pair.ids[number])],
                bars(lanes, np.array([lane]), shown),
                note,
                moments=moments,
                lane_px=LANE_PX,
            )
        )
    st.plotly_chart(
        lanes_figure(rows, shown, theme()),
        theme=None,
        key="chosen_lanes",
        config=STATIC,
        alt=alt_text(rows, shown),
    )


def _numbers(opened: Opened, pair: Paired, number: int, request_id: str) -> None:
    costs = {s: preemptions_cost_s(run, request_id) for s, run in opened.runs.items()}
    table = numbers(opened.runs, pair, number, costs)
    st.dataframe(
        table,
        hide_index=True,
        height="content",
        column_config={
            "figure": st.column_config.TextColumn("Figure", width=150),
            **{
                name: st.column_config.TextColumn(alignment="right")
                for name in table.columns[1:]
            },
        },
        alt="Figures of the chosen request in every run",
    )


def _events(events: Mapping[Side, pl.DataFrame]) -> None:
    """What happened to it in every run, by time."""
    table = pl.concat(
        [
            found.select(run=pl.lit(side), time="t_s", step="step", what="said")
            for side, found in events.items()
        ]
    ).sort("time", "run", maintain_order=True)
    st.dataframe(
        table,
        hide_index=True,
        height=min(490, 38 + 35 * max(table.height, 1)),
        column_config={
            "run": st.column_config.TextColumn("Run", width=50),
            "time": st.column_config.NumberColumn("Time (s)", format="%.3f", width=90),
            "step": st.column_config.NumberColumn("Step", format="localized", width=80),
            "what": st.column_config.TextColumn("What happened", width="large"),
        },
        alt="Events of the chosen request",
    )


def _links(request_id: str, events: Mapping[Side, pl.DataFrame]) -> None:
    if len(request_id) > MOST_IN_URL:
        st.caption("Its id is too long for a link to the other pages.")
        return
    steps = {
        side: found.filter(pl.col("kind").is_in(["preempt", "admit"]))["step"]
        for side, found in events.items()
    }
    step = next((str(found[-1]) for found in steps.values() if len(found)), None)
    is_victim = any((found["kind"] == "preempt").any() for found in events.values())
    with st.container(horizontal=True, key="request_links"):
        if is_victim:
            shell.link_to(
                "preemptions",
                "Its preemptions",
                ":material/eject:",
                request=request_id,
            )
        shell.link_to(
            "block-map",
            "Its blocks on the block map",
            ":material/grid_view:",
            request=request_id,
            step=step,
        )
