"""One of the Fleet page's jobs: started, watched, stopped, its result handed over once.

It knows a name in session state for each, and nothing of what is worked out. Jobs of the other pages are in
`job_panel.py`; this one's results are no pair of runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import streamlit as st

from analyzer.pages.parts.job_bar import job_bar
from analyzer.pages.parts.jobs import Cancelled, Job, Progress, Report
from analyzer.pages.parts.messages import say_error

FIRST_WAIT_S = 0.8  # a small fleet is read before a bar would have been drawn


def start(name: str, key: str, work: Callable[[Report, Cancelled], Any]) -> None:
    """Begin the work under that name; what ran there before is stopped. key: what it is about."""
    stop(name)
    job = Job(work, {name: Progress()}, made_from=key)
    st.session_state[_slot(name)] = job.start()


def stop(name: str) -> None:
    """Ask the work of that name to end, and forget it."""
    job = st.session_state.pop(_slot(name), None)
    if isinstance(job, Job):
        job.cancel()


def is_running(name: str, key: str) -> bool:
    """Whether that work was begun and not yet handed over."""
    job = st.session_state.get(_slot(name))
    return isinstance(job, Job) and job.made_from == key


def watch(name: str, key: str, title: str) -> Any | None:
    """The result, once, when it has ended; until then a bar is drawn and None comes back.

    A failure is said here; None too where nothing was begun for that key.
    """
    job = st.session_state.get(_slot(name))
    if not isinstance(job, Job) or job.made_from != key:
        return None
    if not job.wait(FIRST_WAIT_S):
        with st.container(border=True, key=f"fleet_job_{name}"):
            job_bar(_slot(name), title, f"fleet_cancel_{name}", partial(_note_cancelled, name))
        return None
    st.session_state.pop(_slot(name), None)
    if job.error is not None:
        say_error(job.error)
    return job.result


def _note_cancelled(name: str) -> None:
    st.session_state[f"fleet_cancelled_{name}"] = True


def was_cancelled(name: str) -> bool:
    """True once after somebody pressed Cancel."""
    return bool(st.session_state.pop(f"fleet_cancelled_{name}", False))


def _slot(name: str) -> str:
    return f"fleet_job_of_{name}"
