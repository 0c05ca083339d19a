"""The Sweeps page: the table of a sweep as pictures: where to go, at what cost, how sure.

It reads downward: choose a table, choose figure and axes, a sentence, map, front, curve, cells without
figures, cells. What is shown stands in the URL. `python -m engine sweep` writes tables.
"""

from __future__ import annotations

import streamlit as st

from analyzer.pages.parts import sweep_state as state
from analyzer.pages.parts.messages import guarded, plain, say_error
from analyzer.pages.parts.sweep_source import opened, source_section
from analyzer.pages.parts.sweep_views import (
    cells_section,
    controls,
    curve_section,
    front_section,
    heat_section,
    problems_section,
    sentence,
)
from analyzer.sweep_figure import level_label, setting_label
from analyzer.sweep_table import SweepTable
from analyzer.words import label
from traces.errors import KVReplayError

_STYLE = """
<style>
[data-testid="stMain"] h2 { font-size: 1.15rem; padding: 0.6rem 0 0.3rem; }
.st-key-sweep_controls > div, .st-key-sweep_front_controls > div { flex: 1 1 170px; max-width: 260px; min-width: 0; }
@media (max-width: 640px) {
.st-key-sweep_controls, .st-key-sweep_front_controls { gap: 0.4rem; }
.st-key-sweep_controls > div, .st-key-sweep_front_controls > div { flex: 1 1 46%; }
.st-key-sweep_heat_frame { overflow-x: auto; }
.st-key-sweep_heat { min-width: 560px; }
}
</style>
"""


def page() -> None:
    """Draw the page."""
    st.html(_STYLE)
    with guarded():
        _page()


def _page() -> None:
    try:
        table, folder = opened()
    except KVReplayError as error:
        say_error(error)  # the sample is shown instead, and how to open another
        state.show(state.SAMPLE)
        table, folder = opened()
    state.write_url()
    is_sample = state.shown() == state.SAMPLE
    _head(table, is_sample)
    source_section(is_sample)
    for note in table.notes:
        st.caption(f":material/info: {plain(note)}")
    if not table.figures:
        st.info("No cell has figures.", icon=":material/info:")
        problems_section(table)
        return
    view = controls(table)
    sentence(table, view)
    if not table.axes:
        st.info(
            "Nothing varies in this sweep but the seed: give --grid more values to see maps and curves.",
            icon=":material/info:",
        )
    heat_section(table, view)
    front_section(table)
    curve_section(table, view)
    problems_section(table)
    cells_section(table, view, folder)


def _head(table: SweepTable, is_sample: bool) -> None:
    """What was swept, and under which settings."""
    with st.container(horizontal=True, vertical_alignment="center", key="header"):
        st.title(f"Sweeps · {plain(table.name)}", anchor=False)
    seeds = table.frame["seed"].n_unique()
    of = [f"{table.frame.height:,} cells"]
    of += [f"{len(table.levels(a)):,} x {setting_label(a)}" for a in table.axes]
    of.append(f"{seeds:,} seed{'' if seeds == 1 else 's'}")
    if "trace" not in table.axes:
        of.append(f"trace {str(table.frame['trace'][0])[:60]}")
    fixed = [f"{setting_label(k)} {level_label(v)}" for k, v in list(table.fixed.items())[:12]]
    bounds = [f"{label(k)} at most {v:g} s" for k, v in table.bounds.items()]
    if bounds:
        fixed.append(f"goodput: {', '.join(bounds)}")
    sample = "**Sample data**, simulated: times are modelled · " if is_sample else ""
    with st.container(key="set_up"):
        st.caption(sample + plain(" · ".join([", ".join(of), *fixed])))
