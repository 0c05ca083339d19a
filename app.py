"""The list of pages, and the server that shows them; nothing else. Start with `streamlit run app.py`.

Streamlit reads this file twice over: as a module that names the server, once, and as the script of every
run of a page.
"""

from __future__ import annotations

import streamlit as st
from starlette.middleware import Middleware
from streamlit import config

from analyzer.pages import (
    block_map,
    compare,
    crossover,
    diagnose,
    fleet,
    preemptions,
    report,
    requests,
    sweeps,
    what_if,
)
from analyzer.pages.parts import shell
from analyzer.web.chart_drawn import ChartDrawn
from analyzer.web.upload_to_disk import UploadsToDisk

# Title, icon and function of each page, in the order of the navigation.
PAGES = (
    ("Compare", "compare_arrows", compare.page),
    ("Preemptions", "eject", preemptions.page),
    ("Requests", "view_timeline", requests.page),
    ("Block map", "grid_on", block_map.page),
    ("Fleet", "hub", fleet.page),
    ("Diagnose", "stethoscope", diagnose.page),
    ("What-if", "tune", what_if.page),
    ("Crossover", "alt_route", crossover.page),
    ("Sweeps", "grid_view", sweeps.page),
    ("Report", "ios_share", report.page),
)


def show() -> None:
    """Draw the chosen page."""
    st.set_page_config(page_title="KV Replay", page_icon="🧱", layout="wide")
    by_path = {}
    for title, icon, page in PAGES:
        path = title.lower().replace(" ", "-")
        first = path == "compare"
        by_path[path] = st.Page(
            page,
            title=title,
            icon=f":material/{icon}:",
            url_path=None if first else path,
            default=first,
        )
    # The first page lies at /; who types its name finds it too.
    named = st.Page(compare.page, title="Compare", url_path="compare", visibility="hidden")
    shell.run(st.navigation([*by_path.values(), named], position="top"), by_path)


def most_bytes() -> int:
    """Of a file that is uploaded."""
    return int(config.get_option("server.maxUploadSize")) * 2**20


if __name__ == "__main__":
    show()
else:
    app = st.App(
        __file__,
        middleware=[
            Middleware(UploadsToDisk, most_bytes=most_bytes),
            Middleware(ChartDrawn),
        ],
    )
