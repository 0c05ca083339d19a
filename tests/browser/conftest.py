"""A server of the app, a browser and a page, shared by browser tests: starting them takes longest.

A file's `page` fixture is a `shared_page` that it opens where the test before has left it changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.browser.driver import Watched, browser, running_app, watched_page


@pytest.fixture(scope="session")
def store_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the server keeps uploads and runs; empty at first."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def server(store_root: Path) -> Iterator[str]:
    """The address of a server of the app."""
    with running_app(store_root) as found:
        yield found


@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def one_page(chromium: Any) -> Iterator[Watched]:
    """A page for all tests of a file."""
    with watched_page(chromium, 1280, 800) as found:
        yield found


@pytest.fixture
def shared_page(one_page: Watched, request: pytest.FixtureRequest) -> Iterator[Watched]:
    """The file's page; at the end nothing may have gone wrong in it."""
    failed_before = request.session.testsfailed
    yield one_page
    if request.session.testsfailed > failed_before:
        one_page.clean_url = ""
    assert one_page.errors == []
    assert one_page.outside == []
