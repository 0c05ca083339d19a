"""Advice on the What-if page without a browser: a goal, its search, the answers, and trying one."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path

import polars as pl
import pytest
from streamlit.testing.v1 import AppTest

from analyzer.advice import advise
from analyzer.advice_parts import Advice
from analyzer.pages import what_if
from analyzer.pages.parts import advice_section, what_if_state
from analyzer.pages.parts.advice_table import advice_html
from analyzer.pages.parts.store import Store
from tests.test_what_if_page import no_fault, opened, recorded, texts

LEVERS = ("num_gpu_blocks", "max_num_seqs", "copy_path")


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run of 12 requests of 3 blocks each in 4 blocks; advice tries three levers only."""
    monkeypatch.setenv("KV_REPLAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(advice_section, "advise", partial(advise, levers=LEVERS))
    return recorded(Store(tmp_path / "cache"), tmp_path, 4)


def searched(app: AppTest) -> AppTest:
    """Press the button and wait until the search is over."""
    app = app.button(key="advice_start").click().run()
    for _ in range(60):
        job = app.session_state["advice_job"]
        if job is None:
            return app
        job.wait(1.0)
        app.run()
    raise AssertionError("the search does not end")


def shown(app: AppTest) -> Advice:
    _, advice = app.session_state["advice_result"]
    assert isinstance(advice, Advice)
    return advice


def test_the_pool_that_ends_preemption_is_found_shown_and_can_be_tried(small: str) -> None:
    app = searched(opened(small))

    no_fault(app)
    assert shown(app).state == "reached"
    said = texts(app)
    assert "changes of 3 reach it" in said
    assert "In recompute mode nothing is copied" in said or "nothing is copied" in said
    codes = [c.value for c in app.code]
    assert any(c.startswith("--num-gpu-blocks-override ") for c in codes)
    table = next(str(h.value) for h in app.get("html") if "kv-advice" in str(h.value))
    verdicts = re.findall(r"<tr><td>(.*?)</td>", table)
    assert verdicts == ["base", "enough", "enough", "idle"]

    app.button(key="advice_try_0").click().run()

    no_fault(app)
    best = shown(app).answers[0].option
    assert best is not None
    changes = app.session_state["what_if_changes"]
    assert changes == dict(best.changes)


def test_proofs_lead_to_compare_and_the_download_holds_what_the_command_prints(
    small: str,
) -> None:
    app = searched(opened(small))

    links = [e.proto.url for e in app.get("link_button") if "proof" in e.proto.label]
    assert links
    assert links[0].startswith("compare?a=run%3A")
    assert "b=run%3A" in links[0]
    for outcome in shown(app).proofs():
        assert all(path.is_dir() for path in outcome.recordings)
    document = json.loads(json.dumps(shown(app).as_json(), default=str))
    assert document["goal"] == "no preemption"
    assert document["answers"][0]["option"]["recordings"]
    assert what_if_state.MODE not in document["answers"][0]["option"]["changes"]


def test_a_goal_of_bounds_asks_for_a_bound_first(
    small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(what_if, "bounds_inputs", dict)
    app = opened(small, goal="bounds")

    no_fault(app)
    assert app.selectbox(key="goal").value == "bounds"
    assert "Set a bound on TTFT, TPOT or E2E above" in texts(app)


def test_a_pipeline_is_said_to_be_a_best_case_and_replicas_name_their_router(
    small: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    levers = ("pipeline_parallel_size", "replicas")
    monkeypatch.setattr(advice_section, "advise", partial(advise, levers=levers))

    app = searched(opened(small))

    no_fault(app)
    said = texts(app)
    assert "held against no measured run (docs/cost-model.md)" in said
    assert "equests were shared out by the router rule round-robin" in said


def test_a_what_if_with_replicas_names_the_router_rule(small: str) -> None:
    app = opened(small, replicas="2", router="least-tokens")

    no_fault(app)
    assert "Requests were shared out by the router rule least-tokens." in texts(app)


def test_an_answer_to_another_question_is_not_shown(small: str) -> None:
    app = searched(opened(small))
    app.selectbox(key="goal").select("least-memory").run()

    no_fault(app)
    assert "changes of 3 reach it" not in texts(app)


def test_choices_become_the_goals_of_the_command_line() -> None:
    bounds = {"ttft_s": 2.0, "tpot_s": 0.08, "max_itl_s": 0.5}
    texts_of = advice_section.goal_texts

    assert texts_of("no-preemption", bounds) == ("no-preemption",)
    assert texts_of("bounds", bounds) == ("ttft-p99=2", "tpot-p99=0.08")
    assert texts_of("max-goodput", bounds) == ("max-goodput", "ttft=2", "tpot=0.08")
    assert texts_of("least-memory", {}) == ("least-memory",)
    assert texts_of("max-goodput", {}) == ()


def test_the_table_has_the_price_under_the_flag_and_no_markup_of_others() -> None:
    rows = pl.DataFrame(
        [
            {"Verdict": "enough", "Lever": "Watermark", "Flag, or value": "--watermark 0.03", "Preemptions": "0", "Price": "none but the flag"},
            {"Verdict": "idle", "Lever": "<b>x</b>", "Flag, or value": "", "Preemptions": "—", "Price": ""},
        ]
    )  # fmt: skip

    said = advice_html(rows, "Every lever")

    assert "--watermark 0.03<small>Price: none but the flag</small>" in said
    assert said.count("<small>") == 1
    assert "&lt;b&gt;x&lt;/b&gt;" in said
    assert '<td class="kv-figure">0</td>' in said
