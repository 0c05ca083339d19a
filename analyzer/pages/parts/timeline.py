"""The aligned timeline with its controls: axis, rows, zoom by mouse, keys, slider and link.

A fragment: a zoom asks for detail of the shown part and redraws nothing else. It knows widgets and
session state; what is in the rows is known in `view`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import cast

import streamlit as st

from analyzer import figures
from analyzer.aligned import ALIGNMENTS, Aligned, Alignment, data_table, range_sums
from analyzer.look import DARK, LIGHT, Side, Theme, seconds, three_digits
from analyzer.pages.parts import first_picture
from analyzer.pages.parts.events import events_section
from analyzer.pages.parts.messages import guarded
from analyzer.pages.parts.shown_range import (
    Axis,
    digest,
    follow_zoom,
    range_slider,
    show_part,
)
from analyzer.pages.parts.state import asked_range, forget_range, look_at, write_url
from analyzer.run import Run
from analyzer.timeline_rows import ROWS, timeline_rows
from analyzer.timeline_view import View
from analyzer.words import NOT_RECORDED


def theme() -> Theme:
    """Colours for the brightness that the browser shows."""
    return DARK if st.context.theme.type == "dark" else LIGHT


@st.cache_resource(max_entries=8, show_spinner=False)
def aligned(key: str, by: Alignment, _runs: Mapping[Side, Run]) -> Aligned:
    """The runs on one axis, worked out once per content and axis."""
    return Aligned(_runs, by)


@st.fragment
def timeline_section(key: str, runs: Mapping[Side, Run], is_waited_for: bool = False) -> None:
    """Controls, chart, what happened in the shown range, and the events in it.

    key: names the runs' content. is_waited_for: until the browser has drawn the chart, the first time.
    """
    write_url()
    with guarded():
        by, which = _controls()
        pair = aligned(key, by, runs)
        view = f"{key}\0{by}"
        look_at(view)
        shown = pair.clip(asked_range())
        _chart(pair, shown, which, view, key if is_waited_for else "")
        if shown != pair.full:  # below the chart, which stays where it is
            _overview(pair, shown, view)
        range_slider(shown, _axis(pair, view))
        _range_words(pair, shown)
        _data(pair, shown)
        events_section(pair, shown, by)


def _controls() -> tuple[Alignment, list[str]]:
    with st.container(
        horizontal=True, vertical_alignment="center", gap="small", key="controls"
    ):
        by = st.segmented_control(
            "Align by",
            list(ALIGNMENTS),
            format_func=lambda k: ALIGNMENTS[cast(Alignment, k)],
            default="time",
            required=True,
            key="by",
            bind="query-params",
            persist_state="session",
            on_change=forget_range,
            label_visibility="collapsed",
        )
        which = st.pills(
            "Rows of the timeline",
            list(ROWS),
            format_func=lambda k: ROWS[str(k)],
            selection_mode="multi",
            default=[key for key in ROWS if key != "host"],
            key="rows",
            label_visibility="collapsed",
            bind="query-params",
            persist_state="session",
            wrap=True,
        )
        with st.popover("Pin", type="tertiary", help="Which rows come first."):
            pinned = st.multiselect(
                "Rows at the top",
                list(ROWS),
                format_func=lambda k: ROWS[str(k)],
                key="pinned",
                bind="query-params",
                persist_state="session",
            )
    chosen = [key for key in ROWS if key in (which or ["blocks"]) or key in pinned]
    return by, [*pinned, *(key for key in chosen if key not in pinned)]


def _overview(pair: Aligned, shown: tuple[float, float], view: str) -> None:
    """The whole axis in a strip, the shown part marked; a drag on it shows another part."""
    whole = View(pair, pair.full, ("blocks",))
    marks = whole.mean("used_blocks", "mean KV blocks")
    top = max(run.recording.pool_blocks for run in pair.runs.values()) * 1.05
    key = f"overview_{digest(view)}"
    low, high = (three_digits(v) for v in shown)
    st.plotly_chart(
        figures.overview(marks, pair.axis(pair.full), shown, top, theme()),
        theme=None,
        key=key,
        config={**figures.CONFIG, "displayModeBar": False},
        on_select=partial(_selected, key, _axis(pair, view)),
        selection_mode="box",
        alt=f"KV blocks in use over the whole run; shown is {low} to {high} {pair.unit}.".strip(),
    )


def _axis(pair: Aligned, view: str) -> Axis:
    return Axis(pair.full, view, pair.unit, pair.by)


def _selected(key: str, axis: Axis) -> None:
    boxes = st.session_state[key].selection.box
    if boxes:
        start, end = sorted(float(x) for x in boxes[0]["x"][:2])
        if end > start:
            show_part((start, end), axis)


def _chart(
    pair: Aligned, shown: tuple[float, float], which: list[str], view: str, waited_for: str
) -> None:
    rows = timeline_rows(pair, shown, which)
    axis = pair.axis(shown)
    st.plotly_chart(
        figures.timeline(rows, axis, pair.names, theme(), checked=False),
        theme=None,
        key="timeline",
        config=figures.CONFIG,
        alt=figures.alt_text(rows, axis, pair.names),
    )
    drawn = first_picture.token(waited_for)
    follow_zoom("timeline", _axis(pair, view), tell_drawn=drawn, shown=shown)
    first_picture.wait_for(drawn, waited_for)


def _range_words(pair: Aligned, shown: tuple[float, float]) -> None:
    """Length of the shown range and what each run did in it."""
    width = shown[1] - shown[0]
    length = (
        seconds(width)
        if pair.by == "time"
        else f"{three_digits(width)} {'steps' if pair.by == 'step' else '% of the work'}"
    )
    said = [f"Shown: {length}"]
    for side, sums in range_sums(pair, shown).items():
        restored = f", {sums.restored_tokens:,} restored" if sums.restored_tokens else ""
        stall = (
            f"stall {NOT_RECORDED}"
            if sums.stall_s is None
            else f"stalled {seconds(sums.stall_s)}"
        )
        said.append(
            f"{side}: {sums.num_steps:,} steps, {sums.num_preemptions:,} preemptions, "
            f"{sums.recomputed_tokens:,} tokens recomputed{restored}, {stall}"
        )
    keys = "Drag or Ctrl + wheel to zoom, double-click for all. Keys: W S zoom, A D move, 0 all, ? lists them."
    st.caption("  \n".join([" · ".join(said), keys]))


def _data(pair: Aligned, shown: tuple[float, float]) -> None:
    if not st.toggle(
        "Show data",
        key="show_timeline_data",
        help="The shown range as a table of 60 stretches.",
    ):
        return
    st.dataframe(
        data_table(pair, shown), hide_index=True, height=320, alt="Timeline as a table"
    )
