"""What lies below the first picture waits until the browser has drawn it.

A browser that gets everything at once draws everything before it shows anything: the tables and the chart
below the fold cost the timeline a second of its first appearance. So the first run of a session stops
behind its chart until the browser says that it is there (analyzer/web/chart_drawn.py), or for MOST_S. Where
no such server stands around the page, as in a test of a page, nothing waits. A later picture is waited for
where work that it does not show is to begin behind it (`of`).
"""

from __future__ import annotations

import secrets
import threading

import streamlit as st

from analyzer.web.chart_drawn import ChartDrawn, waiting

MOST_S = 2.5
_SEEN = "first_pictures_seen"
_TOKEN = "first_picture_token"


def token(of: str = "") -> str:
    """What the browser is to say when it has drawn the chart; "" where nobody waits for it. of: names what
    the chart shows where it is waited for though it is not the session's first one, once."""
    seen = st.session_state.get(_SEEN, ())
    if (seen and (not of or of in seen)) or not ChartDrawn.is_there:
        return ""
    made = str(st.session_state.setdefault(_TOKEN, secrets.token_hex(16)))
    waiting.setdefault(made, threading.Event())
    return made


def wait_for(token: str, of: str = "") -> None:
    """Wait for that word, at most MOST_S; once a session, or once for what `token` was told."""
    drawn = waiting.get(token)
    if drawn is None:
        return
    st.session_state[_SEEN] = {*st.session_state.get(_SEEN, ()), of}
    st.session_state.pop(_TOKEN, None)
    try:
        drawn.wait(MOST_S)
    finally:
        waiting.pop(token, None)
