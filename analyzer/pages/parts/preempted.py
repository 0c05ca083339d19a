"""What pages need to know of preemptions, worked out once per content and kept.

It knows caches and their keys; everything in them is made by pure functions.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl
import streamlit as st

from analyzer.lanes import Lanes, build_lanes
from analyzer.look import Side
from analyzer.preemption_rows import Listed, Order
from analyzer.run import Run
from analyzer.run_figures import preemptions_of

MOST_TYPED = 200  # characters of a search


def told_of(run: Run) -> pl.DataFrame:
    """The run's preemptions as from `told`."""
    return _told(run.ref, run.stamp, run)


@st.cache_resource(max_entries=6, show_spinner="Working out what each preemption cost")
def _told(ref: str, stamp: str, _run: Run) -> pl.DataFrame:
    return preemptions_of(_run)


@st.cache_resource(max_entries=3, show_spinner=False)
def listed(key: str, _runs: Mapping[Side, Run]) -> Listed:
    """All runs' preemptions in one list. key: names the runs' content."""
    return Listed({side: told_of(run) for side, run in _runs.items()})


@st.cache_resource(max_entries=12, show_spinner=False)
def rows_of(
    key: str,
    sides: tuple[Side, ...],
    search: str,
    order: Order,
    within_s: tuple[float, float] | None,
    _listed: Listed,
) -> np.ndarray:
    """Row numbers of the list that fit, in order."""
    return _listed.rows(sides, search, order, within_s)


def lanes_of(run: Run) -> Lanes:
    """The run's swim lanes."""
    return _lanes(run.ref, run.stamp, run)


@st.cache_resource(max_entries=3, show_spinner=False)
def _lanes(ref: str, stamp: str, _run: Run) -> Lanes:
    return build_lanes(_run.events, _run.steps, _run.requests)
