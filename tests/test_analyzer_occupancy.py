"""Shares of the block pool, on pools small enough to draw."""

from __future__ import annotations

import polars as pl
import pytest

from analyzer.occupancy import Occupancy, occupancy_series, occupancy_summary
from tests.builders import make_steps


def steps_frame(*args: object, **columns: object) -> pl.DataFrame:
    return pl.DataFrame(pl.from_arrow(make_steps(*args, **columns)))  # type: ignore[arg-type]


def test_the_pool_divides_into_used_cached_and_empty() -> None:
    steps = steps_frame([2, 7], cached_free_blocks=[0, 2], fenced_blocks=[0, 1])

    series = occupancy_series(steps)

    assert series.rows(named=True) == [
        {
            "step": 0,
            "t_start_s": 0.0,
            "duration_s": 1.0,
            "used_blocks": 2,
            "fenced_blocks": 0,
            "cached_blocks": 0,
            "empty_blocks": 8,
            "used_frac": 0.2,
        },
        {
            "step": 1,
            "t_start_s": 1.0,
            "duration_s": 1.0,
            "used_blocks": 7,
            "fenced_blocks": 1,
            "cached_blocks": 2,
            "empty_blocks": 1,
            "used_frac": 0.7,
        },
    ]


def test_shares_over_time_weigh_long_steps_more_than_shares_over_steps() -> None:
    steps = steps_frame(
        [0, 10, 5, 5], duration_s=[1.0, 6.0, 2.0, 1.0], cached_free_blocks=[5, 0, 0, 0]
    )

    found = occupancy_summary(steps)

    assert found == Occupancy(
        peak_used_frac=1.0,
        peak_step=1,
        full_steps_frac=0.25,
        full_time_frac=0.6,
        mean_used_steps_frac=0.5,
        mean_used_time_frac=pytest.approx(0.75),
        mean_cached_time_frac=pytest.approx(0.05),
    )


def test_a_step_is_full_from_98_per_cent_on() -> None:
    steps = steps_frame([97, 98, 99, 100], pool=100)

    assert occupancy_summary(steps).full_steps_frac == 0.75


def test_a_run_without_steps_has_no_shares() -> None:
    assert occupancy_summary(steps_frame([])) == Occupancy(*[None] * 7)


def test_a_lazy_frame_gives_the_same_shares() -> None:
    steps = steps_frame([1, 10, 3], duration_s=[1.0, 2.0, 3.0])

    assert occupancy_summary(steps.lazy()) == occupancy_summary(steps)


def test_a_full_pool_is_a_share_of_exactly_one() -> None:
    assert occupancy_summary(steps_frame([49], pool=49)).peak_used_frac == 1.0
