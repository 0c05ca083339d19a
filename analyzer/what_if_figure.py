"""A what-if drawn: a figure along one lever, and what a device's memory goes to, before and after.

It computes nothing: outcomes and sums were worked out before.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from analyzer.look import Side, Theme, faded, gib
from analyzer.marks import pen
from analyzer.unchecked import unchecked
from analyzer.what_if import (
    FIGURES,
    Curve,
    End,
    end_of_preemption,
    figure,
    is_number,
    say,
    say_value,
)

HEIGHT_PX = 330
MEMORY_HEIGHT_PX = 172
LOG_SPAN = (
    12.0  # a lever that spans more than so many times its least value has a logarithmic axis
)
_CLEAR = "rgba(0,0,0,0)"
_FONT = '"Source Sans", "Source Sans Pro", Arial, sans-serif'
_SYMBOL: dict[Side, str] = {"A": "circle", "B": "square", "C": "diamond"}
_SIDES: tuple[Side, ...] = ("A", "B", "C")
# figure -> (factor from its unit to that of the axis, unit)
_UNITS = {"ttft_s": (1.0, "s"), "e2e_s": (1.0, "s"), "tpot_s": (1e3, "ms")}


# ---- the curve -----------------------------------------------------------------------------------


def curve_figure(
    curve: Curve, metric: str, label: str, theme: Theme, *, base_points: Mapping[str, Any]
) -> go.Figure:
    """The figure against the lever's values, a line a policy; the operating point and the base marked.

    label: the lever and its unit; base_points: policy -> the base's Outcome, drawn at the base's value.
    """
    factor, unit = _unit(metric)
    places = _Places(curve)
    traces: list[dict[str, Any]] = []
    top = 0.0
    for side, (policy, points) in zip(_SIDES, curve.points.items(), strict=False):
        known = [
            (v, y * factor)
            for v in curve.values
            if v in points and (y := figure(points[v], metric)) is not None
        ]
        top = max([top, *(y for _, y in known)])
        traces.append(_line(side, policy, known, places, unit, theme))
        traces.append(_now(side, policy, known, curve, places, theme))
        base = base_points.get(policy)
        at_base = None if base is None else figure(base, metric)
        if at_base is not None and curve.base is not None:
            top = max(top, at_base * factor)
            traces.append(_base(side, policy, at_base * factor, curve, places, theme))
    title = FIGURES[metric][0]
    layout = _layout(theme, HEIGHT_PX) | {
        "hovermode": "closest",
        "margin": {"l": 64, "r": 40, "t": 68, "b": 48, "pad": 0},
        "xaxis": _axis(theme) | places.axis | {"title": {"text": html.escape(label), "standoff": 6}},
        "yaxis": _axis(theme)
        | {
            "title": {"text": f"{title}{f' ({unit})' if unit else ''}", "standoff": 4},
            "range": [-0.04 * (top or 1), 1.12 * (top or 1)],
            "tickformat": ",.3~g" if top < 1_000 else ",.0f",
        },
    }  # fmt: skip
    marks = _marks(curve, places, theme)
    return unchecked(traces, layout | marks)


def curve_alt(curve: Curve, metric: str, label: str) -> str:
    """The curve in words: each policy's values, and where preemption ends."""
    said = [f"{FIGURES[metric][0]} against {label}; now {say_value(curve.now)}, base {say_value(curve.base)}."]  # fmt: skip
    for policy, points in curve.points.items():
        told = [f"{say_value(v)}: {say(metric, figure(points[v], metric))}" for v in curve.values if v in points]  # fmt: skip
        said.append(f"{policy}: {'; '.join(told) or 'nothing yet'}.")
        if end := end_of_preemption(points):
            said.append(say_end(policy, end))
    return " ".join(said)


def say_end(policy: str, end: End) -> str:
    """'recompute: none of the values tried from 2,948 on has any preemption (2,930 still has some).'

    Between those values it is not known: preemption does not fall evenly along a lever."""
    calm, pressed = (say_value(_plain(v)) for v in (end.calm, end.pressed))
    way = f"from {calm} on" if end.upward else f"up to {calm}"
    return f"{policy}: none of the values tried {way} has any preemption ({pressed} still has some)."


def _plain(value: float) -> float | int:
    return int(value) if float(value).is_integer() else value


@dataclass(frozen=True)
class _Places:
    """Where values of a lever stand on the x axis: numbers as they are, choices in order."""

    curve: Curve

    @property
    def is_numeric(self) -> bool:
        return all(is_number(v) for v in self.curve.values) and bool(self.curve.values)

    @property
    def is_log(self) -> bool:
        values = self.curve.values
        return self.is_numeric and min(values) > 0 and max(values) > LOG_SPAN * min(values)

    @property
    def _span(self) -> float:
        return float(max(self.curve.values) - min(self.curve.values))

    def at(self, value: Any) -> Any:
        return value if self.is_numeric else say_value(value)

    def on_axis(self, value: Any) -> Any:
        """For shapes and annotations, which a logarithmic axis takes as exponents."""
        if not self.is_numeric:
            return self.curve.values.index(value) if value in self.curve.values else None
        if not self.is_log:
            return value
        return math.log10(value) if value > 0 else None

    @property
    def axis(self) -> dict[str, Any]:
        if not self.is_numeric:
            order = [say_value(v) for v in self.curve.values]
            return {"type": "category", "categoryorder": "array", "categoryarray": order}
        if not self.is_log:
            whole = all(isinstance(v, int) for v in self.curve.values)
            return {"tickformat": ",~g"} | ({"dtick": 1} if whole and self._span <= 10 else {})
        values = self.curve.values
        ticks = [
            v for i, v in enumerate(values) if i in (0, len(values) - 1) or _apart(values, i)
        ]
        return {"type": "log", "tickvals": ticks, "ticktext": [say_value(v) for v in ticks]}  # fmt: skip


def _apart(values: Sequence[Any], i: int) -> bool:
    """Whether a value is far enough from the one before it, and from the last, to have a label."""
    return values[i] / values[i - 1] > 1.4 and values[-1] / values[i] > 1.4


def _unit(metric: str) -> tuple[float, str]:
    name = metric.split()[0]
    if name.endswith("_frac"):
        return 100.0, "%"
    if name in _UNITS:
        return _UNITS[name]
    return 1.0, {"goodput_rps": "/s", "output_tokens_per_s": "/s"}.get(name, "")


def _line(
    side: Side,
    policy: str,
    known: Sequence[tuple[Any, float]],
    places: _Places,
    unit: str,
    theme: Theme,
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines+markers" if places.is_numeric else "markers",
        "x": [places.at(v) for v, _ in known],
        "y": [y for _, y in known],
        "name": f"{side} · {html.escape(policy)}",
        "line": pen(side, "main", theme) | {"width": 2, "shape": "linear"},
        "marker": {"symbol": _SYMBOL[side], "size": 7, "color": theme.side(side)},
        "hovertemplate": f"{html.escape(policy)}<br>%{{x}}: %{{y:,.4~g}} {unit}<extra></extra>",
    }


def _now(
    side: Side,
    policy: str,
    known: Sequence[tuple[Any, float]],
    curve: Curve,
    places: _Places,
    theme: Theme,
) -> dict[str, Any]:
    """The operating point: larger, ringed."""
    here = [(v, y) for v, y in known if v == curve.now]
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [places.at(v) for v, _ in here],
        "y": [y for _, y in here],
        "showlegend": False,
        "hoverinfo": "skip",
        "cliponaxis": False,
        "marker": {
            "symbol": _SYMBOL[side],
            "size": 13,
            "color": theme.side(side),
            "line": {"width": 2.5, "color": theme.text},
        },
    }


def _base(
    side: Side, policy: str, y: float, curve: Curve, places: _Places, theme: Theme
) -> dict[str, Any]:
    """The base, with none of the changes: hollow."""
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [places.at(curve.base)],
        "y": [y],
        "showlegend": False,
        "cliponaxis": False,
        "hovertemplate": f"base, {html.escape(policy)}: %{{y:,.4~g}}<extra></extra>",
        "marker": {
            "symbol": f"{_SYMBOL[side]}-open",
            "size": 11,
            "color": theme.side(side),
            "line": {"width": 2},
        },
    }


def _marks(curve: Curve, places: _Places, theme: Theme) -> dict[str, Any]:
    """Lines at the operating point and the base, and where preemption ends."""
    shapes, notes = [], []
    told = [("now", curve.now, theme.text, "solid")]
    if curve.base != curve.now:
        told.append(("base", curve.base, theme.muted, "dot"))
    for word, value, colour, dash in told:
        x = None if value is None else places.on_axis(value)
        if x is not None:
            shapes.append(_upright(x, colour, dash))
            note = _note(f"{word} {say_value(value)}", x, 1.0, "bottom", colour)
            notes.append(note | {"yshift": 13 if word == "base" else 0})
    if places.is_numeric:
        ends = [(s, end_of_preemption(p)) for s, p in zip(_SIDES, curve.points.values(), strict=False)]  # fmt: skip
        for row, (side, end) in enumerate((s, e) for s, e in ends if e is not None):
            x = places.on_axis(end.calm)
            shapes.append(_upright(x, theme.side(side), "dash"))
            note = _note(
                f"{side}: none tried {'from' if end.upward else 'up to'} {say_value(_plain(end.calm))} preempts",
                x, 0.94 - 0.09 * row, "top", theme.text,
            )  # fmt: skip
            notes.append(
                note
                | {
                    "xanchor": "right" if _is_right(x, places) else "left",
                    "bgcolor": theme.ground,
                }
            )
    return {"shapes": shapes, "annotations": notes}


def _is_right(x: float, places: _Places) -> bool:
    ends = [places.on_axis(v) for v in (places.curve.values[0], places.curve.values[-1])]
    return bool(x > (ends[0] + ends[1]) / 2)


def _upright(x: Any, colour: str, dash: str) -> dict[str, Any]:
    return {
        "type": "line", "xref": "x", "yref": "paper", "x0": x, "x1": x, "y0": 0, "y1": 1, "layer": "below",
        "line": {"color": colour, "width": 1.2, "dash": dash},
    }  # fmt: skip


def _note(text: str, x: Any, y: float, anchor: str, colour: str) -> dict[str, Any]:
    return {
        "text": html.escape(text), "showarrow": False, "xref": "x", "yref": "paper", "x": x, "y": y,
        "yanchor": anchor, "font": {"size": 11, "color": colour},
    }  # fmt: skip


# ---- memory --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Segment:
    """A part of a device's memory. opacity: of its grey; None: the KV pool, in its own colour."""

    name: str
    num_bytes: float
    opacity: float | None


def memory_figure(bars: Mapping[str, Sequence[Segment]], theme: Theme) -> go.Figure:
    """Stacked bars, the first on top, each a device's memory in GiB."""
    names = list(bars)
    traces = []
    for i, segment in enumerate(next(iter(bars.values()))):
        sizes = [of[i].num_bytes / 2**30 for of in bars.values()]
        is_kv = segment.opacity is None
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "y": names,
                "x": sizes,
                "name": segment.name,
                "text": [gib(of[i].num_bytes) for of in bars.values()],
                "textposition": "inside",
                "insidetextanchor": "middle",
                "constraintext": "inside",
                "textfont": {"size": 12, "color": theme.on_primary if is_kv else theme.text},
                "marker": {
                    "color": theme.a if is_kv else faded(theme.grey, segment.opacity or 0.0),
                    "line": {"color": theme.ground, "width": 1},
                    "pattern": {"shape": "" if is_kv or segment.opacity else "/", "fgcolor": theme.grey, "size": 5},
                },
                "hovertemplate": f"%{{y}}: {segment.name} %{{text}}<extra></extra>",
            }
        )  # fmt: skip
    layout = _layout(theme, MEMORY_HEIGHT_PX) | {
        "barmode": "stack",
        "bargap": 0.28,
        "margin": {"l": 48, "r": 16, "t": 44, "b": 36, "pad": 4},
        "xaxis": _axis(theme) | {"ticksuffix": " GiB", "rangemode": "tozero"},
        "yaxis": _axis(theme) | {"autorange": "reversed", "showgrid": False},
    }
    return unchecked(traces, layout)


def memory_alt(bars: Mapping[str, Sequence[Segment]]) -> str:
    """The bars in words."""
    return " ".join(
        f"{name}: {', '.join(f'{s.name} {gib(s.num_bytes)}' for s in of)}."
        for name, of in bars.items()
    )


def _layout(theme: Theme, height_px: int) -> dict[str, Any]:
    return {
        "template": theme.template,
        "paper_bgcolor": _CLEAR,
        "plot_bgcolor": _CLEAR,
        "font": {"family": _FONT, "color": theme.text, "size": 12},
        "height": height_px,
        "dragmode": False,
        "legend": {
            "orientation": "h", "x": 0, "y": 1, "yref": "container", "yanchor": "top",
            "itemclick": False, "itemdoubleclick": False, "traceorder": "normal",
        },
    }  # fmt: skip


def _axis(theme: Theme) -> dict[str, Any]:
    font = {"size": 11, "color": theme.muted}
    return {
        "gridcolor": theme.grid,
        "zeroline": False,
        "tickfont": font,
        "fixedrange": True,
        "automargin": False,
    }
