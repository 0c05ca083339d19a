"""A listener on the block map's chart: which cell was clicked.

`st.plotly_chart` does not report a click on a heat map (streamlit 1.67); this component without a
face does. It knows the chart only by its key.
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
) -> None:
    """Report clicks on chart `target` in session state under `key`.

    maps: side -> name of its y axis in the layout ("yaxis2"); view: names what the chart shows, and
    comes back with a report, which may be late. `.pick` is {"view", "side", "x", "block"}, x on the
    axis.
    """
    _mount(
        data={"target": target, "maps": dict(maps), "view": view},
        key=key,
        on_pick_change=on_pick,
        height=1,
    )
