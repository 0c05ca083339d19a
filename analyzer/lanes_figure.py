"""Swim lanes drawn: counts by phase, strips of thousands, and lanes in detail, over one time axis.

It computes nothing: strips, counts and bars were worked out in `lanes_picture`. A phase is told by
colour and by height: thin while a request waits, full while it runs; hatched while it is
without its KV. Requests' names come from files, and are made harmless here.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from analyzer.lanes import (
    DECODE,
    PHASES,
    PREEMPTED,
    PREFILL,
    QUEUED,
    RECOMPUTING,
    RESTORING,
    SWAPPED,
)
from analyzer.lanes_picture import (
    HOVER_COLUMNS,
    NOBODY,
    STACK,
    STRIP_PX,
    Bars,
    Skyline,
    Strips,
    phases_in_words,
)
from analyzer.look import Side, Theme, faded, seconds
from analyzer.marks import pen

LABELS = {
    QUEUED: "queued",
    PREFILL: "prefill",
    DECODE: "decode",
    PREEMPTED: "preempted",
    RECOMPUTING: "recomputing",
    SWAPPED: "swapped out",
    RESTORING: "restoring",
}
_HATCHES = {PREEMPTED: "/", SWAPPED: "x"}  # what waits without its KV
HEIGHTS = {
    QUEUED: 0.26,
    PREFILL: 0.84,
    DECODE: 0.84,
    PREEMPTED: 0.5,
    RECOMPUTING: 0.84,
    SWAPPED: 0.5,
    RESTORING: 0.84,
}
COUNT_PX = 66
SKY_PX = 120
GAP_PX = 30
TOP_PX = 70
BOTTOM_PX = 44
LEFT_PX = 84
LONGEST_ID = 12
MOST_TOLD = 200  # characters of a name that goes along, to be chosen by a click
_CLEAR = "rgba(0,0,0,0)"
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
_BADGES: dict[Side, str] = {"A": "■", "B": "◧", "C": "◩"}
_SILENT: dict[str, Any] = {"hoverinfo": "skip", "showlegend": False}


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


def phase_colour(phase: int, theme: Theme, is_flat: bool = False) -> str:
    """One colour a phase, as in the timeline: prefill, decode, recomputing and swap.

    is_flat: where there is no room for hatching, what is hatched elsewhere is paler.
    """
    colour = {
        QUEUED: _mixed(theme.grey, theme.ground, 0.58),
        PREFILL: theme.ok,
        DECODE: _mixed(theme.grey, theme.ground, 0.12),
        PREEMPTED: theme.preempt,
        RECOMPUTING: theme.preempt,
        SWAPPED: theme.swap,
        RESTORING: theme.swap,
    }[phase]
    return _mixed(colour, theme.ground, 0.42) if is_flat and phase in _HATCHES else colour


def _mixed(colour: str, other: str, share: float) -> str:
    """'#rrggbb' with so much of another colour in it."""
    pairs = zip(bytes.fromhex(colour[1:]), bytes.fromhex(other[1:]), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def lanes_figure(rows: Sequence[Row], shown: tuple[float, float], theme: Theme) -> go.Figure:
    """Rows over each other on one time axis, in seconds since the start, with one cursor."""
    inner = sum(height_of(row) for row in rows) + GAP_PX * (len(rows) - 1)
    canvas = _Canvas(inner, _legend(_phases_in(rows), theme))
    for row in rows:
        _title(canvas, row, theme)
        if isinstance(row, CountRow):
            _draw_counts(canvas, row, shown, theme)
        elif isinstance(row, StripRow):
            _draw_strips(canvas, row, theme)
        elif isinstance(row, SkyRow):
            _draw_sky(canvas, row, theme)
        else:
            _draw_lanes(canvas, row, shown, theme)
    layout = {
        **_layout(inner, theme),
        **canvas.axes,
        "xaxis": _x_axis(shown, canvas.last_axis, theme),
        "images": canvas.images,
        "shapes": canvas.shapes,
        "annotations": canvas.annotations,
    }
    return go.Figure({"data": canvas.traces, "layout": layout})


def height_of(row: Row) -> int:
    """Pixels of a row without its title."""
    if isinstance(row, CountRow):
        return COUNT_PX
    if isinstance(row, SkyRow):
        return SKY_PX
    if isinstance(row, StripRow):
        return len(row.strips.sizes) * _strip_px(row)
    return max(len(row.ids) * row.lane_px, 22)


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
                f"{who}, {_sky_note(row.sky)}: they lasted up to {seconds(float(row.sky.life_s.max(initial=0.0)))}."
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


def harmless(text: str, longest: int = LONGEST_ID) -> str:
    """A request's name without markup of Plotly, cut to so many characters."""
    short = text if len(text) <= longest else f"{text[: longest - 5]}…{text[-4:]}"
    return html.escape(" ".join(short.split())).replace("$", "&#36;")


# ---- the pieces -------------------------------------------------------------------------------


@dataclass
class _Canvas:
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


def _title(canvas: _Canvas, row: Row, theme: Theme) -> None:
    """A badge of the side, the run's name and what the row shows, above it."""
    if isinstance(row, CountRow):
        what = "requests by phase"
    elif isinstance(row, StripRow):
        what = _strip_note(row.strips)
    elif isinstance(row, SkyRow):
        what = _sky_note(row.sky)
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


def _sky_note(sky: Skyline) -> str:
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
    return (
        f"{num:,} requests by arrival, {most:,} a strip: its height divides into their phases"
    )


def _draw_counts(
    canvas: _Canvas, row: CountRow, shown: tuple[float, float], theme: Theme
) -> None:
    """Phases stacked on each other, with an unseen line that answers to the mouse."""
    columns = row.counts.shape[1]
    x = shown[0] + (np.arange(columns) + 0.5) * (shown[1] - shown[0]) / columns
    axis = canvas.axis(
        COUNT_PX, _scale(theme) | {"range": [0, max(row.top, 1) * 1.04], "nticks": 4}
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
                "fillpattern": _hatch(phase, theme),
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


def _draw_strips(canvas: _Canvas, row: StripRow, theme: Theme) -> None:
    """The picture under the axes, and over it a coarse unseen map that answers to the mouse."""
    strips = row.strips
    num = len(strips.sizes)
    ticks = np.unique(np.linspace(0, num, 5).astype(int))
    first = int(strips.lanes[0]) if len(strips.lanes) else 0
    labels = [f"nr {first + int(strips.bounds[t]) + 1:,}" if t < num else "" for t in ticks]
    settings = _scale(theme) | {
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


def _draw_sky(canvas: _Canvas, row: SkyRow, theme: Theme) -> None:
    """The picture, and over it unseen bars that answer to mouse and click."""
    sky = row.sky
    axis = canvas.axis(
        SKY_PX, _scale(theme) | {"range": [0, sky.top_s], "nticks": 4, "ticksuffix": " s"}
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


def _mark(canvas: _Canvas, x: float, y: float, symbol: str, axis: str, theme: Theme) -> None:
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


def png(index: np.ndarray, theme: Theme) -> bytes:
    """A raster [rows, columns] of phases as a PNG, first row on top; NOBODY is see-through."""
    colours = b"".join(
        bytes.fromhex(phase_colour(p, theme, is_flat=True)[1:]) for p in range(len(PHASES))
    )
    image = Image.fromarray(index, "P")
    image.putpalette(colours + bytes.fromhex(theme.ground[1:]))
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=4, transparency=NOBODY, bits=4)
    return out.getvalue()


def _draw_lanes(
    canvas: _Canvas, row: LaneRow, shown: tuple[float, float], theme: Theme
) -> None:
    """A bar a stretch, a trace a phase, cut at the shown time; a lane's name at the left."""
    num = max(len(row.ids), 1)
    names = [harmless(i) for i in row.ids]
    if row.chosen is not None:
        names[row.chosen] = f"<b>▸ {names[row.chosen]}</b>"
    settings = _scale(theme) | {
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
                | {"width": HEIGHTS[phase], "marker": _fill(phase, theme), **_SILENT}
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
        "marker": {"color": _CLEAR, "line": {"width": 0}},
        "hovertemplate": f"<b>request %{{customdata[0]}}</b> in {row.side}<br>%{{customdata[1]}}, %{{customdata[4]}}<br>from %{{customdata[2]}} to %{{customdata[3]}} s<extra></extra>",
        "hoverlabel": {"align": "left"},
        "showlegend": False,
    }


def _draw_moments(canvas: _Canvas, row: LaneRow, axis: str, theme: Theme) -> None:
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


def _fill(phase: int, theme: Theme) -> dict[str, Any]:
    return {
        "color": phase_colour(phase, theme),
        "line": {"width": 0},
        "pattern": _hatch(phase, theme),
    }


def _hatch(phase: int, theme: Theme) -> dict[str, Any]:
    if phase not in _HATCHES:
        return {}
    return {"shape": _HATCHES[phase], "size": 4, "solidity": 0.35, "fgcolor": theme.ground}


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
            "marker": _fill(phase, theme),
            "hoverinfo": "skip",
            "showlegend": True,
        }
        for phase in phases
    ]


def _scale(theme: Theme) -> dict[str, Any]:
    return {
        "tickfont": {"size": 10.5, "color": theme.muted},
        "gridcolor": theme.grid,
        "tickformat": ",~r",
        "rangemode": "tozero",
    }


def _layout(inner_px: int, theme: Theme) -> dict[str, Any]:
    return {
        "template": theme.template,
        "paper_bgcolor": _CLEAR,
        "plot_bgcolor": _CLEAR,
        "font": {
            "family": '"Source Sans", "Source Sans Pro", Arial, sans-serif',
            "color": theme.text,
            "size": 12,
        },
        "height": inner_px + TOP_PX + BOTTOM_PX,
        "margin": {"l": LEFT_PX, "r": 10, "t": TOP_PX, "b": BOTTOM_PX, "pad": 0},
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
        "modebar": {"bgcolor": _CLEAR, "color": theme.muted, "activecolor": theme.text},
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


def _strip_px(row: StripRow) -> int:
    """Pixels of a strip on the screen: half of the picture's, more where there are few."""
    num = max(len(row.strips.sizes), 1)
    return max(STRIP_PX // 2, min(160 // num, 2 * STRIP_PX))
