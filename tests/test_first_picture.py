"""What lies below the first chart waits for the browser's word, once, and not for ever."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import streamlit as st

from analyzer.pages.parts import first_picture
from analyzer.pages.parts.first_picture import token, wait_for
from analyzer.web.chart_drawn import ChartDrawn, waiting


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A session of a page that such a server stands around."""
    kept: dict[str, Any] = {}
    monkeypatch.setattr(st, "session_state", kept)
    monkeypatch.setattr(ChartDrawn, "is_there", True)
    waiting.clear()
    return kept


def answered(path: str, method: str = "POST") -> list[int]:
    """Statuses that the server answers with; 418 where the app behind was asked."""
    statuses = []

    async def teapot(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 418, "headers": []})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    scope = {"type": "http", "method": method, "path": path, "headers": []}
    asyncio.run(ChartDrawn(teapot)(scope, receive, send))
    return statuses


def test_the_run_goes_on_when_the_browser_has_drawn(
    session: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_picture, "MOST_S", 60.0)
    asked = token()
    waits = threading.Thread(target=wait_for, args=(asked,))
    waits.start()
    assert waits.is_alive()

    assert answered(f"/base/_kv_replay/drawn/{asked}") == [204]

    waits.join(30)
    assert not waits.is_alive()


def test_only_the_first_chart_of_a_session_is_waited_for(
    session: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_picture, "MOST_S", 0.01)
    asked = token()
    assert len(asked) == 32
    assert token() == asked  # a run that was stopped before it waited asks anew

    wait_for(asked)  # nobody says that it is drawn

    assert token() == ""
    assert waiting == {}
    wait_for("")


def test_nothing_waits_where_no_server_would_hear_the_browser(
    session: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChartDrawn, "is_there", False)

    assert token() == ""


def test_other_requests_go_to_the_app(session: dict[str, Any]) -> None:
    asked = token()

    assert answered("/_stcore/health") == [418]
    assert answered(f"/_kv_replay/drawn/{asked}", "GET") == [418]
    assert answered("/_kv_replay/drawn/../../etc") == [418]
    assert answered(f"/_kv_replay/drawn/{'0' * 32}") == [204]  # of a session that has gone
    assert not waiting[asked].is_set()


def test_a_later_chart_is_waited_for_once_where_work_waits_behind_it(
    session: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_picture, "MOST_S", 0.01)
    wait_for(token())

    assert token() == ""
    asked = token("a long run")
    assert len(asked) == 32

    wait_for(asked, "a long run")

    assert token("a long run") == token() == ""
    assert token("another one") not in ("", asked)
