"""Recorded ownership against the pool's own count: whoever holds a block, the block is in use."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from engine.config import EngineSettings
from engine.simulator import simulate
from traces.open import open_workload
from traces.recording import Recording, open_recording


def held_blocks(recording: Recording) -> np.ndarray:
    """How many blocks somebody holds in each step, shared ones once. [steps]"""
    assert recording.blocks is not None
    held = np.zeros((recording.steps.height, recording.pool_blocks + 2), dtype=bool)
    first = int(recording.steps["step"][0])
    for block, start, end in recording.blocks.select(
        "block_id", "first_step", "last_step"
    ).iter_rows():
        held[start - first : end - first + 1, block] = True
    return held.sum(axis=1)


@pytest.mark.parametrize("copy_mode", ["blocking", "async"])
@pytest.mark.parametrize("mode", ["recompute", "swap", "cheapest"])
@pytest.mark.parametrize("seed", range(3))
def test_the_blocks_that_somebody_holds_are_those_in_use_at_every_step(
    tmp_path: Path, seed: int, mode: str, copy_mode: str
) -> None:
    """Seed 0 with asynchronous swaps has a request that gets back the very row that it gave up."""
    draw = np.random.default_rng(seed)
    trace = tmp_path / "trace.csv"
    pl.DataFrame(
        {
            "arrival_s": np.sort(draw.uniform(0, 0.4, 14)),
            "prompt_tokens": draw.integers(4, 40, 14),
            "output_tokens": draw.integers(4, 40, 14),
        }
    ).write_csv(trace)
    settings = EngineSettings(
        num_gpu_blocks=30,
        block_size=4,
        preemption_mode=mode,
        copy_mode=copy_mode,
        async_scheduling=True,
        max_model_len=100,
        max_num_seqs=8,
    )

    simulate(open_workload(trace), settings, tmp_path / "run", blocks=True)

    recording = open_recording(tmp_path / "run")
    assert int(recording.steps["num_preempted"].sum()) > 0
    assert held_blocks(recording).tolist() == recording.steps["used_blocks"].to_list()
