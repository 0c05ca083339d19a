"""How long requests took in every run, and how many met the bounds that a user sets.

A fragment. It knows widgets; the bounds are in the URL. Curves come from `distributions`, counts from
`goodput`.
"""

from __future__ import annotations

import html
from collections.abc import Mapping

import polars as pl
import streamlit as st

from analyzer.distribution_figure import alt_text, distribution
from analyzer.distributions import METRICS, Curve, curve, percentiles_table
from analyzer.figures import CONFIG
from analyzer.goodput import Goodput, goodput_of
from analyzer.look import Side, seconds
from analyzer.pages.parts import state
from analyzer.pages.parts.messages import guarded, plain
from analyzer.pages.parts.preempted import lanes_of
from analyzer.pages.parts.shell import Opened
from analyzer.pages.parts.timeline import theme
from analyzer.run import Run, run_names
from analyzer.words import show, show_change

# metric -> (label, seconds of one unit, unit, default in that unit, step)
FEW_REQUESTS = 5  # counts below it are too few to differ
FEW = f"no difference (fewer than {FEW_REQUESTS})"
BOUNDS: dict[str, tuple[str, float, str, float | None, float]] = {
    "ttft_s": ("TTFT at most", 1.0, "s", 2.0, 0.1),
    "tpot_s": ("TPOT at most", 1e-3, "ms", 100.0, 5.0),
    "e2e_s": ("E2E at most", 1.0, "s", None, 1.0),
}


@st.cache_resource(max_entries=30, show_spinner="Working out the distribution")
def _curve(ref: str, stamp: str, metric: str, _run: Run) -> Curve:
    return curve(metric, _run.requests, _run.events, _run.steps)


@st.cache_data(max_entries=64, show_spinner=False)
def _goodput(
    ref: str, stamp: str, bounds: tuple[tuple[str, float], ...], duration_s: float, _run: Run
) -> Goodput:
    return goodput_of(_run.requests, dict(bounds), duration_s)


@st.fragment
def latencies_section(opened: Opened) -> None:
    """Bounds, what met them, and the distributions."""
    state.write_url()
    with guarded():
        st.subheader("Goodput under your bounds", anchor=False)
        bounds = bounds_inputs()
        _goodput_cards(opened, bounds)
        _distributions(opened, bounds)


def bounds_inputs() -> dict[str, float]:
    """Fields for the bounds, on every page that has them; in seconds, those left empty are none."""
    found = {}
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="bounds"):
        for metric, (label, factor, unit, default, step) in BOUNDS.items():
            value = st.number_input(
                f"{label} ({unit})",
                min_value=0.0,
                value=default,
                step=step,
                format="%g",
                placeholder="no bound",
                key=f"most_{metric.removesuffix('_s')}",
                bind="query-params",
                persist_state="session",
                width=170,
            )
            if value is not None:
                found[metric] = float(value) * factor
    return found


# ---- goodput ------------------------------------------------------------------------------------


def _goodput_cards(opened: Opened, bounds: Mapping[str, float]) -> None:
    found: dict[Side, Goodput] = {}
    for side, run in opened.runs.items():
        end_s = lanes_of(run).end_of_run_s
        found[side] = _goodput(run.ref, run.stamp, tuple(bounds.items()), end_s, run)
    cards = [
        _card("Requests per second", "Finished requests that met every bound, over the run's length.", {s: g.requests_per_s for s, g in found.items()}, "/s"),
        _card("Share of all requests", "Of all requests, those that finished within every bound.", {s: g.share_frac for s, g in found.items()}, "share"),
        _card("Output tokens per second", "Output tokens of the requests that met every bound, over the run's length.", {s: g.tokens_per_s for s, g in found.items()}, "/s"),
    ]  # fmt: skip
    for metric in bounds:
        label = BOUNDS[metric][0].removesuffix(" at most")
        cards.append(
            _card(
                f"Missed {label} {seconds(bounds[metric])}",
                "Finished requests above this bound.",
                {s: float(g.missed[metric]) for s, g in found.items()},
                "count",
            )
        )
    st.html(
        f'<section class="kv-cards" aria-label="Goodput under your bounds">{"".join(cards)}</section>'
    )
    names = run_names(opened.runs)
    said = [
        f"{s} ({names[s]}): {g.num_met:,} of {g.num_requests:,} requests met all bounds"
        + (f"; {g.num_unfinished:,} did not finish" if g.num_unfinished else "")
        for s, g in found.items()
    ]
    st.caption(plain(f"{'. '.join(said)}."))


def _card(title: str, explained: str, values: Mapping[Side, float | None], kind: str) -> str:
    """One card: the last run large, the others below it, and its change from A. Markup is ours alone."""
    *others, last = values
    large = _side(last, values[last], kind, "kv-b")
    small = "".join(_side(s, values[s], kind, "kv-a") for s in others)
    a, b = values["A"], values[last]
    change = "" if last == "A" else _change(a, b, kind)
    better = 0.0 if a is None or b is None else (a - b if kind == "count" else b - a)
    is_even = abs(better) < 1e-12 or not change or change == FEW
    tone = "even" if is_even else "good" if better > 0 else "bad"
    return (
        f'<article class="kv-card" title="{html.escape(explained)}"><h2>{html.escape(title)}</h2>'
        f'{large}{small}<p class="kv-change kv-{tone}">{html.escape(change)}</p></article>'
    )


def _side(side: Side, value: float | None, kind: str, css: str) -> str:
    shown = show("x_frac" if kind == "share" else "x", value)
    unit = " /s" if kind == "/s" and value is not None else ""
    return f'<p class="{css}"><span class="kv-side">{side}</span>{shown}{unit}</p>'


def _change(a: float | None, b: float | None, kind: str) -> str:
    """'▲ 3.2 %' of A; of shares in points; of a few requests nothing."""
    if a is None or b is None:
        return "not comparable"
    if a == b:
        return "the same"
    if kind == "count" and max(a, b) < FEW_REQUESTS:
        return FEW
    arrow = "▲" if b > a else "▼"
    if kind == "share":
        return f"{arrow} {abs(b - a) * 100:.1f} points"
    if not a:
        return f"{arrow} from 0"
    return f"{arrow} {show_change(abs(b / a - 1)).lstrip('+')}"


# ---- distributions ------------------------------------------------------------------------------


def _distributions(opened: Opened, bounds: Mapping[str, float]) -> None:
    st.subheader("How long requests took", anchor=False)
    with st.container(
        horizontal=True, vertical_alignment="center", gap="small", key="latency_controls"
    ):
        metric = st.segmented_control(
            "Figure",
            list(METRICS),
            format_func=lambda m: METRICS[str(m)],
            default="ttft_s",
            required=True,
            key="latency",
            bind="query-params",
            persist_state="session",
            label_visibility="collapsed",
        )
        scale = st.segmented_control(
            "Scale of the shares",
            ["even", "tail"],
            format_func=lambda k: {"even": "Even", "tail": "Tail"}[str(k)],
            default="even",
            required=True,
            key="share_scale",
            bind="query-params",
            persist_state="session",
            label_visibility="collapsed",
            help="Tail gives 90 %, 99 % and 99.9 % equal room.",
        )
    names = run_names(opened.runs)
    curves = {s: _curve(r.ref, r.stamp, metric, r) for s, r in opened.runs.items()}
    if not any(c.num for c in curves.values()):
        st.info(
            f"No finished request has a value of {METRICS[metric]} here.",
            icon=":material/hourglass_disabled:",
        )
        return
    st.plotly_chart(
        distribution(
            curves,
            METRICS[metric],
            names,
            theme(),
            bound_s=bounds.get(metric),
            is_tail=scale == "tail",
        ),
        theme=None,
        key="latency_chart",
        config={**CONFIG, "displayModeBar": False},
        alt=alt_text(curves, METRICS[metric], names),
    )
    of = "; ".join(f"{s}: {c.num:,} {c.of}" for s, c in curves.items())
    st.caption(plain(f"{of}. Marked: p50, p90 and p99."))
    _data(opened)


def _data(opened: Opened) -> None:
    if not st.toggle(
        "Show data", key="show_latency_data", help="Mean, p50, p90 and p99 of every figure."
    ):
        return
    curves = {
        side: {m: _curve(run.ref, run.stamp, m, run) for m in METRICS}
        for side, run in opened.runs.items()
    }
    table = percentiles_table(curves)
    sides = [c for c in table.columns if c != "figure"]
    st.dataframe(
        table.select(
            "figure",
            *(pl.col(c).map_elements(seconds, pl.String, skip_nulls=False) for c in sides),
        ),
        hide_index=True,
        height="content",
        column_config={
            "figure": st.column_config.TextColumn("Figure", width="medium"),
            **{c: st.column_config.TextColumn(alignment="right") for c in sides},
        },
        alt="Percentiles of every run",
    )
