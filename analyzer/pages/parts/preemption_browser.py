"""The list of preemptions, the chosen one told, what surrounds it, and its request in the other run.

A fragment: choosing another preemption draws nothing else again. Which one is chosen is a key of
session state; the URL's `event` is read where the page is arrived at, and written whenever it changes.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import numpy as np
import polars as pl
import streamlit as st

from analyzer.lanes import PHASES
from analyzer.look import Side
from analyzer.pages.parts import shell, state
from analyzer.pages.parts.messages import guarded, plain
from analyzer.pages.parts.preempted import MOST_TYPED, lanes_of, listed, rows_of
from analyzer.pages.parts.request_choice import MOST_IN_URL
from analyzer.pages.parts.timeline import theme
from analyzer.preemption_around import around, in_words, stretch
from analyzer.preemption_figure import STATIC, alt_around, lanes_around
from analyzer.preemption_rows import (
    ORDERS,
    EventKey,
    Listed,
    Order,
    parse_event,
    place_in,
)
from analyzer.preemption_story import Story, same_request, short_id, tell
from analyzer.run import Run, run_names
from analyzer.words import NOT_RECORDED

PAGE_ROWS = 100
LIST_PX = 480
EVENT = "preemption_event"  # what is chosen: an EventKey, or None
PAGE = "preemption_page"
ROWS = "preemption_rows"
_FOUND = "preemption_found"  # what the buttons go through
_WIDER = {"close": 1.0, "wide": 4.0, "widest": 16.0}


@st.fragment
def browser_section(key: str, runs: Mapping[Side, Run]) -> None:
    """List, card, lanes and the other run. key: names the runs' content."""
    with guarded():
        every = listed(key, runs)
        _arrive(every)
        rows = _filters(key, every, runs)
        if not len(rows):
            _nothing_fits()
            return
        at = _settle(every, rows)
        left, right = st.columns([11, 10], gap="medium")
        with left:
            _list(every, rows, at, runs)
        row = every.table.row(at, named=True)
        side = cast(Side, row["side"])
        cascade = every.tables[side].filter(pl.col("cascade_id") == row["cascade_id"])
        with right:
            _steps_buttons(every, rows, at)
            story = tell(runs[side], row, cascade)
            _card(story, side, runs)
        _surroundings(runs[side], row, cascade, side, story.title)
        _links(row, runs[side])
        _other_run(runs, every.tables, str(row["request_id"]))
        _write_url(every.event(at))


# ---- which one is chosen ---------------------------------------------------------------------------


def _arrive(every: Listed) -> None:
    """Where the page is come to: what the link asks for. Widgets are forgotten on other pages, so
    that the missing list tells."""
    if ROWS in st.session_state:
        return
    asked = parse_event(st.query_params.get("event", ""))
    if asked is not None:
        st.session_state[EVENT] = asked
    elif (wanted := st.query_params.get("request")) and "who" not in st.session_state:
        st.session_state["who"] = wanted[:MOST_TYPED]


def _settle(every: Listed, rows: np.ndarray) -> int:
    """Row number of the chosen preemption; the first that fits where it is none of these."""
    chosen = st.session_state.get(EVENT)
    found = every.find(chosen) if isinstance(chosen, EventKey) else None
    place = place_in(rows, found)
    if place is None:
        if isinstance(chosen, EventKey) and found is None:
            st.caption(
                f"The link's preemption (request {plain(short_id(chosen.request_id))} at step {chosen.step:,} of {chosen.side}) is not in these runs: the first one is shown."
            )
        place = 0
        st.session_state[PAGE] = 1
        _choose(every, rows, 0)
    elif PAGE not in st.session_state:
        st.session_state[PAGE] = place // PAGE_ROWS + 1
    return int(rows[place])


def _choose(every: Listed, rows: np.ndarray, place: int) -> None:
    st.session_state[EVENT] = every.event(int(rows[place]))


def _write_url(event: EventKey) -> None:
    if len(event.request_id) > MOST_IN_URL:
        st.query_params.pop("event", None)
    elif st.query_params.get("event") != event.text:
        st.query_params["event"] = event.text


# ---- the list ------------------------------------------------------------------------------------


def _filters(key: str, every: Listed, runs: Mapping[Side, Run]) -> np.ndarray:
    """Which run, which request, in which order; the rows that fit."""
    with st.container(
        horizontal=True, vertical_alignment="bottom", gap="small", key="preempted_by"
    ):
        which = st.segmented_control(
            "Run",
            ["both", *runs],
            format_func=lambda s: "Both" if s == "both" else s,
            default="both",
            required=True,
            key="side",
            bind="query-params",
            on_change=_first_page,
            label_visibility="collapsed",
        )
        search = st.text_input(
            "Find a request",
            key="who",
            bind="query-params",
            max_chars=MOST_TYPED,
            placeholder="Find a request: victim or aggressor",
            label_visibility="collapsed",
            icon=":material/search:",
            on_change=_first_page,
            width=260,
        )
        order = st.selectbox(
            "Order",
            list(ORDERS),
            format_func=lambda o: ORDERS[cast(Order, o)],
            key="sort",
            bind="query-params",
            label_visibility="collapsed",
            on_change=_start_over,
            width=210,
        )
        within = state.asked_time_range()
        if within is not None:
            st.button(
                f"{within[0]:,.1f} to {within[1]:,.1f} s",
                icon=":material/close:",
                help="Only preemptions within the range that the timeline shows. Press to list those of the whole run.",
                on_click=state.forget_range,
                key="forget_range",
            )
    sides = tuple(runs) if which == "both" else (cast(Side, which),)
    return rows_of(key, sides, (search or "").strip(), order, within, every)


def _first_page() -> None:
    """Another selection begins at its start, unless the chosen one is still in it."""
    st.session_state.pop(PAGE, None)


def _start_over() -> None:
    """Another order is asked for what it puts first."""
    st.session_state[PAGE] = 1
    st.session_state[EVENT] = None


def _nothing_fits() -> None:
    st.info(
        "No preemption fits: another run, request or range was asked for.",
        icon=":material/filter_alt_off:",
    )
    st.button("Show all preemptions", on_click=_show_all, key="show_all_preemptions")


def _show_all() -> None:
    state.forget_range()
    st.session_state["who"] = ""
    st.session_state["side"] = "both"
    _first_page()


def _list(every: Listed, rows: np.ndarray, at: int, runs: Mapping[Side, Run]) -> None:
    """One page of the list; the chosen row is marked wherever it was chosen."""
    num_pages = max(-(-len(rows) // PAGE_ROWS), 1)
    nth = min(max(int(st.session_state.get(PAGE, 1)), 1), num_pages)
    st.session_state[PAGE] = nth
    page = every.page(rows, nth - 1, PAGE_ROWS)
    place = place_in(rows[(nth - 1) * PAGE_ROWS : nth * PAGE_ROWS], at)
    st.session_state[ROWS] = {"selection": {"rows": [] if place is None else [place]}}
    st.dataframe(
        _shown(page, list(runs)),
        key=ROWS,
        on_select=partial(_picked, every, rows, nth, place),
        selection_mode="single-row",
        hide_index=True,
        height=min(LIST_PX, 38 + 35 * page.height),
        column_config=_columns(),
        placeholder="—",
        alt="Preemptions",
    )
    with st.container(
        horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"
    ):
        first = (nth - 1) * PAGE_ROWS
        unknown = any(
            page[c].null_count() for c in ("direct_cost_s", "away_s", "recomputed_tokens")
        )
        dash = ". —: not recorded; under Away: never ran again" if unknown else ""
        st.caption(
            f"{first + 1:,} to {first + page.height:,} of {len(rows):,} preemptions{dash}"
        )
        if num_pages > 1:
            key = f"preemption_page_{nth}"  # a widget of its own a page, which others turn too
            st.pagination(
                num_pages,
                default=nth,
                key=key,
                max_visible_pages=5,
                on_change=_turn,
                args=(key,),
            )


def _turn(key: str) -> None:
    st.session_state[PAGE] = st.session_state[key]


def _picked(every: Listed, rows: np.ndarray, nth: int, marked: int | None) -> None:
    """Choose the row that was pressed. A browser reports the row that is marked, too, when another
    widget is used: that is no choice."""
    chosen = st.session_state[ROWS].selection.rows
    if not chosen or chosen[0] == marked:
        return
    place = (nth - 1) * PAGE_ROWS + chosen[0]
    if place < len(rows):
        _choose(every, rows, place)


def _shown(page: pl.DataFrame, sides: list[Side]) -> pl.DataFrame:
    cause, victim = pl.col("cause_request_id"), pl.col("request_id")
    columns = page.select(
        "side",
        time="t_s",
        victim=victim.str.slice(0, 60),
        why=pl.when(cause == victim)
        .then(pl.lit("itself"))
        .otherwise(cause.str.slice(0, 60).fill_null(NOT_RECORDED)),
        cost=pl.col("direct_cost_s") * 1e3,
        away="away_s",
        mode=pl.col("mode_used").cast(pl.String).fill_null(NOT_RECORDED),
        again="recomputed_tokens",
        blocks="blocks",
        induced="induced_s",
        nth="nth",
        step="step",
    )
    return columns.drop("side") if len(sides) == 1 else columns


def _columns() -> dict[str, Any]:
    number, text = (
        partial(st.column_config.NumberColumn, format="localized"),
        st.column_config.TextColumn,
    )
    return {
        "side": text("Run", width=48),
        "time": number("Time (s)", format="%.2f", width=72),
        "victim": text("Victim", width=72, help="The request that lost its blocks."),
        "why": text("Needed by", width=80, help="The request whose need of a block evicted it."),
        "cost": number("Cost (ms)", format="%.2f", width=78, help="Direct cost: what the mode used cost alone."),
        "away": number("Away (s)", format="%.3f", width=74, help="Until it ran again."),
        "mode": text("Mode", width=92),
        "again": number("Recomputed", width=98, help="Tokens computed again."),
        "blocks": number("Blocks", width=70, help="Blocks freed or moved."),
        "induced": number("Others (req·s)", format="%.3f", width=110, help="By how much other running requests were slowed down, summed over them."),
        "nth": number("Hit", width=50, help="1: its first preemption, 2: its second."),
        "step": number("Step", width=76),
    }  # fmt: skip


# ---- the chosen one --------------------------------------------------------------------------------


def _steps_buttons(every: Listed, rows: np.ndarray, at: int) -> None:
    """Previous and next, by button and by arrow key."""
    place = place_in(rows, at) or 0
    with st.container(
        horizontal=True,
        vertical_alignment="center",
        horizontal_alignment="distribute",
        key="step_through",
    ):
        st.button(
            "Previous", shortcut="Left", on_click=_go, args=(every, rows, place - 1), disabled=place == 0, key="previous_event",
        )  # fmt: skip
        st.caption(f"{place + 1:,} of {len(rows):,}", text_alignment="center")
        st.button(
            "Next", shortcut="Right", on_click=_go, args=(every, rows, place + 1), disabled=place + 1 >= len(rows), key="next_event",
        )  # fmt: skip


def _go(every: Listed, rows: np.ndarray, place: int) -> None:
    if 0 <= place < len(rows):
        _choose(every, rows, place)
        st.session_state[PAGE] = place // PAGE_ROWS + 1


def _card(story: Story, side: Side, runs: Mapping[Side, Run]) -> None:
    with st.container(border=True, key="story"):
        st.markdown(f"## {side} · {plain(story.title)}")
        for note in story.notes:
            st.badge(plain(note), icon=":material/repeat:", color="orange")
        terms = "".join(
            f"<dt>{html.escape(label)}</dt><dd>{html.escape(text)}</dd>"
            for label, text in story.lines.items()
        )
        st.html(f"<dl>{terms}</dl>")
        with st.container(horizontal=True, key="costs"):
            for cost in story.costs:
                st.metric(
                    f"{cost.label} · {cost.known}",
                    cost.value,
                    help=cost.meaning,
                    width="content",
                )


def _surroundings(
    run: Run, row: Mapping[str, Any], cascade: pl.DataFrame, side: Side, title: str
) -> None:
    """Lanes of the requests that ran, with the pool's use over them."""
    if run.steps.is_empty():
        return
    with st.container(
        horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"
    ):
        st.subheader("Around it", anchor=False)
        wider = st.segmented_control(
            "How much time around it",
            list(_WIDER),
            default="close",
            required=True,
            key="around",
            bind="query-params",
            label_visibility="collapsed",
        )
    found = around(
        row,
        lanes_of(run),
        run.requests,
        run.steps,
        cascade,
        run.recording.pool_blocks,
        _WIDER[wider],
    )
    st.plotly_chart(
        lanes_around(found, side, theme()),
        theme=None,
        key="around_chart",
        config=STATIC,
        alt=alt_around(found, title),
    )
    if st.toggle("Show data", key="show_around_data", help="The lanes as a table."):
        st.dataframe(
            in_words(found, PHASES), hide_index=True, height=280, alt="Lanes as a table"
        )


def _links(row: Mapping[str, Any], run: Run) -> None:
    """To what surrounds it on the other pages; those with a time axis show the stretch around it. An id
    that is too long for a URL is left out of it."""
    name, step = str(row["request_id"]), str(row["step"])
    request_id = name if len(name) <= MOST_IN_URL else None
    near = None if run.steps.is_empty() else stretch(row, run.steps)
    with st.container(horizontal=True, key="event_links"):
        shell.link_to("compare", "This moment on the timeline", ":material/timeline:", near)
        shell.link_to(
            "block-map",
            "Block map at this step",
            ":material/grid_view:",
            near,
            step=step,
            request=request_id,
        )
        shell.link_to(
            "requests",
            "This request's whole life",
            ":material/view_timeline:",
            request=request_id,
        )
        shell.link_to("crossover", "From which length swap is cheaper", ":material/alt_route:")


def _other_run(
    runs: Mapping[Side, Run], tables: Mapping[Side, pl.DataFrame], request_id: str
) -> None:
    """The same request in every run, and its preemptions there."""
    if len(runs) < 2:
        return
    st.subheader(f"Request {plain(short_id(request_id))} in {_and(list(runs))}", anchor=False)
    names = run_names(runs)
    table = same_request(runs, tables, request_id)
    columns: dict[str, Any] = {
        s: st.column_config.TextColumn(f"{s} · {names[s]}") for s in runs
    }
    st.dataframe(
        table,
        hide_index=True,
        column_config={"Figure": st.column_config.TextColumn(width="medium"), **columns},
        alt=f"Request {short_id(request_id)} in {_and(list(runs))}",
    )


def _and(sides: list[Side]) -> str:
    return f"{', '.join(sides[:-1])} and {sides[-1]}"
