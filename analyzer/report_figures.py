"""The pictures of a report: always light, colours and template said outright, white ground.

Importing Streamlit swaps Plotly's default template for one whose colours are placeholders, so nothing
here rests on a default. It computes nothing but how many points of a distribution are drawn.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import plotly.graph_objects as go

from analyzer.aligned import Aligned
from analyzer.block_map_figure import MapAxis, block_map
from analyzer.block_map_figure import alt_text as block_alt_text
from analyzer.block_picture import Asked, BlockRun, picture
from analyzer.figures import BOTTOM_PX, CONFIG, GAP_PX, TOP_PX, alt_text, shares_below, timeline
from analyzer.latency import request_latency
from analyzer.look import LIGHT, Side, seconds
from analyzer.marks import Line
from analyzer.report_contents import Contents
from analyzer.timeline_rows import ROWS, timeline_rows

POINTS = 400  # of a curve of shares
DISTRIBUTIONS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "e2e_s": "E2E"}
CARD_ROWS = {"blocks": 140, "preemptions": 56}  # row of the timeline -> height on a card, px
CARD_TOP_PX, CARD_BOTTOM_PX = 22, 22
FONT = (
    '"Source Sans 3", "Source Sans Pro", "Helvetica Neue", Arial, "Liberation Sans", sans-serif'
)
REPORT_CONFIG = {**CONFIG, "responsive": True, "displayModeBar": "hover"}
_ELEMENT = re.compile(r"<(?=[/!?sS])")
STILL = {**CONFIG, "staticPlot": True, "displayModeBar": False}


@dataclass(frozen=True)
class Picture:
    """A figure, what it shows in words, and a line above it."""

    key: str
    figure: go.Figure
    alt: str
    title: str = ""


def timeline_picture(
    contents: Contents,
    which: Sequence[str] = tuple(ROWS),
    *,
    key: str = "timeline",
    height: int | None = None,
    width: int | None = None,
) -> Picture:
    """The aligned timeline. which: its rows; key: names it in the document; height, width: px; None:
    the rows' own heights, and all the room there is."""
    return _timeline(contents.aligned, contents.shown, which, key, height, width)


def early_picture(aligned: Aligned, shown: tuple[float, float]) -> Picture:
    """The same of runs of which nothing is worked out yet."""
    return _timeline(aligned, shown, tuple(ROWS), "timeline", None, None)


def _timeline(
    aligned: Aligned,
    shown: tuple[float, float],
    which: Sequence[str],
    key: str,
    height: int | None,
    width: int | None,
) -> Picture:
    rows = timeline_rows(aligned, shown, which)
    if height is not None:
        inner = sum(row.height_px for row in rows)
        factor = (height - TOP_PX - BOTTOM_PX - GAP_PX * (len(rows) - 1)) / inner
        rows = [replace(row, height_px=round(row.height_px * factor)) for row in rows]
    axis = aligned.axis(shown)
    names = aligned.names
    figure = light(timeline(rows, axis, names, LIGHT), width)
    return Picture(key, figure, alt_text(rows, axis, names))


def card_picture(contents: Contents, width: int) -> Picture:
    """The two rows that say most, without the legend, which the card has itself."""
    rows = []
    for row in timeline_rows(contents.aligned, contents.shown, tuple(CARD_ROWS)):
        marks = [m for m in row.marks if not (isinstance(m, Line) and m.role == "cached")]
        note = row.note.replace(", grey: cached", "").replace("grey: cached", "")
        height = CARD_ROWS[row.key]
        rows.append(replace(row, marks=marks, note=note, height_px=height, readings=None))
    axis = contents.aligned.axis(contents.shown)
    figure = light(timeline(rows, axis, contents.names, LIGHT), width)
    figure.update_layout(
        showlegend=False,
        margin={"t": CARD_TOP_PX, "b": CARD_BOTTOM_PX, "r": 4},
        height=figure.layout.height - TOP_PX - BOTTOM_PX + CARD_TOP_PX + CARD_BOTTOM_PX,
    )
    figure.update_xaxes(ticksuffix=f" {axis.unit}", title=None, selector=0)
    return Picture("timeline", figure, alt_text(rows, axis, contents.names))


def distribution_pictures(contents: Contents, width: int | None = None) -> list[Picture]:
    """Share of requests whose latency is at most x, a picture a latency that some request has."""
    found = []
    latencies = {s: request_latency(r.requests) for s, r in contents.runs.items()}
    for metric, word in DISTRIBUTIONS.items():
        samples: dict[Side, np.ndarray] = {
            side: _thinned(table[metric].drop_nulls().sort().to_numpy())
            for side, table in latencies.items()
        }
        if not any((values > 0).any() for values in samples.values()):
            continue
        halves = [
            f"{side}: half within {seconds(float(np.median(values)))}"
            for side, values in samples.items()
            if len(values)
        ]
        figure = light(shares_below(samples, f"{word} at most", contents.names, LIGHT), width)
        figure.update_layout(showlegend=False, margin={"t": 12, "l": 48, "r": 12}, height=210)
        places = _round_times(np.concatenate(list(samples.values())))
        figure.update_xaxes(tickvals=places, ticktext=[_round_time(t) for t in places])
        alt = f"Share of requests by {word}. {'; '.join(halves)}."
        found.append(Picture(metric, figure, alt, word))
    return found


def block_map_picture(
    contents: Contents, width: int | None = None, height: int | None = None
) -> list[Picture]:
    """Who held which block, of the runs that recorded it over each other; empty where none did."""
    start, end = contents.shown
    pictures = []
    for side, run in contents.runs.items():
        edges = contents.aligned.edges[side]
        blocks = run.recording.blocks
        if blocks is not None and len(edges) > 1:
            asked = Asked((start, end))
            name = contents.names[side]
            pictures.append(picture(BlockRun(run, blocks), edges, asked, side, name))
    if not pictures:
        return []
    axis = MapAxis("Time since the start", "s", (start, end))
    figure = light(block_map(pictures, axis, "owner", LIGHT), width)
    if height is not None:  # on paper, where nothing answers to the mouse
        figure.update_layout(height=height)
        figure.data = [trace for trace in figure.data if trace.type != "heatmap"]
    return [Picture("block-map", figure, block_alt_text(pictures, axis, "owner"))]


def light(figure: go.Figure, width: int | None = None) -> go.Figure:
    """The figure on white, whatever the default template is."""
    figure.update_layout(
        template="plotly_white",
        paper_bgcolor="#ffffff",
        plot_bgcolor="#ffffff",
        font={"family": FONT, "color": LIGHT.text},
        colorway=[LIGHT.a, LIGHT.b, LIGHT.ok, LIGHT.swap, LIGHT.preempt, LIGHT.grey],
        width=width,
        autosize=width is None,
    )
    return figure


def _round_times(values: np.ndarray) -> list[float]:
    """At least three round places within the values, on a logarithmic axis, as coarse as can be."""
    low, high = float(values[values > 0].min()) * 0.8, float(values.max()) * 1.2
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1,), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 7)):
        places = [step * 10.0**power for power in powers for step in steps]
        inside = [t for t in places if low <= t <= high]
        if len(inside) >= 3:
            break
    return inside


def _round_time(value: float) -> str:
    """'50 ms', '1.5 s', '100 s'."""
    for bound, factor, unit in ((1.0, 1.0, "s"), (1e-3, 1e3, "ms")):
        if value >= bound * 0.999:
            return f"{value * factor:,.6g} {unit}"
    return f"{value * 1e6:g} µs"


def _thinned(values: np.ndarray) -> np.ndarray:
    """At most POINTS quantiles of sorted values."""
    if len(values) <= POINTS:
        return values
    return np.quantile(values, np.linspace(0, 1, POINTS), method="lower")


def as_json(figure: go.Figure) -> str:
    """The figure as JSON that may stand inside a script element: it can neither end it nor begin
    another one."""
    text = _ELEMENT.sub("\\\\u003c", str(figure.to_json()))
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
