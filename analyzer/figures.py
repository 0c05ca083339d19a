"""Tidy rows -> Plotly figures. It computes nothing: what is drawn was worked out before.

It knows rows, their titles, one x axis with one cursor, layout, and the words of a picture's
alternative text. It does not know recordings, downsampling or Streamlit.

One colour means one thing everywhere, and colour is never alone: A is blue and solid, B is orange
and dashed (bars: plain and hatched).
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import plotly.graph_objects as go

from analyzer.look import Side, Theme, faded
from analyzer.marks import Mark, in_words, pen, traces_of, values_of
from analyzer.unchecked import measured_once, unchecked

GAP_PX = 40  # between rows: room for the next row's title
TOP_PX = 58  # legend, and the first row's title
BOTTOM_PX = 48
STRIP_PX = 2  # of the axis below the first row
STRIP_HEIGHT_PX = 46  # of the overview
LEFT_PX = 50  # a label such as 12,000
RIGHT_PX = 22  # half of one at the last tick
WHOLE_UNITS = ("blocks", "requests", "tokens")
CONFIG: dict[str, Any] = {
    "displaylogo": False,
    "scrollZoom": False,
    "doubleClick": "reset",
    "showTips": False,
    "modeBarButtonsToRemove": [
        "select2d",
        "lasso2d",
        "zoomIn2d",
        "zoomOut2d",
        "autoScale2d",
        "sendDataToCloud",
    ],
    "toImageButtonOptions": {
        "format": "png",
        "filename": "kv-replay",
        "width": 1400,
        "scale": 2,
    },
}


@dataclass(frozen=True)
class Capacity:
    """A pool's size: a line, and a band from `full_frac` of it upwards."""

    value: float
    label: str
    full_frac: float = 0.98


@dataclass(frozen=True)
class Readings:
    """What the cursor's box says of a row: one line, a value per label.

    values: label -> (n,) at the places `XAxis.cursor`; format: d3 format of a value.
    """

    name: str
    values: Mapping[str, np.ndarray]
    unit: str
    format: str = ",.0f"


@dataclass(frozen=True)
class Row:
    """One row of the timeline: title and unit above it, its marks, its height, its readings.

    y_max: top of the y axis, None to fit; note: small print after the title; empty: what to say
    where there are no marks.
    """

    key: str
    title: str
    unit: str
    marks: Sequence[Mark]
    height_px: int = 84
    y_max: float | None = None
    capacity: Sequence[Capacity] = ()
    note: str = ""
    empty: str = ""
    readings: Readings | None = None


@dataclass(frozen=True)
class Shade:
    """A stretch of the x axis to set apart, such as the time after a run has ended."""

    start: float
    end: float
    label: str


@dataclass(frozen=True)
class XAxis:
    """What x counts. range: shown part; title and unit for people; cursor: places (n,) at which
    all rows have readings; hover: d3 format of such a place."""

    title: str
    unit: str
    range: tuple[float, float]
    cursor: np.ndarray = field(default_factory=lambda: np.empty(0))
    hover: str = ",.3f"
    shades: Sequence[Shade] = ()


def timeline(
    rows: Sequence[Row],
    axis: XAxis,
    names: Mapping[Side, str],
    theme: Theme,
    checked: bool = True,
) -> go.Figure:
    """Rows over each other on one x axis, with one cursor and one box of values through all.

    names: side -> run's name for the legend. One x axis and a y axis per row, since linked x axes
    do not share a cursor. checked: Plotly goes through all properties, now and at each change, which
    takes 40 ms; a figure that is only shown can go without.
    """
    inner = sum(row.height_px for row in rows) + GAP_PX * (len(rows) - 1)
    drawing = _Drawing(_legend_traces(names, theme))
    top = inner
    for i, row in enumerate(rows, start=1):
        bottom = top - row.height_px
        domain = (max(0.0, bottom / inner), min(1.0, top / inner))
        drawing.axes[f"yaxis{_nth(i)}"] = _y_axis(row, domain, theme)
        _draw_row(drawing, row, f"y{_nth(i)}", domain, theme)
        top = bottom - GAP_PX
    drawing.traces += _readings_traces(rows, axis)
    for shade in axis.shades:
        _draw_shade(drawing, shade, axis, theme)
    if len(rows) > 1:
        edge = 1 - rows[0].height_px / inner
        strip = (edge - STRIP_PX / inner, edge)
        _draw_first_ticks(drawing, axis, strip, len(rows) + 1, theme)
    layout = {
        **_layout(inner, theme),
        **drawing.axes,
        "xaxis": _x_axis(axis, len(rows), theme),
        "shapes": drawing.shapes,
        "annotations": drawing.annotations,
    }
    if not checked:
        return unchecked(drawing.traces, layout)
    return go.Figure({"data": drawing.traces, "layout": measured_once(layout)})


def shares_below(
    samples: Mapping[Side, np.ndarray], title: str, names: Mapping[Side, str], theme: Theme
) -> go.Figure:
    """Share of requests whose time is at most x, a line per side, on a logarithmic axis.

    samples: side -> times in seconds, sorted (n,); zeros are left out, which have no logarithm.
    title: of the x axis.
    """
    traces = []
    for side, values in samples.items():
        y = np.arange(1, len(values) + 1) / max(len(values), 1) * 100
        keep = values > 0
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": values[keep],
                "y": y[keep],
                "name": f"{side} · {html.escape(names[side])}",
                "line": pen(side, "main", theme),
                "hovertemplate": f"{side}: %{{y:.1f}} % within %{{x:.3~s}}s<extra></extra>",
            }
        )
    layout = _layout(190, theme) | {"hovermode": "closest", "dragmode": False}
    font = {"size": 11, "color": theme.muted}
    axis = {"gridcolor": theme.grid, "zeroline": False, "tickfont": font, "fixedrange": True}
    layout["xaxis"] = {
        **axis,
        "type": "log",
        "dtick": 1,
        "tickformat": ".1~s",
        "ticksuffix": "s",
        "title": {"text": title, "font": font, "standoff": 6},
    }
    layout["yaxis"] = {**axis, "range": [0, 101], "ticksuffix": " %", "nticks": 6}
    return unchecked(traces, layout)


def overview(
    marks: Sequence[Mark], axis: XAxis, shown: tuple[float, float], top: float, theme: Theme
) -> go.Figure:
    """The whole axis as a strip, with everything but the shown part greyed; a drag selects a part.

    marks: of the strip; axis: its range is the whole axis; top: of the y axis.
    """
    traces = [trace for mark in marks for trace in traces_of(mark, "y", theme)]
    traces.append(  # unseen points, without which there is nothing to select
        {
            "type": "scatter",
            "mode": "markers",
            "x": np.linspace(*axis.range, 50),
            "y": np.full(50, top / 2),
            "marker": {"opacity": 0},
            "hoverinfo": "skip",
            "showlegend": False,
        }
    )
    low, high = axis.range
    grey = {
        "type": "rect",
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "fillcolor": faded(theme.grey, 0.28),
        "line": {"width": 0},
    }
    edge = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": {"color": theme.muted}}
    layout = _layout(STRIP_HEIGHT_PX, theme) | {
        "height": STRIP_HEIGHT_PX,
        "margin": {"l": LEFT_PX, "r": RIGHT_PX, "t": 4, "b": 4, "pad": 0},
        "dragmode": "select",
        "selectdirection": "h",
        "hovermode": False,
        "shapes": [
            {**grey, "x0": low, "x1": shown[0]},
            {**grey, "x0": shown[1], "x1": high},
            *({**edge, "x0": x, "x1": x} for x in shown),
        ],
        "xaxis": {"range": [low, high], "visible": False, "fixedrange": True},
        "yaxis": {"range": [0, top], "visible": False, "fixedrange": True},
    }
    return unchecked(traces, layout)


def for_export(fig: go.Figure) -> go.Figure:
    """A copy on white ground, 1,200 px wide, whatever the page looks like."""
    white = {"paper_bgcolor": "#ffffff", "plot_bgcolor": "#ffffff"}
    return go.Figure(fig).update_layout(template="plotly_white", width=1200, **white)


def alt_text(rows: Sequence[Row], axis: XAxis, names: Mapping[Side, str]) -> str:
    """What the timeline shows, in words: axis, runs, and least and greatest value of each line."""
    low, high = (f"{v:,.5g}" for v in axis.range)
    unit = f" {axis.unit}" if axis.unit else ""
    runs = " and ".join(f"run {side} ({name})" for side, name in names.items())
    said = [f"Timeline of {runs} over {axis.title.lower()}, {low} to {high}{unit}."]
    for row in rows:
        marks = [words for words in map(in_words, row.marks) if words]
        marks += [capacity.label for capacity in row.capacity]
        said.append(f"{row.title} ({row.unit}): {'; '.join(marks) or row.empty or 'no data'}.")
    return " ".join(said)


# ---- the pieces of a timeline ----------------------------------------------------------------


@dataclass
class _Drawing:
    """A figure's parts as they are gathered. One go.Figure at the end: adding to one piece by
    piece checks everything again each time (260 ms instead of 45 for eleven rows)."""

    traces: list[dict[str, Any]]
    axes: dict[str, Any] = field(default_factory=dict)
    shapes: list[dict[str, Any]] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)

    def write(self, text: str, size: float, colour: str, **place: Any) -> None:
        """Put text somewhere, without an arrow."""
        font = {"size": size, "color": colour}
        self.annotations.append({"text": text, "showarrow": False, "font": font, **place})


def _nth(i: int) -> str:
    """Plotly's number of the i-th axis: nothing for the first."""
    return "" if i == 1 else str(i)


def _legend_traces(names: Mapping[Side, str], theme: Theme) -> list[dict[str, Any]]:
    """One legend entry a side for the whole picture, drawn as the runs' main lines are."""
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "x": [None],
            "y": [None],
            "name": f"{side} · {html.escape(name)}",  # a recording may say anything
            "line": pen(side, "main", theme),
            "hoverinfo": "skip",
            "showlegend": True,
        }
        for side, name in names.items()
    ]


def _draw_row(
    drawing: _Drawing, row: Row, y_axis: str, domain: tuple[float, float], theme: Theme
) -> None:
    """The row's marks, its title above it and its capacity lines."""
    for mark in row.marks:
        drawing.traces += traces_of(mark, y_axis, theme)
    small = f"{row.unit}{' · ' if row.unit and row.note else ''}{row.note}"
    paper = {"xref": "paper", "yref": "paper"}
    drawing.write(
        f"<b>{row.title}</b>  <span style='color:{theme.muted}'>{small}</span>",
        12.5,
        theme.text,
        x=0,
        y=domain[1],
        xanchor="left",
        yanchor="bottom",
        yshift=3,
        align="left",
        **paper,
    )
    if not row.marks and row.empty:
        drawing.write(row.empty, 13, theme.muted, x=0.5, y=(domain[0] + domain[1]) / 2, **paper)
    for capacity in row.capacity:
        _draw_capacity(drawing, capacity, y_axis, theme)


def _readings_traces(rows: Sequence[Row], axis: XAxis) -> list[dict[str, Any]]:
    """What gives the cursor's box its line of text a row: an unseen line on the first row, one for all
    since a trace takes 3 ms to draw. What is not known at a place, as after the end of a run, is not named
    there."""
    told = [row.readings for row in rows if row.readings is not None]
    columns = [np.asarray(v, dtype=np.float64) for r in told for v in r.values.values()]
    if not columns or not len(axis.cursor):
        return []
    table = np.column_stack(columns)
    table = table[some := np.isfinite(table).any(axis=1)]
    if not len(table):
        return []
    known, which = np.unique(np.isfinite(table), axis=0, return_inverse=True)
    boxes = [_box(told, names) for names in known]
    top = rows[0].y_max or max((_greatest(m) for m in rows[0].marks), default=0.0)
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "x": axis.cursor[some],
            "y": np.full(len(table), top / 2, np.float32),
            "yaxis": "y",
            "customdata": table,
            "name": "",
            "line": {"width": 0, "color": "rgba(0,0,0,0)"},
            "hovertemplate": boxes[0]
            if len(boxes) == 1
            else [boxes[i] for i in which.ravel().tolist()],
            "showlegend": False,
        }
    ]


def _box(told: Sequence[Readings], known: np.ndarray) -> str:
    """The text of the cursor's box: a line per row, of the values that are known there. known: [columns],
    of all rows one after the other."""
    lines, column = [], 0
    for readings in told:
        said = []
        for label in readings.values:
            if known[column]:
                said.append(f"{label} %{{customdata[{column}]:{readings.format}}}")
            column += 1
        unit = f" {readings.unit}" if readings.unit else ""
        if said:
            lines.append(f"<b>{readings.name}</b>  {' · '.join(said)}{unit}")
    return "<br>".join(lines) + "<extra></extra>"


def _greatest(mark: Mark) -> float:
    return max((float(np.nanmax(v)) for v in values_of(mark) if len(v)), default=0.0)


def _y_axis(row: Row, domain: tuple[float, float], theme: Theme) -> dict[str, Any]:
    """The row's y axis. Its margin is fixed: measuring labels would lay the picture out twice."""
    tops = [float(np.nanmax(v)) for mark in row.marks for v in values_of(mark) if len(v)]
    top = row.y_max or max(tops, default=10)
    decimals = row.unit not in WHOLE_UNITS and top < 10
    axis: dict[str, Any] = {
        "domain": list(domain),
        "anchor": "x",
        "fixedrange": True,
        "rangemode": "tozero",
        "tickformat": ",~r" if decimals else ".3~s" if top >= 100_000 else ",d",
        "nticks": 5 if row.height_px > 130 else 4,
        "gridcolor": theme.grid,
        "zeroline": True,
        "zerolinecolor": theme.grid,
        "tickfont": {"size": 11, "color": theme.muted},
        "showticklabels": bool(row.marks),
    }
    if (row.unit in WHOLE_UNITS or row.key == "preemptions") and top < 4:
        axis["dtick"] = 1
    if row.y_max is not None:
        axis |= {"range": [0, row.y_max], "rangemode": "normal"}
    return axis


def _draw_capacity(drawing: _Drawing, capacity: Capacity, y_axis: str, theme: Theme) -> None:
    """Dashed line at the pool's size, the band that counts as full, and a label above the line."""
    across = {"xref": "paper", "yref": y_axis, "x0": 0, "x1": 1}
    top = capacity.value
    drawing.shapes += [
        {
            "type": "rect",
            "y0": capacity.full_frac * top,
            "y1": top,
            "fillcolor": faded(theme.preempt, 0.16),
            "line": {"width": 0},
            "layer": "below",
            **across,
        },
        {
            "type": "line",
            "y0": top,
            "y1": top,
            "line": {"color": theme.preempt, "width": 1, "dash": "8px,4px"},
            **across,
        },
    ]
    place = {"xref": "paper", "yref": y_axis, "xanchor": "right", "yanchor": "bottom"}
    drawing.write(capacity.label, 11, theme.preempt_text, x=1, y=top, **place)


def _draw_shade(drawing: _Drawing, shade: Shade, axis: XAxis, theme: Theme) -> None:
    start, end = max(shade.start, axis.range[0]), min(shade.end, axis.range[1])
    if end <= start:
        return
    drawing.shapes.append(
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": start,
            "x1": end,
            "y0": 0,
            "y1": 1,
            "fillcolor": faded(theme.grey, 0.14),
            "line": {"width": 0},
            "layer": "below",
        }
    )
    if end - start > 0.12 * (axis.range[1] - axis.range[0]):
        # at the foot of the first row: the pool's size is written at its head
        place = {"xref": "x", "yref": "y domain", "yanchor": "bottom"}
        drawing.write(shade.label, 11, theme.muted, x=(start + end) / 2, y=0, **place)


def _draw_first_ticks(
    drawing: _Drawing, axis: XAxis, domain: tuple[float, float], n: int, theme: Theme
) -> None:
    """Labels of the x axis under the first row too, since the last one is below the fold: a
    second x axis that goes along with the first, on a strip between two rows."""
    strip = f"y{_nth(n)}"
    drawing.axes[f"yaxis{_nth(n)}"] = {
        "domain": list(domain),
        "anchor": "x2",
        "fixedrange": True,
        "visible": False,
    }
    drawing.axes["xaxis2"] = {
        "matches": "x",
        "range": list(axis.range),
        "anchor": strip,
        "tickformat": ",~r",
        "ticksuffix": f" {axis.unit}" if axis.unit else "",
        "tickfont": {"size": 10.5, "color": theme.muted},
        "showgrid": False,
        "zeroline": False,
    }
    drawing.traces.append(
        {
            "type": "scatter",
            "x": [None],
            "y": [None],
            "xaxis": "x2",
            "yaxis": strip,
            "hoverinfo": "skip",
            "showlegend": False,
        }
    )


def _layout(inner_px: int, theme: Theme) -> dict[str, Any]:
    clear = "rgba(0,0,0,0)"
    family = '"Source Sans", "Source Sans Pro", Arial, sans-serif'
    return {
        "template": theme.template,
        "paper_bgcolor": clear,
        "plot_bgcolor": theme.ground,  # the cursor's line gets a halo of this colour
        "font": {"family": family, "color": theme.text, "size": 12},
        "height": inner_px + TOP_PX + BOTTOM_PX,
        "margin": {"l": LEFT_PX, "r": RIGHT_PX, "t": TOP_PX, "b": BOTTOM_PX, "pad": 0},
        "hovermode": "x unified",
        "hoversubplots": "axis",
        "hoverdistance": 60,
        "hoverlabel": {
            "font": {"size": 11, "color": theme.text},
            "bgcolor": faded(theme.ground, 0.8),
            "bordercolor": theme.grid,
            "namelength": -1,
        },
        "dragmode": "zoom",
        "barmode": "overlay",
        "legend": {
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "font": {"size": 12.5},
            "itemclick": False,
            "itemdoubleclick": False,
        },
        "modebar": {"bgcolor": clear, "color": theme.muted, "activecolor": theme.text},
    }


def _x_axis(axis: XAxis, num_rows: int, theme: Theme) -> dict[str, Any]:
    unit = f" ({axis.unit})" if axis.unit else ""
    return {
        "title": {
            "text": f"{axis.title}{unit}",
            "font": {"size": 12, "color": theme.muted},
            "standoff": 6,
        },
        "range": list(axis.range),
        "anchor": f"y{_nth(num_rows)}",
        "tickformat": ",~r",
        "tickfont": {"size": 11, "color": theme.muted},
        "gridcolor": theme.grid,
        "zeroline": False,
        "unifiedhovertitle": {"text": f"<b>%{{x:{axis.hover}}} {axis.unit}</b>"},
        "showspikes": True,
        "spikemode": "across",
        "spikesnap": "cursor",
        "spikethickness": 1,
        "spikedash": "solid",
        "spikecolor": theme.muted,
    }
