"""Distributions drawn: shares below a time, a line a run, with percentiles and a bound.

It computes nothing: curves were worked out in `distributions`.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go

from analyzer.distributions import Curve
from analyzer.look import Side, Theme, seconds
from analyzer.marks import pen
from analyzer.unchecked import unchecked

HEIGHT_PX = 300
_CLEAR = "rgba(0,0,0,0)"
_SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
_SYMBOL: dict[Side, str] = {"A": "circle", "B": "square", "C": "diamond"}
_TEXT_AT: dict[Side, str] = {"A": "top left", "B": "bottom right", "C": "bottom left"}
_NINES = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999)


def distribution(
    curves: Mapping[Side, Curve],
    title: str,
    names: Mapping[Side, str],
    theme: Theme,
    *,
    bound_s: float | None = None,
    is_tail: bool = False,
) -> go.Figure:
    """Share of values that are at most x, on a logarithmic axis; zeros stand at its left end.

    title: of what is measured; bound_s: a line; is_tail: give 90 %, 99 %, 99.9 % equal room.
    """
    low = _lowest(curves)
    traces: list[dict[str, Any]] = []
    for side, found in curves.items():
        traces.append(_line(side, found, low, names[side], theme, is_tail))
        traces.append(_percentiles(side, found, low, theme, is_tail))
    font = {"size": 11, "color": theme.muted}
    axis = {"gridcolor": theme.grid, "zeroline": False, "tickfont": font, "fixedrange": True}
    layout: dict[str, Any] = {
        "template": theme.template,
        "paper_bgcolor": _CLEAR,
        "plot_bgcolor": _CLEAR,
        "font": {
            "family": '"Source Sans", "Source Sans Pro", Arial, sans-serif',
            "color": theme.text,
            "size": 12,
        },
        "height": HEIGHT_PX,
        "margin": {"l": 58, "r": 40, "t": 42, "b": 44, "pad": 0},
        "hovermode": "closest",
        "dragmode": False,
        "legend": {"orientation": "h", "x": 0, "y": 1, "yref": "container", "yanchor": "top", "itemclick": False, "itemdoubleclick": False},
        "xaxis": {
            **axis,
            "type": "log",
            "range": _x_range(curves, low),
            "dtick": 1,
            "minor": {"dtick": "D1", "showgrid": False, "ticks": "outside", "ticklen": 3, "tickcolor": theme.grid},
            "tickformat": ".1~s",
            "ticksuffix": "s",
            "title": {"text": f"{title} at most", "font": font, "standoff": 6},
        },
        "yaxis": {**axis, **_y_scale(curves, is_tail)},
    }  # fmt: skip
    if bound_s is not None and bound_s > 0:
        layout |= _bound(bound_s, is_tail, theme)
    return unchecked(traces, layout)


def alt_text(curves: Mapping[Side, Curve], title: str, names: Mapping[Side, str]) -> str:
    """The picture in words: percentiles of each run."""
    said = [f"Share of values of {title} by time."]
    for side, found in curves.items():
        if not found.num:
            said.append(f"{side} ({names[side]}): no value.")
            continue
        tops = ", ".join(f"{k} {seconds(found.summary[k])}" for k in _SHARES)
        said.append(f"{side} ({names[side]}): {tops}, {found.num:,} {found.of}.")
    return " ".join(said)


def _lowest(curves: Mapping[Side, Curve]) -> float:
    """Where values of zero are drawn: a little left of the least other one."""
    least = [float(c.x_s[c.x_s > 0].min()) for c in curves.values() if (c.x_s > 0).any()]
    return min(least, default=1e-3) / 2


def _x_range(curves: Mapping[Side, Curve], low: float) -> list[float]:
    """Powers of ten from the least to the greatest value, with room at the right for its label."""
    most = max((float(c.x_s[-1]) for c in curves.values() if c.num), default=low * 10)
    start, end = float(np.log10(low)), float(np.log10(max(most, low * 2)))
    return [start, end + 0.15 * (end - start)]


def _height(share: np.ndarray, is_tail: bool) -> np.ndarray:
    """Place on the y axis: per cent, or so many nines."""
    if not is_tail:
        return share * 100
    return -np.log10(np.maximum(1 - share, 1e-9))


def _line(
    side: Side, found: Curve, low: float, name: str, theme: Theme, is_tail: bool
) -> dict[str, Any]:
    share = np.concatenate([[0.0], found.share])
    x = np.concatenate([[low], np.maximum(found.x_s, low)])
    if is_tail:  # the greatest value is at infinitely many nines
        top = 1 - 1 / max(found.num * 2, 2)
        share = np.minimum(share, top)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": _height(share, is_tail),
        "customdata": share * 100,
        "name": f"{side} · {html.escape(name)}",
        "line": pen(side, "main", theme) | {"width": 2},
        "hovertemplate": f"{side}: %{{customdata:.2f}} % within %{{x:.3~s}}s<extra></extra>",
    }


def _percentiles(
    side: Side, found: Curve, low: float, theme: Theme, is_tail: bool
) -> dict[str, Any]:
    told = [(k, s, found.summary[k]) for k, s in _SHARES.items()]
    known = [(k, s, v) for k, s, v in told if v is not None]
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": [max(v, low) for *_, v in known],
        "y": _height(np.array([s for _, s, _ in known]), is_tail),
        "text": [f"{side} {k} {seconds(v)}" for k, _, v in known],
        "textposition": _TEXT_AT[side],
        "textfont": {"size": 11, "color": theme.text},
        "marker": {
            "symbol": _SYMBOL[side],
            "size": 9,
            "color": theme.side(side),
            "line": {"width": 1.5, "color": theme.ground},
        },
        "hovertemplate": "%{text}<extra></extra>",
        "showlegend": False,
        "cliponaxis": False,
    }


def _y_scale(curves: Mapping[Side, Curve], is_tail: bool) -> dict[str, Any]:
    if not is_tail:
        return {"range": [0, 104], "ticksuffix": " %", "tickvals": [0, 25, 50, 75, 90, 99]}
    most = max((c.num for c in curves.values()), default=0)
    nines = [s for s in _NINES if s < 0.99 or (1 - s) * most >= 1]
    return {
        "range": [0, float(np.log10(max(most * 2, 10))) * 1.02],
        "tickvals": _height(np.array(nines), True),
        "ticktext": [f"{s * 100:g} %" for s in nines],
    }


def _bound(bound_s: float, is_tail: bool, theme: Theme) -> dict[str, Any]:
    """A line at the bound, with its words."""
    return {
        "shapes": [
            {
                "type": "line",
                "xref": "x",
                "yref": "paper",
                "x0": bound_s,
                "x1": bound_s,
                "y0": 0,
                "y1": 1,
                "line": {"color": theme.preempt, "width": 1.2, "dash": "6px,3px"},
            }
        ],
        "annotations": [
            {
                "text": f"your bound {seconds(bound_s)}",
                "showarrow": False,
                "xref": "x",
                "yref": "paper",
                "x": float(np.log10(bound_s)),
                "y": 0.6 if is_tail else 0,  # where the lines are not
                "xanchor": "left",
                "yanchor": "bottom",
                "xshift": 4,
                "font": {"size": 11, "color": theme.preempt_text},
            }
        ],
    }
