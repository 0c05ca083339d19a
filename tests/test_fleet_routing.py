"""Routing on what simulated replicas hold, fleets simulated again, and the replicas that a goal needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import engine.fleet_trials
from analyzer.__main__ import main
from analyzer.fleet_figures import figures_of_folder, fleet_figures
from analyzer.fleet_routing import (
    AS_RECORDED,
    NO_PREEMPTION,
    RECORDED,
    TTFT_P99,
    Goal,
    Variant,
    how_known,
    replicas_needed,
    routing_table,
    say_fit,
    say_needed,
    say_routing,
)
from analyzer.fleet_series import read_fleet
from engine.config import EngineSettings, resolve
from engine.core.state import make_state
from engine.fleet import _Replica, route, simulate_fleet
from engine.fleet_trials import FleetTrials, settings_of_ranks
from engine.simulator import core_columns
from tests.fleet_builders import rank, skewed_fleet
from tests.test_routing import asked
from traces import samples
from traces.errors import SettingsError
from traces.fleet import open_fleet
from traces.fleet_requests import FleetRequests, requests_of
from traces.recording import open_recording
from traces.routing import assign, pieces
from traces.workload import Workload

# A step takes a second, whatever is in it.
SECONDS = EngineSettings(num_gpu_blocks=65, block_size=4, clock="latency", latency_ms=(1000.0, 0.0, 0.0))  # fmt: skip


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return skewed_fleet(tmp_path_factory.mktemp("fleet") / "skewed")


@pytest.fixture(scope="module")
def requests(fleet: Path) -> FleetRequests:
    return requests_of(read_fleet(open_fleet(fleet)).clock, "skewed")


# ---- routing on live state ----------------------------------------------------------------------------


def test_the_router_sees_who_still_runs() -> None:
    # Ten output tokens take ten seconds here; the estimate takes them for a fifth of one.
    work = asked([0, 0, 5], output_tokens=[10, 1, 1])

    live = route(work, SECONDS, 2, "least-requests")

    assert live is not None
    assert live.tolist() == [0, 1, 1]
    assert assign(work, 2, "least-requests").tolist() == [0, 1, 0]


def test_the_router_counts_tokens_that_came_so_far() -> None:
    # At 5.5 s replica 0 holds 10 prompt and some output tokens, replica 1 has 12 of a prompt that came at 5.
    work = asked([0, 5, 5.5], prompt_tokens=[10, 12, 4], output_tokens=[20, 20, 4])

    live = route(work, SECONDS, 2, "least-tokens")

    assert live is not None
    assert live.tolist() == [0, 1, 1]


def test_requests_that_arrive_together_are_told_apart() -> None:
    live = route(asked([3, 3, 3, 3, 3, 3]), SECONDS, 3, "least-requests")

    assert live is not None
    assert live.tolist() == [0, 1, 2, 0, 1, 2]


def test_an_aborted_request_is_gone_for_the_router() -> None:
    work = asked([0, 0, 6], output_tokens=[50, 50, 4], abort_s=[None, 3.0, None])

    live = route(work, SECONDS, 2, "least-requests")

    assert live is not None
    assert live.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    "changes",
    [
        {"preemption_mode": "recompute"},
        {"preemption_mode": "swap"},
        {"preemption_mode": "offload"},
        {"preemption_mode": "cheapest"},
        {"async_scheduling": True},
        {"policy": "priority"},
    ],
    ids=str,
)
def test_a_replica_that_is_fed_decides_as_a_simulation_of_its_requests(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    work = samples.load("chat").head(300)
    settings = EngineSettings(
        kv_tokens=12_000, model="llama-3.1-8b", device="rtx-4090", **changes
    )
    columns, resolved = core_columns(work, settings), resolve(settings)
    whole = make_state(columns, resolved.rules)
    fed = _Replica(whole, columns, resolved)
    for row in range(len(work)):
        fed.advance(float(whole.requests["arrival_s"][row]))
        fed.add(row)
    fed.advance(1e9)

    simulate_fleet(work, settings, 1, "round-robin", tmp_path / "out")

    with open_recording(tmp_path / "out" / "rank-00") as recording:
        table = recording.requests.sort("arrival_s", maintain_order=True)
        assert recording.steps["num_preempted"].sum() > 10, "the pool is small enough"
    assert fed.num_requests() == 0
    np.testing.assert_array_equal(
        fed._requests["num_preemptions"][:300], table["num_preemptions"].to_numpy()
    )
    np.testing.assert_array_equal(fed._requests["finish_s"][:300], table["finish_s"].to_numpy())


def test_a_closed_loop_is_routed_by_the_estimate() -> None:
    work = asked([0] * 8, concurrency=4)

    live = route(work, SECONDS, 2, "least-requests")

    assert live is not None
    assert live.tolist() == assign(work, 2, "least-requests").tolist()


def test_the_measured_clock_has_no_times_for_another_split() -> None:
    with pytest.raises(SettingsError, match="has the times of one recording"):
        route(asked([0.0]), SECONDS.with_(clock="measured"), 2, "least-tokens")


def test_routing_can_be_stopped(tmp_path: Path) -> None:
    work = asked([0, 1, 2, 3])

    done = simulate_fleet(
        work, SECONDS, 2, "least-tokens", tmp_path / "out", cancelled=lambda: True
    )

    assert done.status == "cancelled"


def test_replicas_without_a_request_are_not_recorded(tmp_path: Path) -> None:
    done = simulate_fleet(asked([0.0, 1.0]), SECONDS, 3, "round-robin", tmp_path / "out")

    assert [r is None for r in done.results] == [False, False, True]
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["rank-00", "rank-01"]


# ---- a recorded fleet, routed again -------------------------------------------------------------------


def trials(requests: FleetRequests, root: Path) -> FleetTrials:
    return FleetTrials(requests, settings_of_ranks(requests), lambda id_: root / id_)


def test_the_recorded_split_simulated_again_is_what_was_recorded(
    fleet: Path, requests: FleetRequests, tmp_path: Path
) -> None:
    path = trials(requests, tmp_path).run(4, AS_RECORDED)

    assert path is not None
    recorded = fleet_figures(read_fleet(open_fleet(fleet)))
    again = figures_of_folder(path)
    assert recorded["num_requests"] == again["num_requests"] == 400
    assert recorded["num_preemptions"] == again["num_preemptions"] > 20
    assert again["ttft_s"]["p99"] == pytest.approx(recorded["ttft_s"]["p99"])
    assert again["duration_s"] == pytest.approx(recorded["duration_s"])


def test_a_router_that_sees_tokens_relieves_the_full_rank(
    requests: FleetRequests, tmp_path: Path
) -> None:
    made = trials(requests, tmp_path)

    paths = {rule: made.run(4, rule) for rule in (AS_RECORDED, "least-tokens")}

    found = {rule: figures_of_folder(path) for rule, path in paths.items()}
    before, after = found[AS_RECORDED], found["least-tokens"]
    assert after["num_requests"] == before["num_requests"]
    assert after["num_preemptions"] < before["num_preemptions"]
    assert after["imbalance"] < before["imbalance"]
    assert after["ttft_s"]["p99"] < before["ttft_s"]["p99"]


def test_the_same_question_is_answered_from_disk(
    requests: FleetRequests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = trials(requests, tmp_path).run(3, "round-robin")

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("simulated again")

    monkeypatch.setattr(engine.fleet_trials, "simulate_fleet", never)
    again = trials(requests, tmp_path).run(3, "round-robin")

    assert first == again
    with pytest.raises(AssertionError, match="simulated again"):
        trials(requests, tmp_path).run(2, "round-robin")


def test_a_stopped_run_leaves_nothing_behind(requests: FleetRequests, tmp_path: Path) -> None:
    path = trials(requests, tmp_path).run(3, "least-requests", cancelled=lambda: True)

    assert path is None
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_count_in_steps_cannot_be_routed(tmp_path: Path) -> None:
    from tests.builders import make_meta

    settings = {"num_gpu_blocks": 11, "block_size": 4, "clock": "step"}
    for i in range(2):
        rank(tmp_path / f"rank-{i:02d}", [1, 1], prompts=[4], meta=make_meta(settings=settings))

    with pytest.raises(SettingsError, match="rank 0 counts time in steps"):
        settings_of_ranks(requests_of(read_fleet(open_fleet(tmp_path)).clock, "f"))


# ---- words and goals ----------------------------------------------------------------------------------


def variant(key: str, how: str = "modelled", **figures: Any) -> Variant:
    base = {"num_requests": 10, "num_finished": 10, "num_preemptions": 8, "ttft_s": {"p50": 1.0, "p99": 9.0}, "output_tokens_per_s": 100.0, "imbalance": 2.0}  # fmt: skip
    return Variant(key, how, base | figures)


def test_the_table_says_what_is_measured_and_what_is_modelled() -> None:
    table = routing_table(
        [variant(RECORDED, "measured"), variant(AS_RECORDED), variant("least-tokens")]
    )

    assert table.columns == ["Figure", "Recorded", "Simulated as recorded", "Least KV tokens"]
    assert table.row(0) == ("Times are", "measured", "modelled", "modelled")
    assert ("TTFT p99", "9.00 s", "9.00 s", "9.00 s") in table.rows()


def test_what_the_rule_changes_in_a_sentence() -> None:
    routed = variant("least-tokens", num_preemptions=0, ttft_s={"p99": 0.5}, imbalance=1.1)

    assert say_routing(variant(AS_RECORDED), routed) == (
        "Least outstanding KV tokens against the recorded split: preemptions 8 -> 0, TTFT p99 9.00 s -> 500 ms, "
        "output tokens per second 100 -> 100, imbalance 2 -> 1.10."
    )


def test_fleets_of_both_kinds_say_both() -> None:
    assert how_known(["modelled", "measured", None]) == "measured and modelled"
    assert how_known(["latency"]) == "modelled"


def test_how_far_the_simulator_is_from_the_recording() -> None:
    said = say_fit(variant(RECORDED, "measured"), variant(AS_RECORDED, num_preemptions=10))

    assert "Preemptions 8 recorded, 10 simulated (+25.0 %)" in said


def needs(least: int, tried: list[int]) -> Any:
    """Figures of so many replicas: from `least` on nobody is preempted."""

    def run(number: int) -> dict[str, Any]:
        tried.append(number)
        found = variant("least-tokens").figures | {
            "num_preemptions": max(0, least - number) * 10,
            "ttft_s": {"p99": 8.0 / number},
            "max_rank_used_frac": min(1.0, 2.0 / number),
            "peak_used_frac": min(1.0, 3.0 / number),
        }
        return dict(found)

    return run


@pytest.mark.parametrize("start", [1, 4, 5, 9, 40])
def test_the_fewest_replicas_are_found_from_above_and_below(start: int) -> None:
    tried: list[int] = []

    found = replicas_needed(needs(5, tried), Goal(NO_PREEMPTION), start)

    assert found.num == 5
    assert 4 in found.tried
    assert len(tried) == len(set(tried)) <= 16
    assert found.is_monotone


def test_a_bound_on_ttft_is_a_goal() -> None:
    assert replicas_needed(needs(1, []), Goal(TTFT_P99, 2.0), 1).num == 4


def test_a_refused_request_misses_the_goal_and_an_aborted_one_does_not() -> None:
    served = variant("least-tokens", num_preemptions=0, num_requests=10, num_finished=8)
    refused = variant("least-tokens", num_preemptions=0, num_unserved=2)

    assert Goal(NO_PREEMPTION).away(served.figures) == 0
    assert Goal(NO_PREEMPTION).away(refused.figures) == 2


def test_usage_before_and_after_is_said() -> None:
    found = replicas_needed(needs(4, []), Goal(NO_PREEMPTION), 2)
    before = {"max_rank_used_frac": 0.92, "peak_used_frac": 1.0}

    assert say_needed(found, "least-tokens", before) == (
        "4 replicas are the fewest that meet the goal (no preemption) with least outstanding KV tokens: mean use of the "
        "fullest rank 92.0 % -> 50.0 %, its peak 100 % -> 75.0 %."
    )


def test_a_goal_that_nothing_reaches_says_so() -> None:
    found = replicas_needed(needs(1_000, []), Goal(NO_PREEMPTION), 4, most=16)

    assert found.num is None
    said = say_needed(found, "round-robin", {})
    assert said.startswith("No number of replicas up to 16 meets the goal (no preemption)")


def test_a_goal_without_a_bound_is_refused() -> None:
    with pytest.raises(SettingsError, match="a positive number of seconds"):
        Goal(TTFT_P99, 0.0)


# ---- the command line ---------------------------------------------------------------------------------


def test_summary_says_how_evenly_ranks_are_loaded(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["summary", str(fleet), "--json"]) == 0
    out = capsys.readouterr()
    totals = json.loads(out.out)["totals"]

    assert totals["imbalance"] > 1.3
    assert 0 < totals["full_while_room_frac"] < 1
    assert totals["waiting_fits_mean"] > 0
    assert "Busiest is rank 0" in out.err


def test_route_prints_figures_as_json(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["route", str(fleet), "--replicas", "4", "--rule", "least-requests", "--goal", "ttft-p99=100", "--json"]  # fmt: skip

    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)

    assert [v["key"] for v in found["variants"]] == ["recorded", "as-recorded", "round-robin", "least-requests"]  # fmt: skip
    assert found["variants"][0]["figures"]["num_requests"] == 400
    assert found["needed"]["goal"] == "TTFT p99 of at most 100 s"
    assert found["needed"]["replicas"] >= 1


def test_one_recording_can_be_spread_over_replicas(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["route", str(fleet / "rank-00"), "--replicas", "3", "--json"]

    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)

    recorded, again, _, routed = (v["figures"] for v in found["variants"])
    assert recorded["imbalance"] is None
    assert recorded["num_preemptions"] == again["num_preemptions"] > routed["num_preemptions"]
    assert routed["num_replicas"] == 3


def test_route_keeps_what_it_simulated_where_it_is_told_to(
    fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "kept"

    assert main(["route", str(fleet), "--rule", "round-robin", "--out", str(out)]) == 0

    text = capsys.readouterr().out
    assert "Round-robin against the recorded split: preemptions" in text
    assert len(list(out.glob("*/fleet.json"))) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--goal", "fast"], "the goal 'fast' is not known"),
        (["--goal", "ttft-p99=0"], "must be a positive number of seconds"),
        (["--replicas", "0"], "replicas must be a whole number from 1 to 1,024"),
    ],
)
def test_route_says_what_cannot_be(
    fleet: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["route", str(fleet), *arguments]) == 2
    assert said in capsys.readouterr().err


def union(work: Workload, num: int) -> list[int]:
    return [len(p) for p in pieces(work, np.zeros(len(work), np.int32), num)]


def test_all_on_one_replica_leaves_the_others_empty() -> None:
    assert union(asked([0.0, 1.0, 2.0]), 3) == [3, 0, 0]
