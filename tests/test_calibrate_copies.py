"""The fit of copies: link, time a copy, contention, and what the copies cannot tell."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from engine.calibrate_copies import fit_copies
from engine.calibrate_samples import copies_of
from tests.calibrate_builders import CPU, MACHINE, make_setup, time_copies


def test_one_copy_path_gives_bandwidths_and_the_fixed_part_of_a_transfer():
    setup = make_setup()

    fit = fit_copies([(setup, time_copies(setup, MACHINE))], CPU)

    assert fit.values["link_in_bytes_per_s"] == pytest.approx(4e9, rel=0.02)
    assert fit.values["link_out_bytes_per_s"] == pytest.approx(3e9, rel=0.02)
    assert fit.values["transfer_overhead_s"] == pytest.approx(1e-4, rel=0.1)
    assert fit.kept["coalesced_copy_s"] == "events do not tell how many runs a transfer had"
    assert np.abs(fit.errors).max() < 0.05


def test_two_copy_paths_tell_the_time_a_copy_from_the_bandwidth():
    loop, whole = make_setup(copy_path="loop"), make_setup()
    parts = [(s, time_copies(s, MACHINE, seed=i)) for i, s in enumerate((loop, whole))]

    fit = fit_copies(parts, CPU)

    assert fit.values["loop_copy_s"] == pytest.approx(2e-6, rel=0.05)
    assert fit.values["link_in_bytes_per_s"] == pytest.approx(4e9, rel=0.02)
    assert fit.notes == ()


def test_one_path_of_many_small_copies_shares_its_sum_as_the_base_would_and_says_so():
    setup = make_setup(copy_path="loop")
    copies = time_copies(setup, MACHINE)

    fit = fit_copies([(setup, copies)], CPU)

    assert "loop_copy_s and the bandwidths were not separable" in fit.notes[0]
    assert np.abs(fit.errors).max() < 0.05
    assert 0 < fit.values["loop_copy_s"] < CPU.loop_copy_s


def test_copies_beside_the_other_way_give_what_contention_leaves():
    setup = make_setup()
    parts = [
        (setup, time_copies(setup, MACHINE)),
        (setup, time_copies(setup, MACHINE, beside=True, seed=1)),
    ]

    fit = fit_copies(parts, CPU)

    assert fit.values["contention_in"] == pytest.approx(0.7, abs=0.03)
    assert fit.values["contention_out"] == pytest.approx(0.6, abs=0.03)
    assert fit.counts == {
        "in": 40, "out": 40, "in, other way busy": 40, "out, other way busy": 40,
    }  # fmt: skip


def test_a_direction_with_too_few_copies_keeps_its_link():
    setup = make_setup()
    copies = time_copies(setup, MACHINE, 60)
    copies = copies.take(~copies.inbound | (np.cumsum(copies.inbound) <= 5))

    fit = fit_copies([(setup, copies)], CPU)

    assert "link_in_bytes_per_s" not in fit.values
    assert fit.kept["link_in_bytes_per_s"].startswith("only 5 copies that ran alone")
    assert fit.values["link_out_bytes_per_s"] == pytest.approx(3e9, rel=0.02)


def test_copies_of_one_size_cannot_tell_the_fixed_part():
    setup = make_setup()
    copies = time_copies(setup, MACHINE)
    moved = np.full(len(copies), 5e6)
    seconds = 1e-4 + moved / np.where(copies.inbound, 4e9, 3e9)

    fit = fit_copies([(setup, replace(copies, num_bytes=moved, seconds=seconds))], CPU)

    assert fit.kept["transfer_overhead_s"] == "all transfers are of nearly the same size"
    assert np.abs(fit.errors).max() < 1e-6


def test_no_copies_leave_the_link_alone():
    setup = make_setup()

    fit = fit_copies([(setup, time_copies(setup, MACHINE, 0))], CPU)

    assert fit.values == {}
    assert fit.kept["contention_in"] == "too few copies"


def test_a_copy_that_took_ten_times_as_long_changes_nothing():
    setup = make_setup()
    copies = time_copies(setup, MACHINE)
    seconds = copies.seconds.copy()
    seconds[::20] *= 10

    fit = fit_copies([(setup, replace(copies, seconds=seconds))], CPU)

    assert fit.values["link_in_bytes_per_s"] == pytest.approx(4e9, rel=0.02)
    assert len(fit.errors) == 76


def test_events_become_copies_with_direction_count_and_overlap():
    events = pl.DataFrame(
        {
            "t_s": [0.0, 1.0, 1.5, 9.0, 9.0],
            "kind": ["swap_out", "swap_in", "load", "swap_out", "finish"],
            "blocks": [2, 3, 1, 4, 5],
            "bytes": [20, 30, 10, 40, 0],
            "cost_s": [2.0, 1.0, 1.0, None, None],
        }
    )

    loop = copies_of(events, make_setup(copy_path="loop"))[0]
    whole = copies_of(events, make_setup())[0]

    assert loop.inbound.tolist() == [False, True, True]
    assert loop.num_copies.tolist() == [120.0, 180.0, 60.0]  # 30 layers, key and value
    assert whole.num_copies.tolist() == [1.0, 1.0, 1.0]
    assert loop.overlap_s.tolist() == [1.0, 1.0, 0.5]
