"""The list of pages; nothing else. Start with `streamlit run app.py`."""

from __future__ import annotations

import streamlit as st

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

st.set_page_config(page_title="KV Replay", page_icon="🧱", layout="wide")
PAGES = {
    "compare": st.Page(
        compare.page,
        title="Compare",
        icon=":material/compare_arrows:",
        url_path="compare",
        default=True,
    ),
    "preemptions": st.Page(
        preemptions.page,
        title="Preemptions",
        icon=":material/eject:",
        url_path="preemptions",
    ),
    "requests": st.Page(
        requests.page,
        title="Requests",
        icon=":material/view_timeline:",
        url_path="requests",
    ),
    "block-map": st.Page(
        block_map.page,
        title="Block map",
        icon=":material/grid_on:",
        url_path="block-map",
    ),
    "crossover": st.Page(
        crossover.page,
        title="Crossover",
        icon=":material/alt_route:",
        url_path="crossover",
    ),
    "diagnose": st.Page(
        diagnose.page,
        title="Diagnose",
        icon=":material/stethoscope:",
        url_path="diagnose",
    ),
    "what-if": st.Page(
        what_if.page,
        title="What-if",
        icon=":material/tune:",
        url_path="what-if",
    ),
    "sweeps": st.Page(
        sweeps.page,
        title="Sweeps",
        icon=":material/grid_view:",
        url_path="sweeps",
    ),
    "fleet": st.Page(
        fleet.page,
        title="Fleet",
        icon=":material/hub:",
        url_path="fleet",
    ),
    "report": st.Page(
        report.page,
        title="Report",
        icon=":material/ios_share:",
        url_path="report",
    ),
}
shell.run(st.navigation(list(PAGES.values()), position="top"), PAGES)
