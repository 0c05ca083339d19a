"""How two runs compare, in a sentence, six cards and a table.

It knows labels, units and what fits into a card. Every figure and judgement comes from `compare`.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import polars as pl
import streamlit as st

from analyzer.compare import Comparison, estimated_figures, flat_figures
from analyzer.delta_words import as_third, say_change, say_how_judged, say_interval, say_judged
from analyzer.figures import CONFIG, shares_below
from analyzer.look import Side, Theme, seconds
from analyzer.pages.parts.messages import plain
from analyzer.run import Run, run_names
from analyzer.run_figures import comparison_of, figures_of, ttft_of
from analyzer.summary import missing_figures
from analyzer.words import (
    label,
    show_change,
    show_delta,
    show_figure,
)

COST = "preemption_cost_s"
CARDS = (
    ("duration_s", "Duration", "From the first arrival to the end of the last step."),
    (
        "ttft_s p99",
        "TTFT p99",
        "Arrival to first output token, 99th percentile over finished requests.",
    ),
    (
        "e2e_s p99",
        "E2E p99",
        "Arrival to last output token, 99th percentile over finished requests.",
    ),
    ("num_preemptions", "Preemptions", "How often a running request lost its KV blocks."),
    (
        COST,
        "Preemption cost",
        "What the preemptions cost directly. Recompute: the tokens that were computed again; what the prefix cache still held costs nothing. Swap: the time of the copies on the link, out and back; blocking copies stop the engine for it, asynchronous ones run beside it (see Stalled for copies). Offload: what was in no cache and was computed again, and the loads from the host, which run beside the computing. Queueing that follows is not in it. Of a measured run this is measured, too, unless it says est. (estimated).",
    ),
    (
        "full_steps_frac",
        "Steps ≥ 98 % full",
        "Share of steps with at least 98 % of the KV pool in use.",
    ),
)


@st.cache_resource(max_entries=12, show_spinner=False)
def compared(key: str, _a: Run, _b: Run) -> Comparison:
    """The comparison of two runs, worked out once.

    key: names both runs' content. Raises CompareError.
    """
    return comparison_of(_a, _b)


def verdict_section(found: Comparison, third: Comparison | None = None) -> None:
    """The sentence with its condition, and what each side spent; third: A against C."""
    with st.container(key="verdict", border=True):
        st.markdown(f"**{plain(found.verdict.text)}**")
        if found.verdict.why:
            st.markdown(plain(found.verdict.why))
        if third is not None:
            st.markdown(f"**{plain(as_third(third.verdict.text))}**")


def cards_section(found: Comparison, third: Comparison | None = None) -> None:
    """Six figures of B, each with A's, the change, and a word for it; with C's where there is one."""
    rows = {row["metric"]: row for row in found.table.iter_rows(named=True)}
    more = {row["metric"]: row for row in third.table.iter_rows(named=True)} if third else {}
    cards = "".join(
        _card(found, rows[metric], title, explained, third, more.get(metric))
        for metric, title, explained in CARDS
    )
    st.html(
        f'<section class="kv-cards" aria-label="Six figures of run B against run A">{cards}</section>'
    )


def alone_section(a: Run) -> None:
    """Six figures of one recording that is looked at by itself."""
    rows = flat_figures(_summarized(a.ref, a.stamp, a))
    unseen, guessed = missing_figures(a.meta), estimated_figures(a.recording)
    cards = "".join(
        f'<article class="kv-card" title="{html.escape(explained)}"><h2>{html.escape(title)}</h2>'
        f'<p class="kv-b">{html.escape(show_figure(metric, rows.get(metric), unseen, guessed))}</p></article>'
        for metric, title, explained in CARDS
    )
    st.html(f'<section class="kv-cards" aria-label="Six figures of run A">{cards}</section>')


def _shown(found: Comparison, side: Side, metric: str, value: float | None) -> str:
    """A figure of a side in words, with how it is known where that is not plain."""
    unseen, guessed = (
        names.get(side, frozenset()) for names in (found.missing, found.estimated)
    )
    return show_figure(metric, value, unseen, guessed)


@st.cache_resource(max_entries=6, show_spinner=False)
def _summarized(ref: str, stamp: str, _run: Run) -> dict[str, Any]:
    return figures_of(_run)


def _card(
    found: Comparison,
    row: dict[str, Any],
    title: str,
    explained: str,
    third: Comparison | None,
    third_row: dict[str, Any] | None,
) -> str:
    """One card. Markup is ours alone: numbers and fixed words, nothing from a file."""
    metric, verdict = row["metric"], row["verdict"] or ""
    tone = {"better": "good", "worse": "bad"}.get(verdict, "even")
    return (
        f'<article class="kv-card" title="{html.escape(explained)}"><h2>{html.escape(title)}</h2>'
        f'<p class="kv-b"><span class="kv-side">B</span>{_shown(found, "B", metric, row["b"])}</p>'
        f'<p class="kv-a"><span class="kv-side">A</span>{_shown(found, "A", metric, row["a"])}</p>'
        f'<p class="kv-change kv-{tone}">{html.escape(say_change(row))}</p>'
        f"{_third_line(third, third_row)}</article>"
    )


def _third_line(found: Comparison | None, row: dict[str, Any] | None) -> str:
    """C's figure and its change against A; "" where there is no third run."""
    if found is None or row is None:
        return ""
    value = _shown(found, "B", row["metric"], row["b"])
    tone = {"better": "good", "worse": "bad"}.get(row["verdict"] or "", "even")
    return (
        f'<p class="kv-a"><span class="kv-side">C</span>{value} '
        f'<span class="kv-change kv-{tone}">{html.escape(say_change(row))}</span></p>'
    )


def delta_section(found: Comparison, third: Comparison | None = None) -> None:
    """All figures of A and B with change, interval and judgement; and C's with its judgement."""
    rows = found.table
    shown = pl.DataFrame(
        {
            "Figure": [label(m) for m in rows["metric"]],
            "A": _column(found, "A", rows["a"]),
            "B": _column(found, "B", rows["b"]),
            "B − A": [
                show_delta(m, v) for m, v in zip(rows["metric"], rows["delta"], strict=True)
            ],
            "Change": [
                show_change(f, coarse=v not in ("better", "worse"))
                for f, v in zip(rows["delta_frac"], rows["verdict"], strict=True)
            ],
            "95 % interval of B − A": [say_interval(r) for r in rows.iter_rows(named=True)],
            "B is": [say_judged(r) for r in rows.iter_rows(named=True)],
        }
    )
    if third is not None:
        by_metric = {r["metric"]: r for r in third.table.iter_rows(named=True)}
        theirs = [by_metric.get(m) for m in rows["metric"]]
        shown = shown.with_columns(
            pl.Series(
                "C", [_shown(third, "B", r["metric"], r["b"]) if r else "" for r in theirs]
            ),
            pl.Series("C is", [say_judged(r) if r else "" for r in theirs]),
        )
    st.dataframe(
        shown,
        hide_index=True,
        height="content",
        column_config={
            "Figure": st.column_config.TextColumn(width="medium"),
            **{
                name: st.column_config.TextColumn(alignment="right")
                for name in shown.columns[1:]
                if not name.endswith(" is")
            },
        },
        alt="Figures of run A and run B with their differences",
    )
    st.caption(say_how_judged(found.rules))


def _column(found: Comparison, side: Side, values: pl.Series) -> list[str]:
    metrics = found.table["metric"]
    return [_shown(found, side, m, v) for m, v in zip(metrics, values, strict=True)]


def ttft_section(runs: Mapping[Side, Run], theme: Theme) -> None:
    """How long requests of each side waited for their first token: all of them, not one quantile."""
    found = {side: _ttft(run.ref, run.stamp, run) for side, run in runs.items()}
    samples: dict[Side, np.ndarray] = {side: times for side, (times, _) in found.items()}
    if not any(len(times) for times in samples.values()):
        return
    said = [
        f"{side}: half within {seconds(float(np.median(times)))}, {num:,} requests"
        for side, (times, num) in found.items()
        if num
    ]
    st.subheader("Time to first token, all requests", anchor=False)
    st.plotly_chart(
        shares_below(samples, "TTFT at most", run_names(runs), theme),
        theme=None,
        key="ttft",
        config={**CONFIG, "displayModeBar": False},
        alt=f"Share of requests by time to first token. {'; '.join(said)}.",
    )


@st.cache_resource(max_entries=12, show_spinner=False)
def _ttft(ref: str, stamp: str, _run: Run) -> tuple[np.ndarray, int]:
    return ttft_of(_run)


def refused_section(runs: Mapping[Side, Run]) -> None:
    """A warning for each side that refused requests, with the first reason."""
    for side, run in runs.items():
        num_refused = int((run.requests["status"] == "refused").sum())
        if not num_refused:
            continue
        reasons = run.events.filter(pl.col("kind").cast(pl.String) == "refuse")[
            "reason"
        ].drop_nulls()
        first = f" The first: {reasons[0]}" if len(reasons) else ""
        share = f"{num_refused:,} of {run.requests.height:,}"
        st.warning(
            plain(f"{side} refused {share} requests, which can never run in its pool.{first}")
        )


def notes_section(found: Comparison, say: Callable[[str], Any] = st.caption) -> None:
    """What limits the comparison, settings that differ beyond the mode included."""
    for note in found.notes:
        if not note.startswith("preemption_mode:"):
            say(plain(note))
