"""The Compare page: the same requests under two settings, on one axis.

It reads downward: choose, load, analyze, draw. The picture is drawn before the settings panel,
because only the panel needs the engine.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from analyzer.compare import Comparison
from analyzer.pages.parts import state, warm_core
from analyzer.pages.parts.frame import style
from analyzer.pages.parts.job_panel import job_section
from analyzer.pages.parts.jobs import Job, Progress
from analyzer.pages.parts.messages import guarded, plain, say_error
from analyzer.pages.parts.outcome import (
    cards_section,
    compared,
    delta_section,
    notes_section,
    refused_section,
    ttft_section,
    verdict_section,
)
from analyzer.pages.parts.replay import check, engine_choices, replay_both
from analyzer.pages.parts.runs import PairRef, Run, load, run_names, sample_pairs
from analyzer.pages.parts.settings_form import (
    Choice,
    engine_settings,
    exchange_sides,
    set_pool,
    settings_form,
    start_from,
)
from analyzer.pages.parts.sources import is_previous, source_section
from analyzer.pages.parts.state import TraceRef
from analyzer.pages.parts.store import Store, default_root
from analyzer.pages.parts.timeline import theme, timeline_section
from analyzer.pages.parts.trace_panel import by_hand_section, read_trace, recognised_section
from traces import samples
from traces.errors import SettingsError, WorkloadError
from traces.workload import Workload

PRESSED_FRAC = 0.6  # of the peak: a pool that fills, and still holds most of the load


def page() -> None:
    """Draw the page."""
    style(theme())
    store = Store(default_root())
    source = "sample"
    with st.sidebar, guarded():
        st.markdown("**KV Replay**")
        source = source_section(store)
    workload = _trace(store) if source == "trace" else None
    with guarded():
        job_section()
    state.write_url()
    with guarded():
        _result(store, source)
    with st.sidebar, guarded():
        _settings(store, source, workload)
    warm_core.start()


# ---- choose -----------------------------------------------------------------------------------


def _trace(store: Store) -> Workload | None:
    """The trace that was given, what was recognised in it, and its first replay."""
    ref = state.trace()
    if ref is None:
        st.info(
            "Give a request trace in the side bar: what a server was asked, one row a request. Until then the last result is shown.",
            icon=":material/arrow_back:",
        )
        return None
    workload = None
    with guarded():
        try:
            workload = read_trace(ref, store)
        except WorkloadError as error:
            say_error(error)
            by_hand_section(ref, store)
        else:
            recognised_section(ref, workload, store)
    return workload


def _settings(store: Store, source: str, workload: Workload | None) -> None:
    """The settings panel; starts a replay when Apply is pressed or there is nothing to show yet."""
    if source == "recordings":
        return
    engine, known = engine_choices()
    name = _sample_name() if source == "sample" else ""
    defaults = {**engine, **_sample_settings(name)} if name else engine
    st.subheader("Replay", anchor=False)
    _follow_link(store, name or "trace", list(engine))
    choice, pressed = settings_form(defaults, known, preset=name or "trace")
    ref = TraceRef(f"sample:{name}") if name else state.trace()
    if ref is None or (source == "trace" and workload is None):
        return
    is_new = not state.was_replayed(ref.key) and (
        source == "trace" or name not in sample_pairs()
    )
    pressed_pool = bool(st.session_state.pop("press_pool", False))
    if pressed or is_new or pressed_pool:
        try:
            check(choice)
        except SettingsError as error:
            say_error(error)
            return
        _start(ref, workload or samples.load(name), choice, store)


def _follow_link(store: Store, preset: str, names: list[str]) -> None:
    """Let the panel begin with the settings of a pair that a link has opened."""
    ref = state.shown_pair()
    if not state.opened_by_link() or ref is None:
        return
    with guarded():
        a, b = (load(r, store).meta.settings for r in (ref.a, ref.b))
        start_from(engine_settings(a, names), engine_settings(b, names), preset)


def _sample_name() -> str:
    return str(st.session_state.get("sample") or samples.names()[0])


def _sample_settings(name: str) -> dict[str, Any]:
    about = samples.info(name)
    return {"kv_tokens": about.pool_tokens, "model": about.model, "device": about.device}


def _start(ref: TraceRef, workload: Workload, choice: Choice, store: Store) -> None:
    state.mark_replayed(ref.key)
    if (running := state.job()) is not None:
        running.cancel()
    job = Job(
        lambda report, cancelled: replay_both(workload, choice, store, report, cancelled),
        {"A": Progress(), "B": Progress()},
        made_from=ref.key,
    )
    state.set_job(job.start())
    st.rerun()


# ---- load, analyze, draw ------------------------------------------------------------------------


def _result(store: Store, source: str) -> None:
    """The pair on the page: header, verdict, cards, timeline, figures."""
    ref = state.shown_pair()
    is_sample = ref is None
    if ref is None:
        ref = sample_pairs().get(_sample_name())
        if ref is None:
            st.info(
                "This sample is replayed first: see the panel on the left.",
                icon=":material/hourglass_empty:",
            )
            return
    a, b = load(ref.a, store), load(ref.b, store)
    previous = is_previous(source)
    _header(a, b, ref, is_sample, "Previous result: " if previous else "")
    if source == "trace" and not previous:
        _machine_section(b)
    key = f"{ref.a}\0{ref.b}\0{a.stamp}\0{b.stamp}"
    found = compared(key, a, b)
    verdict_section(found)
    if source != "recordings":
        _press_section(found, b, source)
    refused_section(found, a, b)
    cards_section(found)
    notes_section(found)
    timeline_section(key, a, b)
    ttft_section(a, b, theme())
    st.subheader("All figures", anchor=False)
    delta_section(found)
    _about(a, b)


def _press_section(found: Comparison, run: Run, source: str) -> None:
    """Where the pool never filled: a pool that this workload would press, as one click."""
    peak = max(found.a["peak_used_frac"] or 0.0, found.b["peak_used_frac"] or 0.0)
    if found.a["num_preemptions"] or found.b["num_preemptions"] or not peak:
        return
    size = run.meta.block_size_tokens or 16
    longest = int((run.requests["prompt_tokens"] + run.requests["output_tokens"]).max() or 0)  # type: ignore[arg-type]
    blocks = max(int(peak * run.recording.pool_blocks * PRESSED_FRAC), longest // size + 2)
    st.button(
        f"Replay with {blocks:,} blocks, {PRESSED_FRAC:.0%} of the peak".replace("%", " %"),
        on_click=_press,
        args=(blocks + 1, source),
        key="press",
        help="What a smaller pool would have done to these requests.",
    )


def _press(num_gpu_blocks: int, source: str) -> None:
    name = _sample_name() if source == "sample" else ""
    set_pool(num_gpu_blocks, name or "trace")
    st.session_state["press_pool"] = True


def _machine_section(run: Run) -> None:
    """What a trace does not say and the replay had to choose: model, device and pool."""
    meta, given = run.meta, run.meta.settings
    size = f" of {meta.block_size_tokens} tokens" if meta.block_size_tokens else ""
    st.caption(
        f"A request trace does not say what served it. Replayed as **{plain(given.get('model'))}** on "
        f"**{plain(given.get('device'))}** with a pool of **{run.recording.pool_blocks:,} blocks**{size}: "
        "choose your own under *Replay* in the side bar."
    )


def _header(a: Run, b: Run, ref: PairRef, is_sample: bool, before: str) -> None:
    """Title, set-up in one line, and the button that exchanges the sides. before: goes ahead of the
    title."""
    with st.container(
        horizontal=True,
        horizontal_alignment="distribute",
        vertical_alignment="center",
        key="header",
    ):
        names = run_names(a, b)
        st.title(
            f"{before}A {plain(names['A'])} against B {plain(names['B'])}",
            anchor=False,
            width="content",
        )
        st.button("⇄ Exchange A and B", on_click=_swap, args=(ref.swapped(),), key="swap_sides")
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


def _about(a: Run, b: Run) -> None:
    """Where the numbers come from."""
    lines = []
    if a.is_simulated or b.is_simulated:
        lines.append(
            "Times are modelled from the model's shape and the device's preset; decisions (who is admitted, preempted, "
            "finished at which step) follow vLLM's V1 scheduler. vLLM V1 preempts by recompute, and by offload with a connector: swap and cheapest are ours."
        )
    for side, run in (("A", a), ("B", b)):
        version = run.meta.software.get("kv_replay", "")
        lines.append(
            f"{side}: {run.recording.label}, contract {run.meta.schema_version}, written by {run.meta.executor or 'an unknown engine'} {version}, "
            f"workload {str(run.meta.workload_digest or 'unnamed')[:12]}, seed {run.meta.seed}."
        )
    for line in lines:
        st.caption(plain(line))
