"""The Preemptions page without a browser: list, card, filters, links, totals, and states."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from analyzer.pages.parts.store import Store
from tests.builders import make_meta, make_requests, make_steps, write
from tests.preemption_worlds import run_of

TIMEOUT_S = 120


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store that the page uses too."""
    monkeypatch.setenv("KV_REPLAY_CACHE", str(tmp_path / "cache"))
    return Store(tmp_path / "cache")


def page_alone() -> None:
    """The page in the frame, as the app would show it."""
    import streamlit as st

    from analyzer.pages import preemptions
    from analyzer.pages.parts import shell

    chosen = st.Page(
        preemptions.page, title="Preemptions", url_path="preemptions", default=True
    )
    shell.run(st.navigation([chosen], position="hidden"), {"preemptions": chosen})


def open_page(store: Store, a: Path, b: Path | None = None, **query: str) -> AppTest:
    """The page, run once on these recordings with these query parameters."""
    app = AppTest.from_function(page_alone, default_timeout=TIMEOUT_S)
    refs = [f"file:{store.link(p).id}" for p in (a, b) if p is not None]
    for name, value in {
        **dict(zip("ab", refs, strict=False)),
        "source": "Recordings",
        **query,
    }.items():
        app.query_params[name] = value
    return app.run()


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    run_of(tmp_path / "a")
    run_of(tmp_path / "b", "swap")
    return tmp_path / "a", tmp_path / "b"


def text_of(app: AppTest) -> str:
    """All words of the page."""
    kinds = (
        "title",
        "header",
        "subheader",
        "markdown",
        "caption",
        "info",
        "success",
        "error",
        "warning",
        "html",
    )
    return "\n".join(
        str(e.value if hasattr(e, "value") else e.proto.body)
        for kind in kinds
        for e in app.get(kind)
    )


def listed(app: AppTest) -> list[tuple[Any, ...]]:
    """Run, time and victim of each row of the list."""
    table = next(e for e in app.dataframe if "victim" in e.value.columns)
    return [tuple(r) for r in table.value[["side", "time", "victim"]].itertuples(index=False)]


def chosen(app: AppTest) -> str:
    return next(str(e.value) for e in app.markdown if str(e.value).startswith("## "))


def press(app: AppTest, key: str) -> AppTest:
    return app.button(key=key).click().run()


def charts(app: AppTest) -> list[dict[str, Any]]:
    return [json.loads(c.proto.spec) for c in app.get("plotly_chart")]


def test_both_runs_are_listed_and_the_first_one_is_told(
    store: Store, pair: tuple[Path, Path]
) -> None:
    app = open_page(store, *pair)

    assert not app.exception
    assert not app.error
    assert app.title[0].value.startswith("Preemptions · A recompute against B swap")
    assert listed(app) == [
        ("A", 3.0, "b"),
        ("B", 3.0, "b"),
        ("A", 4.0, "c"),
        ("B", 4.0, "c"),
        ("A", 7.0, "b"),
        ("B", 7.0, "b"),
    ]
    assert chosen(app) == r"## A · Request b evicted at step 3 \(3\.0 s\)"
    assert "As swap these 3 preemptions would have cost 1.50 s instead of 1.80 s" in text_of(
        app
    ).replace("\\", "")
    assert [m.value for m in app.metric] == ["600 ms", "1.00 req·s", "6 tokens", "2.00 s"]
    assert len(charts(app)) == 4


def test_next_and_previous_go_through_the_list_and_stop_at_its_ends(
    store: Store, pair: tuple[Path, Path]
) -> None:
    app = open_page(store, *pair)
    assert app.button(key="previous_event").disabled

    press(app, "next_event")

    assert chosen(app).startswith("## B · Request b evicted at step 3")
    assert app.query_params["event"] == "B-3-b"
    for _ in range(4):
        press(app, "next_event")
    assert chosen(app).startswith("## B · Request b evicted at step 7")
    assert app.button(key="next_event").disabled
    press(app, "previous_event")
    assert chosen(app).startswith("## A · Request b evicted at step 7")


def test_a_link_opens_its_preemption(store: Store, pair: tuple[Path, Path]) -> None:
    app = open_page(store, *pair, event="B-4-c")

    assert chosen(app).startswith("## B · Request c evicted at step 4")
    assert "2 of 10 that were free" in text_of(app)


def test_a_link_to_nothing_says_so_and_shows_the_first(
    store: Store, pair: tuple[Path, Path]
) -> None:
    app = open_page(store, *pair, event="A-99-zz")

    assert "request zz at step 99 of A" in text_of(app).replace("\\", "")
    assert chosen(app).startswith("## A · Request b evicted at step 3")


def test_the_costliest_first_begins_with_the_costliest(
    store: Store, pair: tuple[Path, Path]
) -> None:
    app = open_page(store, *pair)

    app.selectbox(key="sort").select("cost").run()

    assert listed(app)[0] == ("A", 7.0, "b")
    assert chosen(app).startswith("## A · Request b evicted at step 7")


def test_a_run_and_a_request_narrow_the_list_and_keep_what_still_fits(
    store: Store, pair: tuple[Path, Path]
) -> None:
    app = open_page(store, *pair, event="B-4-c")

    app.text_input(key="who").set_value("c").run()
    assert listed(app) == [("A", 4.0, "c"), ("B", 4.0, "c")]
    assert chosen(app).startswith("## B · Request c")

    app.segmented_control(key="side").set_value("A").run()
    assert listed(app) == [("A", 4.0, "c")]
    assert chosen(app).startswith("## A · Request c")


def test_a_search_without_a_hit_says_so_and_offers_all(
    store: Store, pair: tuple[Path, Path]
) -> None:
    app = open_page(store, *pair)
    app.text_input(key="who").set_value("nobody").run()
    assert "No preemption fits" in text_of(app)

    press(app, "show_all_preemptions")

    assert len(listed(app)) == 6


def test_a_request_in_the_link_is_looked_for(store: Store, pair: tuple[Path, Path]) -> None:
    app = open_page(store, *pair, request="c")

    assert app.text_input(key="who").value == "c"
    assert listed(app) == [("A", 4.0, "c"), ("B", 4.0, "c")]


def test_the_range_of_the_timeline_narrows_the_list_until_it_is_forgotten(
    store: Store, pair: tuple[Path, Path]
) -> None:
    app = open_page(store, *pair, t="3.5-6")
    assert listed(app) == [("A", 4.0, "c"), ("B", 4.0, "c")]

    press(app, "forget_range")

    assert len(listed(app)) == 6


def test_a_long_list_comes_in_pages_and_a_link_opens_the_right_one(
    store: Store, tmp_path: Path
) -> None:
    many = tuple((i % 12, f"r{i:04d}", "a", None, 2, 0) for i in range(250))
    run_of(tmp_path / "a", evicted=many)

    app = open_page(store, tmp_path / "a", tmp_path / "a", side="A", event="A-11-r0239")

    assert len(listed(app)) == 50
    assert "201 to 250 of 250 preemptions" in text_of(app).replace("\\", "")
    assert chosen(app).startswith("## A · Request r0239")


def test_the_same_request_in_the_other_run_stands_below(
    store: Store, pair: tuple[Path, Path]
) -> None:
    app = open_page(store, *pair)

    table = next(
        e.value for e in app.dataframe if "A" in e.value.columns and "Figure" in e.value.columns
    )
    assert table[["A", "B"]].iloc[0].tolist() == ["2 times", "2 times"]


def test_a_run_that_told_no_costs_shows_not_recorded_and_never_zero(
    store: Store, tmp_path: Path
) -> None:
    unseen = ["events.cost_s", "events.recompute_est_s", "events.swap_est_s", "events.cause_request_id"]  # fmt: skip
    run_of(tmp_path / "a", costs=False, clock="measured", not_recorded=unseen)

    app = open_page(store, tmp_path / "a")

    assert not app.exception
    assert app.metric[0].value == "not recorded"
    said = text_of(app).replace("\\", "")
    assert "at a cost that was not recorded for 3 of them" in said
    assert "What the other mode would have cost was not recorded" in said
    assert "Whose need evicted them was not recorded" in said
    table = next(e.value for e in app.dataframe if "victim" in e.value.columns)
    assert table["why"].tolist() == ["not recorded"] * 3
    assert table["cost"].isna().all()


def test_one_run_alone_has_no_column_of_runs_and_no_other_run(
    store: Store, tmp_path: Path
) -> None:
    run_of(tmp_path / "a")

    app = open_page(store, tmp_path / "a")

    assert not app.exception
    table = next(e.value for e in app.dataframe if "victim" in e.value.columns)
    assert "side" not in table.columns
    assert not any("in A and" in str(e.value) for e in app.subheader)


def test_no_preemption_is_good_news_with_the_peak(store: Store, tmp_path: Path) -> None:
    requests = make_requests([{"request_id": "r", "first_token_s": 1.0, "finish_s": 2.0}])
    for name, used in (("a", [1, 7, 2]), ("b", [1, 6, 2])):
        write(tmp_path / name, make_steps(used), requests=requests, meta=make_meta())

    app = open_page(store, tmp_path / "a", tmp_path / "b")

    assert not app.exception
    said = " ".join(str(e.value) for e in app.success).replace("\\", "")
    assert said == (
        "No preemption in either run: A used at most 7 of 10 blocks; B used at most 6 of 10 blocks."
    )
    assert not app.dataframe


def test_markup_in_ids_stays_text(store: Store, tmp_path: Path) -> None:
    bad = "<script>x</script> **b** [l](http://x)"
    run_of(tmp_path / "a", evicted=((3, bad, "a", 5, 6, 0),))

    app = open_page(store, tmp_path / "a", tmp_path / "a")

    assert not app.exception
    assert r"\<script\>x\</script\>" in chosen(app)
    assert "<script>x" not in "\n".join(e.proto.body for e in app.get("html"))
