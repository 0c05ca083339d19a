"""A page's heading: what is shown, its set-up in one line, and the button that exchanges the sides.

It knows what a reader of a screenshot asks for. It reads metadata and lengths, no steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import streamlit as st

from analyzer.look import Side
from analyzer.pages.parts import state
from analyzer.pages.parts.messages import plain
from analyzer.pages.parts.runs import PairRef
from analyzer.pages.parts.settings_form import exchange_sides
from analyzer.run import Run, run_names
from analyzer.set_up import set_up


def header(
    runs: Mapping[Side, Run],
    pair: PairRef,
    title: str,
    is_sample: bool,
    is_previous: bool,
    aside: Callable[[], None] | None = None,
) -> None:
    """Title, set-up in one line, and the button that exchanges the sides.

    title: of the page, "" where the pair alone heads it; aside: draws beside it.
    """
    before = "Previous result: " if is_previous else ""
    page = f"{title} · " if title else ""
    with st.container(
        horizontal=True,
        horizontal_alignment="distribute",
        vertical_alignment="center",
        key="header",
    ):
        names = run_names(runs)
        st.title(
            f"{page}{before}{_against(names)}",
            anchor=False,
            width="content",
        )
        if aside is not None:
            with st.container(horizontal=True, gap="small", width="content", key="aside"):
                aside()
        if "B" in runs:
            st.button(
                "⇄ Exchange A and B", on_click=_swap, args=(pair.swapped(),), key="swap_sides"
            )
    sample = (
        "**Sample data** (to replay your own, choose *Trace* on the left) · "
        if is_sample
        else ""
    )
    with st.container(key="set_up"):
        st.caption(sample + plain(set_up(runs)))


def _against(names: Mapping[Side, str]) -> str:
    """'A recompute against B swap', 'A recompute' where it is alone."""
    said = [f"{side} {plain(name)}" for side, name in names.items()]
    return " against ".join(filter(None, (said[0], " and ".join(said[1:]))))


def _swap(pair: PairRef) -> None:
    """Exchange the runs, and the settings they came from."""
    state.show_pair(pair, state.made_from())
    exchange_sides()
