"""A listener on a native Plotly chart: which part of the x axis it shows, by mouse and by keys.

`st.plotly_chart` does not report its zoom (streamlit 1.67); this component without a face does.
It knows the chart only by its key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import streamlit as st

from analyzer.web.chart_drawn import PATH

_JS = (Path(__file__).parent / "zoom.js").read_text("utf-8")
_mount = st.components.v2.component("kv_replay_zoom", js=_JS)


def zoom_listener(
    target: str,
    full: tuple[float, float],
    view: str,
    *,
    key: str,
    on_change: Callable[[], None],
    heights: Sequence[str] = (),
    tell_drawn: str = "",
    shown: tuple[float, float] | None = None,
) -> None:
    """Report the visible x range of chart `target` in session state under `key`, as `.range`.

    full: the whole axis, the bounds for moving by keys (W and S zoom, A and D move, 0 shows all);
    on an axis of dates milliseconds since 1970, as is what comes back;
    view: names what the chart shows, and comes back with a report, which may be late.
    heights: names of y axes in the layout ("yaxis2") of which a zoom is told too;
    tell_drawn: a token to send to the server when the chart is drawn, "" for none; shown: it is drawn
    when it shows this part of the axis, None: when it shows any.
    `.range` is {"view": view, "range": [lo, hi], "height": [lo, hi], "turn": n}, [None, None] for the
    whole axis, height None where no y axis was touched; turn makes every report a new one.
    """
    _mount(
        data={
            "target": target,
            "full": list(full),
            "view": view,
            "heights": list(heights),
            "drawn": f"{PATH}/{tell_drawn}" if tell_drawn else "",
            "shown": list(shown) if tell_drawn and shown else None,
        },
        key=key,
        on_range_change=on_change,
        height=1,
    )
