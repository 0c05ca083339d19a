"""Which request is chosen: typed, clicked or linked to, and mirrored in the URL as `request`.

An id that is too long for a URL is named by its place instead: '#12' is the twelfth of the table.
"""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from analyzer.look import Side
from analyzer.pages.parts.messages import plain
from analyzer.request_table import Paired, paired
from analyzer.run import Run

KEY = "request"
MOST_IN_URL = 200  # characters


@st.cache_resource(max_entries=3, show_spinner=False)
def pair_of(key: str, _runs: Mapping[Side, Run]) -> Paired:
    """Requests of all runs, matched once per content."""
    return paired({side: run.requests for side, run in _runs.items()})


def request_box() -> None:
    """Where a request's id can be typed, and is shown."""
    st.text_input(
        "Request",
        key=KEY,
        bind="query-params",
        persist_state="session",
        max_chars=MOST_IN_URL,
        placeholder="Request id",
        label_visibility="collapsed",
        icon=":material/search:",
        width=190,
    )


def reference(pair: Paired, number: int) -> str:
    """How a request is named in box and URL."""
    request_id = str(pair.ids[number])
    return request_id if 0 < len(request_id) <= MOST_IN_URL else f"#{number + 1}"


def choose(pair: Paired, number: int) -> None:
    """Choose a request; only in a callback."""
    st.session_state[KEY] = reference(pair, number)


def chosen_number(pair: Paired) -> int | None:
    """The chosen request; None where none is, or where no run has it."""
    said = str(st.session_state.get(KEY) or "").strip()
    if not said:
        return None
    found = pair.number(said)
    if found is None and said[0] == "#" and said[1:].isdecimal():
        found = int(said[1:]) - 1
    return found if found is not None and 0 <= found < len(pair) else None


def say_unknown(pair: Paired) -> None:
    """That the asked request is in no run, where that is so."""
    said = str(st.session_state.get(KEY) or "").strip()
    if said and chosen_number(pair) is None:
        st.info(
            f"No request {plain(said[:60])} in these runs. Find one in the table below, or click a lane.",
            icon=":material/search_off:",
        )
