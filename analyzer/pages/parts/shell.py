"""The frame around every page: side bar, the pair that is shown, the job that runs, the URL.

It reads downward: choose, load, draw, settings. Widgets of the frame are drawn here, in the entry
point's run, so that they keep their values when another page is chosen. The page is drawn before
the settings panel, because only the panel needs the engine. What a page shows is its own business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import streamlit as st
from streamlit.navigation.page import StreamlitPage
from streamlit.runtime.scriptrunner import get_script_run_ctx

from analyzer.compare import Comparison
from analyzer.look import Side
from analyzer.pages.parts import heap, state, warm_core
from analyzer.pages.parts.frame import style
from analyzer.pages.parts.header import header
from analyzer.pages.parts.job_panel import job_section
from analyzer.pages.parts.jobs import Job, Progress
from analyzer.pages.parts.keys import keys_section
from analyzer.pages.parts.messages import guarded, say_error
from analyzer.pages.parts.outcome import compared
from analyzer.pages.parts.replay import check, engine_choices, replay_sides
from analyzer.pages.parts.runs import PairRef, load, sample_pairs
from analyzer.pages.parts.settings_form import (
    Choice,
    engine_settings,
    settings_form,
    start_from,
)
from analyzer.pages.parts.sources import is_previous, source_section
from analyzer.pages.parts.state import TraceRef
from analyzer.pages.parts.store import Store, default_root
from analyzer.pages.parts.timeline import theme
from analyzer.pages.parts.trace_panel import by_hand_section, read_trace, recognised_section
from analyzer.run import Run
from traces import samples
from traces.errors import RecordingError, SettingsError, WorkloadError
from traces.workload import Workload

_PAGES = "pages_by_path"
_SOURCE = "source_now"
_DRAWN = "drawn_pair"  # the last pair that could be read


@dataclass(frozen=True)
class Opened:
    """What is on the page, loaded. key: names the runs' content, for caches; pair: what was
    asked for; b: A again where that is alone;
    c: a third run or None; source: "sample", "trace" or "recordings"; is_sample: nothing was given yet;
    is_previous: of a source given before, for want of a result of this one."""

    key: str
    pair: PairRef
    a: Run
    b: Run
    source: str
    is_sample: bool
    is_previous: bool
    c: Run | None = None

    @property
    def runs(self) -> dict[Side, Run]:
        """Side -> run, A first."""
        found: dict[Side, Run] = {"A": self.a}
        if self.pair.b:
            found["B"] = self.b
        return found if self.c is None else {**found, "C": self.c}

    def run(self, side: Side) -> Run:
        """The run in that place. Raises KeyError where there is no third run."""
        return self.runs[side]

    @property
    def found(self) -> Comparison:
        """A against B, worked out once per content; A against itself where it is alone. Raises
        CompareError."""
        return compared(self.key, self.a, self.b)

    @property
    def found_third(self) -> Comparison | None:
        """A against C, None where there is no third run. Raises CompareError."""
        return None if self.c is None else compared(f"{self.key}\0C", self.a, self.c)


def run(chosen: StreamlitPage, pages: Mapping[str, StreamlitPage]) -> None:
    """Draw the frame and in it the chosen page. pages: url path -> page, for links between them."""
    if get_script_run_ctx(suppress_warning=True) is None:
        return  # imported, not run by a server: there is nobody to draw for
    heap.settle()
    st.session_state[_PAGES] = dict(pages)
    style(theme())
    store = Store(default_root())
    source = "sample"
    with st.sidebar, guarded():
        st.markdown("**KV Replay**")
        source = source_section(store)
    st.session_state[_SOURCE] = source
    workload = _trace(store) if source == "trace" else None
    with guarded():
        job_section()
    state.write_url()
    with guarded():
        chosen.run()
    with st.sidebar, guarded():
        _settings(store, source, workload)
    with st.sidebar:
        keys_section()
    warm_core.start()


def draw(
    body: Callable[[Opened], None],
    title: str = "",
    aside: Callable[[Opened], None] | None = None,
) -> None:
    """Load the shown pair, head the page with it and let `body` draw; faults become messages.

    title: of the page, for the heading; "" on Compare, whose heading is the pair. aside: draws
    beside the heading, where the window is wide enough.
    """
    with guarded():
        try:
            opened = _readable(open_pair())
        except RecordingError as error:
            say_error(error)
            opened = _before()
            if opened is None:
                st.button("Show the bundled sample", on_click=_show_sample, key="show_sample")
                return
        if opened is None:
            st.info(
                "This sample is replayed first: see the panel on the left.",
                icon=":material/hourglass_empty:",
            )
            return
        header(
            opened.runs,
            opened.pair,
            title,
            opened.is_sample,
            opened.is_previous,
            None if aside is None else partial(aside, opened),
        )
        body(opened)


def _readable(opened: Opened | None) -> Opened | None:
    """The same, once its tables have been read, and noted as what is shown; of a long run the steps alone,
    so that its first picture need not wait. Raises RecordingError."""
    if opened is not None:
        for run in opened.runs.values():
            _ = run.steps
            if not run.is_long:
                _ = run.events, run.requests
        st.session_state[_DRAWN] = opened.pair
    return opened


def _before() -> Opened | None:
    """What was shown before the pair that cannot be; None where nothing was."""
    drawn = st.session_state.get(_DRAWN)
    if not isinstance(drawn, PairRef) or drawn == state.shown_pair():
        return None
    return replace(cast(Opened, open_pair(drawn)), is_previous=True)


def _show_sample() -> None:
    st.session_state["source"] = "sample"
    state.show_pair(None)
    state.set_trace(None)


def open_pair(ref: PairRef | None = None) -> Opened | None:
    """A pair, loaded; None where a sample has no bundled recordings and was not replayed.

    ref: None for the pair on the page. Raises RecordingError where a reference leads nowhere.
    """
    store = Store(default_root())
    source = str(st.session_state.get(_SOURCE) or "sample")
    ref = state.shown_pair() if ref is None else ref
    is_sample = ref is None
    if ref is None:
        ref = sample_pairs().get(sample_name())
        if ref is None:
            return None
    a = load(ref.a, store)
    b = load(ref.b, store) if ref.b else a
    c = load(ref.c, store) if ref.c else None
    key = f"{ref.a}\0{ref.b}\0{ref.c}\0{a.stamp}\0{b.stamp}\0{c.stamp if c else ''}"
    return Opened(key, ref, a, b, source, is_sample, is_previous(source), c)


def link_to(
    path: str,
    label: str,
    icon: str | None = None,
    shown: tuple[float, float] | None = None,
    **query: str | None,
) -> None:
    """A link to another page that shows the same pair. shown: the range of time to show there, in
    seconds, None for what is shown here; query: more of the URL, None left out."""
    page = cast(Mapping[str, StreamlitPage], st.session_state.get(_PAGES, {})).get(path)
    if page is None:  # a page drawn alone, as in a test
        return
    wanted = {**state.url_of_pair(), **{k: v for k, v in query.items() if v is not None}}
    if shown is not None:
        wanted |= state.range_query(shown)
    st.page_link(page, label=label, icon=icon, query_params=wanted, width="content")


def sample_name() -> str:
    """The chosen sample's name."""
    return str(st.session_state.get("sample") or samples.names()[0])


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
    name = sample_name() if source == "sample" else ""
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
    with guarded(), suppress(RecordingError):  # the page has said what cannot be opened
        a, b = (load(r, store).meta.settings for r in (ref.a, ref.b or ref.a))
        third = str(load(ref.c, store).meta.preemption_mode or "") if ref.c else ""
        start_from(engine_settings(a, names), engine_settings(b, names), preset, third)


def _sample_settings(name: str) -> dict[str, Any]:
    about = samples.info(name)
    return {"kv_tokens": about.pool_tokens, "model": about.model, "device": about.device}


def _start(ref: TraceRef, workload: Workload, choice: Choice, store: Store) -> None:
    state.mark_replayed(ref.key)
    if (running := state.job()) is not None:
        running.cancel()
    job = Job(
        lambda report, cancelled: replay_sides(workload, choice, store, report, cancelled),
        {side: Progress() for side in choice.sides},
        made_from=ref.key,
    )
    state.set_job(job.start())
    st.rerun()
