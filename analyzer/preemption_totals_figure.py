"""Pictures of what all preemptions come to: the mode used against the other, and repeat evictions.

It draws what `preemption_totals` worked out, and computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl

from analyzer.look import Side, Theme, faded, seconds
from analyzer.preemption_figure import base_layout, plain_axis
from analyzer.preemption_totals import Otherwise
from analyzer.unchecked import unchecked

_BAR_PX = 30
_HATCH: dict[Side, str] = {"A": "", "B": "/", "C": "x"}


def otherwise_bars(found: Mapping[Side, Sequence[Otherwise]], theme: Theme) -> go.Figure:
    """Two bars for each run and mode used: what it cost, and below it, hollow, what the other mode
    was expected to cost for the same victims."""
    labels, values, texts, colours, patterns = [], [], [], [], []
    for side, each in found.items():
        for one in each:
            colour = theme.side(side)
            labels += [f"{side} · {one.used}", f"{side} as {one.other}, est."]
            values += [one.used_s, one.other_s]
            texts += [seconds(one.used_s), seconds(one.other_s)]
            colours += [colour, faded(colour, 0.3)]
            patterns += [_HATCH[side], "."]
    data = {
        "type": "bar",
        "orientation": "h",
        "x": values,
        "y": list(range(len(labels))),
        "text": texts,
        "textposition": "outside",
        "cliponaxis": False,
        "marker": {
            "color": colours,
            "line": {"width": 0},
            "pattern": _patterns(patterns, theme),
        },
        "width": 0.72,
        "hoverinfo": "skip",
        "showlegend": False,
    }
    layout = {
        **base_layout(_BAR_PX * max(len(labels), 1) + 52, theme),
        "margin": {"l": 150, "r": 56, "t": 6, "b": 44, "pad": 4},
        "xaxis": {**plain_axis(theme), "rangemode": "tozero", "tickformat": ",~r", "title": _title("Engine and link time (s)", theme)},
        "yaxis": {**plain_axis(theme), "tickmode": "array", "tickvals": list(range(len(labels))), "ticktext": labels,
                  "range": [len(labels) - 0.5, -0.5], "showgrid": False},
    }  # fmt: skip
    return unchecked([data], layout)


def alt_otherwise(found: Mapping[Side, Sequence[Otherwise]]) -> str:
    """The picture of `otherwise_bars` in words."""
    said = [
        f"{side}: {one.num:,} preemptions by {one.used} cost {seconds(one.used_s)}, by {one.other} they were expected to cost {seconds(one.other_s)}"
        for side, each in found.items()
        for one in each
    ]
    return f"Cost of preemptions by the mode used and by the other. {'; '.join(said)}."


def repeats_bars(table: pl.DataFrame, theme: Theme) -> go.Figure:
    """Requests by how often they were evicted, a bar a run. table: as from `repeats`."""
    sides = [s for s in table.columns if s != "times"]
    data = [
        {
            "type": "bar",
            "x": table["times"].to_list(),
            "y": table[side].to_numpy(),
            "name": side,
            "text": [f"{v:,}" if v else "" for v in table[side]],
            "textposition": "outside",
            "cliponaxis": False,
            "marker": {
                "color": theme.side(side),  # type: ignore[arg-type]  # sides are its columns
                "line": {"width": 0},
                "pattern": _patterns([_HATCH[side]] * table.height, theme),  # type: ignore[index]  # sides are its columns
            },
            "hovertemplate": f"{side}: %{{y:,}} requests evicted %{{x}} times<extra></extra>",
        }
        for side in sides
    ]
    layout = {
        **base_layout(230, theme),
        "margin": {"l": 56, "r": 16, "t": 30, "b": 44, "pad": 0},
        "barmode": "group",
        "bargap": 0.3,
        "xaxis": {**plain_axis(theme), "type": "category", "showgrid": False, "title": _title("Times evicted", theme)},
        "yaxis": {**plain_axis(theme), "rangemode": "tozero", "nticks": 5, "tickformat": ",d", "title": _title("Requests", theme)},
    }  # fmt: skip
    return unchecked(data, layout)


def alt_repeats(table: pl.DataFrame) -> str:
    """The picture of `repeats_bars` in words."""
    said = [
        f"{side}: " + ", ".join(f"{n:,} evicted {t} times" for t, n in zip(table["times"], table[side], strict=True) if n)
        for side in table.columns
        if side != "times"
    ]  # fmt: skip
    return f"Requests by how often they were evicted. {'; '.join(said)}."


def _patterns(shapes: Sequence[str], theme: Theme) -> dict[str, Any]:
    return {"shape": list(shapes), "size": 4, "solidity": 0.45, "fgcolor": theme.ground}


def _title(text: str, theme: Theme) -> dict[str, Any]:
    return {"text": text, "font": {"size": 12, "color": theme.muted}, "standoff": 6}
