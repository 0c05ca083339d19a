"""Pictures of the crossover: both costs over length, models by devices, kFLOP per KV byte.

It draws what `crossover.py` found, and computes nothing. Recompute and swap have the colours that they
have everywhere; the second channel is the line's dash, the cell's letter, the marker's shape.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go
import polars as pl

from analyzer.crossover import Cell, Costs, Range, cheaper, flips
from analyzer.crossover_victims import cheaper_of
from analyzer.look import Side, Theme, faded, seconds, three_digits
from analyzer.preemption_figure import base_layout, plain_axis
from analyzer.unchecked import unchecked

_SYMBOLS = {"recompute": "circle", "swap": "square"}
# the victims of one run are told from those of another by the fill
_FILL: dict[Side, str] = {"A": "", "B": "-open", "C": "-dot"}
_RUG_PX, _CURVES_PX, _BOTTOM_PX = 16, 300, 50
_ROW_PX, _CELL_PX = 19, 25
MOST_RATIO = 5.0  # powers of two from which on a cell has its full colour
MOST_NAMED = 4  # flips whose length is written
_ID_CHARS = 40


@dataclass(frozen=True)
class Drawn:
    """A run's victims on the chart. dots: as from `crossover_victims.dots`, None where their costs are not
    of the set-up that is drawn; lengths: as from `lengths_of`."""

    dots: pl.DataFrame | None
    lengths: pl.DataFrame


def curves(
    points: Sequence[Costs],
    ranges: Sequence[Range],
    at: Costs,
    victims: Mapping[Side, Drawn],
    theme: Theme,
    *,
    is_async: bool = False,
) -> go.Figure:
    """Engine time of both ways over tokens lost, where it flips, the chosen length and the victims.

    is_async: draw the time on the link too, for which the engine does not wait.
    """
    x = [p.tokens for p in points]
    swap = "swap, what the batch loses" if is_async else "swap, out and in"
    data: list[dict[str, Any]] = [
        _line(x, [p.recompute_s for p in points], "recompute", theme.preempt, "solid"),
        _line(x, [p.swap_s for p in points], swap, theme.swap, "dash"),
    ]
    if is_async:
        link = [p.out_s + p.back_s for p in points]
        data.append(_line(x, link, "link busy, out and in", theme.muted, "dot"))
    for side, drawn in victims.items():
        if drawn.dots is not None:
            data += _points(side, drawn.dots, theme)
    data.append(_flips(points, ranges, theme))
    rugs = [side for side, drawn in victims.items() if drawn.lengths.height]
    data += [_rug(side, len(rugs) - 1 - i, victims[side].lengths, theme) for i, side in enumerate(rugs)]  # fmt: skip
    rug_px = _RUG_PX * len(rugs)
    inner = _CURVES_PX + rug_px
    cut = rug_px / inner
    low, high = _bounds(points, victims, is_async)
    longest = max([points[-1].tokens, *(int(d.lengths["tokens"][-1]) for d in victims.values() if d.lengths.height)])  # fmt: skip
    x_range = [math.log10(points[0].tokens * 0.9), math.log10(longest * 1.1)]
    ticks = _decades(low, high)
    layout = {
        **base_layout(inner + 34 + _BOTTOM_PX, theme),
        "margin": {"l": 64, "r": 14, "t": 34, "b": _BOTTOM_PX, "pad": 0},
        "xaxis": {**plain_axis(theme), "type": "log", "range": x_range, "anchor": "y2" if rugs else "y",
                  "tickvals": [4**k for k in range(1, 12)], "ticktext": [_short(4**k) for k in range(1, 12)],
                  "title": _title("Tokens of KV that the victim loses", theme)},
        "yaxis": {**plain_axis(theme), "type": "log", "range": [math.log10(low), math.log10(high)],
                  "domain": [cut + (0.02 if rugs else 0), 1], "tickvals": ticks, "ticktext": [_decade(v) for v in ticks],
                  "title": _title("Engine time", theme)},
        "yaxis2": {**plain_axis(theme), "domain": [0, cut], "range": [-0.5, max(len(rugs), 1) - 0.5], "showgrid": False,
                   "tickvals": list(range(len(rugs))), "ticktext": rugs[::-1], "anchor": "x"},
        "shapes": [*_bands(ranges, x_range, theme), _upright(at.tokens, theme)],
        "annotations": [*_band_names(ranges, x_range, theme), _length_name(at, x_range, theme)],
    }  # fmt: skip
    return unchecked(data, layout)


def _line(x: list[int], y: list[float], name: str, colour: str, dash: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "name": name,
        "line": {"color": colour, "width": 2.4, "dash": dash},
        "customdata": [seconds(v) for v in y],
        "hovertemplate": f"{name}: %{{x:,}} tokens, %{{customdata}}<extra></extra>",
    }


def _points(side: Side, dots: pl.DataFrame, theme: Theme) -> list[dict[str, Any]]:
    """The victims of a run at what each did cost, by the way that was cheaper for each."""
    rows = dots.with_columns(cheaper=cheaper_of())
    looks = {"recompute": theme.preempt, "swap": theme.swap}
    found = []
    for way, colour in looks.items():
        some = rows.filter(pl.col("cheaper") == way)
        name = f"{side}: {way} was cheaper"
        found.append(_dots(side, some, name, f"{_SYMBOLS[way]}{_FILL.get(side, '')}", colour))
    unknown = rows.filter(pl.col("cheaper").is_null())
    found.append(_dots(side, unknown, f"{side}: not known", "x-thin-open", theme.muted))
    return [one for one in found if one["x"]]


def _dots(
    side: Side, rows: pl.DataFrame, name: str, symbol: str, colour: str
) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": rows["tokens"].to_list(),
        "y": rows["cost_s"].to_list(),
        "name": name,
        "marker": {
            "symbol": symbol,
            "color": colour,
            "size": 6,
            "line": {"width": 1.2 if symbol.endswith("-open") else 0},
            "opacity": 0.8,
        },
        "customdata": _hover(side, rows),
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _rug(side: Side, row: int, lengths: pl.DataFrame, theme: Theme) -> dict[str, Any]:
    """The victims' lengths as ticks below the chart: one line with gaps, which a browser draws at once."""
    told = _hover(side, lengths)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [x for n in lengths["tokens"] for x in (n, n, None)],
        "y": [row + 0.28, row - 0.28, None] * lengths.height,
        "yaxis": "y2",
        "name": f"lengths of {side}'s victims",
        "showlegend": False,
        "line": {"color": theme.side(side), "width": 1},
        "opacity": 0.85,
        "customdata": [said for one in told for said in (one, one, "")],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def _hover(side: Side, rows: pl.DataFrame) -> list[str]:
    """What a victim is told with. Ids are shortened and made harmless: Plotly reads tags in hover."""
    return [
        f"{side}: {_harmless(r['request_id'])} at step {r['step']:,}<br>{r['tokens']:,} tokens, by {r['mode_used']}: {seconds(r['cost_s'])}"
        f"{_found(r)}<br>of this victim: recompute {seconds(r['own_recompute_s'])}, swap {seconds(r['own_swap_s'])}{_more(r)}"
        for r in rows.iter_rows(named=True)
    ]


def _found(row: Mapping[str, Any]) -> str:
    """', 79 % still cached'; '' of a victim that never looked into the cache."""
    if row["mode_used"] != "recompute" or row["found_tokens"] is None:
        return ""
    return f", {100 * row['found_tokens'] / row['tokens']:.0f} % still cached"


def _more(row: Mapping[str, Any]) -> str:
    """'<br>and 51 more at this place'; '' where it is alone."""
    others = row["num_here"] - 1
    return f"<br>and {others:,} more at this place" if others else ""


def _harmless(text: str) -> str:
    short = text if len(text) <= _ID_CHARS else f"{text[: _ID_CHARS - 1]}…"
    return short.replace("&", "&amp;").replace("<", "&lt;").replace("%{", "% {")


def _flips(points: Sequence[Costs], ranges: Sequence[Range], theme: Theme) -> dict[str, Any]:
    """Where the order flips, with the number of tokens at it."""
    at = flips(ranges, points[0].tokens)
    named = at if len(at) <= MOST_NAMED else (at[0], at[-1])
    y = [_between(points, n) for n in at]
    return {
        "type": "scatter",
        "mode": "markers+text",
        "x": at,
        "y": y,
        "name": "the order flips",
        "showlegend": bool(at),
        "text": [f"{n:,}" if n in named else "" for n in at],
        "textposition": "bottom right",
        "textfont": {"size": 12, "color": theme.text},
        "marker": {"symbol": "star", "size": 11, "color": theme.text},
        "cliponaxis": False,
        "hovertemplate": "the order flips at %{x:,} tokens<extra></extra>",
    }


def _between(points: Sequence[Costs], tokens: int) -> float:
    """Height of the recompute curve there, read between its points."""
    for left, right in pairwise(points):
        if left.tokens <= tokens <= right.tokens and left.recompute_s > 0:
            share = math.log(tokens / left.tokens) / math.log(right.tokens / left.tokens)
            return float(left.recompute_s * (right.recompute_s / left.recompute_s) ** share)
    return points[-1].recompute_s


def _bands(ranges: Sequence[Range], x_range: list[float], theme: Theme) -> list[dict[str, Any]]:
    return [
        {
            "type": "rect",
            "xref": "x",
            "yref": "y domain",
            "x0": r.first,
            "x1": 10 ** x_range[1] if r.open_end else r.last,
            "y0": 0,
            "y1": 1,
            "fillcolor": faded(theme.preempt, 0.1),
            "line": {"width": 0},
            "layer": "below",
        }
        for r in ranges
    ]


def _band_names(
    ranges: Sequence[Range], x_range: list[float], theme: Theme
) -> list[dict[str, Any]]:
    """'recompute cheaper' in each band that has room for it."""
    found = []
    for r in ranges:
        end = x_range[1] if r.open_end else math.log10(r.last)
        if end - math.log10(r.first) > 0.28 * (x_range[1] - x_range[0]):
            found.append(
                {
                    "text": "recompute cheaper",
                    "x": (math.log10(r.first) + end) / 2,
                    "xref": "x",
                    "y": 0.98,
                    "yref": "y domain",
                    "yanchor": "top",
                    "showarrow": False,
                    "font": {"size": 11.5, "color": theme.preempt_text},
                }
            )
    return found


def _upright(tokens: int, theme: Theme) -> dict[str, Any]:
    return {"type": "line", "xref": "x", "yref": "y domain", "x0": tokens, "x1": tokens, "y0": 0, "y1": 1,
            "line": {"color": theme.muted, "width": 1, "dash": "dot"}}  # fmt: skip


def _length_name(at: Costs, x_range: list[float], theme: Theme) -> dict[str, Any]:
    x = math.log10(at.tokens)
    left = x > (x_range[0] + x_range[1]) / 2
    return {"text": f"{at.tokens:,} tokens", "x": x, "xref": "x", "y": 0.02, "yref": "y domain", "yanchor": "bottom",
            "xanchor": "right" if left else "left", "xshift": -4 if left else 4, "showarrow": False,
            "font": {"size": 11.5, "color": theme.muted}}  # fmt: skip


def _bounds(
    points: Sequence[Costs], victims: Mapping[Side, Drawn], is_async: bool
) -> tuple[float, float]:
    """Least and greatest time that is drawn, with some room."""
    values = [v for p in points for v in (p.recompute_s, p.swap_s) if v > 0]
    if is_async:
        values += [p.out_s + p.back_s for p in points]
    for drawn in victims.values():
        if drawn.dots is not None:
            values += drawn.dots["cost_s"].to_list()
    if not values:
        return 1e-6, 1.0
    return min(values) * 0.7, max(values) * 1.6


def _decades(low: float, high: float) -> list[float]:
    return [
        10.0**k for k in range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1)
    ]


def _decade(seconds_: float) -> str:
    """'10 s', '100 ms', '1 µs'."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds_ >= unit * 0.999:
            return f"{seconds_ / unit:,.0f} {name}"
    return f"{seconds_ / 1e-9:,.0f} ns"


def _short(tokens: int) -> str:
    return f"{tokens:,}" if tokens < 1024 else f"{tokens // 1024:,}k"


# ---- models by devices ----------------------------------------------------------------------------


def ratio_map(
    cells: Sequence[Cell],
    models: Sequence[str],
    devices: Sequence[str],
    chosen: tuple[str, str],
    theme: Theme,
) -> go.Figure:
    """A cell a pair: R where recompute is cheaper, S where swap is, and how many times.

    In brackets where the model does not fit on so many devices; '—' where it cannot be split so.
    models, devices: rows from above and columns, in order; chosen: the pair that is outlined.
    """
    by_pair = {(c.model, c.device): c for c in cells}
    grid = [[by_pair.get((m, d)) for d in devices] for m in models]
    data = {
        "type": "heatmap",
        "x": list(range(len(devices))),
        "y": list(range(len(models))),
        "z": [[_power(c) for c in row] for row in grid],
        "text": [[_cell_text(c) for c in row] for row in grid],
        "customdata": [[_cell_hover(c) for c in row] for row in grid],
        "texttemplate": "%{text}",
        "textfont": {"size": 11.5, "color": theme.text},
        "hovertemplate": "%{customdata}<extra></extra>",
        "zmin": -MOST_RATIO,
        "zmax": MOST_RATIO,
        "colorscale": [[0, faded(theme.preempt, 0.8)], [0.5, faded(theme.grey, 0.06)], [1, faded(theme.swap, 0.8)]],
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
        "hoverongaps": False,
    }  # fmt: skip
    shapes = []
    if chosen[0] in models and chosen[1] in devices:
        column, row = list(devices).index(chosen[1]), list(models).index(chosen[0])
        shapes = [{"type": "rect", "x0": column - 0.5, "x1": column + 0.5, "y0": row - 0.5, "y1": row + 0.5,
                   "line": {"color": theme.text, "width": 2.5}}]  # fmt: skip
    axis = plain_axis(theme)
    layout = {
        **base_layout(_CELL_PX * max(len(models), 1) + 78, theme),
        "margin": {"l": 138, "r": 8, "t": 74, "b": 4, "pad": 2},
        "xaxis": {**axis, "side": "top", "tickvals": list(range(len(devices))), "ticktext": [_cut(d) for d in devices],
                  "tickangle": -40, "showgrid": False, "range": [-0.5, max(len(devices), 1) - 0.5]},
        "yaxis": {**axis, "tickvals": list(range(len(models))), "ticktext": [_cut(m) for m in models],
                  "showgrid": False, "range": [max(len(models), 1) - 0.5, -0.5]},
        "shapes": shapes,
    }  # fmt: skip
    return unchecked([data], layout)


def _power(cell: Cell | None) -> float | None:
    """Powers of two by which swap is cheaper."""
    ratio = None if cell is None or cell.costs is None else cell.costs.ratio
    return math.log2(ratio) if ratio else None


def _cell_text(cell: Cell | None) -> str:
    if cell is None or cell.costs is None or not cell.costs.ratio:
        return "—"
    ratio = cell.costs.ratio
    letter = "R" if cheaper(cell.costs) == "recompute" else "S"
    factor = max(ratio, 1 / ratio)
    text = f"{letter} {factor:,.0f}" if factor >= 9.95 else f"{letter} {factor:.1f}"
    return text if cell.fits else f"({text})"


def _cell_hover(cell: Cell | None) -> str:
    if cell is None:
        return ""
    head = f"{_harmless(cell.model)} on {_harmless(cell.device)}"
    if cell.costs is None:
        return f"{head}<br>{_wrapped(_harmless(cell.problem))}"
    fits = "" if cell.fits else "<br>does not fit on so many devices"
    return f"{head}<br>recompute {seconds(cell.costs.recompute_s)}, swap {seconds(cell.costs.swap_s)}<br>{cheaper(cell.costs)} is cheaper{fits}"


def _wrapped(text: str, width: int = 60) -> str:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "<br>".join(lines)


def _cut(name: str, most: int = 20) -> str:
    return _harmless(name if len(name) <= most else f"{name[: most - 1]}…")


# ---- kFLOP per KV byte ----------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelRow:
    """A model's kFLOP per KV byte at the chosen length, and at the shortest and longest of the bar;
    break_even: of the chosen device with the model's own copies; way: 'recompute' or 'swap', which the
    costs of the map make cheaper there."""

    name: str
    at: float
    low: float
    high: float
    break_even: float
    way: str

    @property
    def is_right(self) -> bool:
        """Whether it stands right of its tick: swap is cheaper by the rule of thumb."""
        return self.at >= self.break_even


def _rows_of(
    way: str, rows: Sequence[tuple[int, ModelRow]], tokens: int, theme: Theme
) -> dict[str, Any]:
    """The models for which that way is cheaper on the chosen device, each with its row."""
    colour = theme.swap if way == "swap" else theme.preempt
    return {
        "type": "scatter",
        "mode": "markers",
        "x": [m.at for _, m in rows],
        "y": [i for i, _ in rows],
        "name": f"{way} cheaper at {tokens:,} tokens (bar: 1k to 32k)",
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [max(m.high - m.at, 0.0) for _, m in rows],
            "arrayminus": [max(m.at - m.low, 0.0) for _, m in rows],
            "thickness": 4,
            "width": 0,
            "color": faded(colour, 0.35),
        },
        "marker": {"color": colour, "size": 8, "symbol": _SYMBOLS[way]},
        "customdata": [
            f"{_harmless(m.name)}: {three_digits(m.at)} kFLOP per byte" for _, m in rows
        ],
        "hovertemplate": "%{customdata}<extra></extra>",
    }


def intensity_rows(
    models: Sequence[ModelRow],
    machines: Sequence[tuple[str, float]],
    chosen: tuple[str, str],
    tokens: int,
    theme: Theme,
) -> go.Figure:
    """Models as dots with a bar over lengths, machines as upright ticks, on one axis of kFLOP per byte.

    A dot right of a tick: swap is cheaper there. models, machines: from above, in order; chosen: model
    and device, whose names are bold, and whose device's break-even is drawn through all rows.
    """
    names = [m.name for m in models]
    y_machines = [len(models) + 1 + i for i in range(len(machines))]  # an empty row between
    data = [
        _rows_of(way, [(i, m) for i, m in enumerate(models) if m.way == way], tokens, theme)
        for way in ("swap", "recompute")
    ]
    data += [
        {
            "type": "scatter", "mode": "markers", "x": [m.break_even for m in models], "y": list(range(len(models))),
            "name": f"{_harmless(chosen[1])} breaks even, copies as chosen",
            "marker": {"color": theme.text, "size": 11, "symbol": "line-ns-open", "line": {"width": 2}},
            "customdata": [f"{_harmless(chosen[1])} with copies of {_harmless(m.name)}: {three_digits(m.break_even)} kFLOP per byte" for m in models],
            "hovertemplate": "%{customdata}<extra></extra>",
        },
        {
            "type": "scatter", "mode": "markers", "x": [v for _, v in machines], "y": y_machines,
            "name": "machine breaks even, large copies",
            "marker": {"color": theme.grey, "size": 9, "symbol": "diamond"},
            "customdata": [f"{_harmless(n)}: {three_digits(v)} kFLOP per byte" for n, v in machines],
            "hovertemplate": "%{customdata}<extra></extra>",
        },
    ]  # fmt: skip
    labels = [*names, "", *(n for n, _ in machines)]
    bold = set(chosen)
    ticktext = [f"<b>{_cut(n)}</b>" if n in bold else _cut(n) for n in labels]
    values = [v for m in models for v in (m.low, m.high, m.break_even) if v] + [v for _, v in machines if v > 0]  # fmt: skip
    span = [math.log10(min(values) * 0.8), math.log10(max(values) * 1.25)] if values else [0, 3]
    ticks = [v for k in range(-4, 8) for v in (10.0**k, 3 * 10.0**k) if span[0] <= math.log10(v) <= span[1]]  # fmt: skip
    own = next((v for n, v in machines if n == chosen[1]), None)
    shapes = [] if not own else [
        {"type": "line", "x0": own, "x1": own, "y0": -0.5, "y1": len(labels) - 0.5, "layer": "below",
         "line": {"color": theme.grey, "width": 1, "dash": "dot"}}
    ]  # fmt: skip
    axis = plain_axis(theme)
    layout = {
        **base_layout(_ROW_PX * len(labels) + 120, theme),
        "margin": {"l": 138, "r": 12, "t": 68, "b": 46, "pad": 2},
        "xaxis": {**axis, "type": "log", "range": span, "tickvals": ticks, "ticktext": [f"{v:,.10g}" for v in ticks],
                  "title": _title("kFLOP per byte of KV", theme)},
        "yaxis": {**axis, "tickvals": list(range(len(labels))), "ticktext": ticktext,
                  "range": [len(labels) - 0.5, -0.5]},
        "shapes": shapes,
    }  # fmt: skip
    return unchecked(data, layout)


def _title(text: str, theme: Theme) -> dict[str, Any]:
    return {"text": text, "font": {"size": 12, "color": theme.muted}, "standoff": 6}
