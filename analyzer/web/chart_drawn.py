"""The browser's word that a chart is drawn, past Streamlit's widgets, which would start a run of their own.

It knows tokens and who waits for them, nothing of charts or pages (analyzer/pages/parts/first_picture.py).
"""

from __future__ import annotations

import re
import threading

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

PATH = "_kv_replay/drawn"
_PATH = re.compile(rf"/{PATH}/([0-9a-f]{{32}})$")  # behind any server.baseUrlPath
waiting: dict[str, threading.Event] = {}  # by token


class ChartDrawn:
    """Middleware that takes that word. is_there: whether it stands around this server."""

    is_there = False

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        ChartDrawn.is_there = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = _PATH.search(scope["path"]) if scope["type"] == "http" else None
        if found is None or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        drawn = waiting.get(found[1])
        if drawn is not None:
            drawn.set()
        await Response(status_code=204)(scope, receive, send)
