"""What the block map's page shows: which part, which runs, how coloured, and which request is lit.

It reads widgets and session state; map and player are drawn from the same answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import streamlit as st

from analyzer.aligned import Aligned, Alignment
from analyzer.block_colours import ColourBy
from analyzer.block_picture import BlockRun
from analyzer.look import Side
from analyzer.pages.parts import block_state, state
from analyzer.pages.parts.timeline import aligned
from analyzer.run import Run

CHART = "block_map"
SIDES_SHOWN = "map_runs"


@dataclass(frozen=True, eq=False)
class Shown:
    """What the map shows. key: names the runs' content; runs and maps: of the sides with ownership;
    by: the axis; colour; sides: those drawn; lit: the chosen request or None."""

    key: str
    runs: Mapping[Side, Run]
    maps: Mapping[Side, BlockRun]
    axis: Aligned
    view: str
    part: tuple[float, float]
    colour: ColourBy
    sides: tuple[Side, ...]
    lit: str | None

    @property
    def by(self) -> Alignment:
        return self.axis.by


def shown_now(key: str, runs: Mapping[Side, Run], maps: Mapping[Side, BlockRun]) -> Shown:
    """What the widgets and the URL ask for."""
    by = cast(Alignment, st.session_state.get("by") or "time")
    key = f"{key}\0{''.join(maps)}"  # a side may get its ownership later
    axis = aligned(f"{key}\0map", by, runs)
    asked = st.session_state.get(SIDES_SHOWN) or "all"
    sides = tuple(maps) if asked not in maps else (cast(Side, asked),)
    lit = str(st.session_state.get(block_state.REQUEST) or "").strip()
    return Shown(
        key,
        runs,
        maps,
        axis,
        f"{key}\0map\0{by}",
        axis.clip(state.asked_range()),
        cast(ColourBy, st.session_state.get("colour") or "owner"),
        sides,
        lit or None,
    )


def choose(request_id: str) -> None:
    """Light up a request, or put it out where it is lit. Only in a callback."""
    now = st.session_state.get(block_state.REQUEST)
    block_state.choose_request("" if now == request_id else request_id)
