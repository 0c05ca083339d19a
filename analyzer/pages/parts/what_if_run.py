"""The operating point: both policies simulated with the changes and without, as a job that may take longer.

It knows the job, its bars, and which result stays on the page meanwhile. Simulating is the bench's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import streamlit as st

from analyzer.outcome import Outcome
from analyzer.pages.parts.jobs import Cancelled, Job, Progress, Report
from analyzer.pages.parts.messages import say_error
from analyzer.pages.parts.what_if_bench import Bench
from analyzer.what_if_pairs import Pairs, pairs_of

LOOK_EVERY_S = 0.4
FIRST_WAIT_S = 1.5  # the sample is done before a bar would have been drawn
_JOB, _SHOWN, _ENDED = (f"what_if_{n}" for n in ("job", "result", "ended"))


@dataclass(frozen=True)
class Result:
    """An operating point. asked: key of what was simulated; changes: lever -> value; modes: the two
    policies; base, now: policy -> what came of it, without and with the changes; pairs: policy -> the
    requests of both, paired, None where they are not the same ones; {} without changes."""

    asked: str
    changes: Mapping[str, Any]
    modes: tuple[str, str]
    base: Mapping[str, Outcome]
    now: Mapping[str, Outcome]
    pairs: Mapping[str, Pairs | None] = field(default_factory=dict)


@dataclass(frozen=True)
class _Ended:
    """A job that gave nothing. asked: of it; error: None where it was cancelled."""

    asked: str
    error: BaseException | None


def asked_key(
    bench: Bench, changes: Mapping[str, Any], modes: tuple[str, str], bounds: Mapping[str, float]
) -> str:  # fmt: skip
    return repr((bench.key, sorted(changes.items()), modes, sorted(bounds.items())))


def result_section(
    bench: Bench,
    changes: Mapping[str, Any],
    modes: tuple[str, str],
    bounds: Mapping[str, float],
) -> Result | None:
    """The result for these changes; while it is worked out, bars, and the last one of this base, None
    where there is none."""
    asked = asked_key(bench, changes, modes, bounds)
    shown = _shown(bench)
    if shown is not None and shown.asked == asked:
        return shown
    ended = st.session_state.get(_ENDED)
    if isinstance(ended, _Ended) and ended.asked == asked:
        _say_ended(ended)
        return shown
    job = _job()
    if job is None or job.made_from != asked:
        job = _start(asked, bench, changes, modes, bounds)
    if not job.wait(FIRST_WAIT_S):
        _bars(shown is not None)
        return shown
    st.session_state[_JOB] = None
    if isinstance(job.result, Result):
        st.session_state[_SHOWN] = (bench.key, job.result)
        return job.result
    st.session_state[_ENDED] = _Ended(asked, job.error)
    _say_ended(st.session_state[_ENDED])
    return shown


def _shown(bench: Bench) -> Result | None:
    """The last result of this base."""
    key, result = st.session_state.get(_SHOWN, ("", None))
    return result if key == bench.key else None


def _job() -> Job | None:
    found = st.session_state.get(_JOB)
    return found if isinstance(found, Job) else None


def _start(
    asked: str,
    bench: Bench,
    changes: Mapping[str, Any],
    modes: tuple[str, str],
    bounds: Mapping[str, float],
) -> Job:
    if (running := _job()) is not None:
        running.cancel()
    st.session_state[_ENDED] = None
    parts = {f"{mode}, {what}": Progress() for what in _whats(changes) for mode in modes}
    job = Job(
        partial(_work, asked, bench, dict(changes), modes, dict(bounds)), parts, made_from=asked
    )
    st.session_state[_JOB] = job
    return job.start()


def _whats(changes: Mapping[str, Any]) -> tuple[str, ...]:
    return ("base", "changed") if changes else ("base",)


def _work(
    asked: str,
    bench: Bench,
    changes: Mapping[str, Any],
    modes: tuple[str, str],
    bounds: Mapping[str, float],
    report: Report,
    cancelled: Cancelled,
) -> Result | None:
    found: dict[str, dict[str, Outcome]] = {}
    for what in _whats(changes):
        of = found.setdefault(what, {})
        for mode in modes:
            part = f"{mode}, {what}"
            about = _about(found["base"].get(mode)) if what == "changed" else ""
            outcome = bench.outcome(
                changes if what == "changed" else {},
                mode,
                bounds,
                partial(_say, report, part, about),
                cancelled,
            )
            if outcome is None:
                return None
            of[mode] = outcome
            report(part, 1.0, "done")
    bench.store.forget_old_runs()
    base = found["base"]
    if "changed" not in found:
        return Result(asked, changes, modes, base, base)
    now = found["changed"]
    pairs = {mode: pairs_of(base[mode], now[mode]) for mode in modes}
    return Result(asked, changes, modes, base, now, pairs)


def _say(report: Report, part: str, about: str, done_frac: float, text: str) -> None:
    report(part, done_frac, f"{text}{about}")


def _about(base: Outcome | None) -> str:
    """How many steps it may take: as many as the base."""
    steps = base.figures.get("num_steps") if base else None
    return f", about {steps:,} in all" if steps else ""


@st.fragment(run_every=LOOK_EVERY_S)
def _bars(has_result: bool) -> None:
    job = _job()
    if job is None:
        return
    if job.wait(0.0):
        st.rerun()
    with st.container(border=True, key="what_if_bars"):
        below = " What is shown below is still the last result." if has_result else ""
        st.markdown(f"**Simulating.**{below}")
        for part, progress in job.progress.items():
            st.progress(progress.done_frac, text=f"{part}: {progress.text or 'waiting'}")
        if st.button("Cancel", key="cancel_what_if"):
            job.cancel()
            st.session_state[_JOB] = None
            st.session_state[_ENDED] = _Ended(job.made_from, None)
            st.rerun()


def _say_ended(ended: _Ended) -> None:
    if ended.error is not None:
        say_error(ended.error)
    else:
        st.info("Cancelled. What is shown below is the last result.", icon=":material/cancel:")
    st.button("Simulate again", key="what_if_again", on_click=_again)


def _again() -> None:
    st.session_state[_ENDED] = None
