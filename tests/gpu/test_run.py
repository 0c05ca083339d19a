"""The torch engine under pressure: no mode changes a token, and the simulator decides the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from engine.config import resolve
from engine.core.state import make_state
from engine.gpu.tokens import Tokens
from engine.recorded_times import RecordedTimes
from engine.replay import settings_of
from engine.simulator import core_columns, simulate
from tests.gpu import runs
from traces.errors import RecordingError
from traces.recording import open_recording
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
    held = np.zeros(steps.height, int)
    for first, last in zip(blocks["first_step"], blocks["last_step"], strict=True):
        held[first : last + 1] += 1
    assert held.tolist() == steps["used_blocks"].to_list()


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
