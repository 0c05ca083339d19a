"""A page's heading: what is shown, its set-up in one line, and the button that exchanges the sides.

It knows what a reader of a screenshot asks for. It reads metadata and lengths, no steps.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from analyzer.pages.parts import state
from analyzer.pages.parts.messages import plain
from analyzer.pages.parts.runs import PairRef
from analyzer.pages.parts.settings_form import exchange_sides
from analyzer.run import Run, run_names


def header(
    a: Run, b: Run, pair: PairRef, title: str, is_sample: bool, is_previous: bool
) -> None:
    """Title, set-up in one line, and the button that exchanges the sides.

    title: of the page, "" where the pair alone heads it.
    """
    before = "Previous result: " if is_previous else ""
    page = f"{title} · " if title else ""
    with st.container(
        horizontal=True,
        horizontal_alignment="distribute",
        vertical_alignment="center",
        key="header",
    ):
        names = run_names({"A": a, "B": b})
        st.title(
            f"{page}{before}A {plain(names['A'])} against B {plain(names['B'])}",
            anchor=False,
            width="content",
        )
        st.button(
            "⇄ Exchange A and B", on_click=_swap, args=(pair.swapped(),), key="swap_sides"
        )
    sample = (
        "**Sample data** (to replay your own, choose *Trace* on the left) · "
        if is_sample
        else ""
    )
    with st.container(key="set_up"):
        st.caption(sample + plain(set_up(a, b)))


def _swap(pair: PairRef) -> None:
    """Exchange the runs, and the settings they came from."""
    state.show_pair(pair, state.made_from())
    exchange_sides()


def set_up(a: Run, b: Run) -> str:
    """What a reader of a screenshot asks for: requests, lengths, pool, model, device, clock."""
    meta, requests = b.meta, b.requests
    parts = [
        str(meta.workload.get("name") or b.recording.label),
        f"{requests.height:,} requests",
        f"prompt median {_median(requests['prompt_tokens'])}, output median {_median(requests['output_tokens'])} tokens",
        _pools(a, b),
    ]
    for kind in ("model", "device"):
        said = meta.get(kind) or meta.settings.get(kind)
        name = said.get("name") if isinstance(said, dict) else said
        if name:
            parts.append(str(name))
    clocks = {
        side: "modelled" if run.is_simulated else "measured"
        for side, run in (("A", a), ("B", b))
    }
    if clocks["A"] == clocks["B"]:
        parts.append("both simulated, times modelled" if a.is_simulated else _measured(a, b))
    else:
        parts.append(f"times of A {clocks['A']}, of B {clocks['B']}")
    return " · ".join(parts)


def _measured(a: Run, b: Run) -> str:
    """'both measured (torch engine)', with what really ran, where that is known and the same."""
    ran = {run.meta.executor for run in (a, b)}
    return (
        f"both measured ({ran.pop()} engine)"
        if len(ran) == 1 and None not in ran
        else "both measured"
    )


def _median(column: Any) -> str:
    value = column.median()
    return "—" if value is None else f"{value:,.0f}"


def _pools(a: Run, b: Run) -> str:
    pools = [run.recording.pool_blocks for run in (a, b)]
    size = b.meta.block_size_tokens
    tokens = f" of {size} tokens" if size else ""
    return (
        f"{pools[0]:,} blocks{tokens}"
        if pools[0] == pools[1]
        else f"{pools[0]:,} (A) and {pools[1]:,} (B) blocks{tokens}"
    )
