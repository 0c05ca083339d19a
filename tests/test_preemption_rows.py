"""The list of preemptions: what each run could tell, filters, order, pages, and finding one again."""

from __future__ import annotations

from pathlib import Path

import pytest

from analyzer.preemption_rows import EventKey, Listed, parse_event, place_in, told
from tests.preemption_worlds import THREE, run_of


@pytest.fixture
def both(tmp_path: Path) -> Listed:
    """A recomputes, B swaps; the same three preemptions."""
    a, b = run_of(tmp_path / "a"), run_of(tmp_path / "b", "swap")
    return Listed({"A": told(a), "B": told(b)})


def said(found: Listed, rows: object) -> list[str]:
    return [found.event(int(r)).text for r in rows]  # type: ignore[attr-defined]


def test_by_time_both_runs_are_one_list_with_a_first(both: Listed) -> None:
    assert said(both, both.rows(("A", "B"))) == [
        "A-3-b",
        "B-3-b",
        "A-4-c",
        "B-4-c",
        "A-7-b",
        "B-7-b",
    ]


def test_the_costliest_come_first_and_equal_ones_by_time(both: Listed) -> None:
    # A: 6, 4 and 8 tokens at 0.1 s; B: two copies of 0.25 s each time
    assert said(both, both.rows(("A", "B"), order="cost")) == [
        "A-7-b",
        "A-3-b",
        "B-3-b",
        "B-4-c",
        "B-7-b",
        "A-4-c",
    ]


def test_one_run_a_search_and_a_range_leave_out_the_rest(both: Listed) -> None:
    assert said(both, both.rows(("B",))) == ["B-3-b", "B-4-c", "B-7-b"]
    assert said(both, both.rows(("A",), search="A")) == ["A-3-b", "A-7-b"], "as aggressor"
    assert said(both, both.rows(("A",), search="c")) == ["A-4-c"]
    assert said(both, both.rows(("A", "B"), within_s=(4.0, 6.0))) == ["A-4-c", "B-4-c"]
    assert said(both, both.rows(("A",), search="(b|c)")) == [], "a search is no pattern"


def test_a_page_is_a_part_of_the_rows_in_their_order(both: Listed) -> None:
    rows = both.rows(("A", "B"))

    assert both.page(rows, 1, 4)["step"].to_list() == [7, 7]
    assert both.page(rows, 0, 4)["side"].to_list() == ["A", "B", "A", "B"]
    assert both.page(rows, 2, 4).is_empty()


def test_an_event_is_found_again_by_its_link(both: Listed) -> None:
    link = parse_event("B-4-c")

    assert link == EventKey("B", 4, "c")
    row = both.find(EventKey("B", 4, "c"))
    assert row is not None
    assert both.event(row) == link
    assert both.find(EventKey("B", 5, "c")) is None
    assert place_in(both.rows(("B",)), row) == 1
    assert place_in(both.rows(("A",)), row) is None
    assert place_in(both.rows(("A",)), None) is None


@pytest.mark.parametrize("text", ["", "A", "A-3", "D-3-b", "A-x-b", "A--b", "a-3-b", "A-²-b"])
def test_a_link_that_names_no_event_is_none(text: str) -> None:
    assert parse_event(text) is None


def test_a_request_id_may_hold_dashes_and_be_long(tmp_path: Path) -> None:
    assert parse_event("A-12-cmpl-7-x") == EventKey("A", 12, "cmpl-7-x")
    key = EventKey("A", 3, "x" * 10_000_000)
    assert len(key.text) < 40
    assert parse_event(key.text) is not None
    assert EventKey("A", 3, "y" * 10_000_000).text != key.text


def test_what_was_not_recorded_is_null_and_comes_last(tmp_path: Path) -> None:
    unseen = ["events.cost_s", "events.recompute_est_s", "events.swap_est_s", "events.cause_request_id", "events.free_blocks_before"]  # fmt: skip
    blind = told(run_of(tmp_path / "blind", costs=False, not_recorded=unseen))
    table = Listed({"A": blind, "B": told(run_of(tmp_path / "b", "swap"))})

    for column in ("direct_cost_s", "uncached_cost_s", "swap_est_s", "cause_request_id"):
        assert blind[column].to_list() == [None, None, None]
    assert blind["free_blocks_before"].to_list() == [None, None, None]
    assert blind["recomputed_tokens"].to_list() == [6, 4, 8]
    assert said(table, table.rows(("A", "B"), order="cost"))[:3] == ["B-3-b", "B-4-c", "B-7-b"]
    assert said(table, table.rows(("A",), search="b")) == ["A-3-b", "A-7-b"]


def test_zeros_in_a_column_that_was_not_recorded_are_no_costs(tmp_path: Path) -> None:
    run = run_of(tmp_path / "a", "swap", not_recorded=["steps.stall_s", "events.cost_s"])

    table = told(run)

    assert table["direct_cost_s"].to_list() == [None, None, None]
    assert table["induced_s"].to_list() == [None, None, None]
    assert table["stalled_s"].to_list() == [None, None, None]


def test_a_clock_of_steps_has_no_costs(tmp_path: Path) -> None:
    table = told(run_of(tmp_path / "a", clock="step"))

    assert table["direct_cost_s"].to_list() == [None, None, None]
    assert table["swap_est_s"].to_list() == [None, None, None]
    assert table["away_s"].to_list() == [2.0, 4.0, 2.0]


def test_the_steps_that_computed_lost_tokens_again_are_told(tmp_path: Path) -> None:
    # two tokens a step for each: b in 5 to 7, c in 8 and 9, b again in 9 (behind c) to 11
    table = told(run_of(tmp_path / "a"))

    assert table["again_first_step"].to_list() == [5, 8, 9]
    assert table["again_last_step"].to_list() == [7, 9, 11]


def test_a_victim_that_never_came_back_computed_nothing_again(tmp_path: Path) -> None:
    table = told(run_of(tmp_path / "a", evicted=(*THREE[:1], (6, "c", "a", None, 4, 0))))

    assert table["again_first_step"].to_list() == [5, None]
    assert table["away_s"].to_list() == [2.0, None]
    assert table["direct_cost_s"].to_list() == [pytest.approx(0.6), 0.0]
