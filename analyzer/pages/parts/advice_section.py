"""Advice on the What-if page: a goal, a job that searches every lever for it, and the answers with proofs.

It knows the job, its bar, and how answers are drawn. What suffices is found by `analyzer.advice`; runs are
the bench's, so that what the page has simulated before is not simulated again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import urlencode

import polars as pl
import streamlit as st

from analyzer.advice import MOST_RUNS, advise
from analyzer.advice_parts import ENOUGH, HARDLY, HELPS, ROOM, Advice, Answer
from analyzer.advice_words import label_of, say_effects, sentence_case, show_changes
from analyzer.goals import (
    LEAST_MEMORY,
    MAX_GOODPUT,
    METRICS,
    NO_PREEMPTION,
    figure,
    parse_goals,
)
from analyzer.outcome import Outcome, Simulate
from analyzer.pages.parts import state, what_if_state
from analyzer.pages.parts.advice_table import advice_table
from analyzer.pages.parts.job_bar import job_bar
from analyzer.pages.parts.jobs import Cancelled, Job, Progress, Report
from analyzer.pages.parts.messages import guarded, plain, say_error
from analyzer.pages.parts.what_if_bench import MODE, Bench
from analyzer.pages.parts.what_if_bench import Stopped as BenchStopped
from analyzer.search import Stopped
from analyzer.words import show

GOAL = "goal"
WITHIN = "bounds"
GOALS = {
    NO_PREEMPTION: "No preemption",
    WITHIN: "p99 within the bounds above",
    MAX_GOODPUT: "Most requests within the bounds above",
    LEAST_MEMORY: "Least KV memory",
}
MOST_CARDS = 4
_COST, _JOB, _SHOWN, _ENDED = (f"advice_{n}" for n in ("cost", "job", "result", "ended"))
_PART = "runs"
_COLUMNS = {
    "num_preemptions": "Preemptions",
    "recomputed_frac": "Recomputed",
    "output_tokens_per_s": "Tokens/s",
    "ttft_s p99": "TTFT p99",
    "tpot_s p99": "TPOT p99",
    "e2e_s p99": "E2E p99",
}


def advice_section(bench: Bench, bounds: Mapping[str, float]) -> None:
    """The goal, the button, the search while it goes on, and its answers. bounds: metric -> seconds."""
    st.subheader("What reaches a goal", anchor=False)
    what_if_state.follow_choice(GOAL, list(GOALS), NO_PREEMPTION)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="advice_controls"):  # fmt: skip
        st.selectbox(
            "Goal", list(GOALS), format_func=lambda g: GOALS[str(g)], key=GOAL, width=300
        )
        st.number_input(
            "Price of a GPU hour",
            min_value=0.0,
            value=None,
            placeholder="not given",
            key=_COST,
            width=160,
            help="In any currency; then answers that take more GPUs say what they cost.",
        )
        wanted = st.button("Find what is enough", key="advice_start", type="primary")
    what_if_state.keep_choice(GOAL, NO_PREEMPTION)
    texts = goal_texts(str(st.session_state[GOAL]), bounds)
    if not texts:
        st.info("Set a bound on TTFT, TPOT or E2E above: this goal is made of them.")
        return
    asked = repr((bench.key, texts, st.session_state.get(_COST)))
    if wanted:
        with guarded():
            parse_goals(texts)
            _start(asked, bench, texts, st.session_state.get(_COST))
    job = st.session_state.get(_JOB)
    if isinstance(job, Job):
        if job.wait(0.0):
            _ended(job)
        else:
            with st.container(border=True, key="advice_bar"):
                job_bar(_JOB, "Searching every lever", "cancel_advice", _say_cancelled)
    with guarded():
        _shown(asked, bench)


def goal_texts(choice: str, bounds: Mapping[str, float]) -> tuple[str, ...]:
    """The goals of the command line that a choice on the page means; empty where bounds are missing."""
    names = {metric: name for name, metric in METRICS.items()}
    known = {names[m]: v for m, v in bounds.items() if m in names}
    within = tuple(f"{name}-p99={v:g}" for name, v in known.items())
    if choice == WITHIN:
        return within
    if choice == MAX_GOODPUT:
        return (MAX_GOODPUT, *(f"{name}={v:g}" for name, v in known.items())) if known else ()
    return (LEAST_MEMORY, *within) if choice == LEAST_MEMORY else (NO_PREEMPTION,)


# ---- the job -------------------------------------------------------------------------------------


def _start(asked: str, bench: Bench, texts: tuple[str, ...], cost: float | None) -> None:
    running = st.session_state.get(_JOB)
    if isinstance(running, Job):
        running.cancel()
    st.session_state[_ENDED] = None
    job = Job(partial(_work, bench, texts, cost), {_PART: Progress()}, made_from=asked)
    st.session_state[_JOB] = job.start()


def _work(
    bench: Bench,
    texts: tuple[str, ...],
    cost: float | None,
    report: Report,
    cancelled: Cancelled,
) -> Advice | None:
    goal = parse_goals(texts)
    settings = {**bench.facts.settings, MODE: bench.modes[0]}

    def told(num_run: int, changes: Mapping[str, Any]) -> None:
        # How many it takes is not known before: a third of those allowed is usual.
        done = num_run / (num_run + MOST_RUNS / 4)
        report(_PART, done, f"{num_run:,} simulations made, now {show_changes(changes)}")

    found = advise(
        _simulate(bench, goal.request_bounds, cancelled),
        replace(bench.facts, settings=settings),
        goal,
        costs={} if cost is None else {str(settings["device"]): cost},
        told=told,
        cancelled=cancelled,
    )
    if cancelled():
        return None
    for path in [p for o in found.proofs() for p in o.recordings]:
        if path.exists():
            os.utime(path)  # the proofs are the last to be forgotten
    bench.store.forget_old_runs()
    return found


def _simulate(
    bench: Bench, bounds: Mapping[str, float] | None, cancelled: Cancelled
) -> Simulate:
    """The bench's runs; a cancelled one ends the search."""
    run = bench.simulate(bounds, cancelled)

    def simulate(changes: Mapping[str, Any]) -> Outcome:
        try:
            return run(changes)
        except BenchStopped:
            raise Stopped from None

    return simulate


def _say_cancelled() -> None:
    st.session_state[_ENDED] = "cancelled"


def _ended(job: Job) -> None:
    st.session_state[_JOB] = None
    if isinstance(job.result, Advice):
        st.session_state[_SHOWN] = (job.made_from, job.result)
    st.session_state[_ENDED] = job.error


def _shown(asked: str, bench: Bench) -> None:
    ended = st.session_state.get(_ENDED)
    if ended == "cancelled":
        st.info("Cancelled: nothing was found out.", icon=":material/cancel:")
    elif isinstance(ended, BaseException):
        say_error(ended)
    key, advice = st.session_state.get(_SHOWN, ("", None))
    if isinstance(advice, Advice) and key == asked:
        _draw(advice, bench)


# ---- answers -------------------------------------------------------------------------------------


def _draw(advice: Advice, bench: Bench) -> None:
    with st.container(border=True, key="advice_summary"):
        st.markdown(f"**{plain(advice.summary)}**")
        for sentence in advice.obstacles:
            st.markdown(f"In the way: {plain(sentence)}")
    answers = [*advice.answers, *advice.pairs]
    best = [a for a in answers if a.verdict in (ENOUGH, ROOM)] or [
        a for a in answers if a.verdict in (HELPS, HARDLY)
    ]
    best = [a for a in best if a.option is not None and a.option.changes][:MOST_CARDS]
    columns = st.columns(2) if len(best) > 1 else [st.container()]
    for i, answer in enumerate(best):
        with columns[i % len(columns)]:
            _card(i, answer, advice)
    advice_table(_table(advice), "Every lever with its verdict, its figures and its price")
    with st.expander("What each line rests on"):
        for answer in answers:
            st.markdown(f"**{plain(label_of(answer.levers))}:** {plain(answer.sentence)}")
            if answer.option is not None and answer.verdict in (ENOUGH, ROOM, HELPS, HARDLY):
                for note in answer.option.notes:
                    st.caption(plain(sentence_case(note)))
    st.caption(plain(advice.rule))
    notes = [*advice.notes, *([bench.sentence] if bench.sentence else [])]
    st.caption(plain(f"{advice.num_runs:,} simulations. {' '.join(notes)}"))
    st.download_button(
        "Advice as JSON",
        json.dumps(advice.as_json(), indent=2, default=str),
        "advice.json",
        "application/json",
        key="advice_json",
        on_click="ignore",
    )


def _card(place: int, answer: Answer, advice: Advice) -> None:
    """One answer that counts: flag to copy, effect, price, proof, and a way to try it."""
    option = answer.option
    assert option is not None, "only answers that ran have a card"
    with st.container(border=True, key=f"advice_card_{place}"):
        st.markdown(f"**{plain(label_of(answer.levers))}** · {plain(answer.verdict)}")
        if option.flag:
            st.code(option.flag, language=None, wrap_lines=True)
        else:
            st.markdown(plain(sentence_case(show_changes(option.changes))))
        st.markdown(plain(sentence_case(answer.sentence)))
        st.markdown(f"Effect: {plain(say_effects(option.effects))}")
        st.markdown(
            f"Price: {plain('; '.join(option.price.sentences()) or 'none but the flag')}"
        )
        for note in option.notes:
            st.caption(plain(sentence_case(note)))
        with st.container(horizontal=True, gap="small"):
            st.button(
                "Try this",
                key=f"advice_try_{place}",
                on_click=what_if_state.set_changes,
                args=(dict(option.changes),),
                help="Sets the levers above to this.",
            )
            refs = _proof(answer, advice)
            if refs:
                st.link_button(
                    "Open the proof on Compare", _url(refs), icon=":material/compare_arrows:"
                )


def _proof(answer: Answer, advice: Advice) -> dict[str, str]:
    """The base, what is enough and what is not any more, in the places A, B and C; {} where replicas
    make several recordings of one."""
    option = answer.option
    shown = [advice.base, option.outcome if option else None, answer.below]
    found = [o for o in shown if o is not None and len(o.recordings) == 1]
    if option is None or option.outcome not in found or advice.base not in found:
        return {}
    return {p: f"run:{o.recordings[0].name}" for p, o in zip("abc", found, strict=False)}


def _url(refs: Mapping[str, str]) -> str:
    """Compare with these runs, the trace of this page beside them."""
    more = {n: v for n, v in state.url_of_pair().items() if n in ("trace", "columns")}
    source = {"source": "Trace"} if "trace" in more else {}
    return f"compare?{urlencode({**refs, **more, **source})}"


def _table(advice: Advice) -> pl.DataFrame:
    """A row for the base and each answer, figures as text."""
    rows = [_row("base", "", "", advice.base, "")]
    for answer in (*advice.answers, *advice.pairs):
        option = answer.option
        value = (option.flag or show_changes(option.changes)) if option else ""
        price = "; ".join(option.price.sentences()) or "none but the flag" if option else ""
        outcome = option.outcome if option else None
        rows.append(_row(answer.verdict, label_of(answer.levers), value, outcome, price))
    return pl.DataFrame(rows)


def _row(
    verdict: str, lever: str, value: str, outcome: Outcome | None, price: str
) -> dict[str, str]:
    figures = outcome.figures if outcome is not None else {}
    numbers = {name: show(m, figure(figures, m)) for m, name in _COLUMNS.items()}
    if "goodput_rps" in figures:
        numbers["Good/s"] = show("goodput_rps", figures["goodput_rps"])
    return {
        "Verdict": verdict,
        "Lever": lever,
        "Flag, or value": value,
        **numbers,
        "Price": price,
    }
