"""The shown part of an axis, on every page that has one: by mouse, keys, slider and link.

One range for all pages, with the axis that it is of. It knows widgets and session state, and no chart
but by its key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import streamlit as st

from analyzer.pages.parts import state
from analyzer.pages.parts.zoom import zoom_listener

Range = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """Whose range it is. full: the whole axis; view: names what is shown, reports for another view
    are passed over; unit: for people; by: the alignment, as Compare's widget has it."""

    full: Range
    view: str
    unit: str = "s"
    by: str = "time"


def shown_time(axis: Axis) -> Range:
    """The asked part of the time as far as it exists, all of it for None or an empty part."""
    state.look_at(axis.view)
    asked = state.asked_time_range()
    if asked is None:
        return axis.full
    start, end = max(axis.full[0], asked[0]), min(axis.full[1], asked[1])
    return (start, end) if end > start else axis.full


def follow_zoom(
    chart: str,
    axis: Axis,
    heights: Sequence[str] = (),
    on_height: Any = None,
    tell_drawn: str = "",
    shown: Range | None = None,
) -> None:
    """Let that chart's zoom by mouse and keys ask for its range. Draw it after the chart.

    heights, on_height: y axes whose zoom is told too, and what is called with its two ends, None and
    None for all. tell_drawn: as `first_picture.token` gives it; shown: it is drawn when it shows this.
    """
    zoom_listener(
        chart,
        axis.full,
        axis.view,
        key="zoom",
        on_change=partial(_zoomed, axis, on_height),
        heights=heights,
        tell_drawn=tell_drawn,
        shown=shown,
    )


def range_slider(shown: Range, axis: Axis) -> None:
    """The keyboard's way to zoom, and the way back. A slider of its own per view, since a browser
    moves the ends of one whose bounds change, and reports that as a choice."""
    with st.container(horizontal=True, vertical_alignment="center", key="range"):
        slider(shown, axis)
        st.button(
            "Show all", on_click=state.forget_range, disabled=shown == axis.full, key="show_all"
        )


def slider(shown: Range, axis: Axis) -> None:
    """The slider alone."""
    key = f"range_slider_{digest(axis.view)}"
    step = _round_step((axis.full[1] - axis.full[0]) / 1000)
    st.session_state[key] = shown
    st.slider(
        "Shown range",
        *axis.full,
        step=step,
        key=key,
        format=_slider_format(step, axis.unit),
        on_change=_slid,
        args=(key, axis),
    )


def show_part(shown: Range | None, axis: Axis, view: str | None = None) -> None:
    """Show that part from now on; the whole axis is no range, whoever asks for it. view: what a
    browser's report speaks of, which may be late; None: what is shown now."""
    low, high = axis.full
    slack = (high - low) * 1e-3
    if shown and shown[0] <= low + slack and shown[1] >= high - slack:
        shown = None
    if st.session_state.get("by", "time") != axis.by:
        st.session_state["by"] = (
            axis.by
        )  # else Compare would take it for a part of its own axis
    state.set_range(shown, axis.view if view is None else view)


def digest(view: str) -> str:
    """A short name of a view, for the keys of widgets that belong to it."""
    return hashlib.blake2b(view.encode(), digest_size=6).hexdigest()


def _zoomed(axis: Axis, on_height: Any) -> None:
    report = st.session_state["zoom"].range or {}
    start, end = report.get("range") or (None, None)
    shown = None if start is None or end is None else (float(start), float(end))
    show_part(shown, axis, str(report.get("view")))
    if on_height and report.get("height") is not None and report.get("view") == axis.view:
        on_height(*report["height"])


def _slid(key: str, axis: Axis) -> None:
    start, end = st.session_state[key]
    if end > start:
        show_part((float(start), float(end)), axis)


def _slider_format(step: float, unit: str) -> str:
    """A printf format, in which a unit's percent sign is written twice."""
    return f"%.{0 if step >= 1 else 3}f {unit}".rstrip().replace("f %", "f %%")


def _round_step(width: float) -> float:
    """The power of ten at or below a width, so that the slider's steps are round."""
    step = 1e-3
    while step * 10 <= width:
        step *= 10
    return step
