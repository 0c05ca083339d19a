"""Panels of evidence -> one Plotly figure: rows over each other on one time axis. It computes nothing.

It knows colours and dashes of ranks, where curves are broken, grey silences, numbered moments. Text that
came from a source is made harmless here too, since Plotly reads some markup.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from analyzer.evidence_series import Curve, Drawing, Panel, clock_ms
from analyzer.look import Theme, faded, three_digits

HEIGHTS = {"usage": 150}
FLAT_PX = 26  # of a row that is zero all the time
HEIGHT_PX, GAP_PX, TOP_PX, BOTTOM_PX, LEFT_PX = 78, 38, 60, 49, 50
EVENT_LINE_PX = 15
LEGEND_PX = 22
DASHES = ("solid", "6px,3px", "2px,2px", "9px,3px,2px,3px", "12px,4px", "4px,4px,1px,4px")
FEW = 60  # points of a curve that are marked one by one
MANY = 4  # curves of a panel from which on one is pointed at alone
FULL_FRAC = 0.98
DAY_S, SHORT_S = 86_400.0, 8.0
FAMILY = '"Source Sans", "Source Sans Pro", Arial, sans-serif'
SYMBOLS = ("triangle-down", "circle", "square", "diamond", "x", "star", "cross", "hexagon")


def evidence_figure(drawing: Drawing, theme: Theme) -> go.Figure:
    """All panels on one x axis; moments as numbered lines through all, silences as grey stretches."""
    heights = [_height(p) for p in drawing.panels]
    inner = sum(heights) + GAP_PX * (len(heights) - 1)
    traces: list[dict[str, Any]] = []
    layout: dict[str, Any] = _layout(inner, theme)
    notes: list[dict[str, Any]] = []
    colours = colours_of(drawing, theme)
    names: set[str] = set()
    many = max((len(p.curves) for p in drawing.panels), default=0) >= MANY
    labels = {c.label for p in drawing.panels for c in p.curves if c.label}
    if labels:  # a phone has room for three a line
        layout["margin"]["t"] += LEGEND_PX * -(-len(labels) // 3)
        layout["height"] += LEGEND_PX * -(-len(labels) // 3)
    layout["hovermode"] = "closest" if many else "x unified"
    top = inner
    for i, (panel, height) in enumerate(zip(drawing.panels, heights, strict=True), start=1):
        nth, domain = "" if i == 1 else str(i), ((top - height) / inner, top / inner)
        layout[f"yaxis{nth}"] = _y_axis(panel, domain, height, theme)
        notes.append(_title(panel, domain[1], theme))
        if panel.limit is not None:
            layout["shapes"] += _limit(panel, f"y{nth}", theme)
            notes.append(_limit_label(panel, f"y{nth}", theme))
        if panel.ticks is not None:
            traces += _ticks(panel, drawing, f"y{nth}", theme)
        for curve in panel.curves:
            traces.append(_trace(curve, panel, drawing, f"y{nth}", colours, theme, names))
        top -= height + GAP_PX
    layout["xaxis"] = _x_axis(drawing, len(heights), theme)
    layout["shapes"] += [_silence(s, drawing, theme) for s in drawing.silences]
    layout["shapes"] += [_skip(x, drawing, theme) for pair in drawing.skips for x in pair]
    for shape, note in _moments(drawing, theme):
        layout["shapes"].append(shape)
        if note:
            notes.append(note)
    layout["annotations"] = notes
    return go.Figure({"data": traces, "layout": layout})


def colours_of(drawing: Drawing, theme: Theme) -> Mapping[int | None, tuple[str, str]]:
    """Rank -> colour and dash; one rank has the first colour, solid."""
    palette = (theme.a, theme.b, theme.ok, theme.swap, theme.preempt, theme.grey)
    found: dict[int | None, tuple[str, str]] = {None: (theme.a, "solid")}
    for i, rank in enumerate(drawing.shown):
        found[rank] = (palette[i % len(palette)], DASHES[i % len(DASHES)])
    return found


def alt_text(drawing: Drawing) -> str:
    """What the picture shows, in words: least and greatest value of each curve, silences, moments."""
    part = ", a part of it" if drawing.part else ""
    said = [f"Series of the evidence over {_axis_title(drawing).lower()}{part}."]
    for panel in drawing.panels:
        unit = f" {panel.unit}" if panel.unit else ""
        parts = [
            f"{c.label + ': ' if c.label else ''}{_least_to_greatest(c, unit)}"
            for c in panel.curves
        ]
        parts += [panel.note] if panel.ticks is not None else []
        said.append(f"{panel.title}: {'; '.join(parts)}.")
    if drawing.silences:
        said.append(f"{len(drawing.silences)} stretches without samples are grey.")
    numbers = sorted({m.number for m in drawing.moments if m.number is not None})
    if numbers:
        said.append(f"Marked: moments of proofs {', '.join(map(str, numbers))}.")
    return " ".join(said)


def _least_to_greatest(curve: Curve, unit: str) -> str:
    if not np.isfinite(curve.y).any():
        return "no value in this part"
    low, high = (three_digits(float(f(curve.y))) for f in (np.nanmin, np.nanmax))
    return f"{low} to {high}{unit}"


def fit_figure(
    table: Mapping[str, np.ndarray], names: Sequence[tuple[str, str, str, float]], theme: Theme
) -> go.Figure:
    """Observed (solid, blue) against simulated (dashed, orange) series, a row each. table: t_s and, for each
    name, NAME_observed and NAME_simulated; names: (name, title, unit, factor)."""
    inner = len(names) * HEIGHT_PX + GAP_PX * (len(names) - 1)
    layout: dict[str, Any] = _layout(inner, theme) | {"hovermode": "x unified"}
    traces: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    top = inner
    for i, (name, title, unit, factor) in enumerate(names, start=1):
        nth, domain = "" if i == 1 else str(i), ((top - HEIGHT_PX) / inner, top / inner)
        panel = Panel(name, title, unit)
        layout[f"yaxis{nth}"] = _y_axis(panel, domain, HEIGHT_PX, theme)
        notes.append(_title(panel, domain[1], theme))
        for which, colour, dash in (("observed", theme.a, "solid"), ("simulated", theme.b, "5px,2px")):  # fmt: skip
            traces.append(
                {
                    "type": "scatter", "mode": "lines", "x": table["t_s"], "y": factor * table[f"{name}_{which}"],
                    "yaxis": f"y{nth}", "name": which, "legendgroup": which, "showlegend": i == 1,
                    "line": {"color": colour, "width": 1.6, "dash": dash},
                    "hovertemplate": f"{title}, {which}: %{{y:,.4~r}} {unit}<extra></extra>",
                }
            )  # fmt: skip
        top -= HEIGHT_PX + GAP_PX
    font = {"size": 11, "color": theme.muted}
    layout["xaxis"] = {
        "anchor": f"y{'' if len(names) == 1 else len(names)}", "gridcolor": theme.grid, "zeroline": False,
        "tickfont": font, "tickformat": ",~r", "title": {"text": "Time of the samples (s)", "font": font, "standoff": 6},
    }  # fmt: skip
    layout["annotations"] = notes
    return go.Figure({"data": traces, "layout": layout})


# ---- pieces -----------------------------------------------------------------------------------


def _height(panel: Panel) -> int:
    if panel.ticks is not None:
        return 20 + EVENT_LINE_PX * len(panel.ticks)
    if all(not c.top for c in panel.curves):
        return FLAT_PX
    return HEIGHTS.get(panel.key, HEIGHT_PX)


def _layout(inner: int, theme: Theme) -> dict[str, Any]:
    clear = "rgba(0,0,0,0)"
    return {
        "template": theme.template,
        "paper_bgcolor": clear,
        "plot_bgcolor": theme.ground,
        "font": {"family": FAMILY, "color": theme.text, "size": 12},
        "height": inner + TOP_PX + BOTTOM_PX,
        "margin": {"l": LEFT_PX, "r": 12, "t": TOP_PX, "b": BOTTOM_PX, "pad": 0},
        "hoversubplots": "axis",
        "hoverdistance": 40,
        "hoverlabel": {
            "font": {"size": 11, "color": theme.text},
            "bgcolor": faded(theme.ground, 0.86),
            "bordercolor": theme.grid,
            "namelength": -1,
        },
        "dragmode": "zoom",
        "legend": {
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "y": 1,
            "yref": "container",
            "yanchor": "top",
            "font": {"size": 12},
            "itemclick": False,
            "itemdoubleclick": False,
        },
        "modebar": {"bgcolor": clear, "color": theme.muted, "activecolor": theme.text},
        "shapes": [],
    }


def _y_axis(
    panel: Panel, domain: tuple[float, float], height: int, theme: Theme
) -> dict[str, Any]:
    axis: dict[str, Any] = {
        "domain": [max(0.0, domain[0]), min(1.0, domain[1])],
        "anchor": "x",
        "fixedrange": True,
        "rangemode": "tozero",
        "tickformat": ",~r",
        "nticks": 5 if height > 120 else 4,
        "gridcolor": theme.grid,
        "zeroline": True,
        "zerolinecolor": theme.grid,
        "tickfont": {"size": 11, "color": theme.muted},
    }
    if panel.ticks is not None:
        rows = len(panel.ticks)
        return axis | {"range": [-0.7, rows - 0.3], "showticklabels": False, "showgrid": False, "zeroline": False}  # fmt: skip
    tops = [c.top for c in panel.curves]
    top = max(tops, default=1.0)
    if top >= 100_000:
        axis["tickformat"] = ".3~s"
    if tops and panel.unit in ("requests", "") and 0 < top < 4:
        axis["dtick"] = 1
    if tops and top == 0:
        axis |= {"range": [0, 1], "dtick": 1}
    if panel.y_max is not None:
        axis |= {"range": [0, panel.y_max]}
    if panel.unit == "%":
        axis |= {"tickvals": [0, 25, 50, 75, 100]}
    return axis


def _title(panel: Panel, y: float, theme: Theme) -> dict[str, Any]:
    small = html.escape(" · ".join(filter(None, (panel.unit, panel.note.strip(" ·")))))
    return {
        "text": f"<b>{panel.title}</b>  <span style='color:{theme.muted}'>{small}</span>",
        "showarrow": False, "font": {"size": 12.5, "color": theme.text}, "align": "left",
        "x": 0, "y": y, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "yshift": 3,
    }  # fmt: skip


def _limit(panel: Panel, y_axis: str, theme: Theme) -> list[dict[str, Any]]:
    value, _ = panel.limit or (0.0, "")
    across = {"xref": "paper", "yref": y_axis, "x0": 0, "x1": 1}
    line = {"color": theme.preempt, "width": 1, "dash": "8px,4px"}
    shapes: list[dict[str, Any]] = [{"type": "line", "y0": value, "y1": value, "line": line, **across}]  # fmt: skip
    if panel.key == "usage":
        fill = faded(theme.preempt, 0.16)
        shapes.append(
            {"type": "rect", "y0": FULL_FRAC * value, "y1": value, "fillcolor": fill, "line": {"width": 0}, "layer": "below", **across}
        )  # fmt: skip
    return shapes


def _limit_label(panel: Panel, y_axis: str, theme: Theme) -> dict[str, Any]:
    value, label = panel.limit or (0.0, "")
    return {
        "text": html.escape(label), "showarrow": False, "font": {"size": 10.5, "color": theme.preempt_text},
        "xref": "paper", "yref": y_axis, "x": 1, "y": value, "xanchor": "right", "yanchor": "bottom",
    }  # fmt: skip


def _at(drawing: Drawing, x: Any) -> Any:
    """x as the axis takes it."""
    return clock_ms(drawing, x) if drawing.kind == "clock" else x


def _trace(
    curve: Curve,
    panel: Panel,
    drawing: Drawing,
    y_axis: str,
    colours: Mapping[int | None, tuple[str, str]],
    theme: Theme,
    names: set[str],
) -> dict[str, Any]:
    colour, dash = colours.get(curve.rank, (theme.grey, "solid"))
    if curve.second:
        colour, dash = (theme.swap if len(panel.curves) < MANY else colour), "2px,2px"
    elif curve.rank is None and panel.curves.index(curve) > 0:
        colour, dash = theme.b, "6px,3px"
    few = int(np.isfinite(curve.y).sum()) <= FEW
    label = html.escape(curve.label)
    name = label or panel.title
    said = f"{panel.title}{', ' + label if label else ''}"
    trace = {
        "type": "scatter",
        "mode": "lines+markers" if few else "lines",
        "x": _at(drawing, curve.x),
        "y": curve.y,
        "yaxis": y_axis,
        "name": name,
        "connectgaps": False,
        "line": {"color": colour, "width": 1.7, "dash": dash},
        "marker": {"size": 4.5, "symbol": "circle-open" if curve.derived else "circle", "color": colour},
        "hovertemplate": f"{said} %{{y:,.4~r}} {panel.unit}<extra></extra>",
        "legendgroup": name,
        "showlegend": bool(label) and name not in names,
    }  # fmt: skip
    names.add(name)
    return trace


def _ticks(panel: Panel, drawing: Drawing, y_axis: str, theme: Theme) -> list[dict[str, Any]]:
    traces = []
    for row, (kind, at) in enumerate(reversed(list((panel.ticks or {}).items()))):
        said = kind.replace("_", " ")
        traces.append(
            {
                "type": "scatter", "mode": "markers", "x": _at(drawing, at), "y": np.full(len(at), float(row)),
                "yaxis": y_axis, "name": said, "showlegend": False,
                "marker": {"size": 7, "symbol": SYMBOLS[row % len(SYMBOLS)], "color": theme.preempt},
                "hovertemplate": f"{said}<extra></extra>",
            }
        )  # fmt: skip
    return traces


def _silence(silence: tuple[float, float], drawing: Drawing, theme: Theme) -> dict[str, Any]:
    start, end = _at(drawing, np.array(silence))
    return {
        "type": "rect", "xref": "x", "yref": "paper", "x0": start, "x1": end, "y0": 0, "y1": 1,
        "fillcolor": faded(theme.grey, 0.16), "line": {"width": 0}, "layer": "below",
    }  # fmt: skip


def _skip(x: float, drawing: Drawing, theme: Theme) -> dict[str, Any]:
    """One of the two lines between which the axis leaves something out."""
    line = {"color": theme.muted, "width": 1.5}
    at = float(_at(drawing, np.array([x]))[0])
    return {"type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line}  # fmt: skip


def _moments(
    drawing: Drawing, theme: Theme
) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """A thin line through all panels for each moment; its number above, numbers of one place together."""
    by_place: dict[float, list[str]] = {}
    start, end = drawing.view
    for moment in drawing.moments:
        if not start <= moment.x <= end:
            continue
        by_place.setdefault(moment.x, []).append(moment.label)
    width = end - start - sum(max(0.0, min(b, end) - max(a, start)) for a, b in drawing.skips)
    found: list[tuple[dict[str, Any], dict[str, Any] | None]] = []
    ends = [-np.inf, -np.inf]  # where the labels of both levels end
    for x, labels in sorted(by_place.items()):
        text = ", ".join(dict.fromkeys(labels))
        at = float(_at(drawing, np.array([x]))[0])
        is_wall = any(not label.isdigit() for label in labels)
        colour = theme.preempt if is_wall else theme.muted
        line = {"color": colour, "width": 1, "dash": "dot"}
        shape = {"type": "line", "xref": "x", "yref": "paper", "x0": at, "x1": at, "y0": 0, "y1": 1, "line": line, "opacity": 0.75}  # fmt: skip
        half = width * (0.006 + 0.0042 * len(text))
        level = next((i for i, end in enumerate(ends) if x - half > end), None)
        note = None
        if level is not None:
            ends[level] = x + half
            near = (x - start) / (end - start)
            note = {
                "text": html.escape(text), "showarrow": False, "x": at,
                "xanchor": "right" if near > 0.9 else "left" if near < 0.1 else "center", "y": 1, "xref": "x", "yref": "paper",
                "yanchor": "bottom", "yshift": 23 + 15 * level, "borderpad": 1.5, "bordercolor": colour,
                "bgcolor": theme.ground, "font": {"size": 10.5, "color": theme.preempt_text if is_wall else theme.text},
            }  # fmt: skip
        found.append((shape, note))
    return found


def _axis_title(drawing: Drawing) -> str:
    if drawing.kind == "order":
        return "Sample, in the order of the source (it gives no times)"
    return "Time as the source writes it" if drawing.kind == "clock" else "Time (s)"


def _x_axis(drawing: Drawing, num: int, theme: Theme) -> dict[str, Any]:
    font = {"size": 11, "color": theme.muted}
    low, high = _at(drawing, np.array(drawing.view))
    axis: dict[str, Any] = {
        "anchor": f"y{'' if num == 1 else num}",
        "range": [float(low), float(high)],
        "gridcolor": theme.grid,
        "zeroline": False,
        "tickfont": font,
        "nticks": 9,
        "ticklabelstandoff": 5,  # the lowest zero stands beside the first time
        "title": {"text": _axis_title(drawing), "font": font, "standoff": 6},
        "showspikes": True,
        "spikemode": "across",
        "spikesnap": "cursor",
        "spikethickness": 1,
        "spikedash": "solid",
        "spikecolor": theme.muted,
    }
    if drawing.kind != "clock":
        return axis | {"tickformat": ",~r"}
    if drawing.skips:
        cut = [clock_ms(drawing, np.array(pair)) for pair in drawing.skips]
        axis["rangebreaks"] = [{"values": [float(a)], "dvalue": float(b - a)} for a, b in cut]
    length_s = drawing.view[1] - drawing.view[0]
    long, short = drawing.has_date and length_s > DAY_S, length_s < SHORT_S
    ticks = "%m-%d %H:%M" if long else "%H:%M:%S.%1f" if short else "%H:%M:%S"
    axis |= {"type": "date", "tickformat": ticks, "nticks": 5 if long or short else 7}
    axis["hoverformat"] = "%m-%d %H:%M:%S" if drawing.has_date else "%H:%M:%S"
    return axis
