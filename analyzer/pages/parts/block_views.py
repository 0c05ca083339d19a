"""The block map with its controls, and the chosen request.

A fragment, and in it the player's: a zoom or another colour redraws both, the player resting redraws
the player, and playing nothing. It knows widgets and session state; what is drawn is known in
`block_picture`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, floor
from typing import cast

import numpy as np
import polars as pl
import streamlit as st

from analyzer import figures
from analyzer.aligned import ALIGNMENTS, Aligned, Alignment
from analyzer.block_colours import COLOUR_BY, ColourBy
from analyzer.block_map_figure import MapAxis, alt_text, block_map, many, map_axes
from analyzer.block_picture import Asked, BlockRun, MapPicture, picture
from analyzer.look import Side
from analyzer.pages.parts import block_state, shell, state
from analyzer.pages.parts.block_pick import pick_listener
from analyzer.pages.parts.block_shown import CHART, SIDES_SHOWN, Shown, choose, shown_now
from analyzer.pages.parts.block_snapshot import snapshot_section
from analyzer.pages.parts.messages import guarded, plain
from analyzer.pages.parts.shown_range import Axis, digest, follow_zoom, slider
from analyzer.pages.parts.timeline import theme
from analyzer.run import Run, run_names

_CSS = """<style>
.st-key-block_map image { image-rendering: pixelated; }
.st-key-block_pick { display: none; }
.st-key-chosen_request p { line-height: 1.45; }
.st-key-snapshot h2 { font-size: 1.25rem; padding: 0.4rem 0 0; }
</style>"""


@st.cache_resource(max_entries=24, show_spinner=False)
def _picture(
    key: str, side: Side, asked: Asked, by: Alignment, _map: BlockRun, _axis: Aligned, name: str
) -> MapPicture:
    return picture(_map, _axis.edges[side], asked, side, name, by)


@st.fragment
def map_section(key: str, runs: Mapping[Side, Run], maps: Mapping[Side, BlockRun]) -> None:
    """Controls, map, range, the chosen request, the numbers as a table, and the player."""
    st.html(_CSS)
    state.write_url()
    block_state.write()
    with guarded():
        _controls(maps)
        shown = shown_now(key, runs, maps)
        state.look_at(shown.view)
        pictures = _draw(shown)
        _ranges(shown, pictures)
        _request_section(shown)
        snapshot_section(shown)
        _data(pictures, shown)


def _controls(maps: Mapping[Side, BlockRun]) -> None:
    with st.container(
        horizontal=True, vertical_alignment="bottom", gap="small", key="controls"
    ):
        st.segmented_control(
            "Align by",
            list(ALIGNMENTS),
            format_func=lambda k: ALIGNMENTS[cast(Alignment, k)],
            default="time",
            required=True,
            key="by",
            bind="query-params",
            persist_state="session",
            on_change=state.forget_range,
            label_visibility="collapsed",
        )
        st.segmented_control(
            "Colour by",
            list(COLOUR_BY),
            format_func=lambda k: COLOUR_BY[cast(ColourBy, k)],
            default="owner",
            required=True,
            key="colour",
            bind="query-params",
            persist_state="session",
            label_visibility="collapsed",
        )
        if len(maps) > 1:
            st.segmented_control(
                "Runs",
                ["all", *maps],
                format_func=lambda k: "All runs" if k == "all" else str(k),
                default="all",
                required=True,
                key=SIDES_SHOWN,
                bind="query-params",
                label_visibility="collapsed",
            )
        st.text_input(
            "Request to light up",
            key=block_state.REQUEST,
            bind="query-params",
            persist_state="session",
            placeholder="request, or click a block",
            max_chars=block_state.LONGEST_REQUEST,
            label_visibility="collapsed",
            width=210,
        )
        st.button(
            "Clear",
            on_click=block_state.choose_request,
            args=("",),
            disabled=not st.session_state.get(block_state.REQUEST),
            key="clear_request",
        )


def _draw(shown: Shown) -> list[MapPicture]:
    names = run_names(shown.runs)
    asked = Asked(shown.part, shown.colour, block_state.asked_blocks(), shown.lit)
    pictures = [
        _picture(shown.key, side, asked, shown.by, shown.maps[side], shown.axis, names[side])
        for side in shown.sides
    ]
    axis = MapAxis(shown.axis.title, shown.axis.unit, shown.part)
    figure = block_map(pictures, axis, shown.colour, theme())
    st.plotly_chart(
        figure,
        theme=None,
        key=CHART,
        config=figures.CONFIG,
        alt=alt_text(pictures, axis, shown.colour),
    )
    maps = map_axes(pictures)
    follow_zoom(
        CHART, _axis(shown), list(maps.values()), lambda *ends: _blocks_zoomed(shown, *ends)
    )
    pick_listener(
        CHART,
        maps,
        shown.view,
        key="block_pick",
        on_pick=lambda: _picked(shown),
    )
    return pictures


# ---- what was reported ------------------------------------------------------------------------


def _axis(shown: Shown) -> Axis:
    return Axis(shown.axis.full, shown.view, shown.axis.unit, shown.by)


def _picked(shown: Shown) -> None:
    """Light up whoever held the clicked cell, or had it last; the same one again: none."""
    report = st.session_state["block_pick"].pick or {}
    side = cast(Side, report.get("side"))
    if report.get("view") != shown.view or side not in shown.maps:
        return
    own = shown.maps[side].own
    edges = shown.axis.edges[side]
    row = int(np.searchsorted(edges, float(report["x"]), "right")) - 1
    row = max(0, min(row, own.num_steps - 1))
    found = own.latest_holder(int(report["block"]), row)
    if found is not None:
        choose(found)


def _blocks_zoomed(shown: Shown, low: float | None, high: float | None) -> None:
    """Show the blocks between two places of the y axis; None for all."""
    first, last = (None, None) if low is None or high is None else (ceil(low), floor(high))
    most = max(m.own.num_blocks for m in shown.maps.values())
    if first is None or last is None or last < first or (first <= 1 and last >= most):
        block_state.show_blocks(None)
    else:
        block_state.show_blocks((max(1, first), min(most, last)))


# ---- under the chart --------------------------------------------------------------------------


def _ranges(shown: Shown, pictures: list[MapPicture]) -> None:
    """Sliders for the axis and for the blocks: the keyboard's way to zoom, and the way back."""
    most = max(m.own.num_blocks for m in shown.maps.values())
    blocks = pictures[0].blocks
    key = f"map_blocks_{digest(shown.view)}"
    with st.container(horizontal=True, vertical_alignment="bottom", key="range"):
        slider(shown.part, _axis(shown))
        if most > 1:
            st.session_state[key] = blocks
            st.slider(
                "Shown blocks",
                1,
                most,
                key=key,
                on_change=lambda: _slid_blocks(key, most),
            )
        st.button(
            "Show all",
            on_click=_show_all,
            disabled=shown.part == shown.axis.full and block_state.asked_blocks() is None,
            key="show_all",
        )
    st.caption(
        "Drag to zoom (across: time, down: blocks), Ctrl + wheel, double-click for all. "
        "Keys: W S zoom, A D move, 0 all. Click a block to light up its request. The upright line is the step below."
    )


def _slid_blocks(key: str, most: int) -> None:
    first, last = st.session_state[key]
    block_state.show_blocks(None if (first, last) == (1, most) else (first, last))


def _show_all() -> None:
    state.forget_range()
    block_state.show_blocks(None)


def _request_section(shown: Shown) -> None:
    """What the chosen request did with its blocks, in each run."""
    if shown.lit is None:
        return
    lines = []
    for side in shown.sides:
        told = shown.maps[side].request_facts(shown.lit)
        if told is None:
            lines.append(f"**{side}**: holds no block here.")
            continue
        often = told.num_preemptions
        again = f", preempted {'once' if often == 1 else f'{often:,} times'}" if often else ""
        lines.append(
            f"**{side}**: at most {many(told.most_blocks, 'block')}, then in "
            f"{many(told.most_runs, 'run')} of neighbours, each a copy to swap it out; "
            f"held from step {told.first_step:,} to {told.last_step:,}{again}."
        )
    with st.container(border=True, key="chosen_request"):
        st.markdown(f"**Request {plain(shown.lit[:60])}**  \n" + "  \n".join(lines))
        with st.container(horizontal=True):
            shell.link_to(
                "requests", "Its times", ":material/view_timeline:", request=shown.lit
            )
            shell.link_to(
                "preemptions", "Its preemptions", ":material/content_cut:", request=shown.lit
            )


def _data(pictures: list[MapPicture], shown: Shown) -> None:
    if not st.toggle(
        "Show data",
        key="show_map_data",
        help="Scatter and reuse in the shown range, as tables.",
    ):
        return
    tables = data_tables(pictures, shown.axis.unit)
    for name, table in tables.items():
        st.dataframe(table, hide_index=True, height=280, alt=name)


def data_tables(pictures: list[MapPicture], unit: str) -> dict[str, pl.DataFrame]:
    """What the rows under the map draw, in columns with units."""
    x = f"from ({unit})" if unit else "from step"
    reuse = pl.concat(
        [
            p.reuse.select(
                run=pl.lit(p.side),
                x=pl.col("x").round(3),
                handovers="handovers",
                hits=pl.col("hits").round(1),
            )
            for p in pictures
        ]
    ).rename(
        {
            "x": x,
            "handovers": "blocks that changed hands",
            "hits": "blocks found in the prefix cache",
        }
    )
    scatter = pl.concat(
        [
            p.scatter.select(
                run=pl.lit(p.side),
                x=pl.col("x").round(3),
                blocks=pl.col("blocks").round(1),
                copies=pl.col("copies").round(1),
                pieces=pl.col("pieces").round(1),
                most=pl.col("most").cast(pl.Int64),
            )
            for p in pictures
        ]
    ).rename(
        {
            "x": x,
            "blocks": "mean blocks of a request",
            "copies": "mean copies, coalesced",
            "pieces": "mean copies, sorted by address",
            "most": "most copies of one request",
        }
    )
    return {"Reuse": reuse, "Scatter": scatter}
