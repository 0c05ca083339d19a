"""Recordings of a few thousand steps that tests let count as long, so that their tables are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.builders import POOL, make_events, make_requests, make_steps
from traces.mapped_tables import Keep

NUM_STEPS = 2_000


def tables(num_steps: int = NUM_STEPS, seed: int = 0) -> dict[str, Any]:
    """Steps at random times with rare preemptions, some columns partly null; events; requests."""
    rng = np.random.default_rng(seed)
    count = rng.integers
    durations = rng.exponential(0.02, num_steps)
    steps = make_steps(
        count(0, POOL + 1, num_steps).tolist(),
        duration_s=durations.tolist(),
        num_running=count(0, 6, num_steps).tolist(),
        num_waiting=count(0, 9, num_steps).tolist(),
        num_preempted=(rng.random(num_steps) < 0.01).astype(int).tolist(),
        prefill_tokens=count(0, 50, num_steps).tolist(),
        decode_tokens=count(0, 6, num_steps).tolist(),
        recomputed_tokens=count(0, 3, num_steps).tolist(),
        stall_s=(durations * 0.1).tolist(),
        compute_s=[None if i % 3 else float(i) for i in range(num_steps)],
    )
    starts = steps["t_start_s"].to_pylist()
    gone = [i for i, n in enumerate(steps["num_preempted"].to_pylist()) if n]
    requests = make_requests(
        {
            "request_id": f"a request with a long name {i}",
            "arrival_s": starts[i * 10],
            "prompt_tokens": 7,
            "output_tokens": 30,
            "first_token_s": starts[i * 10 + 5],
            "prefix_ids": [i, i + 1] if i % 2 else None,
            "prefix_tokens": [4, 4] if i % 2 else None,
        }
        for i in range(num_steps // 20)
    )
    events = make_events(
        {
            "step": i,
            "kind": "preempt",
            "request_id": "a request with a long name 1",
            "mode_used": "recompute",
            "cause_request_id": None if i % 2 else "a request with a long name 2",
        }
        for i in gone
    )
    return {"steps": steps, "events": events, "requests": requests}


def keep(folder: Path, **changes: Any) -> Keep:
    folder.mkdir(exist_ok=True)
    return Keep(folder / "one", long_rows=100, **changes)


def finished(num_steps: int = NUM_STEPS) -> dict[str, Any]:
    """As `tables`, with requests that finish."""
    given = tables(num_steps)
    end_s = given["steps"]["t_start_s"][-1].as_py()
    rows = [
        {**row, "status": "finished", "finish_s": end_s, "num_preemptions": 2 * (i == 1)}
        for i, row in enumerate(given["requests"].to_pylist())
    ]
    return {**given, "requests": make_requests(rows)}
