"""The Block map page: every physical block over time, and the pool at one step.

It reads downward: who has ownership, the map, the player. Where a recording does not say who held
which block, it says how to record it, and replays with ownership what can be replayed.
"""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from analyzer.block_picture import BlockRun
from analyzer.look import Side
from analyzer.pages.parts import shell
from analyzer.pages.parts.block_missing import missing_section
from analyzer.pages.parts.block_source import mapped
from analyzer.pages.parts.block_views import map_section
from analyzer.pages.parts.messages import guarded
from analyzer.pages.parts.shell import Opened
from analyzer.pages.parts.store import Store, default_root
from analyzer.run import Run


def page() -> None:
    """Draw the page."""
    shell.draw(_body, "Block map")


def _body(opened: Opened) -> None:
    store = Store(default_root())
    maps: dict[Side, BlockRun] = {}
    without: dict[Side, Run] = {}
    for side, run in opened.runs.items():
        with guarded():
            found = mapped(run, store)
            if found is None:
                without[side] = run
            else:
                maps[side] = found
    if without:
        missing_section(without, store, may_start=opened.is_sample)
    if maps:
        _notes(maps)
        runs = {side: opened.runs[side] for side in maps}
        map_section(opened.key, runs, maps)


def _notes(maps: Mapping[Side, BlockRun]) -> None:
    """What was left out of the map."""
    for side, run in maps.items():
        if run.own.num_dropped:
            st.warning(
                f"{side}: {run.own.num_dropped:,} ownership intervals name no block of the pool or no step of the run and are left out.",
                icon=":material/warning:",
            )
