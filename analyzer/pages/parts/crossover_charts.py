"""The Crossover page's verdict and its three charts, each with its data.

It knows widgets and caches; costs come from `crossover_costs`, what follows from them from
`crossover`, words and pictures from `crossover_words` and `crossover_figure`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl
import streamlit as st

from analyzer import figures
from analyzer.crossover import (
    Cell,
    Costs,
    Range,
    as_table,
    cheaper,
    cheaper_ranges,
    curve,
    needed_cached_frac,
    needed_link_bytes_per_s,
)
from analyzer.crossover_figure import Drawn, ModelRow, curves, intensity_rows, ratio_map
from analyzer.crossover_victims import OwnVictims, cheaper_of, dots, lengths_of
from analyzer.crossover_words import (
    alt_curves,
    alt_intensity,
    alt_map,
    say_condition,
    say_rule_misses,
    say_typical,
    say_victims,
    verdict,
    what_would_flip,
)
from analyzer.look import Side, three_digits
from analyzer.pages.parts.crossover_costs import (
    LONGEST,
    Own,
    break_even_of,
    cell_of,
    device_of,
    large_copies_break_even,
    params_of,
    shape_of,
    ways_of,
    work_of,
)
from analyzer.pages.parts.crossover_state import Chosen, Names
from analyzer.pages.parts.messages import plain
from analyzer.pages.parts.timeline import theme
from traces.errors import SettingsError

STATIC: dict[str, Any] = {**figures.CONFIG, "displayModeBar": False}
_SHORT, _LONG = 1_024, 32_768  # ends of a model's bar


def curves_section(
    chosen: Chosen,
    own: Own,
    victims: Mapping[Side, OwnVictims],
    names: Mapping[Side, str],
    has_own_setup: Mapping[Side, bool],
    measured: Sequence[Side],
    head: Any,
) -> None:
    """The verdict, put into `head`, and both costs over length with the runs' victims on them.

    has_own_setup: side -> whether what is set is what it ran with; measured: sides whose times are.
    """
    setup, frac = chosen.setup, chosen.cached_pct / 100
    # a run may be given longer requests than its model was made for
    own_longest = [_longest(v) for side, v in victims.items() if has_own_setup[side]]
    most = shape_of(setup, own).max_model_len or LONGEST
    ways = ways_of(setup, own, max([most, chosen.tokens, *own_longest]))
    points = curve(ways, frac)
    ranges = cheaper_ranges(ways, frac, points)
    at = ways.at(chosen.tokens, frac)
    with head:
        _verdict(chosen, own, points, ranges, at)
        told = next((v for s, v in victims.items() if v.found_frac is not None and has_own_setup[s]), None)  # fmt: skip
        if typical := say_typical(frac, told):
            st.caption(plain(typical))
        for side, one in victims.items():
            st.caption(plain(say_victims(side, names[side], one, has_own_setup[side])))
    drawn = {
        side: Drawn(dots(one.table) if has_own_setup[side] else None, lengths_of(one.table))
        for side, one in victims.items()
        if one.table.height
    }
    st.header(
        f"Over the length of the victim, {chosen.cached_pct:,} % of it still cached",
        anchor=False,
    )
    st.plotly_chart(
        curves(points, ranges, at, drawn, theme(), is_async=setup.copy_mode == "async"),
        theme=None,
        key="cx_curves",
        config=STATIC,
        alt=alt_curves(points, ranges, {s: victims[s].table.height for s in drawn}),
    )
    drawn_measured = [s for s in measured if s in drawn and has_own_setup[s]]
    standing = {s: (d.dots.height, int(d.dots["num_here"].sum())) for s, d in drawn.items() if d.dots is not None}  # fmt: skip
    thin = [f"{num:,} for {of:,} of {s}" for s, (num, of) in standing.items() if num < of]
    free = [f"{n:,} of {s}" for s, (_, of) in standing.items() if (n := victims[s].table.height - of)]  # fmt: skip
    st.caption(
        "Modelled by the formulas of the estimates that preemption mode cheapest compares. Victims stand at what each did cost, with its own cached share and with copies of neighbouring blocks as one; shape and colour say which way was cheaper for that victim, the other way by its estimate."
        + (
            f" Costs of {' and '.join(drawn_measured)} were measured, the lines are modelled."
            if drawn_measured
            else ""
        )
        + (
            f" Victims that fall on one another share a dot: {plain('; '.join(thin))}."
            if thin
            else ""
        )
        + (
            f" Without a dot, since nothing of them had to be computed or copied or their cost is not known: {plain('; '.join(free))}."
            if free
            else ""
        )
    )
    if st.toggle(
        "Show data", key="cx_curves_data", help="Both costs and the victims as tables."
    ):
        st.dataframe(_costs_table(points), hide_index=True, height=280, alt="Both costs over length as a table")  # fmt: skip
        for side, one in victims.items():
            if one.table.height:
                st.dataframe(_victims_table(one.table), hide_index=True, height=280, placeholder="not recorded", alt=f"Victims of {side} as a table")  # fmt: skip


def _longest(victims: OwnVictims) -> int:
    return int(str(victims.table["tokens"].max())) if victims.table.height else 0


def _verdict(
    chosen: Chosen, own: Own, points: Sequence[Costs], ranges: Sequence[Range], at: Costs
) -> None:
    setup, frac = chosen.setup, chosen.cached_pct / 100
    cost = params_of(setup, own)
    link = (cost.link_out_bytes_per_s, cost.link_in_bytes_per_s)
    said = verdict(ranges, points[0].tokens, points[-1].tokens, at)
    flip = what_would_flip(at, frac, *_needed(chosen, own))
    st.markdown(
        f"**{plain(said)}**  \n{plain(flip)}  \n{plain(f'For {say_condition(setup, frac, link)}.')}"
    )


def _needed(chosen: Chosen, own: Own) -> tuple[float | None, float | None]:
    """Cache share and link speed at which the order flips at the chosen length."""
    setup, frac = chosen.setup, chosen.cached_pct / 100

    def with_link(speed: float) -> Any:
        return ways_of(replace(setup, link_gb_per_s=speed / 1e9), own)

    return (
        needed_cached_frac(ways_of(setup, own), chosen.tokens),
        needed_link_bytes_per_s(with_link, chosen.tokens, frac),
    )


def _costs_table(points: Sequence[Costs]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "Tokens": [p.tokens for p in points],
            "Recompute (ms)": [p.recompute_s * 1e3 for p in points],
            "Swap (ms)": [p.swap_s * 1e3 for p in points],
            "Copy out (ms)": [p.out_s * 1e3 for p in points],
            "Copy in (ms)": [p.back_s * 1e3 for p in points],
            "Recompute / swap": [p.ratio for p in points],
        }
    )


def _victims_table(table: pl.DataFrame) -> pl.DataFrame:
    return table.select(
        pl.col("step").alias("Step"),
        pl.col("request_id").str.slice(0, 60).alias("Request"),
        pl.col("tokens").alias("Tokens"),
        pl.col("mode_used").alias("Mode"),
        (pl.col("cost_s") * 1e3).alias("Cost (ms)"),
        (pl.col("recompute_est_s") * 1e3).alias("Recompute, est. (ms)"),
        (pl.col("swap_est_s") * 1e3).alias("Swap, est. (ms)"),
        pl.col("found_tokens").alias("Found again (tokens)"),
        (pl.col("own_recompute_s") * 1e3).alias("Recompute, own (ms)"),
        (pl.col("own_swap_s") * 1e3).alias("Swap, own (ms)"),
        cheaper_of().alias("Cheaper"),
        pl.col("basis").alias("Cached share"),
    )


# ---- models by devices ----------------------------------------------------------------------------


def map_section(chosen: Chosen, own: Own, names: Names) -> None:
    """Who is cheaper for every model on every device, at the chosen length."""
    st.header(f"Models by devices, at {chosen.tokens:,} tokens", anchor=False)
    frac = chosen.cached_pct / 100
    cells = _cells(chosen, own, names, frac)
    by_worth = _in_order(chosen, own, names)
    with st.container(key="cx_map_frame"):
        st.plotly_chart(
            ratio_map(cells, *by_worth, (chosen.setup.model, chosen.setup.device), theme()),
            theme=None,
            key="cx_map",
            config=STATIC,
            alt=alt_map(cells, chosen.tokens),
        )
        # in the frame: what scrolls must hold something that the keyboard reaches
        shows = st.toggle("Show data", key="cx_map_data", help="The map as a table.")
    link = "" if chosen.setup.link_gb_per_s is None else f" Every device behind a link of {three_digits(chosen.setup.link_gb_per_s)} GB/s."  # fmt: skip
    st.caption(
        f"**S** 4.1: swap is cheaper, 4.1 times; **R**: recompute is. In brackets: the weights leave no room for KV on {chosen.setup.tp * chosen.setup.pp:,} of the devices; —: the heads cannot be split so, or neither costs anything.{link}"
    )
    if shows:
        st.dataframe(as_table(cells), hide_index=True, height=280, placeholder="—", alt="Models by devices as a table")  # fmt: skip


@st.cache_data(max_entries=32, show_spinner=False)
def _cells_at(
    made_of: str, _chosen: Chosen, _own: Own, _names: Names, frac: float
) -> list[Cell]:
    setup, own = _chosen.setup, _own
    found = []
    for model in _names.models:
        for device in _names.devices:
            pair = replace(setup, model=model, device=device)
            if device != setup.device:
                pair = replace(pair, budget=None)  # vLLM's default for that device
            found.append(cell_of(pair, own, _chosen.tokens, frac))
    return found


def _cells(chosen: Chosen, own: Own, names: Names, frac: float) -> list[Cell]:
    return _cells_at(repr((chosen, own, names)), chosen, own, names, frac)


def _in_order(chosen: Chosen, own: Own, names: Names) -> tuple[list[str], list[str]]:
    """Models by kFLOP per KV byte, devices by break-even, most first."""
    setup = chosen.setup

    def worth(model: str) -> float:
        shape = shape_of(replace(setup, model=model), own)
        work = work_of(shape, replace(setup, tp=1))
        return work.flops_per_byte(chosen.tokens, _found(chosen, chosen.tokens)) or 0.0

    def even(device: str) -> float:
        return large_copies_break_even(device_of(replace(setup, device=device), own))

    return sorted(names.models, key=worth, reverse=True), sorted(names.devices, key=even)


def _found(chosen: Chosen, tokens: int) -> int:
    """Tokens of such a victim that the cache gives back."""
    size = chosen.setup.block_size
    return int(chosen.cached_pct / 100 * (tokens // size) * size)


# ---- kFLOP per KV byte ----------------------------------------------------------------------------


def intensity_section(chosen: Chosen, own: Own, names: Names) -> None:
    """Models against machines on the one axis that decides."""
    st.header("kFLOP per KV byte against the machine's break-even", anchor=False)
    models, devices = _in_order(chosen, own, names)
    rows = [r for m in models if (r := _row(chosen, own, m)) is not None]
    machines = [(d, large_copies_break_even(device_of(replace(chosen.setup, device=d), own)) / 1e3) for d in devices]  # fmt: skip
    pair = (chosen.setup.model, chosen.setup.device)
    st.plotly_chart(
        intensity_rows(rows, machines, pair, chosen.tokens, theme()),
        theme=None,
        key="cx_intensity",
        config=STATIC,
        alt=alt_intensity([(r.name, r.at) for r in rows], machines, chosen.tokens),
    )
    cached = f", the {chosen.cached_pct:,} % still cached left out" if chosen.cached_pct else ""
    misses = say_rule_misses([(r.name, r.is_right, r.way) for r in rows], chosen.setup.device)
    st.caption(
        plain(f"Place: FLOPs that rebuild the victim{cached}, over the bytes of its KV. Shape and colour: which way costs less on {chosen.setup.device}, as in the map above. The rule of thumb is that a model right of a tick swaps cheaper; weight reads, launches and the running batch are not in it, copies block both ways.{misses} Experts are counted up by the device's lower efficiency for them; window layers keep all tokens, as in the engine's nominal blocks.")
    )  # fmt: skip
    if st.toggle("Show data", key="cx_intensity_data", help="Models and machines as tables."):
        st.dataframe(
            pl.DataFrame(
                {
                    "Model": [r.name for r in rows],
                    f"kFLOP per byte at {chosen.tokens:,} tokens": [r.at for r in rows],
                    f"at {_SHORT:,}": [r.low for r in rows],
                    f"at {_LONG:,}": [r.high for r in rows],
                    f"{chosen.setup.device} breaks even": [r.break_even for r in rows],
                    "Cheaper, by the costs": [r.way for r in rows],
                },
                strict=False,
            ),
            hide_index=True, height=280, placeholder="—", alt="Models' kFLOP per KV byte as a table",
        )  # fmt: skip
        st.dataframe(
            pl.DataFrame({"Device": [n for n, _ in machines], "Breaks even (kFLOP per byte)": [v for _, v in machines]}),
            hide_index=True, height=280, alt="Machines' break-even as a table",
        )  # fmt: skip


def _row(chosen: Chosen, own: Own, model: str) -> ModelRow | None:
    """A model's row; None where it has no KV that grows with its tokens, or cannot be split so."""
    setup = replace(chosen.setup, model=model)
    try:
        derate = 1.0 / device_of(setup, own).moe_linear_factor
        work = work_of(shape_of(setup, own), setup, derate)
        even = break_even_of(setup, own) / 1e3
        costs = ways_of(setup, own).at(chosen.tokens, chosen.cached_pct / 100)
    except SettingsError:
        return None
    at, low, high = (work.flops_per_byte(n, _found(chosen, n)) for n in (chosen.tokens, _SHORT, _LONG))  # fmt: skip
    if at is None or low is None or high is None:
        return None
    way = "recompute" if cheaper(costs) == "recompute" else "swap"
    return ModelRow(model, at / 1e3, low / 1e3, high / 1e3, even, way)
