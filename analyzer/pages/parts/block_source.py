"""Who held which block: from the recording, or from its replay, which is kept on disk.

It knows when a recording can be replayed as it was, and that a replay which came out differently says
nothing about it. The engine is imported when a replay is asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import polars as pl
import streamlit as st

from analyzer.block_picture import BlockRun
from analyzer.look import Side
from analyzer.pages.parts.jobs import Cancelled, Report
from analyzer.pages.parts.replay import engine_stamp, wait_for_core
from analyzer.pages.parts.store import Store
from analyzer.run import Run
from traces.errors import RecordingError
from traces.recording import open_recording
from traces.schema import CLOSED_FILE, SCHEMA_VERSION

DIFFERS_FILE = "differs.json"  # beside a kept replay that came out differently: in what


def replay_id(run: Run) -> str:
    """32 hex digits, the same for the same recording and engine."""
    made_of = f"blocks\0{SCHEMA_VERSION}\0{engine_stamp()}\0{run.ref}\0{run.stamp}"
    return hashlib.blake2b(made_of.encode(), digest_size=16).hexdigest()


def mapped(run: Run, store: Store) -> BlockRun | None:
    """The run with its ownership, indexed once; None where nothing tells it.

    Raises RecordingError for a kept replay that differs.
    """
    key = f"{run.ref}\0{run.stamp}"
    if run.recording.blocks is not None:
        return _indexed(key, run, run.recording.blocks)
    kept = store.run_dir(replay_id(run))
    if not (kept / CLOSED_FILE).exists():
        return None
    if (kept / DIFFERS_FILE).exists():
        said = json.loads((kept / DIFFERS_FILE).read_text("utf-8"))["difference"]
        raise RecordingError(
            run.recording.label,
            "replay with ownership",
            f"it came out differently from the recording ({said}), so it does not tell who held which block",
            "Record the run again with --blocks.",
        )
    return _replayed(f"{key}\0{kept.name}", run, str(kept))


@st.cache_resource(max_entries=4, show_spinner="Sorting who held which block")
def _indexed(key: str, _run: Run, _blocks: pl.DataFrame) -> BlockRun:
    return BlockRun(_run, _blocks)


@st.cache_resource(max_entries=4, show_spinner="Sorting who held which block")
def _replayed(key: str, _run: Run, path: str) -> BlockRun:
    blocks = open_recording(Path(path)).blocks
    assert blocks is not None
    return BlockRun(_run, blocks)


def why_not(run: Run) -> str | None:
    """Why the recording cannot be replayed step by step; None where it can."""
    meta = run.meta
    if meta.clock == "measured" and meta.executor != "torch":
        return f"its times were measured by {meta.executor or 'an unknown engine'}, which cannot be run again here"
    if meta.executor not in ("simulator", "torch"):
        return f"it was written by {meta.executor or 'an unknown engine'}"
    if run.recording.status != "completed" and meta.clock != "measured":
        return f"the run did not complete ({run.recording.status})"
    return None


def replay_with_blocks(
    runs: Mapping[Side, Run], store: Store, report: Report, cancelled: Cancelled
) -> bool:
    """Replay these recordings as they were, ownership noted, and keep that. True when all are kept.

    Raises what the engine raises.
    """
    for side, run in runs.items():
        if not _replay(run, side, store, report, cancelled):
            return False
    store.forget_old_runs()
    return True


def _replay(run: Run, side: Side, store: Store, report: Report, cancelled: Cancelled) -> bool:
    from engine.recorded_times import RecordedTimes
    from engine.replay import compare, settings_of
    from engine.simulator import Progress, simulate
    from engine.trials import whole
    from traces.replay import workload_of

    target = store.run_dir(replay_id(run))
    before = (target / CLOSED_FILE).exists()

    def make(part: Path) -> bool:
        if not wait_for_core(partial(report, side), cancelled):
            return False
        report(side, 0.0, "starting")
        settings = settings_of(run.meta)
        times = RecordedTimes(run.recording) if settings.clock == "measured" else None
        workload = workload_of(run.recording, as_it_ended=times is not None)

        def progress(p: Progress) -> None:
            report(side, p.fraction_finished, f"{p.steps:,} steps replayed")

        simulate(
            workload, settings, part, blocks=True, times=times, progress=progress, cancelled=cancelled,
        )  # fmt: skip
        if cancelled():
            return False
        report(side, 1.0, "checking that it came out as recorded")
        with open_recording(part) as again:
            found = compare(run.recording, again)
        if found.difference is not None:
            (part / DIFFERS_FILE).write_text(
                json.dumps({"difference": found.difference}), "utf-8"
            )
        return True

    if whole(target, CLOSED_FILE, make) is None:
        return False
    report(side, 1.0, "replayed before" if before else "done")
    return True
