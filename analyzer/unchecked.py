"""Figures that are only shown: built without Plotly's checks, which take longer than all the rest.

It knows what those checks would have put in their place, and what a browser need not measure; nothing of
what is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import plotly.graph_objects as go
import plotly.io


@cache
def template(name: str) -> dict[str, Any]:
    """The template of that name, as Plotly's checks would put it in its place."""
    found: dict[str, Any] = plotly.io.templates[name].to_plotly_json()
    return found


def unchecked(data: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> go.Figure:
    """A figure of these traces and this layout, as they are. layout: its template is a name; its margins
    have room for the labels of its x axes (half of one, right of the last tick)."""
    whole = {**measured_once(layout), "template": template(layout["template"])}
    return go.Figure({"data": list(data), "layout": whole}, _validate=False)


def measured_once(layout: Mapping[str, Any]) -> dict[str, Any]:
    """The layout with margins that x axes leave as they are: where the last label would move them, Plotly
    draws everything twice. A label that has no room is left out, as before; on y axes, whose margins follow
    their labels, none is looked at for that."""
    return {
        name: {**_KEPT[name[0]], **part} if name[:5] in ("xaxis", "yaxis") else part
        for name, part in layout.items()
    }


_KEPT: Mapping[str, Mapping[str, Any]] = {
    "x": {"automargin": False},
    "y": {"ticklabeloverflow": "allow"},
}
