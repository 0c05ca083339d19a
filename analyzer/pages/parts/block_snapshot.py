"""The snapshot under the map: the pool at one step, with the player that moves through time.

It knows where the snapshot stands and what the player is sent; the player itself runs in the browser.
"""

from __future__ import annotations

import hashlib
from typing import Any, cast

import numpy as np
import streamlit as st

from analyzer.block_colours import ColourBy, palette
from analyzer.block_frames import close_up, frame_places, frames
from analyzer.block_picture import BlockRun
from analyzer.block_states import WORDS
from analyzer.look import Side
from analyzer.pages.parts import block_state, state
from analyzer.pages.parts.block_player import block_player
from analyzer.pages.parts.block_shown import CHART, Shown, choose
from analyzer.pages.parts.messages import guarded
from analyzer.pages.parts.timeline import theme
from analyzer.run import run_names

MOST_MARKS = 2_000
_CHOSEN = "chosen_in_player"


@st.cache_resource(max_entries=12, show_spinner=False)
def _reel(
    key: str, side: Side, part: tuple[float, float], colour: ColourBy, lit: str | None, in_steps: bool, _map: BlockRun, _edges: np.ndarray, _x: np.ndarray,
) -> dict[str, Any]:  # fmt: skip
    """Packed frames of one run at these places."""
    return frames(_map, _edges, part, colour, lit, _x, in_steps).packed()


@st.fragment
def snapshot_section(shown: Shown) -> None:
    """Heading and player. Playing is no run of anything here; resting notes the step in the URL."""
    if st.session_state.pop(_CHOSEN, False):
        st.rerun()  # the map too
    state.write_url()
    block_state.write()
    with guarded(), st.container(key="snapshot"):
        st.header("One step", anchor=False)
        lead = shown.sides[0]
        row = _row(shown, lead)
        x = float(shown.axis.edges[lead][row])
        block_player(
            _data(shown, lead, row, x),
            key="block_player",
            on_at=lambda: _moved(shown, lead),
            on_pick=lambda: _picked(shown),
        )


def _row(shown: Shown, lead: Side) -> int:
    """The step that was asked for; else the first preemption in the shown part; else its middle."""
    run, edges = shown.maps[lead], shown.axis.edges[lead]
    numbers = run.steps["step"].to_numpy()
    last = max(len(numbers) - 1, 0)
    step = block_state.asked_step()
    if step is not None:
        return min(max(int(np.searchsorted(numbers, step, "right")) - 1, 0), last)
    first, stop = np.searchsorted(edges[:-1], shown.part, "left")
    evicted = run.preemptions["row"].to_numpy()
    inside = evicted[(evicted >= first) & (evicted < stop)]
    return int(inside[0]) if len(inside) else min((int(first) + int(stop)) // 2, last)


def _data(shown: Shown, lead: Side, row: int, x: float) -> dict[str, object]:
    edges = shown.axis.edges[lead]
    cells = max(shown.maps[side].own.num_blocks for side in shown.sides)
    places = frame_places(edges, shown.part, cells)
    close = close_up(edges, row)
    marks = edges[np.unique(shown.maps[lead].preemptions["row"].to_numpy())]
    inside = marks[(marks >= shown.part[0]) & (marks <= shown.part[1])][:MOST_MARKS]
    look = theme()
    names = run_names(shown.runs)
    reel_key = f"{shown.view}\0{shown.part}\0{shown.sides}\0{shown.colour}\0{shown.lit}"
    return {
        "view": shown.view,
        "reelKey": hashlib.blake2b(reel_key.encode(), digest_size=8).hexdigest(),
        "reel": _packed(shown, places),
        "close": _packed(shown, close),
        "at": {"x": x, "step": int(shown.maps[lead].steps["step"][row])},
        "lead": lead,
        "names": {side: names[side] for side in shown.sides},
        "colours": palette(look),
        "ground": look.ground,
        "text": look.text,
        "by": shown.colour,
        "words": list(WORDS.values()),
        "unit": shown.axis.unit,
        "marks": inside.tolist(),
        "target": CHART,
    }


def _packed(shown: Shown, x: np.ndarray) -> dict[str, object]:
    sides = {
        side: _reel(
            f"{shown.key}\0{shown.by}\0{hash(x.tobytes())}",
            side,
            shown.part,
            shown.colour,
            shown.lit,
            shown.by == "step",
            shown.maps[side],
            shown.axis.edges[side],
            x,
        )
        for side in shown.sides
    }
    return {"x": x.tolist(), "sides": sides}


def _moved(shown: Shown, lead: Side) -> None:
    """Note the step where the player rests, or that it asks for."""
    report = st.session_state["block_player"].at or {}
    if report.get("view") != shown.view:
        return
    step = report.get("step")
    if step is None and report.get("x") is not None:
        edges = shown.axis.edges[lead]
        row = int(np.searchsorted(edges[:-1], float(report["x"]) * (1 + 1e-12), "right")) - 1
        step = int(shown.maps[lead].steps["step"][max(row, 0)])
    if isinstance(step, int) and step >= 0:
        numbers = shown.maps[lead].steps["step"]
        block_state.show_step(min(step, int(numbers[-1])))


def _picked(shown: Shown) -> None:
    report = st.session_state["block_player"].pick or {}
    side = cast(Side, report.get("side"))
    if report.get("view") == shown.view and side in shown.maps:
        ids = shown.maps[side].own.ids
        code = int(report["code"])
        if 0 <= code < len(ids):
            choose(str(ids[code]))
            st.session_state[_CHOSEN] = True
