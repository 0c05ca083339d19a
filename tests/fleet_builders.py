"""Fleets for tests: ranks made by hand, and a skewed split of a sample, simulated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from engine.config import EngineSettings
from engine.fleet import simulate_fleet
from tests.builders import make_meta, make_requests, make_steps, write
from traces import samples

NUM_RANKS = 4
SHARES = (0.46, 0.24, 0.18, 0.12)


def rank(
    root: Path, used: Iterable[int], *, prompts: Iterable[int] = (), meta: Mapping[str, Any] | None = None, **columns: Any
) -> Path:  # fmt: skip
    """A rank with a pool of 10 blocks of 4 tokens, one second a step."""
    requests = make_requests(
        {
            "request_id": f"r{i}",
            "prompt_tokens": p,
            "output_tokens": 1,
            "first_scheduled_s": 0.0,
            "first_token_s": 1.0,
            "finish_s": 1.0,
        }
        for i, p in enumerate(prompts)
    )
    return write(root, make_steps(used, **columns), requests=requests, meta=dict(meta or make_meta()))  # fmt: skip


def skewed_fleet(root: Path, num_requests: int = 400) -> Path:
    """The first requests of the bundled chat sample at three times their rate, nearly half of them on
    rank 0, simulated."""
    about = samples.info("chat")
    workload = samples.load("chat").head(num_requests).scale_rate(3.0)
    settings = EngineSettings(
        kv_tokens=about.pool_tokens // 2, model=about.model, device=about.device
    )
    went = np.random.default_rng(0).choice(NUM_RANKS, len(workload), p=SHARES)
    simulate_fleet(workload, settings, NUM_RANKS, "", root, replica_of=went.astype(np.int32))
    return root
