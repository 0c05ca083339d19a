"""What stands in the map's place where nobody noted who held which block, and the replay that does.

A job of its own: what is shown stays what it is, ownership is added to it.
"""

from __future__ import annotations

from collections.abc import Mapping

import streamlit as st

from analyzer.look import Side
from analyzer.pages.parts.block_source import replay_with_blocks, why_not
from analyzer.pages.parts.jobs import Job, Progress
from analyzer.pages.parts.messages import plain, say_error
from analyzer.pages.parts.store import Store
from analyzer.run import Run

JOB = "blocks_job"
STOPPED = "blocks_job_stopped"
LOOK_EVERY_S = 0.4
FIRST_WAIT_S = 0.3


def missing_section(runs: Mapping[Side, Run], store: Store, may_start: bool) -> None:
    """Say which runs lack ownership and how to get it. may_start: replay by itself (a sample)."""
    if st.session_state.get(JOB) is not None:
        _working()
        return
    can = {side: run for side, run in runs.items() if why_not(run) is None}
    if can and may_start and not st.session_state.get(STOPPED):
        _start(can, store)
        return
    with st.container(border=True, key="no_ownership"):
        names = " and ".join(runs)
        st.markdown(f"**{names}: nobody noted who held which block.**")
        st.markdown(
            "Ownership is recorded on request: add `--blocks` to `python -m engine simulate`, "
            "`replay` or `run`. It costs a run of the simulator some ten times its time, a measured run 0.2 %."
        )
        for side, run in runs.items():
            reason = why_not(run)
            if reason is not None:
                st.caption(f"{side} cannot be replayed: {plain(reason)}.")
        if can and st.button(
            f"Replay {' and '.join(can)} with ownership",
            icon=":material/replay:",
            type="primary",
            key="replay_blocks",
            help="The same requests under the same settings; checked against the recording, step by step.",
        ):
            _start(can, store)


def _start(runs: Mapping[Side, Run], store: Store) -> None:
    job = Job(
        lambda report, cancelled: replay_with_blocks(runs, store, report, cancelled),
        {str(side): Progress() for side in runs},
    ).start()
    st.session_state[JOB] = job
    st.session_state[STOPPED] = False
    if job.wait(FIRST_WAIT_S):
        _ended(job)
    _working()


@st.fragment(run_every=LOOK_EVERY_S)
def _working() -> None:
    """Bars while it works; the page again when it has ended."""
    job = st.session_state.get(JOB)
    if not isinstance(job, Job):
        return
    if job.wait(0.0):
        _ended(job)
        return
    with st.container(border=True, key="replaying_blocks"):
        st.markdown(
            "**Replaying with ownership**: the same requests and settings, this time noting who holds which block."
        )
        for side, progress in job.progress.items():
            st.progress(progress.done_frac, text=f"{side}: {progress.text or 'waiting'}")
        if st.button("Cancel", key="cancel_blocks"):
            job.cancel()
            st.session_state[JOB] = None
            st.session_state[STOPPED] = True
            st.rerun()


def _ended(job: Job) -> None:
    st.session_state[JOB] = None
    if job.error is not None:
        st.session_state[STOPPED] = True
        say_error(job.error)
        return
    st.rerun()
