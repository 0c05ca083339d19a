"""What a file is, in figures: kind, format, counts, percentiles, and what would not be replayed.

Figures are of the file as it lies there, before failed requests are set aside; `dropped` says what
a replay would leave out. No Workload is built, so a trace of millions of rows needs only its numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from traces.errors import NotAWorkloadError, RecordingError, SettingsError, WorkloadError
from traces.formats import formats
from traces.formats.figures import aside_reasons, dropped, figures, nothing_left, prefix_figures
from traces.formats.generic import NoArrivalsError, has_needed, shape_name
from traces.formats.raw import RawTrace, ReadOptions
from traces.formats.refusals import recognise
from traces.formats.source import Source, inspect
from traces.open import FLEET, RECORDING, SAMPLE_PREFIX, TELEMETRY, read_raw, what_is

FIGURES = (
    "requests",
    "first_s",
    "span_s",
    "out_of_order",
    "duplicate_timestamps",
    "prompt_tokens",
    "output_tokens",
    "zero_output",
    "dropped",
)


def describe(
    path: str | Path,
    *,
    name: str | None = None,
    mapping: Mapping[str, str] | None = None,
    time_unit: str | None = None,
) -> dict[str, Any]:
    """The description of one file as plain values (JSON can hold them).

    Keys: file, kind (workload, recording, telemetry, fleet, refused), format, the FIGURES (None where
    the file has none), notes, replayable, time_unit, columns, prefix, details; for telemetry in logs,
    refused and damaged files also reason and what_to_do; for telemetry that was recorded samples,
    ranks, values and missing; for a fleet members. Raises nothing for a file that can be refused.
    """
    shown = Path(name or path).name
    try:
        if str(path).startswith(SAMPLE_PREFIX):
            return _blank(shown) | _sample(str(path).removeprefix(SAMPLE_PREFIX))
        found, what = what_is(path)
        if what in _OPENED:
            return _blank(shown) | _OPENED[what](found, name)
        source = inspect(path, name)
        return _blank(shown) | _workload(source, ReadOptions(mapping, time_unit))
    except NotAWorkloadError as e:
        return _blank(shown) | _refused(path, name, e)
    except SettingsError as e:
        unknown = {"reason": str(e), "what_to_do": "Give one of those names."}
        return _blank(shown) | {"kind": "refused"} | unknown
    except (WorkloadError, RecordingError) as e:
        place = f"{e.place}: " if e.place else ""
        kind = {"kind": "refused", "format": _format_of(path, name)}
        return _blank(shown) | kind | {"reason": place + e.fault, "what_to_do": e.remedy}


def _blank(name: str) -> dict[str, Any]:
    return {
        "file": name,
        "kind": "refused",
        "format": "unknown",
        **dict.fromkeys(FIGURES),
        "notes": [],
    }


def _sample(name: str) -> dict[str, Any]:
    """A bundled sample, which is no file."""
    from traces.samples import load

    workload = load(name)
    asked = workload.table.select("arrival_s", "prompt_tokens", "output_tokens")
    return {
        "kind": "workload",
        "format": workload.report.format,
        **asdict(figures(RawTrace(workload.report.format, asked))),
        "dropped": {},
        "notes": list(workload.report.notes),
        "replayable": len(workload),
        "estimated": workload.estimated,
    }


def _workload(source: Source, options: ReadOptions) -> dict[str, Any]:
    raw = read_raw(source, options)
    reasons = aside_reasons(source.name, raw)
    seen = figures(raw)
    details = {k: v for k, v in raw.details.items() if k != "session"}
    notes = list(raw.notes)
    if seen.out_of_order:
        notes.append(
            f"{seen.out_of_order:,} rows stand before an earlier arrival; a replay sorts them."
        )
    kept = int(reasons.null_count())
    none_left = {}
    if not kept:
        reason, remedy = nothing_left(raw.frame.height, dropped(reasons))
        none_left = {"kind": "refused", "reason": reason, "what_to_do": remedy}
    return {
        "kind": "workload",
        "format": raw.format,
        **asdict(seen),
        "dropped": dropped(reasons),
        "notes": notes,
        "replayable": kept,
        "time_unit": raw.time_unit,
        "columns": dict(raw.columns),
        "prefix": prefix_figures(raw),
        "estimated": raw.estimated,
        "details": details,
        **none_left,
    }


def _format_of(path: str | Path, name: str | None) -> str:
    """The title of the format that a refused file is in, as far as its head tells."""
    try:
        source = inspect(path, name)
    except WorkloadError:
        return "unreadable"
    titles = (f.title for f in formats() if f.name != "generic" and f.sniff(source))
    return next(titles, f"generic {shape_name(source)}" if has_needed(source) else "unknown")


def _refused(path: str | Path, name: str | None, e: NotAWorkloadError) -> dict[str, Any]:
    out: dict[str, Any] = {
        "kind": "refused",
        "format": _format_of(path, name),
        "reason": e.fault,
        "what_to_do": e.remedy,
    }
    found = recognise(inspect(path, name))
    if found is not None:
        out |= {"kind": found.kind, "format": found.format}
    if found is not None and found.kind == "telemetry":
        out["notes"] = ["Telemetry is recognised here and not yet read."]
    if isinstance(e, NoArrivalsError) and e.lengths is not None:
        out |= {"format": "lengths without arrivals", **e.lengths}
    return out


def _recording(path: str | Path, name: str | None) -> dict[str, Any]:
    from traces.recording import open_recording

    with open_recording(path, name) as recording:
        requests = recording.requests
    asked = RawTrace(
        "KV Replay recording", requests.select("arrival_s", "prompt_tokens", "output_tokens")
    )
    seen = figures(asked)
    return {"kind": "recording", "format": asked.format, **asdict(seen), "dropped": {}}


def _telemetry(path: str | Path, name: str | None) -> dict[str, Any]:
    from traces.telemetry import open_telemetry

    telemetry = open_telemetry(path, name)
    times = telemetry.samples["t_s"].drop_nulls()
    ended = telemetry.finished_requests
    engine = telemetry.meta.get("engine", {})
    known = " ".join(str(engine[k]) for k in ("name", "version") if engine.get(k))
    return {
        "kind": TELEMETRY,
        "format": f"KV Replay telemetry of {known}" if known else "KV Replay telemetry",
        "samples": telemetry.rows["samples"],
        "ranks": list(telemetry.ranks),
        "first_s": times.min(),
        "span_s": _span_s(times),
        "finished_requests": None if ended is None else ended.height,
        "values": telemetry.present,
        "inferred": dict(telemetry.inferred),
        "missing": telemetry.missing_by_reason(),
        "notes": list(telemetry.notes),
    }


def _span_s(times: pl.Series) -> float | None:
    return float(times.max() - times.min()) if len(times) else None  # type: ignore[operator, arg-type]


def _fleet(path: str | Path, name: str | None) -> dict[str, Any]:
    from traces.fleet import open_fleet

    fleet = open_fleet(path, name)
    kinds = [
        f"{len(own)} {one if len(own) == 1 else more}"
        for one, more, own in (
            ("recording", "recordings", fleet.recordings),
            ("telemetry recording", "telemetry recordings", fleet.telemetry),
            ("that cannot be read", "that cannot be read", fleet.broken),
        )
        if own
    ]
    return {
        "kind": FLEET,
        "format": f"fleet of {', '.join(kinds)}",
        "members": [{"label": m.label, "kind": m.kind, "rank": m.rank} for m in fleet.members],
        "broken": [{"label": b.label, "reason": str(b.error)} for b in fleet.broken],
        "notes": [*fleet.notes, fleet.how_to_choose()],
    }


_OPENED = {RECORDING: _recording, TELEMETRY: _telemetry, FLEET: _fleet}
