"""Pictures of a sweep: a figure over two settings, throughput against a latency, curves over one setting.

It draws what `sweep_table` summed up, and computes nothing. Names and values come from files: they are
never markup.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from analyzer.look import Theme, faded, seconds, three_digits
from analyzer.preemption_figure import base_layout, plain_axis
from analyzer.sweep_table import Curve, Front, Heat
from analyzer.words import LABELS
from traces.sweep_schema import FIGURE

MAX_LINES = 7
LOG_FROM = 30.0  # times that differ so much are drawn on a logarithmic scale
MAX_WRITTEN = 150  # cells of a heat map with their value in them
_ROW_PX = 38
_TEXT = 24  # characters of a value on an axis
_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star")
_DASHES = ("solid", "5px,2px", "7px,2px,1px,2px", "2px,2px", "10px,3px", "1px,3px", "6px,2px,2px,2px")  # fmt: skip
SETTINGS = {
    "trace": "Trace",
    "kv_tokens": "KV pool (tokens)",
    "num_gpu_blocks": "KV pool (blocks)",
    "gpu_memory_utilization": "GPU memory utilisation",
    "block_size": "Block size (tokens)",
    "preemption_mode": "Preemption",
    "host_gib": "Host memory (GiB)",
    "rate_scale": "Arrival rate (×)",
    "window": "Window (s)",
    "max_requests": "Requests",
    "tensor_parallel_size": "Tensor parallel size",
    "kv_cache_dtype": "KV type",
    "weight_dtype": "Weight type",
}


# ---- words -------------------------------------------------------------------------------------------


def setting_label(name: str) -> str:
    """A setting as people read it: 'KV pool (tokens)', 'Max num seqs'."""
    if name in SETTINGS:
        return SETTINGS[name]
    words = name.replace("_", " ").strip()[:60]
    return f"{words[:1].upper()}{words[1:]}"


def level_label(value: Any) -> str:
    """A value of a setting: '24,000', '0.92', 'on', 'default'."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.6g}"
    text = " ".join(str(value).split())
    return text if len(text) <= _TEXT else f"{text[: _TEXT - 1]}…"


def figure_label(name: str) -> str:
    return FIGURE[name].label if name in FIGURE else LABELS.get(name, name)


def figure_value(name: str, value: float | None) -> str:
    """A figure with its unit: '15.4 s', '1.35 %', '298', '—' for None."""
    if value is None or not math.isfinite(value):
        return "—"
    if name.endswith("_per_s"):
        return f"{three_digits(value)} /s"
    if name.endswith("_s"):
        return seconds(value)
    if name.endswith("_frac"):
        return f"{three_digits(value * 100)} %"
    return f"{value:,.0f}" if float(value).is_integer() else three_digits(value)


def _axis_unit(name: str) -> tuple[str, float]:
    """(unit on the axis, what values are multiplied by)."""
    if name.endswith("_frac"):
        return "%", 100.0
    if name.endswith("_s") and not name.endswith("_per_s"):
        return "s", 1.0
    return ("/s" if name.endswith("_per_s") else ""), 1.0


def _axis_title(name: str) -> str:
    unit, _ = _axis_unit(name)
    label = figure_label(name)
    return label if not unit or "per second" in label.lower() else f"{label} ({unit})"


def _title(text: str, theme: Theme) -> dict[str, Any]:
    font = {"size": 12, "color": theme.muted}
    return {"text": html.escape(text), "font": font, "standoff": 6}


# ---- a figure over two settings ----------------------------------------------------------------------


def heat_map(found: Heat, x: str, y: str, figure: str, theme: Theme) -> go.Figure:
    """A field for each pair of values, the figure written in it; why not where nothing ran."""
    unit, factor = _axis_unit(figure)
    xs, ys = ([html.escape(level_label(v)) for v in levels] for levels in (found.x, found.y))
    z, bar = _colours([[None if v is None else v * factor for v in row] for row in found.values], figure)  # fmt: skip
    written = len(xs) * len(ys) <= MAX_WRITTEN
    texts = [[figure_value(figure, v) if v is not None else "" for v in row] for row in found.values]  # fmt: skip
    data = {
        "type": "heatmap",
        "z": z,
        "x": list(range(len(xs))),
        "y": list(range(len(ys))),
        "text": texts,
        "texttemplate": "%{text}" if written else "",
        "textfont": {"size": 11.5},
        "customdata": [[f"{b}, {a}" for a in xs] for b in ys],
        "hovertemplate": f"%{{customdata}}: {html.escape(figure_label(figure))} %{{text}}<extra></extra>",
        "hoverongaps": False,
        "colorscale": "Cividis",
        "reversescale": FIGURE[figure].better == "less",
        "xgap": 2,
        "ygap": 2,
        "colorbar": {"thickness": 12, "len": 1, "ticksuffix": f" {unit}".rstrip(), "tickformat": ",~r", "nticks": 5,
                     "tickfont": {"size": 11, "color": theme.muted}, "outlinewidth": 0, **bar},
    }  # fmt: skip
    notes = [
        {"x": i, "y": j, "text": word, "showarrow": False, "font": {"size": 11, "color": theme.muted}}
        for j, row in enumerate(found.words)
        for i, word in enumerate(row)
        if word and written
    ]  # fmt: skip
    left = 26 + 6.4 * max((min(len(html.unescape(t)), _TEXT) for t in ys), default=4)
    layout = {
        **base_layout(62 + _ROW_PX * max(len(ys), 2), theme),
        "margin": {"l": min(left + 22, 190), "r": 10, "t": 8, "b": 52, "pad": 2},
        "xaxis": {**_levels_axis(xs, theme), "title": _title(setting_label(x), theme), "range": [-0.5, len(xs) - 0.5]},
        "yaxis": {**_levels_axis(ys, theme), "title": _title(setting_label(y), theme), "range": [-0.5, len(ys) - 0.5]},
        "annotations": notes,
    }  # fmt: skip
    return go.Figure({"data": [data], "layout": layout})


def _colours(
    values: list[list[float | None]], figure: str
) -> tuple[list[list[float | None]], dict[str, Any]]:
    """(what fields are coloured by, ticks of the bar): logarithms, where times differ LOG_FROM-fold."""
    known = [v for row in values for v in row if v is not None]
    if not _is_log(figure, known):
        return values, {}
    low, high = math.log10(min(known)), math.log10(max(known))
    ticks = [m * 10.0**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 3)]
    ticks = [t for t in ticks if low <= math.log10(t) <= high]
    bar = {
        "tickvals": [math.log10(t) for t in ticks],
        "ticktext": [figure_value(figure, t) for t in ticks],
        "ticksuffix": "",
    }
    return [[None if v is None else math.log10(v) for v in row] for row in values], bar


def _is_log(figure: str, values: Sequence[float]) -> bool:
    """Whether values are times that differ too much for a scale from 0."""
    is_time = figure.endswith("_s") and not figure.endswith("_per_s")
    return bool(is_time and values and min(values) > 0 and max(values) > LOG_FROM * min(values))


def _levels_axis(texts: Sequence[str], theme: Theme) -> dict[str, Any]:
    """Values side by side; of many every so-manieth is written."""
    every = max(1, math.ceil(len(texts) / 24))
    places = list(range(0, len(texts), every))
    return {
        **plain_axis(theme),
        "tickmode": "array",
        "tickvals": places,
        "ticktext": [texts[i] for i in places],
        "showgrid": False,
        "automargin": False,
    }


def alt_heat(found: Heat, x: str, y: str, figure: str) -> str:
    """The heat map in words: its axes, and where the figure is least and greatest."""
    fields = [
        (v, found.x[i], found.y[j])
        for j, row in enumerate(found.values)
        for i, v in enumerate(row)
        if v is not None
    ]
    head = f"{figure_label(figure)} over {setting_label(x)} ({len(found.x)} values) and {setting_label(y)} ({len(found.y)} values), medians over up to {found.num_seeds} seeds."
    if not fields:
        return f"{head} Nothing ran."
    least, most = min(fields, key=lambda f: f[0]), max(fields, key=lambda f: f[0])
    said = [
        f"{word} {figure_value(figure, v)} at {level_label(a)} and {level_label(b)}"
        for word, (v, a, b) in (("Least", least), ("Greatest", most))
    ]
    return f"{head} {'. '.join(said)}."


# ---- throughput against a latency --------------------------------------------------------------------


def pareto(found: Front, theme: Theme) -> go.Figure:
    """A point a choice of settings with the spread over its seeds; those on the front joined by a line."""
    rows = found.table.to_dicts()
    best = sorted((r for r in rows if r["on_front"]), key=lambda r: r["throughput"])
    rest = [r for r in rows if not r["on_front"]]
    data = [
        _points(rest, found, theme.grey, "circle", "other choices", theme),
        {
            **_points(best, found, theme.a, "diamond", "front: none is better in both", theme),
            "mode": "lines+markers",
            "line": {"color": theme.a, "width": 2, "shape": "linear"},
        },
    ]
    layout = {
        **base_layout(400, theme),
        "margin": {"l": 66, "r": 14, "t": 34, "b": 50, "pad": 0},
        "xaxis": {**plain_axis(theme), "tickformat": ",~r", "nticks": 7, "title": _title(_axis_title(found.throughput), theme)},
        "yaxis": {**_value_axis(found.latency, [r["latency"] for r in rows], theme), "title": _title(_axis_title(found.latency), theme)},
    }  # fmt: skip
    return go.Figure({"data": data, "layout": layout})


def _points(
    rows: Sequence[Mapping[str, Any]], found: Front, colour: str, symbol: str, name: str, theme: Theme
) -> dict[str, Any]:  # fmt: skip
    many = any(r["num_seeds"] > 1 for r in rows)

    def bars(key: str) -> dict[str, Any]:
        return {
            "type": "data",
            "symmetric": False,
            "array": [r[f"{key}_high"] - r[key] for r in rows],
            "arrayminus": [r[key] - r[f"{key}_low"] for r in rows],
            "thickness": 1,
            "width": 2,
            "color": faded(colour, 0.55),
            "visible": many,
        }

    return {
        "type": "scatter",
        "mode": "markers",
        "x": [r["throughput"] for r in rows],
        "y": [r["latency"] for r in rows],
        "error_x": bars("throughput"),
        "error_y": bars("latency"),
        "name": name,
        "marker": {"color": colour, "symbol": symbol, "size": 10 if symbol == "diamond" else 7, "line": {"width": 1, "color": theme.ground}},
        "text": [_point_text(r, found) for r in rows],
        "hovertemplate": "%{text}<extra></extra>",
        "showlegend": bool(rows),
    }  # fmt: skip


def _point_text(row: Mapping[str, Any], found: Front) -> str:
    settings = choice_label(row, found.axes)
    return (
        f"{html.escape(settings)}<br>{html.escape(figure_label(found.throughput))} {figure_value(found.throughput, row['throughput'])}"
        f"<br>{html.escape(figure_label(found.latency))} {figure_value(found.latency, row['latency'])}<br>{row['num_seeds']:,} seed{'' if row['num_seeds'] == 1 else 's'}"
    )


def choice_label(row: Mapping[str, Any], axes: Sequence[str]) -> str:
    """'KV pool (tokens) 24,000, Preemption swap'."""
    return (
        ", ".join(f"{setting_label(a)} {level_label(row[a])}" for a in axes)
        or "the only choice"
    )


def alt_pareto(found: Front) -> str:
    """The picture of `pareto` in words: every choice on the front."""
    best = [r for r in found.table.to_dicts() if r["on_front"]]
    said = [
        f"{choice_label(r, found.axes)}: {figure_value(found.throughput, r['throughput'])}, {figure_value(found.latency, r['latency'])}"
        for r in best[:8]
    ]
    more = f"; and {len(best) - 8} more" if len(best) > 8 else ""
    return (
        f"{figure_label(found.throughput)} against {figure_label(found.latency)} of {found.table.height:,} choices of settings. "
        f"On the front, {len(best)}: {'; '.join(said)}{more}."
    )


# ---- a figure over one setting -----------------------------------------------------------------------


def curve_chart(
    lines: Sequence[Curve], x: str, line: str | None, figure: str, theme: Theme
) -> go.Figure:
    """The median over seeds, and from the least to the greatest value a band. At most MAX_LINES lines."""
    shown = lines[:MAX_LINES]
    values = [v for c in shown for v in c.table["x"].to_list()]
    is_number = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values)
    places = list(dict.fromkeys(values)) if not is_number else []
    _, factor = _axis_unit(figure)
    data: list[dict[str, Any]] = []
    for i, curve in enumerate(shown):
        at = [v if is_number else places.index(v) for v in curve.table["x"].to_list()]
        data += _curve(curve, at, i, line, figure, factor, theme)
    axis = {**plain_axis(theme), "title": _title(setting_label(x), theme)}
    if is_number:
        axis |= {"tickformat": ",~r", "nticks": 8}
        if len(dict.fromkeys(values)) <= 8:
            axis |= {"tickmode": "array", "tickvals": sorted(set(values)), "ticktext": [level_label(v) for v in sorted(set(values))]}  # fmt: skip
    else:
        axis |= {"tickmode": "array", "tickvals": list(range(len(places))), "ticktext": [html.escape(level_label(v)) for v in places],
                 "range": [-0.4, max(len(places) - 0.6, 0.4)]}  # fmt: skip
    medians = [v * factor for c in shown for v in c.table["high"].to_list()]
    layout = {
        **base_layout(360, theme),
        "margin": {"l": 66, "r": 16, "t": 12 + 24 * (len(shown) > 1) * math.ceil(len(shown) / 3), "b": 50, "pad": 0},
        "xaxis": axis,
        "yaxis": {**_value_axis(figure, medians, theme), "title": _title(_axis_title(figure), theme)},
    }  # fmt: skip
    return go.Figure({"data": data, "layout": layout})


def _curve(
    curve: Curve, at: Sequence[float], i: int, line: str | None, figure: str, factor: float, theme: Theme
) -> list[dict[str, Any]]:  # fmt: skip
    colours = (theme.a, theme.b, theme.ok, theme.swap, theme.preempt, theme.c, theme.grey)
    rows = curve.table.to_dicts()
    low, high = ([r[k] * factor for r in rows] for k in ("low", "high"))
    edge = {"type": "scatter", "mode": "lines", "x": list(at), "line": {"width": 0}, "hoverinfo": "skip", "showlegend": False}  # fmt: skip
    name = "" if line is None else html.escape(level_label(curve.level))
    texts = [
        f"{name + ': ' if name else ''}{html.escape(level_label(r['x']))}: median {figure_value(figure, r['median'])}"
        + (f", {figure_value(figure, r['low'])} to {figure_value(figure, r['high'])} over {r['num_seeds']:,} seeds" if r["num_seeds"] > 1 else "")
        for r in rows
    ]  # fmt: skip
    return [
        {**edge, "y": low},
        {**edge, "y": high, "fill": "tonexty", "fillcolor": faded(colours[i], 0.2)},
        {
            "type": "scatter",
            "mode": "lines+markers",
            "x": list(at),
            "y": [r["median"] * factor for r in rows],
            "name": name,
            "line": {"color": colours[i], "width": 2, "dash": _DASHES[i]},
            "marker": {"symbol": _SYMBOLS[i], "size": 8},
            "text": texts,
            "hovertemplate": "%{text}<extra></extra>",
            "showlegend": bool(name),
        },
    ]


def _value_axis(figure: str, values: Sequence[float], theme: Theme) -> dict[str, Any]:
    """From 0; on a logarithmic scale where times differ LOG_FROM-fold."""
    if _is_log(figure, values):
        # 2 and 5 between the powers of ten, where there is room
        ticks = "D2" if max(values) < 1e3 * min(values) else 1
        return {**plain_axis(theme), "type": "log", "dtick": ticks, "tickformat": ",~r"}
    return {**plain_axis(theme), "rangemode": "tozero", "tickformat": ",~r", "nticks": 6}


def alt_curves(lines: Sequence[Curve], x: str, line: str | None, figure: str) -> str:
    """The picture of `curve_chart` in words: first and last point of each line."""
    said = []
    for curve in lines[:MAX_LINES]:
        rows = curve.table.to_dicts()
        name = f"{setting_label(line)} {level_label(curve.level)}: " if line else ""
        said.append(
            f"{name}{figure_value(figure, rows[0]['median'])} at {level_label(rows[0]['x'])}, {figure_value(figure, rows[-1]['median'])} at {level_label(rows[-1]['x'])}"
        )
    return f"{figure_label(figure)} over {setting_label(x)}, median over seeds with its spread. {'; '.join(said)}."
