"""All requests of every run in a table: found, sorted and paged on the server.

A fragment. It knows widgets; which rows and what is in them is known in `request_table`. However many
requests there are, the browser gets PAGE rows.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import streamlit as st

from analyzer.pages.parts.messages import guarded, plain
from analyzer.pages.parts.request_choice import choose, pair_of
from analyzer.pages.parts.shell import Opened
from analyzer.request_table import FIGURES, Asked, Paired, chosen, rows_of

PAGE = 200
MOST_IN_CSV = 300_000
_CHOSEN = "request_was_chosen"
_ASKED = {"arrival_s": "Arrival (s)", "prompt_tokens": "Prompt", "output_tokens": "Output"}
_STEPS = {"s": 1.0, "ms": 1e3, "tokens": 1.0, "": 1.0}


@st.cache_resource(max_entries=6, show_spinner=False)
def _numbers(key: str, asked: Asked, _pair: Paired) -> np.ndarray:
    return chosen(_pair, asked)


@st.fragment
def list_section(opened: Opened) -> None:
    """Search, order, the table, pages and the download."""
    if st.session_state.pop(_CHOSEN, False):
        st.rerun()  # the whole page: the lanes show the chosen request
    with guarded():
        pair = pair_of(opened.key, opened.runs)
        st.subheader("All requests", anchor=False)
        asked = _controls(pair)
        numbers = _numbers(opened.key, asked, pair)
        if not len(numbers):
            _nothing(asked)
            return
        page = _page(len(numbers), asked)
        here = numbers[(page - 1) * PAGE : page * PAGE]
        table = rows_of(pair, here)
        event_key = "requests_table"
        st.dataframe(
            _scaled(table),
            hide_index=True,
            height=min(460, 38 + 35 * table.height),
            column_config=_columns(pair),
            key=event_key,
            on_select=partial(_selected, pair, here, event_key),
            selection_mode="single-row",
            alt="Requests of every run with their figures and differences",
        )
        _below(pair, numbers, page, asked)


def _selected(pair: Paired, here: np.ndarray, key: str) -> None:
    rows = st.session_state[key].selection.rows
    if rows and rows[0] < len(here):
        choose(pair, int(here[rows[0]]))
        st.session_state[_CHOSEN] = True


def _controls(pair: Paired) -> Asked:
    labels = {**_ASKED, **{name: label for name, (label, _) in FIGURES.items()}}
    with st.container(
        horizontal=True, vertical_alignment="bottom", gap="small", key="list_controls"
    ):
        find = st.text_input(
            "Find",
            key="find",
            bind="query-params",
            persist_state="session",
            max_chars=200,
            placeholder="Part of an id",
            icon=":material/search:",
            width=200,
            on_change=_first_page,
        )
        sort = st.selectbox(
            "Sort by",
            list(labels),
            format_func=lambda name: labels[str(name)],
            index=list(labels).index("preempted_s"),
            key="sort_by",
            bind="query-params",
            persist_state="session",
            width=170,
            on_change=_first_page,
        )
        which = st.segmented_control(
            "of",
            pair.columns,
            default="A",
            required=True,
            key="sort_of",
            bind="query-params",
            persist_state="session",
            on_change=_first_page,
        )
        order = st.segmented_control(
            "Order",
            ["down", "up"],
            format_func=lambda k: {"down": "Greatest first", "up": "Least first"}[str(k)],
            default="down",
            required=True,
            key="sort_order",
            bind="query-params",
            persist_state="session",
            on_change=_first_page,
        )
    return Asked((find or "").strip(), str(sort), which, order == "down")


def _first_page() -> None:
    st.session_state.pop("list_page", None)


def _nothing(asked: Asked) -> None:
    st.info(
        f"No request's id holds {plain(asked.find[:60])}."
        if asked.find
        else "There is no request in these runs.",
        icon=":material/filter_alt_off:",
    )
    if asked.find:
        st.button("Show all requests", on_click=_forget_find, key="forget_find")


def _forget_find() -> None:
    st.session_state["find"] = ""


def _page(total: int, asked: Asked) -> int:
    pages = -(-total // PAGE)
    if pages < 2:
        return 1
    return int(st.pagination(pages, key="list_page", max_visible_pages=7))


def _below(pair: Paired, numbers: np.ndarray, page: int, asked: Asked) -> None:
    """How many there are, and the download."""
    first, last = (page - 1) * PAGE + 1, min(page * PAGE, len(numbers))
    of = f"{len(numbers):,} requests" + (
        f" of {len(pair):,}, whose id holds “{asked.find[:60]}”" if asked.find else ""
    )
    with st.container(horizontal=True, vertical_alignment="center", key="list_below"):
        st.caption(
            plain(f"Rows {first:,} to {last:,} of {of}.")
            + " Choose a row to see its request above.",
        )
        cut = numbers[:MOST_IN_CSV]
        label = (
            f"CSV of {len(numbers):,} rows"
            if len(cut) == len(numbers)
            else f"CSV of the first {len(cut):,} of {len(numbers):,} rows"
        )
        st.download_button(
            label,
            data=_csv(pair, cut),
            file_name="kv-replay-requests.csv",
            mime="text/csv",
            icon=":material/download:",
            on_click="ignore",
            key="requests_csv",
        )


def _csv(pair: Paired, numbers: np.ndarray) -> Callable[[], bytes]:
    """Builds the file when it is asked for: ids as they are, seconds, tokens."""
    return lambda: rows_of(pair, numbers, longest=None).write_csv().encode()


# ---- columns ------------------------------------------------------------------------------------


def _scaled(table: pl.DataFrame) -> pl.DataFrame:
    """Times in the unit that their column's title says."""
    return table.with_columns(
        pl.col(column) * _STEPS[unit]
        for name, (_, unit) in FIGURES.items()
        for column in table.columns
        if column.startswith(f"{name} · ") and _STEPS[unit] != 1
    )


def _columns(pair: Paired) -> dict[str, Any]:
    number, text = st.column_config.NumberColumn, st.column_config.TextColumn
    found: dict[str, Any] = {"request": text("Request", width=110, pinned=True)}
    found |= {
        name: number(label, format="localized" if name != "arrival_s" else "%.3f", width=82)
        for name, label in _ASKED.items()
    }
    found |= {f"status · {s}": text(f"Status {s}", width=82) for s in pair.rows}
    for name, (label, unit) in FIGURES.items():
        for which in pair.columns:
            title = f"{label} {which}" + (f" ({unit})" if unit in ("s", "ms") else "")
            form = {"s": "%.3f", "ms": "%.1f"}.get(unit, "localized")
            found[f"{name} · {which}"] = number(title, format=form, width=128)
    return found
