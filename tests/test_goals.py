"""Goals: how they are written, when they are met, and what cannot be wanted."""

from __future__ import annotations

from typing import Any

import pytest

from analyzer.goals import Bound, Goal, meets, parse_goals, say_standing, shortfall
from analyzer.outcome import Outcome
from traces.errors import SettingsError


def outcome(**figures: Any) -> Outcome:
    usual = {"num_requests": 10, "num_finished": 10, "num_refused": 0, "num_unfinished": 0, "num_preemptions": 0}  # fmt: skip
    return Outcome({}, {**usual, **figures}, ())


def test_goals_are_read_with_their_units() -> None:
    goal = parse_goals(["no-preemption", "ttft-p99=2.0", "TPOT-p90 <= 80ms", "e2e-mean=30s"])

    assert goal == Goal(
        True,
        (
            Bound("ttft_s", "p99", 2.0),
            Bound("tpot_s", "p90", 0.08),
            Bound("e2e_s", "mean", 30.0),
        ),
    )
    assert goal.metrics == {"num_preemptions", "ttft_s", "tpot_s", "e2e_s"}
    assert str(parse_goals(["no-preemption", "ttft-p99=2"])) == (
        "no preemption and TTFT p99 at most 2.00 s"
    )


def test_goodput_counts_bounds_of_each_request() -> None:
    goal = parse_goals(["max-goodput", "ttft=2", "tpot-p99=0.1"])

    assert goal.request_bounds == {"ttft_s": 2.0, "tpot_s": 0.1}
    assert parse_goals(["ttft-p99=2"]).request_bounds is None


def test_least_memory_keeps_what_else_is_wanted_or_that_nobody_is_preempted() -> None:
    assert parse_goals(["least-memory"]) == Goal(True, (), "least-memory")
    assert parse_goals(["least-memory", "ttft-p99=2"]).no_preemption is False


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["fast"], "'fast' is not known"),
        (["ttft-p98=2"], "is not known"),
        (["ttft-p99=0"], "needs a number of seconds above 0"),
        (["ttft-p99=-1"], "needs a number of seconds above 0"),
        (["ttft-p99=nan"], "needs a number of seconds above 0"),
        (["ttft-p99=inf"], "needs a number of seconds above 0"),
        (["ttft-p99=soon"], "needs a number of seconds above 0"),
        (["ttft=2"], "names no percentile. Write ttft-p99=2"),
        (["ttft-p99=2", "ttft-p99=3"], "TTFT p99 has two bounds"),
        (["max-goodput"], "needs bounds"),
        (["max-goodput", "no-preemption", "ttft=2"], "Leave no-preemption away"),
        (["max-goodput", "least-memory", "ttft=2"], "cannot both be aimed at"),
        ([], "there is no goal"),
    ],
)
def test_what_cannot_be_wanted_is_refused_with_a_way_out(texts: list[str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        parse_goals(texts)


def test_a_goal_is_met_when_all_holds_and_all_are_served() -> None:
    goal = parse_goals(["no-preemption", "ttft-p99=2"])

    assert meets(goal, outcome(ttft_s={"p99": 2.0}))
    assert not meets(goal, outcome(ttft_s={"p99": 2.01}))
    assert not meets(goal, outcome(ttft_s={"p99": 1.0}, num_preemptions=1))
    assert not meets(goal, outcome(ttft_s={"p99": 1.0}, num_refused=1))
    assert not meets(goal, outcome(ttft_s={"p99": 1.0}, num_unfinished=1))


def test_the_tpot_of_single_tokens_meets_any_bound_and_that_of_nobody_none() -> None:
    goal = parse_goals(["tpot-p99=0.1"])

    assert meets(goal, outcome(tpot_s={"p99": None}))
    assert not meets(goal, outcome(tpot_s={"p99": None}, num_finished=0))


def test_how_far_a_run_is_counts_the_worst_of_what_is_missed() -> None:
    goal = parse_goals(["no-preemption", "ttft-p99=2"])
    base = outcome(num_preemptions=40, ttft_s={"p99": 3.0})

    assert shortfall(goal, base, base) == 1.0  # as many preemptions as the base
    assert shortfall(goal, outcome(num_preemptions=10, ttft_s={"p99": 3.0}), base) == 0.5
    assert shortfall(goal, outcome(num_refused=2, ttft_s={"p99": 1.0}), base) == 10.2
    assert shortfall(goal, Outcome({}, {}, (), "no room"), base) == float("inf")


def test_where_a_run_stands_is_said_in_the_goals_own_figures() -> None:
    goal = parse_goals(["no-preemption", "ttft-p99=2"])

    assert say_standing(goal, outcome(num_preemptions=1, ttft_s={"p99": 0.5})) == (
        "1 preemption, TTFT p99 500 ms"
    )
    assert say_standing(goal, outcome(num_refused=3, ttft_s={"p99": 1.5})) == (
        "3 requests not served, 0 preemptions, TTFT p99 1.50 s"
    )
