"""A run's own victims on the Crossover page: what each cost both ways, and what is said of them together."""

from __future__ import annotations

import polars as pl
import pytest

from analyzer import preemption_rows
from analyzer.crossover_victims import by_mode, dots, filled, lengths_of, tally, victims_of
from analyzer.crossover_words import say_typical, say_victims
from analyzer.run import Run
from tests.crossover_builders import RECORDINGS, STEPS, told, toy
from traces.recording import open_recording


def test_victims_are_those_that_had_computed_something() -> None:
    steps = pl.DataFrame({"step": [3, 4, 9], "num_running": [5, 7, 11]})

    own = victims_of(told(), steps, True)

    assert own.table["request_id"].to_list() == ["a", "b", "d"]
    assert (own.median_tokens, own.found_frac, own.beside) == (300, 0.8, 7)
    assert dict(by_mode(own.table)) == {"recompute": 2, "swap": 1}


def test_what_was_not_recorded_is_not_made_up() -> None:
    steps = pl.DataFrame({"step": [3, 4, 9], "num_running": [0, 0, 0]})

    assert victims_of(told(), steps, False).beside is None
    nobody = victims_of(told().head(0), steps, True)
    assert (nobody.median_tokens, nobody.found_frac, nobody.beside) == (None, None, None)


def spread_out() -> pl.DataFrame:
    """Two victims of one length, one of which is still cached: one costs 10 ms, the other 90 ms, swap 20 ms."""
    return pl.DataFrame(
        {
            "step": [1, 2, 3, 4, 5, 6],
            "request_id": ["cached", "gone", "swapped", "never_back", "silent", "silent_swap"],
            "tokens": [1000, 1000, 1000, 1000, 100, 100],
            "mode_used": ["recompute", "recompute", "swap", "recompute", "recompute", "swap"],
            "direct_cost_s": [0.010, 0.090, 0.015, 0.0, None, None],
            "recompute_est_s": [0.050, 0.050, 0.050, 0.050, None, None],
            "swap_est_s": [0.020, 0.020, 0.020, 0.060, None, None],
            "found_tokens": [900, 100, 0, None, 40, 0],
        }
    )


def test_a_victim_is_judged_by_its_own_two_costs_not_by_the_average() -> None:
    own = victims_of(spread_out().head(4), STEPS, True)

    # the cached one and the one that never came back, whose swap was estimated dearer
    found = tally(own.table)

    assert own.table["own_recompute_s"].to_list() == [0.010, 0.090, 0.050, 0.050]
    assert own.table["own_swap_s"].to_list() == [0.020, 0.020, 0.015, 0.060]
    assert (found.num_known, found.num_unknown, found.num_recompute) == (4, 0, 2)
    assert (found.recompute_s, found.swap_s) == pytest.approx((0.200, 0.115))
    assert dict(found.by_basis) == {"own": 2, "expected": 2}


def test_the_cached_share_is_a_median_with_its_spread_over_recomputed_victims() -> None:
    own = victims_of(spread_out().head(4), STEPS, True)

    assert own.found_frac == pytest.approx(0.5)  # of 0.9 and 0.1; the swapped one never looked
    assert own.found_spread == pytest.approx((0.3, 0.7))


def test_a_cost_that_no_recording_holds_is_worked_out_of_that_victims_tokens_and_share() -> (
    None
):
    own = filled(victims_of(spread_out(), STEPS, True), toy(token_s=1e-3, copy_s=2e-4))

    rows = {r["request_id"]: r for r in own.table.iter_rows(named=True)}

    # 60 of 100 tokens at 1 ms; copies of 100 tokens at 0.2 ms each way
    assert rows["silent"]["own_recompute_s"] == pytest.approx(0.060)
    assert rows["silent"]["own_swap_s"] == pytest.approx(0.040)
    assert rows["silent"]["basis"] == "computed"
    assert rows["silent_swap"]["basis"] is None  # its cached share was never looked at
    assert rows["gone"]["own_recompute_s"] == 0.090
    assert tally(own.table).num_unknown == 1


def test_nothing_known_of_anybody_is_said() -> None:
    own = victims_of(spread_out().tail(1), STEPS, True)

    assert "which way was cheaper is not known" in say_victims("A", "swap", own, True)


def test_victims_whose_tokens_were_not_recorded_are_not_called_nobody() -> None:
    told = spread_out().with_columns(tokens=pl.lit(None, dtype=pl.Int64))

    said = say_victims("A", "recompute", victims_of(told, STEPS, True), True)

    assert said == "A (recompute): the recording does not hold how many tokens its 6 victims lost, and which way was cheaper is not known."  # fmt: skip


def test_the_samples_victims_are_counted_by_themselves() -> None:
    run = Run("a", open_recording(RECORDINGS / "chat-recompute"))

    own = victims_of(preemption_rows.told(run), run.steps, True)
    said = say_victims("A", "recompute", own, True)

    # 6 of the 44 that a curve at one average share called cheaper, and 49 of the other 132
    assert "55 were cheaper by recompute, by their own cached share; in sum recompute 4.89 s, swap 2.47 s" in said  # fmt: skip
    assert "79 % was still cached in the median, and between 52 % and 93 % for the middle half" in said  # fmt: skip


def test_curves_are_called_typical_at_the_median_only() -> None:
    own = victims_of(spread_out(), STEPS, True)

    assert "the victims' median cached share of 40 %" in say_typical(0.4, own)
    assert "the case of a cached share of 80 %" in say_typical(0.8, own)
    assert say_typical(0.8, victims_of(spread_out().tail(1), STEPS, True)) == ""


def evicted(tokens: list[int], costs_s: list[float | None], recompute_s: float) -> pl.DataFrame:
    """Victims in order of step, whose swap would have cost 1 s."""
    num = len(tokens)
    return pl.DataFrame(
        {
            "step": range(num),
            "request_id": [f"r{i}" for i in range(num)],
            "tokens": tokens,
            "cost_s": costs_s,
            "own_recompute_s": [recompute_s] * num,
            "own_swap_s": [1.0] * num,
        },
        schema_overrides={"cost_s": pl.Float64},
    )


def test_victims_at_one_place_share_a_dot_and_who_stands_apart_keeps_one() -> None:
    table = evicted([1000] * 900 + [16], [0.5] * 900 + [0.001], 0.5)

    found = dots(table)

    assert found.select("request_id", "num_here").rows() == [("r0", 900), ("r900", 1)]


def test_two_ways_at_one_place_are_two_dots() -> None:
    table = pl.concat([evicted([1000], [0.5], 0.5), evicted([1000], [0.5], 2.0)])

    assert dots(table, most=1)["num_here"].to_list() == [1, 1]


def test_a_cloud_of_victims_is_drawn_coarser_with_its_far_ends() -> None:
    num = 4000
    cloud = [64 + i % 4000 for i in range(num)]
    costs = [0.01 * (1 + i * 37 % 997) for i in range(num)]
    table = evicted([*cloud, 8, 120_000], [*costs, 1e-6, 500.0], 0.5)

    found = dots(table, 300)

    assert 60 < found.height <= 300
    assert found["num_here"].sum() == num + 2
    assert {8, 120_000} <= set(found["tokens"].to_list())


def test_who_cost_nothing_or_nobody_knows_has_a_length_and_no_dot() -> None:
    table = evicted([100, 200, 300], [0.0, None, 0.2], 0.5)

    assert dots(table)["tokens"].to_list() == [300]
    assert lengths_of(table)["tokens"].to_list() == [100, 200, 300]


def test_a_length_is_drawn_once() -> None:
    table = evicted([5000, 64, 5001, 64, 5600], [1.0] * 5, 0.5)

    # 5,000 and 5,001 lie closer than a pixel
    assert lengths_of(table).select("tokens", "num_here").rows() == [
        (64, 2),
        (5000, 2),
        (5600, 1),
    ]


def test_victims_are_told_with_where_they_lie() -> None:
    own = victims_of(told(), pl.DataFrame({"step": [3], "num_running": [5]}), True)

    assert (
        say_victims("A", "cheapest", own, False)
        == "A (cheapest): of 3 victims (2 by recompute, 1 by swap; median 300 tokens), 1 was cheaper by recompute, by their own cached share (1) and by the share expected to be cached when they were chosen (2); in sum recompute 900 ms, swap 800 ms. Of a victim, 80 % was still cached in the median. Their costs are of another set-up than is set here, and only their lengths are drawn."
    )
    assert "preempted nobody" in say_victims(
        "B", "swap", victims_of(told().head(0), pl.DataFrame(), False), True
    )
