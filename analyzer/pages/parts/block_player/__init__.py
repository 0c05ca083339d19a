"""The player: snapshots of the pool in the browser, with play, pause, speed, steps and a slider.

It runs in the browser alone; Python hears where it was paused and which request was clicked. What a
frame holds is known in `analyzer.block_frames`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import streamlit as st

_HERE = Path(__file__).parent
_mount = st.components.v2.component(
    "kv_replay_block_player",
    html=(_HERE / "player.html").read_text("utf-8"),
    css=(_HERE / "player.css").read_text("utf-8"),
    js=(_HERE / "player.js").read_text("utf-8"),
)


def block_player(
    data: Mapping[str, Any],
    *,
    key: str,
    on_at: Callable[[], None],
    on_pick: Callable[[], None],
) -> None:
    """Draw the player; it reports in session state under `key`.

    data: as player.js says; `.at` is {"view", "x", "step"}: where it rests, x on the axis, or the step
    of the lead side that is asked for; `.pick` is {"view", "side", "code"}: the owner that was clicked.
    """
    _mount(data=dict(data), key=key, on_at_change=on_at, on_pick_change=on_pick)
