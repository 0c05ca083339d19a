"""Rows of swim lanes: what each kind holds, its size and title, and the canvas they are put on.

It knows counts by phase, strips of thousands, requests by arrival and lanes in detail, and computes
none of them. How rows are drawn is known in `lane_drawing`, the figure around them in `lanes_figure`.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from analyzer.lanes_picture import (
    STRIP_PX,
    Bars,
    Skyline,
    Strips,
)
from analyzer.look import Side, Theme

COUNT_PX = 66
SKY_PX = 120
GAP_PX = 30
LEFT_PX = 84
CLEAR = "rgba(0,0,0,0)"
_BADGES: dict[Side, str] = {"A": "■", "B": "◧", "C": "◩"}


@dataclass(frozen=True)
class CountRow:
    """Requests in each phase over time. counts [phases, columns]; top: of the y axis."""

    side: Side
    name: str
    counts: np.ndarray
    top: float


@dataclass(frozen=True)
class StripRow:
    """Strips of a run. chosen: the place of the chosen request among the shown lanes, or None."""

    side: Side
    name: str
    strips: Strips
    chosen: int | None = None


@dataclass(frozen=True)
class Moment:
    """Something that happened to a request. kind: of an event; told: in words, without markup."""

    t_s: float
    kind: str
    told: str


@dataclass(frozen=True)
class LaneRow:
    """Lanes in detail. ids: of the lanes, first on top; note: which they are; chosen: the place of
    the chosen one, or None; moments: of the first lane; lane_px: height of a lane."""

    side: Side
    name: str
    ids: Sequence[str]
    bars: Bars
    note: str
    chosen: int | None = None
    moments: Sequence[Moment] = ()
    lane_px: int = 11


@dataclass(frozen=True)
class SkyRow:
    """Requests by arrival, each as high as it lasted. ids: of the requests drawn; chosen_s: when the
    chosen one arrived, or None."""

    side: Side
    name: str
    sky: Skyline
    ids: Sequence[str]
    chosen_s: float | None = None


Row = CountRow | StripRow | SkyRow | LaneRow


def height_of(row: Row) -> int:
    """Pixels of a row without its title."""
    if isinstance(row, CountRow):
        return COUNT_PX
    if isinstance(row, SkyRow):
        return SKY_PX
    if isinstance(row, StripRow):
        return len(row.strips.sizes) * _strip_px(row)
    return max(len(row.ids) * row.lane_px, 22)


def _strip_px(row: StripRow) -> int:
    """Pixels of a strip on the screen: half of the picture's, more where there are few."""
    num = max(len(row.strips.sizes), 1)
    return max(STRIP_PX // 2, min(160 // num, 2 * STRIP_PX))


def sky_note(sky: Skyline) -> str:
    if not sky.num_arrivals:
        return "no request arrived in this time"
    cut = f", {sky.num_cut:,} cut off" if sky.num_cut else ""
    return f"{sky.num_arrivals:,} requests where they arrived{cut}"


def _strip_note(strips: Strips) -> str:
    num, most = len(strips.lanes), int(strips.sizes.max(initial=0))
    if not num:
        return "no request in this time"
    if most <= 1:
        return f"{num:,} requests by arrival, one a lane"
    return f"{num:,} requests by arrival, {most:,} a strip"


@dataclass
class Canvas:
    """A figure's parts from top to bottom. inner: pixels of all rows; used: of those drawn."""

    inner: int
    traces: list[dict[str, Any]]
    axes: dict[str, Any] = field(default_factory=dict)
    images: list[dict[str, Any]] = field(default_factory=list)
    shapes: list[dict[str, Any]] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)
    used: int = 0

    @property
    def last_axis(self) -> str:
        return f"y{len(self.axes)}" if len(self.axes) > 1 else "y"

    def axis(self, height: int, settings: dict[str, Any]) -> str:
        """Add a y axis of that many pixels below what there is; returns its name."""
        top = self.inner - self.used
        n = len(self.axes) + 1
        self.axes[f"yaxis{'' if n == 1 else n}"] = {
            "domain": [max(0.0, (top - height) / self.inner), min(1.0, top / self.inner)],
            "anchor": "x",
            "fixedrange": True,
            "zeroline": False,
            **settings,
        }
        self.used += height + GAP_PX
        return self.last_axis


def draw_title(canvas: Canvas, row: Row, theme: Theme) -> None:
    """A badge of the side, the run's name and what the row shows, above it."""
    if isinstance(row, CountRow):
        what = "requests by phase"
    elif isinstance(row, StripRow):
        what = _strip_note(row.strips)
    elif isinstance(row, SkyRow):
        what = sky_note(row.sky)
    else:
        hidden = row.bars.num_hidden
        what = row.note + (f"; {hidden:,} short stretches not drawn" if hidden else "")
    badge = f"<span style='color:{theme.side(row.side)}'>{_BADGES[row.side]}</span>"
    canvas.annotations.append(
        {
            "text": f"{badge} <b>{row.side} · {html.escape(row.name)}</b>  <span style='color:{theme.muted}'>{what}</span>",
            "showarrow": False,
            "font": {"size": 12.5, "color": theme.text},
            "xref": "paper",
            "yref": "paper",
            "x": 0,
            "y": (canvas.inner - canvas.used) / canvas.inner,
            "xanchor": "left",
            "yanchor": "bottom",
            "yshift": 2,
            "xshift": 14
            - LEFT_PX,  # over the labels of the axis: a narrow window has no room to lose
            "align": "left",
        }
    )


def scale_of(theme: Theme) -> dict[str, Any]:
    return {
        "tickfont": {"size": 10.5, "color": theme.muted},
        "gridcolor": theme.grid,
        "tickformat": ",~r",
        "rangemode": "tozero",
    }
