"""The ranks of a fleet set side by side, with search, and the way to each of them on the other pages."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import streamlit as st

from analyzer.fleet_ranks import fullest_first, rank_table
from analyzer.fleet_series import RankInfo
from analyzer.pages.parts import state
from analyzer.pages.parts.fleet_open import Shown
from analyzer.pages.parts.messages import guarded, plain
from analyzer.pages.parts.runs import PairRef
from analyzer.pages.parts.store import Store, default_root
from traces.fleet import RECORDING

_GO = "fleet_go"
_COLUMNS = {
    "name": "Rank",
    "mean_used_frac": "Mean usage",
    "peak_used_frac": "Peak usage",
    "full_time_frac": "Time full",
    "num_preemptions": "Preemptions",
    "mean_waiting": "Waiting, mean",
    "max_waiting": "Waiting, most",
    "mean_running": "Running, mean",
    "used_tokens": "KV tokens in use, mean",
    "pool_tokens": "Pool (tokens)",
    "tokens_per_s": "Computed tokens/s",
    "known": "Usage is",
    "label": "First member",
    "members": "Members",
}


def table_section(shown: Shown) -> None:
    """Search, table, and buttons for the chosen ranks."""
    _go()
    st.header("Ranks side by side", anchor=False)
    with guarded():
        table = rank_table(shown.series)
        order = fullest_first(table)
        table = table[order]
        wanted = str(st.text_input("Find a rank", key="fleet_find", placeholder="part of its name or folder") or "").strip()  # fmt: skip
        if wanted:
            low = wanted.lower()
            hits = table.select(
                pl.concat_str("name", "label", separator="\n").str.to_lowercase().str.contains(low, literal=True)
            ).to_series()  # fmt: skip
            order = [i for i, hit in zip(order, hits, strict=True) if hit]
            table = table.filter(hits)
        if table.is_empty():
            st.info(f"No rank's name or folder holds {plain(wanted)}.")
            return
        chosen = _table(table)
        _open_buttons([shown.series.ranks[order[i]] for i in chosen if i < len(order)])


def _table(table: pl.DataFrame) -> list[int]:
    shown = table.with_columns(
        pl.col("mean_used_frac", "peak_used_frac", "full_time_frac") * 100
    ).select(pl.col(k).alias(v) for k, v in _COLUMNS.items())
    number = st.column_config.NumberColumn
    formats = {
        **dict.fromkeys(("Mean usage", "Peak usage", "Time full"), number(format="%.1f %%")),
        **dict.fromkeys(("Running, mean", "Waiting, mean"), number(format="%.1f")),
        **dict.fromkeys(
            ("KV tokens in use, mean", "Pool (tokens)", "Waiting, most", "Preemptions", "Computed tokens/s"),
            number(format="localized", step=1),
        ),
    }  # fmt: skip
    found = st.dataframe(
        shown.with_columns(
            pl.col("KV tokens in use, mean", "Waiting, most", "Preemptions", "Computed tokens/s").round(0).cast(pl.Int64)
        ),
        key="fleet_table",
        on_select="rerun",
        selection_mode="multi-row",
        hide_index=True,
        height=min(38 + 35 * shown.height, 460),
        column_config=formats,
        placeholder="not known",
        alt="Ranks of the fleet side by side",
    )  # fmt: skip
    return [int(i) for i in found.selection.rows]


def _open_buttons(ranks: list[RankInfo]) -> None:
    """Open the first member of one chosen rank, or of two against each other, on the other pages."""
    usable = [r for r in ranks if r.kind == RECORDING]
    if not usable:
        st.caption(
            "Choose a rank to open it on the other pages, or two to hold them against each other."
        )
        return
    with st.container(horizontal=True):
        st.button(
            plain(f"Open {usable[0].name} on Compare"),
            key="fleet_open_one",
            icon=":material/compare_arrows:",
            on_click=_choose,
            args=([_path(usable[0])], "compare"),
        )
        st.button(
            plain(f"Preemptions of {usable[0].name}"),
            key="fleet_open_preemptions",
            icon=":material/eject:",
            on_click=_choose,
            args=([_path(usable[0])], "preemptions"),
        )
        if len(usable) > 1:
            st.button(
                plain(f"{usable[0].name} against {usable[1].name}"),
                key="fleet_open_two",
                icon=":material/compare_arrows:",
                on_click=_choose,
                args=([_path(usable[0]), _path(usable[1])], "compare"),
            )
    joined = [r.name for r in usable[:2] if len(r.members) > 1]
    if joined:
        st.caption(plain(f"Of {', '.join(joined)} the first member is opened."))


def _path(rank: RankInfo) -> str:
    return str(rank.members[0].member.path)


def _choose(paths: list[str], page: str) -> None:
    """Make the ranks' recordings the shown ones, and remember to go there."""
    store = Store(default_root())
    refs = [f"file:{store.link(Path(p)).id}" for p in paths]
    st.session_state["source"] = "recordings"
    for side, ref in zip("abc", [*refs, "", "", ""], strict=False):
        st.session_state[f"side_{side}"] = ref
    state.show_pair(PairRef(*refs))
    st.session_state[_GO] = page


def _go() -> None:
    """Go to the page that a button asked for; a callback cannot."""
    wanted = st.session_state.pop(_GO, None)
    page = st.session_state.get("pages_by_path", {}).get(wanted)
    if page is not None:
        st.switch_page(page, query_params=state.url_of_pair())
