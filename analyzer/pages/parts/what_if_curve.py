"""The curve of the What-if page: one figure along one lever, both policies, filled in point by point.

A fragment. It knows the job that simulates the points, nearest first, and looks for where preemption ends;
which points, and how it is drawn, is known in `analyzer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import streamlit as st

from analyzer.figures import CONFIG
from analyzer.outcome import Outcome
from analyzer.pages.parts import what_if_state
from analyzer.pages.parts.jobs import Cancelled, Job, Progress, Report
from analyzer.pages.parts.messages import guarded, plain, say_error
from analyzer.pages.parts.timeline import theme
from analyzer.pages.parts.what_if_bench import Bench
from analyzer.pages.parts.what_if_levers import Setting
from analyzer.pages.parts.what_if_run import Result
from analyzer.what_if import (
    FIGURES,
    MAX_CLOSER,
    Curve,
    curve_table,
    curve_values,
    end_of_preemption,
    halfway,
    is_number,
    next_outward,
    say_value,
)
from analyzer.what_if_figure import curve_alt, curve_figure, say_end

OVER = "over"
SHOWS = "shows"
LOOK_EVERY_S = 0.7
FIRST_WAIT_S = 0.3
_PART = "points"
_JOB = "what_if_curve_job"
_POINTS = "what_if_curve_points"  # (key, policy -> value -> outcome), filled by the job


def curve_section(
    bench: Bench, result: Result, settings: Mapping[str, Setting], bounds: Mapping[str, float]
) -> None:
    """Which lever, which figure, and the curve."""
    st.header("Along one lever", anchor=False)
    offered = [n for n in settings if not bench.idle(n, result.modes, result.changes)]
    last = next((n for n in reversed(list(result.changes)) if n in offered), offered[0])
    figures = [m for m in FIGURES if m != "goodput_rps" or bounds]
    what_if_state.follow_choice(OVER, offered, last)
    what_if_state.follow_choice(SHOWS, figures, figures[0])
    with st.container(
        horizontal=True, vertical_alignment="bottom", gap="small", key="curve_controls"
    ):
        over = st.selectbox(
            "Curve over",
            offered,
            format_func=lambda n: settings[str(n)].lever.label,
            key=OVER,
            width=260,
        )
        shows = st.selectbox(
            "Figure",
            figures,
            format_func=lambda m: FIGURES[str(m)][0],
            key=SHOWS,
            width=220,
        )
    what_if_state.keep_choice(OVER, "")
    what_if_state.keep_choice(SHOWS, figures[0])
    name, metric = str(over), str(shows)
    key = repr((result.asked, name))
    points = _points(key, result, settings[name])
    job = st.session_state.get(_JOB)
    if not isinstance(job, Job) or job.made_from != key:
        job = _start(key, bench, result, settings[name], bounds, points)
    order = tuple(settings[name].lever.choices(bench.facts))
    if job.wait(FIRST_WAIT_S):
        _drawn(key, order, result, settings[name], metric, False)
    else:
        _filling(key, order, result, settings[name], metric)


def _points(key: str, result: Result, setting: Setting) -> dict[str, dict[Any, Outcome]]:
    """The points of this curve so far; the operating point is known."""
    kept, found = st.session_state.get(_POINTS, ("", {}))
    if kept != key:
        found = {mode: {setting.now: result.now[mode]} for mode in result.modes}
        st.session_state[_POINTS] = (key, found)
    return dict(found)


# ---- the job -------------------------------------------------------------------------------------


def _start(
    key: str,
    bench: Bench,
    result: Result,
    setting: Setting,
    bounds: Mapping[str, float],
    points: Mapping[str, dict[Any, Outcome]],
) -> Job:
    stop_curve()
    job = Job(
        partial(_work, bench, result, setting, dict(bounds), points),
        {_PART: Progress()},
        made_from=key,
    )
    st.session_state[_JOB] = job
    return job.start()


def stop_curve() -> None:
    """Stop the points that are being worked out: something else is wanted."""
    job = st.session_state.get(_JOB)
    if isinstance(job, Job):
        job.cancel()
    st.session_state[_JOB] = None


def _work(
    bench: Bench,
    result: Result,
    setting: Setting,
    bounds: Mapping[str, float],
    points: Mapping[str, dict[Any, Outcome]],
    report: Report,
    cancelled: Cancelled,
) -> bool | None:
    """Fill `points`, the nearest values first; then look closer at where preemption ends."""
    lever = setting.lever
    values = curve_values(lever.choices(bench.facts), setting.base, setting.now)

    def made(value: Any) -> bool:
        for mode in result.modes:
            if value in points[mode]:
                continue
            outcome = bench.outcome(
                {**result.changes, lever.name: value}, mode, bounds, None, cancelled
            )
            if outcome is None or cancelled():
                return False
            points[mode][value] = outcome
        return True

    for i, value in enumerate(values):
        report(_PART, i / (len(values) + MAX_CLOSER), f"{i} of {len(values)} values")
        if not made(value):
            return None
    for i in range(MAX_CLOSER if all(is_number(v) for v in values) else 0):
        wanted = {v for mode in result.modes if (v := _closer(setting, bench, points[mode]))}
        if not wanted:
            break
        for value in sorted(wanted):
            done = (len(values) + i) / (len(values) + MAX_CLOSER)
            report(_PART, done, f"looking for the end of preemption at {say_value(value)}")
            if not made(value):
                return None
    report(_PART, 1.0, "done")
    bench.store.forget_old_runs()
    return True


@st.fragment(run_every=LOOK_EVERY_S)
def _filling(
    key: str, order: tuple[Any, ...], result: Result, setting: Setting, metric: str
) -> None:
    _drawn(key, order, result, setting, metric, True)


def _closer(setting: Setting, bench: Bench, points: Mapping[Any, Outcome]) -> Any | None:
    """The value that tells more of where preemption ends: between the two that bracket it, or further out."""
    end = end_of_preemption(points)
    if end is not None:
        return halfway(end, setting.lever.kind == "whole")
    return next_outward(setting.lever.choices(bench.facts), points)


# ---- what is drawn -------------------------------------------------------------------------------


def _drawn(
    key: str,
    order: tuple[Any, ...],
    result: Result,
    setting: Setting,
    metric: str,
    is_running: bool,
) -> None:
    """order: values of the lever as it offers them."""
    with guarded():
        job = st.session_state.get(_JOB)
        if not isinstance(job, Job) or job.made_from != key:
            return  # another curve is wanted by now
        if is_running and job.wait(0.0):
            st.rerun()
        points = _points(key, result, setting)
        # a copy: the job goes on filling them
        curve = Curve(
            setting.lever.name,
            {m: dict(of) for m, of in points.items()},
            setting.base,
            setting.now,
            order,
        )
        _curve(curve, result, setting, metric)
        if is_running:
            progress = job.progress[_PART]
            st.progress(progress.done_frac, text=f"Curve: {progress.text or 'starting'}")
        elif job.error is not None:
            say_error(job.error)
        _words(curve, setting)


def _curve(curve: Curve, result: Result, setting: Setting, metric: str) -> None:
    lever = setting.lever
    label = f"{lever.label}{f' ({lever.unit})' if lever.unit else ''}"
    if all(o.refused for of in curve.points.values() for o in of.values()):
        return  # why is said below
    base = {m: o for m, o in result.base.items() if not o.refused}
    st.plotly_chart(
        curve_figure(curve, metric, label, theme(), base_points=base if result.changes else {}),
        theme=None,
        key="curve_chart",
        config={**CONFIG, "displayModeBar": False},
        alt=curve_alt(curve, metric, label),
    )


def _words(curve: Curve, setting: Setting) -> None:
    """Where preemption ends, what cannot run, and the data."""
    ends = [
        say_end(policy, end)
        for policy, points in curve.points.items()
        if (end := end_of_preemption(points))
    ]
    if ends:
        ends.append(
            "Values between those tried may still preempt: it does not fall evenly along a lever."
        )
    said = [*ends, *_say_refused(curve)]
    said.append(
        "Filled and ringed: the operating point. Hollow: the base, with none of the changes. All other levers are as set above."
    )
    st.caption("  \n".join(plain(line) for line in said))
    if st.toggle(
        "Show data", key="show_curve_data", help="Every point of the curve as a table."
    ):
        st.dataframe(
            curve_table(curve),
            hide_index=True,
            height="content",
            alt=f"Figures along {setting.lever.label}, a row for each value and policy",
        )


def _say_refused(curve: Curve) -> list[str]:
    """Which values cannot run, and why, a line for each reason."""
    reasons: dict[str, list[str]] = {}
    for value in curve.values:
        for outcome in (of[value] for of in curve.points.values() if value in of):
            values = reasons.setdefault(outcome.refused, [])
            if say_value(value) not in values:
                values.append(say_value(value))
    reasons.pop("", None)
    return [f"{', '.join(values)} cannot run: {why}" for why, values in reasons.items()]
