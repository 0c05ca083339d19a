"""The requests that telemetry tells of, as a Workload that can be run again.

A stat logger reports each request that ended with its lengths and times, so arrivals and lengths are
known; what shared a prefix, and what had not ended, is not. Estimating requests from samples alone is
another matter, and done elsewhere.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from traces.errors import NotAWorkloadError
from traces.formats.build import to_workload
from traces.formats.raw import RawTrace
from traces.telemetry import Telemetry, open_telemetry
from traces.workload import Workload

FORMAT = "KV Replay telemetry"


def workload_of_telemetry(
    telemetry: Telemetry, window_s: tuple[float, float | None] | None = None
) -> Workload:
    """The requests that ended, in order of arrival; window_s: as in `open_workload`.

    Requests that were aborted are taken to have wanted what they got. Raises NotAWorkloadError where
    no request is told with its arrival and lengths, WorkloadError where none can be replayed.
    """
    ended = telemetry.finished_requests
    needed = ("arrival_s", "prompt_tokens", "output_tokens")
    if ended is None or not ended.drop_nulls(needed).height:
        raise NotAWorkloadError(
            telemetry.label,
            "",
            "the telemetry tells of no request with its arrival and lengths",
            "Give a request trace, or telemetry of vLLM's stat logger.",
        )
    rows = ended.select("request_id", *needed)
    if rows["request_id"].null_count():
        rows = rows.drop("request_id")
    raw = RawTrace(
        FORMAT, rows.sort("arrival_s", maintain_order=True), notes=tuple(_notes(ended))
    )
    return to_workload(raw, telemetry.label, window_s)


def _notes(ended: pl.DataFrame) -> list[str]:
    notes = [
        "Requests that had not ended when the telemetry did are not in it.",
        "Shared prefixes were not recorded: every prompt is taken to be unlike any other.",
    ]
    aborted = int((ended["reason"] == "abort").sum())
    if aborted:
        notes.append(f"{aborted:,} requests were aborted; they are taken to end by themselves.")
    return notes


def open_telemetry_workload(
    path: str | Path,
    name: str | None = None,
    window_s: tuple[float, float | None] | None = None,
) -> Workload:
    """The Workload of a telemetry folder. Raises RecordingError, WorkloadError."""
    return workload_of_telemetry(open_telemetry(path, name), window_s)
