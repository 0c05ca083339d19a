"""The choice of one rank where the folder that somebody gave is a fleet of recordings.

It knows the side bar's widgets for it and what `traces/fleet.py` says of a folder. Rows are read
later, when the chosen recording is opened.
"""

from __future__ import annotations

from pathlib import Path

import streamlit as st

from analyzer.pages.parts.messages import plain
from traces.errors import RecordingError
from traces.fleet import Fleet, Member, is_fleet, open_fleet


def choose_rank(side: str, given: str) -> Path | None:
    """The recording to show on that side, the first time that it is known; None otherwise.

    side: "a" or "b"; given: a path that was just typed, "" where none was. A path that is no fleet
    comes back as it is; for a fleet a box with its ranks is drawn. Raises RecordingError where the
    fleet cannot be read or holds no recording.
    """
    held = f"fleet_{side}"
    if given:
        st.session_state[held] = given if is_fleet(given) else ""
        st.session_state.pop(f"rank_{side}", None)
        if not st.session_state[held]:
            return Path(given)
    path = str(st.session_state.get(held) or "")
    if not path:
        return None
    try:
        fleet = _with_recordings(path)
    except RecordingError:
        st.session_state[held] = ""  # said once; the page goes on without it
        raise
    return _box(side, fleet)


def _with_recordings(path: str) -> Fleet:
    fleet = open_fleet(path)
    if fleet.recordings:
        return fleet
    raise RecordingError(
        fleet.label,
        "",
        "it holds telemetry only, and no recording to compare",
        "See its lines on the page Fleet, or with `python -m analyzer summary`.",
    )


def _box(side: str, fleet: Fleet) -> Path | None:
    """Draw the ranks of a fleet; the recording that was chosen, once."""
    by_label = {m.label: m for m in fleet.recordings}
    label = st.selectbox(
        f"{side.upper()}: which rank of {plain(fleet.label)}",
        list(by_label),
        index=None,
        format_func=lambda k: _name(by_label[k]),
        placeholder=f"{len(by_label)} recordings",
        key=f"rank_{side}",
    )
    for note in fleet.notes:
        st.caption(plain(note))
    _to_fleet_page(side)
    chosen = by_label[label].path if label else None
    if chosen is None or st.session_state.get(f"rank_{side}_shown") == str(chosen):
        return None
    st.session_state[f"rank_{side}_shown"] = str(chosen)
    return chosen


def _to_fleet_page(side: str) -> None:
    """A button to the page with all ranks of the fleet."""
    page = st.session_state.get("pages_by_path", {}).get("fleet")
    if page is not None and st.button(  # None where a page is drawn alone, as in a test
        "All ranks on Fleet", key=f"to_fleet_{side}", icon=":material/hub:"
    ):
        st.session_state["fleet_asked"] = str(st.session_state[f"fleet_{side}"])
        st.switch_page(page)


def _name(member: Member) -> str:
    rank = "rank unknown" if member.rank is None else f"rank {member.rank}"
    return f"{rank} ({member.label})"
