"""What a change does, in figures and words: cards, the values of a curve, where preemption ends, drawings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from analyzer.judging import Rules
from analyzer.look import DARK, LIGHT
from analyzer.outcome import Outcome
from analyzer.stats import Interval
from analyzer.what_if import (
    Curve,
    End,
    change_of,
    curve_table,
    curve_values,
    end_of_preemption,
    figure,
    fits,
    halfway,
    is_calm,
    next_outward,
    say,
    say_calm,
    say_ended,
    say_value,
)
from analyzer.what_if_figure import (
    Segment,
    curve_alt,
    curve_figure,
    memory_alt,
    memory_figure,
    say_end,
)
from analyzer.what_if_pairs import Pairs, say_rule


def outcome(num_preemptions: int = 0, refused: str = "", **figures: Any) -> Outcome:
    filled = {
        "num_requests": 100, "num_preemptions": num_preemptions, "peak_used_frac": 1.0, "duration_s": 50.0,
        "ttft_s": {"p99": 4.0}, "output_tokens_per_s": 500.0, "status": "completed",
    }  # fmt: skip
    return Outcome({}, {} if refused else {**filled, **figures}, (), refused)


# ---- figures -------------------------------------------------------------------------------------


def test_a_figure_is_found_by_its_card_s_name() -> None:
    found = outcome(3, goodput_rps=1.25)

    assert figure(found, "num_preemptions") == 3
    assert figure(found, "ttft_s p99") == 4.0
    assert figure(found, "tpot_s p99") is None
    assert say("goodput_rps", 1.25) == "1.25 /s"
    assert say("goodput_rps", None) == "—"


@pytest.mark.parametrize(
    ("metric", "base", "now", "words", "tone"),
    [
        ("num_preemptions", 176, 12, "▼ 93.2 % better", "good"),
        ("num_preemptions", 0, 5, "▲ from 0 worse", "bad"),
        ("output_tokens_per_s", 500.0, 560.0, "▲ 12.0 % better", "good"),
        ("goodput_rps", 1.0, 0.5, "▼ 50.0 % worse", "bad"),
        ("peak_used_frac", 1.0, 0.6, "▼ 40.0 points", "even"),
    ],
)
def test_a_change_has_an_arrow_a_size_and_a_word(
    metric: str, base: float, now: float, words: str, tone: str
) -> None:
    found = change_of(metric, outcome(**{metric: base}), outcome(**{metric: now}))

    assert found.words == words
    assert found.tone == tone


def test_less_than_one_percent_of_a_modelled_time_is_no_difference() -> None:
    near = change_of("ttft_s p99", outcome(ttft_s={"p99": 4.0}), outcome(ttft_s={"p99": 4.03}))
    far = change_of("ttft_s p99", outcome(ttft_s={"p99": 4.0}), outcome(ttft_s={"p99": 4.4}))

    assert near.words == "no difference"
    assert far.words == "▲ 10.0 % worse"


def test_an_interval_that_holds_zero_is_no_difference_as_on_compare() -> None:
    base, now = outcome(tpot_s={"p99": 0.0664}), outcome(tpot_s={"p99": 0.0651})
    rules = Rules(0.01, 0.0, 50.0)
    wide = Pairs(2_000, {"tpot_s p99": Interval(-0.0013, -0.004, 0.001)}, rules)
    narrow = Pairs(2_000, {"tpot_s p99": Interval(-0.0013, -0.002, -0.0005)}, rules)

    assert change_of("tpot_s p99", base, now, wide).words == "no difference"
    assert change_of("tpot_s p99", base, now, wide).tone == "even"
    assert change_of("tpot_s p99", base, now, narrow).words == "▼ 1.96 % better"
    assert change_of("tpot_s p99", base, now).words == "▼ 1.96 % better"


def test_the_recomputed_share_is_judged_by_its_tokens() -> None:
    base = outcome(recomputed_frac=0.020, recomputed_tokens=2_000)
    now = outcome(recomputed_frac=0.018, recomputed_tokens=1_800)
    wide = Pairs(100, {"recomputed_tokens": Interval(-200.0, -500.0, 100.0)})

    assert change_of("recomputed_frac", base, now, wide).words == "no difference"
    assert change_of("recomputed_frac", base, now).words == "▼ 0.200 points better"


def test_the_rule_is_said() -> None:
    paired = Pairs(2_000, {}, Rules(0.01, 0.0, 50.0))

    assert "over the same 2,000 requests holds zero, or times differ by less than 1.00 %" in say_rule([paired, paired])  # fmt: skip
    assert "not the same requests" in say_rule([paired, None])


def test_what_is_not_known_is_not_compared() -> None:
    found = change_of("tpot_s p99", outcome(), outcome(tpot_s={"p99": 0.1}))

    assert found.words == "not comparable"


def test_a_trace_without_pressure_is_said_with_its_fullest_pool() -> None:
    calm = [outcome(peak_used_frac=0.41), outcome(peak_used_frac=0.38)]

    assert is_calm(calm)
    assert "the pool is at most 41.0 % full" in say_calm(calm)
    assert not is_calm([*calm, outcome(2, peak_used_frac=0.5)])
    assert not is_calm([outcome(peak_used_frac=0.99)])
    assert not is_calm([outcome(refused="no")])


def test_refused_unfinished_and_stopped_are_told() -> None:
    found = say_ended(outcome(num_refused=7, num_unfinished=2, status="livelock"))

    assert found[0].startswith("7 of 100 requests are refused")
    assert found[1] == "2 of 100 requests did not finish."
    assert "preempt each other without end" in found[2]
    assert say_ended(outcome()) == []


def test_requests_that_fit_take_whole_blocks_and_leave_the_null_block() -> None:
    lengths = np.array([17, 17, 17, 100])

    found = fits(lengths, 15, 16)

    assert found["p50"] == (17, 7)  # 2 blocks each, of 14
    assert found["max"] == (100, 2)  # 7 blocks each
    assert fits(np.array([], dtype=int), 15, 16) == {}


# ---- the curve -----------------------------------------------------------------------------------


def test_a_curve_begins_at_the_operating_point_and_takes_every_other_value() -> None:
    ladder = range(100, 2_100, 100)

    found = curve_values(ladder, 1_000, 1_100)

    assert found[:2] == [1_100, 1_000]
    assert sorted(found) == [400, 600, 800, 1_000, 1_100, 1_300, 1_500, 1_700, 1_900]
    assert len(set(found)) == 9


def test_near_the_end_of_a_ladder_the_other_side_gets_the_room() -> None:
    assert curve_values((1, 2, 3), 1, 1) == [1, 2, 3]
    assert sorted(curve_values(range(20), 0, 0)) == [0, 2, 4, 6, 8, 10, 12, 14, 16]


def test_of_choices_all_come_and_so_do_values_from_elsewhere() -> None:
    assert curve_values(("auto", "fp8"), "auto", "fp8") == ["fp8", "auto"]
    assert curve_values((False, True), True, False) == [False, True]
    assert curve_values((1, 2), 1, 7) == [7, 1, 2]


def test_preemption_ends_between_the_last_with_and_the_first_without() -> None:
    rising = {100: outcome(9), 200: outcome(3), 300: outcome(0), 400: outcome(0)}
    falling = {8: outcome(0), 16: outcome(0), 32: outcome(2), 64: outcome(9)}

    assert end_of_preemption(rising) == End(300.0, 200.0, upward=True)
    assert end_of_preemption(falling) == End(16.0, 32.0, upward=False)
    assert say_end("swap", End(300.0, 200.0, upward=True)) == "swap: none of the values tried from 300 on has any preemption (200 still has some)."  # fmt: skip
    assert say_end("swap", End(16.0, 32.0, upward=False)) == "swap: none of the values tried up to 16 has any preemption (32 still has some)."  # fmt: skip


def test_preemption_that_comes_back_moves_its_end_to_the_larger_value() -> None:
    # as on the chat sample: none at 7,119 blocks, 1 at 7,447, none at 7,766
    points = {2_589: outcome(176), 7_119: outcome(0), 7_447: outcome(1), 7_766: outcome(0)}

    assert end_of_preemption(points) == End(7_766.0, 7_447.0, upward=True)
    assert say_end("recompute", End(7_766.0, 7_447.0, upward=True)) == (
        "recompute: none of the values tried from 7,766 on has any preemption (7,447 still has some)."
    )


def test_no_end_where_all_preempt_none_does_or_values_are_words() -> None:
    assert end_of_preemption({1: outcome(2), 2: outcome(1)}) is None
    assert end_of_preemption({1: outcome(0), 2: outcome(0)}) is None
    assert end_of_preemption({"auto": outcome(2), "fp8": outcome(0)}) is None
    assert end_of_preemption({False: outcome(2), True: outcome(0)}) is None
    # an island without preemption is no end
    assert end_of_preemption({1: outcome(2), 2: outcome(0), 3: outcome(1)}) is None


def test_values_that_cannot_run_do_not_count() -> None:
    points = {100: outcome(9), 200: outcome(refused="too large"), 300: outcome(0)}

    assert end_of_preemption(points) == End(300.0, 100.0, upward=True)


def test_the_next_value_halves_the_bracket_until_it_is_within_two_percent() -> None:
    assert halfway(End(300.0, 200.0, upward=True), whole=True) == 250
    assert halfway(End(300.0, 297.0, upward=True), whole=True) is None
    assert halfway(End(3.0, 2.0, upward=True), whole=True) is None
    assert halfway(End(0.9, 1.0, upward=False), whole=False) == 0.95


def test_without_an_end_the_ladder_is_followed_outward_on_the_better_side() -> None:
    ladder = (100, 200, 300, 400, 500)

    assert next_outward(ladder, {200: outcome(9), 300: outcome(5)}) == 400
    assert next_outward(ladder, {200: outcome(5), 300: outcome(9)}) == 100
    assert next_outward(ladder, {400: outcome(9), 500: outcome(5)}) is None
    assert next_outward(ladder, {200: outcome(5), 300: outcome(5)}) is None
    assert next_outward(ladder, {200: outcome(5), 300: outcome(0)}) is None


def curve(now: Any = 300, base: Any = 200) -> Curve:
    points = {100: outcome(9), 200: outcome(3), 300: outcome(0)}
    other = {100: outcome(8), 200: outcome(refused="no room"), 300: outcome(0)}
    return Curve("num_gpu_blocks", {"recompute": points, "swap": other}, base, now)


def test_the_table_has_a_row_for_each_value_and_policy() -> None:
    found = curve_table(curve())

    assert found.height == 6
    assert found["Value"].to_list() == ["100", "100", "200 (base)", "200 (base)", "300 (now)", "300 (now)"]  # fmt: skip
    assert found["Preemptions"].to_list() == ["9", "8", "3", "—", "0", "0"]
    assert found["Cannot run"].to_list() == ["", "", "", "no room", "", ""]


def test_the_figure_marks_now_base_and_the_end() -> None:
    drawn = curve_figure(
        curve(), "num_preemptions", "KV pool (blocks)", LIGHT, base_points={"recompute": outcome(3)}
    ).to_dict()  # fmt: skip

    notes = [a["text"] for a in drawn["layout"]["annotations"]]
    assert notes == ["now 300", "base 200", "A: none tried from 300 preempts", "B: none tried from 300 preempts"]  # fmt: skip
    lines = [t for t in drawn["data"] if t.get("name")]
    assert [t["name"] for t in lines] == ["A · recompute", "B · swap"]
    assert list(lines[0]["x"]) == [100, 200, 300]
    assert list(lines[1]["x"]) == [100, 300]  # what cannot run is a gap
    ringed = [t for t in drawn["data"] if t["marker"].get("size") == 13]
    assert [list(t["x"]) for t in ringed] == [[300], [300]]
    hollow = [t for t in drawn["data"] if str(t["marker"].get("symbol")).endswith("open")]
    assert [list(t["x"]) for t in hollow] == [[200]]


def test_a_wide_lever_has_a_logarithmic_axis_and_choices_have_names() -> None:
    wide = Curve("x", {"recompute": {1: outcome(9), 64: outcome(3), 1_024: outcome(0)}}, 64, 1)
    words = Curve(
        "kv", {"recompute": {"fp8": outcome(0), "auto": outcome(9)}}, "auto", "fp8", ("auto", "fp8")
    )  # fmt: skip

    logarithmic = curve_figure(wide, "ttft_s p99", "x", DARK, base_points={}).layout.xaxis
    named = curve_figure(words, "num_preemptions", "kv", DARK, base_points={}).layout.xaxis

    assert logarithmic.type == "log"
    assert list(logarithmic.ticktext) == ["1", "64", "1,024"]
    assert named.type == "category"
    assert list(named.categoryarray) == ["auto", "fp8"]


def test_the_alternative_text_holds_every_value() -> None:
    said = curve_alt(curve(), "num_preemptions", "KV pool (blocks)")

    assert said.startswith("Preemptions against KV pool (blocks); now 300, base 200.")
    assert "recompute: 100: 9; 200: 3; 300: 0." in said
    assert "none of the values tried from 300 on has any preemption" in said


def test_memory_is_drawn_before_and_after_and_said() -> None:
    bars = {
        "base": [Segment("weights", 15 * 2**30, 0.7), Segment("KV pool", 5 * 2**30, None)],
        "now": [Segment("weights", 8 * 2**30, 0.7), Segment("KV pool", 12 * 2**30, None)],
    }

    drawn = memory_figure(bars, LIGHT).to_dict()

    assert [list(t["x"]) for t in drawn["data"]] == [[15.0, 8.0], [5.0, 12.0]]
    assert list(drawn["data"][0]["y"]) == ["base", "now"]
    assert memory_alt(bars) == (
        "base: weights 15.0 GiB, KV pool 5.00 GiB. now: weights 8.00 GiB, KV pool 12.0 GiB."
    )


@pytest.mark.parametrize(
    ("value", "said"),
    [(None, "default"), (True, "on"), (2_589, "2,589"), (0.95, "0.95"), ("fp8", "fp8")],
)
def test_values_are_said_as_people_read_them(value: Any, said: str) -> None:
    assert say_value(value) == said
