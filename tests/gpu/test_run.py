"""The torch engine under pressure: no mode changes a token, and the simulator decides the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from engine.__main__ import main
from engine.config import resolve
from engine.core.state import make_state
from engine.gpu.run import RunOptions, run
from engine.gpu.tokens import Tokens
from engine.recorded_times import RecordedTimes
from engine.replay import compare, settings_of
from engine.simulator import core_columns, simulate
from tests.gpu import runs
from traces.errors import RecordingError
from traces.recording import Recording, open_recording
from traces.replay import workload_of
from traces.workload import ReadReport, make_workload

OVERLAP = pytest.mark.parametrize("overlapping", [False, True], ids=["in turn", "overlapping"])
MODE = pytest.mark.parametrize("mode", list(runs.MODES))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return runs.model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def undisturbed(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[int]]:
    """The answers of a pool in which nobody is ever preempted."""
    out = tmp_path_factory.mktemp("ample") / "out"
    ran = runs.go(
        runs.workload(prefixes=True), runs.settings(folder, num_gpu_blocks=runs.AMPLE), out
    )
    assert ran.result.num_preemptions == 0
    return ran.answers


@MODE
@OVERLAP
def test_a_starved_pool_answers_as_an_ample_one_and_as_the_simulator_decides(
    mode: str,
    overlapping: bool,
    folder: Path,
    undisturbed: dict[str, list[int]],
    tmp_path: Path,
) -> None:
    load = runs.workload(prefixes=True)
    chosen = runs.settings(folder, async_scheduling=overlapping, **runs.MODES[mode])

    ran = runs.go(load, chosen, tmp_path / "torch")

    assert ran.result.num_preemptions > 0
    assert ran.answers == undisturbed
    mine, meta = runs.tables(tmp_path / "torch")
    again = settings_of(meta, model=str(folder))
    simulate(load, again, tmp_path / "simulated", blocks=True)
    assert runs.differences(mine, runs.tables(tmp_path / "simulated")[0]) == []


@MODE
@OVERLAP
def test_measured_times_make_the_simulator_decide_the_same_steps(
    mode: str,
    overlapping: bool,
    folder: Path,
    undisturbed: dict[str, list[int]],
    tmp_path: Path,
) -> None:
    chosen = runs.settings(
        folder, clock="measured", async_scheduling=overlapping, **runs.MODES[mode]
    )

    ran = runs.go(runs.workload(prefixes=True), chosen, tmp_path / "torch")

    assert ran.answers == undisturbed
    mine, meta = runs.tables(tmp_path / "torch")
    with open_recording(tmp_path / "torch") as recording:
        again = settings_of(meta, model=str(folder))
        times = RecordedTimes(recording)
        simulate(workload_of(recording), again, tmp_path / "replayed", blocks=True, times=times)
    assert runs.differences(mine, runs.tables(tmp_path / "replayed")[0]) == []


@pytest.mark.parametrize("seed", range(6))
def test_requests_of_many_shapes_survive_preemption_in_float32(
    seed: int, folder: Path, tmp_path: Path
) -> None:
    load = runs.workload(seed + 1, 10, prefixes=seed % 2 == 0)
    mode = runs.MODES[list(runs.MODES)[seed]]
    ample = runs.settings(folder, num_gpu_blocks=runs.AMPLE)

    calm = runs.go(load, ample, tmp_path / "ample", dtype="float32")
    tight = runs.go(
        load,
        runs.settings(folder, num_gpu_blocks=26 + seed, **mode),
        tmp_path / "tight",
        dtype="float32",
    )

    assert tight.result.num_preemptions > 0
    assert tight.answers == calm.answers


def test_drawn_answers_do_not_depend_on_preemption(folder: Path, tmp_path: Path) -> None:
    from engine.gpu.sampling import Sampling

    warm = Sampling(temperature=0.8, top_p=0.95, seed=5)
    load = runs.workload()

    calm = runs.go(
        load,
        runs.settings(folder, num_gpu_blocks=runs.AMPLE),
        tmp_path / "ample",
        sampling=warm,
    )
    tight = runs.go(load, runs.settings(folder), tmp_path / "tight", sampling=warm)

    assert tight.result.num_preemptions > 0
    assert tight.answers == calm.answers
    assert len({tuple(a) for a in calm.answers.values()}) == 12


def test_the_per_layer_layout_answers_the_same(
    folder: Path, undisturbed: dict[str, list[int]], tmp_path: Path
) -> None:
    chosen = runs.settings(folder, **runs.MODES["swap"], copy_path="loop")

    ran = runs.go(runs.workload(prefixes=True), chosen, tmp_path / "out", kv_layout="layer")

    assert ran.answers == undisturbed


def test_what_a_shorter_prompt_cuts_off_does_not_change_its_tokens(folder: Path) -> None:
    load = make_workload(
        {
            "arrival_s": [0.0, 0.0, 0.0, 0.0],
            "prompt_tokens": [40, 9, 40, 20],
            "output_tokens": [2, 2, 2, 2],
            "prefix_ids": [[7, 8], [7, 8], [8, 7], [7]],
        },
        name="cut",
        report=ReadReport("test"),
        prefix_block_tokens=12,
    )
    chosen = runs.settings(folder)
    tokens = Tokens(make_state(core_columns(load, chosen), resolve(chosen).rules), 256, 0)

    long, short, other, one = (tokens.known(r).tolist() for r in range(4))

    assert long[:9] == short
    assert long[:12] == one[:12]
    assert long[12:20] != one[12:]
    assert other[12:24] != long[:12]
    assert len(set(long)) > 20


def test_equal_prefixes_are_equal_tokens_and_are_found_in_the_cache(
    folder: Path, tmp_path: Path
) -> None:
    load = runs.workload(prefixes=True)

    runs.go(load, runs.settings(folder, num_gpu_blocks=runs.AMPLE), tmp_path / "out")

    with open_recording(tmp_path / "out") as recording:
        assert recording.requests["cached_tokens"].sum() > 0


def test_ownership_adds_up_to_the_used_blocks_of_every_step(
    folder: Path, tmp_path: Path
) -> None:
    chosen = runs.settings(folder, enable_prefix_caching=False, **runs.MODES["swap"])

    runs.go(runs.workload(), chosen, tmp_path / "out")

    with open_recording(tmp_path / "out") as recording:
        blocks, steps = recording.blocks, recording.steps
    assert blocks is not None
    assert _held(blocks, steps.height) == steps["used_blocks"].to_list()


def test_ownership_adds_up_where_a_step_in_flight_may_still_write(
    folder: Path, tmp_path: Path
) -> None:
    chosen = runs.settings(
        folder,
        enable_prefix_caching=False,
        async_scheduling=True,
        compat="vllm-0.26",  # without it the engine waits for that step
        **runs.MODES["offload of all blocks"],
    )

    ran = runs.go(runs.workload(), chosen, tmp_path / "torch")
    simulate(runs.workload(), chosen, tmp_path / "simulated", blocks=True)

    assert ran.result.num_preemptions > 0
    for side in ("torch", "simulated"):
        with open_recording(tmp_path / side) as recording:
            blocks, steps = recording.blocks, recording.steps
        assert blocks is not None
        assert _held(blocks, steps.height) == steps["used_blocks"].to_list()


def _held(blocks: pl.DataFrame, num_steps: int) -> list[int]:
    held = np.zeros(num_steps + 2, int)
    np.add.at(held, blocks["first_step"].to_numpy(), 1)
    np.add.at(held, blocks["last_step"].to_numpy() + 1, -1)
    return held.cumsum()[:num_steps].tolist()


def test_every_step_says_what_it_computed_and_how_long_that_took(
    folder: Path, tmp_path: Path
) -> None:
    chosen = runs.settings(folder, clock="measured")

    runs.go(runs.workload(), chosen, tmp_path / "out")

    with open_recording(tmp_path / "out") as recording:
        assert recording.meta.clock == "measured"
        assert recording.meta.executor == "torch"
        steps = recording.steps
    tokens = steps["prefill_tokens"] + steps["decode_tokens"] + steps["recomputed_tokens"]
    assert (steps["num_decode"] + steps["chunk_tokens"]).to_list() == tokens.to_list()
    assert (steps["compute_s"] <= steps["duration_s"]).all()
    assert (steps["compute_s"] > 0).all()
    ends = steps["t_start_s"] + steps["duration_s"]
    assert (steps["t_start_s"][1:] >= ends[:-1]).all()


def test_blocking_copies_are_the_steps_stall_and_keep_the_link_busy(
    folder: Path, tmp_path: Path
) -> None:
    chosen = runs.settings(folder, clock="measured", **runs.MODES["swap"])

    runs.go(runs.workload(), chosen, tmp_path / "out")

    with open_recording(tmp_path / "out") as recording:
        steps, events = recording.steps, recording.events
    copied = steps["swap_out_bytes"] + steps["swap_in_bytes"] > 0
    assert copied.any()
    assert (steps.filter(copied)["stall_s"] > 0).all()
    assert (steps.filter(~copied)["stall_s"] == 0).all()
    busy = (steps["link_out_busy_s"] + steps["link_in_busy_s"]).sum()
    took = events.filter(events["kind"].cast(str).is_in(["swap_out", "swap_in"]))[
        "cost_s"
    ].sum()
    assert busy == pytest.approx(took, rel=0.01)
    assert took <= steps["stall_s"].sum()


def test_a_recording_of_the_simulator_has_no_times_to_give(
    folder: Path, tmp_path: Path
) -> None:
    simulate(runs.workload(), runs.settings(folder), tmp_path / "out")

    with (
        open_recording(tmp_path / "out") as recording,
        pytest.raises(RecordingError, match="by simulator, and clock measured needs those of"),
    ):
        RecordedTimes(recording)


def test_times_of_another_run_are_refused_where_they_end(folder: Path, tmp_path: Path) -> None:
    runs.go(runs.workload(), runs.settings(folder, clock="measured"), tmp_path / "out")

    with open_recording(tmp_path / "out") as recording:
        more = runs.workload(n=20)
        again = runs.settings(folder, clock="measured")
        with pytest.raises(RecordingError, match="so it was decided otherwise"):
            simulate(more, again, tmp_path / "other", times=RecordedTimes(recording))


def replayed(folder: Path, recorded: Path, out: Path, **changes: object) -> Recording:
    """The recording run again with its times, as far as it went."""
    with open_recording(recorded) as recording:
        again = settings_of(recording.meta, model=str(folder), **changes)
        load = workload_of(recording, as_it_ended=True)
        simulate(load, again, out, blocks=True, times=RecordedTimes(recording))
    return open_recording(out)


def test_recorded_steps_that_are_left_over_are_refused(folder: Path, tmp_path: Path) -> None:
    runs.go(runs.workload(), runs.settings(folder, clock="measured"), tmp_path / "torch")

    with pytest.raises(RecordingError, match=r"ends after \d+ of the \d+ recorded steps"):
        replayed(folder, tmp_path / "torch", tmp_path / "roomy", num_gpu_blocks=runs.AMPLE)

    assert open_recording(tmp_path / "roomy").status == "failed"


@pytest.mark.parametrize("lost", ["rows", "lengths"])
def test_a_copy_without_a_time_is_named(lost: str, folder: Path, tmp_path: Path) -> None:
    chosen = runs.settings(folder, clock="measured", **runs.MODES["swap, asynchronous"])
    runs.go(runs.workload(), chosen, tmp_path / "torch")

    with open_recording(tmp_path / "torch") as recording:
        load = workload_of(recording)
        copies = pl.col("kind").cast(pl.String).is_in(["swap_out", "swap_in"])
        first = recording.events.filter(copies).row(0, named=True)
        recording.__dict__["events"] = (
            recording.events.filter(~copies)
            if lost == "rows"
            else recording.events.with_columns(cost_s=pl.when(~copies).then("cost_s"))
        )
        times = RecordedTimes(recording)

    wanted = f"no time for the copy of request {first['request_id']} in step {first['step']} "
    with pytest.raises(RecordingError, match=wanted):
        simulate(load, chosen, tmp_path / "again", times=times)


@OVERLAP
@pytest.mark.parametrize("mode", ["recompute", "swap, asynchronous", "offload"])
def test_a_stopped_run_is_replayed_as_far_as_it_went(
    mode: str, overlapping: bool, folder: Path, tmp_path: Path
) -> None:
    chosen = runs.settings(
        folder, clock="measured", async_scheduling=overlapping, **runs.MODES[mode]
    )
    ended: list[str] = []

    def stop(request: str, tokens: np.ndarray) -> None:
        ended.append(request)
        if len(ended) == 5:
            raise KeyboardInterrupt

    options = RunOptions(dtype="float64", random_weights=0, blocks=True)
    with pytest.raises(KeyboardInterrupt):
        run(runs.workload(), chosen, tmp_path / "torch", options, on_end=stop)

    again = replayed(folder, tmp_path / "torch", tmp_path / "again")
    first = open_recording(tmp_path / "torch")
    assert first.status == again.status == "stopped"
    assert first.requests["status"].cast(str).to_list().count("unfinished") > 0
    assert compare(first, again).difference is None
    assert again.steps.height == first.steps.height


def test_a_run_of_max_steps_is_replayed_with_its_unfinished_requests(
    folder: Path, tmp_path: Path
) -> None:
    runs.go(
        runs.workload(),
        runs.settings(folder, clock="measured", max_steps=20),
        tmp_path / "torch",
    )

    again = replayed(folder, tmp_path / "torch", tmp_path / "again")

    first = open_recording(tmp_path / "torch")
    assert again.status == "max_steps"
    assert compare(first, again).difference is None
    assert again.requests["status"].equals(first.requests["status"])


def test_the_command_line_says_whether_a_replay_is_equal(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = runs.go(runs.workload(), runs.settings(folder, clock="measured"), tmp_path / "torch")
    args = ["replay", str(tmp_path / "torch"), "--check", "--model", str(folder)]

    assert main([*args, "--clock", "measured"]) == 0
    n = ran.result.num_steps
    said = capsys.readouterr().out
    assert f"{n} of {n} steps, " in said
    assert " block intervals equal" in said

    assert main([*args, "--clock", "measured", "--num-gpu-blocks", "400"]) == 1
    assert "different: table steps, row 1 (step 0)" in capsys.readouterr().out

    assert main(args) == 2
    assert "give --clock measured" in capsys.readouterr().err
