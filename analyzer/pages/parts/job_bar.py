"""The bar of a job with one part, with a button to stop it.

It knows a place in session state that holds the job, and nothing of what is worked out.
"""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from analyzer.pages.parts.jobs import Job
from analyzer.pages.parts.messages import plain

LOOK_EVERY_S = 0.4


@st.fragment(run_every=LOOK_EVERY_S)
def job_bar(slot: str, title: str, key: str, stopped: Callable[[], None] | None = None) -> None:
    """Draw how far the job in that slot is, and run the page again when it has ended.

    key: of the Cancel button, which ends the job and empties the slot; stopped: called after that.
    """
    job = st.session_state.get(slot)
    if not isinstance(job, Job):
        return
    if job.wait(0.0):
        st.rerun()
    (progress,) = job.progress.values()
    said = progress.text or "starting"
    st.progress(progress.done_frac, text=plain(f"{title}: {said}"))
    if st.button("Cancel", key=key):
        job.cancel()
        st.session_state[slot] = None
        if stopped is not None:
            stopped()
        st.rerun()
