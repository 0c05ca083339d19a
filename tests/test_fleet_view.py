"""A fleet as lines on one axis: who is joined to whom, what is thinned, and how evenly ranks are loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from analyzer.fleet_balance import balance, say_balance
from analyzer.fleet_figure import Extra, alt_heat, alt_lines, heat_figure, lines_figure
from analyzer.fleet_figures import fleet_figures
from analyzer.fleet_ranks import fullest_first, rank_table
from analyzer.fleet_series import Cancelled, FleetSeries, read_fleet, read_part
from analyzer.look import LIGHT
from tests.builders import make_meta, make_requests, make_steps, write
from tests.fleet_builders import rank
from tests.test_telemetry_files import make_meta as telemetry_meta
from tests.test_telemetry_files import make_samples
from tests.test_telemetry_files import write as write_telemetry
from traces.errors import RecordingError, WorkloadError
from traces.fleet import open_fleet
from traces.fleet_requests import requests_of


def opened(root: Path) -> FleetSeries:
    return read_fleet(open_fleet(root))


def at(series: FleetSeries, measure: str, i: int, t_s: float) -> float:
    """The value of a rank at a time."""
    bucket = int((t_s - series.grid.start_s) / series.grid.width_s)
    return float(series.values[measure][i][bucket])


def dated(unix_s: float, **changes: Any) -> dict[str, Any]:
    return make_meta(start_unix_s=unix_s, **changes)


# ---- one axis ---------------------------------------------------------------------------------------


def test_each_rank_is_a_line_of_its_own(tmp_path: Path) -> None:
    rank(tmp_path / "rank-00", [10, 10, 5, 5], num_running=[3, 3, 2, 2])
    rank(tmp_path / "rank-01", [1, 2, 3, 4], num_running=[1, 1, 1, 1])

    series = opened(tmp_path)

    assert [r.name for r in series.ranks] == ["rank 0", "rank 1"]
    assert [at(series, "usage", 0, t) for t in (0.5, 2.5)] == [1.0, 0.5]
    assert [at(series, "usage", 1, t) for t in (0.5, 3.5)] == pytest.approx([0.1, 0.4])
    assert [at(series, "running", 0, t) for t in (1.5, 3.5)] == [3.0, 2.0]
    assert "drawn as if they began together" in series.notes[-1]


def test_hours_of_one_rank_are_joined_by_wall_clock(tmp_path: Path) -> None:
    rank(tmp_path / "a" / "rank-00", [1, 1], meta=dated(1_000.0))
    rank(tmp_path / "b" / "rank-00", [9, 9], meta=dated(1_010.0))
    rank(tmp_path / "a" / "rank-01", [4, 4], meta=dated(1_001.0))

    series = opened(tmp_path)

    assert series.clock.how == "wall clock"
    assert [(r.name, len(r.members)) for r in series.ranks] == [("rank 0", 2), ("rank 1", 1)]
    assert (series.grid.start_s, series.grid.end_s) == (0.0, 12.0)
    assert at(series, "usage", 0, 11.0) == pytest.approx(0.9)
    assert np.isnan(at(series, "usage", 0, 5.0)), "between them nothing was recorded"
    assert at(series, "usage", 1, 2.5) == pytest.approx(0.4)
    assert any("1 members follow another of their rank" in n for n in series.notes)


def test_without_dates_folders_follow_each_other_by_name(tmp_path: Path) -> None:
    for run, used in (("monday", 2), ("tuesday", 8)):
        for i in range(2):
            rank(tmp_path / run / f"rank-{i:02d}", [used] * (3 + i))

    series = opened(tmp_path)

    assert series.clock.how == "order"
    assert [len(r.members) for r in series.ranks] == [2, 2]
    # The second day begins when the longest of the first has ended, at 4 s.
    assert [at(series, "usage", i, 4.5) for i in (0, 1)] == pytest.approx([0.8, 0.8])
    assert np.isnan(at(series, "usage", 0, 3.5))
    assert any("joined in the order of their folders' names" in n for n in series.notes)


def test_two_members_of_one_rank_at_one_time_are_two_lines(tmp_path: Path) -> None:
    rank(tmp_path / "x" / "rank-00", [1] * 10, meta=dated(1_000.0))
    rank(tmp_path / "y" / "rank-00", [2] * 10, meta=dated(1_002.0))

    names = [r.name for r in opened(tmp_path).ranks]

    assert names == ["rank 0 (x/rank-00)", "rank 0 (y/rank-00)"]


def test_the_name_of_a_recorders_folder_is_a_date(tmp_path: Path) -> None:
    rank(tmp_path / "20261129T100000Z-aaaaa-rank-00", [1, 1])
    rank(tmp_path / "20261129T100100Z-bbbbb-rank-00", [2, 2])

    series = opened(tmp_path)

    assert series.clock.how == "wall clock"
    assert series.ranks[0].members[1].offset_s == 60.0
    assert len(series.ranks) == 1


def test_one_undated_member_makes_all_begin_together(tmp_path: Path) -> None:
    rank(tmp_path / "rank-00", [1, 1], meta=dated(1_000.0))
    rank(tmp_path / "rank-01", [1, 1])

    series = opened(tmp_path)

    assert series.clock.how == "together"
    assert any("rank-01 does not say when they began" in n for n in series.notes)


# ---- thinning ---------------------------------------------------------------------------------------


def test_the_area_under_a_thinned_line_is_that_of_the_steps(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    used, length = rng.integers(0, 11, 9_000), rng.exponential(0.02, 9_000)
    rank(tmp_path / "rank-00", used.tolist(), duration_s=length.tolist())

    series = opened(tmp_path)

    assert series.grid.num_buckets == 1_200
    area = float(np.nansum(series.values["usage"][0], dtype=np.float64)) * series.grid.width_s
    assert area == pytest.approx(float((used / 10 * length).sum()), rel=1e-4)
    assert series.values["usage_max"][0].max() == 1.0


def test_a_long_step_holds_and_an_idle_engine_holds_nothing(tmp_path: Path) -> None:
    rank(
        tmp_path / "rank-00",
        [6, 2],
        duration_s=[3.0, 1.0],
        t_start_s=[0.0, 9.0],
        num_running=[4, 1],
    )

    series = opened(tmp_path)

    assert [at(series, "usage", 0, t) for t in (1.0, 2.9)] == pytest.approx([0.6, 0.6])
    assert [at(series, "running", 0, t) for t in (4.0, 8.5)] == [0.0, 0.0]
    assert at(series, "running", 0, 9.5) == 1.0


def test_preemptions_are_counted_once_however_thin(tmp_path: Path) -> None:
    counts = [1 if i % 7 == 0 else 0 for i in range(5_000)]
    rank(tmp_path / "rank-00", [5] * 5_000, num_preempted=counts, duration_s=[0.01] * 5_000)

    assert float(np.nansum(opened(tmp_path).values["preemptions"])) == 715.0


def test_a_part_is_read_again_in_detail(tmp_path: Path) -> None:
    used = [(i // 10) % 10 for i in range(20_000)]
    rank(tmp_path / "rank-00", used, duration_s=[0.1] * 20_000)
    rank(tmp_path / "rank-01", [1] * 20_000, duration_s=[0.1] * 20_000)
    series = opened(tmp_path)

    part = read_part(series, 100.0, 110.0, [1, 0])

    assert [r.name for r in part.ranks] == ["rank 1", "rank 0"]
    # Ten steps of 0.1 s hold each level: at 104.5 s it is the 104th, so 4 of 10 blocks.
    assert at(part, "usage", 1, 104.5) == pytest.approx(0.4)
    assert at(part, "usage", 0, 104.5) == pytest.approx(0.1)


def test_many_ranks_have_fewer_buckets_each(tmp_path: Path) -> None:
    template = rank(tmp_path / "rank-000", [5] * 4)
    for i in range(1, 500):
        (tmp_path / f"rank-{i:03d}").symlink_to(template, target_is_directory=True)

    series = opened(tmp_path)

    assert len(series.ranks) == 500
    assert series.values["usage"].shape == (500, 800)


def test_reading_stops_when_it_is_told_to(tmp_path: Path) -> None:
    rank(tmp_path / "rank-00", [1])
    rank(tmp_path / "rank-01", [1])

    with pytest.raises(Cancelled):
        read_fleet(open_fleet(tmp_path), cancelled=lambda: True)


# ---- what cannot be drawn -----------------------------------------------------------------------------


def test_a_rank_that_breaks_the_contract_is_named_and_left_out(tmp_path: Path) -> None:
    rank(tmp_path / "rank-00", [1, 2])
    write(tmp_path / "rank-01", make_steps([1, 99]))

    series = opened(tmp_path)

    assert [r.name for r in series.ranks] == ["rank 0"]
    assert len(series.left_out) == 1
    assert "rank-01 was left out" in series.left_out[0]
    assert "1 rows break the contract" in series.left_out[0]


def test_a_rank_whose_files_are_broken_is_named_among_those_left_out(tmp_path: Path) -> None:
    rank(tmp_path / "rank-00", [1, 2])
    rank(tmp_path / "rank-01", [1, 2])
    (tmp_path / "rank-02").mkdir()

    series = opened(tmp_path)

    assert len(series.ranks) == 2
    assert [s.partition(":")[0] for s in series.left_out] == ["rank-02 was left out"]
    assert not any("rank-02" in note for note in series.notes)


def test_a_rank_without_rows_is_named(tmp_path: Path) -> None:
    rank(tmp_path / "rank-00", [1, 2])
    rank(tmp_path / "rank-01", [])

    assert "rank-01 was left out: it has no rows with a time." in opened(tmp_path).left_out


def test_ranks_of_which_none_can_be_drawn_give_the_first_reason(tmp_path: Path) -> None:
    for i in range(2):
        rank(tmp_path / f"rank-{i:02d}", [])

    with pytest.raises(RecordingError, match="rank-00 was left out: it has no rows"):
        opened(tmp_path)


def test_different_pools_and_clocks_are_said(tmp_path: Path) -> None:
    rank(tmp_path / "rank-00", [1, 2])
    measured = make_meta(pool=20, executor="vllm", clock="measured")
    write(tmp_path / "rank-01", make_steps([1, 2], pool=20), meta=measured)

    said = " ".join(opened(tmp_path).notes)

    assert "differ in pool (10: rank-00; 20: rank-01)" in said
    assert "measured: rank 1; modelled: rank 0" in said


# ---- telemetry ----------------------------------------------------------------------------------------


def test_telemetry_is_drawn_where_there_is_no_recording(tmp_path: Path) -> None:
    write_telemetry(tmp_path / "stats-00")
    write_telemetry(tmp_path / "stats-01", make_samples(engine_rank=[1, 1, 1]))

    series = opened(tmp_path)

    assert [(r.name, r.kind, r.facts.usage_is) for r in series.ranks] == [
        ("rank 0", "telemetry", "known"),
        ("rank 1", "telemetry", "known"),
    ]
    assert at(series, "usage", 0, 5.0) == pytest.approx(0.5), "a sample holds until the next"
    assert at(series, "usage", 0, 15.0) == pytest.approx(0.992)
    assert np.isnan(series.values["preemptions"]).all()
    assert series.used_tokens() is None


def test_derived_usage_is_called_inferred(tmp_path: Path) -> None:
    meta = telemetry_meta(inferred={"kv_usage_frac": "from used blocks"})
    write_telemetry(tmp_path / "stats-00", meta=meta)
    write_telemetry(tmp_path / "stats-01", make_samples(engine_rank=[1, 1, 1]))

    series = opened(tmp_path)

    assert [r.facts.usage_is for r in series.ranks] == ["inferred", "known"]


def test_a_silence_of_telemetry_is_not_bridged(tmp_path: Path) -> None:
    samples = pl.DataFrame(
        {
            "t_s": [0.0, 1.0, 2.0, 3.0, 50.0, 51.0],
            "engine_rank": [0] * 6,
            "kv_usage_frac": [0.5] * 6,
            "num_running": [1] * 6,
        }
    )
    write_telemetry(tmp_path / "stats-00", samples)
    write_telemetry(tmp_path / "stats-01", make_samples(engine_rank=[1, 1, 1]))

    series = opened(tmp_path)

    assert at(series, "usage", 0, 2.5) == 0.5
    assert np.isnan(at(series, "usage", 0, 45.0))


def test_ranks_of_one_telemetry_are_lines_of_their_own(tmp_path: Path) -> None:
    samples = pl.DataFrame(
        {
            "t_s": [0.0, 0.0, 10.0, 10.0],
            "engine_rank": [0, 1, 0, 1],
            "kv_usage_frac": [0.9, 0.1, 0.9, 0.1],
            "preemptions_total": [5, 0, 9, 0],
        }
    )
    write_telemetry(tmp_path / "all", samples)
    write_telemetry(tmp_path / "stats-07", make_samples(engine_rank=[7, 7, 7]))

    series = opened(tmp_path)

    assert [r.name for r in series.ranks] == ["rank 7", "all, rank 0", "all, rank 1"]
    assert at(series, "usage", 1, 5.0) == pytest.approx(0.9)
    assert float(np.nansum(series.values["preemptions"][1])) == 4.0


def test_telemetry_beside_the_recording_of_its_rank_is_left_aside(tmp_path: Path) -> None:
    rank(tmp_path / "rank-00", [1, 1])
    write_telemetry(tmp_path / "stats-00")

    series = opened(tmp_path)

    assert [r.kind for r in series.ranks] == ["recording"]
    assert series.left_out == (
        "stats-00: telemetry of ranks that have a recording, which is drawn instead.",
    )


def test_a_part_of_telemetry_begins_with_what_held_before(tmp_path: Path) -> None:
    write_telemetry(tmp_path / "stats-00")
    write_telemetry(tmp_path / "stats-01", make_samples(engine_rank=[1, 1, 1]))

    part = read_part(opened(tmp_path), 14.0, 19.0, [0])

    assert at(part, "usage", 0, 14.5) == pytest.approx(0.992)


# ---- balance ------------------------------------------------------------------------------------------


def one_full_one_idle(root: Path) -> FleetSeries:
    """Rank 0 holds all 10 blocks and two requests of 8 tokens wait; rank 1 holds 2 of 10 blocks."""
    rank(
        root / "rank-00",
        [10] * 4,
        prompts=[8, 8, 8],
        num_waiting=[2] * 4,
        num_preempted=[0, 1, 1, 0],
    )
    rank(root / "rank-01", [2] * 4, prompts=[8])
    return opened(root)


def test_one_rank_full_while_the_other_has_room(tmp_path: Path) -> None:
    found = balance(one_full_one_idle(tmp_path))

    assert found.imbalance == pytest.approx(40 / 24)  # of 40 and 8 tokens
    assert found.full_while_room_frac == 1.0
    assert (found.busiest, found.busiest_ratio) == (0, pytest.approx(40 / 24))
    # Rank 1 has 32 tokens free, room for 4 prompts: both that wait would fit.
    assert found.fits_mean == pytest.approx(2.0)
    assert found.waiting_fits_frac == pytest.approx(1.0)


def test_the_balance_in_words(tmp_path: Path) -> None:
    series = one_full_one_idle(tmp_path)

    assert say_balance(series, balance(series)) == (
        "Busiest is rank 0: it holds 1.7 times the mean of KV tokens in use; summed over time, whichever rank is fullest holds 1.7 times "
        "the mean of all. For 100 % of the time a rank is full or preempts while another has room. 100 % of the waiting would have "
        "fitted elsewhere at that time (2.00 requests on average)."
    )


def test_what_does_not_fit_elsewhere_is_not_counted(tmp_path: Path) -> None:
    rank(tmp_path / "rank-00", [10] * 4, prompts=[20, 20], num_waiting=[3] * 4)
    rank(tmp_path / "rank-01", [2] * 4, prompts=[4])

    # 32 tokens are free on rank 1, and prompts have 20: one fits.
    assert balance(opened(tmp_path)).fits_mean == pytest.approx(1.0)


def test_seats_bound_what_fits(tmp_path: Path) -> None:
    settings = {"num_gpu_blocks": 11, "block_size": 4, "max_num_seqs": 5}
    meta = make_meta(settings=settings)
    rank(tmp_path / "rank-00", [10] * 4, prompts=[4], num_waiting=[9] * 4, meta=meta)
    rank(tmp_path / "rank-01", [2] * 4, prompts=[4], num_running=[3] * 4, meta=meta)

    assert balance(opened(tmp_path)).fits_mean == pytest.approx(2.0)


def test_ranks_equally_full_are_even(tmp_path: Path) -> None:
    for i in range(3):
        rank(tmp_path / f"rank-{i:02d}", [10] * 4, num_waiting=[5] * 4, prompts=[4])

    found = balance(opened(tmp_path))

    assert found.imbalance == pytest.approx(1.0)
    assert found.full_while_room_frac == 0.0
    assert found.waiting_fits_frac == 0.0


def test_one_rank_has_nobody_to_compare_with(tmp_path: Path) -> None:
    rank(tmp_path / "run" / "rank-00", [10] * 4)

    series = opened(tmp_path)

    assert say_balance(series, balance(series)).startswith("One rank only")
    assert balance(series).imbalance is None


def test_larger_pools_hold_more_tokens_at_the_same_share(tmp_path: Path) -> None:
    rank(tmp_path / "rank-00", [5] * 4)
    write(tmp_path / "rank-01", make_steps([15] * 4, pool=30), meta=make_meta(pool=30))

    found = balance(opened(tmp_path))

    assert found.imbalance == pytest.approx(1.5)  # 60 tokens over the mean of 20 and 60
    assert found.busiest == 1


# ---- tables and pictures --------------------------------------------------------------------------------


def test_ranks_side_by_side(tmp_path: Path) -> None:
    table = rank_table(one_full_one_idle(tmp_path))

    row = table.row(0, named=True)
    assert row["name"] == "rank 0"
    assert row["mean_used_frac"] == pytest.approx(1.0)
    assert (row["max_waiting"], row["num_preemptions"], row["pool_tokens"]) == (2.0, 2.0, 40)
    assert row["used_tokens"] == pytest.approx(40.0)
    assert fullest_first(table) == [0, 1]


def test_lines_are_one_a_rank_and_never_their_mean(tmp_path: Path) -> None:
    series = one_full_one_idle(tmp_path)
    extras = [Extra("Imbalance", "over the mean", balance(series).ratio)]

    drawn = lines_figure(series, [0, 1], ["usage", "waiting"], extras, (0.0, 4.0), LIGHT)

    names = [(t.name, t.yaxis) for t in drawn.data]
    assert names == [("rank 0", "y"), ("rank 1", "y"), ("rank 0", "y2"), ("rank 1", "y2"), ("all ranks", "y3")]  # fmt: skip
    assert len({(t.line.color, t.line.dash) for t in drawn.data[:2]}) == 2
    assert np.nanmax(drawn.data[0].y) == 100.0
    said = alt_lines(series, [0, 1], ["usage", "preemptions"], extras, (0.0, 4.0))
    assert "KV usage (% of the rank's pool): rank 0 100 to 100; rank 1 20.0 to 20.0." in said
    assert "Preemptions (times): rank 0 2 in all; rank 1 0 in all." in said


def test_the_heat_map_keeps_a_spike_and_names_the_fullest(tmp_path: Path) -> None:
    spike = [1] * 5_000
    spike[2_345] = 10
    rank(tmp_path / "rank-00", spike, duration_s=[0.01] * 5_000)
    rank(tmp_path / "rank-01", [5] * 5_000, duration_s=[0.01] * 5_000)
    series = opened(tmp_path)
    order = fullest_first(rank_table(series))

    drawn = heat_figure(series, order, "usage", (0.0, 50.0), LIGHT).data[0]

    assert list(drawn.y) == ["rank 1", "rank 0"]
    assert np.shape(drawn.z) == (2, 600)
    assert np.nanmax(drawn.z[1]) == 100.0
    assert "Highest on average: rank 1 with 50.0" in alt_heat(series, order, "usage")


# ---- requests and figures -------------------------------------------------------------------------------


def test_requests_of_all_ranks_meet_on_one_clock(tmp_path: Path) -> None:
    rank(tmp_path / "rank-00", [1] * 4, prompts=[8, 9], meta=dated(1_000.0))
    rank(tmp_path / "rank-01", [1] * 4, prompts=[7], meta=dated(1_002.5))

    found = requests_of(opened(tmp_path).clock, "fleet")

    table = found.workload.table
    assert table["request_id"].to_list() == ["rank-00/r0", "rank-00/r1", "rank-01/r0"]
    assert table["arrival_s"].to_list() == [0.0, 0.0, 2.5]
    assert found.track_of.tolist() == [0, 0, 1]
    assert found.tracks == ("rank 0", "rank 1")


def test_a_member_that_breaks_a_law_gives_no_requests_and_is_named(tmp_path: Path) -> None:
    rank(tmp_path / "rank-00", [1] * 4, prompts=[8])
    wrong = make_steps([1, 1], step=[5, 5])
    write(tmp_path / "rank-01", wrong)
    write_telemetry(tmp_path / "stats-05", make_samples(engine_rank=[5, 5, 5]))

    found = requests_of(opened(tmp_path).clock, "fleet")

    said = " ".join(found.left_out)
    assert found.tracks == ("rank 0",)
    assert "rank-01 was left out" in said
    assert "stats-05 is telemetry, which names no requests" in said


def test_a_fleet_without_requests_says_so(tmp_path: Path) -> None:
    write_telemetry(tmp_path / "stats-00")
    write_telemetry(tmp_path / "stats-01", make_samples(engine_rank=[1, 1, 1]))

    with pytest.raises(WorkloadError, match="no member has requests that can be run again"):
        requests_of(opened(tmp_path).clock, "fleet")


def test_figures_of_a_fleet_are_those_of_all_its_requests(tmp_path: Path) -> None:
    done = {"output_tokens": 3, "prompt_tokens": 8, "first_scheduled_s": 0.5}
    for i, ttft_s in enumerate((1.0, 3.0)):
        requests = make_requests(
            [
                {
                    "request_id": "r",
                    "arrival_s": 0.0,
                    "first_token_s": ttft_s,
                    "finish_s": 4.0,
                    **done,
                }
            ]
        )
        steps = make_steps([10 - 8 * i] * 4, num_preempted=[1, 0, 0, i], decode_tokens=[1] * 4)
        write(tmp_path / f"rank-{i:02d}", steps, requests=requests)

    found = fleet_figures(opened(tmp_path))

    assert (found["num_replicas"], found["num_requests"], found["num_finished"]) == (2, 2, 2)
    assert found["num_unserved"] == 0
    assert found["num_preemptions"] == 3
    assert found["ttft_s"]["p50"] == pytest.approx(2.0)
    assert found["output_tokens_per_s"] == pytest.approx(1.5)  # 6 tokens in 4 s
    assert found["mean_used_frac"] == pytest.approx(0.6)
    assert found["max_rank_used_frac"] == pytest.approx(1.0)


def test_a_simulated_rank_that_is_through_idles_and_a_measured_one_is_unknown(
    tmp_path: Path,
) -> None:
    for name, meta in (("s", make_meta()), ("m", make_meta(executor="vllm", clock="measured"))):
        rank(tmp_path / name / "rank-00", [10] * 4, meta=meta)
        rank(tmp_path / name / "rank-01", [5, 5], meta=meta)

    simulated, measured = opened(tmp_path / "s"), opened(tmp_path / "m")

    assert at(simulated, "usage", 1, 3.0) == 0.0
    assert at(read_part(simulated, 2.5, 3.5, [1]), "usage", 0, 3.0) == 0.0
    assert (
        "rank 1 is simulated and through before the last: idle from then on." in simulated.notes
    )
    assert balance(simulated).full_while_room_frac == 1.0
    assert np.isnan(at(measured, "usage", 1, 3.0))
