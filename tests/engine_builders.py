"""Workloads and settings for tests of the engine, and runs looked at step by step.

`make_world` is small enough to draw: 4 blocks of 4 tokens. Step records are compared in the compact
form in which the golden cases are kept (`compact`).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import polars as pl

from engine.config import EngineSettings
from engine.decisions import write_decisions
from traces.recording import Recording, open_recording
from traces.workload import ReadReport, Workload, make_workload

FIELDS = (
    "step", "running", "waiting", "scheduled", "admitted", "preempted", "new_blocks", "blocks",
    "blocks_end", "finished", "aborted",
)  # fmt: skip
_NESTED = {
    "scheduled": ("id", "tokens", "computed_before"),
    "admitted": ("id", "kind", "cached_tokens", "tokens"),
    "preempted": ("id", "computed_tokens_lost", "blocks_held"),
}
_COUNTS = ("used", "free", "cached_used", "cached_free")


def make_request(
    id: str, prompt: int, output: int, arrival: float = 0, **more: Any
) -> dict[str, Any]:
    """One request; more: priority, prefix (hash ids), abort."""
    return {"id": id, "prompt": prompt, "output": output, "arrival": arrival, **more}


def make_trace(
    *requests: Mapping[str, Any],
    prefix_block_tokens: int | None = None,
    concurrency: int | None = None,
) -> Workload:
    """The requests as a Workload; arrivals and aborts count as steps and as seconds alike."""
    arrivals = [r["arrival"] for r in requests]
    aborts = [r.get("abort") for r in requests]
    columns = {
        "request_id": [r["id"] for r in requests],
        "arrival_s": [float(a) for a in arrivals],
        "prompt_tokens": [r["prompt"] for r in requests],
        "output_tokens": [r["output"] for r in requests],
        "priority": [r.get("priority", 0) for r in requests],
        "prefix_ids": pl.Series(
            [r.get("prefix", []) for r in requests], dtype=pl.List(pl.UInt64)
        ),
        "arrival_step": pl.Series([int(a) for a in arrivals], dtype=pl.Int64),
        "abort_step": pl.Series(
            [None if a is None else int(a) for a in aborts], dtype=pl.Int64
        ),
        "abort_s": pl.Series(aborts, dtype=pl.Float64),
    }
    return make_workload(
        columns,
        name="hand",
        report=ReadReport("hand"),
        prefix_block_tokens=prefix_block_tokens,
        concurrency=concurrency,
    )


# Every step takes 1 s and every block 1 s to copy, each way, one way not slowing the other.
SECONDS = {
    "step_overhead_s": 1.0,
    "layers_overhead_s": 0.0,
    "token_compute_s": 0.0,
    "always_read_s": 0.0,
    "head_row_s": 0.0,
    "head_read_s": 0.0,
    "decode_fixed_s": 0.0,
    "context_token_s": 0.0,
    "prefill_fixed_s": 0.0,
    "prefill_token_s": 0.0,
    "pair_s": 0.0,
    "context_read_s": 0.0,
    "copy_s": 0.0,
    "transfer_overhead_s": 0.0,
    "kv_block_bytes": 1,
    "link_in_bytes_per_s": 1.0,
    "link_out_bytes_per_s": 1.0,
    "contention_in": 1.0,
    "contention_out": 1.0,
}


def make_settings(blocks: int = 4, **changes: Any) -> EngineSettings:
    """Settings of the small world: `blocks` usable blocks of 4 tokens, steps as the clock."""
    base: dict[str, Any] = {
        "num_gpu_blocks": blocks + 1,
        "block_size": 4,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "max_model_len": 64,
        "enable_prefix_caching": False,
        "clock": "step",
    }
    return EngineSettings(**{**base, **changes})


def decide(
    workload: Workload, settings: EngineSettings, folder: Path
) -> tuple[list[dict[str, Any]], Recording]:
    """Run to the end: one decision record a step, as `--decisions` writes them, and the recording."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "decisions.jsonl"
    write_decisions(workload, settings, folder / "recording", log)
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return records, open_recording(folder / "recording")


def tokens_of(records: Iterable[Mapping[str, Any]]) -> list[dict[str, int]]:
    """Per step: request -> tokens scheduled."""
    return [{e["id"]: e["tokens"] for e in r["scheduled"]} for r in records]


def compact(record: Mapping[str, Any]) -> dict[str, Any]:
    """A decision record with the compared fields only, nested records as lists."""
    row: dict[str, Any] = {}
    for name in FIELDS:
        value = record[name]
        if name in _NESTED:
            value = [[e[k] for k in _NESTED[name]] for e in value]
        elif name in ("blocks", "blocks_end"):
            value = [value[k] for k in _COUNTS]
        row[name] = value
    # Requests whose blocks are on their way stand before those that wait, as vLLM would pop them.
    row["waiting"] = record["deferred"] + record["waiting"]
    return row


def decision_records(
    workload: Workload, settings: EngineSettings, folder: Path
) -> tuple[str, list[dict[str, Any]]]:
    """Status and compact records of a run, through the file that `--decisions` writes."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "decisions.jsonl"
    status = write_decisions(workload, settings, folder / "recording", log)
    return status, [compact(json.loads(line)) for line in log.read_text().splitlines()]


def read_steps(path: Path) -> list[dict[str, Any]]:
    """Compact records from a gzipped JSON-lines file."""
    with gzip.open(path, "rt", encoding="utf-8") as handle:
        return [json.loads(line) for line in handle]


def first_difference(ours: list[dict[str, Any]], want: list[dict[str, Any]]) -> str | None:
    """The first field that differs, with both sides, or None."""
    for a, b in zip(ours, want, strict=False):
        for name in FIELDS:
            if a[name] != b[name]:
                return f"step {b['step']}, {name}:\n  ours {a[name]}\n  vllm {b[name]}"
    if len(ours) != len(want):
        return f"{len(ours)} steps, and vllm takes {len(want)}"
    return None
