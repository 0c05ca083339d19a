"""The Preemptions page: who was evicted, for whom, why, and what it cost, one by one and together.

It reads downward: the sum of it in words, the list and the chosen preemption, what surrounds it, the
same request in the other run, then totals. Which preemption is chosen is owned by session state and
mirrored in the URL as `event`.
"""

from __future__ import annotations

import streamlit as st

from analyzer.pages.parts import shell
from analyzer.pages.parts.messages import plain
from analyzer.pages.parts.preempted import told_of
from analyzer.pages.parts.preemption_browser import browser_section
from analyzer.pages.parts.preemption_sums import summary_section, totals_section
from analyzer.pages.parts.shell import Opened

_STYLE = """
<style>
.st-key-story { gap: 0.45rem; }
[data-testid="stMain"] .st-key-story h2 { padding: 0; font-size: 1.15rem; }
.st-key-story [data-testid="stMarkdownContainer"] { margin-bottom: 0; }
.st-key-story dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.3rem 0.8rem; margin: 0; padding: 0; font-size: 0.92rem; line-height: 1.4; }
.st-key-story dt { font-weight: 600; margin: 0; padding: 0; }
.st-key-story dd { margin: 0; padding: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
.st-key-costs { gap: 0.4rem 1.4rem; }
.st-key-costs [data-testid="stMetricValue"] { font-size: 1.3rem; font-weight: 600; padding: 0; }
.st-key-costs [data-testid="stMetricLabel"] p { font-size: 0.78rem; }
[data-testid="stMain"] h2 { font-size: 1.35rem; padding: 0.8rem 0 0; }
[data-testid="stMain"] h3 { font-size: 1.1rem; padding: 0.3rem 0 0.35rem; }
</style>
"""


def page() -> None:
    """Draw the page."""
    shell.draw(_body, "Preemptions")


def _body(opened: Opened) -> None:
    st.html(_STYLE)
    runs = opened.runs
    if not any(told_of(run).height for run in runs.values()):
        _good_news(opened)
        return
    summary_section(opened.key, runs)
    browser_section(opened.key, runs)
    totals_section(opened.key, runs)


def _good_news(opened: Opened) -> None:
    """No preemption in either run: how full the pools became, and what to do to see some."""
    peaks = [
        f"{side} used at most {int(run.steps['used_blocks'].to_numpy().max(initial=0)):,} of {run.recording.pool_blocks:,} blocks"
        for side, run in opened.runs.items()
    ]
    st.success(
        f"No preemption{_where(len(opened.runs))}: {plain('; '.join(peaks))}.",
        icon=":material/check_circle:",
    )
    if opened.source != "recordings":
        shell.link_to(
            "compare",
            "Press the pool: replay with fewer blocks, on Compare",
            ":material/compress:",
        )


def _where(num_runs: int) -> str:
    return {1: "", 2: " in either run"}.get(num_runs, " in any run")
