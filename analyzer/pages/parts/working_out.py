"""What is worked out of whole recordings: before anything is drawn for short ones, as a job beside the
page for long ones, whose timeline comes first.

It knows jobs and when to wait for them. What is worked out, and in which process, is known in
`work_out`.
"""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from analyzer.look import Side
from analyzer.pages.parts.jobs import Job, Progress
from analyzer.pages.parts.messages import say_error
from analyzer.run import Run
from analyzer.run_figures import is_worked_out
from analyzer.work_out import TOGETHER, is_for_apart, work_out, work_out_apart

LOOK_EVERY_S = 0.5
FIRST_WAIT_S = 0.3
_STOPPED = "working_out_stopped"


def is_known(key: str, runs: Mapping[Side, Run]) -> bool:
    """Whether nothing of these runs has to be worked out beside the page (any more)."""
    sides = list(runs.values())
    if not any(run.is_long for run in sides) or is_worked_out(*sides):
        return True
    job = _jobs().get(key)  # the disk may not have taken what it worked out
    return job is not None and job.wait(0.0) and job.result is not None


def worked_out(key: str, runs: Mapping[Side, Run]) -> bool:
    """Whether verdict, figures and preemptions of these runs are known; else they are being worked
    out, and how far that is is drawn here. key: names the runs' content."""
    if is_known(key, runs):
        return True
    if st.session_state.get(_STOPPED) == key:
        st.info("Verdict, figures and preemptions of these long runs were not worked out.")
        st.button("Work them out", on_click=_go_on, key="work_out")
        return False
    job = _jobs().get(key)
    if job is None:
        job = _jobs()[key] = _job(dict(runs)).start()
    if not job.wait(FIRST_WAIT_S):
        _bars(key)
        return False
    if job.error is not None:
        say_error(job.error)
    return job.result is not None


@st.cache_resource(show_spinner=False)
def _jobs() -> dict[str, Job]:
    """Jobs of all sessions by what they work on, so that two that look at the same wait for one."""
    return {}


def _go_on() -> None:
    st.session_state.pop(_STOPPED, None)


@st.fragment(run_every=LOOK_EVERY_S)
def _bars(key: str) -> None:
    job = _jobs().get(key)
    if job is None or job.wait(0.0):
        st.rerun()
    with st.container(border=True, key="working_out"):
        st.markdown(
            "**Working out verdict, figures and preemptions.** The timeline can be used meanwhile; "
            "for the same recordings this is done once."
        )
        for part, progress in job.progress.items():
            said = part if part == TOGETHER else f"{part}: {progress.text or 'waiting'}"
            st.progress(progress.done_frac, text=said)
        if st.button("Cancel", key="cancel_working_out"):
            job.cancel()
            _jobs().pop(key, None)
            st.session_state[_STOPPED] = key
            st.rerun()


def _job(runs: dict[Side, Run]) -> Job:
    parts = [*runs, *([TOGETHER] if len(runs) > 1 else [])]
    work = work_out_apart if is_for_apart(runs) else work_out
    return Job(
        lambda report, cancelled: work(runs, report, cancelled),
        {part: Progress() for part in parts},
    )
