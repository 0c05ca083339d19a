"""The Compare page: the same requests under two settings, on one axis.

It reads downward: verdict, cards, timeline, figures, where the numbers come from.
"""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from analyzer.compare import Comparison
from analyzer.look import Side
from analyzer.pages import diagnose
from analyzer.pages.parts import shell
from analyzer.pages.parts.messages import plain
from analyzer.pages.parts.outcome import (
    alone_section,
    cards_section,
    delta_section,
    notes_section,
    refused_section,
    ttft_section,
    verdict_section,
)
from analyzer.pages.parts.settings_form import set_pool
from analyzer.pages.parts.shell import Opened
from analyzer.pages.parts.timeline import theme, timeline_section
from analyzer.pages.parts.working_out import is_known, worked_out
from analyzer.run import Run

PRESSED_FRAC = 0.6  # of the peak: a pool that fills, and still holds most of the load


def page() -> None:
    """Draw the page."""
    shell.draw(_body, aside=_diagnose_links)


def _diagnose_links(opened: Opened) -> None:
    """From each run to what can be said of it as evidence."""
    for side in opened.runs:
        diagnose.link(side)


def _body(opened: Opened) -> None:
    """Verdict, cards, timeline, figures of what is shown; without a verdict where A is alone. Of long
    runs the timeline comes first, what takes time when it is known."""
    if opened.source == "trace" and not opened.is_previous:
        _machine_section(opened.b)
    if not is_known(opened.key, opened.runs):
        bars = st.container()
        timeline_section(opened.key, opened.runs, is_waited_for=True)
        with bars:  # what they show takes processors from whoever draws the picture
            is_done = worked_out(opened.key, opened.runs)
        if is_done:
            st.rerun()
        _about(opened.runs)
        return
    alone = len(opened.runs) == 1
    found, third = (None, None) if alone else (opened.found, opened.found_third)
    if found is None:
        st.info(
            "One recording, shown by itself. Give a second one in the side bar to compare.",
            icon=":material/add:",
        )
        alone_section(opened.a)
    else:
        verdict_section(found, third)
        if opened.source != "recordings":
            _press_section(found, opened.b, opened.source)
        cards_section(found, third)
        notes_section(found)
    refused_section(opened.runs)
    timeline_section(opened.key, opened.runs)
    ttft_section(opened.runs, theme())
    if found is not None:
        st.subheader("All figures", anchor=False)
        delta_section(found, third)
    _about(opened.runs)


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
    name = shell.sample_name() if source == "sample" else ""
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


def _about(runs: Mapping[Side, Run]) -> None:
    """Where the numbers come from."""
    lines = []
    if any(run.is_simulated for run in runs.values()):
        lines.append(
            "Times are modelled from the model's shape and the device's preset; decisions (who is admitted, preempted, "
            "finished at which step) follow vLLM's V1 scheduler. vLLM V1 preempts by recompute, and by offload with a connector: swap and cheapest are ours."
        )
    for side, run in runs.items():
        version = run.meta.software.get("kv_replay", "")
        lines.append(
            f"{side}: {run.recording.label}, contract {run.meta.schema_version}, written by {run.meta.executor or 'an unknown engine'} {version}, "
            f"workload {str(run.meta.workload_digest or 'unnamed')[:12]}, seed {run.meta.seed}."
        )
    for line in lines:
        st.caption(plain(line))
