"""The Preemptions page: who was evicted, for whom, why, and what it cost, one by one and together.

It reads downward: the sum of it in words, the list and the chosen preemption, what surrounds it, the
same request in the other run, then totals. Which preemption is chosen is owned by session state and
mirrored in the URL as `event`.
"""

from __future__ import annotations

import streamlit as st

from analyzer.look import Side
from analyzer.pages.parts import shell
from analyzer.pages.parts.messages import plain
from analyzer.pages.parts.preempted import told_of
from analyzer.pages.parts.preemption_browser import browser_section
from analyzer.pages.parts.preemption_sums import summary_section, totals_section
from analyzer.pages.parts.shell import Opened
from analyzer.run import Run


def page() -> None:
    """Draw the page."""
    shell.draw(_body, "Preemptions")


def _body(opened: Opened) -> None:
    runs: dict[Side, Run] = {"A": opened.a, "B": opened.b}
    if not any(told_of(run).height for run in runs.values()):
        _good_news(opened)
        return
    summary_section(runs)
    browser_section(opened.key, runs)
    totals_section(opened.key, runs)


def _good_news(opened: Opened) -> None:
    """No preemption in either run: how full the pools became, and what to do to see some."""
    peaks = [
        f"{side} used at most {int(run.steps['used_blocks'].to_numpy().max(initial=0)):,} of {run.recording.pool_blocks:,} blocks"
        for side, run in (("A", opened.a), ("B", opened.b))
    ]
    st.success(
        f"No preemption in either run: {plain('; '.join(peaks))}.",
        icon=":material/check_circle:",
    )
    if opened.source != "recordings":
        shell.link_to(
            "compare",
            "Press the pool: replay with fewer blocks, on Compare",
            ":material/compress:",
        )
