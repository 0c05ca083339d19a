"""The list of pages, and the server that shows them; nothing else. Start with `streamlit run app.py`.

Streamlit reads this file twice over: as a module that names the server, once, and as the script of every
run of a page.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib import import_module

import streamlit as st
from starlette.middleware import Middleware
from streamlit import config

from analyzer.web.chart_drawn import ChartDrawn
from analyzer.web.upload_to_disk import UploadsToDisk

# Title, icon and module of each page, in the order of the navigation.
PAGES = (
    ("Compare", "compare_arrows", "compare"),
    ("Preemptions", "eject", "preemptions"),
    ("Requests", "view_timeline", "requests"),
    ("Block map", "grid_on", "block_map"),
    ("Fleet", "hub", "fleet"),
    ("Diagnose", "stethoscope", "diagnose"),
    ("What-if", "tune", "what_if"),
    ("Crossover", "alt_route", "crossover"),
    ("Sweeps", "grid_view", "sweeps"),
    ("Report", "ios_share", "report"),
)


def page_of(module: str) -> Callable[[], None]:
    """What draws the page of that module."""
    found: Callable[[], None] = import_module(f"analyzer.pages.{module}").page
    return found


@asynccontextmanager
async def pages_ready(_app: object) -> AsyncIterator[None]:
    """Import the pages before the first visitor comes, and after Streamlit's runtime, which their caches
    look for."""
    for _, _, module in PAGES:
        page_of(module)
    yield


def show() -> None:
    """Draw the chosen page."""
    from analyzer.pages.parts import shell

    st.set_page_config(page_title="KV Replay", page_icon="🧱", layout="wide")
    by_path = {}
    for title, icon, module in PAGES:
        path = title.lower().replace(" ", "-")
        first = path == "compare"
        by_path[path] = st.Page(
            page_of(module),
            title=title,
            icon=f":material/{icon}:",
            url_path=None if first else path,
            default=first,
        )
    # The first page lies at /; who types its name finds it too.
    named = st.Page(
        page_of("compare"), title="Compare", url_path="compare", visibility="hidden"
    )
    shell.run(st.navigation([*by_path.values(), named], position="top"), by_path)


def most_bytes() -> int:
    """Of a file that is uploaded."""
    return int(config.get_option("server.maxUploadSize")) * 2**20


if __name__ == "__main__":
    show()
else:
    app = st.App(
        __file__,
        lifespan=pages_ready,
        middleware=[
            Middleware(UploadsToDisk, most_bytes=most_bytes),
            Middleware(ChartDrawn),
        ],
    )
