"""How two runs compare, in a sentence, six cards and a table.

It knows labels, units and what fits into a card. Every figure and judgement comes from `compare`.
"""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

import polars as pl
import streamlit as st

from analyzer.compare import Comparison, compare
from analyzer.look import gib, seconds, three_digits
from analyzer.pages.parts.messages import plain
from analyzer.pages.parts.runs import Run

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
        "What the preemptions cost directly. Recompute: the tokens that were computed again; what the prefix cache still held costs nothing. Swap: the time of the copies on the link, out and back; blocking copies stop the engine for it, asynchronous ones run beside it (see Stalled for copies). Queueing that follows is not in it.",
    ),
    (
        "full_steps_frac",
        "Steps ≥ 98 % full",
        "Share of steps with at least 98 % of the KV pool in use.",
    ),
)
LABELS = {
    "num_requests": "Requests",
    "num_finished": "Finished",
    "num_refused": "Refused",
    "num_steps": "Steps",
    "duration_s": "Duration",
    "num_preemptions": "Preemptions",
    "num_preempted_requests": "Requests preempted",
    "preemption_cost_s": "Preemption cost",
    "recomputed_tokens": "Tokens recomputed",
    "recomputed_frac": "of all computed",
    "prefix_cached_tokens": "Tokens from the prefix cache",
    "swap_out_bytes": "Swapped out",
    "swap_in_bytes": "Swapped in",
    "stall_s": "Stalled for copies",
    "peak_used_frac": "Peak use of the pool",
    "full_steps_frac": "Steps at least 98 % full",
    "output_tokens_per_s": "Output tokens per second",
    "ttft_s": "TTFT",
    "tpot_s": "TPOT",
    "itl_s": "ITL",
    "e2e_s": "E2E",
    "queue_s": "Queueing",
}
ARROWS = {"better": "▲ better", "worse": "▼ worse", "no difference": "● no difference"}


@st.cache_resource(max_entries=12, show_spinner=False)
def compared(key: str, _a: Run, _b: Run) -> tuple[Comparison, dict[str, float | None]]:
    """The comparison of two runs and the direct cost of their preemptions, worked out once.

    key: names both runs' content. Raises CompareError.
    """
    found = compare(_a.recording, _b.recording)
    return found, {side: fig[COST] for side, fig in (("a", found.a), ("b", found.b))}


def show(metric: str, value: float | None) -> str:
    """A figure as people read it: '15.4 s', '3.42 GiB', '24.4 %', '1,234'."""
    name = metric.split()[0]
    if value is None:
        return "—"
    if name.endswith("_s") and not name.endswith("_per_s"):
        return seconds(value)
    if name.endswith("_bytes"):
        return gib(value)
    if name.endswith("_frac"):
        return f"{three_digits(value * 100)} %"
    return f"{value:,.0f}" if float(value).is_integer() else three_digits(value)


def label(metric: str) -> str:
    name, _, which = metric.partition(" ")
    return f"{LABELS.get(name, name)} {which}".strip()


def verdict_section(found: Comparison) -> None:
    """The sentence with its condition."""
    with st.container(key="verdict", border=True):
        st.markdown(f"**{plain(found.verdict.text)}**")


def cards_section(found: Comparison, cost: dict[str, float | None]) -> None:
    """Six figures of B, each with A's, the change, and a word for it. cost: as from `compared`."""
    table = {row["metric"]: row for row in found.table.iter_rows(named=True)}
    table[COST] |= cost
    cards = "".join(
        _card(table[metric], title, explained) for metric, title, explained in CARDS
    )
    st.html(
        f'<section class="kv-cards" aria-label="Six figures of run B against run A">{cards}</section>'
    )


def _card(row: dict[str, Any], title: str, explained: str) -> str:
    """One card. Markup is ours alone: numbers and fixed words, nothing from a file."""
    metric, verdict = row["metric"], row["verdict"] or ""
    tone = {"better": "good", "worse": "bad"}.get(verdict, "even")
    return (
        f'<article class="kv-card" title="{html.escape(explained)}"><h2>{html.escape(title)}</h2>'
        f'<p class="kv-b"><span class="kv-side">B</span>{show(metric, row["b"])}</p>'
        f'<p class="kv-a"><span class="kv-side">A</span>{show(metric, row["a"])}</p>'
        f'<p class="kv-change kv-{tone}">{html.escape(_change(row))}</p></article>'
    )


def _change(row: dict[str, Any]) -> str:
    """'▼ 10.0 % better', 'no difference'; in points where the figure is a share."""
    delta, word = row["delta"], row["verdict"] or ""
    if delta is None:
        return "not comparable"
    if word == "no difference" or not delta:
        return "no difference"
    arrow = "▲" if delta > 0 else "▼"
    if row["metric"].endswith("_frac"):
        return f"{arrow} {three_digits(abs(delta) * 100)} points {word}".strip()
    if row["delta_frac"] is None:
        return f"{arrow} from 0 {word}".strip()
    return f"{arrow} {abs(row['delta_frac']) * 100:,.1f} % {word}".strip()


def delta_section(found: Comparison) -> None:
    """All figures of A and B with change, interval and judgement."""
    rows = found.table
    shown = pl.DataFrame(
        {
            "Figure": [label(m) for m in rows["metric"]],
            "A": _column(rows, "a"),
            "B": _column(rows, "b"),
            "B − A": _column(rows, "delta"),
            "Change": [_percent(f) for f in rows["delta_frac"]],
            "95 % interval of B − A": [_interval(r) for r in rows.iter_rows(named=True)],
            "B is": [ARROWS.get(v or "", "") for v in rows["verdict"].cast(pl.String)],
        }
    )
    st.dataframe(
        shown,
        hide_index=True,
        height=460,
        column_config={
            name: st.column_config.TextColumn(alignment="right") for name in shown.columns[1:-1]
        },
        alt="Figures of run A and run B with their differences",
    )
    st.caption(
        "Intervals: paired block bootstrap over requests; they say what another draw of such requests could have given. "
        "Counts and sums of a run have none. A difference of at most 0.1 %, or whose interval holds zero, is no difference."
    )


def _column(rows: pl.DataFrame, name: str) -> list[str]:
    return [show(m, v) for m, v in zip(rows["metric"], rows[name], strict=True)]


def _percent(frac: float | None) -> str:
    return "" if frac is None else f"{frac * 100:+,.1f} %".replace("-", "−")


def _interval(row: dict[str, Any]) -> str:
    if row["low"] is None:
        return ""
    return f"{show(row['metric'], row['low'])} to {show(row['metric'], row['high'])}"


def refused_section(found: Comparison, a: Run, b: Run) -> None:
    """A warning for each side that refused requests, with the first reason."""
    for side, run, figures in (("A", a, found.a), ("B", b, found.b)):
        if not figures["num_refused"]:
            continue
        reasons = run.events.filter(pl.col("kind").cast(pl.String) == "refuse")[
            "reason"
        ].drop_nulls()
        first = f" The first: {reasons[0]}" if len(reasons) else ""
        share = f"{figures['num_refused']:,} of {figures['num_requests']:,}"
        st.warning(
            plain(f"{side} refused {share} requests, which can never run in its pool.{first}")
        )


def notes_section(found: Comparison, say: Callable[[str], Any] = st.caption) -> None:
    """What limits the comparison, settings that differ beyond the mode included."""
    for note in found.notes:
        if not note.startswith("preemption_mode:"):
            say(plain(note))
