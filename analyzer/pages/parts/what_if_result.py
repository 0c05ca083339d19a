"""What an operating point came to: cards, memory, how many requests fit, the flags, the proofs.

It knows how a result is drawn. Figures and their changes come from `analyzer.what_if`, sums of memory from
the engine.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import polars as pl
import streamlit as st

from analyzer.advice_words import sentence_case
from analyzer.figures import CONFIG
from analyzer.lever_flags import needs_sync, routed
from analyzer.levers import LEVERS, flag_line, note_of
from analyzer.look import gib
from analyzer.outcome import Outcome
from analyzer.pages.parts import state
from analyzer.pages.parts.messages import guarded, plain
from analyzer.pages.parts.timeline import theme
from analyzer.pages.parts.what_if_bench import MODE, Bench
from analyzer.pages.parts.what_if_run import Result
from analyzer.what_if import (
    FIGURES,
    change_of,
    figure,
    fits,
    is_calm,
    say,
    say_calm,
    say_ended,
    say_pool,
    say_value,
)
from analyzer.what_if_figure import Segment, memory_alt, memory_figure
from analyzer.what_if_pairs import say_rule
from traces.errors import SettingsError
from traces.routing import ROUTERS

if TYPE_CHECKING:
    from engine.memory_parts import MemoryParts

_MOST_LINKS = 8
OFFLOAD_SYNC = (
    "offload was simulated without asynchronous scheduling, which vLLM 0.26.0 has on by default: with it and a CPU cache one "
    "failed allocation preempts many requests. --no-async-scheduling is part of the answer."
)


# ---- cards ---------------------------------------------------------------------------------------


def cards_section(result: Result, bounds: Mapping[str, float]) -> None:
    """Nine figures of both policies, each with the change against the base; or why it cannot run."""
    _refused(result)
    ran = [o for o in result.now.values() if not o.refused]
    if not ran:
        return
    if is_calm(list(result.now.values())):
        st.info(plain(say_calm(list(result.now.values()))), icon=":material/check_circle:")
    cards = "".join(_card(result, metric) for metric in FIGURES if metric != "goodput_rps" or bounds)  # fmt: skip
    sides = " and ".join(f"{s} {html.escape(m)}" for s, m in zip("AB", result.now, strict=True))
    st.html(
        f'<section class="kv-cards kv-what-if" aria-label="Figures of {sides} against the base">{cards}</section>'
    )
    if result.changes:
        of = [result.pairs.get(m) for m, o in result.now.items() if not o.refused]
        st.caption(plain(say_rule(of)))
    for mode, outcome in result.now.items():
        for line in [] if outcome.refused else say_ended(outcome):
            st.warning(plain(f"{mode}: {line}"), icon=":material/info:")


def _refused(result: Result) -> None:
    """Why a policy cannot run with these changes, once for both where it is the same."""
    reasons: dict[str, list[str]] = {}
    for mode, outcome in result.now.items():
        if outcome.refused:
            reasons.setdefault(outcome.refused, []).append(mode)
    for why, modes in reasons.items():
        st.error(
            f"**{plain(' and '.join(modes))} cannot run so:** {plain(why)} Move that lever, or take its change back above.",
            icon=":material/block:",
        )


def _card(result: Result, metric: str) -> str:
    """One card. Markup is ours alone: numbers, fixed words and names of policies."""
    title, explained = FIGURES[metric]
    lines = []
    for side, (mode, now) in zip("AB", result.now.items(), strict=True):
        name = f'<span class="kv-side">{side}</span> <span class="kv-mode">{html.escape(mode)}</span>'
        if now.refused:
            lines.append(f'<p class="kv-a">{name} cannot run</p>')
            continue
        value = html.escape(say(metric, figure(now, metric)))
        lines.append(f'<p class="kv-b">{value}</p><p class="kv-a">{name}</p>')
        base = result.base[mode]
        if result.changes and not base.refused:
            change = change_of(metric, base, now, result.pairs.get(mode))
            was = html.escape(say(metric, figure(base, metric)))
            lines.append(
                f'<p class="kv-change kv-{change.tone}">{html.escape(change.words)}</p>'
                f'<p class="kv-a">base {was}</p>'
            )
    return (
        f'<article class="kv-card" title="{html.escape(explained)}"><h2>{html.escape(title)}</h2>'
        f"{''.join(_sides(lines, len(result.now)))}</article>"
    )


def _sides(lines: list[str], num: int) -> list[str]:
    """The lines in as many columns as there are policies."""
    each = len(lines) // num
    if each * num != len(lines):
        return lines
    columns = (lines[i * each : (i + 1) * each] for i in range(num))
    return [
        '<div class="kv-pair">',
        *(f"<div>{''.join(of)}</div>" for of in columns),
        "</div>",
    ]


# ---- memory --------------------------------------------------------------------------------------


def memory_section(bench: Bench, result: Result) -> None:
    """Where a device's memory goes, before and after, and how many requests fit into the pool."""
    from engine.memory_parts import memory_parts

    st.header("Memory", anchor=False)
    base = now = None
    with guarded():
        base = memory_parts(bench.base)
    if base is None:
        return
    if result.changes:
        try:
            now = memory_parts(bench.settings(result.changes))
        except SettingsError:
            now = None  # why is said in place of the cards
    bars = {"base": _segments(base)} | ({"now": _segments(now)} if now else {})
    st.plotly_chart(
        memory_figure(bars, theme()),
        theme=None,
        key="memory_chart",
        config={**CONFIG, "displayModeBar": False},
        alt=f"Memory of one device. {memory_alt(bars)}",
    )
    for word, parts in (("Base", base), *((("Now", now),) if now else ())):
        st.caption(plain(f"{word}: {_say_memory(parts)}"))
    _fit_table(bench, base, now)


def _segments(parts: MemoryParts) -> list[Segment]:
    return [
        Segment("weights", parts.weights_bytes, 0.75),
        Segment("activations", parts.activation_bytes, 0.5),
        Segment("graphs, driver", parts.graph_bytes + parts.other_bytes, 0.3),
        Segment("KV pool", parts.kv_bytes, None),
        Segment("not used", max(0.0, parts.device_bytes - parts.taken_bytes - parts.kv_bytes), 0.0),
    ]  # fmt: skip


def _say_memory(parts: MemoryParts) -> str:
    tokens = (parts.num_gpu_blocks - 1) * parts.block_size
    devices = f"{parts.num_devices} x " if parts.num_devices > 1 else ""
    each = ", each" if parts.num_devices > 1 else ""
    said = (
        f"{devices}{parts.device}{each} with {gib(parts.device_bytes)}; pool of "
        f"{say_pool(parts.num_gpu_blocks, parts.block_size)}: {tokens:,} tokens."
    )
    if parts.was_given and parts.spare_bytes < 0:
        return f"{said} The pool was given; by our sum it takes {gib(-parts.spare_bytes)} more than is left for it."
    if parts.was_given and parts.spare_bytes > 2**26:
        return (
            f"{said} The pool was given; by our sum {gib(parts.spare_bytes)} more could be had."
        )
    return said


def _fit_table(bench: Bench, base: MemoryParts, now: MemoryParts | None) -> None:
    """Requests that fit at once at full length, at p50, p95 and the longest."""
    lengths = bench.facts.total_tokens
    before = fits(lengths, base.num_gpu_blocks, base.block_size)
    after = fits(lengths, now.num_gpu_blocks, now.block_size) if now else {}
    rows = [
        {
            "Requests that fit at once": f"of {name} length, {tokens:,} tokens",
            "Base": f"{num:,}",
            **({"Now": f"{after[name][1]:,}"} if after else {}),
        }
        for name, (tokens, num) in before.items()
    ]
    st.dataframe(
        pl.DataFrame(rows),
        hide_index=True,
        height="content",
        column_config={
            "Requests that fit at once": st.column_config.TextColumn(width="medium"),
            **{n: st.column_config.TextColumn(alignment="right") for n in ("Base", "Now")},
        },
        alt="How many requests of typical lengths fit into the pool at once, prompt and output together",
    )
    st.caption("Prompt and output together, all at their full length at once: while requests grow, more fit.")  # fmt: skip


# ---- flags and proofs ----------------------------------------------------------------------------


def flags_section(bench: Bench, result: Result) -> None:
    """What to paste behind `vllm serve`, a line a policy where that differs, and what has no flag."""
    proposed = set(result.modes) - set(bench.modes)
    if not result.changes and "offload" not in proposed:
        return
    st.header("To apply it", anchor=False)
    lines = {mode: _flags(bench, result.changes, mode) for mode in result.modes}
    for flags in dict.fromkeys(f for f in lines.values() if f):
        if len(set(lines.values())) > 1:
            st.caption(plain(f"For {' and '.join(m for m in lines if lines[m] == flags)}:"))
        st.code(f"vllm serve MODEL {flags}", language="bash", wrap_lines=True)
    if not any(lines.values()):
        st.caption("vLLM has no flag for these changes.")
    if any(needs_sync({**bench.facts.settings, **result.changes, MODE: m}) for m in lines):
        st.caption(plain(OFFLOAD_SYNC))
    for name, value in result.changes.items():
        if note := note_of(name, value):
            st.caption(plain(f"{LEVERS[name].label} {say_value(value)}: {note}."))
    if result.changes.get("replicas", 1) != 1:
        rule = routed(result.changes.get("router", ROUTERS[0]))
        st.caption(plain(f"{sentence_case(rule)}."))


def _flags(bench: Bench, changes: Mapping[str, Any], mode: str) -> str:
    """The flags of the changes under a policy, its own among them where it has one."""
    own = {MODE: mode} if mode == "offload" else {}
    return flag_line({**changes, **own}, {**bench.facts.settings, MODE: mode})


def proofs_section(result: Result) -> None:
    """Links to the recordings that the figures were read from, in windows of their own."""
    ran = {m: o for m, o in result.now.items() if not o.refused}
    if not ran:
        return
    st.header("The recordings behind it", anchor=False)
    base = result.base[result.modes[0]]
    with st.container(horizontal=True, gap="small", key="proofs"):
        single = [o for o in (base, *ran.values()) if len(o.recordings) == 1]
        is_same_load = "rate_scale" not in result.changes  # else they are two workloads
        if result.changes and is_same_load and len(single) == 1 + len(ran):
            refs = dict(zip("abc", (_ref(o) for o in single), strict=False))
            st.link_button(
                f"Compare: A base {result.modes[0]}, " + ", ".join(f"{s} {m}" for s, m in zip("BC", ran, strict=False)),
                _url("compare", **refs), icon=":material/compare_arrows:",
            )  # fmt: skip
        for mode, outcome in ran.items():
            _links(mode, outcome)
    st.caption("Links open in a window of their own; this page stays as it is.")


def _links(mode: str, outcome: Outcome) -> None:
    several = len(outcome.recordings) > 1
    for i, path in enumerate(outcome.recordings[:_MOST_LINKS]):
        which = f", replica {i + 1} of {len(outcome.recordings)}" if several else ""
        st.link_button(
            f"{mode}{which}: its preemptions", _url("preemptions", a=f"run:{path.name}"),
            icon=":material/eject:",
        )  # fmt: skip


def _ref(outcome: Outcome) -> str:
    return f"run:{outcome.recordings[0].name}"


def _url(page: str, **refs: str) -> str:
    """An address beside this page's own; the trace goes with it, so that its result is no stranger there."""
    more = {n: v for n, v in state.url_of_pair().items() if n in ("trace", "columns")}
    source = {"source": "Trace"} if "trace" in more else {}
    return f"{page}?{urlencode({**refs, **more, **source})}"
