"""How far the simulator is from a run: errors and grades typed by hand, and a machine that is known."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from analyzer.__main__ import main
from analyzer.estimate import Fit
from analyzer.validate_command import calibrate_on, is_own, plan, simulate_plan
from analyzer.validation import (
    Validation,
    as_document,
    from_document,
    show_error,
    show_value,
    validate,
    validate_estimate,
)
from engine.devices import load_device
from tests.validation_worlds import machine_run, seen
from traces.recording import open_recording


def found(observed: Path, simulated: Path, **options: float) -> Validation:
    with open_recording(observed) as a, open_recording(simulated) as b:
        return validate(a, b, **options)


def error(of: Validation, name: str) -> float | None:
    check = of.check(name)
    assert check is not None
    return check.error


def test_a_run_held_against_itself_has_no_error_and_is_good(tmp_path: Path) -> None:
    run = seen(tmp_path / "a", preempted=(0, 3, 0, 0))

    same = found(run, run)

    assert same.grade == "good"
    assert {c.error for c in same.checks} == {0.0}
    assert same.num_requests == 6


def test_errors_are_simulated_over_observed_less_one(tmp_path: Path) -> None:
    observed = seen(tmp_path / "a", ttft_s=[1.0, 1, 1, 1, 1, 1], tpot_s=0.5)
    simulated = seen(tmp_path / "b", ttft_s=[1.2, 1.2, 1.2, 1.2, 1.2, 1.2], tpot_s=0.45)

    judged = found(observed, simulated)

    assert error(judged, "ttft_s p50") == pytest.approx(0.2)
    assert error(judged, "tpot_s p90") == pytest.approx(-0.1)
    assert error(judged, "e2e_s p50") == pytest.approx(0.0)  # 1.2 + 1.8 = 1 + 2
    assert error(judged, "output_tokens_per_s") == pytest.approx(0.0)  # 30 tokens in 3 s
    assert judged.check("ttft_s p50").grade == "fair"  # type: ignore[union-attr]
    assert judged.check("tpot_s p50").grade == "good"  # type: ignore[union-attr]
    assert judged.grade == "fair"


def test_blocks_are_compared_in_the_mean_and_at_one_time(tmp_path: Path) -> None:
    observed = seen(tmp_path / "a", used=(4, 4, 8, 8))
    simulated = seen(tmp_path / "b", used=(8, 8, 4, 4))

    judged = found(observed, simulated)

    assert error(judged, "used_blocks") == 0.0  # 6 of 10 on both sides
    assert error(judged, "used_distance") == pytest.approx(
        0.4
    )  # but 4 of 10 apart all the time
    assert judged.check("used_distance").grade == "poor"  # type: ignore[union-attr]
    assert judged.grade == "poor"


def test_a_side_that_has_ended_holds_no_blocks(tmp_path: Path) -> None:
    observed = seen(tmp_path / "a", used=(5, 5, 5, 5))
    simulated = seen(tmp_path / "b", used=(5, 5), preempted=(0, 0))

    assert error(found(observed, simulated), "used_distance") == pytest.approx(0.25)
    assert error(found(observed, simulated), "duration_s") == pytest.approx(-0.5)


def test_time_counts_from_the_first_arrival_of_each_side(tmp_path: Path) -> None:
    observed = seen(tmp_path / "a", late_s=30.0)
    simulated = seen(tmp_path / "b")

    assert {c.error for c in found(observed, simulated).checks} == {0.0}


@pytest.mark.parametrize(
    ("observed", "simulated", "grade"),
    [(0, 0, "good"), (0, 2, "good"), (1, 3, "good"), (0, 4, "fair"), (0, 5, "poor"),
     (100, 124, "good"), (100, 60, "fair"), (100, 49, "poor"), (100, 151, "poor")],
)  # fmt: skip
def test_small_counts_of_preemptions_may_differ_by_a_few(
    tmp_path: Path, observed: int, simulated: int, grade: str
) -> None:
    a = seen(tmp_path / "a", preempted=(observed, 0, 0, 0))
    b = seen(tmp_path / "b", preempted=(simulated, 0, 0, 0))

    assert found(a, b).check("num_preemptions").grade == grade  # type: ignore[union-attr]


def test_what_was_not_recorded_is_said_and_does_not_count(tmp_path: Path) -> None:
    blind = ["steps.used_blocks", "steps.num_preempted", "requests.first_token_s"]
    observed = seen(tmp_path / "a", used=(1, 1, 1, 1), not_recorded=blind)
    simulated = seen(tmp_path / "b", used=(9, 9, 9, 9), preempted=(50, 50, 0, 0))

    judged = found(observed, simulated)

    for name in ("used_blocks", "used_distance", "num_preemptions", "ttft_s p50"):
        check = judged.check(name)
        assert check is not None
        assert (check.observed, check.error, check.grade) == (None, None, None)
        assert show_value(name, check.observed) == "not recorded"
        assert show_error(check) == "not recorded"
    assert judged.grade == "good"


def test_a_p99_of_few_requests_does_not_count(tmp_path: Path) -> None:
    observed = seen(tmp_path / "a", ttft_s=[1.0] * 6)
    simulated = seen(tmp_path / "b", ttft_s=[1.0] * 5 + [3.0])

    check = found(observed, simulated).check("ttft_s p99")

    assert check is not None
    assert check.error is not None
    assert check.error > 1.5
    assert check.grade is None
    assert check.why == "6 requests are too few"


def test_fewer_than_five_requests_have_no_percentiles(tmp_path: Path) -> None:
    run = seen(tmp_path / "a", ttft_s=[1.0] * 4)

    assert found(run, run).check("ttft_s p50").grade is None  # type: ignore[union-attr]


def test_the_sentence_gives_whole_per_cents_rounded_up(tmp_path: Path) -> None:
    observed = seen(tmp_path / "a")
    simulated = seen(tmp_path / "b", ttft_s=[1.081] * 6, tpot_s=0.515)

    assert found(observed, simulated).sentence == (
        "Simulator within 5 % of this run on throughput, 3 % on p50 TPOT, 9 % on p90 TTFT, "
        "1 % on blocks in use (of the pool), 1 % on preemptions."
    )


def test_a_validation_survives_its_document(tmp_path: Path) -> None:
    judged = found(seen(tmp_path / "a"), seen(tmp_path / "b", tpot_s=0.7))

    again = from_document(json.loads(json.dumps(as_document(judged))))

    assert again == judged


def test_samples_are_judged_by_their_means_and_counts(tmp_path: Path) -> None:
    fit = Fit(
        {"usage": 0.02, "running": 0.1, "waiting": None, "generation": 0.1},
        {"usage": (0.5, 0.52), "running": (10.0, 10.0), "waiting": (0.0, 0.0), "generation": (100.0, 130.0)},
        pl.DataFrame(),
    )  # fmt: skip
    simulated = seen(tmp_path / "a", preempted=(0, 7, 0, 0))

    with open_recording(simulated) as recording:
        judged = validate_estimate(
            fit, {"num_preemptions": 7, "e2e_s": {"p50": 3.0}}, recording
        )

    assert error(judged, "output_tokens_per_s") == pytest.approx(0.3)
    assert error(judged, "used_distance") == 0.02
    assert error(judged, "num_preemptions") == 0.0
    assert error(judged, "e2e_s p50") == 0.0
    assert judged.check("e2e_s p90").grade is None  # type: ignore[union-attr]
    assert judged.grade == "poor"


# ---- a machine that is known ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return machine_run(tmp_path_factory.mktemp("machine") / "run")


def test_the_right_device_is_good_and_the_preset_is_not(machine: Path, tmp_path: Path) -> None:
    with open_recording(machine) as recording:
        planned = plan(recording)
        simulate_plan(planned, tmp_path / "preset")
        device = calibrate_on(recording, planned, tmp_path / "device.json")
        assert device is not None
        again = plan(recording, device=str(device.path))
        simulate_plan(again, tmp_path / "calibrated")
        with (
            open_recording(tmp_path / "preset") as a,
            open_recording(tmp_path / "calibrated") as b,
        ):
            before, after = validate(recording, a), validate(recording, b)

    assert before.grade == "poor"
    assert before.check("tpot_s p50").error < -0.2  # type: ignore[union-attr, operator]
    assert after.grade == "good"
    assert abs(after.check("tpot_s p50").error) < 0.03  # type: ignore[union-attr, arg-type]
    assert device.held_out is not None
    assert device.held_out.grade == "good"
    assert device.held_out.num_requests == 80  # of 160: those that the fit has not seen
    assert max(device.step_errors) < 0.05


def test_experts_on_two_gpus_are_calibrated_by_scales_of_the_device(tmp_path: Path) -> None:
    slower = {"memory_bytes_per_s": 864e9 / 2, "peak_flops": 362e12 / 3}
    path = machine_run(
        tmp_path / "run", 300, span_s=30, slower=slower, model="qwen3-30b-a3b", device="l40s", kv_tokens=200_000,
        tensor_parallel_size=2, kv_cache_dtype="auto", weight_dtype="auto", max_num_seqs=64, max_num_batched_tokens=1_024,
    )  # fmt: skip

    with open_recording(path) as recording:
        planned = plan(recording)
        simulate_plan(planned, tmp_path / "preset")
        done = calibrate_on(recording, planned, tmp_path / "device.json")
        with open_recording(tmp_path / "preset") as simulated:
            before = validate(recording, simulated)

    assert before.grade == "poor"
    assert done is not None
    assert "tensor parallelism 2" in done.caution
    assert "Only scales of l40s were fitted" in done.caution
    assert done.held_out is not None
    assert done.held_out.grade == "good"
    device = load_device(done.path)
    assert device.memory_bytes_per_s == pytest.approx(432e9, rel=0.03)
    assert device.peak_flops == pytest.approx(362e12 / 3, rel=0.05)


def test_a_simulated_recording_is_its_own_truth(machine: Path) -> None:
    with open_recording(machine.with_name("run-made")) as recording:
        assert is_own(recording)
    with open_recording(machine) as recording:
        assert not is_own(recording)


def test_the_command_prints_json(machine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(machine), "--calibrate", "--json"]) == 0

    said = json.loads(capsys.readouterr().out)
    assert said["grade"] == "poor"
    assert said["calibrated"]["grade"] == "good"
    assert said["calibrated"]["held_out"]["grade"] == "good"
    assert (
        said["figures"]["tpot_s p50"]["observed"] > said["figures"]["tpot_s p50"]["simulated"]
    )


def test_the_command_prints_a_table(
    machine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(machine), "--device", "cpu"]) == 0
    told = capsys.readouterr().out
    assert "TTFT p90" in told
    assert "Poor: Simulator off by" in told

    assert main(["validate", str(machine.with_name("run-made"))]) == 0
    assert "simulator's own" in capsys.readouterr().out


def test_the_command_refuses_what_it_cannot_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", str(tmp_path / "nothing")]) == 2
    assert "error: " in capsys.readouterr().err
