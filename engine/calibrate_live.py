"""Samples of a device from a recording that does not say what each step computed, as of a live vLLM.

The scheduler decides again, step by step, with the arrivals at the steps at which they came: what a step
computed then follows from its decisions. Steps whose tokens come out otherwise than recorded are left
out. What is fitted to the samples is `calibrate.py`'s business.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl

from engine.calibrate_metadata import Setup, machine_of
from engine.calibrate_samples import Copies, Source, Steps, clean_steps, digest_of
from engine.core.state import State
from engine.models import load_model
from engine.replay import settings_of
from engine.simulator import simulate_by_step
from traces.errors import RecordingError
from traces.recording import Recording
from traces.replay import workload_of

MAX_STEPS = 100_000  # looked at one by one, some 50 us each
LEAST_AGREEING = 0.5  # share of the steps that must come out as recorded
_COLUMNS = ("num_decode", "decode_ctx_tokens", "num_chunks", "chunk_tokens", "prefill_qk", "num_logit_rows")  # fmt: skip
_MEASURED = ("duration_s", "stall_s", "swap_out_bytes", "swap_in_bytes", "link_out_busy_s", "link_in_busy_s",
             "prefill_tokens", "decode_tokens", "recomputed_tokens")  # fmt: skip
_REMEDY = "Record from the start of the server, or calibrate on a run of the torch engine."


def live_source(recording: Recording, cancelled: Callable[[], bool] | None = None) -> Source:
    """Samples of a measured recording, its work worked out by deciding again.

    Raises: RecordingError for times that were not measured, a model that is not known, has experts or MLA
    or is split over devices, and where the steps come out otherwise than recorded.
    """
    meta, label = recording.meta, recording.label
    setup = _setup(recording)
    steps, dropped = live_steps(recording, cancelled)
    none = np.empty(0)
    digest = digest_of(recording)
    return Source(
        label=label,
        digest=digest,
        workload=str(meta.workload_digest or digest),
        workload_name=str(meta.workload.get("name") or label),
        machine=machine_of(meta),
        software={k: v for k, v in meta.software.items() if isinstance(v, (str, int))},
        setup=setup,
        steps=steps,
        copies=Copies(none.astype(bool), none, none, none, none),
        dropped=dropped,
    )


def live_steps(
    recording: Recording, cancelled: Callable[[], bool] | None = None
) -> tuple[Steps, dict[str, int]]:
    """Clean steps with what they computed, and how many were left out for which reason.

    Raises: RecordingError for times that were not measured, and where the steps come out otherwise.
    """
    label = recording.label
    if recording.meta.clock != "measured":
        raise RecordingError(label, "", "its times were not measured", _REMEDY)
    frame = recording.scan("steps").select("step", *_MEASURED).head(MAX_STEPS).collect()
    agreed = _work(recording, cancelled)
    joined = frame.join(agreed, on="step", how="left", maintain_order="left")
    recorded = pl.col("prefill_tokens") + pl.col("decode_tokens") + pl.col("recomputed_tokens")
    same = recorded == pl.col("num_decode") + pl.col("chunk_tokens")
    busy = joined.filter(recorded > 0)
    share = float(busy.select(same.fill_null(False).mean()).item() or 0.0)
    if share < LEAST_AGREEING:
        raise RecordingError(
            label,
            "table steps",
            f"only {share:.0%} of its steps come out as recorded when they are decided again, so what they computed is not known",
            _REMEDY,
        )
    joined = joined.with_columns(
        pl.when(same.fill_null(False)).then(pl.col(c)).alias(c) for c in _COLUMNS
    )
    return clean_steps(joined)


def _setup(recording: Recording) -> Setup:
    """Model and types by the settings' names. Raises RecordingError, SettingsError."""
    meta = recording.meta
    settings = meta.settings
    model = load_model(str(settings.get("model")))
    tp = settings.get("tensor_parallel_size", 1)
    if model.is_moe or model.is_mla or tp != 1:
        what = f"tensor parallelism {tp!r}" if tp != 1 else "a model with experts or MLA"
        raise RecordingError(
            recording.label,
            "metadata",
            f"the run used {what}, and calibration fits dense models on one device",
            "Simulate it on the preset that is nearest.",
        )
    return Setup(
        model,
        str(settings.get("kv_cache_dtype") or "auto"),
        str(settings.get("weight_dtype") or "auto"),
        meta.block_size_tokens or 16,
    )


def _work(recording: Recording, cancelled: Callable[[], bool] | None) -> pl.DataFrame:
    """step and _COLUMNS, of every step that is decided again on the clock of steps."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that are not known: `_setup` refuses them
        settings = settings_of(recording.meta, clock="step", cost_overrides={})
    workload = workload_of(recording)
    rows: list[tuple[float, ...]] = []
    with tempfile.TemporaryDirectory(prefix="kv-replay-") as scratch:
        again = simulate_by_step(workload, settings, Path(scratch) / "run")
        for phase, state, _ in again:
            if phase == "scheduled":
                rows.append(work_of(state))
            if len(rows) >= MAX_STEPS or (cancelled is not None and cancelled()):
                break
        again.close()  # type: ignore[attr-defined]  # a generator
    columns = (
        dict(zip(("step", *_COLUMNS), zip(*rows, strict=True), strict=True)) if rows else {}
    )
    frame = pl.DataFrame(columns, schema=dict.fromkeys(("step", *_COLUMNS), pl.Float64))
    return frame.with_columns(pl.col("step").cast(pl.Int64))


def work_of(s: State) -> tuple[float, ...]:
    """What the step just scheduled computes, as the cost model sees it (engine/core/outputs.py)."""
    c = s.c[0]
    seats = s.seats[: c.num_sched]
    tokens = seats["sched_tok"].astype(np.int64)
    requests = s.requests[seats["sched_req"]]
    end = requests["num_computed"].astype(np.int64)
    alone = tokens == 1
    chunks = ~alone
    n, start = tokens[chunks], (end - tokens)[chunks]
    return (
        int(c.step),
        int(alone.sum()),
        int(end[alone].sum()),
        int(chunks.sum()),
        int(n.sum()),
        float((n * (start + 0.5 * n)).sum()),
        int((end >= requests["num_tokens"]).sum()),
    )
