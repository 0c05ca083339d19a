"""The block map for a report: from a run to a figure on white, in one call.

It knows which part of it a report shows. It opens nothing and remembers nothing.
"""

from __future__ import annotations

import plotly.graph_objects as go
import polars as pl

from analyzer.align import axis_edges
from analyzer.block_map_figure import MapAxis, block_map
from analyzer.block_picture import Asked, BlockRun, picture
from analyzer.look import LIGHT, Side
from analyzer.run import Run


def block_map_figure_for_report(
    run: Run,
    shown: tuple[float, float] | None = None,
    *,
    side: Side = "A",
    blocks: pl.DataFrame | None = None,
    lit: str | None = None,
) -> go.Figure | None:
    """The map of one run over time, light, coloured by owner; None where ownership is not known.

    shown: part of the time axis in seconds, None for all of it; blocks: ownership from a replay, for
    a run that recorded none; lit: a request to light up.
    """
    blocks = run.recording.blocks if blocks is None else blocks
    edges = axis_edges(run.steps, run.requests, "time")
    if blocks is None or len(edges) < 2:
        return None
    start, end = shown or (0.0, float(edges[-1]))
    if end <= start:
        return None
    found = picture(BlockRun(run, blocks), edges, Asked((start, end), lit=lit), side, run.mode)
    axis = MapAxis("Time since the start", "s", (start, end))
    return block_map([found], axis, "owner", LIGHT)
