"""Finding a rung: scripted ladders whose rungs are 1, 2, 3, ... and suffice where the test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from analyzer.outcome import Outcome
from analyzer.search import (
    Found,
    Runs,
    Stopped,
    best_of,
    largest_that,
    look_along,
    smallest_that,
)
from traces.errors import SettingsError

Law = Callable[[int], bool]


def rung(value: int) -> Outcome:
    return Outcome({"rung": value}, {"value": value}, ())


def searched(num: int, law: Law, far_first: bool = False) -> tuple[Found, list[int]]:
    """What was found on rungs 1 to num, and which were run, in order."""
    asked: list[int] = []

    def run(value: int) -> Outcome:
        asked.append(value)
        return rung(value)

    found = smallest_that(
        range(1, num + 1),
        run,
        lambda o: law(o.figures["value"]),
        distance=lambda o: abs(o.figures["value"] - 37),
        far_first=far_first,
    )
    return found, asked


def value(found: Found) -> Any:
    return None if found.outcome is None else found.outcome.figures["value"]


@pytest.mark.parametrize("need", [1, 2, 3, 4, 7, 8, 15, 16])
def test_the_first_rung_that_suffices_is_found_with_the_one_before(need: int) -> None:
    found, asked = searched(16, lambda v: v >= need)

    assert value(found) == need
    assert (found.below is None) == (need == 1)
    assert found.below is None or found.below.figures["value"] == need - 1
    assert found.is_monotone
    assert len(asked) == len(set(asked)) <= 9


def test_a_long_ladder_takes_few_runs() -> None:
    found, asked = searched(100_000, lambda v: v >= 43_210)

    assert (value(found), found.below.figures["value"]) == (43_210, 43_209)  # type: ignore[union-attr]
    assert len(asked) < 32


def test_where_the_last_is_known_to_be_the_best_and_fails_nothing_else_is_run() -> None:
    found, asked = searched(1_000, lambda v: False, far_first=True)

    assert (value(found), asked) == (None, [1_000])


def test_a_larger_rung_that_fails_again_is_told_and_where_it_settles_is_found() -> None:
    found, _ = searched(1_000, lambda v: v >= 600 and v != 630)

    assert value(found) == 600
    assert not found.is_monotone
    assert found.settled is not None
    assert found.tried[found.settled].figures["value"] == 631


def test_a_smaller_rung_beside_it_that_suffices_is_taken() -> None:
    # Halving from 511 and 1,000 meets 760 first; 38 rungs below it 722 suffices by an anomaly.
    found, _ = searched(1_000, lambda v: v >= 760 or v == 722)

    assert value(found) == 722
    assert found.below is not None
    assert found.below.figures["value"] == 721
    assert not found.is_monotone
    assert found.settled is not None
    assert found.tried[found.settled].figures["value"] == 760


def test_a_stretch_in_the_middle_is_found_around_the_nearest_miss() -> None:
    # A look runs 1, 2, 4, 8, 16, 32, 64: only 33 to 40 suffice, and 37 is nearest.
    found, asked = searched(64, lambda v: 33 <= v <= 50)

    assert value(found) == 33
    assert found.below is not None
    assert found.below.figures["value"] == 32
    assert 48 in asked


def test_nothing_on_an_empty_ladder() -> None:
    found, asked = searched(0, lambda v: True)

    assert (value(found), asked) == (None, [])
    assert look_along(0) == []


def test_the_last_rung_that_still_suffices_and_the_next_that_does_not() -> None:
    found = largest_that(range(1, 101), rung, lambda o: o.figures["value"] <= 70)
    all_do = largest_that(range(1, 11), rung, lambda o: True)
    none = largest_that(range(1, 11), rung, lambda o: False)

    assert (value(found), found.below.figures["value"]) == (70, 71)  # type: ignore[union-attr]
    assert (value(all_do), all_do.below) == (10, None)
    assert (value(none), none.below.figures["value"]) == (None, 1)  # type: ignore[union-attr]


def test_the_best_is_the_smallest_within_the_noise() -> None:
    def score(o: Outcome) -> float:
        return min(o.figures["value"], 30) + o.figures["value"] / 1_000

    found = best_of(range(1, 65), rung, score, noise_frac=0.01)

    assert 30 <= value(found) <= 32


def test_each_change_runs_once_and_what_cannot_run_is_an_outcome_that_says_why() -> None:
    asked = []

    def simulate(changes: Any) -> Outcome:
        asked.append(dict(changes))
        if changes.get("tp") == 3:
            raise SettingsError("3 does not divide the heads.")
        return Outcome(dict(changes), {}, ())

    runs = Runs(simulate, most=3)

    assert runs({"tp": 3}).refused == "3 does not divide the heads."
    runs({"a": 1, "b": 2})
    runs({"b": 2, "a": 1})
    assert asked == [{"tp": 3}, {"a": 1, "b": 2}]
    assert runs.num_run == 2


def test_a_run_too_many_and_a_cancelled_one_stop() -> None:
    runs = Runs(lambda c: Outcome(dict(c), {}, ()), most=1)
    runs({})
    with pytest.raises(Stopped):
        runs({"a": 1})
    with pytest.raises(Stopped):
        Runs(lambda c: Outcome(dict(c), {}, ()), most=9, cancelled=lambda: True)({})
