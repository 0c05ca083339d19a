"""The block map drawn: pictures of one to three runs over each other, and the rows under them.

It computes nothing: rasters, texts and series were worked out in `block_picture`. A raster is a
palette PNG under Plotly's axes; over it lies an unseen coarse heat map that answers to the mouse.
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

from analyzer.block_colours import (
    AGES_S,
    AGES_STEPS,
    ColourBy,
    age_colour,
    owner_colour,
    palette,
    rgb,
    state_colour,
)
from analyzer.block_picture import MapPicture
from analyzer.block_states import SHORT, WORDS, CellState
from analyzer.look import Theme, faded, three_digits
from analyzer.marks import Bars, Line, Mark, traces_of

MAP_PX = {1: 400, 2: 230, 3: 170}  # by the number of maps
HOST_PX = 48
ROW_PX = 58
TICKS_PX = 13  # the strip of preemption marks above a map
GAP_PX = 33
TOP_PX = 62
BOTTOM_PX = 46
LEFT_PX = 58
_CLEAR = "rgba(0,0,0,0)"


@dataclass(frozen=True)
class MapAxis:
    """What x counts: title, unit ("" for none) and the part that is shown."""

    title: str
    unit: str
    shown: tuple[float, float]


def block_map(
    pictures: Sequence[MapPicture], axis: MapAxis, by: ColourBy, theme: Theme
) -> go.Figure:
    """Maps of these runs over each other, host tiers under them, then scatter and reuse in rows."""
    canvas = _Canvas(_inner_px(pictures))
    for picture in pictures:
        _draw_map(canvas, picture, MAP_PX[len(pictures)], axis, theme)
    _draw_rows(canvas, pictures, axis, theme)
    canvas.traces += _legend(pictures, by, theme)
    layout = {
        **_layout(canvas.inner, theme),
        **canvas.axes,
        "xaxis": _x_axis(axis, canvas.last_axis, theme),
        "images": canvas.images,
        "annotations": canvas.annotations,
    }
    return go.Figure({"data": canvas.traces, "layout": layout})


def map_axes(pictures: Sequence[MapPicture]) -> dict[str, str]:
    """Side -> name of its map's y axis in the layout of `block_map`."""
    found, n = {}, 0
    for picture in pictures:
        n += 2  # marks, map
        found[str(picture.side)] = f"yaxis{n}"
        n += picture.host is not None
    return found


def png(index: np.ndarray, colours: Sequence[str], least_rows: int = 1) -> bytes:
    """A raster [rows, columns] of palette indices, its first row at the bottom, as a PNG.

    least_rows: rows are repeated up to so many, so that a scaled picture keeps its edges.
    """
    times = max(1, -(-least_rows // max(len(index), 1)))
    image = Image.fromarray(np.repeat(index[::-1], times, axis=0), "P")
    image.putpalette(rgb(colours))
    out = io.BytesIO()
    image.save(out, "PNG", compress_level=4)
    return out.getvalue()


def alt_text(pictures: Sequence[MapPicture], axis: MapAxis, by: ColourBy) -> str:
    """The picture in words: what is shown, and its numbers."""
    low, high = (f"{v:,.5g}" for v in axis.shown)
    said = [
        f"Block map coloured by {by} over {axis.title.lower()}, {low} to {high} {axis.unit}.".replace(
            " .", "."
        )
    ]
    for p in pictures:
        shares = ", ".join(
            f"{three_digits(share * 100)} % {WORDS[state]}"
            for state, share in p.states.items()
            if share
        )
        said.append(
            f"Run {p.side} ({p.name}), blocks {p.blocks[0]:,} to {p.blocks[1]:,}: {shares}; "
            f"{many(p.num_preemptions, 'preemption')}, {many(int(p.reuse['handovers'].sum()), 'change')} of holder."
        )
    return " ".join(said)


def many(n: int, what: str) -> str:
    """'1 block', '2,588 blocks'."""
    return f"{n:,} {what}{'' if n == 1 else 's'}"


# ---- the pieces -------------------------------------------------------------------------------


@dataclass
class _Canvas:
    """A figure's parts from top to bottom. inner: pixels of all rows; top: where the next begins."""

    inner: int
    traces: list[dict[str, Any]] = field(default_factory=list)
    axes: dict[str, Any] = field(default_factory=dict)
    images: list[dict[str, Any]] = field(default_factory=list)
    annotations: list[dict[str, Any]] = field(default_factory=list)
    used: int = 0
    first_map: str = ""  # the y axis that all maps' axes go along with

    @property
    def last_axis(self) -> str:
        return self._name(len(self.axes))

    @staticmethod
    def _name(n: int) -> str:
        return "y" if n == 1 else f"y{n}"

    def axis(self, height: int, settings: dict[str, Any], gap: int = GAP_PX) -> str:
        """Add a y axis of that many pixels below what there is; returns its name."""
        n = len(self.axes) + 1
        top = self.inner - self.used
        domain = [max(0.0, (top - height) / self.inner), max(0.0, top / self.inner)]
        self.axes[f"yaxis{'' if n == 1 else n}"] = {
            "domain": domain,
            "anchor": "x",
            "fixedrange": True,
            **settings,
        }
        self.used += height + gap
        return self._name(n)

    def title(self, text: str, note: str, theme: Theme) -> None:
        """Words above the place where the next axis begins."""
        small = f"  <span style='color:{theme.muted}'>{note}</span>" if note else ""
        self.annotations.append(
            {
                "text": f"<b>{text}</b>{small}",
                "showarrow": False,
                "font": {"size": 12.5, "color": theme.text},
                "x": 0,
                "y": (self.inner - self.used) / self.inner,
                "xref": "paper",
                "yref": "paper",
                "xanchor": "left",
                "yanchor": "bottom",
                "yshift": 2,
                "align": "left",
            }
        )


def _inner_px(pictures: Sequence[MapPicture]) -> int:
    maps = len(pictures) * (TICKS_PX + MAP_PX[len(pictures)] + GAP_PX)
    hosts = sum(p.host is not None for p in pictures) * (HOST_PX + GAP_PX)
    rows = 3 if any(p.reuse["hits"].sum() > 0 for p in pictures) else 2
    return maps + hosts + rows * (ROW_PX + GAP_PX) - GAP_PX


def _draw_map(
    canvas: _Canvas, picture: MapPicture, height: int, axis: MapAxis, theme: Theme
) -> None:
    low, high = picture.blocks
    note = f"blocks {low:,} to {high:,} · {many(picture.num_preemptions, 'preemption')}"
    if picture.per_row > 1:
        note += f" · 1 of {three_digits(picture.per_row)} blocks drawn, all when zoomed in"
    canvas.title(f"{picture.side} · {html.escape(picture.name)}", note, theme)
    hidden = {"range": [0, 1], "visible": False}
    _draw_marks(canvas, canvas.axis(TICKS_PX, hidden, gap=0), picture, axis, theme)
    settings = _scale(theme) | {
        "range": [low - 0.5, high + 0.5],
        "fixedrange": False,
        "nticks": 6,
        "title": {"text": "block", "font": {"size": 11, "color": theme.muted}, "standoff": 2},
    }
    name = canvas.axis(height, settings)
    canvas.images.append(_image(picture.index, (low - 0.5, high + 0.5), name, axis, theme))
    canvas.traces.append(_hover(picture, name))
    if canvas.first_map:
        canvas.axes["yaxis" + name[1:]]["matches"] = canvas.first_map
    else:
        canvas.first_map = name
    if picture.host is not None:
        canvas.title(
            f"{picture.side} · host memory",
            f"up to {many(picture.host_blocks, 'block')}",
            theme,
        )
        settings = _scale(theme) | {"range": [0, picture.host_blocks], "nticks": 3}
        name = canvas.axis(HOST_PX, settings)
        canvas.images.append(_image(picture.host, (0, picture.host_blocks), name, axis, theme))


def _image(
    index: np.ndarray, y: tuple[float, float], y_axis: str, axis: MapAxis, theme: Theme
) -> dict[str, Any]:
    source = base64.b64encode(png(index, palette(theme), least_rows=400)).decode()
    return {
        "source": f"data:image/png;base64,{source}",
        "xref": "x",
        "yref": y_axis,
        "x": axis.shown[0],
        "y": y[1],
        "sizex": axis.shown[1] - axis.shown[0],
        "sizey": y[1] - y[0],
        "xanchor": "left",
        "yanchor": "top",
        "sizing": "stretch",
        "layer": "below",
    }


def _hover(picture: MapPicture, y_axis: str) -> dict[str, Any]:
    """An unseen heat map with the texts; cells without one are gaps."""
    hover = picture.hover
    there = np.where(hover.text == "", np.nan, 0.0).astype(np.float32)
    steps = picture.ages_in_steps
    since = (
        "since step %{customdata[0]:,d}, for %{customdata[1]:,d} steps"
        if steps
        else "since %{customdata[0]:,.3f} s, for %{customdata[1]:,.3f} s"
    )
    return {
        "type": "heatmap",
        "x": hover.x,
        "y": hover.block,
        "z": there,
        "text": hover.text,
        "yaxis": y_axis,
        "opacity": 0,
        "showscale": False,
        "hoverongaps": False,
        "zmin": 0,
        "zmax": 1,
        "name": f"blocks · {picture.side}",
        "customdata": hover.ages,
        "hovertemplate": f"<b>%{{text}}</b><br>block %{{y:,d}}<br>{since}<extra></extra>",
        "showlegend": False,
    }


def _draw_marks(
    canvas: _Canvas, y_axis: str, picture: MapPicture, axis: MapAxis, theme: Theme
) -> None:
    marks = picture.marks
    canvas.traces.append(_lit_span(picture, y_axis, theme))
    if not len(marks.x):
        return
    told = [
        f"<b>{many(n, 'preemption')}</b> from {x:,.5g} {axis.unit} on<br>of {who}{', …' if n > 4 else ''}"
        for x, who, n in zip(marks.x.tolist(), marks.victims, marks.count.tolist(), strict=True)
    ]
    canvas.traces.append(
        {
            "type": "scatter",
            "mode": "markers",
            "x": marks.x,
            "y": np.full(len(marks.x), 0.6, np.float32),
            "yaxis": y_axis,
            "marker": {
                "symbol": "triangle-down",
                "color": theme.preempt,
                "size": np.minimum(6 + 1.5 * np.log2(marks.count), 11).astype(np.float32),
                "line": {"width": 0},
            },
            "text": told,
            "hovertemplate": "%{text}<extra></extra>",
            "name": f"preemptions · {picture.side}",
            "showlegend": False,
            "cliponaxis": False,
        }
    )


def _lit_span(picture: MapPicture, y_axis: str, theme: Theme) -> dict[str, Any]:
    """A line over the map for as long as the chosen request holds blocks; empty without one."""
    lit = picture.lit
    ends = (max(lit.start, picture.shown[0]), min(lit.end, picture.shown[1])) if lit else (0, 0)
    there = lit is not None and ends[1] > ends[0]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "x": np.array(ends) if there else [None],
        "y": np.array([0.1, 0.1]) if there else [None],
        "yaxis": y_axis,
        "line": {"width": 3, "color": theme.text},
        "marker": {"size": 6, "symbol": "line-ns", "line": {"width": 3, "color": theme.text}},
        "name": f"chosen request · {picture.side}",
        "hovertemplate": f"<b>request {lit.name if lit else ''}</b> holds blocks<extra></extra>",
        "showlegend": False,
        "cliponaxis": False,
    }


def _draw_rows(
    canvas: _Canvas, pictures: Sequence[MapPicture], axis: MapAxis, theme: Theme
) -> None:
    canvas.title(
        "Scatter: copies per request",
        "dotted: if sorted by address",
        theme,
    )
    marks: list[Mark] = []
    for p in pictures:
        x = p.scatter["x"].to_numpy()
        columns = {c: p.scatter[c].to_numpy().astype(np.float32) for c in ("copies", "pieces")}
        marks += [
            Line(f"copies · {p.side}", x, columns["copies"], p.side),
            Line(f"pieces · {p.side}", x, columns["pieces"], p.side, "dotted"),
        ]
    _draw_row(canvas, marks, theme)
    canvas.traces += [_scatter_hover(p, canvas.last_axis, axis) for p in pictures]
    width = float(pictures[0].reuse["width"][0])
    per = f"per {three_digits(width)} {axis.unit or 'steps'}"
    _draw_bars(canvas, pictures, "handovers", "Reuse: blocks changing hands", per, axis, theme)
    if any(p.reuse["hits"].sum() > 0 for p in pictures):
        _draw_bars(canvas, pictures, "hits", "Blocks hit in the prefix cache", per, axis, theme)


def _draw_bars(
    canvas: _Canvas,
    pictures: Sequence[MapPicture],
    column: str,
    title: str,
    per: str,
    axis: MapAxis,
    theme: Theme,
) -> None:
    totals = ", ".join(f"{p.side} {p.reuse[column].sum():,.0f}" for p in pictures)
    canvas.title(title, f"{totals} · {per}", theme)
    marks: list[Mark] = []
    hover = []
    for i, p in enumerate(pictures):
        x, y = p.reuse["x"].to_numpy(), p.reuse[column].to_numpy().astype(np.float64)
        width = float(p.reuse["width"][0])
        marks.append(Bars(f"{column} · {p.side}", x, width, y, p.side, (i, len(pictures))))
        hover.append((p, x + width / 2, y))
    _draw_row(canvas, marks, theme)
    for p, x, y in hover:
        text = f"<b>{p.side}</b>: %{{y:,.0f}} {per}<extra></extra>"
        canvas.traces.append(_unseen(x, y, canvas.last_axis, text, f"{column} read · {p.side}"))


def _draw_row(canvas: _Canvas, marks: Sequence[Mark], theme: Theme) -> None:
    name = canvas.axis(
        ROW_PX, _scale(theme) | {"rangemode": "tozero", "nticks": 4, "showgrid": True}
    )
    for mark in marks:
        canvas.traces += traces_of(mark, name, theme)


def _scatter_hover(picture: MapPicture, y_axis: str, axis: MapAxis) -> dict[str, Any]:
    told = picture.scatter
    text = (
        f"<b>{picture.side}</b>: %{{y:,.1f}} copies for %{{customdata[0]:,.1f}} blocks of a request, "
        "%{customdata[1]:,.1f} if sorted by address<br>most for one request: %{customdata[2]:,.0f}<extra></extra>"
    )
    columns = told.select("blocks", "pieces", "most").to_numpy().astype(np.float32)
    made = _unseen(
        told["x"].to_numpy(), told["copies"].to_numpy(), y_axis, text, f"read · {picture.side}"
    )
    return made | {"customdata": columns}


def _unseen(x: np.ndarray, y: np.ndarray, y_axis: str, text: str, name: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "markers",
        "x": x,
        "y": y,
        "yaxis": y_axis,
        "marker": {"size": 12, "opacity": 0},
        "hovertemplate": text,
        "name": name,
        "showlegend": False,
    }


def _legend(pictures: Sequence[MapPicture], by: ColourBy, theme: Theme) -> list[dict[str, Any]]:
    """Squares with words; of the owners' colours some stand for all."""
    shown: list[tuple[str, str]] = []
    if any(p.lit for p in pictures):
        shown.append(("chosen request", theme.text))
    if by == "owner":
        more = "".join(
            f"<span style='color:{owner_colour(code, theme)}'>■</span>" for code in range(1, 4)
        )
        shown.append((f"{more} one colour per request", owner_colour(0, theme)))
    if by == "age":
        shown += [
            (label, age_colour(i, theme)) for i, label in enumerate(_age_labels(pictures))
        ]
    seen = {s for p in pictures for s, share in p.states.items() if share}
    shown += [
        (SHORT[s], state_colour(s, theme))
        for s in CellState
        if s in seen and (by == "state" or s < CellState.PREFILL)
    ]
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "x": [None],
            "y": [None],
            "name": label,
            "marker": {
                "symbol": "square",
                "size": 11,
                "color": colour,
                "line": {"width": 1, "color": theme.grid},
            },
            "hoverinfo": "skip",
        }
        for label, colour in shown
    ]


def _age_labels(pictures: Sequence[MapPicture]) -> list[str]:
    in_steps = all(p.ages_in_steps for p in pictures)
    bounds = AGES_STEPS if in_steps else AGES_S
    unit = "steps" if in_steps else "s"
    return [
        *(f"held < {bound:,g} {unit}" if not i else f"< {bound:,g}" for i, bound in enumerate(bounds)),
        "longer",
    ]  # fmt: skip


def _scale(theme: Theme) -> dict[str, Any]:
    return {
        "showgrid": False,
        "gridcolor": theme.grid,
        "zeroline": False,
        "tickformat": ",d",
        "tickfont": {"size": 11, "color": theme.muted},
    }


def _x_axis(axis: MapAxis, anchor: str, theme: Theme) -> dict[str, Any]:
    unit = f" ({axis.unit})" if axis.unit else ""
    return {
        "title": {
            "text": f"{axis.title}{unit}",
            "font": {"size": 12, "color": theme.muted},
            "standoff": 6,
        },
        "range": list(axis.shown),
        "anchor": anchor,
        "tickformat": ",~r",
        "tickfont": {"size": 11, "color": theme.muted},
        "showgrid": False,
        "zeroline": False,
        "showspikes": True,
        "spikemode": "across",
        "spikesnap": "cursor",
        "spikethickness": 1,
        "spikedash": "solid",
        "spikecolor": theme.muted,
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
        "hoverdistance": 20,
        "hoverlabel": {
            "font": {"size": 11.5, "color": theme.text},
            "bgcolor": faded(theme.ground, 0.94),
            "bordercolor": theme.muted,
            "namelength": -1,
            "align": "left",
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
            "font": {"size": 12},
            "itemclick": False,
            "itemdoubleclick": False,
        },
        "modebar": {"bgcolor": _CLEAR, "color": theme.muted, "activecolor": theme.text},
    }
