"""The analyzer on runs of the simulator: what it rebuilds is held against the run itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from analyzer.__main__ import main
from analyzer.lifecycles import lifecycles
from analyzer.preemptions import preemptions
from analyzer.token_gaps import token_gaps
from engine.config import EngineSettings
from engine.simulator import simulate, simulate_by_step
from traces.recording import Recording, open_recording
from traces.workload import ReadReport, Workload, make_workload

SETTINGS = {
    "recompute": EngineSettings(num_gpu_blocks=201),
    "chunked recompute": EngineSettings(
        num_gpu_blocks=201,
        max_num_seqs=32,
        max_num_batched_tokens=256,
        enable_prefix_caching=False,
    ),
    "swap": EngineSettings(num_gpu_blocks=201, preemption_mode="swap"),
    "asynchronous swap": EngineSettings(
        num_gpu_blocks=201, preemption_mode="swap", copy_mode="async", copy_path="loop"
    ),
    "offload": EngineSettings(
        num_gpu_blocks=201, preemption_mode="offload", offload_prompt_only=False
    ),
    "lazy simple offload": EngineSettings(
        num_gpu_blocks=201,
        preemption_mode="offload",
        offload_connector="simple",
        lazy_offload=True,
    ),
    "cheapest, host soon full": EngineSettings(
        num_gpu_blocks=201, preemption_mode="cheapest", num_host_blocks=60
    ),
}


def make_load(n: int = 80) -> Workload:
    """Requests that together want several times the pool."""
    rng = np.random.default_rng(3)
    return make_workload(
        {
            "arrival_s": np.sort(rng.random(n)),
            "prompt_tokens": rng.integers(20, 600, n),
            "output_tokens": rng.integers(1, 200, n),
        },
        name="load",
        report=ReadReport("made"),
    )


@pytest.fixture(params=SETTINGS)
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Recording:
    simulate(make_load(), SETTINGS[request.param], tmp_path / "run")
    return open_recording(tmp_path / "run")


def true_gaps(settings: EngineSettings, out: Path) -> np.ndarray:
    """Gaps between tokens as the run itself goes, step by step."""
    gaps: list[float] = []
    last_s: np.ndarray | None = None
    for what, state, _ in simulate_by_step(make_load(), settings, out):
        if what != "processed":
            continue
        tokens = (state.requests["num_tokens"] - state.requests["prompt"])[:-1].copy()
        if last_s is None:
            last_s, before = np.full(len(tokens), np.nan), np.zeros_like(tokens)
        new, now = np.flatnonzero(tokens > before), float(state.c[0].now_s)
        gaps += (now - last_s[new])[~np.isnan(last_s[new])].tolist()
        last_s[new], before = now, tokens
    return np.array(gaps)


@pytest.mark.parametrize("name", SETTINGS)
def test_rebuilt_gaps_between_tokens_are_those_of_the_run(name: str, tmp_path: Path) -> None:
    true = true_gaps(SETTINGS[name], tmp_path / "run")

    run = open_recording(tmp_path / "run")
    gaps = token_gaps(run.requests, run.events, run.steps)

    assert run.requests["num_preemptions"].sum() > 10
    assert gaps.num_gaps == len(true)
    assert abs(gaps.num_unplaced) <= 1e-3 * len(true)  # chunks divided over several returns
    found = gaps.summary()
    assert found["mean"] == pytest.approx(true.mean(), rel=1e-9)
    for key, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        assert found[key] == pytest.approx(np.quantile(true, share), rel=1e-3)


def test_preemptions_account_for_all_tokens_computed_again(run: Recording) -> None:
    table = preemptions(run.events, run.steps)

    assert table.height == run.steps["num_preempted"].sum()
    assert table["recomputed_tokens"].sum() == run.steps["recomputed_tokens"].sum()
    assert table["away_s"].sum() == pytest.approx(run.requests["preempted_s"].sum())
    assert table["induced_s"].min() >= 0


def test_lanes_cover_each_request_from_arrival_to_finish(run: Recording) -> None:
    lanes = lifecycles(run.events, run.requests, 1e9)

    length = lanes.group_by("request_id").agg(
        lane_s=(pl.col("end_s") - pl.col("start_s")).sum()
    )
    joined = run.requests.join(length, on="request_id", how="left")
    missing = joined["finish_s"] - joined["arrival_s"] - joined["lane_s"]
    assert missing.abs().max() < 1e-9
    assert not lanes["is_open"].any()


def test_two_simulated_runs_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("recompute", "swap"):
        simulate(make_load(), SETTINGS[name], tmp_path / name)

    code = main(["compare", str(tmp_path / "recompute"), str(tmp_path / "swap"), "--json"])

    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert found["verdict"].startswith("At 200 blocks and blocking coalesced copies over a ")
    assert found["a"]["swap_out_bytes"] == 0 < found["b"]["swap_out_bytes"]
    assert "preemption_mode: recompute in A, swap in B." in found["notes"]
