"""Giving evidence: paste, files, paths of this machine, samples; and reading what was given.

It knows widgets, the store and the job that reads. What evidence says is shown elsewhere.
"""

from __future__ import annotations

import glob
import io
from pathlib import Path
from typing import Any

import streamlit as st

from analyzer.pages.parts import evidence_state as state
from analyzer.pages.parts.evidence_reading import (
    PASTE,
    Reading,
    Slot,
    evidence_store,
    files_of,
    is_big,
    key_of,
    read,
    sample_names,
    slot,
)
from analyzer.pages.parts.evidence_state import EvidenceRef
from analyzer.pages.parts.jobs import Job, Progress
from analyzer.pages.parts.messages import guarded, say_error
from analyzer.pages.parts.uploads import stored
from traces.errors import EvidenceError, FileError, KVReplayError

LOOK_EVERY_S = 0.4
FIRST_WAIT_S = 0.8  # most files are read before a bar would have been drawn
MAX_FILES = 200
SAMPLE_TITLES = {
    "v1-thrash": "vLLM V1: throughput collapses, nothing in the log says why",
    "v0-preemptions": "vLLM V0: preemption warnings",
    "one-rank-full": "/metrics of four ranks, pasted",
    "slots-not-kv": "A queue before a half-empty pool",
}
EXAMPLE = "INFO 03-04 10:01:40 [loggers.py:259] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 168.4 tokens/s, Running: 4 reqs, Waiting: 0 reqs, GPU KV cache usage: 99.5%"
KINDS = (
    "Logs of vLLM (V0 and V1), SGLang, TensorRT-LLM, Triton and TGI, with any prefix; /metrics once or several times; query_range JSON; Grafana CSV; "
    "bench and sweep tables; start-up lines; flags. Plain, .gz or .zst. It runs on your machine; nothing leaves it."
)
_TURN, _JOB, _JOB_REF, _FAULT = (f"evidence_{n}" for n in ("turn", "job", "job_ref", "fault"))


def inputs_section(has_result: bool) -> None:
    """The boxes to give evidence in; open where nothing is shown yet."""
    if not has_result:
        _boxes(False)
        _samples()
        return
    with st.expander("Give other evidence, or add to this", icon=":material/add_notes:"):
        _boxes(True)
        _samples()


def _boxes(has_result: bool) -> None:
    turn = st.session_state.setdefault(_TURN, 0)
    with st.form("evidence_form", border=False):
        left, right = st.columns([3, 2])
        pasted = left.text_area(
            "Paste lines: a log, /metrics, start-up lines, flags",
            key=f"evidence_paste_{turn}",
            height=186,
            placeholder=EXAMPLE,
        )
        uploads = right.file_uploader(
            "or drop files of one server",
            accept_multiple_files=True,
            key=f"evidence_files_{turn}",
        )
        path = right.text_input(
            "or a path on this machine", key=f"evidence_path_{turn}", placeholder="/var/log/vllm/*.log"
        )  # fmt: skip
        with st.container(horizontal=True, vertical_alignment="center"):
            pressed = st.form_submit_button(
                "Read and diagnose", type="primary", key="evidence_read"
            )
            more = has_result and st.form_submit_button(
                "Add to what is shown",
                key="evidence_add",
                help="Read it together with the evidence below: the line or flag that was missing, say.",
            )
    if pressed or more:
        with guarded():
            _take(str(pasted or ""), list(uploads or []), str(path or "").strip(), bool(more))
    st.caption(KINDS)


def _samples() -> None:
    names = sample_names()
    if not names:
        return
    with st.container(horizontal=True, vertical_alignment="center", key="evidence_samples"):
        st.markdown("**Or try one of ours:**", width="content")
        for name in names:
            st.button(
                SAMPLE_TITLES.get(name, name),
                key=f"evidence_sample_{name}",
                on_click=state.ask,
                args=(EvidenceRef("sample", (name,)),),
            )


def _take(pasted: str, uploads: list[Any], path: str, add: bool) -> None:
    """Keep what was given under its content, and ask for it. Raises FileError, EvidenceError."""
    store = evidence_store()
    ids: list[str] = []
    before = state.shown()
    if add and before is not None and before.kind == "files":
        ids += before.names
    elif add and before is not None and before.kind == "sample":
        ids += [store.link(g.path).id for g in files_of(before)]
    num = len(ids)
    if len(uploads) > MAX_FILES:
        raise EvidenceError("evidence", "", f"{len(uploads):,} files were dropped", f"Give at most {MAX_FILES} at once.")  # fmt: skip
    ids += [stored(store, upload).id for upload in uploads]
    if path:
        ids += [store.link(p).id for p in _paths(path)]
    if pasted.strip():
        ids.append(store.spool(io.BytesIO(pasted.encode("utf-8", errors="replace")), PASTE).id)
    if len(ids) == num:
        raise EvidenceError(
            "evidence", "", "nothing was given", "Paste some lines, drop a file or give a path."
        )
    state.ask(EvidenceRef("files", tuple(dict.fromkeys(ids))))
    st.session_state[_TURN] += 1  # let go of uploaded bytes, which the widget holds
    st.rerun()


def _paths(text: str) -> list[Path]:
    """The paths that the field names; * and ? stand for several."""
    if not any(c in text for c in "*?["):
        return [Path(text)]
    found = sorted(glob.glob(str(Path(text).expanduser())))
    if not found:
        raise FileError(text, "", "no file matches it", "Check the path; it is one of the machine that runs this page.")  # fmt: skip
    if len(found) > MAX_FILES:
        raise FileError(text, "", f"{len(found):,} files match it", f"Give at most {MAX_FILES} at once.")  # fmt: skip
    return [Path(p) for p in found]


# ---- reading ------------------------------------------------------------------------------------


def reading_section() -> None:
    """Read what was asked for: at once where it is small, else in a job with a bar. What is shown stays."""
    fault = st.session_state.pop(_FAULT, None)
    if fault is not None:
        say_error(fault)
    ref = state.asked()
    if ref is None:
        return
    try:
        key = key_of(ref)
        place = slot(key)
        if place.reading is None and not is_big(ref):
            with st.spinner("Reading the evidence"):
                place.reading = read(ref, key)
    except KVReplayError as error:
        state.give_up()
        _stop_job()
        say_error(error)
        return
    if place.reading is not None:
        _stop_job()
        state.show(ref)
        st.rerun()
    _follow_job(ref, key, place)


def _follow_job(ref: EvidenceRef, key: str, place: Slot) -> None:
    job = _job()
    if job is None or st.session_state.get(_JOB_REF) != key:
        _stop_job()
        job = Job(lambda report, cancelled: read(ref, key, report, cancelled), {"Reading": Progress()}).start()  # fmt: skip
        st.session_state[_JOB], st.session_state[_JOB_REF] = job, key
    if not job.wait(FIRST_WAIT_S):
        _bar()
        return
    st.session_state[_JOB] = None
    state.give_up()
    if job.error is not None:
        say_error(job.error)
    elif isinstance(job.result, Reading):
        place.reading = job.result
        state.show(ref)
        st.rerun()


@st.fragment(run_every=LOOK_EVERY_S)
def _bar() -> None:
    job = _job()
    if job is None:
        return
    if job.wait(0.0):
        st.rerun()
    progress = job.progress["Reading"]
    with st.container(border=True, key="evidence_job"):
        st.progress(progress.done_frac, text=f"Reading {progress.text}".replace("_", "\\_"))
        if st.button("Cancel", key="evidence_cancel"):
            _stop_job()
            state.give_up()
            st.rerun()


def _job() -> Job | None:
    found = st.session_state.get(_JOB)
    return found if isinstance(found, Job) else None


def _stop_job() -> None:
    job = _job()
    if job is not None:
        job.cancel()
    st.session_state[_JOB] = None


def current() -> Reading | None:
    """What is shown, read again where the server has forgotten it. Raises KVReplayError where it is gone."""
    ref = state.shown()
    if ref is None:
        return None
    key = key_of(ref)
    place = slot(key)
    if place.reading is None:
        if is_big(ref):
            state.show(None)
            state.ask(ref)
            st.rerun()
        place.reading = read(ref, key)
    return place.reading
