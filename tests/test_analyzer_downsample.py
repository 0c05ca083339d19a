"""Short series for drawing that hide nothing."""

from __future__ import annotations

import numpy as np
import polars as pl

from analyzer.downsample import bucket_sums, downsample, downsample_steps
from tests.builders import make_steps


def test_a_short_series_comes_back_as_it_is() -> None:
    x, y = downsample(np.array([0.0, 1.0, 2.0]), np.array([5, 6, 7]))

    assert (x.tolist(), y.tolist()) == ([0.0, 1.0, 2.0], [5, 6, 7])


def test_the_value_that_holds_at_the_windows_start_comes_first() -> None:
    x, y = downsample(np.array([0.0, 10.0, 20.0]), np.array([5, 6, 7]), start=4.0, end=15.0)

    assert (x.tolist(), y.tolist()) == ([4.0, 10.0, 15.0], [5, 6, 6])


def test_a_window_between_two_values_shows_the_one_that_holds() -> None:
    x, y = downsample(np.array([0.0, 10.0]), np.array([5, 6]), start=4.0, end=5.0)

    assert (x.tolist(), y.tolist()) == ([4.0, 5.0], [5, 5])


def test_a_window_behind_the_end_shows_the_last_value() -> None:
    x, y = downsample(np.array([0.0, 10.0]), np.array([5, 6]), start=20.0, end=30.0)

    assert (x.tolist(), y.tolist()) == ([20.0, 30.0], [6, 6])


def test_a_window_before_the_first_value_is_empty() -> None:
    x, y = downsample(np.array([10.0]), np.array([5]), start=0.0, end=5.0)

    assert (len(x), len(y)) == (0, 0)


def test_an_empty_series_stays_empty() -> None:
    x, _ = downsample(np.empty(0), np.empty(0))

    assert len(x) == 0


def test_a_single_spike_survives_and_the_size_does_not_grow() -> None:
    for n in (10_000, 1_000_000):
        values = np.zeros(n, np.int32)
        values[n // 3], values[n // 2] = 7, -3
        x, y = downsample(np.arange(n) * 0.5, values, points=200)

        assert (y.max(), y.min()) == (7, -3)
        assert len(x) <= 202
        assert (x[0], x[-1]) == (0.0, (n - 1) * 0.5)
        assert np.all(np.diff(x) > 0)


def test_each_column_of_steps_is_drawn_over_the_start_of_its_steps() -> None:
    steps = pl.DataFrame(pl.from_arrow(make_steps([1, 2, 3], num_running=[4, 5, 6])))

    drawn = downsample_steps(steps, ["used_blocks", "num_running"], start_s=0.5, end_s=2.5)

    assert drawn["used_blocks"][0].tolist() == [0.5, 1.0, 2.0, 2.5]
    assert drawn["used_blocks"][1].tolist() == [1, 2, 3, 3]
    assert drawn["num_running"][1].tolist() == [4, 5, 6, 6]


def test_counts_are_summed_per_bucket_and_none_is_lost() -> None:
    x = np.array([0.0, 1.0, 2.0, 3.0, 4.0])

    sums = bucket_sums(x, np.array([1, 0, 2, 4, 8]), start=0.0, end=4.0, buckets=2)

    assert sums.rows() == [(0.0, 2.0, 1), (2.0, 4.0, 14)]


def test_only_counts_in_the_window_are_summed() -> None:
    x = np.array([0.0, 1.0, 2.0, 3.0, 4.0])

    sums = bucket_sums(x, np.array([1, 2, 4, 8, 16]), start=1.0, end=3.0, buckets=1)

    assert sums["total"].to_list() == [14]
