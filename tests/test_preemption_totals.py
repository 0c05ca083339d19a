"""All preemptions together: sums, the other mode, top requests, repeats, cascades, over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from analyzer.look import Side
from analyzer.marks import Bars
from analyzer.preemption_over_time import as_table, rows_over_time
from analyzer.preemption_rows import told
from analyzer.preemption_totals import (
    by_mode,
    largest_cascades,
    otherwise,
    over_time,
    repeats,
    say_otherwise,
    say_trust,
    sums,
    top,
)
from tests.preemption_worlds import run_of

FAR: tuple[Any, ...] = ((1, "b", "a", 2, 4, 0), (9, "b", "c", 10, 4, 0))


def both(folder: Path) -> dict[Side, pl.DataFrame]:
    """A recomputes three times, B swaps once."""
    once = ((3, "b", "a", 5, 6, 0),)
    return {
        "A": told(run_of(folder / "a")),
        "B": told(run_of(folder / "b", "swap", evicted=once)),
    }


def test_sums_count_victims_repeats_and_thrash(tmp_path: Path) -> None:
    found = sums(told(run_of(tmp_path)))

    assert (found.num, found.num_victims, found.num_repeated) == (3, 2, 1)
    assert found.num_thrash == 0, "b was back for 2 s, as long as it had been away"
    assert found.direct_cost_s == pytest.approx(1.8)
    assert found.away_s == pytest.approx(8.0)
    assert found.recomputed_tokens == 18


def test_a_victim_evicted_sooner_than_it_had_been_away_thrashes(tmp_path: Path) -> None:
    soon = ((2, "b", "a", 6, 4, 0), (7, "b", "a", 9, 4, 0))

    assert sums(told(run_of(tmp_path, evicted=soon))).num_thrash == 1


def test_a_sum_of_costs_of_which_one_is_unknown_is_none(tmp_path: Path) -> None:
    table = told(run_of(tmp_path, costs=False))

    found = sums(table)

    assert found.direct_cost_s is None
    assert found.num_unpriced == 3
    assert otherwise(table) == ()


def test_the_other_mode_is_summed_for_the_same_victims(tmp_path: Path) -> None:
    tables = both(tmp_path)

    a, b = (otherwise(tables[side]) for side in ("A", "B"))

    fields = ("used", "other", "num", "used_s", "other_s", "num_unknown", "used_est_s")
    assert [[getattr(o, f) for f in fields] for o in a] == [
        ["recompute", "swap", 3, pytest.approx(1.8), 1.5, 0, pytest.approx(3.6)]
    ]
    assert [[getattr(o, f) for f in fields] for o in b] == [
        ["swap", "recompute", 1, 0.5, pytest.approx(1.2), 0, 0.5]
    ]
    assert say_otherwise(a[0], {}) == (
        "As swap these 3 preemptions would have cost 1.50 s instead of 1.80 s."
    )
    assert say_otherwise(b[0], {"A": a}) == (
        "As recompute this preemption would have cost 1.20 s instead of 500 ms; 600 ms at the cost that A had."
    )


def test_how_far_the_estimates_can_be_trusted_is_told_by_both_runs(tmp_path: Path) -> None:
    tables = both(tmp_path)
    a, b = (otherwise(tables[side]) for side in ("A", "B"))

    assert say_trust(b[0], {"A": a}) == (
        "For its own swap the same estimates say 500 ms; 500 ms came of it. A did recompute, for 600 ms a preemption, where "
        "this estimates 1.20 s: how much a prefix cache gives back is not known to a run that never recomputes."
    )
    assert say_trust(a[0], {"B": b}) == (
        "For its own recompute the same estimates say 3.60 s; 1.80 s came of it. "
        "B did swap, for 500 ms a preemption, where this estimates 500 ms."
    )


def test_victims_without_an_estimate_are_left_out_and_counted(tmp_path: Path) -> None:
    table = told(run_of(tmp_path)).with_columns(
        swap_est_s=pl.when(pl.col("step") != 4).then(pl.col("swap_est_s"))
    )

    (found,) = otherwise(table)

    assert (found.num, found.num_unknown) == (2, 1)
    assert say_otherwise(found, {}) == (
        "As swap these 2 preemptions would have cost 1.00 s instead of 1.40 s; 1 more has no estimate."
    )


def test_top_victims_and_aggressors_of_all_runs_stand_side_by_side(tmp_path: Path) -> None:
    tables = both(tmp_path)

    victims, aggressors = top(tables, "victims"), top(tables, "aggressors")

    assert victims.select("request_id", "num_A", "num_B").rows() == [("b", 2, 1), ("c", 1, 0)]
    assert victims["cost_A"].to_list() == [pytest.approx(1.4), pytest.approx(0.4)]
    assert victims["cost_B"].to_list() == [0.5, None]
    # c evicted itself: no aggressor
    assert aggressors.select("request_id", "num_A", "num_B").rows() == [("a", 2, 1)]


def test_requests_are_counted_by_how_often_they_were_evicted(tmp_path: Path) -> None:
    table = repeats(both(tmp_path))

    assert table["times"].to_list() == ["1", "2", "3", "4", "5", "6 or more"]
    assert table["A"].to_list() == [1, 1, 0, 0, 0, 0]
    assert table["B"].to_list() == [1, 0, 0, 0, 0, 0]


def test_buckets_hold_every_preemption_and_its_costs(tmp_path: Path) -> None:
    table = over_time(told(run_of(tmp_path)), end_s=12.0, buckets=4)

    assert table["num"].to_list() == [0, 2, 1, 0]
    assert table["direct_s"].to_list() == [0.0, pytest.approx(1.0), pytest.approx(0.8), 0.0]
    assert table["cascade"].to_list() == [0, 3, 3, 0]


def test_a_bucket_whose_cost_is_not_known_is_null_and_the_row_says_so(tmp_path: Path) -> None:
    known = told(run_of(tmp_path / "a"))
    tables: dict[Side, pl.DataFrame] = {
        "A": known,
        "B": told(run_of(tmp_path / "b", costs=False)),
    }

    rows, axis, buckets = rows_over_time(tables, 12.0)

    assert axis.range == (0.0, 12.0)
    by_key = {row.key: row for row in rows}
    assert [m.side for m in by_key["num"].marks if isinstance(m, Bars)] == ["A", "B"]
    assert [m.side for m in by_key["direct_s"].marks if isinstance(m, Bars)] == ["A"]
    assert by_key["direct_s"].note == "not recorded in B"
    assert as_table(buckets)["direct cost (s) · B"].to_list() == [None, None, None]
    assert as_table(buckets)["preemptions · A"].to_list() == [1, 1, 1]


def test_a_run_whose_clock_counts_steps_has_no_row_of_costs(tmp_path: Path) -> None:
    rows, axis, _ = rows_over_time({"A": told(run_of(tmp_path, clock="step"))}, 12.0, in_steps=True)  # fmt: skip

    assert [row.key for row in rows] == ["num", "induced_s", "cascade"]
    assert (axis.title, axis.unit) == ("Steps since the start", "")


def test_cascades_are_listed_largest_first_and_their_row_is_left_out_without_any(
    tmp_path: Path,
) -> None:
    close, far = told(run_of(tmp_path / "a")), told(run_of(tmp_path / "b", evicted=FAR))

    found = largest_cascades({"A": close, "B": far})

    assert found.select("side", "first_step", "last_step", "num_preemptions", "num_victims").rows() == [("A", 3, 7, 3, 2)]  # fmt: skip
    rows, _, _ = rows_over_time({"B": far}, 12.0)
    assert [row.key for row in rows] == ["num", "direct_s", "induced_s"]


def test_modes_used_are_counted_apart(tmp_path: Path) -> None:
    table = told(run_of(tmp_path)).with_columns(
        mode_used=pl.when(pl.col("step") == 4).then(pl.lit("swap")).otherwise(pl.lit(None)),
        direct_cost_s=pl.when(pl.col("step") != 3).then(pl.col("direct_cost_s")),
    )

    assert by_mode(table).rows() == [
        ("not recorded", 2, None, 4.0, 14),
        ("swap", 1, pytest.approx(0.4), 4.0, 4),
    ]
