"""The validation badge: how near the simulator comes to the run on the page, and what that allows.

It knows the job that simulates a recorded run at its own settings, the one that calibrates on it, the store
that keeps both results under the run's content, and how the badge is drawn. Errors and grades come from
`analyzer.validation`. Without a badge, or with a poor one, there are no what-ifs on uploaded data: then
`badge_section` says why and returns None.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import streamlit as st

from analyzer.pages.parts.job_bar import job_bar
from analyzer.pages.parts.jobs import Cancelled, Job, Progress, Report
from analyzer.pages.parts.messages import plain, say_error
from analyzer.pages.parts.replay import engine_stamp, wait_for_core
from analyzer.pages.parts.store import Store, default_root
from analyzer.run import Run
from analyzer.validation import (
    Grade,
    Validation,
    as_document,
    bounds_in_words,
    from_document,
    show_error,
    show_value,
)
from analyzer.what_if_trust import say_trust
from traces.errors import KVReplayError
from traces.recording import open_recording
from traces.workload import Workload

if TYPE_CHECKING:
    from analyzer.pages.parts.shell import Opened
    from analyzer.validate_command import Plan
    from engine.config import EngineSettings

FIRST_WAIT_S = 0.6
ESTIMATED = "Estimated requests: arrivals and lengths are inferred from what the server said."
CALIBRATED = "Calibrated on this recording."
ICONS = {
    "good": ":material/verified:",
    "fair": ":material/rule:",
    "poor": ":material/report:",
    None: ":material/help:",
}
COLOURS = {"good": "green", "fair": "orange", "poor": "red", None: "gray"}
_PART = "Validating"
_JOB, _JOB_OF, _FAULT = (f"validation_{n}" for n in ("job", "job_of", "fault"))


@dataclass(frozen=True)
class Badge:
    """What is known of the simulator on one run. found: on all of it, at its own settings, or on the
    calibrated device; held_out: on the half that a calibration to the other half has not seen; why_not:
    why there is none; step_errors: median errors of step times that a fit to the others predicts;
    estimated: the requests are; notes: sentences on what is not as it was."""

    found: Validation
    calibrated: bool = False
    held_out: Validation | None = None
    why_not: str = ""
    step_errors: tuple[float, ...] = ()
    caution: str = ""
    estimated: bool = False
    notes: tuple[str, ...] = ()

    @property
    def judged(self) -> Validation:
        """What the grade rests on: errors that were held out, where there are some."""
        return self.held_out or self.found

    @property
    def grade(self) -> Grade | None:
        return self.judged.grade

    @property
    def sentence(self) -> str:
        """One line: how near, and on what it was measured."""
        said = self.judged.sentence
        if self.estimated:
            return f"{said} {ESTIMATED}"
        if not self.calibrated:
            return said
        if self.held_out is not None:
            return f"{said} {CALIBRATED} Errors are of its second half, by a fit to the first."
        return f"{said} {CALIBRATED} These are errors of the fit itself."


@dataclass(frozen=True)
class Validated:
    """A run on which what-ifs may be made. workload: its requests; settings: with which to simulate them,
    on the calibrated device where there is one; badge None: the recording is the simulator's own;
    sentence: how near the simulator is, in one line."""

    workload: Workload
    settings: EngineSettings
    calibrated: bool
    badge: Badge | None
    sentence: str


# ---- the section ----------------------------------------------------------------------------------


def badge_section(run: Run, store: Store) -> Validated | None:
    """Draw the badge of a run; None where no what-if may be made on it (yet), the reason is drawn.

    Starts the validation of a measured recording by itself, as a job; what was worked out before is read
    from the store.
    """
    from analyzer.validate_command import OURS, is_own

    with st.container(border=True, key="validation"):
        try:
            planned = _planned(run.ref, run.stamp, run)
        except KVReplayError as error:
            say_error(error)
            st.caption("Without a validation there are no what-ifs on this recording.")
            return None
        if is_own(run.recording):
            st.markdown(
                f":material/function: Simulated. {OURS} What-ifs are made at its settings."
            )
            st.caption(plain(f"How far to trust it: {say_trust()}"))
            return Validated(planned.workload, planned.settings, False, None, OURS)
        return _measured(run, planned, store)


def validated(opened: Opened) -> Badge | None:
    """The badge of run A as far as it was worked out before; None: it was not, or A is simulated."""
    from analyzer.validate_command import is_own

    if is_own(opened.a.recording):
        return None
    key = _key(opened.a.ref, opened.a.stamp, opened.a)
    return _newest(Store(default_root()), key)


@st.cache_resource(max_entries=4, show_spinner=False)
def _planned(ref: str, stamp: str, _run: Run) -> Plan:
    from analyzer.validate_command import plan

    return plan(_run.recording)


@st.cache_data(max_entries=32, show_spinner=False)
def _key(ref: str, stamp: str, _run: Run) -> str:
    """32 hex digits of what the run holds and of the engine that would be asked."""
    digest = hashlib.blake2b(engine_stamp().encode(), digest_size=16)
    for name in ("steps", "events", "requests"):
        for part in _run.recording.parts.get(name, ()):
            with part.open("rb") as file:
                while chunk := file.read(2**22):
                    digest.update(chunk)
    return digest.hexdigest()


def _measured(run: Run, planned: Plan, store: Store) -> Validated | None:
    key = _key(run.ref, run.stamp, run)
    if _is_running(key):
        return None
    badge = _newest(store, key)
    fault = st.session_state.get(_FAULT, {}).get(key)
    if fault is not None:
        st.warning(plain(fault), icon=":material/block:")
    if badge is None:
        if fault is None:
            _start(key, run, planned, store, calibrate=False)
            return None
        st.button("Validate again", key="validate_again", on_click=_forget_fault, args=(key,))
        return None
    _draw(badge)
    if not badge.calibrated:
        st.button(
            "Calibrate on this recording", key="calibrate_on_it", icon=":material/tune:",
            on_click=_start, args=(key, run, planned, store), kwargs={"calibrate": True},
            help="Fits the device's numbers to the steps of this recording, then judges a fit to the first half on the second.",
        )  # fmt: skip
    else:
        st.button(
            "Back to the device as it was", key="uncalibrate", on_click=_uncalibrate, args=(store, key),
            help="Forgets the calibration on this recording.",
        )  # fmt: skip
    return _allowed(badge, planned, _folder(store, key) / "device.json")


def _allowed(badge: Badge, planned: Plan, device: Path) -> Validated | None:
    """What-ifs, unless the grade forbids them; then the reason is drawn."""
    if badge.grade in (None, "poor"):
        why = "is poor" if badge.grade else "cannot be worked out"
        way = (
            "Calibrate on it first."
            if not badge.calibrated
            else "What could still help: a quieter or longer recording."
        )
        st.caption(
            f"No what-ifs on this recording: the agreement {why}, so they would say little of it. {way}"
        )
        return None
    settings = planned.settings
    if badge.calibrated:
        settings = settings.with_(device=str(device))
    return Validated(planned.workload, settings, badge.calibrated, badge, badge.sentence)


# ---- the badge, drawn -----------------------------------------------------------------------------


def _draw(badge: Badge) -> None:
    grade = badge.grade
    word = grade.capitalize() if grade else "Not graded"
    said = plain(badge.sentence).replace(" %", "\u00a0%")  # no line ends between the two
    st.markdown(f":{COLOURS[grade]}-badge[{ICONS[grade]} {word}] **{said}**")
    with st.expander("All figures, observed and simulated"):
        badge_table(badge.found, "fitted" if badge.calibrated else "", badge.estimated)
        if badge.held_out is not None:
            st.markdown(
                f"Held out: a device fitted to the first half, {badge.held_out.num_requests:,} requests that came in the second"
            )
            badge_table(badge.held_out, "held out", badge.estimated)
        for line in _notes(badge):
            st.caption(plain(line))


def _notes(badge: Badge) -> list[str]:
    lines = []
    if badge.why_not:
        lines.append(f"No held-out errors: {badge.why_not}")
    if badge.step_errors:
        lines.append(
            f"Step times that a fit to the others predicts are off by at most {100 * max(badge.step_errors):.1f} % in the median."
        )
    return [
        *lines,
        *([badge.caution] if badge.caution else []),
        *badge.notes,
        bounds_in_words(badge.found),
    ]


def badge_table(found: Validation, what: str = "", estimated: bool = False) -> None:
    """Every figure with both sides, the error and its grade. what: "fitted", "held out" or ""."""
    table = pl.DataFrame(
        {
            "Figure": [c.label for c in found.checks],
            "Observed": [
                ""
                if c.name == "used_distance"
                else show_value(c.name, c.observed, as_share=estimated)
                for c in found.checks
            ],
            "Simulated": [
                show_value(c.name, c.simulated, as_share=estimated) for c in found.checks
            ],
            f"Error{', ' + what if what else ''}": [show_error(c) for c in found.checks],
            "Grade": [c.grade or "not counted" for c in found.checks],
        }
    )
    st.dataframe(
        table,
        hide_index=True,
        height="content",
        column_config={
            "Figure": st.column_config.TextColumn(width="medium"),
            **{n: st.column_config.TextColumn(alignment="right") for n in table.columns[1:4]},
        },
        alt=f"Figures of the observed run and of its simulation, with errors and grades {what}",
    )


def estimate_badge(found: Validation, assumptions: tuple[str, ...] = ()) -> bool:
    """Draw the badge of an estimated workload; whether what-ifs may be made on it."""
    badge = Badge(found, estimated=True, notes=assumptions)
    with st.container(border=True, key="validation"):
        _draw(badge)
        if badge.grade not in (None, "poor"):
            return True
        st.caption(
            "No what-ifs on these requests: the agreement is poor. Choose a model and device nearer to the server's, or give a request trace."
        )
    return False


# ---- the job --------------------------------------------------------------------------------------


def _start(key: str, run: Run, planned: Plan, store: Store, *, calibrate: bool) -> None:
    """Begin to validate, or to calibrate and then validate; one such job at a time."""
    running = st.session_state.get(_JOB)
    if isinstance(running, Job):
        running.cancel()
    _forget_fault(key)
    job = Job(
        lambda report, cancelled: _work(key, run, planned, store, calibrate, report, cancelled),
        {_PART: Progress()},
    )
    st.session_state[_JOB], st.session_state[_JOB_OF] = job.start(), key
    if not calibrate:  # a callback is followed by a run of its own
        st.rerun()


def _is_running(key: str) -> bool:
    """Whether the job of this run goes on; its bar is drawn. One that has ended is put away."""
    job = st.session_state.get(_JOB)
    if not isinstance(job, Job) or st.session_state.get(_JOB_OF) != key:
        return False
    if not job.wait(FIRST_WAIT_S):
        title = "Holding the simulator against this recording"
        job_bar(_JOB, title, "cancel_validation", _say_cancelled)
        return True
    st.session_state[_JOB] = None
    if job.error is not None:
        faults = st.session_state.setdefault(_FAULT, {})
        faults[key] = str(job.error)
        if not isinstance(job.error, KVReplayError):
            say_error(job.error)
    return False


def _say_cancelled() -> None:
    faults = st.session_state.setdefault(_FAULT, {})
    faults[st.session_state.get(_JOB_OF)] = "The validation was cancelled."


def _forget_fault(key: str) -> None:
    st.session_state.setdefault(_FAULT, {}).pop(key, None)


def _work(
    key: str,
    run: Run,
    planned: Plan,
    store: Store,
    calibrate: bool,
    report: Report,
    cancelled: Cancelled,
) -> bool | None:
    """Work out the badge and keep it; True: it is kept, None: cancelled."""
    from analyzer.validate_command import calibrate_on

    def say(done: float, text: str) -> None:
        report(_PART, done, text)

    if not wait_for_core(say, cancelled):
        return None
    scratch = store.root / "validations" / f".part-{uuid.uuid4().hex}"
    scratch.mkdir(parents=True, exist_ok=True)
    try:
        whole = (0.0, 0.2 if calibrate else 1.0)
        found = _simulated(run, planned, scratch, say, cancelled, "simulating", whole)
        if cancelled():
            return None
        badge = Badge(found, notes=planned.notes)
        if calibrate:
            done = calibrate_on(run.recording, planned, scratch / "device.json", say, cancelled)
            if done is None or cancelled():
                return None
            again = replace(planned, settings=planned.settings.with_(device=str(done.path)))
            stage = "simulating on the calibrated device"
            found = _simulated(run, again, scratch, say, cancelled, stage, (0.85, 1.0))
            badge = Badge(
                found, True, done.held_out, done.why_not, done.step_errors, done.caution, False, planned.notes
            )  # fmt: skip
        if cancelled():
            return None
        _keep(store, key, badge, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return True


def _simulated(
    run: Run,
    planned: Plan,
    scratch: Path,
    say: Any,
    cancelled: Cancelled,
    stage: str,
    part: tuple[float, float],
) -> Validation:
    """The run's requests simulated, and held against it. stage, part: as in `simulate_plan`."""
    from analyzer.validate_command import simulate_plan
    from analyzer.validation import validate

    simulate_plan(planned, scratch / "run", say, cancelled, stage, part)
    with open_recording(scratch / "run") as simulated:
        return validate(run.recording, simulated)


# ---- what is kept ---------------------------------------------------------------------------------


def _folder(store: Store, key: str) -> Path:
    return store.root / "validations" / key


def _keep(store: Store, key: str, badge: Badge, scratch: Path) -> None:
    """Write the badge, and the device that it rests on, under the run's key."""
    home = _folder(store, key)
    home.mkdir(parents=True, exist_ok=True)
    if badge.calibrated:
        os.replace(scratch / "device.json", home / "device.json")
    name = "calibrated" if badge.calibrated else "plain"
    part = scratch / f"{name}.json"
    part.write_text(json.dumps(_written(badge)), "utf-8")
    os.replace(part, home / part.name)


def _newest(store: Store, key: str) -> Badge | None:
    """The badge that was kept, the calibrated one first; None: none, or one that cannot be read."""
    home = _folder(store, key)
    for name in ("calibrated", "plain"):
        try:
            raw = json.loads((home / f"{name}.json").read_text("utf-8"))
            badge = _read(raw)
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if not badge.calibrated or (home / "device.json").exists():
            return badge
    return None


def _uncalibrate(store: Store, key: str) -> None:
    for name in ("calibrated.json", "device.json"):
        (_folder(store, key) / name).unlink(missing_ok=True)


def _written(badge: Badge) -> dict[str, Any]:
    held = badge.held_out
    return {
        "found": as_document(badge.found),
        "calibrated": badge.calibrated,
        "held_out": None if held is None else as_document(held),
        "why_not": badge.why_not,
        "step_errors": list(badge.step_errors),
        "caution": badge.caution,
        "notes": list(badge.notes),
    }


def _read(raw: dict[str, Any]) -> Badge:
    held = raw["held_out"]
    return Badge(
        from_document(raw["found"]),
        raw["calibrated"],
        None if held is None else from_document(held),
        raw["why_not"],
        tuple(raw["step_errors"]),
        raw["caution"],
        False,
        tuple(raw["notes"]),
    )
