"""Runs to validate: one made by hand, and one of a machine whose numbers are known.

`seen` writes six requests with round times; `machine_run` simulates a workload on a slower machine than
the device that its recording names, and writes it down as a live server's, so that a calibration has
something to find.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from engine.config import EngineSettings
from engine.simulator import simulate
from tests.builders import make_meta, make_requests, make_steps, write
from traces.recording import open_recording, write_recording
from traces.workload import ReadReport, make_workload

# What the machine of `machine_run` does worse than the preset `cpu`.
SLOWER = {"weight_read_efficiency": 0.45, "linear_efficiency": 0.35, "layer_overhead_s": 4e-4}


def seen(
    folder: Path,
    *,
    ttft_s: Iterable[float] = (1.0,) * 6,
    tpot_s: float = 0.5,
    used: Iterable[int] = (4, 4, 8, 8),
    preempted: Iterable[int] = (0, 0, 0, 0),
    late_s: float = 0.0,
    **meta: Any,
) -> Path:
    """Six requests of five output tokens that come together, and four steps of one second."""
    requests = [
        {
            "request_id": f"r{i}",
            "arrival_s": late_s,
            "prompt_tokens": 8,
            "output_tokens": 5,
            "first_scheduled_s": late_s,
            "first_token_s": late_s + ttft,
            "finish_s": late_s + ttft + 4 * tpot_s,
        }
        for i, ttft in enumerate(ttft_s)
    ]
    used = list(used)
    steps = make_steps(
        used,
        t_start_s=[late_s + i for i in range(len(used))],
        num_preempted=list(preempted),
    )
    said = make_meta(**{"executor": "torch", "clock": "measured", **meta})
    return write(folder, steps=steps, requests=make_requests(requests), meta=said)


def machine_run(
    folder: Path,
    num_requests: int = 160,
    seed: int = 0,
    *,
    span_s: float = 400,
    slower: dict[str, float] = SLOWER,
    **settings: Any,
) -> Path:
    """A measured recording of a machine that is slower than the preset its metadata names: a CPU, unless
    settings say otherwise. span_s: in which the requests come."""
    random = np.random.default_rng(seed)
    workload = make_workload(
        {
            "arrival_s": np.sort(random.uniform(0, span_s, num_requests)),
            "prompt_tokens": random.integers(8, 600, num_requests),
            "output_tokens": random.integers(2, 40, num_requests),
        },
        name="machine",
        report=ReadReport("hand"),
    )
    given = {
        "kv_tokens": 4_096,
        "model": "smollm2-135m",
        "device": "cpu",
        "kv_cache_dtype": "float32",
        "weight_dtype": "float32",
        "max_num_seqs": 12,
        "max_num_batched_tokens": 256,
        "enable_prefix_caching": False,
    }
    chosen = EngineSettings(**{**given, **settings, "cost_overrides": slower})
    made = folder.with_name(folder.name + "-made")
    simulate(workload, chosen, made)
    with open_recording(made) as recording:
        meta = dict(recording.meta)
        meta |= {"executor": "vllm", "clock": "measured"}
        meta["settings"] = {
            **recording.meta.settings,
            "cost_overrides": {},
            "clock": "measured",
        }
        tables = {
            name: pq.ParquetDataset([str(p) for p in recording.parts[name]]).read()
            for name in ("steps", "events", "requests")
        }
    folder.mkdir(parents=True, exist_ok=True)
    return write_recording(folder, tables, meta)
