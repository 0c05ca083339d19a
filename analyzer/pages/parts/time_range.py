"""The shown part of the time, for pages whose axis is seconds: by mouse, keys, slider and link.

It shares the range with the timeline of Compare. It knows widgets and session state, and no chart but
by its key.
"""

from __future__ import annotations

import hashlib
from functools import partial

import streamlit as st

from analyzer.pages.parts import state
from analyzer.pages.parts.zoom import zoom_listener

Range = tuple[float, float]


def shown_time(full: Range, view: str) -> Range:
    """The asked part of the time as far as it exists, all of it for None or an empty part.

    view: names what is shown; reports for another view are passed over.
    """
    state.look_at(view)
    asked = state.asked_time_range()
    if asked is None:
        return full
    start, end = max(full[0], asked[0]), min(full[1], asked[1])
    return (start, end) if end > start else full


def follow_zoom(chart: str, full: Range, view: str) -> None:
    """Let that chart's zoom by mouse and keys ask for its range. Draw it after the chart."""
    zoom_listener(chart, full, view, key="zoom", on_change=partial(_zoomed, full))


def range_slider(shown: Range, full: Range, view: str) -> None:
    """The keyboard's way to zoom, and the way back. A slider of its own per view, since a browser
    moves the ends of one whose bounds change, and reports that as a choice."""
    key = f"range_slider_{hashlib.blake2b(view.encode(), digest_size=6).hexdigest()}"
    step = _round_step((full[1] - full[0]) / 1000)
    st.session_state[key] = shown
    with st.container(horizontal=True, vertical_alignment="center", key="range"):
        st.slider(
            "Shown range",
            *full,
            step=step,
            key=key,
            format=f"%.{0 if step >= 1 else 3}f s",
            on_change=_slid,
            args=(key, view, full),
        )
        st.button(
            "Show all", on_click=state.forget_range, disabled=shown == full, key="show_all"
        )


def show_time(shown: Range, full: Range, view: str) -> None:
    """Show that part of the time from now on; the whole of it is no range, whoever asks for it."""
    slack = (full[1] - full[0]) * 1e-3
    is_all = shown[0] <= full[0] + slack and shown[1] >= full[1] - slack
    if st.session_state.get("by", "time") != "time":
        st.session_state["by"] = "time"  # Compare's axis: these are seconds
    state.set_range(None if is_all else shown, view)


def _zoomed(full: Range) -> None:
    report = st.session_state["zoom"].range or {}
    start, end = report.get("range") or (None, None)
    view = str(report.get("view"))
    if start is None or end is None:
        state.set_range(None, view)
    else:
        show_time((float(start), float(end)), full, view)


def _slid(key: str, view: str, full: Range) -> None:
    start, end = st.session_state[key]
    if end > start:
        show_time((float(start), float(end)), full, view)


def _round_step(width: float) -> float:
    """The power of ten at or below a width, so that the slider's steps are round."""
    step = 1e-3
    while step * 10 <= width:
        step *= 10
    return step
