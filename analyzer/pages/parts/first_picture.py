"""What lies below the first picture waits until the browser has drawn it.

A browser that gets everything at once draws everything before it shows anything: the tables and the chart
below the fold cost the timeline a second of its first appearance. So the first run of a session stops
behind its chart until the browser says that it is there, or for MOST_S. The browser says so to the server
directly (`FirstPicture`), since a widget would start a run of its own. It knows tokens and nothing of
charts; where no such server stands around the page, as in a test of a page, nothing waits.
"""

from __future__ import annotations

import re
import secrets
import threading

import streamlit as st
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

MOST_S = 2.5
PATH = "_kv_replay/drawn"
_PATH = re.compile(rf"/{PATH}/([0-9a-f]{{32}})$")  # behind any server.baseUrlPath
_SEEN = "first_picture_seen"
_TOKEN = "first_picture_token"
_waiting: dict[str, threading.Event] = {}


class FirstPicture:
    """Middleware that takes the browser's word that a chart is drawn."""

    is_there = False

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        FirstPicture.is_there = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = _PATH.search(scope["path"]) if scope["type"] == "http" else None
        if found is None or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        drawn = _waiting.get(found[1])
        if drawn is not None:
            drawn.set()
        await Response(status_code=204)(scope, receive, send)


def token() -> str:
    """What the browser is to say when it has drawn the chart; "" where nobody waits for it."""
    if st.session_state.get(_SEEN) or not FirstPicture.is_there:
        return ""
    made = str(st.session_state.setdefault(_TOKEN, secrets.token_hex(16)))
    _waiting.setdefault(made, threading.Event())
    return made


def wait_for(token: str) -> None:
    """Wait for that word, at most MOST_S; once a session."""
    drawn = _waiting.get(token)
    if drawn is None:
        return
    st.session_state[_SEEN] = True
    try:
        drawn.wait(MOST_S)
    finally:
        _waiting.pop(token, None)
