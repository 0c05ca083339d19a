"""Runs of the torch engine on tiny models and small pools, and what is compared of their recordings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from engine.config import EngineSettings
from engine.gpu.run import RunOptions, RunResult, run
from tests.gpu import tiny
from traces.recording import open_recording
from traces.recording_meta import Meta
from traces.workload import ReadReport, Workload, make_workload

AMPLE, STARVED = 400, 26
WORK = (
    "num_decode", "decode_ctx_tokens", "num_chunks", "chunk_tokens", "prefill_qk",
    "num_logit_rows", "num_padded", "compute_s",
)  # fmt: skip
MODES: dict[str, dict[str, Any]] = {
    "recompute": {"preemption_mode": "recompute"},
    "swap": {"preemption_mode": "swap"},
    "swap, asynchronous": {"preemption_mode": "swap", "copy_mode": "async"},
    "offload": {"preemption_mode": "offload"},
    "offload of all blocks": {"preemption_mode": "offload", "offload_prompt_only": False},
    "offload, simple": {"preemption_mode": "offload", "offload_connector": "simple"},
    "offload, lazy": {
        "preemption_mode": "offload",
        "offload_connector": "simple",
        "lazy_offload": True,
    },
    "cheapest": {"preemption_mode": "cheapest"},
    "cheapest, asynchronous": {"preemption_mode": "cheapest", "copy_mode": "async"},
}


def workload(seed: int = 0, n: int = 12, *, prefixes: bool = False) -> Workload:
    """n requests of 3 to 59 prompt tokens and 2 to 39 output tokens, within 20 ms."""
    g = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        "request_id": [f"r{i}" for i in range(n)],
        "arrival_s": np.sort(g.random(n) * 0.02),
        "prompt_tokens": g.integers(3, 60, n),
        "output_tokens": g.integers(2, 40, n),
    }
    if prefixes:
        columns["prefix_ids"] = [
            [7] * k if k % 2 else [7, 8][:k] for k in g.integers(0, 4, n).tolist()
        ]
    return make_workload(
        columns,
        name="tiny",
        report=ReadReport("test"),
        prefix_block_tokens=6 if prefixes else None,
    )


def settings(folder: Path, **changes: Any) -> EngineSettings:
    """A pool of blocks of 4 tokens, up to 8 requests and 64 tokens a step, on a model of 2 layers."""
    host = 200 if changes.get("preemption_mode", "recompute") != "recompute" else None
    said: dict[str, Any] = {
        "model": str(folder),
        "num_gpu_blocks": STARVED,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 256,
        "num_host_blocks": host,
        "clock": "modelled",
        "device": "h100-sxm",
    }
    return EngineSettings(**(said | changes))


@dataclass(frozen=True)
class Ran:
    """A run: what it came to, and every request's tokens."""

    result: RunResult
    answers: dict[str, list[int]]


def go(load: Workload, chosen: EngineSettings, out: Path, **options: Any) -> Ran:
    """Run with every check on and freed blocks poisoned; weights are drawn."""
    torch.set_num_threads(1)
    answers: dict[str, list[int]] = {}
    said: dict[str, Any] = {
        "dtype": "float64",
        "random_weights": 0,
        "check": True,
        "poison": True,
        "blocks": True,
    }
    result = run(
        load,
        chosen,
        out,
        RunOptions(**(said | options)),
        on_end=lambda request, tokens: answers.__setitem__(request, tokens.tolist()),
    )
    return Ran(result, answers)


def model_folder(tmp_path: Path) -> Path:
    """A directory with the config.json of a tiny Llama."""
    return tiny.llama_dir(tmp_path / "model", "llama2")


def tables(path: Path) -> tuple[dict[str, pl.DataFrame], Meta]:
    """Steps (without what only an executor knows), events, requests and blocks, in one order."""
    with open_recording(path) as recording:
        blocks = recording.blocks
        assert blocks is not None
        return {
            "steps": recording.steps.drop(WORK),
            "events": recording.events,
            "requests": recording.requests.sort("request_id"),
            "blocks": blocks.sort("block_id", "first_step"),
        }, recording.meta


def differences(a: dict[str, pl.DataFrame], b: dict[str, pl.DataFrame]) -> list[str]:
    """Columns that are not equal to the last bit."""
    return [
        f"{name}.{column}"
        for name, left in a.items()
        for column in left.columns
        if not left[column].equals(b[name][column], null_equal=True)
    ]
