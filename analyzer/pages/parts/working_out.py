"""What is worked out of whole recordings: before anything is drawn for short ones, as a job beside the
page for long ones, whose timeline comes first.

It knows jobs and when to wait for them. What is worked out, and where it is kept, is known in
`run_figures`.
"""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from analyzer.compare import check_comparable
from analyzer.look import Side
from analyzer.pages.parts.jobs import Cancelled, Job, Progress, Report
from analyzer.pages.parts.messages import say_error
from analyzer.run import Run
from analyzer.run_figures import (
    comparison_of,
    figures_of,
    is_worked_out,
    preemptions_of,
    ttft_of,
)

LOOK_EVERY_S = 0.5
FIRST_WAIT_S = 0.3
_TOGETHER = "Verdict"
_STOPPED = "working_out_stopped"


def worked_out(key: str, runs: Mapping[Side, Run]) -> bool:
    """Whether verdict, figures and preemptions of these runs are known; else they are being worked
    out, and how far that is is drawn here. key: names the runs' content."""
    sides = list(runs.values())
    if not any(run.is_long for run in sides) or is_worked_out(*sides):
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
            said = part if part == _TOGETHER else f"{part}: {progress.text or 'waiting'}"
            st.progress(progress.done_frac, text=said)
        if st.button("Cancel", key="cancel_working_out"):
            job.cancel()
            _jobs().pop(key, None)
            st.session_state[_STOPPED] = key
            st.rerun()


def _job(runs: dict[Side, Run]) -> Job:
    parts = [*runs, *([_TOGETHER] if len(runs) > 1 else [])]
    return Job(
        lambda report, cancelled: _work_out(runs, report, cancelled),
        {part: Progress() for part in parts},
    )


def _work_out(runs: dict[Side, Run], report: Report, cancelled: Cancelled) -> bool:
    """Work out and keep everything that Compare shows of these runs; stops between two parts. Raises
    CompareError."""
    first, *others = runs.values()
    for other in others:
        check_comparable(first.recording, other.recording)
    for side, run in runs.items():
        for done, (text, work) in enumerate(_PARTS):
            if cancelled():
                return False
            report(side, done / len(_PARTS), text)
            work(run)
        report(side, 1.0, "done")
    for done, other in enumerate(others):
        if cancelled():
            return False
        report(_TOGETHER, (done + 0.1) / len(others), "")
        comparison_of(first, other)
    return True


_PARTS = (
    ("times to first token", ttft_of),
    ("what each preemption cost", preemptions_of),
    ("latencies and sums", figures_of),
)
