"""A Workload and settings to a Recording: the compiled core, a virtual clock, and the recorder.

It runs fixed-size chunks of steps, so that memory stays constant, progress shows and cancel works.
It decides nothing (core/) and knows no formula (cost_model.py).
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import polars as pl
import pyarrow as pa

from engine import VERSION
from engine.config import EngineSettings, Resolved, resolve
from engine.core.loop import Code, begin, finish, run_chunk
from engine.core.state import State, make_state
from engine.ownership import Ownership
from engine.recorder import WORK, Recorder, prepare_directory, writing
from traces.errors import RecordingError, SettingsError
from traces.workload import Workload

if TYPE_CHECKING:
    from engine.recorded_times import RecordedTimes

CHUNK_STEPS = 8_000
LONGEST_RUN_S = 1e10  # 300 years: beyond it, a number is wrong, not the load high
BASELINE = "0.26.0"
# What an executor knows of the work in a step: nothing is executed here.
NOT_RECORDED = tuple(f"steps.{name}" for name, _ in WORK)
END_STATUS = {
    Code.DONE: "completed",
    Code.STALLED: "stalled",
    Code.LIVELOCK: "livelock",
    Code.MAX_STEPS: "max_steps",
}


@dataclass(frozen=True)
class Progress:
    """How far a run is: share of requests that ended, steps so far, simulated seconds."""

    fraction_finished: float
    steps: int
    sim_time_s: float


@dataclass(frozen=True)
class SimulationResult:
    """What a run came to. status: completed, cancelled, stalled, livelock or max_steps."""

    path: Path
    status: str
    num_steps: int
    num_requests: int
    num_unfinished: int
    num_preemptions: int
    duration_s: float
    wall_s: float


def simulate(
    workload: Workload,
    settings: EngineSettings,
    out_dir: str | Path,
    *,
    progress: Callable[[Progress], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
    overwrite: bool = False,
    blocks: bool = False,
    times: RecordedTimes | None = None,
) -> SimulationResult:
    """Run `workload` under `settings` and record every step and event in `out_dir`.

    progress and cancelled are called between chunks of steps. A cancelled run leaves a readable
    recording of what it did. blocks: record who held which block, too (some ten times slower, as
    every step is looked at). times: of a recording, for the clock `measured`; where the recorded run
    was stopped from outside, this one ends there too, with its status.

    Raises: SettingsError before anything is written; RecordingError where `times` are of another run,
    what was decided until then is recorded.
    """
    run = _Run(workload, settings, out_dir, overwrite, blocks=blocks, times=times)
    started = time.perf_counter()
    status = None
    while status is None:
        try:
            code = run.chunk(CHUNK_STEPS)
            status = run.status(code)
        except RecordingError:
            run.close("failed", time.perf_counter() - started)
            raise
        run.record()
        if progress is not None:
            progress(run.progress())
        if status is None and cancelled is not None and cancelled():
            status = "cancelled"
    return run.close(status, time.perf_counter() - started)


def simulate_by_step(
    workload: Workload,
    settings: EngineSettings,
    out_dir: str | Path,
    *,
    overwrite: bool = False,
    blocks: bool = False,
    times: RecordedTimes | None = None,
) -> Iterator[tuple[str, State, np.ndarray]]:
    """The same run, one phase at a time, for whoever wants to look at every decision.

    Yields ("scheduled", state, request ids) after each schedule(), ("processed", ...) after its
    outputs, ("drained", ...) when an output came without a step; last (status, ...) when the run
    has ended and its recording is closed. The arrays of the state are valid until the next step.
    """
    run = _Run(workload, settings, out_dir, overwrite, blocks=blocks, times=times)
    started = time.perf_counter()
    while True:
        code = run.begin()
        if code == Code.FLUSH:
            run.record()
            continue
        if code == Code.DRAINED:
            yield "drained", run.state, run.ids
        if code == Code.MORE:
            yield "scheduled", run.state, run.ids
            code = run.finish()
            yield "processed", run.state, run.ids
        status = run.status(code)
        if status is not None:
            run.close(status, time.perf_counter() - started)
            yield status, run.state, run.ids
            return


def warm_up() -> float:
    """Compile the core, or load it where it is compiled already; returns the seconds it took."""
    started = time.perf_counter()
    one = np.ones(1)
    columns: dict[str, np.ndarray] = {
        "arrival_s": one,
        "prompt_tokens": one,
        "output_tokens": one,
        "priority": one,
        "abort_s": one * np.nan,
        "abort_tie": one,
        "seg_count": one * 0,
        "seg_id": np.zeros(0, np.uint64),
        "seg_len": np.zeros(0, np.int64),
    }
    resolved = resolve(EngineSettings(num_gpu_blocks=4))
    state = make_state(columns, resolved.rules)
    run_chunk(state, resolved.rules, resolved.cost, 1)
    return time.perf_counter() - started


class _Run:
    """One run in progress: the state, its recorder, and the books of both."""

    def __init__(
        self,
        workload: Workload,
        settings: EngineSettings,
        out_dir: str | Path,
        overwrite: bool,
        *,
        blocks: bool = False,
        times: RecordedTimes | None = None,
    ) -> None:
        if (times is None) == (settings.clock == "measured"):
            raise SettingsError(
                "the clock measured takes its times from a recording: `python -m engine replay RECORDING --clock measured`. Use the modelled clock."
            )
        self.times = times
        self.ownership = Ownership() if blocks else None
        self.resolved = resolve(settings, concurrency=workload.concurrency)
        columns = core_columns(workload, settings)
        self.state = make_state(columns, self.resolved.rules)
        self.ids = workload.table["request_id"].to_numpy()
        # Before anything on disk is touched: the core takes these settings at all.
        run_chunk(self.state, self.resolved.rules, self.resolved.cost, 0)
        directory = prepare_directory(out_dir, overwrite=overwrite)
        self.recorder = Recorder(
            directory,
            run_metadata(workload, self.resolved) | {"not_recorded": list(NOT_RECORDED)},
            self.ids,
            columns["priority"],
            settings.block_size,
            self.resolved.pool_blocks,
            prefix_lists(workload),
            spans=blocks,
        )
        self.preemptions = 0
        self.steps = 0

    def chunk(self, iterations: int) -> Code:
        """Run up to so many iterations, or until a buffer is full or the run has ended."""
        if self.ownership is None and self.times is None:
            rules, cost = self.resolved.rules, self.resolved.cost
            return Code(run_chunk(self.state, rules, cost, iterations))
        for _ in range(iterations):
            code = self.begin()
            if code == Code.MORE:
                code = self.finish()
            if code not in (Code.MORE, Code.DRAINED):
                return code
            if self.times is not None and self.times.ended(self.state):
                return code
        return Code.MORE

    def status(self, code: Code) -> str | None:
        """How the run ended, if that iteration was its last. Raises RecordingError: before its times did."""
        if self.times is not None:
            if self.times.ended(self.state):
                return self.times.status
            if code in END_STATUS:
                self.times.check_end()
        return END_STATUS.get(code)

    def begin(self) -> Code:
        """One `begin`, with what is looked at and given around it."""
        if self.times is not None:
            self.times.before(self.state)
        code = Code(begin(self.state, self.resolved.rules, self.resolved.cost))
        if code == Code.MORE:
            if self.ownership is not None:
                spans = self.ownership.look(self.state, int(self.state.c[0].step))
                self.recorder.add_spans(spans)
            if self.times is not None:
                self.times.decided(self.state, self.resolved.rules, self.ids)
        return code

    def finish(self) -> Code:
        """One `finish`."""
        return Code(finish(self.state, self.resolved.rules))

    def record(self) -> None:
        """Empty the core's row buffers into the recorder."""
        s, c = self.state, self.state.c[0]
        if not c.gpu_free_s < LONGEST_RUN_S:
            raise SettingsError(
                f"the run would last {c.gpu_free_s:g} s by step {self.steps + c.num_step_rows:,}: a parameter of the "
                "cost model, the latency or the rate scale is absurd. What was recorded before is readable."
            )
        steps = s.step_rows[: c.num_step_rows]
        self.preemptions += int(steps["num_preempted"].sum())
        self.steps += len(steps)
        with writing(self.recorder.directory):
            written = self.recorder.add(steps, s.event_rows[: c.num_event_rows], s.requests)
            if written and self.ownership is not None:
                self.recorder.add_spans(self.ownership.cut())
        c.num_step_rows = c.num_event_rows = 0

    def progress(self) -> Progress:
        c = self.state.c[0]
        return Progress(
            float(c.num_ended) / max(1, len(self.ids)), self.steps, float(c.gpu_free_s)
        )

    def close(self, status: str, wall_s: float) -> SimulationResult:
        """Record what is left, unfinished requests included, and close the recording."""
        self.record()
        c = self.state.c[0]
        unfinished = len(self.ids) - int(c.num_ended)
        if unfinished:
            ended = np.isin(self.state.requests["status"][:-1], (6, 7, 8))
            self.recorder.add_requests(np.flatnonzero(~ended), self.state.requests)
        if self.ownership is not None:
            self.recorder.add_spans(self.ownership.cut())
        with writing(self.recorder.directory):
            self.recorder.close(status)
        return SimulationResult(
            self.recorder.directory,
            status,
            self.steps,
            len(self.ids),
            unfinished,
            self.preemptions,
            float(c.gpu_free_s),
            wall_s,
        )


def prefix_lists(workload: Workload) -> tuple[pa.Array, pa.Array] | None:
    """prefix_ids and prefix_tokens of each request, or None where none has any."""
    lists = workload.table.select("prefix_ids", "prefix_tokens")
    if not lists["prefix_ids"].list.len().sum():
        return None
    ids, tokens = lists["prefix_ids"].to_arrow(), lists["prefix_tokens"].to_arrow()
    return ids.cast(pa.list_(pa.uint64())), tokens.cast(pa.list_(pa.int64()))


def core_columns(workload: Workload, settings: EngineSettings) -> dict[str, np.ndarray]:
    """The workload's columns as `make_state` takes them.

    Raises: SettingsError where the step clock is asked for and the trace has no arrival steps.
    """
    table = workload.table
    arrival = table["arrival_s"].to_numpy()
    abort = table["abort_s"].fill_null(np.nan).to_numpy()
    if settings.clock == "step":
        if table["arrival_step"].null_count():
            raise SettingsError(
                f"{workload.name}: the step clock needs a column arrival_step in every row. Use the modelled clock, or add it."
            )
        arrival = table["arrival_step"].cast(float).to_numpy()
        abort = table["abort_step"].cast(float).fill_null(np.nan).to_numpy()
    prefix = table["prefix_ids"]
    count = prefix.list.len().fill_null(0).to_numpy()
    flat = prefix.explode(empty_as_null=False, keep_nulls=False).to_numpy()
    lengths = table["prefix_tokens"].explode(empty_as_null=False, keep_nulls=False).to_numpy()
    if len(lengths) != len(flat):
        size = workload.prefix_block_tokens or settings.block_size
        lengths = np.full(len(flat), size, np.int64)
    return {
        "arrival_s": arrival,
        "prompt_tokens": table["prompt_tokens"].to_numpy(),
        "output_tokens": table["output_tokens"].to_numpy(),
        "priority": table["priority"].to_numpy(),
        "abort_s": abort,
        "abort_tie": _abort_tie(table),
        "seg_count": count,
        "seg_id": flat,
        "seg_len": lengths,
    }


def _abort_tie(table: pl.DataFrame) -> np.ndarray:
    """Order of aborts at one time: by id, but for what was recorded in another order."""
    ids = table["request_id"].to_numpy().astype(str)
    told = np.zeros(len(ids), np.int64)
    if "abort_order" in table.columns:
        told = table["abort_order"].fill_null(np.iinfo(np.int64).max).to_numpy()
    tie = np.empty(len(ids), np.int64)
    tie[np.lexsort((ids, told))] = np.arange(len(ids))
    return tie


def run_metadata(workload: Workload, resolved: Resolved) -> dict[str, Any]:
    """What made the run, as the recording's metadata holds it (traces/schema.py)."""
    s = resolved.settings
    settings: dict[str, Any] = asdict(s)
    settings["cost_overrides"] = dict(s.cost_overrides)
    settings |= {
        "num_gpu_blocks": resolved.num_gpu_blocks,
        "max_num_seqs": resolved.rules.max_num_seqs,
        "max_num_batched_tokens": resolved.rules.token_budget,
        "max_model_len": resolved.rules.max_model_len,
    }
    return {
        "executor": "simulator",
        "clock": "modelled" if s.clock == "latency" else s.clock,
        "settings": settings,
        "model": _plain(asdict(resolved.model)),
        "device": _plain(asdict(resolved.device)),
        "cost_model": resolved.cost._asdict(),
        "pool_blocks": resolved.pool_blocks,
        "host_pool_blocks": resolved.host_blocks,
        "block_bytes": resolved.block_bytes,
        "workload": {
            "name": workload.name,
            "format": workload.report.format,
            "digest": workload.digest,
            "num_requests": len(workload),
            "estimated": workload.estimated,
            "prefix_block_tokens": workload.prefix_block_tokens,
            "concurrency": workload.concurrency,
            "notes": list(workload.report.notes),
        },
        "seed": s.seed,
        "software": {
            "kv_replay": VERSION,
            "python": platform.python_version(),
            "numba": numba.__version__,
            "numpy": np.__version__,
            "pyarrow": pa.__version__,
        },
        "host": {"platform": sys.platform, "cpus": os.cpu_count()},
        "vllm_baseline": BASELINE,
    }


def _plain(value: Any) -> Any:
    """JSON-able copy of nested dicts of numbers and strings."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (np.integer, np.floating)):
        return value.item()
    return value
