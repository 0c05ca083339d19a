"""What all preemptions of the runs come to: in words at the head of the page, in pictures at its end."""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from analyzer.look import Side, seconds
from analyzer.pages.parts.messages import plain
from analyzer.pages.parts.preempted import told_of
from analyzer.preemption_totals import CONDITION, otherwise, say_otherwise, sums
from analyzer.run import Run


def summary_section(runs: Mapping[Side, Run]) -> None:
    """One sentence a run: how often, at what cost, and what the other mode would have cost."""
    with st.container(key="verdict"):
        for side, run in runs.items():
            st.markdown(f"**{side}** {plain(_sentence(run))}")
        st.caption(CONDITION)


def _sentence(run: Run) -> str:
    table = told_of(run)
    if table.is_empty():
        return "preempts nobody."
    found = sums(table)
    cost = (
        ""
        if found.direct_cost_s is None
        else f" at a direct cost of {seconds(found.direct_cost_s)}"
    )
    other = " ".join(say_otherwise(o) for o in otherwise(table))
    return f"preempts {found.num:,} times{cost}. {other}"


def totals_section(key: str, runs: Mapping[Side, Run]) -> None:
    """Pictures."""
