"""The pictures and lists of the Sweeps page: heat map, curve, front, cells.

It knows widgets; sums come from `sweep_table`, pictures from `sweep_figure`. What is chosen stands in the
URL (`sweep_state`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import streamlit as st

from analyzer.figures import CONFIG
from analyzer.pages.parts import state as shared
from analyzer.pages.parts import sweep_state as state
from analyzer.pages.parts.messages import plain
from analyzer.pages.parts.runs import PairRef
from analyzer.pages.parts.store import Store, default_root
from analyzer.pages.parts.timeline import theme
from analyzer.sweep_figure import (
    MAX_LINES,
    alt_curves,
    alt_heat,
    alt_pareto,
    curve_chart,
    figure_label,
    figure_value,
    heat_map,
    level_label,
    pareto,
    setting_label,
)
from analyzer.sweep_table import SweepTable, curves, front, heat, held_at, not_run
from traces.errors import FileError
from traces.sweep_schema import FIGURE

STATIC: dict[str, Any] = {**CONFIG, "displayModeBar": False}
# What is asked of the engine, and no choice of its operator: choices are compared under one load.
LOAD = ("trace", "rate_scale", "window", "max_requests", "arrivals", "spread_ticks")
DEFAULT_FIGURE = ("ttft_p99_s", "num_preemptions")
LATENCIES = tuple(n for n in FIGURE if n.endswith(("_p50_s", "_p90_s", "_p99_s", "_mean_s")))
THROUGHPUTS = ("output_tokens_per_s", "requests_per_s", "goodput_per_s")
MOST_ROWS = 5_000
_GO = "sweep_go"
_MOST_COMPARED = 3


@dataclass(frozen=True)
class View:
    """What is chosen. x, y: axes, "" where so many do not vary; held: the other axes' values."""

    figure: str
    x: str
    y: str
    held: Mapping[str, Any]


def controls(table: SweepTable) -> View:
    """Figure, both axes, and a value for each axis that is on neither."""
    names = ["figure"]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="sweep_controls"):  # fmt: skip
        options = list(table.figures)
        first = next((f for f in DEFAULT_FIGURE if f in options), options[0])
        figure = state.choose("Figure", "figure", options, first, figure_label)
        x = y = ""
        if table.axes:
            names.append("x")
            x = state.choose("Across", "x", table.axes, _first_axis(table), setting_label)
        rest = [a for a in table.axes if a != x]
        if rest:
            names.append("y")
            y = state.choose("Down, and lines", "y", rest, _first_of(rest), setting_label)
        held = {}
        for axis in (a for a in table.axes if a not in (x, y)):
            levels = table.levels(axis)
            name = f"at_{axis}"
            names.append(name)
            held[axis] = state.choose(
                f"{setting_label(axis)} at", name, levels, _middle(levels), level_label
            )
    names += ["throughput", "latency", *(f"load_{a}" for a in table.axes if a in LOAD)]
    state.forget_others(names)
    return View(figure, x, y, held)


def _first_axis(table: SweepTable) -> str:
    """A setting of numbers, if there is one: curves over it mean most."""
    numbers = [a for a in table.axes if table.frame[a].dtype.is_numeric() and a not in LOAD]
    return (numbers or list(table.axes))[0]


def _first_of(axes: Sequence[str]) -> str:
    load = [a for a in axes if a in LOAD and a != "trace"]
    return (load or list(axes))[0]


def _middle(levels: Sequence[Any]) -> Any:
    is_number = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in levels)
    return levels[len(levels) // 2] if is_number else levels[0]


# ---- a sentence --------------------------------------------------------------------------------------


def sentence(table: SweepTable, view: View) -> None:
    """Where the figure is best and worst among what is shown, and how much of it never preempts."""
    cells = held_at(table, view.held).filter(pl.col(view.figure).is_not_null())
    axes = [a for a in (view.x, view.y) if a]
    with st.container(key="verdict"):
        if cells.is_empty():
            st.markdown("None of the shown cells has a value of this figure.")
            return
        if axes:
            summed = (
                cells.group_by(axes).agg(pl.col(view.figure).median()).sort(view.figure, *axes)
            )
        else:
            summed = cells.select(pl.col(view.figure).median())
        low, high = summed.row(0, named=True), summed.row(-1, named=True)
        label = f"**{plain(figure_label(view.figure))}**"
        if low[view.figure] == high[view.figure]:
            said = f"{label} is {plain(figure_value(view.figure, low[view.figure]))} in every shown cell."
        else:
            said = f"{label} runs from {_at(low, view, axes)} to {_at(high, view, axes)}."
        calm = cells.filter(pl.col("num_preemptions") == 0).height
        if cells["num_preemptions"].count():
            said += f" {calm:,} of {cells.height:,} shown runs preempt nobody."
        st.markdown(said)


def _at(row: Mapping[str, Any], view: View, axes: Sequence[str]) -> str:
    where = ", ".join(f"{setting_label(a)} {level_label(row[a])}" for a in axes)
    return f"{plain(figure_value(view.figure, row[view.figure]))} ({plain(where)})"


# ---- pictures ----------------------------------------------------------------------------------------


def heat_section(table: SweepTable, view: View) -> None:
    """The figure over both axes."""
    if not view.y:
        return
    st.header(
        f"{plain(figure_label(view.figure))} over {plain(setting_label(view.x))} and {plain(setting_label(view.y))}",
        anchor=False,
    )
    found = heat(table, view.x, view.y, view.figure, view.held)
    with st.container(key="sweep_heat_frame"):
        st.plotly_chart(
            heat_map(found, view.x, view.y, view.figure, theme()),
            theme=None, key="sweep_heat", config=STATIC,
            alt=alt_heat(found, view.x, view.y, view.figure),
        )  # fmt: skip
    better = {"less": "Lighter is less, and better.", "more": "Lighter is more, and better."}.get(FIGURE[view.figure].better, "")  # fmt: skip
    if FIGURE[view.figure].better == "":
        better = "Lighter is more."
    seeds = f" Medians over {found.num_seeds:,} seeds." if found.num_seeds > 1 else ""
    st.caption(f"{better}{seeds}")
    if st.toggle("Show data", key="sweep_heat_data", help="The map as a table."):
        first = f"{setting_label(view.y)} \\ {setting_label(view.x)}"
        rows = [
            {first: level_label(b)}
            | {
                level_label(a): figure_value(view.figure, v) if v is not None else word
                for a, v, word in zip(found.x, values, words, strict=True)
            }
            for b, values, words in zip(found.y, found.values, found.words, strict=True)
        ]
        st.dataframe(pl.DataFrame(rows), hide_index=True, alt="The map as a table")


def curve_section(table: SweepTable, view: View) -> None:
    """The figure over the axis across, a line for each value of the other, with the spread over seeds."""
    if not view.x:
        return
    lines = curves(table, view.x, view.y or None, view.figure, view.held)
    st.header(f"{plain(figure_label(view.figure))} over {plain(setting_label(view.x))}", anchor=False)  # fmt: skip
    if not lines:
        st.info("No cell that is shown has a value of this figure.", icon=":material/info:")
        return
    if view.y:
        st.caption(f"A line for each {plain(setting_label(view.y))}.")
    st.plotly_chart(
        curve_chart(lines, view.x, view.y or None, view.figure, theme()),
        theme=None, key="sweep_curve", config=STATIC,
        alt=alt_curves(lines, view.x, view.y or None, view.figure),
    )  # fmt: skip
    most = max(int(str(c.table["num_seeds"].max())) for c in lines)
    band = f"Lines are medians over {most:,} seeds, bands go from the least to the greatest of them." if most > 1 else "One seed: no spread is known."  # fmt: skip
    more = f" The first {MAX_LINES} of {len(lines)} lines are drawn." if len(lines) > MAX_LINES else ""  # fmt: skip
    st.caption(f"{band}{more}")
    if st.toggle("Show data", key="sweep_curve_data", help="The lines as a table."):
        rows = [
            {
                **({setting_label(view.y): level_label(c.level)} if view.y else {}),
                setting_label(view.x): level_label(r["x"]),
                "Median": figure_value(view.figure, r["median"]),
                "Least": figure_value(view.figure, r["low"]),
                "Greatest": figure_value(view.figure, r["high"]),
                "Seeds": r["num_seeds"],
            }
            for c in lines
            for r in c.table.iter_rows(named=True)
        ]
        st.dataframe(pl.DataFrame(rows), hide_index=True, height=280, alt="Lines as a table")


def front_section(table: SweepTable) -> None:
    """Throughput against a latency, under one load."""
    throughputs = [n for n in THROUGHPUTS if n in table.figures]
    latencies = [n for n in LATENCIES if n in table.figures]
    if not throughputs or not latencies:
        return
    st.header("Throughput against latency", anchor=False)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="sweep_front_controls"):  # fmt: skip
        throughput = state.choose("Throughput", "throughput", throughputs, throughputs[0], figure_label)  # fmt: skip
        usual = next((n for n in ("ttft_p99_s", "e2e_p99_s") if n in latencies), latencies[0])
        latency = state.choose("Latency", "latency", latencies, usual, figure_label)
        held = {}
        for axis in (a for a in table.axes if a in LOAD):
            levels = table.levels(axis)
            held[axis] = state.choose(
                f"{setting_label(axis)} at",
                f"load_{axis}",
                levels,
                _middle(levels),
                level_label,
            )
    found = front(table, throughput, latency, held)
    if found.table.is_empty():
        st.info("No cell under this load has both figures.", icon=":material/info:")
        return
    st.plotly_chart(
        pareto(found, theme()), theme=None, key="sweep_front", config=STATIC, alt=alt_pareto(found)
    )  # fmt: skip
    best = found.table.filter("on_front")
    seeds = int(str(found.table["num_seeds"].max()))
    spread = (
        f" Points are medians over {seeds:,} seeds, bars their spread." if seeds > 1 else ""
    )
    st.caption(
        f"{best.height:,} of {found.table.height:,} choices of settings are on the front: no other has more throughput and no more latency.{spread}"
    )
    if st.toggle("Show data", key="sweep_front_data", help="All choices, the front first."):
        rows = [
            {
                "Front": "yes" if r["on_front"] else "",
                **{setting_label(a): level_label(r[a]) for a in found.axes},
                figure_label(throughput): figure_value(throughput, r["throughput"]),
                figure_label(latency): figure_value(latency, r["latency"]),
                "Seeds": r["num_seeds"],
            }
            for r in found.table.sort("on_front", descending=True, maintain_order=True).iter_rows(named=True)
        ]  # fmt: skip
        st.dataframe(pl.DataFrame(rows), hide_index=True, height=280, alt="Choices as a table")


# ---- cells -------------------------------------------------------------------------------------------


def problems_section(table: SweepTable) -> None:
    """Cells that were refused or failed, with the reason."""
    bad = not_run(table)
    if bad.is_empty():
        return
    counts = dict(bad.group_by("status").len().iter_rows())
    said = " and ".join(f"{n:,} {status}" for status, n in sorted(counts.items()))
    st.header(f"Cells without figures: {said}", anchor=False)
    failed = " Failed cells run again with the same command." if "failed" in counts else ""
    st.caption(f"Refused: settings that cannot be, as the engine says.{failed}")
    axes = [a for a in bad.columns if a not in ("trace", "seed", "status", "error")]
    shown = bad.head(MOST_ROWS).select(
        pl.col("trace").str.slice(0, 60).alias("Trace"),
        *(_said(bad.head(MOST_ROWS)[a], setting_label(a)) for a in axes),
        pl.col("seed").alias("Seed"),
        pl.col("status").alias("Status"),
        pl.col("error").fill_null("").str.slice(0, 600).alias("Reason"),
    )
    st.dataframe(
        shown,
        hide_index=True,
        height=min(38 + 35 * shown.height, 320),
        column_config={"Reason": st.column_config.TextColumn(width="large")},
        alt="Cells that were refused or failed",
    )


def _said(column: pl.Series, label: str) -> pl.Series:
    return pl.Series(label, [level_label(v) for v in column], dtype=pl.String)


def cells_section(table: SweepTable, view: View, folder: Path | None) -> None:
    """All shown cells; recordings that were kept can be compared."""
    _go()
    st.header("Cells", anchor=False)
    every = held_at(table, view.held)
    cells = every.head(MOST_ROWS)
    figures = [f for f in _listed(view) if f in table.figures]
    axes = [a for a in table.axes if a not in view.held]
    shown = cells.select(
        *(_said(cells[a], setting_label(a)) for a in axes),
        pl.col("seed").alias("Seed"),
        pl.col("status").alias("Status"),
        *(_figures(cells[f], f) for f in figures),
    )
    kept = [] if folder is None else _kept(cells, folder)
    how: dict[str, Any] = {}
    if any(kept):
        how = {"on_select": "rerun", "selection_mode": "multi-row"}
    event = st.dataframe(
        shown, hide_index=True, height=min(38 + 35 * shown.height, 360), key="sweep_cells",
        column_config={
            c: st.column_config.NumberColumn(format="localized")
            for c in shown.columns
            if shown[c].dtype.is_numeric() and c != "Seed"
        },
        placeholder="—", alt="Cells of the sweep", **how,
    )  # fmt: skip
    if cells.height < every.height:
        st.caption(f"The first {cells.height:,} of {every.height:,} cells are listed.")
    if view.held:
        held = ", ".join(f"{setting_label(a)} {level_label(v)}" for a, v in view.held.items())
        st.caption(f"Shown at {plain(held)}.")
    if any(kept):
        _compare(kept, list(event.selection.rows))
    elif cells["recording"].count():
        st.caption(
            "Recordings were kept: give the sweep's folder by its path, and cells can be compared here."
        )


def _listed(view: View) -> list[str]:
    usual = ("num_preemptions", "recomputed_frac", "output_tokens_per_s", "ttft_p99_s", "tpot_p99_s", "goodput_frac", "peak_used_frac")  # fmt: skip
    return list(dict.fromkeys([view.figure, *usual]))


def _figures(column: pl.Series, name: str) -> pl.Series:
    """A column of numbers in the unit that its head says."""
    label = figure_label(name)
    if name.endswith("_frac"):
        return (column * 100).round(2).alias(f"{label} (%)")
    if name.endswith("_s") and not name.endswith("_per_s"):
        return column.round(4).alias(f"{label} (s)")
    return (column.round(2) if column.dtype.is_float() else column).alias(label)


def _kept(cells: pl.DataFrame, folder: Path) -> list[str]:
    """Path of each row's recording, "" where there is none below that folder."""
    root = folder.resolve()
    found = []
    for name in cells["recording"].to_list():
        path = (root / name).resolve() if name else None
        is_ours = path is not None and path.is_relative_to(root) and path.is_dir()
        found.append(str(path) if is_ours else "")
    return found


def _compare(kept: Sequence[str], rows: Sequence[int]) -> None:
    """A button that shows the chosen rows' recordings on Compare."""
    chosen = [kept[i] for i in rows if i < len(kept) and kept[i]]
    if not chosen:
        st.caption("Choose one to three rows to see their recordings on Compare.")
        return
    if len(rows) > _MOST_COMPARED:
        st.caption(f"At most {_MOST_COMPARED} recordings are compared: the first are taken.")
    st.button(
        f"Compare {len(chosen[:_MOST_COMPARED])} recordings" if len(chosen) > 1 else "Open the recording",
        icon=":material/compare_arrows:", key="sweep_compare", on_click=choose_recordings, args=(chosen[:_MOST_COMPARED],),
    )  # fmt: skip


def choose_recordings(paths: Sequence[str]) -> None:
    """Make these recordings the shown ones, and remember to go there; one that is gone is said instead."""
    store = Store(default_root())
    try:
        refs = [f"file:{store.link(Path(p)).id}" for p in paths]
    except FileError as error:
        st.session_state[state.FAULT] = error  # a callback draws nothing
        return
    st.session_state["source"] = "recordings"
    for side, ref in zip("abc", [*refs, "", "", ""], strict=False):
        st.session_state[f"side_{side}"] = ref
    shared.show_pair(PairRef(*refs))
    st.session_state[_GO] = True


def _go() -> None:
    """Go to Compare where the button asked for it; a callback cannot."""
    if not st.session_state.pop(_GO, False):
        return
    page = st.session_state.get("pages_by_path", {}).get("compare")
    if page is not None:
        st.switch_page(page, query_params=shared.url_of_pair())
