"""Swim lanes drawn: rows over each other on one time axis, with one cursor and one legend.

It computes nothing: strips, counts and bars were worked out in `lanes_picture`; what a row looks like is
known in `lane_drawing`. Requests' names come from files, and are made harmless there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from analyzer.lane_drawing import draw
from analyzer.lane_looks import HEIGHTS, LABELS, fill, harmless, phase_colour
from analyzer.lane_rows import (
    CLEAR,
    GAP_PX,
    LEFT_PX,
    Canvas,
    CountRow,
    LaneRow,
    Moment,
    Row,
    SkyRow,
    StripRow,
    height_of,
    sky_note,
)
from analyzer.lanes import PHASES
from analyzer.lanes_picture import phases_in_words
from analyzer.look import Theme, seconds
from analyzer.unchecked import unchecked

__all__ = [
    "HEIGHTS",
    "LABELS",
    "CountRow",
    "LaneRow",
    "Moment",
    "Row",
    "SkyRow",
    "StripRow",
    "alt_text",
    "harmless",
    "lanes_figure",
    "phase_colour",
]

TOP_PX = 70
BOTTOM_PX = 44
RIGHT_PX = 20  # half of a label such as 40,000


def lanes_figure(rows: Sequence[Row], shown: tuple[float, float], theme: Theme) -> go.Figure:
    """Rows over each other on one time axis, in seconds since the start, with one cursor."""
    inner = sum(height_of(row) for row in rows) + GAP_PX * (len(rows) - 1)
    canvas = Canvas(inner, _legend(_phases_in(rows), theme))
    for row in rows:
        draw(canvas, row, shown, theme)
    layout = {
        **_layout(inner, theme),
        **canvas.axes,
        "xaxis": _x_axis(shown, canvas.last_axis, theme),
        "images": canvas.images,
        "shapes": canvas.shapes,
        "annotations": canvas.annotations,
    }
    return unchecked(canvas.traces, layout)


def alt_text(rows: Sequence[Row], shown: tuple[float, float]) -> str:
    """The picture in words: time, and per row what is in it."""
    said = [f"Swim lanes of requests over time, {shown[0]:,.5g} to {shown[1]:,.5g} s."]
    for row in rows:
        who = f"Run {row.side} ({row.name})"
        if isinstance(row, CountRow):
            said.append(f"{who}, requests by phase: {phases_in_words(PHASES, row.counts)}.")
        elif isinstance(row, StripRow):
            said.append(
                f"{who}: {len(row.strips.lanes):,} requests in {len(row.strips.sizes)} strips by arrival."
            )
        elif isinstance(row, SkyRow):
            said.append(
                f"{who}, {sky_note(row.sky)}: they lasted up to {seconds(float(row.sky.life_s.max(initial=0.0)))}."
            )
        else:
            total = np.bincount(
                row.bars.phase, row.bars.stop_s - row.bars.start_s, minlength=len(PHASES)
            )
            spent = ", ".join(
                f"{LABELS[p]} {seconds(float(total[p]))}"
                for p in range(len(PHASES))
                if total[p]
            )
            said.append(
                f"{who}, {len(row.ids)} lanes in detail, {row.note}: {spent or 'nothing'}."
            )
    return " ".join(said)


def _phases_in(rows: Sequence[Row]) -> list[int]:
    """Phases that occur in any row, in the order of a request's life."""
    there = np.zeros(len(PHASES), dtype=bool)
    for row in rows:
        if isinstance(row, CountRow):
            there |= row.counts.any(axis=1)
        elif isinstance(row, StripRow):
            there |= row.strips.mean.any(axis=(0, 2))
        elif isinstance(row, SkyRow):
            there |= row.sky.seconds.any(axis=0)
        else:
            there[row.bars.phase] = True
    return [p for p in range(len(PHASES)) if there[p]]


def _legend(phases: Sequence[int], theme: Theme) -> list[dict[str, Any]]:
    """An entry a phase, hatched where its bars are."""
    return [
        {
            "type": "bar",
            "x": [None],
            "y": [None],
            "name": LABELS[phase],
            "marker": fill(phase, theme),
            "hoverinfo": "skip",
            "showlegend": True,
        }
        for phase in phases
    ]


def _layout(inner_px: int, theme: Theme) -> dict[str, Any]:
    return {
        "template": theme.template,
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "font": {
            "family": '"Source Sans", "Source Sans Pro", Arial, sans-serif',
            "color": theme.text,
            "size": 12,
        },
        "height": inner_px + TOP_PX + BOTTOM_PX,
        "margin": {"l": LEFT_PX, "r": RIGHT_PX, "t": TOP_PX, "b": BOTTOM_PX, "pad": 0},
        "hovermode": "closest",
        "hoverdistance": 30,
        "spikedistance": -1,
        "hoverlabel": {
            "font": {"size": 12, "color": theme.text},
            "bgcolor": theme.ground,
            "bordercolor": theme.muted,
            "align": "left",
        },
        "dragmode": "zoom",
        "clickmode": "event+select",
        "barmode": "overlay",
        "legend": {
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "xref": "container",
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "entrywidth": 62,
            "entrywidthmode": "pixels",
            "font": {"size": 11.5},
            "itemclick": False,
            "itemdoubleclick": False,
        },
        "modebar": {"bgcolor": CLEAR, "color": theme.muted, "activecolor": theme.text},
    }


def _x_axis(shown: tuple[float, float], anchor: str, theme: Theme) -> dict[str, Any]:
    return {
        "title": {
            "text": "Time since the start (s)",
            "font": {"size": 12, "color": theme.muted},
            "standoff": 6,
        },
        "range": list(shown),
        "anchor": anchor,
        "tickformat": ",~r",
        "tickfont": {"size": 11, "color": theme.muted},
        "gridcolor": theme.grid,
        "zeroline": False,
        "showspikes": True,
        "spikemode": "across",
        "spikesnap": "cursor",
        "spikethickness": 1,
        "spikedash": "solid",
        "spikecolor": theme.muted,
    }
