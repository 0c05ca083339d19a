"""A preemption drawn: the lanes around it under the use of the pool. It computes nothing.

States look as they do on the Requests page (`lanes_figure`). It knows no recording and no page. Names of requests come from files: they are never markup.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from analyzer.figures import CONFIG
from analyzer.lane_looks import HEIGHTS, LABELS, fill
from analyzer.lanes import PHASES
from analyzer.look import Side, Theme, faded, seconds
from analyzer.marks import pen
from analyzer.preemption_around import Around, Lane
from analyzer.unchecked import unchecked

LANE_PX = 19
BLOCKS_PX = 96
GAP_PX = 34
TOP_PX = 52
BOTTOM_PX = 44
TITLE_PX = 24
LABEL_PX = 118
LONGEST_LABEL = 10
STATIC: dict[str, Any] = {**CONFIG, "doubleClick": False}
_MARK = {"victim": "▼ ", "aggressor": "▲ ", "evicted too": "▽ ", "": ""}


def lanes_around(found: Around, side: Side, theme: Theme) -> go.Figure:
    """Used blocks over the lanes of the requests that ran, with the moment of the preemption and of
    the return."""
    lanes_px = LANE_PX * max(len(found.lanes), 1)
    inner = BLOCKS_PX + GAP_PX + lanes_px
    lanes_top, blocks_bottom = lanes_px / inner, (lanes_px + GAP_PX) / inner
    data = [*_blocks(found, side, theme), *_bars(found, theme)]
    layout = {
        **base_layout(inner + TOP_PX + BOTTOM_PX, theme, legend_y=1 + TITLE_PX / inner),
        "margin": {"l": LABEL_PX, "r": 22, "t": TOP_PX, "b": BOTTOM_PX, "pad": 0},
        "barmode": "overlay",
        "bargap": 0,
        "xaxis": _time_axis(found.shown, theme),
        "yaxis": _lane_axis(found.lanes, (0.0, lanes_top), theme),
        "yaxis2": _blocks_axis(found, (blocks_bottom, 1.0), theme),
        "shapes": _moments(found, theme),
        "annotations": _words(found, lanes_top, theme),
    }
    return unchecked(data, layout)


def alt_around(found: Around, title: str) -> str:
    """The picture of `lanes_around` in words."""
    parts = [
        f"request {_one_line(lane.request_id, 40)} ({lane.part})"
        for lane in found.lanes
        if lane.part
    ]
    low, high = (float(found.blocks_y.min()), float(found.blocks_y.max())) if len(found.blocks_y) else (0, 0)  # fmt: skip
    back = "" if found.back_s is None else f" It ran again at {found.back_s:,.2f} s."
    return (
        f"{title}. Lanes of {len(found.lanes)} of {found.num_running:,} running requests from {found.shown[0]:,.2f} to "
        f"{found.shown[1]:,.2f} s, first admitted on top: {', '.join(parts)}.{back} Blocks in use {low:,.0f} to {high:,.0f} of {found.pool_blocks:,}."
    )


# ---- lanes around one preemption -------------------------------------------------------------------


def _blocks(found: Around, side: Side, theme: Theme) -> list[dict[str, Any]]:
    """The pool's size, and below it the used blocks; what lies between them is free."""
    line = {
        "type": "scatter",
        "mode": "lines",
        "x": found.blocks_x,
        "yaxis": "y2",
        "showlegend": False,
    }
    size = {"color": theme.preempt, "width": 1, "dash": "8px,4px"}
    return [
        {**line, "y": np.full(len(found.blocks_x), found.pool_blocks), "line": size, "hoverinfo": "skip"},
        {
            **line,
            "y": found.blocks_y,
            "line": pen(side, "main", theme),
            "fill": "tonexty",
            "fillcolor": faded(theme.grey, 0.16),
            "customdata": found.pool_blocks - found.blocks_y,
            "hovertemplate": "%{x:,.3f} s: %{y:,} blocks in use, %{customdata:,} free<extra></extra>",
        },
    ]  # fmt: skip


def _blocks_axis(found: Around, domain: tuple[float, float], theme: Theme) -> dict[str, Any]:
    """From below the least to above the pool's size: a line close to it is what there is to see."""
    least = float(found.blocks_y.min()) if len(found.blocks_y) else 0.0
    room = max(found.pool_blocks - least, found.pool_blocks * 0.02, 1.0)
    return {
        **plain_axis(theme),
        "domain": list(domain),
        "range": [max(least - 0.2 * room, 0.0), found.pool_blocks + 0.14 * room],
        "nticks": 4,
        "tickformat": ",d",
        "anchor": "x",
    }


def _bars(found: Around, theme: Theme) -> list[dict[str, Any]]:
    """A trace a state: intervals as bars from start to stop, with what they are for the pointer."""
    bars, traces = found.bars, []
    low, high = found.shown
    names = [html.escape(_one_line(lane.request_id, 40)) for lane in found.lanes]
    for number in range(len(PHASES)):
        mask = bars.phase == number
        if not mask.any():
            continue
        start, stop = bars.start_s[mask].clip(low, high), bars.stop_s[mask].clip(low, high)
        length = bars.stop_s[mask] - bars.start_s[mask]
        place = bars.place[mask]
        said = [f"{names[p]} · {LABELS[number]} {seconds(float(s))}" for p, s in zip(place, length, strict=True)]  # fmt: skip
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "x": stop - start,
                "base": start,
                "y": place,
                "width": HEIGHTS[number] * 0.86,
                "name": LABELS[number],
                "marker": fill(number, theme),
                "hovertext": said,
                "hovertemplate": "%{hovertext}<extra></extra>",
            }
        )  # fmt: skip
    return traces


def _lane_axis(
    lanes: Sequence[Lane], domain: tuple[float, float], theme: Theme
) -> dict[str, Any]:
    """One tick a lane, the first on top; who was evicted and for whom by a sign and in bold."""
    return {
        **plain_axis(theme),
        "domain": list(domain),
        "range": [len(lanes) - 0.5, -0.5],
        "tickmode": "array",
        "tickvals": list(range(len(lanes))),
        "ticktext": [_label(lane) for lane in lanes],
        "showgrid": False,
        "anchor": "x",
    }


def _label(lane: Lane) -> str:
    name = html.escape(_one_line(lane.request_id, LONGEST_LABEL))
    if lane.part in ("victim", "aggressor"):
        return f"<b>{_MARK[lane.part]}{name}</b> {'evicted' if lane.part == 'victim' else 'needed it'}"
    return f"{_MARK[lane.part]}{name}"


def _one_line(text: str, most: int) -> str:
    line = " ".join(text[: most * 4].split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _moments(found: Around, theme: Theme) -> list[dict[str, Any]]:
    """The moment of the preemption and of the return through both rows, and a ground under the
    lanes of the victim and of who needed its blocks."""
    across = {"type": "line", "yref": "paper", "xref": "x", "y0": 0, "y1": 1}
    shapes: list[dict[str, Any]] = [
        {
            "type": "rect", "xref": "paper", "yref": "y", "x0": 0, "x1": 1, "y0": i - 0.5, "y1": i + 0.5,
            "fillcolor": faded(theme.preempt if lane.part == "victim" else theme.grey, 0.13), "line": {"width": 0}, "layer": "below",
        }
        for i, lane in enumerate(found.lanes)
        if lane.part in ("victim", "aggressor")
    ]  # fmt: skip
    line = {"color": theme.preempt, "width": 1.5, "dash": "6px,3px"}
    shapes.append({**across, "x0": found.at_s, "x1": found.at_s, "line": line})
    if found.back_s is not None:
        line = {"color": theme.muted, "width": 1, "dash": "2px,3px"}
        shapes.append({**across, "x0": found.back_s, "x1": found.back_s, "line": line})
    return shapes


def _words(found: Around, lanes_top: float, theme: Theme) -> list[dict[str, Any]]:
    """Titles of both rows, and what the two lines are."""
    hidden = found.num_running - len(found.lanes)
    more = f", {hidden:,} more ran" if hidden > 0 else ""
    titles = (
        (1.0, "Blocks in use", f"of {found.pool_blocks:,}; shaded: free"),
        (lanes_top, "Requests in order of admission", f"last at the bottom{more}"),
    )
    said = [
        {
            "text": f"<b>{title}</b>  <span style='color:{theme.muted}'>{small}</span>",
            "x": 0, "y": y, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom", "yshift": 2,
            "xshift": -LABEL_PX + 8, "showarrow": False, "font": {"size": 12.5, "color": theme.text},
        }
        for y, title, small in titles
    ]  # fmt: skip
    middle = sum(found.shown) / 2
    back = [] if found.back_s is None else [(found.back_s, "runs again", theme.muted, found.back_s > middle)]  # fmt: skip
    for x, text, colour, on_left in [(found.at_s, "evicted", theme.preempt_text, True), *back]:
        said.append(
            {
                "text": text, "x": x, "y": lanes_top, "xref": "x", "yref": "paper", "xanchor": "right" if on_left and text == "evicted" else "left",
                "yanchor": "bottom", "yshift": 18, "showarrow": False, "font": {"size": 11.5, "color": colour},
            }
        )  # fmt: skip
    return said


# ---- what all of them share ----------------------------------------------------------------------


def base_layout(height: int, theme: Theme, legend_y: float = 1.0) -> dict[str, Any]:
    """Layout of a small figure that answers to the pointer alone. legend_y: bottom of the legend, as a
    share of the plot's height; the plot makes room for one of several lines."""
    clear = "rgba(0,0,0,0)"
    family = '"Source Sans", "Source Sans Pro", Arial, sans-serif'
    return {
        "template": theme.template,
        "paper_bgcolor": clear,
        "plot_bgcolor": clear,
        "font": {"family": family, "color": theme.text, "size": 12},
        "height": height,
        "hovermode": "closest",
        "hoverlabel": {
            "font": {"size": 11.5, "color": theme.text},
            "bgcolor": theme.ground,
            "bordercolor": theme.grid,
            "namelength": -1,
        },
        "dragmode": False,
        "legend": {
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": legend_y,
            "yref": "paper",
            "yanchor": "bottom",
            "font": {"size": 12},
            "itemclick": False,
            "itemdoubleclick": False,
        },
        "modebar": {"bgcolor": clear, "color": theme.muted, "activecolor": theme.text},
    }


def plain_axis(theme: Theme) -> dict[str, Any]:
    """An axis with quiet lines and labels."""
    return {
        "gridcolor": theme.grid,
        "zeroline": False,
        "fixedrange": True,
        "tickfont": {"size": 11, "color": theme.muted},
    }


def _time_axis(shown: tuple[float, float], theme: Theme) -> dict[str, Any]:
    return {
        **plain_axis(theme),
        "range": list(shown),
        "tickformat": ",~r",
        "title": {
            "text": "Time since the start (s)",
            "font": {"size": 12, "color": theme.muted},
            "standoff": 6,
        },
        "anchor": "y",
    }
