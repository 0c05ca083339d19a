"""The Requests page without a browser: lanes, the chosen request, goodput, distributions, table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from analyzer.pages.parts.store import Store
from tests.builders import make_events, make_meta, make_requests, make_steps, write

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 120
EVIL = "<img src=x onerror=alert(1)> **bold** $x$"
ONE = {"first_scheduled_s": 1.0, "first_token_s": 2.0, "output_tokens": 5}


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store that the page uses too."""
    monkeypatch.setenv("KV_REPLAY_CACHE", str(tmp_path / "cache"))
    return Store(tmp_path / "cache")


def write_run(folder: Path, mode: str, finish_s: float, names: tuple[str, ...]) -> Path:
    """Ten seconds in which the first request is preempted by that mode and comes back."""
    victim = names[0]
    events = make_events(
        [
            {"step": 0, "kind": "arrive", "request_id": victim, "tokens": 8},
            {"step": 1, "kind": "admit", "request_id": victim, "blocks": 2},
            {
                "step": 3,
                "kind": "preempt",
                "request_id": victim,
                "tokens": 8,
                "blocks": 2,
                "mode_asked": mode,
                "mode_used": mode,
                "cause_request_id": names[-1],
            },
            {"step": 5, "kind": "resume", "request_id": victim},
            {
                "step": int(finish_s) - 1,
                "kind": "finish",
                "request_id": victim,
                "t_s": finish_s,
            },
        ]
    )
    requests = make_requests(
        [
            {
                "request_id": name,
                "finish_s": finish_s,
                "prompt_tokens": 8,
                "num_preemptions": int(name == victim),
                **ONE,
            }
            for name in names
        ]
    )
    steps = make_steps(
        [1] * 10,
        num_preempted=[int(i == 3) for i in range(10)],
        recomputed_tokens=[8 * (i == 5 and mode == "recompute") for i in range(10)],
    )
    settings = {"num_gpu_blocks": 11, "block_size": 4, "policy": "fcfs"}
    meta = make_meta(settings={**settings, "preemption_mode": mode})
    return write(folder / mode, steps, events=events, requests=requests, meta=meta)


def opened(store: Store, folder: Path, *names: str, **query: str) -> AppTest:
    """The page with A under recompute and B under swap, run once."""
    names = names or ("one", "two")
    paths = write_run(folder, "recompute", 9.0, names), write_run(folder, "swap", 8.0, names)
    a, b = (f"file:{store.link(p).id}" for p in paths)
    return show(source="Recordings", a=a, b=b, **query)


def show(**query: str) -> AppTest:
    app = AppTest.from_string(_SCRIPT, default_timeout=TIMEOUT_S)
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


_SCRIPT = """
import streamlit as st
from analyzer.pages import requests
from analyzer.pages.parts import shell
page = st.Page(requests.page, title="Requests", url_path="requests", default=True)
shell.run(st.navigation([page], position="top"), {"requests": page})
"""


def figures(app: AppTest) -> list[dict[str, Any]]:
    return [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]


def text_of(app: AppTest) -> str:
    kinds = ("title", "subheader", "markdown", "caption", "info", "error", "warning")
    return "\n".join(str(e.value) for kind in kinds for e in app.get(kind))


def titles(figure: dict[str, Any]) -> str:
    return "\n".join(a["text"] for a in figure["layout"]["annotations"])


def test_both_runs_are_drawn_over_each_other_with_distributions_and_a_table(
    store: Store, tmp_path: Path
) -> None:
    app = opened(store, tmp_path)

    assert not app.exception
    assert not app.error
    lanes, distribution = figures(app)
    assert "A · recompute" in titles(lanes)
    assert "B · swap" in titles(lanes)
    assert [d["name"] for d in distribution["data"] if d.get("name")] == [
        "A · recompute",
        "B · swap",
    ]
    table = app.dataframe[-1].value
    assert list(table["request"]) == ["one", "two"]
    assert list(table["e2e_s · B − A"]) == [-1.0, -1.0]
    assert "preempted 2.00 s, recomputing 1.00 s" in text_of(app).replace("\\", "")
    assert "swapped out 2.00 s" in text_of(app).replace("\\", "")


def test_a_request_in_the_link_is_told_with_its_numbers_and_events(
    store: Store, tmp_path: Path
) -> None:
    app = opened(store, tmp_path, request="one")

    assert not app.exception
    assert "Request one" in text_of(app)
    numbers, events = (app.dataframe[i].value for i in (0, 1))
    told = dict(zip(numbers["figure"], numbers["B − A"], strict=True))
    assert told["E2E"] == "−1.00 s"
    assert told["TTFT"] == "0 s"
    assert list(events["run"]) == [*["A", "B"] * 4, "B", "A"]
    assert (
        "preempted by swap: for two, 0 blocks free, 8 tokens, 2 blocks"
        in events["what"].to_list()
    )
    lanes, own, _ = figures(app)
    assert len(own["data"]) > 0
    assert any("▸ one" in t for t in lanes["layout"]["yaxis5"]["ticktext"])


def test_a_request_that_is_in_no_run_is_said_to_be_unknown(
    store: Store, tmp_path: Path
) -> None:
    app = opened(store, tmp_path, request="<b>nobody")

    assert not app.exception
    assert "No request \\<b\\>nobody in these runs" in text_of(app)


def test_names_full_of_markup_stay_text_everywhere(store: Store, tmp_path: Path) -> None:
    app = opened(store, tmp_path, EVIL, "two", request=EVIL)

    assert not app.exception
    assert not re.search(r"(?<!\\)<img", text_of(app))
    for figure in figures(app):
        plotly_text = json.dumps(
            [
                figure["layout"].get("annotations"),
                [v.get("ticktext") for v in figure["layout"].values() if isinstance(v, dict)],
                [d.get("hovertemplate") for d in figure["data"]],
                [row[0] for d in figure["data"] for row in _rows(d) if row],
            ]
        )
        assert "<img" not in plotly_text
    assert EVIL in list(app.dataframe[-1].value["request"])


def _rows(trace: dict[str, Any]) -> list[Any]:
    """customdata that holds text; numbers come as packed arrays."""
    found = trace.get("customdata")
    return [r for r in found if isinstance(r, list)] if isinstance(found, list) else []


def test_a_name_of_a_megabyte_can_be_chosen_by_its_place(store: Store, tmp_path: Path) -> None:
    name = "x" * 1_000_000

    app = opened(store, tmp_path, name, "two", request="#1")

    assert not app.exception
    assert "(1,000,000 characters)" in text_of(app).replace("\\", "")
    assert "too long for a link" in text_of(app)
    assert max(len(chart.proto.spec) for chart in app.get("plotly_chart")) < 400_000
    assert len(app.dataframe[-1].value["request"][0]) < 100


def test_bounds_of_the_link_decide_what_is_goodput(store: Store, tmp_path: Path) -> None:
    app = opened(store, tmp_path, most_ttft="3", most_tpot="5000", most_e2e="8.5")

    assert not app.exception
    assert (
        "A (recompute): 0 of 2 requests met all bounds. B (swap): 2 of 2 requests met all bounds."
        in text_of(app).replace("\\", "")
    )
    (html,) = (h.value for h in app.get("html") if "Goodput" in str(h.value))
    assert "Missed E2E 8.50 s" in html
    assert "0.200 /s" in html


def test_the_table_is_searched_by_a_part_of_the_id(store: Store, tmp_path: Path) -> None:
    app = opened(store, tmp_path)

    app.get_by_key("find").set_value("tw").run()
    assert list(app.dataframe[-1].value["request"]) == ["two"]
    assert "Rows 1 to 1 of 1 requests of 2" in text_of(app).replace("\\", "")

    app.get_by_key("find").set_value("t*").run()
    assert "No request's id holds t*" in text_of(app).replace("\\", "")
    app.get_by_key("forget_find").click().run()
    assert list(app.dataframe[-1].value["request"]) == ["one", "two"]


def test_a_range_in_the_link_is_the_range_of_the_lanes(store: Store, tmp_path: Path) -> None:
    app = opened(store, tmp_path, t="3-6")

    lanes = figures(app)[0]
    assert lanes["layout"]["xaxis"]["range"] == [3.0, 6.0]
    assert "Shown: 3.00 s" in text_of(app).replace("\\", "")


def test_one_side_can_be_shown_alone(store: Store, tmp_path: Path) -> None:
    app = opened(store, tmp_path)

    app.get_by_key("lanes_of").set_value("B").run()

    assert "A · recompute" not in titles(figures(app)[0])
    assert "B · swap" in titles(figures(app)[0])


def test_every_figure_has_its_distribution(store: Store, tmp_path: Path) -> None:
    app = opened(store, tmp_path)

    for metric in ("tpot_s", "itl_s", "e2e_s", "queue_s"):
        app.get_by_key("latency").set_value(metric).run()
        assert not app.exception
        assert not app.error
    app.get_by_key("share_scale").set_value("tail").run()
    assert not app.exception
    app.get_by_key("show_latency_data").set_value(True).run()
    assert "E2E p99" in list(app.dataframe[0].value["figure"])


def test_the_lanes_can_be_had_as_a_table(store: Store, tmp_path: Path) -> None:
    app = opened(store, tmp_path)

    app.get_by_key("show_lane_data").set_value(True).run()

    table = app.dataframe[0].value
    assert len(table) == 60
    assert table["decode · A"].max() == 2.0


def test_a_run_without_requests_says_so(store: Store, tmp_path: Path) -> None:
    meta = make_meta()
    paths = [write(tmp_path / name, make_steps([1, 1]), meta=meta) for name in ("a", "b")]
    a, b = (f"file:{store.link(p).id}" for p in paths)

    app = show(source="Recordings", a=a, b=b)

    assert not app.exception
    assert "no request" in titles(figures(app)[0])
    assert "There is no request in these runs" in text_of(app)


def test_a_run_alone_has_no_difference_and_no_choice_of_runs(
    store: Store, tmp_path: Path
) -> None:
    path = write_run(tmp_path, "recompute", 9.0, ("one", "two"))

    app = show(source="Recordings", a=f"file:{store.link(path).id}")

    assert not app.exception
    assert not app.error
    assert "A · recompute" in titles(figures(app)[0])
    assert [c for c in app.dataframe[-1].value.columns if "−" in c] == []
    assert not [e for e in app.get("segmented_control") if e.label == "Runs"]


def test_a_third_run_has_lanes_columns_and_a_curve_of_its_own(
    store: Store, tmp_path: Path
) -> None:
    names = ("one", "two")
    paths = [
        write_run(tmp_path / "x", "recompute", 9.0, names),
        write_run(tmp_path / "x", "swap", 8.0, names),
        write_run(tmp_path / "y", "recompute", 7.0, ("two", "three")),
    ]
    a, b, c = (f"file:{store.link(p).id}" for p in paths)

    app = show(source="Recordings", a=a, b=b, c=c, request="one")

    assert not app.exception
    assert not app.error
    assert "C · " in titles(figures(app)[0])
    table = app.dataframe[-1].value
    assert sorted(table["request"]) == ["one", "three", "two"]
    assert "e2e_s · C − A" in table.columns
    assert app.dataframe[0].value["C"][0] == "not in this run"
    assert len([d for d in figures(app)[-1]["data"] if d.get("name")]) == 3
