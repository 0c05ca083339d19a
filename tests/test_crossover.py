"""Where recompute and swap flip: the reference's tables, the engine's own estimates, and words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from analyzer import preemption_rows
from analyzer.__main__ import main
from analyzer.crossover import (
    Cell,
    Costs,
    Range,
    Setup,
    Ways,
    Work,
    as_table,
    break_even_flops_per_byte,
    cheaper,
    cheaper_ranges,
    curve,
    flips,
    lengths,
    needed_cached_frac,
    needed_link_bytes_per_s,
)
from analyzer.crossover_figure import Drawn, ModelRow, curves, intensity_rows, ratio_map
from analyzer.crossover_victims import by_mode, filled, tally, thinned, victims_of
from analyzer.crossover_words import (
    alt_curves,
    alt_map,
    say_condition,
    say_rule_misses,
    say_typical,
    say_victims,
    verdict,
    what_would_flip,
)
from analyzer.look import DARK, LIGHT
from analyzer.pages.parts.crossover_charts import _row
from analyzer.pages.parts.crossover_costs import (
    Own,
    beside_computing_s,
    break_even_of,
    cell_of,
    large_copies_break_even,
    models,
    own_of,
    params_of,
    recompute_among_s,
    ways,
    ways_of,
    work_of,
)
from analyzer.pages.parts.crossover_state import Chosen, Names, parse
from analyzer.run import Run
from engine.config import EngineSettings, resolve
from engine.devices import load_device
from engine.simulator import simulate
from tests.engine_builders import SECONDS, make_settings
from traces import samples
from traces.errors import SettingsError
from traces.recording import open_recording

NOBODY = Own()
RECORDINGS = Path(__file__).parent.parent / "traces" / "samples" / "recordings"


def toy(fixed_s: float = 0.0, token_s: float = 1.0, square_s: float = 0.0, copy_s: float = 2.0, longest: int = 1600) -> Ways:  # fmt: skip
    """Recompute: fixed + a token's time + square * n^2; swap: copy_s a token each way. Blocks of 16."""

    def recompute(again: int, found: int) -> float:
        return fixed_s + token_s * again + square_s * again * again if again else 0.0

    return Ways(
        recompute,
        lambda n: (copy_s * n, copy_s * n),
        lambda n: 2 * copy_s * n,
        block_size=16,
        longest=longest,
    )


def ranges_of(ways_: Ways, frac: float = 0.0) -> list[Range]:
    return cheaper_ranges(ways_, frac, curve(ways_, frac))


# ---- the reference's tables -----------------------------------------------------------------------

# ms at 2,048 tokens: recompute, swap in and out, one copy a block (physics.md 1.4, first table)
AT_2048 = [
    ("llama-3.1-8b", "a100-80", 132, 22.5),
    ("llama-3.1-8b", "h100-sxm", 45, 11.0),
    ("llama-3.1-8b", "rtx-4090", 245, 22.5),
    ("llama-3.1-8b", "gh200", 45, 2.5),
    ("llama-3.1-70b", "h100-sxm", 417, 26),
    ("qwen3-32b", "b200", 98, 21),
    ("llama-2-7b", "h200", 42, 41),
    ("llama-2-13b", "l40s", 275, 136),
]


@pytest.mark.parametrize(("model", "device", "recompute_ms", "swap_ms"), AT_2048)
def test_both_costs_at_2048_tokens_are_the_published_ones(
    model: str, device: str, recompute_ms: float, swap_ms: float
) -> None:
    costs = ways_of(Setup(model, device), NOBODY).at(2048)

    assert costs.recompute_s * 1e3 == pytest.approx(recompute_ms, rel=0.06)
    assert costs.swap_s * 1e3 == pytest.approx(swap_ms, rel=0.03)


# where recompute wins, in tokens (second table): one copy a block, then a copy a layer
WINS = [
    ("llama-2-7b", "a100-40", "coalesced", 250, 19_000),
    ("llama-2-7b", "b200", "coalesced", 220, 54_000),
    ("opt-13b", "a100-40", "coalesced", 430, 10_000),
    ("llama-2-13b", "b200", "coalesced", 240, 42_000),
    ("llama-3.1-8b", "gh200", "loop", 160, 50_000),
    ("llama-3.1-8b", "h100-sxm", "loop", 160, 60_000),
    ("qwen3-32b", "b200", "loop", 160, 57_000),
    ("qwen3-30b-a3b", "h200", "loop", 280, 83_000),
]


@pytest.mark.parametrize(("model", "device", "path", "first", "last"), WINS)
def test_recompute_wins_in_the_published_interval(
    model: str, device: str, path: str, first: int, last: int
) -> None:
    (found,) = ranges_of(ways_of(Setup(model, device, copy_path=path), NOBODY, 131_072))

    # The lower end hangs on a step's fixed parts, of which the model has more terms than the reference.
    assert found.first == pytest.approx(first, rel=0.2, abs=16)
    assert found.last == pytest.approx(last, rel=0.12)


@pytest.mark.parametrize("device", ["a100-80", "h100-sxm", "b200", "l4", "mi300x", "gh200"])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-8b", "llama-3.1-70b", "qwen3-32b"])
def test_with_one_copy_a_block_swap_wins_at_every_length_for_gqa_models(
    model: str, device: str
) -> None:
    assert ranges_of(ways_of(Setup(model, device), NOBODY, 131_072)) == []


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("llama-3.1-8b", (109, 123, 172)),
        ("llama-3.1-70b", (422, 451, 549)),
        ("qwen3-8b", (96, 111, 160)),
        ("llama-2-7b", (25, 29, 41)),
        ("opt-13b", (31, 35, 47)),
        ("qwen3-30b-a3b", (60, 88, 187)),
    ],
)
def test_kflop_per_kv_byte_is_the_published_one(
    model: str, expected: tuple[int, int, int]
) -> None:
    work = work_of(models()[model], Setup())

    found = [(work.flops_per_byte(n) or 0) / 1e3 for n in (1024, 8192, 32_768)]

    assert found == pytest.approx(expected, abs=1.0)


@pytest.mark.parametrize(
    ("device", "expected"),
    [("a100-80", 18.9), ("a100-40", 37.4), ("h100-sxm", 26.1), ("b200", 52.6), ("l4", 4.9), ("gh200", 4.2)],
)  # fmt: skip
def test_machines_break_even_where_the_reference_says(device: str, expected: float) -> None:
    assert large_copies_break_even(load_device(device)) / 1e3 == pytest.approx(
        expected, rel=0.02
    )


def test_small_copies_raise_the_break_even() -> None:
    # H100, 8B: a copy of 32 KiB takes 0.62 us on the link and 5 us of its own: 9.09 times as long.
    loop = break_even_of(Setup(copy_path="loop"), NOBODY)

    assert loop / 1e3 == pytest.approx(26.1 * 9.09, rel=0.02)


def test_the_latent_of_mla_is_on_every_device() -> None:
    one, eight = (work_of(models()["deepseek-v3"], Setup(tp=tp)) for tp in (1, 8))

    assert eight.kv_bytes == 8 * one.kv_bytes
    assert (one.flops_per_byte(1024) or 0) == pytest.approx(
        8 * (eight.flops_per_byte(1024) or 0)
    )


# ---- the engine's estimates -----------------------------------------------------------------------


@pytest.mark.parametrize("path", ["loop", "batch"])
def test_the_page_says_what_a_cheapest_run_has_estimated(tmp_path: Path, path: str) -> None:
    settings = EngineSettings(
        device="rtx-4090",
        kv_tokens=20_000,
        preemption_mode="cheapest",
        enable_prefix_caching=False,
        copy_path=path,
    )
    simulate(samples.load("chat").head(200), settings, tmp_path / "run")
    recording = open_recording(tmp_path / "run")
    own = own_of(recording.meta)
    assert own.model is not None
    assert own.device is not None
    setup = Setup(own.model.name, own.device.name, copy_path=path)
    budget = resolve(settings).rules.token_budget

    events = recording.events.filter(pl.col("kind").cast(pl.String) == "preempt").join(
        recording.steps.select("step", "num_running"), on="step"
    )

    assert events.height > 20
    for e in events.iter_rows(named=True):
        beside = replace(setup, beside=e["num_running"], budget=budget)
        costs = ways_of(beside, own).at(e["tokens"])
        assert costs.recompute_s == pytest.approx(e["recompute_est_s"], rel=1e-12)
        assert costs.swap_s == pytest.approx(e["swap_est_s"], rel=1e-12)


def test_a_recompute_in_chunks_costs_what_the_engine_estimates() -> None:
    # A token takes 1 s, and the step reads its weights for 100 s anyway: sqrt(100^2 + 9^2) -
    # sqrt(100^2 + 1^2) for the 8 tokens in one chunk beside one request (test_scheduler_cheapest.py).
    costs = SECONDS | {"token_compute_s": 1.0, "always_read_s": 100.0, "knee": 2.0}
    cost = resolve(
        make_settings(4, preemption_mode="cheapest", num_host_blocks=8, clock="modelled", cost_overrides=costs)
    ).cost  # fmt: skip

    assert recompute_among_s(cost, 8, 0, 1, budget=64) == pytest.approx(0.3992, abs=1e-3)
    # two chunks of 4 beside 1: 2 * (sqrt(100^2 + 5^2) - sqrt(100^2 + 1^2)) = 0.2398
    assert recompute_among_s(cost, 8, 0, 1, budget=5) == pytest.approx(0.2398, abs=1e-3)
    assert recompute_among_s(cost, 8, 0, 1, budget=64, long_prefill=4) == pytest.approx(
        0.2398, abs=1e-3
    )
    assert recompute_among_s(cost, 0, 8, 1, budget=64) == 0.0


def test_copies_beside_the_computing_cost_the_share_of_the_batch_that_waits() -> None:
    # Steps of 3 s, 1 s of them whoever runs; copies of 2 s: one step out in which all wait, one back in
    # which half of the pool is idle (test_scheduler_cheapest.py has the engine say the same).
    cost = resolve(
        make_settings(4, preemption_mode="swap", num_host_blocks=8, clock="modelled", cost_overrides=SECONDS | {"token_compute_s": 1.0})
    ).cost  # fmt: skip

    assert beside_computing_s(cost, 1, 0.5, 3.0, 2.0, 2.0) == pytest.approx(1.5)
    assert beside_computing_s(cost, 1, 0.5, 0.0, 2.0, 2.0) == 0.0


def test_an_asynchronous_swap_costs_less_than_a_blocking_one_in_a_large_batch() -> None:
    blocking = ways_of(Setup(beside=64), NOBODY).at(4096)
    beside = ways_of(Setup(beside=64, copy_mode="async"), NOBODY).at(4096)

    assert beside.swap_s < blocking.swap_s / 10
    assert (beside.out_s, beside.back_s) == (blocking.out_s, blocking.back_s)


def test_a_recompute_among_others_shares_their_weight_read() -> None:
    alone = ways_of(Setup(), NOBODY).at(64)
    among = ways_of(Setup(beside=32), NOBODY).at(64)

    assert alone.recompute_s > 7e-3  # a weight read
    assert among.recompute_s < 2e-3


def test_a_run_brings_its_own_model_device_and_changed_costs() -> None:
    device = {**resolve(EngineSettings(num_gpu_blocks=9)).device.__dict__, "name": "bench"}
    meta = {"model": models()["qwen3-8b"].__dict__ | {"name": "mine"}, "device": device, "settings": {"cost_overrides": {"knee": 2.0}}}  # fmt: skip

    own = own_of(meta)

    assert own.model is not None
    assert own.device is not None
    assert (own.model.name, own.device.name) == ("mine", "bench")
    assert params_of(Setup("mine", "bench"), own).knee == 2.0
    assert params_of(Setup("mine", "h100-sxm"), own).knee == 2.8  # the preset's


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ({"name": "meta-llama/Llama-3.1-8B-Instruct", "model_type": "llama"}, "llama-3.1-8b"),
        ({**models()["qwen3-8b"].__dict__, "num_layers": "many"}, "qwen3-8b"),
        ({**models()["qwen3-8b"].__dict__, "name": "x", "num_heads": 0}, None),
        ({"name": "somebody/else"}, None),
        (None, None),
        ("text", None),
    ],
)
def test_another_engines_model_is_known_by_name_at_most(
    model: object, expected: str | None
) -> None:
    found = own_of({"model": model, "device": {"name": "h100-sxm"}}).model

    assert (found and found.name) == expected


def test_a_link_of_the_users_is_the_devices() -> None:
    found = ways_of(Setup(link_gb_per_s=5.3), NOBODY).at(2048)

    # 2,048 tokens of 128 KiB at a tenth of 53 GB/s: 50.6 ms each way
    assert found.out_s * 1e3 == pytest.approx(50.6 + 0.44, abs=0.2)


# ---- where it flips -------------------------------------------------------------------------------


def test_lengths_are_whole_blocks_from_one_to_the_longest() -> None:
    found = lengths(toy(longest=1601))

    assert (found[0], found[-1]) == (16, 1600)
    assert all(n % 16 == 0 for n in found)
    assert found == sorted(set(found))
    assert lengths(toy(longest=3)) == [16]


def test_the_flip_is_found_to_the_block() -> None:
    # 500 + n < 4 n from 166.7 on: 176 is the first whole block.
    (found,) = ranges_of(toy(fixed_s=500, copy_s=2.0))

    assert found == Range(176, 1600, True)


def test_a_square_ends_it_again() -> None:
    # 500 + n + 0.002 n^2 < 4 n between 190.7 and 1,309.
    (found,) = ranges_of(toy(fixed_s=500, square_s=0.002))

    assert found == Range(192, 1296, False)
    assert flips([found], 16) == [192, 1296]


def test_recompute_that_is_always_dearer_has_no_range() -> None:
    assert ranges_of(toy(token_s=4.5)) == []


def test_recompute_that_is_always_cheaper_begins_with_the_first_block() -> None:
    assert ranges_of(toy()) == [Range(16, 1600, True)]


def test_only_full_blocks_are_found_in_the_cache() -> None:
    assert toy().found_tokens(100, 0.5) == 48  # half of 6 blocks
    assert toy().found_tokens(15, 1.0) == 0


def test_a_cache_that_keeps_enough_makes_recompute_cheaper() -> None:
    # 8 s a token against 4 s of copies: half of it must be there.
    found = needed_cached_frac(toy(token_s=8.0), 1600)

    assert found == pytest.approx(0.5, abs=1e-3)


def test_no_cache_is_needed_where_recompute_is_cheaper_anyhow() -> None:
    assert needed_cached_frac(toy(), 1600) == 0.0


def test_no_cache_is_enough_where_the_last_block_costs_more() -> None:
    # 1,599 tokens: 15 lie in no full block, and cost 15 * 1,000 s against 4 * 1,599 s.
    assert needed_cached_frac(toy(token_s=1000.0), 1599) is None


def test_the_link_at_which_both_cost_the_same() -> None:
    def over(speed: float) -> Ways:
        return toy(token_s=4.0, copy_s=1e9 / speed)  # 1e9 B a token

    # 4 s a token = 2e9 / speed
    assert needed_link_bytes_per_s(over, 160, 0.0) == pytest.approx(0.5e9, rel=1e-6)
    assert needed_link_bytes_per_s(lambda speed: toy(), 160, 0.0) is None
    assert needed_link_bytes_per_s(lambda speed: toy(token_s=9), 160, 0.0) is None


def test_a_ratio_over_a_free_swap_is_not_a_number() -> None:
    assert Costs(16, 1.0, 0.0, 0.0, 0.0).ratio is None
    assert Costs(16, 3.0, 1.5, 0.0, 0.0).ratio == 2.0


def test_work_without_kv_has_no_intensity() -> None:
    assert Work(1e9, 1.0, 0.0, 0, 0.0).flops_per_byte(1024) is None


def test_a_window_bounds_attention() -> None:
    work = Work(1000.0, 10.0, 10.0, 100, 10.0, derate=1.5)

    # 1,500 + 10 * 500 of full layers + 10 * 100 of window layers, over 10 bytes
    assert work.flops_per_byte(1000) == 750.0


def test_what_is_still_cached_need_not_be_rebuilt() -> None:
    work = Work(1000.0, 10.0, 0.0, 0, 10.0)

    # 200 of 1,000 tokens are rebuilt, each beside 900 keys on average: 0.2 * (1,000 + 9,000) / 10
    assert work.flops_per_byte(1000, 800) == pytest.approx(200.0)
    assert work.flops_per_byte(1000) == pytest.approx(600.0)


def test_the_last_chart_has_the_letters_of_the_map() -> None:
    names = Names(list(models()), ["rtx-4090"])
    chosen = Chosen(Setup(device="rtx-4090", beside=16), 81, 1070)

    rows = {m: row for m in names.models if (row := _row(chosen, NOBODY, m)) is not None}

    assert len(rows) == 25
    for model, row in rows.items():
        cell = cell_of(Setup(model, "rtx-4090", beside=16), NOBODY, 1070, 0.81)
        assert row.way == cheaper(cell.costs)
    # with the cached tokens left out the rule of thumb misses these, and the page names them
    missed = [m for m, row in rows.items() if row.is_right != (row.way == "swap")]
    assert missed == ["gemma-3-12b", "llama-3.2-1b", "llama-3.2-3b"]


def test_where_the_rule_of_thumb_fails_is_said_with_the_reason() -> None:
    rows = [("a", True, "recompute"), ("b", False, "swap"), ("c", True, "swap")]

    said = say_rule_misses(rows, "l4")

    assert (
        "Right of their tick, recompute cheaper on l4 all the same: a; the running batch"
        in said
    )
    assert "Left of their tick, swap cheaper on l4 all the same: b; weight reads" in said
    assert say_rule_misses(rows[2:], "l4") == ""


def test_break_even_one_way_is_half() -> None:
    assert break_even_flops_per_byte(1e12, 50e9, 50e9) == pytest.approx(40.0)
    assert break_even_flops_per_byte(1e12, 50e9, 50e9, both_ways=False) == pytest.approx(20.0)


def test_a_pair_that_cannot_be_split_so_says_why() -> None:
    cell = cell_of(Setup("qwen2.5-7b", tp=8), NOBODY, 2048, 0.0)

    assert cell.costs is None
    assert "tp 8 does not divide the 28 heads" in cell.problem


def test_a_model_that_does_not_fit_is_compared_all_the_same() -> None:
    cell = cell_of(Setup("llama-3.1-70b", "h100-sxm"), NOBODY, 2048, 0.0)

    assert cell.costs is not None
    assert cell.costs.ratio == pytest.approx(16, rel=0.05)
    assert not cell.fits


def test_a_split_that_cannot_be_is_refused() -> None:
    with pytest.raises(SettingsError, match="tp 3 does not divide"):
        ways_of(Setup(tp=3), NOBODY)


# ---- a run's victims ------------------------------------------------------------------------------


def told() -> pl.DataFrame:
    return pl.DataFrame(
        {
            "step": [3, 4, 9, 9],
            "request_id": ["a", "b", "c", "d"],
            "tokens": [100, 300, 0, 500],
            "mode_used": ["recompute", "recompute", "recompute", "swap"],
            "direct_cost_s": [0.1, 0.2, 0.0, None],
            "recompute_est_s": [0.1, 0.3, 0.0, 0.5],
            "swap_est_s": [0.2, 0.2, 0.0, 0.4],
            "found_tokens": [80, None, 0, 0],
        }
    )


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


STEPS = pl.DataFrame({"step": [1, 2, 3, 4, 5, 6], "num_running": [4] * 6})


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


def test_many_victims_are_thinned_with_both_ends_kept() -> None:
    table = pl.DataFrame(
        {"tokens": range(5000), "step": [1] * 5000, "request_id": ["r"] * 5000}
    )

    found = thinned(table, 100)["tokens"]

    assert (found.len(), found[0], found[-1]) == (100, 0, 4999)
    assert thinned(table.head(7), 100).height == 7


# ---- words ----------------------------------------------------------------------------------------

AT = Costs(2048, 0.0459, 0.011, 0.0055, 0.0055)


@pytest.mark.parametrize(
    ("ranges", "expected"),
    [
        ([], "Recompute is cheaper at no length up to 8,192 tokens"),
        ([Range(16, 8192, True)], "Recompute is cheaper at every length up to 8,192 tokens"),
        ([Range(272, 1600, False)], "Recompute is cheaper from 272 to 1,600 tokens, and swap at every other length up to 8,192 tokens"),
        ([Range(272, 8192, True)], "Recompute is cheaper from 272 tokens on, and swap at every other length up to 8,192 tokens"),
        ([Range(16, 32, False), Range(48, 64, False), Range(96, 96, False), Range(128, 160, False)],
         "The order flips 7 times between 32 and 160 tokens, where both cost about the same; below recompute is cheaper, above swap"),
    ],
)  # fmt: skip
def test_the_verdict_is_one_sentence(ranges: list[Range], expected: str) -> None:
    assert (
        verdict(ranges, 16, 8192, AT)
        == f"{expected}: at 2,048 tokens recompute costs 45.9 ms of engine time and swap 11.0 ms, 4.17 times less."
    )


def test_what_would_flip_names_cache_and_link() -> None:
    assert (
        what_would_flip(AT, 0.0, 0.82, 11.93e9)
        == "At 2,048 tokens recompute would be cheaper if the prefix cache still held more than 82 % of the victim, or over a link of less than 11.9 GB/s."
    )
    assert what_would_flip(AT, 0.0, 0.994, None).endswith("more than 99.4 % of the victim.")
    assert "if the prefix cache still held all of the victim." in what_would_flip(
        AT, 0.0, 0.99999, None
    )
    assert "neither a cache" in what_would_flip(AT, 0.0, None, None)
    cheap = Costs(2048, 0.1, 0.2, 0.1, 0.1)
    assert (
        what_would_flip(cheap, 0.0, 0.0, 17e9)
        == "At 2,048 tokens swap would be cheaper over a link of more than 17.0 GB/s."
    )
    assert "no link is fast enough" in what_would_flip(cheap, 0.0, 0.0, None)


def test_the_condition_says_everything_that_is_set() -> None:
    setup = Setup(tp=2, kv_dtype="fp8", copy_mode="async", beside=1)

    assert (
        say_condition(setup, 0.5, (297e9, 377e9))
        == "llama-3.1-8b on 2 x h100-sxm, KV cache in fp8, coalesced asynchronous copies over 297 GB/s out and 377 GB/s back, 50 % of the victim still cached, recomputed beside 1 running request"
    )


def test_victims_are_told_with_where_they_lie() -> None:
    own = victims_of(told(), pl.DataFrame({"step": [3], "num_running": [5]}), True)

    assert (
        say_victims("A", "cheapest", own, False)
        == "A (cheapest): of 3 victims (2 by recompute, 1 by swap; median 300 tokens), 1 was cheaper by recompute, by their own cached share (1) and by the share expected to be cached when they were chosen (2); in sum recompute 900 ms, swap 800 ms. Of a victim, 80 % was still cached in the median. Their costs are of another set-up than is set here, and only their lengths are drawn."
    )
    assert "preempted nobody" in say_victims(
        "B", "swap", victims_of(told().head(0), pl.DataFrame(), False), True
    )


# ---- pictures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_the_curves_hold_both_ways_the_flip_and_the_victims(theme: object) -> None:
    one = toy(fixed_s=500, square_s=0.002)
    points, found = curve(one, 0.0), ranges_of(one)
    table = victims_of(told(), pl.DataFrame({"step": [3], "num_running": [5]}), True).table

    figure = curves(points, found, one.at(160), {"A": Drawn(table, True)}, theme)  # type: ignore[arg-type]
    names = {t.name: t for t in figure.data}

    assert list(names["recompute"].x) == [p.tokens for p in points]
    assert names["swap, out and in"].line.dash == "dash"
    assert list(names["the order flips"].x) == [192, 1296]
    assert list(names["the order flips"].text) == ["192", "1,296"]
    assert list(names["A: recompute was cheaper"].x) == [100]
    assert list(names["A: swap was cheaper"].x) == [300]  # d's cost is not known
    assert list(names["A: swap was cheaper"].y) == [0.2]
    assert set(names["A: swap was cheaper"].marker.symbol.split()) == {"square"}
    assert list(names["lengths of A's victims"].x) == [100, 300, 500]
    hover = names["A: recompute was cheaper"].customdata[0]
    assert "A: a at step 3" in hover
    assert "80 % still cached<br>of this victim: recompute 100 ms, swap 200 ms" in hover


def test_an_id_cannot_be_markup_in_a_hover() -> None:
    renamed = told().with_columns(request_id=pl.lit("<b>%{x}" + "y" * 90))
    table = victims_of(renamed, STEPS, False).table

    figure = curves([AT], [], AT, {"A": Drawn(table, False)}, LIGHT)
    (rug,) = [t for t in figure.data if t.name == "lengths of A's victims"]

    assert "<b>" not in rug.customdata[0]
    assert "%{" not in rug.customdata[0]
    assert "&lt;b>" in rug.customdata[0]


def test_the_map_says_who_wins_in_letters_and_outlines_the_chosen_pair() -> None:
    cells = [
        Cell("m", "d1", Costs(16, 4.0, 1.0, 0.5, 0.5)),
        Cell("m", "d2", Costs(16, 1.0, 2.0, 1.0, 1.0), fits=False),
        Cell("n", "d1", None, False, "cannot be split"),
    ]

    figure = ratio_map(cells, ["m", "n"], ["d1", "d2"], ("m", "d2"), LIGHT)

    assert [list(r) for r in figure.data[0].text] == [["S 4.0", "(R 2.0)"], ["—", "—"]]
    assert [list(r) for r in figure.data[0].z] == [[2.0, -1.0], [None, None]]
    assert (figure.layout.shapes[0].x0, figure.layout.shapes[0].y0) == (0.5, -0.5)
    assert as_table(cells)["Cheaper"].to_list() == ["swap", "recompute", "—"]
    assert "swap in 1 of 2 pairs, recompute in 1: m on d2" in alt_map(cells, 16)


def test_rows_of_intensity_hold_models_then_machines() -> None:
    rows = [
        ModelRow("m", 100.0, 90.0, 150.0, 26.0, "swap"),
        ModelRow("n", 30.0, 25.0, 40.0, 31.0, "recompute"),
    ]

    figure = intensity_rows(rows, [("d1", 5.0), ("d2", 26.0)], ("m", "d2"), 2048, LIGHT)

    assert list(figure.layout.yaxis.ticktext) == ["<b>m</b>", "n", "", "d1", "<b>d2</b>"]
    swap, recompute, even, machines = figure.data
    assert (list(swap.x), list(swap.error_x.array)) == ([100.0], [50.0])
    assert (list(recompute.x), list(recompute.y)) == ([30.0], [1])
    assert list(even.x) == [26.0, 31.0]
    assert list(machines.y) == [3, 4]
    assert figure.layout.shapes[0].x0 == 26.0


def test_the_alternative_text_says_where_recompute_wins() -> None:
    one = toy(fixed_s=500)

    said = alt_curves(curve(one, 0.0), ranges_of(one), {"A": 3})

    assert "Recompute is cheaper from 176 tokens on. Drawn on it: 3 victims of A." in said


def test_equal_costs_are_the_same() -> None:
    assert cheaper(Costs(16, 1.0, 1.0, 0.5, 0.5)) == "the same"


# ---- the URL --------------------------------------------------------------------------------------

NAMES = Names(["llama-3.1-8b", "opt-13b"], ["h100-sxm", "l4"])


def test_the_url_is_read() -> None:
    found, wrong = parse(
        {"cx_model": "opt-13b", "cx_tp": "2", "cx_link": "12.5", "cx_cached": "40", "t": "1-2"},
        NAMES,
    )

    assert found == {
        "model": "opt-13b",
        "tp": 2,
        "link_gb_per_s": 12.5,
        "cached_pct": 40,
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("model", "gpt-9", "one of llama-3.1-8b, opt-13b"),
        ("device", "", "one of h100-sxm, l4"),
        ("tp", "3", "one of 1, 2, 4, 8, 16"),
        ("kv", "<b>", "one of auto, fp8"),
        ("path", "Loop", "one of loop, batch, coalesced"),
        ("copies", "1", "one of blocking, async"),
        ("link", "nan", "a number from 0.1 to 10,000"),
        ("link", "1e999", "a number from 0.1 to 10,000"),
        ("cached", "101", "a whole number from 0 to 100"),
        ("cached", "0.5", "a whole number from 0 to 100"),
        ("beside", "-1", "a whole number from 0 to 8,192"),
        ("tokens", "9" * 5000, "a whole number from 1 to 4,194,304"),
    ],
)
def test_a_value_that_cannot_be_is_said_and_not_taken(name: str, text: str, why: str) -> None:
    found, (sentence,) = (lambda f, w: (f, list(w.values())))(
        *parse({f"cx_{name}": text}, NAMES)
    )

    assert found == {}
    assert sentence.startswith(f"cx_{name} in the link is ")
    assert f"which is not {why}. The run's own is shown instead." in sentence
    assert len(sentence) < 220


def test_ways_by_parameters_need_no_model() -> None:
    cost = params_of(Setup(), NOBODY)

    assert ways(cost, Setup(), 8192).at(2048) == ways_of(Setup(), NOBODY).at(2048)


# ---- the command ----------------------------------------------------------------------------------


def test_the_command_says_when_recompute_is_cheaper(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crossover", "--model", "opt-13b", "--device", "a100-40"]) == 0

    said = capsys.readouterr().out
    assert said.startswith("Recompute is cheaper from 464 tokens on, and swap at every other length up to 2,048 tokens")  # fmt: skip
    assert "For opt-13b on a100-40, coalesced blocking copies over 12.5 GB/s" in said
    assert [line.split()[0] for line in said.splitlines()[-3:]] == ["256", "1,024", "2,048"]


def test_the_command_gives_json_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["crossover", "--copy-path", "loop", "--json"]) == 0

    found = json.loads(capsys.readouterr().out)
    (interval,) = found["recompute_cheaper"]
    assert interval["last_tokens"] == pytest.approx(60_000, rel=0.05)
    assert found["at"]["ratio"] == pytest.approx(0.498, abs=0.005)
    assert found["needed_link_bytes_per_s"] is None  # 5 us a copy are not the link's


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--cached", "40"), "--cached must lie between 0 and 1, not 40"),
        (("--tokens", "0"), "--tokens must lie between 1 and"),
        (("--beside", "-1"), "--beside must lie between 0 and"),
        (("--link-gb-per-s", "nan"), "--link-gb-per-s must lie between"),
        (("--model", "gpt-9"), "the model 'gpt-9' is not known"),
        (("--device", "tpu"), "the device 'tpu' is not known"),
        (("--pp", "40"), "pp 40 leaves a stage without a layer"),
        (("--kv-dtype", "int3"), "kv_dtype 'int3' is not known"),
    ],
)
def test_a_mistake_is_one_sentence(
    flags: tuple[str, str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["crossover", *flags]) == 2

    found = capsys.readouterr()
    assert message in found.err
    assert len(found.err.strip().splitlines()) == 1
    assert found.out == ""
