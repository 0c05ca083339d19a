"""Simulate this: a workload that would make the server say the same, how well it fits, and the way to what-ifs.

It knows the job that simulates and the store that keeps the estimated trace. Estimating and comparing are
done in `analyzer.estimate`, simulating in the engine, which is imported when it is asked for.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import streamlit as st

from analyzer import figures
from analyzer.estimate import Estimate, Fit, compare_series, estimate_workload
from analyzer.estimate_command import write_trace
from analyzer.evidence_figure import fit_figure
from analyzer.look import three_digits
from analyzer.pages.parts import state
from analyzer.pages.parts.evidence_reading import Part, Reading
from analyzer.pages.parts.job_bar import job_bar
from analyzer.pages.parts.jobs import Cancelled, Job, Progress, Report
from analyzer.pages.parts.messages import guarded, plain, say_error
from analyzer.pages.parts.replay import engine_choices, recorded
from analyzer.pages.parts.settings import USUAL_PAIR
from analyzer.pages.parts.settings_form import start_from
from analyzer.pages.parts.state import TraceRef
from analyzer.pages.parts.store import Store, default_root
from analyzer.pages.parts.timeline import theme
from analyzer.pages.parts.validation_badge import estimate_badge
from analyzer.telemetry import summarize_telemetry
from analyzer.validation import Validation, validate_estimate
from traces.errors import KVReplayError, NotAWorkloadError
from traces.recording import open_recording

ROWS = (
    ("usage", "KV pool in use", "%", 100.0),
    ("running", "Running", "requests", 1.0),
    ("waiting", "Waiting", "requests", 1.0),
    ("generation", "Output tokens", "tokens/s", 1.0),
)
_JOB, _JOB_KEY, _FIT, _FAULT, _KEPT = (
    f"evidence_sim_{n}" for n in ("job", "key", "fit", "fault", "kept")
)


def simulate_section(reading: Reading, index: int) -> None:
    """What could be estimated and its fit, or why nothing could."""
    part = reading.parts[index]
    with st.container(border=True, key="evidence_simulate"):
        st.markdown("**Simulate this**")
        try:
            estimate = _estimate(reading.key, index, part)
        except NotAWorkloadError as refusal:
            said = str(refusal).partition("no workload can be estimated: ")[2] or str(refusal)
            st.caption(plain(f"Not from this evidence: {said}"))
            return
        with guarded():
            _estimated(reading, index, estimate)


@st.cache_resource(max_entries=6, show_spinner="Estimating the workload")
def _estimate(key: str, index: int, _part: Part) -> Estimate:
    return estimate_workload(_part.evidence)


def _estimated(reading: Reading, index: int, estimate: Estimate) -> None:
    table, span = estimate.workload.table, estimate.workload.span_s
    rate = f", {three_digits(len(table) / span)} a second" if span else ""
    st.markdown(
        plain(
            f"A workload that would make this server say the same: {len(table):,} requests over {span:,.0f} s{rate}, prompts of "
            f"{estimate.prompt_mean:,.0f} and outputs of {estimate.output_mean:,.0f} tokens on average. It is an estimate; it assumes:"
        )
    )
    st.markdown("\n".join(f"- {plain(said)}" for said in estimate.assumptions))
    settings, given = _settings(estimate, reading.parts[index])
    known, ours = _choose_machine(given)
    settings |= ours
    fit = _shown_fit(reading, index)
    st.button(
        "Simulate it and show the fit", key="evidence_sim", on_click=_start, args=(reading, index, estimate, settings)
    )  # fmt: skip
    if not known:
        unnamed = " and no ".join(n for n in ("model", "device") if n not in given)
        st.caption(f"The evidence names no {unnamed} that we know: choose the nearest. They decide times, not decisions.")  # fmt: skip
    kept = st.session_state.pop(_KEPT, None)
    page = st.session_state.get("pages_by_path", {}).get("compare")
    if kept and page is not None:  # None where this page is drawn alone, as in a test
        st.switch_page(page, query_params={"trace": str(kept)})
    fault = st.session_state.pop(_FAULT, None)
    if fault is not None:
        say_error(fault)
    _job_part(reading, index)
    if fit is None:
        st.caption("What-ifs follow once the fit is known.")
        return
    _fit(fit.fit)
    if estimate_badge(fit.judged, estimate.assumptions):
        st.button(
            "What-ifs on Compare", key="evidence_what_if", icon=":material/compare_arrows:",
            on_click=_to_compare, args=(reading, estimate, settings),
            help="Keeps the estimated requests as a trace and opens it on Compare, with the pool and limits that the evidence tells.",
        )  # fmt: skip


def _settings(estimate: Estimate, part: Part) -> tuple[dict[str, Any], dict[str, Any]]:
    """Engine settings by name, with what the evidence tells; and that alone."""
    from engine.config import EngineSettings

    defaults = EngineSettings()
    names = [f.name for f in fields(defaults)]
    given = {k: v for k, v in estimate.settings.items() if k in names}
    model = _known_name(part.diagnosis.facts.get("model"), engine_choices()[1]["model"])
    if model:
        given["model"] = model
    return {n: getattr(defaults, n) for n in names} | given, given


def _known_name(said: object, known: Sequence[str]) -> str | None:
    """The longest known name that what was said holds, letter case and punctuation aside."""
    text = re.sub(r"[^a-z0-9]", "", str(said or "").lower())
    found = [n for n in known if re.sub(r"[^a-z0-9]", "", n.lower()) in text]
    return max(found, key=len, default=None)


def _choose_machine(given: Mapping[str, Any]) -> tuple[bool, dict[str, Any]]:
    """Model and device to simulate with. First: whether the evidence names them."""
    defaults, choices = engine_choices()
    left, right = st.columns(2)
    found: dict[str, Any] = {}
    for name, column, label in (("model", left, "Model"), ("device", right, "Device")):
        options = list(choices[name])
        start = given.get(name, defaults.get(name))
        found[name] = column.selectbox(
            label, options, index=options.index(start) if start in options else 0, key=f"evidence_{name}"
        )  # fmt: skip
    return all(n in given for n in found), found


# ---- the fit --------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Fitted:
    """The series of both sides, and how the simulation is judged by them."""

    fit: Fit
    judged: Validation


def _start(reading: Reading, index: int, estimate: Estimate, settings: dict[str, Any]) -> None:
    running = st.session_state.get(_JOB)
    if isinstance(running, Job):
        running.cancel()
    store = Store(default_root())
    job = Job(
        lambda report, cancelled: _simulate(
            reading.parts[index], estimate, settings, store, report, cancelled
        ),
        {"Simulating": Progress()},
    )
    st.session_state[_JOB], st.session_state[_JOB_KEY] = job.start(), (reading.key, index)


def _simulate(
    part: Part,
    estimate: Estimate,
    settings: Mapping[str, Any],
    store: Store,
    report: Report,
    cancelled: Cancelled,
) -> Fitted | None:
    """Run the estimated workload, or open the run where it was made before, and compare."""
    made = recorded(
        estimate.workload,
        settings,
        store,
        partial(report, "Simulating"),
        cancelled,
        "simulated",
    )
    if made is None or cancelled():
        return None
    with open_recording(made) as recording:
        fit = compare_series(estimate, recording)
        telemetry = part.evidence.telemetry
        told = {} if telemetry is None else summarize_telemetry(telemetry)
        return Fitted(fit, validate_estimate(fit, told, recording))


def _job_part(reading: Reading, index: int) -> None:
    job = st.session_state.get(_JOB)
    if not isinstance(job, Job) or st.session_state.get(_JOB_KEY) != (reading.key, index):
        return
    if not job.wait(0.6):
        job_bar(_JOB, "Simulating", "evidence_sim_cancel")
        return
    st.session_state[_JOB] = None
    if job.error is not None:
        say_error(job.error)
    elif isinstance(job.result, Fitted):
        st.session_state[_FIT] = ((reading.key, index), job.result)
        st.rerun()


def _shown_fit(reading: Reading, index: int) -> Fitted | None:
    key, fit = st.session_state.get(_FIT, (None, None))
    return fit if key == (reading.key, index) and isinstance(fit, Fitted) else None


def _fit(fit: Fit) -> None:
    """Observed and simulated series over each other, and how far they are apart."""
    rows = [row for row in ROWS if fit.means.get(row[0]) is not None]
    if not rows:
        st.caption("Nothing was observed that could be compared.")
        return
    table = {c: fit.table[c].to_numpy() for c in fit.table.columns}
    said = []
    for name, title, unit, factor in rows:
        means, error = fit.means[name], fit.errors[name]
        if means is None:
            continue
        away = "" if error is None else f", apart by {100 * error:,.1f} {'points' if name == 'usage' else '%'} on average"  # fmt: skip
        said.append(f"{title}: mean {three_digits(factor * means[0])} observed, {three_digits(factor * means[1])} simulated {unit}{away}")  # fmt: skip
    st.plotly_chart(
        fit_figure(table, rows, theme()), theme=None, key="evidence_fit", config=figures.CONFIG,
        alt="Observed against simulated series. " + "; ".join(said) + ".",
    )  # fmt: skip
    st.markdown("\n".join(f"- {plain(s)}" for s in said))
    if st.toggle("Show data", key="evidence_fit_data"):
        st.dataframe(
            fit.table, hide_index=True, height=280, alt="Observed and simulated samples"
        )


# ---- what-ifs ---------------------------------------------------------------------------------------


def _to_compare(reading: Reading, estimate: Estimate, settings: dict[str, Any]) -> None:
    """Keep the requests as a trace, let Compare's Trace source read it, and go there."""
    store = Store(default_root())
    folder = store.root / "estimates"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{uuid.uuid4().hex}.jsonl"
        write_trace(estimate, path)
        with path.open("rb") as written:
            entry = store.spool(written, "estimated-workload.jsonl")
        path.unlink(missing_ok=True)
    except (KVReplayError, OSError) as error:
        st.session_state[_FAULT] = error  # a callback draws nothing
        return
    state.set_trace(TraceRef(entry.id))
    st.session_state["source"] = "trace"
    given = {**settings, "preemption_mode": USUAL_PAIR[0]}
    start_from(given, {**given, "preemption_mode": USUAL_PAIR[1]}, "trace")
    st.session_state[_KEPT] = entry.id
