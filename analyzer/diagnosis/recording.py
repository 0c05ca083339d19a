"""Diagnosis of our own recordings and telemetry, where more is known than any log says.

A recording becomes evidence with every value known: a sample a step, or, for long ones, a sample for
several steps in a row, with sums of what is counted and the state at their end.
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from analyzer.diagnosis.capping import SIMULATED
from analyzer.diagnosis.diagnose import diagnose
from analyzer.diagnosis.findings import Diagnosis
from traces.errors import SettingsError
from traces.evidence.evidence import FACTS, Evidence, Fact, SourceReport
from traces.recording import Recording
from traces.telemetry import Telemetry, make_telemetry
from traces.telemetry_schema import telemetry_metadata

MAX_SAMPLES = 4000
_SETTINGS = (
    "block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "gpu_memory_utilization",
    "preemption_mode", "enable_prefix_caching", "enable_chunked_prefill", "kv_cache_dtype", "policy",
    "tensor_parallel_size",
)  # fmt: skip


def diagnose_recording(recording: Recording) -> Diagnosis:
    """The diagnosis of a recording, all quantities known."""
    return diagnose(recording_evidence(recording))


def diagnose_folder(path: str | Path) -> Diagnosis:
    """The diagnosis of a recording's or telemetry's folder. Raises RecordingError, SettingsError."""
    from traces.open import FLEET, TELEMETRY, what_is
    from traces.recording import open_recording
    from traces.telemetry import open_telemetry

    path, kind = what_is(path)
    if kind == FLEET and not any(Path(path).iterdir()):
        raise SettingsError(
            f"{Path(path).name} is an empty folder. Give a log, metrics, a table, or the folder of a recording."
        )
    if kind == FLEET:
        raise SettingsError(
            f"{Path(path).name} holds several ranks: diagnose the folder of one of them"
        )
    if kind == TELEMETRY:
        return diagnose(telemetry_evidence(open_telemetry(path)))
    with open_recording(path) as recording:
        return _with_command(diagnose_recording(recording), path)


def _with_command(found: Diagnosis, folder: str | Path) -> Diagnosis:
    """The way to the simulated answer as a command on the folder that was given."""
    step = found.next_step
    if step.first.change != SIMULATED:
        return found
    command = f"python -m analyzer advise {shlex.quote(str(folder))} --goal no-preemption"
    first = replace(step.first, change=f"{SIMULATED} ({command})")
    return replace(found, next_step=replace(step, first=first))


def recording_evidence(recording: Recording) -> Evidence:
    """Evidence of a recording: samples, the settings as facts, requests that finished."""
    samples = _samples(recording)
    ended = recording.requests.filter(pl.col("finish_s").is_not_null()).select(
        "request_id", "prompt_tokens", "output_tokens", "num_preemptions", "arrival_s"
    )
    settings = dict(recording.meta.settings)
    engine = {"name": "kv-replay", "version": None}
    meta = telemetry_metadata(engine=engine, recorded_by="recording", sampling="steps")
    if ended.height:
        telemetry = make_telemetry(recording.label, samples, meta, finished_requests=ended)
    else:
        telemetry = make_telemetry(recording.label, samples, meta)
    return _evidence(
        recording.label, "kv-replay", "recording", telemetry, _facts(recording, settings)
    )


def telemetry_evidence(telemetry: Telemetry) -> Evidence:
    """Evidence of telemetry that our own recorder wrote inside a server."""
    engine = telemetry.meta.get("engine", {})
    name = engine.get("name") if isinstance(engine, dict) else str(engine)
    said = {
        "version": engine.get("version") if isinstance(engine, dict) else None,
        "model": telemetry.meta.get("model"),
        "block_size": telemetry.meta.get("block_size"),
        "pool_blocks": telemetry.meta.get("pool_blocks"),
    }
    settings = telemetry.meta.get("settings") or {}
    said |= {k: settings[k] for k in _SETTINGS if isinstance(settings, dict) and k in settings}
    facts = tuple(Fact(k, v) for k, v in said.items() if v is not None and k in FACTS)
    return _evidence(telemetry.label, name, "telemetry", telemetry, facts)


def _evidence(
    label: str, engine: str | None, family: str, telemetry: Telemetry, facts: tuple[Fact, ...]
) -> Evidence:
    rows = telemetry.rows.get("samples", 0)
    report = SourceReport(label, "recording", family, engine, rows, rows, 0)
    return Evidence(
        label, engine, family, telemetry, facts, (), (report,), notes=telemetry.notes
    )


def _facts(recording: Recording, settings: dict[str, Any]) -> tuple[Fact, ...]:
    pool, size = recording.pool_blocks, settings.get("block_size")
    found: dict[str, Any] = {"pool_blocks": pool}
    if size:
        found["pool_tokens"] = pool * int(size)
    found |= {k: v for k in _SETTINGS if (v := settings.get(k)) not in (None, "None")}
    model = settings.get("model")
    if model:
        found["model"] = str(model)
    return tuple(Fact(k, v) for k, v in found.items())


def _samples(recording: Recording) -> pl.DataFrame:
    """A sample a step, or for several in a row; counts summed, state of the last."""
    steps = recording.steps
    every = -(-max(steps.height, 1) // MAX_SAMPLES)
    pool = max(recording.pool_blocks, 1)
    state = ["num_running", "num_waiting", "num_swapped", "used_blocks"]
    counted = {
        "num_preempted": "num_preempted",
        "recomputed_tokens": "recomputed_tokens",
        "num_finished": "num_finished",
        "prompt_computed_tokens": "prefill_tokens",
        "generation_tokens": "decode_tokens",
        "prompt_cached_tokens": "cached_tokens",
    }
    grouped = (
        steps.with_row_index("row")
        .group_by(pl.col("row") // every, maintain_order=True)
        .agg(
            (pl.col("t_start_s").last() + pl.col("duration_s").last()).alias("t_s"),
            pl.col("duration_s").sum().alias("interval_s"),
            pl.col("step").last(),
            *(pl.col(c).last().cast(pl.Int64) for c in state),
            *(pl.col(c).sum().cast(pl.Int64).alias(n) for n, c in counted.items()),
        )
        .drop("row")
    )
    frame = grouped.with_columns((pl.col("used_blocks") / pool).alias("kv_usage_frac"))
    return frame if every == 1 else frame.drop("step")
