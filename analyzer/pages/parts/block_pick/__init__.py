"""A listener on the block map's chart: which cell was clicked, and which blocks a zoom left.

`st.plotly_chart` reports neither a click on a heat map nor a zoom (streamlit 1.67); this component
without a face does. It knows the chart only by its key.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import streamlit as st

_JS = (Path(__file__).parent / "pick.js").read_text("utf-8")
_mount = st.components.v2.component("kv_replay_block_pick", js=_JS)


def pick_listener(
    target: str,
    maps: Mapping[str, str],
    view: str,
    *,
    key: str,
    on_pick: Callable[[], None],
    on_blocks: Callable[[], None],
) -> None:
    """Report clicks and shown blocks of chart `target` in session state under `key`.

    maps: side -> name of its y axis in the layout ("yaxis2"); view: names what the chart shows, and
    comes back with a report, which may be late. `.pick` is {"view", "side", "x", "block"}, x on the
    axis; `.blocks` is {"view", "range": [first, last]}, [None, None] for all.
    """
    _mount(
        data={"target": target, "maps": dict(maps), "view": view},
        key=key,
        on_pick_change=on_pick,
        on_blocks_change=on_blocks,
        height=1,
    )
