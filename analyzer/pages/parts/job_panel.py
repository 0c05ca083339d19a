"""Progress of the replay that is going on, with a button to stop it."""

from __future__ import annotations

import streamlit as st

from analyzer.pages.parts import state
from analyzer.pages.parts.jobs import Job
from analyzer.pages.parts.messages import say_error
from analyzer.pages.parts.runs import PairRef

LOOK_EVERY_S = 0.4
FIRST_WAIT_S = 0.6  # a short replay is over before a bar would have been drawn


def job_section() -> None:
    """Bars while it runs; the new pair when it is done; the reason when it failed."""
    job = state.job()
    if job is None:
        return
    if job.wait(FIRST_WAIT_S):
        _ended(job)
    else:
        _bars()


@st.fragment(run_every=LOOK_EVERY_S)
def _bars() -> None:
    job = state.job()
    if job is None:
        return
    if job.wait(0.0):
        st.rerun()
    with st.container(border=True, key="replaying"):
        st.markdown("**Replaying.** What is shown below is still the last result.")
        for side, progress in job.progress.items():
            st.progress(progress.done_frac, text=f"{side}: {progress.text or 'waiting'}")
        if st.button("Cancel", key="cancel_job"):
            job.cancel()
            state.set_job(None)
            st.session_state["cancelled"] = True
            st.rerun()


def _ended(job: Job) -> None:
    state.set_job(None)
    if job.error is not None:
        say_error(job.error)
    elif job.result is not None:
        state.show_pair(PairRef(*(f"run:{id_}" for id_ in job.result)), job.made_from)
        st.rerun()
