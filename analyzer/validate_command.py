"""`python -m analyzer validate RECORDING`: how far the simulator is from a recorded run at its own settings.

It simulates the recorded requests under the recorded settings, asks `analyzer.validation`, and prints.
`--calibrate` fits a device to the recording first, and adds the errors on the half of the run that a fit
to the other half has not seen. What a page needs of this, it takes from here.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analyzer.validation import (
    Validation,
    as_document,
    bounds_in_words,
    show_error,
    show_value,
    validate,
)
from traces.errors import KVReplayError, SettingsError
from traces.recording import Recording, open_recording
from traces.replay import workload_of
from traces.workload import Workload

if TYPE_CHECKING:
    from engine.calibrate import Calibration
    from engine.calibrate_samples import Source
    from engine.config import EngineSettings

OWN_CLOCKS = ("modelled", "step", "latency")
OURS = "This recording is the simulator's own: it needs no validation."
Say = Callable[[float, str], object]
Cancelled = Callable[[], bool]


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser of `python -m analyzer`."""
    parser = commands.add_parser(
        "validate",
        help="how far the simulator is from a recorded run, at the run's own settings",
        description="Simulates the requests of a measured recording under its settings and holds blocks in use, preemptions, "
        "throughput, TTFT, TPOT and E2E of both sides against each other. See docs/validation.md.",
    )
    parser.add_argument(
        "recording", help="folder or zip of `engine run`, or of a recorder in a vLLM server"
    )
    parser.add_argument(
        "--calibrate",
        action="store_true",
        help="fit a device to the recording first, and show errors on the half that the fit has not seen",
    )
    parser.add_argument(
        "--device", metavar="NAME|FILE", help="simulate on this device, not on the recorded one"
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, and nothing else, to stdout"
    )
    parser.set_defaults(run=run)


@dataclass(frozen=True)
class Plan:
    """What is simulated to validate a recording: its requests and settings; notes: what is not as it was."""

    workload: Workload
    settings: EngineSettings
    notes: tuple[str, ...]


def is_own(recording: Recording) -> bool:
    """Whether the recording was simulated, so that there is nothing to validate."""
    return recording.meta.executor == "simulator" or recording.meta.clock in OWN_CLOCKS


def plan(recording: Recording, **changes: Any) -> Plan:
    """The requests of a recording and its own settings, with `changes`; on the modelled clock unless it
    was simulated on another.

    Raises: SettingsError, WorkloadError where the recording cannot be run again.
    """
    from engine.replay import settings_of

    said = str(recording.meta.settings.get("clock"))
    clock = said if is_own(recording) and said in OWN_CLOCKS else "modelled"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settings = settings_of(recording.meta, clock=clock, **changes)
    workload = workload_of(recording)
    notes = (*(str(w.message) for w in caught), *workload.report.notes)
    return Plan(workload, settings, notes)


def simulate_plan(
    planned: Plan,
    out: Path,
    say: Say | None = None,
    cancelled: Cancelled | None = None,
    stage: str = "simulating",
    part: tuple[float, float] = (0.0, 1.0),
) -> None:
    """Write the simulated recording into `out`. stage, part: what is said of it, and which share of the
    whole work it is. Raises what the engine raises."""
    from engine.simulator import simulate

    begin, end = part

    def progress(p: Any) -> None:
        if say is not None:
            done = begin + (end - begin) * p.fraction_finished
            say(done, f"{stage}, {p.steps:,} steps")

    simulate(
        planned.workload,
        planned.settings,
        out,
        progress=progress,
        cancelled=cancelled,
        overwrite=True,
    )


@dataclass(frozen=True)
class Calibrated:
    """A device fitted to a recording. path: of the device file; held_out: errors on the second half of
    the run, simulated on a device fitted to the first alone, None and why_not where the first alone does
    not calibrate; step_errors: median errors of step times that a fit to the other steps predicts;
    caution: the calibration's own, else ""."""

    path: Path
    held_out: Validation | None
    why_not: str
    step_errors: tuple[float, ...]
    caution: str


def calibrate_on(
    recording: Recording,
    planned: Plan,
    out: Path,
    say: Say | None = None,
    cancelled: Cancelled | None = None,
) -> Calibrated | None:
    """Fit a device to a recording, write its file to `out` and judge it on what it has not seen; None:
    cancelled.

    Raises: RecordingError, SettingsError where the recording does not calibrate, with the reason.
    """
    from engine.calibrate import calibrate_sources
    from engine.devices import load_device

    def told(done: float, text: str) -> bool:
        if say is not None:
            say(done, text)
        return cancelled is not None and cancelled()

    if told(0.2, "reading what its steps computed"):
        return None
    source = _samples(recording, cancelled)
    base = load_device(planned.settings.device, warn=False)
    if told(0.35, f"fitting to {len(source.steps):,} steps"):
        return None
    done = calibrate_sources([source], base, bootstraps=0)
    if told(0.55, "fitting to the first half, to judge on the second"):
        return None
    held_out, why_not = None, ""
    middle = _middle_s(recording)
    try:
        first = calibrate_sources([_before(source, recording, middle)], base, bootstraps=0)
        held_out = _second_half(recording, planned, first, middle, say, cancelled)
    except KVReplayError as error:
        why_not = f"the first half alone does not calibrate: {error}"
    if cancelled is not None and cancelled():
        return None
    errors = tuple(f.errors.median for f in done.folds if f.errors is not None)
    done.write(out, overwrite=True)
    return Calibrated(out, held_out, why_not, errors, done.caution)


def _samples(recording: Recording, cancelled: Cancelled | None) -> Source:
    """What the recording says of its device; of a live vLLM, what follows from deciding it again."""
    from engine.calibrate_live import live_source
    from engine.calibrate_samples import read_source

    if recording.meta.executor == "vllm":
        return live_source(recording, cancelled)
    return read_source(recording.root)


def _middle_s(recording: Recording) -> float:
    """Time since the first arrival by which half of the requests had come."""
    arrivals = recording.requests["arrival_s"].sort().to_numpy()
    return float(arrivals[len(arrivals) // 2] - arrivals[0]) if len(arrivals) else 0.0


def _before(source: Source, recording: Recording, middle_s: float) -> Source:
    """The steps that began before that time after the first arrival."""
    start = float(recording.requests["arrival_s"].min() or 0.0)  # type: ignore[arg-type]
    steps = recording.steps
    last = steps.filter(steps["t_start_s"] < start + middle_s)["step"].max()
    early = source.steps.step <= (last if isinstance(last, int) else -1)
    return replace(source, steps=source.steps.take(early))


def _second_half(
    recording: Recording,
    planned: Plan,
    first: Calibration,
    middle_s: float,
    say: Say | None,
    cancelled: Cancelled | None,
) -> Validation | None:
    with tempfile.TemporaryDirectory(prefix="kv-replay-") as scratch:
        device = first.write(Path(scratch) / "first-half.json")
        again = replace(planned, settings=planned.settings.with_(device=str(device)))
        simulate_plan(
            again,
            Path(scratch) / "run",
            say,
            cancelled,
            "simulating the second half",
            (0.7, 0.85),
        )
        if cancelled is not None and cancelled():
            return None
        with open_recording(Path(scratch) / "run") as simulated:
            return validate(recording, simulated, since_s=middle_s)


def run(arguments: argparse.Namespace) -> int:
    """Simulate, compare and print; returns 0. Raises KVReplayError."""
    with open_recording(arguments.recording) as recording:
        found = _found(recording, arguments)
    if arguments.json:
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        print("\n".join(found.pop("lines")))
    return 0


def _found(recording: Recording, arguments: argparse.Namespace) -> dict[str, Any]:
    """The answer in plain types; with `lines` for the terminal unless JSON was asked for."""
    if is_own(recording):
        return {"own": True} if arguments.json else {"lines": [f"{recording.label}: {OURS}"]}
    changes = {"device": arguments.device} if arguments.device else {}
    planned = plan(recording, **changes)
    with tempfile.TemporaryDirectory(prefix="kv-replay-") as scratch:
        simulate_plan(planned, Path(scratch) / "run")
        with open_recording(Path(scratch) / "run") as simulated:
            before = validate(recording, simulated)
        calibrated, after = None, None
        if arguments.calibrate:
            calibrated = calibrate_on(recording, planned, Path(scratch) / "device.json")
            if calibrated is None:
                raise SettingsError("the calibration was cancelled. Run it again.")
            again = replace(
                planned, settings=planned.settings.with_(device=str(calibrated.path))
            )
            simulate_plan(again, Path(scratch) / "again")
            with open_recording(Path(scratch) / "again") as simulated:
                after = validate(recording, simulated)
    if arguments.json:
        return _document(planned, before, calibrated, after)
    return {"lines": _lines(recording, planned, before, calibrated, after)}


def _document(
    planned: Plan, before: Validation, calibrated: Calibrated | None, after: Validation | None
) -> dict[str, Any]:
    found: dict[str, Any] = {
        "own": False,
        "device": planned.settings.device,
        "model": planned.settings.model,
        **as_document(before),
        "notes": list(planned.notes),
    }
    if calibrated is not None and after is not None:
        held = calibrated.held_out
        found["calibrated"] = {
            **as_document(after),
            "held_out": None if held is None else as_document(held),
            "why_not": calibrated.why_not,
            "step_errors": list(calibrated.step_errors),
            "caution": calibrated.caution,
        }
    return found


def _lines(
    recording: Recording,
    planned: Plan,
    before: Validation,
    calibrated: Calibrated | None,
    after: Validation | None,
) -> list[str]:
    s = planned.settings
    said = [
        f"{recording.label} against its simulation: {s.model} on {s.device}, {before.num_requests:,} requests finished on both sides",
        *table_lines(before),
        f"{_graded(before)}: {before.sentence}",
    ]
    if calibrated is not None and after is not None:
        said += ["", "Calibrated on this recording (fitted: these are its own steps)"]
        said += [*table_lines(after), f"{_graded(after)}: {after.sentence}"]
        held = calibrated.held_out
        if held is None:
            said += ["", f"Held out: none, {calibrated.why_not}"]
        else:
            said += ["", "Held out: fitted to the first half, these are requests of the second"]
            said += [*table_lines(held), f"{_graded(held)}: {held.sentence}"]
        if calibrated.step_errors:
            worst = max(calibrated.step_errors)
            said.append(
                f"Step times that a fit to the others predicts: median error at most {worst:.1%}"
            )
        if calibrated.caution:
            said.append(f"warning: {calibrated.caution}")
    return [*said, "", bounds_in_words(before), *(f"note: {n}" for n in planned.notes)]


def _graded(found: Validation) -> str:
    return (found.grade or "no grade").capitalize()


def table_lines(found: Validation) -> list[str]:
    """The figures as lines of text."""
    rows = [f"  {'figure':<44}{'observed':>14}{'simulated':>14}{'error':>20}  grade"]
    for c in found.checks:
        observed = "" if c.name == "used_distance" else show_value(c.name, c.observed)
        rows.append(
            f"  {c.label:<44}{observed:>14}{show_value(c.name, c.simulated):>14}{show_error(c):>20}  {c.grade or 'not counted'}"
        )
    return rows
