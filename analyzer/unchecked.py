"""Figures that are only shown: built without Plotly's checks, which take longer than all the rest.

It knows what those checks would have put in their place, the template's name, and nothing of what is
drawn.
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
    """A figure of these traces and this layout, as they are. layout: its template is a name."""
    whole = {**layout, "template": template(layout["template"])}
    return go.Figure({"data": list(data), "layout": whole}, _validate=False)
