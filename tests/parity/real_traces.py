"""Cases of recorded traces: the first 2,000 requests of two, each at two pool sizes.

Read from ../shared/traces (or $KV_REPLAY_SHARED/traces), which is not part of the project. Arrivals
are turned into step numbers: floor(seconds x steps per second), with a rate at which the ample pool
just keeps up. Steps, not the latency clock, because then the number of steps does not hang on a cost
formula, and both sides need no arithmetic on times to agree about who has arrived.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.parity.cases import MAX_MODEL_LEN, Case, Row
from traces.open import open_workload

ROOT = Path(__file__).resolve().parents[2]
REQUESTS = 2_000
COMMON = {
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2_048,
    "max_model_len": MAX_MODEL_LEN,
    "block_size": 16,
    "clock": "step",
}
_AZURE = "azure-llm-2023/AzureLLMInferenceTrace_conv.first-half.csv"
_MOONCAKE = "mooncake-fast25/conversation_trace.first-half.jsonl"


@dataclass(frozen=True)
class RealCase:
    """A trace and settings. preemptions: the least and the most that the run should come to."""

    path: str
    steps_per_s: float
    settings: dict[str, Any]
    preemptions: tuple[int, int]


# Blocks of 128 tokens for Mooncake, whose prompts have 14,000 on average.
REAL = {
    "azure-ample": RealCase(_AZURE, 20, {"num_blocks": 7_001, "max_num_seqs": 128}, (1, 100)),
    "azure-scarce": RealCase(
        _AZURE,
        20,
        {"num_blocks": 4_001, "max_num_seqs": 128, "async_scheduling": True},
        (200, 2_000),
    ),
    "mooncake-ample": RealCase(
        _MOONCAKE,
        20,
        {
            "num_blocks": 8_001,
            "block_size": 128,
            "max_num_batched_tokens": 8_192,
            "async_scheduling": True,
        },
        (0, 20),
    ),
    "mooncake-scarce": RealCase(
        _MOONCAKE,
        30,
        {
            "num_blocks": 4_001,
            "block_size": 128,
            "max_num_batched_tokens": 8_192,
            "scheduler_reserve_full_isl": False,
        },
        (400, 2_000),
    ),
}


def shared_traces() -> Path:
    """Where recorded traces are, if there are any."""
    named = os.environ.get("KV_REPLAY_SHARED")
    return (Path(named) if named else ROOT.parent / "shared") / "traces"


def real_case(name: str) -> Case:
    """The case of that name. Raises FileNotFoundError where its trace is not there."""
    real = REAL[name]
    path = shared_traces() / real.path
    if not path.exists():
        raise FileNotFoundError(f"{path} is not there")
    workload = open_workload(path).head(REQUESTS)
    segment = workload.prefix_block_tokens
    rows = []
    for number, r in enumerate(workload.table.iter_rows(named=True)):
        row: Row = {
            "request_id": str(number),
            "prompt_tokens": r["prompt_tokens"],
            "output_tokens": r["output_tokens"],
            "arrival_step": int(r["arrival_s"] * real.steps_per_s),
        }
        if r["prefix_ids"]:
            row |= {"prefix_hash_ids": r["prefix_ids"], "prefix_hash_block": segment}
        rows.append(row)
    settings = COMMON | real.settings
    return Case(name, settings, rows, f"--real {name}")
