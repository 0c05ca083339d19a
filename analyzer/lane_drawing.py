"""How each kind of row of swim lanes is drawn on its canvas.

It knows Plotly's marks. What is in a row was worked out in `lanes_picture`; titles and sizes are known
in `lane_rows`.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from analyzer.lane_looks import HEIGHTS, LABELS, fill, harmless, hatch, phase_colour, png
from analyzer.lane_rows import (
    CLEAR,
    COUNT_PX,
    SKY_PX,
    Canvas,
    CountRow,
    LaneRow,
    Row,
    SkyRow,
    StripRow,
    draw_title,
    height_of,
    scale_of,
)
from analyzer.lanes import PHASES
from analyzer.lanes_picture import HOVER_COLUMNS, STACK, Bars
from analyzer.look import Theme, faded, seconds
from analyzer.marks import pen

MOST_TOLD = 200  # characters of a name that goes along, to be chosen by a click
# kind of an event -> its sign and the theme's colour of it; where it stands beside its lane
_SIGNS = {
    "arrive": ("line-ns-open", "text"),
    "admit": ("triangle-right", "text"),
    "preempt": ("triangle-down", "preempt"),
    "resume": ("triangle-up", "preempt"),
    "swap_out": ("arrow-down", "swap"),
    "swap_in": ("arrow-up", "swap"),
    "load": ("arrow-up", "swap"),
    "finish": ("square", "text"),
    "abort": ("x", "text"),
    "refuse": ("x", "text"),
}
_LEVEL = {"preempt": -0.42, "swap_out": -0.42, "resume": 0.42, "swap_in": 0.42, "load": 0.42}
_SILENT: dict[str, Any] = {"hoverinfo": "skip", "showlegend": False}


def draw(canvas: Canvas, row: Row, shown: tuple[float, float], theme: Theme) -> None:
    """A row below those that are drawn, with its title."""
    draw_title(canvas, row, theme)
    if isinstance(row, CountRow):
        _draw_counts(canvas, row, shown, theme)
    elif isinstance(row, StripRow):
        _draw_strips(canvas, row, theme)
    elif isinstance(row, SkyRow):
        _draw_sky(canvas, row, theme)
    else:
        _draw_lanes(canvas, row, shown, theme)


def _draw_counts(
    canvas: Canvas, row: CountRow, shown: tuple[float, float], theme: Theme
) -> None:
    """Phases stacked on each other, with an unseen line that answers to the mouse."""
    columns = row.counts.shape[1]
    x = shown[0] + (np.arange(columns) + 0.5) * (shown[1] - shown[0]) / columns
    axis = canvas.axis(
        COUNT_PX, scale_of(theme) | {"range": [0, max(row.top, 1) * 1.04], "nticks": 4}
    )
    for phase in STACK:
        if not row.counts[phase].any():
            continue
        colour = phase_colour(phase, theme)
        canvas.traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": x.astype(np.float32),
                "y": row.counts[phase].astype(np.float32),
                "yaxis": axis,
                "stackgroup": f"{axis}",
                "line": {"width": 0, "color": colour, "shape": "hvh"},
                "fillcolor": colour,
                "fillpattern": hatch(phase, theme),
                **_SILENT,
            }
        )
    total = row.counts.sum(axis=0)
    canvas.traces.append(
        {
            "type": "scatter",
            "mode": "lines",
            "x": x.astype(np.float32),
            "y": total.astype(np.float32),
            "yaxis": axis,
            "customdata": np.round(row.counts.T, 1).astype(np.float32),
            "line": pen(row.side, "main", theme) | {"shape": "linear", "width": 1},
            "hovertemplate": f"<b>{row.side}</b> at %{{x:,.3f}} s: %{{y:,.1f}} requests<br>{_shares_template(np.asarray(row.counts.any(axis=1)), '', ',.1f')}<extra></extra>",
            "showlegend": False,
        }
    )


def _shares_template(there: np.ndarray, unit: str, form: str) -> str:
    """A line per phase that occurs, of a hover text over customdata."""
    return "<br>".join(
        f"{LABELS[p]} %{{customdata[{p}]:{form}}}{unit}" for p in reversed(STACK) if there[p]
    )


def _draw_strips(canvas: Canvas, row: StripRow, theme: Theme) -> None:
    """The picture under the axes, and over it a coarse unseen map that answers to the mouse."""
    strips = row.strips
    num = len(strips.sizes)
    ticks = np.unique(np.linspace(0, num, 5).astype(int))
    first = int(strips.lanes[0]) if len(strips.lanes) else 0
    labels = [f"nr {first + int(strips.bounds[t]) + 1:,}" if t < num else "" for t in ticks]
    settings = scale_of(theme) | {
        "range": [num, 0],
        "tickvals": [float(t) for t in ticks],
        "ticktext": labels,
        "showgrid": False,
    }
    axis = canvas.axis(height_of(row), settings)
    canvas.images.append(_image(strips.index(), strips.shown, (0.0, float(num)), axis, theme))
    canvas.traces.append(_strip_hover(row, first, axis))
    if row.chosen is not None:
        at = float(np.searchsorted(strips.bounds, row.chosen, "right")) - 0.5
        _mark(canvas, strips.shown[0], at, "triangle-right", axis, theme)


def _draw_sky(canvas: Canvas, row: SkyRow, theme: Theme) -> None:
    """The picture, and over it unseen bars that answer to mouse and click."""
    sky = row.sky
    axis = canvas.axis(
        SKY_PX, scale_of(theme) | {"range": [0, sky.top_s], "nticks": 4, "ticksuffix": " s"}
    )
    canvas.images.append(_image(sky.index, sky.shown, (sky.top_s, 0.0), axis, theme))
    told = [
        [
            harmless(name, 40),
            seconds(float(life)),
            _spent(spent),
            name if len(name) <= MOST_TOLD else "",
        ]
        for name, life, spent in zip(row.ids, sky.life_s, sky.seconds, strict=True)
    ]
    canvas.traces.append(
        {
            "type": "bar",
            "x": sky.x,
            "y": np.minimum(sky.life_s, sky.top_s).astype(np.float32),
            "width": sky.width_s,
            "yaxis": axis,
            "customdata": told,
            "marker": {"color": theme.text, "opacity": 0, "line": {"width": 0}},
            "hovertemplate": f"<b>request %{{customdata[0]}}</b> in {row.side}<br>arrived at %{{x:,.3f}} s, lasted %{{customdata[1]}}<br>%{{customdata[2]}}<extra></extra>",
            "selected": {"marker": {"opacity": 0}},
            "unselected": {"marker": {"opacity": 0}},
            "showlegend": False,
        }
    )
    if row.chosen_s is not None:
        _mark(canvas, row.chosen_s, 0.0, "triangle-up", axis, theme)


def _spent(spent: np.ndarray) -> str:
    """'queued 1.2 s<br>decode 8 s': what a request's time went to."""
    return "<br>".join(
        f"{LABELS[p]} {seconds(float(spent[p]))}" for p in range(len(PHASES)) if spent[p] > 0
    )


def _mark(canvas: Canvas, x: float, y: float, symbol: str, axis: str, theme: Theme) -> None:
    """Where the chosen request is."""
    canvas.traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": [x],
            "y": [y],
            "yaxis": axis,
            "marker": {"symbol": symbol, "size": 11, "color": theme.text},
            "cliponaxis": False,
            "hovertemplate": "the chosen request<extra></extra>",
            "showlegend": False,
        }
    )


def _image(
    index: np.ndarray,
    x: tuple[float, float],
    y: tuple[float, float],
    axis: str,
    theme: Theme,
) -> dict[str, Any]:
    """A raster under the axes. y: at its top and at its bottom."""
    source = base64.b64encode(png(index, theme)).decode()
    return {
        "source": f"data:image/png;base64,{source}",
        "xref": "x",
        "yref": axis,
        "x": x[0],
        "y": y[0],
        "sizex": x[1] - x[0],
        "sizey": abs(y[1] - y[0]),
        "xanchor": "left",
        "yanchor": "top",
        "sizing": "stretch",
        "layer": "below",
    }


def _strip_hover(row: StripRow, first: int, axis: str) -> dict[str, Any]:
    strips = row.strips
    num, width = len(strips.sizes), (strips.shown[1] - strips.shown[0]) / HOVER_COLUMNS
    share = np.round(strips.shares(HOVER_COLUMNS) * 100).astype(np.uint8).transpose(0, 2, 1)
    who = np.stack([first + strips.bounds[:-1] + 1, first + strips.bounds[1:]], axis=1)
    told = np.concatenate(
        [
            share.astype(np.int32),
            np.repeat(who[:, None, :], HOVER_COLUMNS, axis=1).astype(np.int32),
        ],
        axis=2,
    )
    n = len(PHASES)
    there = np.asarray(strips.mean.any(axis=(0, 2)))
    return {
        "type": "heatmap",
        "x": (strips.shown[0] + (np.arange(HOVER_COLUMNS) + 0.5) * width).astype(np.float64),
        "y": np.arange(num) + 0.5,
        "z": np.where(share.any(axis=2), 0.0, np.nan).astype(np.float32),
        "customdata": told,
        "yaxis": axis,
        "opacity": 0,
        "showscale": False,
        "hoverongaps": False,
        "zmin": 0,
        "zmax": 1,
        "hovertemplate": f"<b>{row.side}</b> at %{{x:,.3f}} s<br>requests nr %{{customdata[{n}]:,}} to %{{customdata[{n + 1}]:,}} by arrival<br>{_shares_template(there, ' %', 'd')}<extra></extra>",
        "showlegend": False,
    }


def _draw_lanes(canvas: Canvas, row: LaneRow, shown: tuple[float, float], theme: Theme) -> None:
    """A bar a stretch, a trace a phase, cut at the shown time; a lane's name at the left."""
    num = max(len(row.ids), 1)
    names = [harmless(i) for i in row.ids]
    if row.chosen is not None:
        names[row.chosen] = f"<b>▸ {names[row.chosen]}</b>"
    settings = scale_of(theme) | {
        "range": [num - 0.5, -0.5] if row.lane_px < 20 else [num - 0.4, -0.6],
        "tickvals": list(range(len(names))),
        "ticktext": names,
        "tickfont": {"size": 9, "color": theme.muted},
        "showgrid": False,
    }
    axis = canvas.axis(height_of(row), settings)
    bars = row.bars
    for phase in range(len(PHASES)):
        which = np.flatnonzero(bars.phase == phase)
        if len(which):
            canvas.traces.append(
                _bar_trace(bars, which, shown, axis)
                | {"width": HEIGHTS[phase], "marker": fill(phase, theme), **_SILENT}
            )
    if len(bars.phase):
        canvas.traces.append(_lane_hover(row, shown, axis))
    _draw_moments(canvas, row, axis, theme)
    if not len(bars.phase):
        canvas.traces.append(
            {"type": "scatter", "x": [None], "y": [None], "yaxis": axis, **_SILENT}
        )
    if row.chosen is not None:
        canvas.shapes.append(
            {
                "type": "rect",
                "xref": "paper",
                "yref": axis,
                "x0": 0,
                "x1": 1,
                "y0": row.chosen - 0.5,
                "y1": row.chosen + 0.5,
                "fillcolor": faded(theme.a, 0.16),
                "line": {"width": 1, "color": theme.a},
                "layer": "below",
            }
        )


def _bar_trace(
    bars: Bars, which: np.ndarray, shown: tuple[float, float], axis: str
) -> dict[str, Any]:
    """Some of the bars, cut at the shown time."""
    start = np.maximum(bars.start_s[which], shown[0])
    return {
        "type": "bar",
        "orientation": "h",
        "base": start,
        "x": np.minimum(bars.stop_s[which], shown[1]) - start,
        "y": bars.place[which].astype(np.int32),
        "yaxis": axis,
        "selected": {"marker": {"opacity": 1}},
        "unselected": {"marker": {"opacity": 1}},
    }


def _lane_hover(row: LaneRow, shown: tuple[float, float], axis: str) -> dict[str, Any]:
    """Unseen bars as high as a lane, which answer to mouse and click: thin ones are hard to hit."""
    bars = row.bars
    names = [harmless(i, 40) for i in row.ids]
    told = [
        [
            names[place],
            LABELS[phase],
            f"{start:,.3f}",
            f"{stop:,.3f}",
            seconds(stop - start) + (" so far" if is_open else ""),
            row.ids[place] if len(row.ids[place]) <= MOST_TOLD else "",
        ]
        for place, phase, start, stop, is_open in zip(
            bars.place.tolist(),
            bars.phase.tolist(),
            bars.start_s.tolist(),
            bars.stop_s.tolist(),
            bars.is_open.tolist(),
            strict=True,
        )
    ]
    return _bar_trace(bars, np.arange(len(told)), shown, axis) | {
        "width": 1,
        "customdata": told,
        "marker": {"color": CLEAR, "line": {"width": 0}},
        "hovertemplate": f"<b>request %{{customdata[0]}}</b> in {row.side}<br>%{{customdata[1]}}, %{{customdata[4]}}<br>from %{{customdata[2]}} to %{{customdata[3]}} s<extra></extra>",
        "hoverlabel": {"align": "left"},
        "showlegend": False,
    }


def _draw_moments(canvas: Canvas, row: LaneRow, axis: str, theme: Theme) -> None:
    """A sign a moment, in the middle of the first lane."""
    if not row.moments:
        return
    looks = [_SIGNS.get(m.kind, ("circle", "text")) for m in row.moments]
    canvas.traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": [m.t_s for m in row.moments],
            "y": [_LEVEL.get(m.kind, 0.0) for m in row.moments],
            "yaxis": axis,
            "marker": {
                "symbol": [symbol for symbol, _ in looks],
                "color": [getattr(theme, colour) for _, colour in looks],
                "size": 9,
                "line": {"width": 1, "color": theme.ground},
            },
            "customdata": [m.told for m in row.moments],
            "hovertemplate": f"<b>{row.side}</b> at %{{x:,.3f}} s<br>%{{customdata}}<extra></extra>",
            "cliponaxis": False,
            "showlegend": False,
        }
    )
