"""Where recompute and swap flip: lengths, the cache and the link that would turn it, words, pictures, the command."""

from __future__ import annotations

import json

import polars as pl
import pytest

from analyzer.__main__ import main
from analyzer.crossover import (
    Cell,
    Costs,
    Range,
    Setup,
    Ways,
    as_table,
    cheaper,
    curve,
    flips,
    lengths,
    needed_cached_frac,
    needed_link_bytes_per_s,
)
from analyzer.crossover_figure import Drawn, ModelRow, curves, intensity_rows, ratio_map
from analyzer.crossover_victims import dots, lengths_of, victims_of
from analyzer.crossover_words import (
    alt_curves,
    alt_map,
    say_condition,
    say_rule_misses,
    verdict,
    what_would_flip,
)
from analyzer.look import DARK, LIGHT
from tests.crossover_builders import STEPS, ranges_of, told, toy

# ---- where it flips --------------------------------------------------------------------------


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


def test_where_the_rule_of_thumb_fails_is_said_with_the_reason() -> None:
    rows = [("a", True, "recompute"), ("b", False, "swap"), ("c", True, "swap")]

    said = say_rule_misses(rows, "l4")

    assert (
        "Right of their tick, recompute cheaper on l4 all the same: a; the running batch"
        in said
    )
    assert "Left of their tick, swap cheaper on l4 all the same: b; weight reads" in said
    assert say_rule_misses(rows[2:], "l4") == ""


# ---- words -----------------------------------------------------------------------------------

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


# ---- pictures --------------------------------------------------------------------------------


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_the_curves_hold_both_ways_the_flip_and_the_victims(theme: object) -> None:
    one = toy(fixed_s=500, square_s=0.002)
    points, found = curve(one, 0.0), ranges_of(one)
    table = victims_of(told(), pl.DataFrame({"step": [3], "num_running": [5]}), True).table

    figure = curves(
        points, found, one.at(160), {"A": Drawn(dots(table), lengths_of(table))}, theme
    )  # type: ignore[arg-type]  # pytest gives a theme
    names = {t.name: t for t in figure.data}

    assert list(names["recompute"].x) == [p.tokens for p in points]
    assert names["swap, out and in"].line.dash == "dash"
    assert list(names["the order flips"].x) == [192, 1296]
    assert list(names["the order flips"].text) == ["192", "1,296"]
    assert list(names["A: recompute was cheaper"].x) == [100]
    assert list(names["A: swap was cheaper"].x) == [300]  # d's cost is not known
    assert list(names["A: swap was cheaper"].y) == [0.2]
    assert set(names["A: swap was cheaper"].marker.symbol.split()) == {"square"}
    rug = names["lengths of A's victims"]
    assert list(rug.x) == [100, 100, None, 300, 300, None, 500, 500, None]
    assert len(rug.customdata) == 9
    hover = names["A: recompute was cheaper"].customdata[0]
    assert "A: a at step 3" in hover
    assert "80 % still cached<br>of this victim: recompute 100 ms, swap 200 ms" in hover


def test_an_id_cannot_be_markup_in_a_hover() -> None:
    renamed = told().with_columns(request_id=pl.lit("<b>%{x}" + "y" * 90))
    table = victims_of(renamed, STEPS, False).table

    figure = curves([AT], [], AT, {"A": Drawn(None, lengths_of(table))}, LIGHT)
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


# ---- the command -----------------------------------------------------------------------------


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
