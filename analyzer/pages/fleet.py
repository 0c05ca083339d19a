"""The Fleet page: ranks, replicas or hours beside each other, one by one and never only their mean.

It reads downward: choose, read, judge, draw; ranks side by side; what another router would have done;
how many replicas would do. Which fleet is shown is owned by session state and mirrored in the URL as
`fleet`.
"""

from __future__ import annotations

import html

import numpy as np
import streamlit as st

from analyzer.fleet_balance import say_balance
from analyzer.look import three_digits
from analyzer.pages.parts.fleet_lines import lines_section
from analyzer.pages.parts.fleet_open import (
    Shown,
    current_ref,
    follow_side_bar,
    inputs_section,
    notes_section,
    show,
    shown_fleet,
    write_url,
)
from analyzer.pages.parts.fleet_route import replicas_section, routing_section
from analyzer.pages.parts.fleet_table import table_section
from analyzer.pages.parts.messages import guarded, plain, say_error
from analyzer.pages.parts.store import Store, default_root
from analyzer.words import show as show_value
from traces.errors import RecordingError

_STYLE = """
<style>
[data-testid="stMain"] h2 { font-size: 1.35rem; padding: 0.8rem 0 0.35rem; }
[data-testid="stMain"] .kv-card h2 { font-size: 0.82rem; padding: 0; overflow: hidden; text-overflow: ellipsis; }
@media (max-width: 640px) { .kv-cards.kv-fleet { grid-template-columns: 1fr 1fr; } }
.st-key-fleet_routed { padding: 0.6rem 0.9rem; }
[data-testid="stMain"] h3 { font-size: 1.1rem; padding: 0.3rem 0 0.35rem; }
</style>
"""


def page() -> None:
    """Draw the page."""
    st.html(_STYLE)
    store = Store(default_root())
    with guarded():
        follow_side_bar(store)
    ref = current_ref()
    shown = None
    if ref:
        with guarded():
            try:
                shown = shown_fleet(ref, store)
            except RecordingError as error:
                say_error(error)
                show("")
    write_url()
    if shown is None:
        if not current_ref():
            _intro(store)
        return
    _fleet(shown, store)


def _intro(store: Store) -> None:
    st.title("Fleet · one rank full, the others idle?", anchor=False)
    st.caption(
        "Give the folder that data-parallel ranks, replicas or hours were recorded into: a line for each, who could have "
        "taken whose requests, what another router would have done, and how many replicas would do."
    )
    with guarded():
        inputs_section(store, False)


def _fleet(shown: Shown, store: Store) -> None:
    series = shown.series
    kind = "rank" if len(series.ranks) == 1 else "ranks"
    with st.container(horizontal=True, vertical_alignment="center", key="header"):
        st.title(f"Fleet · {plain(_name(shown))}: {len(series.ranks):,} {kind}", anchor=False)
    with st.container(key="set_up"):
        st.caption(plain(_set_up(shown)))
    with st.container(key="verdict", border=True):
        st.markdown(f"**{plain(say_balance(series, shown.balance))}**")
    _cards(shown)
    with guarded():
        notes_section(shown)
    lines_section(shown)
    table_section(shown)
    routing_section(shown, store)
    replicas_section(shown, store)
    with guarded():
        inputs_section(store, True)


def _name(shown: Shown) -> str:
    """The folder's name; of a simulated fleet not its 32 digits."""
    return "simulated" if shown.ref.startswith("run:") else shown.series.label


def _set_up(shown: Shown) -> str:
    series = shown.series
    members = sum(len(r.members) for r in series.ranks)
    first = series.ranks[0].members[0].member.meta
    parts = [
        f"{members:,} members",
        f"{three_digits(series.grid.end_s - series.grid.start_s)} s",
    ]
    for key in ("model", "device"):
        said = first.get(key)
        name = said.get("name") if isinstance(said, dict) else said
        if name:
            parts.append(str(name))
    pools = {r.facts.pool_tokens for r in series.ranks}
    if len(pools) == 1 and (pool := next(iter(pools))):
        parts.append(f"{pool:,} KV tokens in each pool")
    parts.append(f"on one axis by {series.clock.how}" if series.clock.how != "together" else "ranks begin together")  # fmt: skip
    parts.append("usage " + " and ".join(sorted({r.facts.usage_is for r in series.ranks})))
    return " · ".join(parts)


_CARDS = (
    ("imbalance", "Imbalance", "KV tokens of the fullest rank over the mean of all, over the whole time. 1 is even."),
    ("full_while_room_frac", "One full, one has room", "Share of the time in which a rank has at least 98 % of its pool in use or preempts, while another never has more than 90 % in use and nobody waits there."),
    ("waiting_fits_mean", "Fits elsewhere, mean", "Waiting requests, on average, that ranks with room could have taken at that time, by free tokens over the mean prompt and by free seats."),
    ("waiting_fits_frac", "Fits elsewhere, share", "Of the time that requests waited, the share in which they would have fitted elsewhere."),
    ("num_preemptions", "Preemptions", "How often a running request lost its KV blocks."),
)  # fmt: skip


def _cards(shown: Shown) -> None:
    """Five figures. Markup is ours alone: numbers and fixed words, nothing from a file."""
    counted = shown.series.values["preemptions"]
    figures: dict[str, float | None] = {
        **shown.balance.figures(),
        "num_preemptions": None if np.isnan(counted).all() else float(np.nansum(counted)),
    }
    cards = "".join(
        f'<article class="kv-card" title="{html.escape(explained)}"><h2>{html.escape(title)}</h2>'
        f'<p class="kv-b">{html.escape(show_value(key, figures.get(key)))}</p></article>'
        for key, title, explained in _CARDS
    )
    st.html(
        f'<section class="kv-cards kv-fleet" aria-label="Five figures of the fleet">{cards}</section>'
    )
