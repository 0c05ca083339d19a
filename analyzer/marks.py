"""The marks of a timeline's rows, and the Plotly traces that draw them.

It knows lines, areas, bars, bands and differences, and the pen of each side. It does not know rows, axes
or recordings. None of them answers to the mouse: the cursor's box reads `figures.Readings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from analyzer.look import Role, Side, Theme, faded

Look = Literal["main", "faint", "dotted"]
_SILENT: dict[str, Any] = {"hoverinfo": "skip", "showlegend": False}


@dataclass(frozen=True)
class Line:
    """A step line. x, y: (n,); label: what it shows; role: its colour, where it is not the side's."""

    label: str
    x: np.ndarray
    y: np.ndarray
    side: Side
    look: Look = "main"
    role: Role | None = None


@dataclass(frozen=True)
class Areas:
    """Areas stacked on each other. x: (n,); layers: role -> (n,), the lowest first."""

    x: np.ndarray
    layers: Mapping[Role, np.ndarray]
    side: Side


@dataclass(frozen=True)
class Bars:
    """Sums per bucket. x: left edges (n,); width: of a bucket; y: (n,); place: which part of the
    bucket they fill, of how many."""

    label: str
    x: np.ndarray
    width: float
    y: np.ndarray
    side: Side
    place: tuple[int, int] = (0, 1)


@dataclass(frozen=True)
class Difference:
    """B - A, filled above and below zero in the colour of the side that is higher. x, y: (n,)."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Band:
    """From the least to the greatest value of each stretch, faint, behind a line of means.
    x, low, high: (n,); label: what lies in it."""

    label: str
    x: np.ndarray
    low: np.ndarray
    high: np.ndarray
    side: Side


_BAND_OPACITY = 0.2
_DASH: dict[Side, str] = {"A": "solid", "B": "5px,2px", "C": "7px,2px,1px,2px"}
_HATCH: dict[Side, str] = {"A": "", "B": "/", "C": "x"}
Mark = Line | Areas | Bars | Difference | Band


def pen(side: Side, look: Look, theme: Theme, role: Role | None = None) -> dict[str, Any]:
    """Line style: A solid, B dashed, C dash-dotted, dotted for what belongs to a line rather than to a side."""
    colour = theme.role(role) if role else theme.side(side)
    width = {"main": 1.6, "faint": 1.0, "dotted": 1.4}[look]
    dash = "dot" if look == "dotted" else (_DASH[side])
    return {"color": colour, "width": width, "dash": dash, "shape": "hv"}


def traces_of(mark: Mark, y_axis: str, theme: Theme) -> list[dict[str, Any]]:
    """Plotly traces that draw the mark on that y axis ("y", "y2", ...)."""
    if isinstance(mark, Line):
        return [_line(mark, y_axis, theme)]
    if isinstance(mark, Areas):
        return _areas(mark, y_axis, theme)
    if isinstance(mark, Bars):
        return [_bars(mark, y_axis, theme)]
    if isinstance(mark, Band):
        return _band(mark, y_axis, theme)
    return _difference(mark, y_axis, theme)


def _line(mark: Line, y_axis: str, theme: Theme) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": mark.x,
        "y": mark.y,
        "yaxis": y_axis,
        "name": mark.label,
        "line": pen(mark.side, mark.look, theme, mark.role),
        "opacity": 0.4 if mark.look == "faint" else 1.0,
        **_SILENT,
    }


def _areas(mark: Areas, y_axis: str, theme: Theme) -> list[dict[str, Any]]:
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "x": mark.x,
            "y": y,
            "yaxis": y_axis,
            "name": f"{role} · {mark.side}",
            "stackgroup": f"{y_axis}{mark.side}",
            "line": {"width": 0, "shape": "hv", "color": theme.role(role)},
            "fillcolor": faded(theme.role(role), 0.85),
            **_SILENT,
        }
        for role, y in mark.layers.items()
    ]


def _bars(mark: Bars, y_axis: str, theme: Theme) -> dict[str, Any]:
    """Each side's bars fill their part of a bucket; B's and C's are hatched."""
    hatch = {
        "shape": _HATCH[mark.side],
        "size": 4,
        "solidity": 0.45,
        "fgcolor": theme.ground,
        "bgcolor": theme.side(mark.side),  # left out, narrow bars are drawn in fgcolor alone
    }
    nth, parts = mark.place
    part = mark.width / parts
    return {
        "type": "bar",
        "x": mark.x + part * (nth + 0.5),
        "y": mark.y,
        "width": part * 0.96,
        "yaxis": y_axis,
        "name": mark.label,
        "marker": {
            "color": theme.side(mark.side),
            "line": {"width": 0},
            "pattern": hatch if _HATCH[mark.side] else {},
        },
        **_SILENT,
    }


def _difference(mark: Difference, y_axis: str, theme: Theme) -> list[dict[str, Any]]:
    halves = ((np.maximum(mark.y, 0), theme.b), (np.minimum(mark.y, 0), theme.a))
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "x": mark.x,
            "y": y,
            "yaxis": y_axis,
            "name": "B − A",
            "line": {"width": 0, "shape": "hv", "color": colour},
            "fill": "tozeroy",
            "fillcolor": faded(colour, 0.75),
            **_SILENT,
        }
        for y, colour in halves
    ]


def _band(mark: Band, y_axis: str, theme: Theme) -> list[dict[str, Any]]:
    """Two lines that are not seen, and what lies between them."""
    colour = theme.side(mark.side)
    edge = {
        "type": "scatter",
        "mode": "lines",
        "x": mark.x,
        "yaxis": y_axis,
        "name": f"{mark.label} · {mark.side}",
        "line": {"width": 0, "shape": "hv", "color": colour},
        **_SILENT,
    }
    fill = {"fill": "tonexty", "fillcolor": faded(colour, _BAND_OPACITY)}
    return [{**edge, "y": mark.low}, {**edge, "y": mark.high, **fill}]


def values_of(mark: Mark) -> Iterable[np.ndarray]:
    """The arrays of values that a mark draws."""
    if isinstance(mark, Areas):
        return mark.layers.values()
    return (mark.high,) if isinstance(mark, Band) else (mark.y,)


def in_words(mark: Mark) -> str:
    """What a mark shows: least and greatest value, sums for bars; nothing for faint lines."""
    if isinstance(mark, Areas):
        tops = [
            f"{role} up to {np.nanmax(y):,.4g}" for role, y in mark.layers.items() if len(y)
        ]
        return f"{mark.side}: {', '.join(tops)}" if tops else ""
    if isinstance(mark, Band):
        ends = f"{np.min(mark.low):,.4g} to {np.max(mark.high):,.4g}" if len(mark.x) else ""
        return f"{mark.label} · {mark.side}: {ends}" if ends else ""
    if not len(mark.y) or (isinstance(mark, Line) and mark.look == "faint"):
        return ""
    if isinstance(mark, Bars):
        return f"{mark.label}: {np.nansum(mark.y):,.0f} in all, at most {np.nanmax(mark.y):,.0f} per bucket"
    label = "B − A" if isinstance(mark, Difference) else mark.label
    return f"{label}: {np.nanmin(mark.y):,.4g} to {np.nanmax(mark.y):,.4g}".replace("-", "−")
