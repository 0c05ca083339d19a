"""A fleet's series -> Plotly figures: lines of each rank over each other, or a heat map of all ranks.

It computes nothing: what is drawn was worked out in `fleet_series.py` and `fleet_balance.py`. A rank has
a colour and a dash, since colour is never alone.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from analyzer.evidence_figure import DASHES
from analyzer.fleet_series import FleetSeries
from analyzer.look import Theme, faded, three_digits
from analyzer.preemption_figure import base_layout, plain_axis

MOST_LINES = 8  # ranks in one picture; more are told apart by nobody
MOST_HEAT_RANKS = 512
_UNIFIED = 3  # ranks up to which one box holds all values
_USAGE_PX, _ROW_PX, _GAP_PX, _TOP_PX, _BOTTOM_PX, _LEFT_PX = 150, 86, 40, 62, 48, 52
_LEGEND_PX = 22
_HEAT_COLUMNS = 600


@dataclass(frozen=True)
class Measure:
    """A series as it is drawn. factor: to the unit; total: it is a sum, not a level."""

    key: str
    title: str
    unit: str
    factor: float = 1.0
    total: bool = False


MEASURES = {
    "usage": Measure("usage_max", "KV usage", "% of the rank's pool", 100.0),
    "running": Measure("running", "Running", "requests"),
    "waiting": Measure("waiting_max", "Waiting", "requests"),
    "preemptions": Measure("preemptions", "Preemptions", "times", total=True),
}


@dataclass(frozen=True)
class Extra:
    """A line of all ranks together, in a row of its own. y: (B,)."""

    title: str
    unit: str
    y: np.ndarray


def rank_pens(num: int, theme: Theme) -> list[tuple[str, str]]:
    """(colour, dash) of each of so many ranks."""
    palette = (theme.a, theme.b, theme.ok, theme.swap, theme.preempt, theme.c)
    return [(palette[i % len(palette)], DASHES[i % len(DASHES)]) for i in range(num)]


def lines_figure(
    series: FleetSeries,
    which: Sequence[int],
    keys: Sequence[str],
    extras: Sequence[Extra],
    shown: tuple[float, float],
    theme: Theme,
) -> go.Figure:
    """A row for each measure, in it a line for each rank of `which`, and rows of `extras` below.

    shown: the part of the axis, in seconds. The largest value of a bucket is drawn where a level is.
    """
    rows = [MEASURES[k] for k in keys]
    heights = [_USAGE_PX if r.key == "usage_max" else _ROW_PX for r in rows]
    heights += [_ROW_PX] * len(extras)
    inner = sum(heights) + _GAP_PX * (len(heights) - 1)
    legend = _TOP_PX + _LEGEND_PX * max(
        0, -(-len(which) // 3) - 1
    )  # a phone has room for three
    layout = _layout(inner, legend, len(which), theme)
    edges = series.grid.edges_s
    pens = rank_pens(len(which), theme)
    traces: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    top = inner
    for i, height in enumerate(heights, start=1):
        nth, domain = "" if i == 1 else str(i), ((top - height) / inner, top / inner)
        drawn: list[np.ndarray] = []
        if i <= len(rows):
            measure = rows[i - 1]
            small = measure.unit + (f" in {_width(series)}" if measure.total else "")
            for (colour, dash), rank in zip(pens, which, strict=True):
                y = measure.factor * series.values[measure.key][rank]
                drawn.append(y)
                traces.append(_line(edges, y, f"y{nth}", series.ranks[rank].name, measure.title, measure.unit, colour, dash, i == 1))  # fmt: skip
            title = measure.title
        else:
            extra = extras[i - 1 - len(rows)]
            title, small = extra.title, extra.unit
            drawn.append(extra.y)
            traces.append(_line(edges, extra.y, f"y{nth}", "all ranks", title, extra.unit, theme.text, "solid", False))  # fmt: skip
        layout[f"yaxis{nth}"] = _y_axis(domain, height, drawn, theme, i == 1 and rows[0].key == "usage_max")  # fmt: skip
        notes.append(_title(title, small, domain[1], theme))
        top -= height + _GAP_PX
    if rows and rows[0].key == "usage_max":
        across = {"xref": "paper", "yref": "y", "x0": 0, "x1": 1, "layer": "below"}
        layout["shapes"] = [
            {"type": "rect", "y0": 98, "y1": 100, "fillcolor": faded(theme.preempt, 0.18), "line": {"width": 0}, **across}
        ]  # fmt: skip
    layout["xaxis"] = _x_axis(f"y{'' if len(heights) == 1 else len(heights)}", shown, theme)
    layout["annotations"] = notes
    return go.Figure({"data": traces, "layout": layout})


def _line(
    edges: np.ndarray,
    y: np.ndarray,
    y_axis: str,
    name: str,
    title: str,
    unit: str,
    colour: str,
    dash: str,
    in_legend: bool,
) -> dict[str, Any]:
    """A step line that holds each value to the end of its bucket."""
    said = html.escape(name)
    return {
        "type": "scatter", "mode": "lines", "x": edges, "y": np.append(y, y[-1]).astype(np.float32), "yaxis": y_axis,
        "name": said, "legendgroup": said, "showlegend": in_legend, "connectgaps": False,
        "line": {"color": colour, "width": 1.5, "dash": dash, "shape": "hv"},
        "hovertemplate": f"{title}, {said}: %{{y:,.4~r}} {unit.split(' of ')[0]}<extra></extra>",
    }  # fmt: skip


def heat_figure(
    series: FleetSeries,
    order: Sequence[int],
    key: str,
    shown: tuple[float, float],
    theme: Theme,
) -> go.Figure:
    """Rank by time, coloured by a measure; ranks from top to bottom as in `order`."""
    measure = MEASURES[key]
    values, edges = _thin(
        measure.factor * series.values[measure.key][list(order)], series, measure
    )
    names = [html.escape(series.ranks[i].name) for i in order]
    height = int(np.clip(16 * len(order), 180, 560))
    few = len(order) <= 40
    layout = {
        **base_layout(height + 90, theme),
        "margin": {"l": 110 if few else 60, "r": 10, "t": 34, "b": _BOTTOM_PX, "pad": 2},
        "dragmode": "zoom",
        "xaxis": _x_axis("y", shown, theme) | {"showspikes": False},
        "yaxis": {
            **plain_axis(theme),
            "autorange": "reversed",
            "type": "category",
            "showgrid": False,
            "nticks": min(len(order), 40),
        },
        "annotations": [_title(measure.title, measure.unit, 1.0, theme)],
    }
    data = {
        "type": "heatmap",
        "x": edges,
        "y": names,
        "z": values,
        "zmin": 0,
        "zmax": 100 if key == "usage" else None,
        "colorscale": _scale(theme),
        "hoverongaps": False,
        "colorbar": {"thickness": 10, "tickfont": {"size": 11, "color": theme.muted}, "outlinewidth": 0},
        "hovertemplate": f"%{{y}}, %{{x:,.4~r}} s: %{{z:,.4~r}} {measure.unit.split(' of ')[0]}<extra></extra>",
    }  # fmt: skip
    return go.Figure({"data": [data], "layout": layout})


def _thin(
    values: np.ndarray, series: FleetSeries, measure: Measure
) -> tuple[np.ndarray, np.ndarray]:
    """At most so many columns: the largest value, or the sum, of neighbouring buckets."""
    edges = series.grid.edges_s
    factor = -(-values.shape[1] // _HEAT_COLUMNS)
    if factor <= 1:
        return values.astype(np.float32), edges
    pad = -values.shape[1] % factor
    wide = np.pad(values, ((0, 0), (0, pad)), constant_values=np.nan)
    blocks = wide.reshape(len(values), -1, factor)
    empty = np.isnan(blocks).all(axis=2)
    filled = np.where(np.isnan(blocks), 0.0 if measure.total else -np.inf, blocks)
    thin = filled.sum(axis=2) if measure.total else filled.max(axis=2)
    ends = np.append(edges[:-1][::factor], edges[-1])
    return np.where(empty, np.nan, thin).astype(np.float32), ends


def _scale(theme: Theme) -> list[list[Any]]:
    """From the ground over blue to the colour of preemption, which only what is full reaches."""
    return [[0.0, faded(theme.a, 0.08)], [0.6, theme.a], [0.9, theme.b], [1.0, theme.preempt]]


def alt_lines(
    series: FleetSeries, which: Sequence[int], keys: Sequence[str], extras: Sequence[Extra], shown: tuple[float, float]
) -> str:  # fmt: skip
    """What the lines show, in words: least and greatest value of each rank."""
    said = [f"Lines of {len(which):,} ranks over time, {shown[0]:,.5g} to {shown[1]:,.5g} s."]
    for key in keys:
        measure = MEASURES[key]
        each = [
            f"{series.ranks[i].name} {_span(measure.factor * series.values[measure.key][i], measure)}"
            for i in which
        ]
        said.append(f"{measure.title} ({measure.unit}): {'; '.join(each)}.")
    said += [f"{e.title}: {_span(e.y, None)} {e.unit}." for e in extras]
    return " ".join(said)


def alt_heat(series: FleetSeries, order: Sequence[int], key: str) -> str:
    """What the heat map shows, in words."""
    measure = MEASURES[key]
    values = measure.factor * series.values[measure.key][list(order)]
    if np.isnan(values).all():
        return f"{measure.title} of {len(order):,} ranks over time: not known."
    means = np.nanmean(
        np.where(np.isnan(values).all(axis=1, keepdims=True), 0.0, values), axis=1
    )
    most, least = int(np.argmax(means)), int(np.argmin(means))
    return (
        f"Heat map of {measure.title.lower()} ({measure.unit}), {len(order):,} ranks over time. Highest on average: "
        f"{series.ranks[order[most]].name} with {three_digits(float(means[most]))}; lowest: "
        f"{series.ranks[order[least]].name} with {three_digits(float(means[least]))}."
    )


def _span(values: np.ndarray, measure: Measure | None) -> str:
    known = values[~np.isnan(values)]
    if not len(known):
        return "not known"
    if measure is not None and measure.total:
        return f"{known.sum():,.0f} in all"
    return f"{three_digits(float(known.min()))} to {three_digits(float(known.max()))}"


def _width(series: FleetSeries) -> str:
    width = series.grid.width_s
    return f"{three_digits(width)} s" if width >= 1 else f"{three_digits(width * 1e3)} ms"


# ---- pieces of the layout --------------------------------------------------------------------------


def _layout(inner: int, top_px: int, num: int, theme: Theme) -> dict[str, Any]:
    return {
        **base_layout(inner + top_px + _BOTTOM_PX, theme),
        "margin": {"l": _LEFT_PX, "r": 10, "t": top_px, "b": _BOTTOM_PX, "pad": 0},
        "plot_bgcolor": theme.ground,
        "hovermode": "x unified" if num <= _UNIFIED else "closest",
        "hoversubplots": "axis",
        "dragmode": "zoom",
        "legend": {
            "orientation": "h", "x": 0, "xanchor": "left", "y": 1, "yref": "container", "yanchor": "top",
            "font": {"size": 12.5}, "itemclick": False, "itemdoubleclick": False,
        },
    }  # fmt: skip


def _x_axis(anchor: str, shown: tuple[float, float], theme: Theme) -> dict[str, Any]:
    return {
        "range": list(shown),
        "anchor": anchor,
        "tickformat": ",~r",
        "gridcolor": theme.grid,
        "zeroline": False,
        "tickfont": {"size": 11, "color": theme.muted},
        "title": {
            "text": "Time on the fleet's axis (s)",
            "font": {"size": 12, "color": theme.muted},
            "standoff": 6,
        },
        "unifiedhovertitle": {"text": "<b>%{x:,.3f} s</b>"},
        "showspikes": True,
        "spikemode": "across",
        "spikesnap": "cursor",
        "spikethickness": 1,
        "spikedash": "solid",
        "spikecolor": theme.muted,
    }


def _y_axis(
    domain: tuple[float, float],
    height: int,
    drawn: Sequence[np.ndarray],
    theme: Theme,
    is_usage: bool,
) -> dict[str, Any]:
    axis: dict[str, Any] = {
        **plain_axis(theme),
        "domain": [max(0.0, domain[0]), min(1.0, domain[1])],
        "anchor": "x",
        "rangemode": "tozero",
        "tickformat": ",~r",
        "nticks": 5 if height > 120 else 4,
        "zeroline": True,
        "zerolinecolor": theme.grid,
    }
    if is_usage:
        return axis | {"range": [0, 104], "tickvals": [0, 25, 50, 75, 100], "ticksuffix": " %"}
    tops = [float(np.nanmax(y)) for y in drawn if not np.isnan(y).all()]
    top = max(tops, default=0.0)
    if not tops:
        return axis | {"range": [0, 1], "showticklabels": False}
    if top == 0:
        return axis | {"range": [0, 1], "dtick": 1}
    return axis | ({"dtick": 1} if top < 4 else {})


def _title(text: str, small: str, y: float, theme: Theme) -> dict[str, Any]:
    return {
        "text": f"<b>{text}</b>  <span style='color:{theme.muted}'>{html.escape(small)}</span>",
        "showarrow": False, "font": {"size": 12.5, "color": theme.text}, "align": "left",
        "x": 0, "y": y, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "yshift": 3,
    }  # fmt: skip


CONFIG_STATIC: Mapping[str, Any] = {"displayModeBar": False, "displaylogo": False}
